"""Goal: history gives all transitions that meet the conditions, newest first. Method: random lives of tasks against a
list."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
from celery import states
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cystore.celery import history
from cystore.celery.base import records

NAMES = [None, "app.send", "app.fetch", "app.count"]
TASKS = [f"task {number}" for number in range(6)]
STATES = [states.STARTED, states.FAILURE, states.SUCCESS]


def request_of(name: str | None) -> SimpleNamespace:
    return SimpleNamespace(task=name, delivery_info=None, children=[])


def store_in(backend, events: list[tuple[str, str | None, str]]) -> None:
    for task_id, name, state in events:
        result = ValueError(task_id) if state == states.FAILURE else task_id
        backend.store_result(
            task_id, result, state, traceback=f"Traceback of {task_id}", request=request_of(name)
        )


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(st.tuples(st.sampled_from(TASKS), st.sampled_from(NAMES), st.sampled_from(STATES)), max_size=80),
    st.sampled_from([None, *TASKS]),
    st.sampled_from(NAMES),
    st.sets(st.sampled_from(STATES)),
    st.tuples(st.integers(0, 80), st.integers(0, 80)),
)
def test_any_conditions(backend, events, task_id, name, wanted_states, span):
    begin = backend.store.wrote_position
    store_in(backend, events)
    stored = list(backend.store.scan(begin))
    times = [message.store_timestamp_ms for message in stored]
    low, high = sorted(min(place, len(times) - 1) for place in span) if times else (0, 0)
    # The records of earlier examples are older than this one's first record, or as old.
    begin_ms, end_ms = (times[low], times[high]) if times else (1, 1)
    found = history.transitions(
        backend.store, task_id=task_id, name=name, states=wanted_states, begin_ms=begin_ms, end_ms=end_ms
    )
    mine = [t for t in found if t.physical_offset >= begin]
    expected = [
        message.physical_offset
        for message, event in zip(stored, events, strict=True)
        if task_id in (None, event[0])
        and name in (None, event[1])
        and (not wanted_states or event[2] in wanted_states)
        and begin_ms <= message.store_timestamp_ms <= end_ms
    ]
    assert [transition.physical_offset for transition in mine] == expected[::-1]


def test_more_than_one_batch_of_large_results(backend):
    """A get ends at its limit of bytes, long before a batch is full."""
    for number in range(3 * history.BATCH):
        backend.store_result(f"t{number}", "x" * 20_000, states.SUCCESS, request=request_of("app.large"))
    found = [transition.task_id for transition in history.transitions(backend.store, name="app.large")]
    assert found == [f"t{number}" for number in reversed(range(3 * history.BATCH))]


@pytest.mark.parametrize("wanted", [(), (states.SUCCESS,)])
def test_it_is_read_as_it_is_asked_for(backend, wanted):
    """Also by a state that nearly all have: no more than a batch of each queue is in memory."""
    store_in(backend, [(f"t{number}", "app.send", states.SUCCESS) for number in range(10 * history.BATCH)])
    before = backend.store.stats()["get_messages"]
    newest = next(history.transitions(backend.store, states=wanted))
    assert newest.task_id == f"t{10 * history.BATCH - 1}"
    assert backend.store.stats()["get_messages"] - before <= history.BATCH


def test_a_state_is_found_wherever_it_is_rare_or_frequent(backend):
    """Reads get longer where few are kept, and shorter again."""
    lives = [states.FAILURE if n % 100 == 0 or n // 500 == 2 else states.SUCCESS for n in range(2_500)]
    store_in(backend, [(f"t{number}", "app.send", state) for number, state in enumerate(lives)])
    for state in (states.FAILURE, states.SUCCESS):
        found = [t.task_id for t in history.transitions(backend.store, states=[state])]
        assert found == [f"t{number}" for number in reversed(range(2_500)) if lives[number] == state]


def test_names_that_share_a_queue(backend, monkeypatch):
    monkeypatch.setattr(records, "NAMED_QUEUES", 1)
    store_in(backend, [("a", "app.send", states.SUCCESS), ("b", "app.fetch", states.SUCCESS)])
    assert [t.task_id for t in history.transitions(backend.store, name="app.send")] == ["a"]


def test_failures_with_their_tracebacks(backend):
    store_in(backend, [("good", "app.send", states.SUCCESS), ("bad", "app.send", states.FAILURE)])
    (failure,) = history.transitions(backend.store, states=[states.FAILURE])
    assert (failure.task_id, failure.name, failure.traceback) == ("bad", "app.send", "Traceback of bad")
    assert failure.result == {"exc_type": "ValueError", "exc_message": ["bad"], "exc_module": "builtins"}


def test_forgetting_is_part_of_history(backend):
    store_in(backend, [("t", "app.send", states.SUCCESS)])
    backend.forget("t")
    tombstone, success = history.transitions(backend.store, task_id="t")
    assert tombstone.forgotten and not success.forgotten
    assert (tombstone.meta, tombstone.result, tombstone.size_bytes) == ({}, None, 0)
    assert success.result == "t"


@pytest.mark.parametrize("compression", [None, "zlib"])
def test_nothing_is_unpickled(make_backend, compression):
    backend = make_backend(
        result_serializer="pickle", accept_content=["pickle"], result_compression=compression
    )
    backend.store_result("t", {1, 2}, states.SUCCESS)
    (transition,) = history.transitions(backend.store)
    assert transition.meta == {}
    assert transition.content_type == "application/x-python-serialize"
    assert transition.size_bytes > 0


def test_compressed_json_is_read(make_backend):
    make_backend(result_compression="zlib").store_result("t", "x" * 1000, states.SUCCESS)
    (transition,) = history.transitions(make_backend().store)
    assert transition.result == "x" * 1000
    assert transition.size_bytes < 1000


def test_a_body_that_is_no_json_after_all(backend):
    backend.store.put(
        records.RESULTS, b"{", keys=("t",), tags="SUCCESS", properties={"content_type": "application/json"}
    )
    (transition,) = history.transitions(backend.store)
    assert transition.meta == {}


def test_an_empty_store_has_no_history(backend):
    assert list(history.transitions(backend.store)) == []
    assert list(history.transitions(backend.store, name="app.send", end_ms=1)) == []
