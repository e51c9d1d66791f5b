"""Dispatchers: the process that runs a named dispatcher is killed; another one takes over. A log outside of the store
has a note before and behind each batch."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.crash.episodes import armed
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

COUNT, BATCH = 60, 7
# Place: how often it may be passed before.
PLACES = {
    "dispatcher.made": 1,
    "dispatcher.taken": 1,
    "dispatcher.give": 8,
    "dispatcher.gave": 8,
    "dispatcher.moved": 8,
}
RUN = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def work(messages):
    numbers = " ".join(bytes(message.body).decode() for message in messages)
    os.write(out, f"begin {os.getpid()} {numbers}\\n".encode())
    os.write(out, f"end {os.getpid()} {numbers}\\n".encode())
search = store.dispatchers.add("search", work, max_count=batch)
"""


def given(path: Path, log: Path) -> dict[str, Any]:
    return {"path": str(path), "log": str(log), "settings": SETTINGS, "batch": BATCH}


def begin(process: Process, path: Path, log: Path) -> None:
    process.do(RUN, **given(path, log))


def fill(store: cystore.MessageStore, start: int, count: int) -> None:
    for number in range(start, start + count):
        store.put("orders", b"%d" % number)


def lines_of(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def check(log: Path, count: int, killed: set[str]) -> None:
    """Batches follow each other without a gap; one begins before the end of another only behind a kill."""
    done, inside = 0, None
    for word, pid, *numbers in lines_of(log):
        first, last = int(numbers[0]), int(numbers[-1])
        if word == "begin":
            assert inside is None or inside in killed, f"{inside} and {pid} at once"
            assert first <= done, f"{done} to {first} are left out"
            assert first >= done - BATCH, f"{first} to {done} came again"
            inside = pid
        else:
            assert inside == pid
            done, inside = last + 1, None
    assert done == count


def killed_at(
    place: str, rng: random.Random, folder: Path, environment: Mapping[str, str], *, planted: str = ""
) -> None:
    path, log = folder / "store", folder / "log"
    with cystore.open(path, **SETTINGS) as store:
        fill(store, 0, COUNT)
    hits = rng.randint(1, PLACES[place])
    with Process(armed(environment, place, hits)) as victim, Process() as other:
        killed = {str(victim.pid)}
        victim.send(RUN + "search.wait(60)", **given(path, log))
        with pytest.raises(EOFError):
            victim.answer()
        begin(other, path, log)
        assert other.do(planted + "\nsearch.wait(60)")
        assert other.do("search.close() and store.close()") is None
    check(log, COUNT, killed)
    with cystore.open(path, **SETTINGS) as store:
        assert store.dispatchers.states() == [("search", store.wrote_position, 0, False, 0, False)]
    after_kills(path, SETTINGS)
