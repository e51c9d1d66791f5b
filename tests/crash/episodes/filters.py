"""Filters: a process is killed while it registers a filter, beside one that dispatches before and after; reads by
bitmaps hide no message."""

from __future__ import annotations

import random
import signal
from collections.abc import Mapping
from pathlib import Path

import pytest

import cystore
from tests.crash.episodes import armed
from tests.support.aftermath import aftermath
from tests.support.process import Process
from tests.unit.consumers.test_registered_filters import EXTENDED, MATCH, expected, offsets, put

FEW, FEW_MATCH = "a < 2", 2
PLACES = (
    "manifest.written:1",
    "filters.entered:1",
    "filters.dispatched:1",
    "manifest.written:2",
    "filters.born:1",
)


def check(store: cystore.MessageStore, count: int) -> None:
    """Both filters give all that match."""
    assert offsets(store) == expected(count)
    assert offsets(store, expression=FEW) == [n for n in range(count) if n % 10 < FEW_MATCH]


def killed_at(
    place: str, rng: random.Random, folder: Path, environment: Mapping[str, str], *, planted: str = ""
) -> None:
    path, name = folder / "store", place.partition(":")
    marks = [0]
    for _ in range(4):
        marks.append(marks[-1] + rng.randint(1, 40))
    with cystore.open(path, **EXTENDED) as store:
        store.filters.add("g", "T", FEW)
        put(store, range(marks[1]))
        store.dispatch()
        with Process(armed(environment, name[0], int(name[2]))) as victim:
            victim.send(
                f"import cystore\nstore = cystore.open(path, **settings)\n{planted}\n"
                "store.filters.add('g', 'T', expression)",
                path=str(path),
                settings=EXTENDED,
                expression=MATCH,
            )
            with pytest.raises(EOFError):
                victim.answer()
            assert victim.wait() == -signal.SIGKILL
        put(store, range(marks[1], marks[2]))
        store.dispatch()
        put(store, range(marks[2], marks[3]))
        with cystore.open(path, **EXTENDED) as late:  # reads the manifest as it stands on the disk
            late.dispatch()
            for handle in (store, late):
                check(handle, marks[3])
        row = store.filters.add("g", "T", MATCH)
        assert row.born is not None and store.filters.list() == [row]
        put(store, range(marks[3], marks[4]))
        check(store, marks[4])
    aftermath(path, EXTENDED, lambda store: check(store, marks[4]))
