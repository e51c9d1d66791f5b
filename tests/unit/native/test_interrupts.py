"""Goal: an exception of a signal handler leaves nothing behind: no descriptor, mapping, thread, lock, call or
temporary file. Method: one exception at every place of each public call, of `open`, of `close` and of a finalizer
where Python runs handlers; the quick run takes a part of the places. Then what the process has is counted."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import sys
import time

import pytest

import cystore
from cystore.attachment.attach import attach
from cystore.system.threads import os_threads
from cystore.verify.verifier import verify
from tests.support.interrupts import (
    PLACES,
    Interrupted,
    alone_again,
    descriptors,
    happens_at,
    left_mapped,
    mapped,
    places_in,
    raise_interrupted,
    threads,
)
from tests.support.small_stores import SETTINGS, open_small
from tests.support.storms.public_calls import World
from tests.unit.native.test_storm import becomes, nobody_owns

# An exception in a finalizer is only logged.
pytestmark = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.unsanitized,  # about Python code
    pytest.mark.usefixtures("no_frames_kept"),
]


def chosen(count: int, rng, most: int | None) -> list[int]:
    """Places of a call: all, or `most` of them."""
    places = list(range(1, count + 1))
    return places if most is None else sorted(rng.sample(places, min(most, count)))


def interrupted(place: int, call) -> None:
    """Runs a call with an exception at a place; it may end with it, or as usual."""
    with contextlib.suppress(Interrupted):
        happens_at(place, call, raise_interrupted)


@pytest.mark.parametrize("most", [8, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_an_exception_at_a_place_of_a_public_call_leaves_nothing(tmp_path, rng, most):
    """Seen: an exception right behind `os.open` left the descriptor open."""
    path = tmp_path / "s"
    interrupt_each_call(path, rng, most)
    assert left_mapped(path) == []
    assert not list(verify(path, cystore.StoreConfig(**SETTINGS)))


def interrupt_each_call(path, rng, most) -> None:
    with World(path, rng) as world:
        store, made = world.store, world.calls_without_loops()
        for call in [*made.values()] * 2:
            call()
        gc.collect()
        before, threads_before = world.descriptors(), threads()
        for name, call in made.items():
            for place in chosen(places_in(call), rng, most):
                interrupted(place, call)
                world.stop_dispatchers()  # the test's own code may have lost one
                where = f"{name}, place {place}"
                assert alone_again(threads_before), where
                assert becomes(lambda: world.left_open(before) == []), (where, world.left_open(before))
                assert becomes(nobody_owns(store._parts.control)), where
                assert becomes(lambda: store._parts.appender.active_calls == 0), where
                assert not store._parts.appender.called_by_this_thread, where
                assert becomes(lambda: os.listdir(path / "tmp") == []), where
        assert threads() <= threads_before
        assert store._parts.control.intent is None
        store.dispatch()
        offsets = [m.queue_offset for m in store.scan() if (m.topic, m.queue_id) == ("T", 0)]
        assert offsets == list(range(offsets[0], offsets[0] + len(offsets)))


@pytest.mark.sampled(1)
@pytest.mark.parametrize("most", [15, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
@pytest.mark.parametrize("what", ["open", "close", "drop"])
def test_an_exception_in_open_or_close_leaves_nothing(tmp_path, rng, what, most, caplog):
    """Seen: a thread that waited for ever for a lock of `threading`, whose start was broken off; and the parts of a
    store that such a thread kept."""
    path, stores = tmp_path / "s", []
    caplog.set_level(logging.CRITICAL, "cystore")

    def open_one() -> None:
        stores.append(open_small(path, services=("flush", "allocate")))

    def close_one() -> None:
        stores[0].close()

    open_one()
    stores[0].put("T", b"x", flush="sync")
    close_one()
    stores.clear()
    gc.collect()
    before, threads_before = descriptors(), threads()
    call = {"open": open_one, "close": close_one, "drop": stores.clear}[what]
    if what != "open":
        open_one()
    count = places_in(call)
    for place in chosen(count + 5, rng, most):
        stores.clear()
        if what != "open":
            open_one()
        interrupted(place, call)
        stores.clear()
        gc.collect()
        for turn in range(
            5000
            # a store that is dropped is left by a thread of its own, whose frames may keep parts until they are
            # collected
        ):
            if turn % 100 == 99:
                gc.collect()
            if threads() <= threads_before and descriptors() == before and not mapped(path):
                break
            os_threads.pause(0.002)
        where = f"place {place}"
        assert threads() <= threads_before, where
        assert descriptors() == before, where
        assert left_mapped(path) == [], where
    with open_small(path, exclusive=True) as store:
        assert [bytes(m.body) for m in store.scan()] == [b"x"]


def test_an_exception_where_an_attach_ends_lets_the_next_one_in(tmp_path):
    """Seen: an exception in the hash of a path, which is a function of Python, left the mark of an attach: each later
    open and put of the thread raised StoreLockedError."""
    path, place = tmp_path / "s", 0
    while True:
        place += 1
        left = place

        def look(frame, event, argument) -> None:
            nonlocal left
            if event in PLACES and attach.__code__ in (frame.f_code, frame.f_back and frame.f_back.f_code):
                left -= 1
                if left == 0:
                    sys.setprofile(None)
                    raise Interrupted

        with contextlib.suppress(Interrupted):
            sys.setprofile(look)
            try:
                open_small(path).close()
            finally:
                sys.setprofile(None)
        open_small(path).close()
        if left > 0:
            break
    assert place > 4


def refuses_every_call(store) -> None:
    for call in (lambda: store.wrote_position, lambda: store.put("T", b"x"), store.dispatch, store.stats):
        with pytest.raises(cystore.StoreClosedError):
            call()


@pytest.mark.parametrize("most", [15, pytest.param(None, marks=pytest.mark.slow)], ids=["some", "all"])
def test_a_close_that_an_exception_broke_off_goes_on(tmp_path, rng, most):
    """Seen: a handle that said `closed`, stayed attached until Python collected it, and still took some calls."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"x")
    places = chosen(places_in(open_small(path).close), rng, most)
    for place in [*places, *places[:1]]:
        store = open_small(path)
        interrupted(place, store.close)
        if not store.closed:  # the exception came before all of it
            assert store.wrote_position
            store.close()
        refuses_every_call(store)
        until = time.monotonic() + 60
        while True:
            try:
                open_small(path, exclusive=True).close()
                break
            except cystore.StoreLockedError:
                assert time.monotonic() < until, f"place {place}: the store stays attached"
                os_threads.pause(0.002)
