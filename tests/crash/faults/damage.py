"""Damage: files cut short at any byte, pages that are zero, stale, or another page's."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.crash import images
from tests.crash.images import PAGE_BYTES, Put, Whole
from tests.crash.matrix import Fault, Run

LOG_BYTES = 16 * 1024
LOG = "commitlog/"
KINDS = (LOG, "consumequeue/", "index/", "checkpoint", "config/")


@dataclass(frozen=True)
class Damage:
    """The versions of one file."""

    name: str
    what: str
    data: bytes


def whole(path: Path, rng: random.Random) -> Whole:
    """A store whose last records reach into the last page of a log file, and that was flushed before."""

    def enough(puts: list[Put]) -> bool:
        end = puts[-1].end if puts else 0
        return end > 2 * LOG_BYTES and end % LOG_BYTES > LOG_BYTES - 3000

    settings = images.settings(
        rng,
        mapped_file_size_commit_log_bytes=LOG_BYTES,
        mapped_file_size_consume_queue_bytes=400 * 20,
        max_hash_slot_num=101,
        max_index_num=1000,
    )
    return images.whole(path, rng, settings, enough)


def damages(store: Whole, rng: random.Random) -> list[Damage]:
    """All that can be done to one file of each kind, and to each page of any, in random order."""
    found = []
    for kind in KINDS:
        names = [n for n, data in store.files.items() if n.startswith(kind) and any(data)]
        for name in names if kind == "config/" else names[-2:]:
            found += cuts(store, name)
        for name in names:
            if kind != "config/":
                found += pages(store, name, rng)
    rng.shuffle(found)
    return found


def cuts(store: Whole, name: str) -> Iterator[Damage]:
    data = store.files[name]
    for length in range(max(len(data) - PAGE_BYTES, 0), len(data)):
        yield Damage(name, f"cut at {length}", data[:length])


def pages(store: Whole, name: str, rng: random.Random) -> Iterator[Damage]:
    """Each page of a file as zeros, as it was before, and as another page of a file of that kind is."""
    data, before = store.files[name], store.before.get(name, bytes(len(store.files[name])))
    others = [d for n, d in store.files.items() if n.split("/")[0] == name.split("/")[0]]
    for at in range(0, len(data), PAGE_BYTES):
        page = data[at : at + PAGE_BYTES]
        other = rng.choice(others)
        place = rng.randrange(0, max(len(other) - len(page), 0) + 1, PAGE_BYTES)
        for what, instead in (
            ("zeroed", bytes(len(page))),
            ("stale", before[at : at + PAGE_BYTES]),
            ("duplicate", other[place : place + len(page)].ljust(len(page), b"\0")),
        ):
            if instead != page:
                yield Damage(name, f"page at {at} {what}", data[:at] + instead + data[at + len(page) :])


def lost(store: Whole, damage: Damage) -> list[Put]:
    """The messages whose bytes are not what they were. A log file that is cut short reads as if zeros followed."""
    if not damage.name.startswith(LOG):
        return []  # the log says all that the others do
    base, good = int(damage.name.removeprefix(LOG)), store.files[damage.name]
    now = damage.data.ljust(len(good), b"\0")
    inside = [p for p in store.puts if base <= p.begin < base + len(good)]
    return [p for p in inside if now[p.begin - base : p.end - base] != good[p.begin - base : p.end - base]]


class Rounds:
    """All damages of one store, then of another, and so on; any of them can be had by its number."""

    def __init__(self, seed: int, folder: Path) -> None:
        self._seed, self._folder = seed, folder
        self._stores: list[tuple[int, Whole, list[Damage]]] = []
        self._end = 0

    def place(self, number: int) -> tuple[Whole, Damage]:
        while number >= self._end:
            rng = random.Random(f"{self._seed} damage round {len(self._stores)}")
            store = whole(self._folder / "live", rng)
            listed = damages(store, rng)
            self._stores = [(self._end, store, listed)]
            self._end += len(listed)
        begin, store, listed = self._stores[-1]
        return store, listed[number - begin]


def run(run: Run) -> None:
    rounds: Rounds | None = None
    for case in run.cases():
        with run.case(case), images.scratch(case) as folder:
            rounds = rounds or Rounds(run.row.seed, case.folder)
            store, damage = rounds.place(case.number)
            path = folder / "image"
            images.write_files(path, {**store.files, damage.name: damage.data})
            if case.rng.random() < 0.5:
                (path / "abort").touch()
            gone = lost(store, damage)
            there = [p for p in store.puts if p not in gone]
            reported = gone if damage.name.startswith(LOG) else None
            for read_only in (True, False):
                images.recover(path, store, there, reported, read_only=read_only)
            run.tally(messages_lost_and_reported=len(gone), **{f"{damage.name.split('/')[0]}_damaged": 1})


FAULT = Fault(
    "damage",
    "log, queue, index, checkpoint, offset files cut at every byte of their last 4 KiB; every page zeroed, "
    "stale, duplicated",
    25_000,
    40,
    run,
)
