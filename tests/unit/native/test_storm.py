"""Goal: no exception that a signal handler raises, wherever it comes, leaves a lock, a waiter, a claim or something
half done; and a handler may make any call inside of any other. Method: an interval timer whose handler raises, or calls
the store, over all public calls; then the locks, another process and verify are asked."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import time

import pytest

import cystore
from cystore.layout import MUTEX_NAMES
from cystore.system.threads import os_threads
from cystore.verify.verifier import verify
from tests.support.interrupts import alone_again, descriptors, left_mapped, mapped, threads
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small
from tests.support.storms.public_calls import World

QUICK, LONG = 1_000, 100_000
# The handler's exception in a finalizer is only logged.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


class Interrupted(Exception):
    """The exception of the handler."""


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


def becomes(state, within_s: float = 60.0) -> bool:
    """Waits for a state that threads bring about which the interrupted calls began, or objects that they dropped."""
    until = time.monotonic() + within_s
    while not state():
        if time.monotonic() > until:
            return False
        gc.collect()
        os_threads.pause(0.01)
    return True


def nobody_owns(control):
    """For `becomes`: the threads of consumers and dispatchers take locks, too, for a moment each."""
    return lambda: not [name for name in MUTEX_NAMES if control.owner(name)]


def count(slow: bool) -> int:
    return LONG if slow else QUICK


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_storm_of_exceptions_leaves_nothing(tmp_path, rng, slow, no_frames_kept):
    """After 9 to 298 exceptions the dispatch or flush lock stayed with a live process: every get of every process
    took a second then."""
    path = tmp_path / "s"
    storm_over_each_call(path, rng, count(slow))
    assert left_mapped(path) == []
    assert not list(verify(path, cystore.StoreConfig(**SETTINGS)))


def storm_over_each_call(path, rng, most) -> None:
    seen = [0]
    with World(path, rng) as world:
        store = world.store
        control = store._parts.control
        made = list(world.calls_without_loops().values())
        for call in made * 2:
            call()
        gc.collect()
        before, threads_before = world.descriptors(), threads()
        with storm(seen):
            while seen[0] < most:
                broken_off(rng.choice(made), 10 ** rng.uniform(-6, -2.5))
                if rng.random() < 0.01:
                    world.stop_dispatchers()
                    assert alone_again(threads_before)
                    assert becomes(nobody_owns(control))
        world.stop_dispatchers()
        assert alone_again(threads_before)
        assert becomes(lambda: world.left_open(before) == []), world.left_open(before)
        assert becomes(lambda: store._parts.appender.active_calls == 0)
        assert becomes(lambda: os.listdir(path / "tmp") == []), os.listdir(path / "tmp")
        assert becomes(nobody_owns(control))
        with Process() as other:
            other.do(
                "import cystore; store = cystore.open(path, **settings)",
                path=str(store.path),
                settings=SETTINGS,
            )
            at = other.do("store.put('T', b'after', flush='sync').queue_offset")
            assert other.do("len(store.get('T', 0, at, 1).messages)", at=at) == 1
        assert control.append_sleepers <= 3  # the threads of the dispatcher and of the two watches
        assert control.intent is None
        store.dispatch()
        store.flush()
        offsets = [
            message.queue_offset for message in store.scan() if message.topic == "T" and message.queue_id == 0
        ]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_storm_of_handlers_that_call_the_store(tmp_path, rng, slow):
    """Seen: a put with a key made room outside of the guard, and a handler's put raised StoreLockedError. A handler
    that added a dispatcher inside of another `add` waited for its own thread."""
    handled, wrong = [0], []
    with World(tmp_path / "s", rng) as world:
        made = world.calls()
        inner = world.calls_without_loops()
        for call in made.values():
            call()

        def handle(*_) -> None:
            handled[0] += 1
            name = rng.choice(list(inner))
            try:
                inner[name]()
            except cystore.StoreError as error:
                wrong.append((name, error))

        before = signal.signal(signal.SIGALRM, handle)
        try:
            while handled[0] < count(slow):
                signal.setitimer(signal.ITIMER_REAL, 10 ** rng.uniform(-6, -2.5))
                rng.choice(list(made.values()))()
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert not wrong, wrong[:3]
        assert becomes(nobody_owns(world.store._parts.control))
    assert not list(verify(tmp_path / "s", cystore.StoreConfig(**SETTINGS)))


@pytest.mark.parametrize("slow", [False, pytest.param(True, marks=pytest.mark.slow)])
def test_a_storm_over_open_and_close_leaves_nobody_attached(tmp_path, rng, slow, no_frames_kept):
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
