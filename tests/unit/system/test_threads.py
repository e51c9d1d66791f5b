"""Goal: a service continues whatever its store says. Method: a thread that is over before it is assigned."""

from __future__ import annotations

import logging

import pytest

from cystore.engine.files.progress import Progress
from cystore.errors import (
    StoreClosedError,
    StoreFullError,
    StoreIOError,
    StoreMovedError,
    StorePermissionError,
    StoreResourceError,
)
from cystore.services import threads
from cystore.services.threads import ServiceThread
from cystore.system.threads import repeated_errors

pytestmark = pytest.mark.unsanitized  # Python alone


class Inline:
    """A thread that is over before it is assigned."""

    def __init__(self, target, name):
        target()


def test_a_service_whose_first_run_fails_goes_on(caplog):
    """A thread may run before its starter knows it."""
    runs = []

    def run_once():
        runs.append(len(runs))
        raise StoreFullError("no space") if len(runs) == 1 else StoreClosedError("closed")

    caplog.set_level(logging.ERROR, "cystore")
    ServiceThread("flush", run_once, 0.0, thread=Inline)
    assert runs == [0, 1]
    assert "cystore-flush" in caplog.text


@pytest.mark.parametrize("asked_each_time", [False, True], ids=["fixed", "asked each time"])
def test_the_interval_counts_from_the_beginning_of_a_turn(monkeypatch, asked_each_time):
    """Seen: a byte was not durable for 2.7 times the interval, because the wait began when the disk was done with the
    last flush. A turn that takes longer than the interval leaves the disk a short rest."""
    now, turns, waits = [100.0], iter([0.25, 1.0, 7.0]), []
    monkeypatch.setattr(threads, "monotonic_s", lambda: now[0])

    def run_once():
        took = next(turns, None)
        if took is None:
            raise StoreClosedError("closed")
        now[0] += took
        return Progress(1)

    interval = (lambda: 2.0) if asked_each_time else 2.0
    ServiceThread("flush", run_once, interval, waits.append, thread=Inline)
    assert waits == ([2.0] * 3 if asked_each_time else [1.75, 1.0, pytest.approx(0.2)])


@pytest.mark.parametrize("kind", [StoreFullError, StoreMovedError, StorePermissionError, StoreResourceError])
def test_a_full_disk_is_one_line_a_minute(monkeypatch, caplog, kind):
    """Seen: 206 tracebacks in 18 s of each process, because the numbers in the text changed and some turns went well
    in between. The log may lie on the same disk. The first look at a store that was moved tells nothing: its program
    may be at its end, and the close tells it."""
    now, turns = [100.0], []
    monkeypatch.setattr(repeated_errors, "monotonic_s", lambda: now[0])

    def run_once():
        turns.append(len(turns))
        if len(turns) == 300:
            raise StoreClosedError("closed")
        now[0] += 0.25  # 75 s
        if len(turns) % 3 == 0:
            return Progress(1)
        raise kind(f"{len(turns)} bytes are free", path=f"/store/{len(turns)}")

    ServiceThread("allocate", run_once, 0.0, lambda _: None, thread=Inline)
    assert len(turns) == 300
    first = 2 if kind is StoreMovedError else 1
    assert caplog.messages == [
        f"cystore-allocate: {first} bytes are free [path /store/{first}]",
        (
            f"cystore-allocate: {caplog.messages[1].split()[1]} bytes are free [path "
            f"/store/{caplog.messages[1].split()[1]}]"
        ),
    ]
    assert all(record.exc_info is None for record in caplog.records)


def test_another_error_keeps_its_traceback_once(caplog):
    turns = []

    def run_once():
        turns.append(len(turns))
        if len(turns) == 5:
            raise StoreClosedError("closed")
        raise StoreIOError("the disk cannot be read")

    ServiceThread("flush", run_once, 0.0, thread=Inline)
    assert [record.exc_info is not None for record in caplog.records] == [True]
