"""Goal: the checker finds each kind of fault. Method: a sound history of three members, and one fault planted into it
at a time."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from tests.support.ha.checker import Stored, check

COUNT, SIZE = 12, 100


def stored(number: int) -> Stored:
    return Stored(number % 3, number // 3, number * SIZE, f"{'ab'[number >= 6]}.1 {number}")


def line(number: int) -> dict[str, Any]:
    one = stored(number)
    life, _, count = one.body.rpartition(" ")
    epoch = 1 if number < 6 else 2
    return {
        "life": life,
        "number": int(count),
        "queue": one.queue,
        "offset": one.offset,
        "at": one.at,
        "epoch": epoch,
        "ms": number,
    }


class Run:
    def __init__(self) -> None:
        self.acknowledged = [line(number) for number in range(COUNT)]
        self.logs = {name: [stored(number) for number in range(COUNT)] for name in "abc"}
        self.read = {name: [stored(number) for number in range(COUNT)] for name in "abc"}
        self.raw = dict.fromkeys("abc", b"log")
        self.seen = [(number * SIZE, stored(number).body) for number in range(0, COUNT, 2)]

    def faults(self) -> list[str]:
        return check(self.acknowledged, self.logs, self.read, self.raw, self.seen)


def test_a_sound_run_has_no_fault():
    assert Run().faults() == []


def lost(run: Run) -> None:
    del run.logs["b"][-1]


def changed(run: Run) -> None:
    run.logs["b"][4] = dataclasses.replace(run.logs["b"][4], body="a.1 99")


def gap(run: Run) -> None:
    run.acknowledged = []
    del run.logs["c"][3]


def repeat(run: Run) -> None:
    again = dataclasses.replace(stored(11), offset=4, at=COUNT * SIZE)
    run.logs["a"].append(again)


def order(run: Run) -> None:
    run.acknowledged = []
    first, second = run.logs["a"][0], run.logs["a"][3]
    run.logs["a"][0] = dataclasses.replace(first, body=second.body)
    run.logs["a"][3] = dataclasses.replace(second, body=first.body)


def bytes_differ(run: Run) -> None:
    run.raw["c"] = b"loG"


def not_served(run: Run) -> None:
    del run.read["b"][5]


def served_otherwise(run: Run) -> None:
    run.read["c"][7] = dataclasses.replace(run.read["c"][7], at=1)


def taken_back(run: Run) -> None:
    run.seen.append((SIZE, "c.1 0"))


def two_epochs_at_one_place(run: Run) -> None:
    run.acknowledged.append({**line(3), "epoch": 2})


def epochs_overlap(run: Run) -> None:
    run.acknowledged[8]["epoch"] = 1


def two_masters_in_one_epoch(run: Run) -> None:
    run.acknowledged[5] = {**run.acknowledged[5], "life": "c.1"}


@pytest.mark.parametrize(
    ("plant", "found"),
    [
        (lost, "lost"),
        (changed, "lost"),
        (gap, "instead of"),
        (repeat, "twice"),
        (order, "stands behind"),
        (bytes_differ, "differ"),
        (not_served, "a read of its queue gives None"),
        (served_otherwise, "a read of its queue gives Stored"),
        (taken_back, "taken back"),
        (two_epochs_at_one_place, "acknowledged twice"),
        (epochs_overlap, "and epoch 2 from"),
        (two_masters_in_one_epoch, "has the masters"),
    ],
)
def test_a_planted_fault_is_found(plant, found):
    run = Run()
    plant(run)
    assert any(found in fault for fault in run.faults()), run.faults()
