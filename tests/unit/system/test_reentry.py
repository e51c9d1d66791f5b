"""Goal: a signal handler or a finalizer may call the store whatever call of the store it came in between. Method:
every public call, and `close`, inside of every other one at random places where Python runs handlers."""

from __future__ import annotations

import gc
import logging
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

import cystore
from cystore.system.store_lock import StoreLocks
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed
from cystore.verify.verifier import verify
from tests.support.interrupts import happens_at, places_in
from tests.support.process import Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small
from tests.support.storms.public_calls import ROWS, World
from tests.unit.native.test_locks import wait_until_somebody_waits
from tests.unit.native.test_storm import becomes, nobody_owns

pytestmark = pytest.mark.unsanitized  # about Python code

QUICK, LONG = 600, 40_000


def all_calls(world):
    """Every public call by its name, and some that need room in the log."""
    return {**world.calls(), "a long put": lambda: world.store.put("B", body_for(LOG_BYTES // 3))}


@pytest.mark.parametrize("count", [QUICK, pytest.param(LONG, marks=pytest.mark.slow)])
def test_each_call_works_inside_of_each_other(tmp_path, rng, count):
    """Seen: a flush, checkpoint, hold or release inside of one another raised StoreLockedError, or StoreTimeoutError
    after sync_flush_timeout_ms: it waited for its own thread."""
    with World(tmp_path / "s", rng) as world:
        store, made = world.store, all_calls(world)
        inner = list(world.calls_without_loops().values())
        for call in made.values():
            call()
        places = {name: places_in(call) for name, call in made.items()}
        for _ in range(count):
            outer = rng.choice(list(made))
            happens_at(rng.randrange(1, places[outer] + 2), made[outer], rng.choice(inner))
            assert becomes(nobody_owns(store._parts.control)), outer
        store.dispatch()
        for topic, queues in store.topics().items():
            for queue_id in queues:
                found = [m.queue_offset for m in store.scan() if (m.topic, m.queue_id) == (topic, queue_id)]
                assert found == list(range(found[0], found[0] + len(found))) if found else True
    assert not list(verify(tmp_path / "s", cystore.StoreConfig(**SETTINGS)))


@pytest.mark.parametrize("count", [15, pytest.param(5_000, marks=pytest.mark.slow)])
def test_close_inside_of_each_call_takes_effect_when_that_returns(tmp_path, rng, count, caplog):
    caplog.set_level(logging.CRITICAL, "cystore")
    path = tmp_path / "s"
    with Process() as other:
        other.do("import cystore")
        for _ in range(count):
            world = World(path, rng)
            name = rng.choice(list(ROWS))
            call, store = world.calls()[name], world.store
            call()
            try:
                if not happens_at(rng.randrange(1, places_in(call) + 1), call, store.close):
                    store.close()
            except cystore.StoreClosedError:
                pass  # as when another thread closes it
            except RuntimeError as error:  # asyncio's, whose loop has no thread any more
                if "Event loop" not in str(error):
                    raise
            assert store.closed, name
            store.close()
            del world, call
            other.do(
                "cystore.open(path, **settings).close()",
                path=str(path),
                settings=SETTINGS | {"exclusive": True},
            )


def test_put_in_a_handler_inside_of_a_put_that_repairs(tmp_path):
    """Seen: the inner put raised StoreError, because its own thread held the append lock."""
    with open_small(tmp_path / "s", services=()) as store:
        store.put("T", b"first")
        control, inner = store._parts.control, []

        def make_repair_due() -> None:
            with pytest.raises(ZeroDivisionError), control.held("append"):
                raise ZeroDivisionError
            assert control.repair_is_due("append")

        def outer() -> None:
            store.put("T", b"outer")

        make_repair_due()
        for place in range(1, places_in(outer) + 1):
            make_repair_due()
            happens_at(place, outer, lambda: inner.append(store.put("T", b"inner")))
            assert not control.repair_is_due("append")
        assert len(inner) > 10
        offsets = [message.queue_offset for message in store.scan()]
        assert offsets == list(range(len(offsets)))


def test_put_in_a_handler_inside_of_a_put_that_waited_for_the_lock(tmp_path):
    """Seen: PageCacheBusyError. The signal came during the wait, and the outer put ran the handler under the lock that
    it had just got."""
    with open_small(tmp_path / "s", services=()) as store:
        control, held, inner = store._parts.control, threading.Event(), []

        def hold() -> None:
            with control.held("append"):
                held.set()
                wait_until_somebody_waits(control)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)

        store.put("T", b"first")
        before = signal.signal(signal.SIGUSR1, lambda *_: inner.append(store.put("T", b"inner")))
        try:
            with ThreadPoolExecutor(1) as holder:
                holding = holder.submit(hold)
                held.wait()
                outer = store.put("T", b"outer")
                holding.result()
        finally:
            signal.signal(signal.SIGUSR1, before)
        assert sorted([outer.queue_offset, inner[0].queue_offset]) == [1, 2]


def test_open_in_a_handler_inside_of_an_open_is_refused(tmp_path, monkeypatch):
    """Seen: it waited at the gate for its own thread, without end."""
    alone, refused = StoreLocks.try_alone, []

    def interrupted(locks: StoreLocks) -> bool:
        with pytest.raises(cystore.StoreLockedError, match="an interrupted call of this thread") as caught:
            open_small(tmp_path / "s", services=())
        refused.append(caught.value)
        monkeypatch.undo()  # a close asks, too
        return alone(locks)

    monkeypatch.setattr(StoreLocks, "try_alone", interrupted)
    with open_small(tmp_path / "s", services=()) as store:
        store.put("T", b"first")
    assert len(refused) == 1


def test_a_handler_that_waits_for_an_undisturbed_call(tmp_path):
    """The handler comes in between while another thread makes the call; it may use the store, which waits for that
    thread."""
    with open_small(tmp_path / "s", services=()) as store:
        control, begun, seen = store._parts.control, os_threads.Flag(), []

        def turn() -> int:
            with control.held("clean"):
                begun.set()
                os_threads.pause(0.05)
            return 7

        def handle(*_) -> None:
            begun.wait()
            seen.append(store.hold("h", 0))

        before = signal.signal(signal.SIGALRM, handle)
        try:
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            assert undisturbed(turn) == 7
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        while not seen:  # the timer was late
            handle()
        assert store.holds()["h"] == seen[0]


@pytest.mark.slow
def test_a_finalizer_reads_and_puts(tmp_path):
    """Seen: a `__del__` that read waited for ever for a lock that its own thread held."""
    with open_small(tmp_path / "s", services=()) as store:
        store.put("T", b"first", keys=("k",))
        put = []

        class Reads:
            def __del__(self) -> None:
                put.append(store.put("T", b"last words", flush="sync"))
                assert store.query("T", "k")
                assert store.get("T", 0, 0).messages

        for call in (
            store.flush,
            store.dispatch,
            store.clean,
            lambda: store.get("T", 0, 0),
            store.checkpoint,
        ):
            count = places_in(call)
            for place in range(1, count, max(count // 8, 1)):
                cycle = Reads()
                cycle.itself = cycle
                del cycle
                happens_at(place, call, gc.collect)
        assert len(put) >= 30
        offsets = [message.queue_offset for message in store.scan()]
        assert offsets == list(range(len(offsets)))
