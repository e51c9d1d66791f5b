"""Goal: a duty is done by one process at a time, and never by one whose lease is over. Method: leases in the control
block, two processes that are killed or stopped inside and between steps."""

from __future__ import annotations

import os

import pytest

import cystore
from cystore import FencedError, StoreTimeoutError
from cystore.layout import DUTIES, DUTY_WORDS
from cystore.layout.process_slot import PROCESS_SLOT_BITS
from cystore.services.duty_table import DutyRun, Outcome
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

DUTY = "reput"
OPEN = "import cystore\nstore = cystore.open(path, **settings)\nduties = store.duties"
STEP = "held = duties.step(duty, token, ttl_ms=60_000)\nheld.__enter__()"


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "store") as store:
        yield store


def other(store: cystore.MessageStore) -> Process:
    process = Process()
    process.do(OPEN, path=str(store.path), settings=SETTINGS)
    return process


def step(store: cystore.MessageStore, token: int, **more) -> None:
    with store.duties.step(DUTY, token, ttl_ms=60_000, **more):
        pass


def test_one_lease_at_a_time_for_each_duty(store):
    duties = store.duties
    tokens = {duty: duties.acquire(duty, 60_000) for duty in DUTIES}
    assert set(tokens.values()) == {1}
    assert [duties.acquire(duty, 60_000) for duty in DUTIES] == [None] * len(DUTIES)
    duties.release(DUTY, 1)
    assert duties.acquire(DUTY, 60_000) == 2


def test_a_lease_ends_by_itself(store):
    assert store.duties.acquire(DUTY, 0) == 1
    assert store.duties.lease_left_ms(DUTY) == 0
    assert store.duties.acquire(DUTY, 60_000) == 2
    assert 0 < store.duties.lease_left_ms(DUTY) <= 60_000


def test_who_has_an_older_token_can_do_no_step_and_end_no_lease(store):
    old = store.duties.acquire(DUTY, 0)
    new = store.duties.acquire(DUTY, 60_000)
    with pytest.raises(FencedError, match="token 1 is older than 2"):
        step(store, old)
    store.duties.release(DUTY, old)
    assert store.duties.acquire(DUTY, 60_000) is None
    step(store, new)


def test_a_token_from_elsewhere_fences_those_before_it_and_is_a_lease(store):
    step(store, 7)
    assert store.duties.highest_token(DUTY) == 7
    assert store.duties.acquire(DUTY, 60_000) is None
    store.duties.release(DUTY, 7)
    assert store.duties.acquire(DUTY, 60_000) == 8


def test_tokens_and_runs_are_seen_by_every_process_and_survive_their_holder(store):
    with other(store) as holder:
        assert holder.do("duties.acquire(duty, 0)", duty=DUTY) == 1
        assert holder.do("duties.acquire(duty, 0)") == 2
        holder.kill()
    assert store.duties.highest_token(DUTY) == 2
    assert store.duties.last(DUTY).outcome is Outcome.NEVER
    store.duties.ran(DUTY, DutyRun(5, 6, 7, Outcome.LOST, 0))
    with other(store) as reader:
        assert reader.do("duties.last(duty)", duty=DUTY) == [5, 6, 7, int(Outcome.LOST), 1, os.getpid()]


def test_nobody_does_a_step_beside_one_that_stands_still(store):
    with other(store) as holder:
        holder.do(STEP, duty=DUTY, token=1)
        holder.stop()
        with pytest.raises(StoreTimeoutError, match="inside a step of reput"):
            step(store, 2, wait_ms=10)
        assert store.duties.acquire(DUTY, 0) is None
        assert store.duties.acquire("flush", 0) == 1, "another duty goes on"
        holder.go_on()
        holder.do("held.__exit__(None, None, None)")
        step(store, 2)
        holder.send(STEP, duty=DUTY, token=1)
        with pytest.raises(Exception, match="FencedError"):
            holder.answer()


def test_a_holder_that_is_killed_inside_of_a_step_stops_nobody(store):
    with other(store) as holder:
        holder.do(STEP, duty=DUTY, token=1)
        holder.kill()
    step(store, 2)
    step(store, 2)


def test_an_error_inside_of_a_step_gives_the_lock_back(store):
    with pytest.raises(ZeroDivisionError), store.duties.step(DUTY, 1, ttl_ms=1):
        _ = 1 / 0
    step(store, 1)


def test_an_unknown_duty_is_refused(store):
    with pytest.raises(ValueError, match="dishes"):
        store.duties.acquire("dishes", 1)
    with pytest.raises(ValueError):
        store.duties.last("")


def test_a_closed_store_and_a_reader_do_no_duties(store):
    store.duties.ran(DUTY, DutyRun(1, 2, 3, Outcome.DONE))
    with cystore.open(store.path, read_only=True) as reader:
        assert reader.duties.last(DUTY) == store.duties.last(DUTY)
        for change in (
            lambda: reader.duties.acquire(DUTY, 1),
            lambda: reader.duties.release(DUTY, 1),
            lambda: reader.duties.ran(DUTY, DutyRun(1, 2, 3, Outcome.DONE)),
            lambda: reader.duties.step(DUTY, 1, ttl_ms=1).__enter__(),
        ):
            with pytest.raises(cystore.StoreNotWritableError):
                change()
    duties = store.duties
    store.close()
    with pytest.raises(cystore.StoreClosedError), duties.step(DUTY, 1, ttl_ms=1):
        pass


def test_a_lease_ends_with_its_holder_and_not_with_a_holder_that_stands_still(store):
    with other(store) as holder:
        assert holder.do("duties.acquire(duty, 3_600_000)", duty=DUTY) == 1
        assert store.duties.lease(DUTY).pid == holder.pid
        holder.stop()
        assert store.duties.acquire(DUTY, 60_000) is None, "it lives"
        holder.kill()
    assert store.duties.lease_left_ms(DUTY) == 0
    assert store.duties.lease(DUTY) is None
    assert store.duties.acquire(DUTY, 60_000) == 2
    assert store.duties.lease(DUTY).pid == os.getpid()


def test_the_step_of_a_holder_from_elsewhere_names_it_too(store):
    """A lease of Redis: the control block knows who did the last step, and that it died."""
    with other(store) as holder:
        holder.do(STEP, duty=DUTY, token=5)
        holder.do("held.__exit__(None, None, None)")
        assert store.duties.acquire(DUTY, 60_000) is None
        holder.kill()
    assert store.duties.acquire(DUTY, 60_000) == 6


def test_a_holder_whose_slot_another_process_has_is_dead(store):
    with other(store) as holder:
        assert holder.do("duties.acquire(duty, 3_600_000)", duty=DUTY) == 1
        word = store._attached().control.duty_word(DUTIES.index(DUTY), DUTY_WORDS.index("pid"))
        holder.kill()
    later = word + (1 << 32 + PROCESS_SLOT_BITS)
    assert not store._attached().control.lives(later >> 32), "its slot's next user is not there yet"
    assert store._attached().control.namespace_of(later >> 32) == 0
    assert store.duties.acquire(DUTY, 60_000) == 2


def test_a_holder_that_closed_its_store_has_no_lease(store):
    with other(store) as holder:
        assert holder.do("duties.acquire(duty, 3_600_000)", duty=DUTY) == 1
        holder.do("store.close()")
        assert store.duties.acquire(DUTY, 60_000) == 2
