"""Goal: no process keeps the pages of the log that it touched, whatever it does with the store. Method: one process
appends many times the bound; others write, read, follow, or do nothing but run services. The kernel says how much of
their memory is pages of files."""

from __future__ import annotations

import contextlib
from pathlib import Path

import pytest

from cystore.engine.files.resident_pages import GROWTH_BYTES, ResidentPages
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # a sanitizer's own pages count, too

STEPS, STEP_BYTES = 12, 16 << 20
BOUND_BYTES = 64 << 20

OPEN = """
import os, cystore
store = cystore.open(path, **options)
body, at, most = b"x" * 16_000, 0, 0
def resident():
    global most
    most = max(most, int(open("/proc/self/statm").read().split()[2]) * os.sysconf("SC_PAGESIZE"))
    return most
def put(size):
    for number in range(size // len(body)):
        store.put("T", body, keys=(str(number),))
        if number % 100 == 0:
            resident()
def read():
    global at
    while (found := store.get("T", 0, at)).messages:
        at = found.next_offset
        resident()
def scan():
    for number, message in enumerate(store.scan()):
        if number % 100 == 0:
            resident()
def nothing():
    resident()
"""
ROLES = {
    "services": ({}, "store.put('T', b''); nothing()"),
    "all services": ({"services": "all"}, "store.put('T', b''); nothing()"),
    "reader": ({}, "read()"),
    "reader without services": ({"services": "none"}, "read()"),
    "read-only reader": ({"read_only": True}, "read()"),
    "scan": ({}, "scan()"),
    "read-only scan": ({"read_only": True}, "scan()"),
}


@pytest.mark.parametrize("alone", [False, True], ids=["services", "no services"])
def test_a_log_of_three_times_the_bound_leaves_every_process_small(tmp_path: Path, alone: bool) -> None:
    """Seen: after 25 minutes of a fleet's work, beat had 1.40 GB of pages of the log, which its services had touched.
    Every step of the writer is followed by one of all others."""
    with contextlib.ExitStack() as stack:
        writer = stack.enter_context(Process())
        writer.do(OPEN, path=str(tmp_path / "s"), options={"services": "none"} if alone else {})
        writer.do("put(16_000)")
        others = {name: stack.enter_context(Process()) for name in ROLES}
        for name, other in others.items():
            other.do(OPEN, path=str(tmp_path / "s"), options=ROLES[name][0])
        processes = {"writer": writer, **others}
        before = {name: process.do("resident()") for name, process in processes.items()}
        for _ in range(STEPS):
            writer.do(f"put({STEP_BYTES})")
            for name, other in others.items():
                other.do(ROLES[name][1])
        grown = {name: process.do("resident()") - before[name] for name, process in processes.items()}
        assert STEPS * STEP_BYTES >= 3 * BOUND_BYTES
        assert {name: size >> 20 for name, size in grown.items() if size > BOUND_BYTES} == {}


class Log:
    """Counts releases."""

    released = 0
    refuses = False

    def let_pages_go(self, end: int) -> None:
        self.released += 1
        if self.refuses:
            raise OSError(22, "locked")


class Control:
    wrote = 0


@pytest.mark.parametrize("refuses", [False, True])
def test_pages_are_released_when_they_have_grown_and_not_before(monkeypatch, refuses):
    sizes = [10 << 20]
    monkeypatch.setattr("cystore.engine.files.resident_pages.resident_file_bytes", lambda: sizes[0])
    log = Log()
    log.refuses = refuses
    pages = ResidentPages(log, Control())
    for size, released in [(10 << 20, 0), (42 << 20, 0), ((42 << 20) + 1, 1), (50 << 20, 1)]:
        sizes[0] = size
        pages.look(now=True)
        assert log.released == released, size
    sizes[0] += GROWTH_BYTES
    pages.look()
    assert log.released == 1, "it looked a moment ago"
