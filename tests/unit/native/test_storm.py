"""Goal: no exception that a signal handler raises, wherever it comes, leaves a lock, a waiter, a claim or something
half done. Method: an interval timer whose handler raises, over public calls; then the locks, another process and
verify are asked."""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys

import pytest

import cystore
from cystore.layout import MUTEX_NAMES
from cystore.verify.verifier import verify
from tests.support.interrupts import alone_again, descriptors, mapped, threads
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

QUICK, LONG = 1_000, 100_000
# The handler's exception in a finalizer is only logged.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(Exception):
    """The exception of the handler."""


def calls(store: cystore.MessageStore, rng: random.Random):
    """One of each public call."""
    message = cystore.Message(topic="T", body=b"b" * 50)
    return [
        lambda: store.put(
            "T", b"a" * rng.randrange(400), queue_id=rng.randrange(4), keys=("k",), flush="async"
        ),
        lambda: store.put(f"U{rng.randrange(50)}", b"s", properties={"p": "q"}, flush="sync"),
        lambda: store.put("D", b"late", delay_level=1),
        lambda: store.put_many([message] * rng.randrange(1, 9), flush="sync"),
        lambda: store.get("T", rng.randrange(4), 0, 8),
        lambda: store.query("T", "k", 5),
        store.dispatch,
        store.flush,
        store.flush_log,
        store.checkpoint,
        store.clean,
        store.deliver,
        store.scrub,
        store.topics,
        store.stats,
        store.snapshot,
        lambda: store.wait("T", 0, 10**9, 0.002),
        lambda: store.wait_log(10**12, 0.002),
        lambda: store.offset_by_time("T", 0, 0),
        lambda: store.hold("h", 0),
        lambda: store.release("h"),
        lambda: sum(1 for _ in store.scan()),
    ]


@contextlib.contextmanager
def storm(seen: list[int]):
    def interrupt(*_) -> None:
        seen[0] += 1
        raise Interrupted

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def broken_off(call, after_s: float) -> None:
    """Runs a call; the handler may raise in it, once."""
    try:
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            call()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except Interrupted:
        pass


def count(slow: bool) -> int:
    return LONG if slow else QUICK


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_storm_of_exceptions_leaves_nothing(tmp_path, rng, slow):
    """After 9 to 298 exceptions the dispatch or flush lock stayed with a live process: every get of every process
    took a second then."""
    seen = [0]
    with open_small(tmp_path / "s", services=(), max_queues=1000) as store:
        control = store._parts.control
        made = calls(store, rng)
        for call in made * 2:
            call()
        gc.collect()
        before, threads_before = descriptors(), threads()
        with storm(seen):
            while seen[0] < count(slow):
                broken_off(rng.choice(made), rng.uniform(1e-6, 2e-3))
                if rng.random() < 0.01:
                    assert alone_again(threads_before)
                    assert not [name for name in MUTEX_NAMES if control.owner(name)]
        assert alone_again(threads_before)
        gc.collect()
        assert descriptors() == before
        assert store._parts.appender.active_calls == 0
        assert not os.listdir(tmp_path / "s" / "tmp")
        assert not [name for name in MUTEX_NAMES if control.owner(name)]
        with Process() as other:
            other.do(
                "import cystore; store = cystore.open(path, **settings)",
                path=str(store.path),
                settings=SETTINGS,
            )
            at = other.do("store.put('T', b'after', flush='sync').queue_offset")
            assert other.do("len(store.get('T', 0, at, 1).messages)", at=at) == 1
        assert control.append_sleepers == 0
        assert control.intent is None
        store.dispatch()
        store.flush()
        offsets = [
            message.queue_offset for message in store.scan() if message.topic == "T" and message.queue_id == 0
        ]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))
    assert not list(verify(tmp_path / "s", cystore.StoreConfig(**SETTINGS)))


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_storm_over_open_and_close_leaves_nobody_attached(tmp_path, rng, slow, monkeypatch):
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)  # pytest's keeps the frames
    path, seen = tmp_path / "s", [0]
    open_small(path).close()
    gc.collect()
    before, threads_before = descriptors(), threads()

    def live() -> None:
        store = open_small(path)
        store.put("T", b"x", flush="sync")
        store.close()

    with storm(seen):
        while seen[0] < count(slow) // 20:
            broken_off(live, rng.uniform(1e-5, 3e-2))
    gc.collect()
    assert alone_again(threads_before)
    gc.collect()
    assert (descriptors(), threads() - threads_before, mapped(path)) == (before, set(), [])
    with Process() as other:
        other.do("import cystore; store = cystore.open(path, **settings); store.close()", path=str(path),
                 settings=SETTINGS | {"exclusive": True})  # fmt: skip
