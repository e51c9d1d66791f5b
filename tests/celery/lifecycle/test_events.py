"""Goal: queries over the lifecycle log give every event that meets the conditions, newest first, without keeping more
than a few; the layout is what the documents say. Method: random logs against a list; counting what is read and
kept."""

from __future__ import annotations

import json
import re
import tracemalloc
from itertools import pairwise

import pytest
from celery import states
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cystore
from cystore import Message
from cystore.celery import history
from cystore.celery.base import events, reading, records
from cystore.celery.base.events import Event
from cystore.celery.lifecycle import statistics
from tests.structure.sources import ROOT
from tests.support.celery.logs import event_message, runs, write
from tests.support.small_stores import open_small

NAMES = [None, "app.send", "app.fetch"]
TASKS = [f"task {number}" for number in range(5)]
KINDS = [events.SENT, events.STARTED, events.FAILED]


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store", mapped_file_size_commit_log_bytes=8 << 20, services=()) as store:
        yield store


# ------------------------------------------------------------------------------------------- the layout


@given(
    st.text(min_size=1, max_size=50),
    st.none() | st.text(max_size=50),
    st.none() | st.text(max_size=50),
    st.sampled_from(list(events.KINDS)),
    st.dictionaries(st.sampled_from(["args", "worker", "exception"]), st.text()),
)
@settings(max_examples=50, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_an_event_comes_back_as_it_was_told(store, task_id, root_id, group_id, kind, details):
    put = store.put_many(
        [event_message(kind, task_id, "app.send", root_id, group_id, runtime=0.5, **details)]
    )
    event = Event.of(store.read(put[0].physical_offset))
    assert (event.task_id, event.event, event.state, event.name) == (task_id, kind, kind, "app.send")
    assert (event.root_id, event.group_id) == (root_id or task_id, group_id or None)
    kept = {name: text for name, text in details.items() if text}
    assert event.details == {"v": events.VERSION, "runtime": 0.5, **kept}


def test_what_is_not_known_takes_no_room():
    body = events.body_of({"worker": None, "args": "", "soft": False, "countdown": 0, "runtime": 0.25})
    assert json.loads(body) == {"v": 1, "countdown": 0, "runtime": 0.25}
    assert b" " not in body


def test_an_ordinary_event_has_one_key():
    assert events.keys_of("t", "t") == ("t",)
    assert events.keys_of("t", "r", "g") == ("t", "root:r", "group:g")
    assert events.keys_of(None, "r", "g") == ()


@pytest.mark.parametrize("body", [b"", b"{", b"[1]", b"\xff\xfe", b"null"])
def test_a_body_that_is_none_of_ours(store, body):
    store.put(events.EVENTS, body, keys=("t",), tags="FAILED")
    (event,) = history.events(store, task_id="t")
    assert (event.details, event.traceback, event.name) == ({}, None, None)


def test_details_can_be_written_on(store):
    """Seen: NaN and names of files that are no UTF-8 made answers of the page's API fail."""
    body = rb'{"pid":NaN,"a":[Infinity,1e999,1.5],"b":{"\udcff":-Infinity},"worker":"w\udcff","name":"\ud83e\uddca"}'
    store.put_many([Message(topic=events.EVENTS, body=body, tags="SENT")])
    (message,) = store.get(events.EVENTS, 0, 0).messages
    details = Event.of(message).details
    assert details == {
        "pid": None,
        "a": [None, None, 1.5],
        "b": {"?": None},
        "worker": "w?",
        "name": "\U0001f9ca",
    }
    assert json.dumps(details, ensure_ascii=False, allow_nan=False).encode()


def test_an_event_without_any_key(store):
    store.put(events.EVENTS, b"{}", tags=events.REJECTED)
    (event,) = history.events(store)
    assert (event.task_id, event.root_id) == (None, None)


def _table(heading: str) -> list[list[str]]:
    """The rows of the first table after a heading of docs/celery-log.md."""
    text = (ROOT / "docs" / "celery-log.md").read_text().partition(f"\n{heading}\n")[2]
    assert text, heading
    lines = re.search(r"(?:^\|.*\n)+", text, re.MULTILINE).group().splitlines()[2:]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


def test_the_documents_have_the_table_of_events():
    assert _table("### Events") == [[f"`{kind}`", *row] for kind, row in events.KINDS.items()]


def test_the_documents_have_the_fields_of_an_event():
    assert _table("### Fields") == [[f"`{name}`", *row] for name, row in events.FIELDS.items()]


def test_the_documents_have_the_settings():
    from cystore.celery.lifecycle import recorder

    assert recorder.__doc__ is not None
    rows = [line for line in recorder.__doc__.splitlines() if line.startswith("| `")]
    assert _table("### Settings") == [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


# ------------------------------------------------------------------------------------------- conditions


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.lists(
        st.tuples(
            st.sampled_from(KINDS), st.sampled_from(TASKS), st.sampled_from(NAMES),
            st.sampled_from([None, *TASKS[:2]]), st.sampled_from([None, "g"]),
        ),
        max_size=60,
    ),
    st.sampled_from([None, *TASKS]), st.sampled_from([None, *TASKS[:3]]), st.sampled_from([None, "g"]),
    st.sampled_from(NAMES), st.sets(st.sampled_from(KINDS)), st.tuples(st.integers(0, 60), st.integers(0, 60)),
    st.integers(0, 60), st.booleans(),
)  # fmt: skip
def test_any_conditions(
    tmp_path_factory, told, task_id, root_id, group_id, name, kinds, span, dispatched, read_only
):
    """Also of what is not dispatched, for a reader that cannot dispatch."""
    path = tmp_path_factory.mktemp("any") / "store"
    with open_small(path, mapped_file_size_commit_log_bytes=1 << 20) as store:
        for number, event in enumerate(told):
            if number == dispatched:
                store.dispatch()
            store.put_many([event_message(*event)])
        stored = list(store.scan())
        times = [message.store_timestamp_ms for message in stored]
        low, high = sorted(min(place, len(times) - 1) for place in span) if times else (0, 0)
        begin_ms, end_ms = (times[low], times[high]) if times else (1, 1)
        expected = [
            message.physical_offset
            for message, (kind, task, named, root, group) in zip(stored, told, strict=True)
            if task_id in (None, task)
            and root_id in (None, root or task)
            and group_id in (None, group)
            and name in (None, named)
            and (not kinds or kind in kinds)
            and begin_ms <= message.store_timestamp_ms <= end_ms
        ]

        def found(reader: cystore.MessageStore) -> list[int]:
            return [
                event.physical_offset
                for event in history.events(
                    reader, task_id=task_id, root_id=root_id, group_id=group_id, name=name, states=kinds,
                    begin_ms=begin_ms, end_ms=end_ms,
                )
            ]  # fmt: skip

        if read_only:
            with open_small(path, mapped_file_size_commit_log_bytes=1 << 20, read_only=True) as reader:
                assert found(reader) == expected[::-1]
        assert found(store) == expected[::-1]


def test_events_and_results_are_one_stream(backend):
    store = backend.store
    for number in range(5):
        store.put_many([event_message(events.STARTED, f"t{number}", "app.send")])
        backend.store_result(f"t{number}", number, states.SUCCESS)
        store.put_many([event_message(events.SUCCEEDED, f"t{number}", "app.send")])
    found = list(history.entries(store))
    assert [entry.state for entry in found] == [events.SUCCEEDED, states.SUCCESS, events.STARTED] * 5
    assert all(newer.physical_offset > older.physical_offset for newer, older in pairwise(found))
    assert [entry.state for entry in history.entries(store, task_id="t2")] == [
        events.SUCCEEDED,
        states.SUCCESS,
        events.STARTED,
    ]
    assert {type(entry) for entry in history.entries(store, states=[states.SUCCESS])} == {history.Transition}
    assert {type(entry) for entry in history.entries(store, root_id="t2")} == {Event}


def test_a_state_of_the_apps_own_with_any_name(backend):
    for state in ("A || B", "*", "größer"):
        backend.store_result("t", None, state)
        assert [t.state for t in history.transitions(backend.store, states=[state])] == [state]


def test_failures_are_runs_that_ended(store):
    write(store, runs(30))
    store.put_many(
        [
            event_message(events.CHILD_LOST, "again", "app.send", requeue=True),
            event_message(events.CHILD_LOST, "lost", "app.send"),
            event_message(events.INTERNAL_ERROR, "lost", "app.send"),
        ]
    )
    assert [event.task_id for event in history.failures(store)] == ["lost", "t29", "t19", "t9"]
    assert [event.task_id for event in history.failures(store, name="app.task3")] == ["t19"]


def test_failures_of_a_store_without_a_log_are_results(make_backend):
    backend = make_backend(cystore_lifecycle=False)
    backend.store_result("bad", ValueError("x"), states.FAILURE)
    backend.store_result("good", 1, states.SUCCESS)
    assert [entry.task_id for entry in history.failures(backend.store)] == ["bad"]


# -------------------------------------------------------------------------------------------- streaming


def test_a_task_does_not_drag_its_workflow_along(store):
    """The root of a large workflow is found as quickly as any task."""
    write(store, [event_message(events.SENT, f"t{number}", "app.send", "root") for number in range(2000)])
    write(store, [event_message(events.SENT, "root", "app.send", "root")])
    assert len(store.query(events.EVENTS, "root", 5000)) == 1
    assert len(list(history.events(store, task_id="root"))) == 1
    assert len(list(history.events(store, root_id="root"))) == 2001


def test_many_events_of_one_key_come_page_by_page(store, monkeypatch):
    """Also where a whole page is of one millisecond."""
    monkeypatch.setattr(reading, "PAGE", 64)
    write(store, [event_message(events.RETRIED, "t", "app.send", retries=number) for number in range(3000)])
    found = [event.details["retries"] for event in history.events(store, task_id="t")]
    assert found == list(reversed(range(3000)))
    before = store.stats()["queries"]
    next(history.events(store, task_id="t"))
    assert store.stats()["queries"] == before + 1


def test_what_is_asked_for_is_what_is_read(store):
    write(store, runs(500, names=3))
    store.dispatch()
    before = store.stats()["get_messages"]
    next(history.entries(store))
    assert store.stats()["get_messages"] - before <= 3 * history.BATCH


# ------------------------------------------------------------------------------------------- statistics


def test_numbers_by_name(store):
    write(store, runs(400))
    more = [(events.RETRIED, {}), (events.CHILD_LOST, {"requeue": True})]
    store.put_many([event_message(event, "x", "app.task0", **details) for event, details in more])
    stats = {one.name: one for one in statistics.by_name(store)}
    assert sorted(stats) == [f"app.task{number}" for number in range(4)]
    for number in range(4):
        one = stats[f"app.task{number}"]
        mine = [n for n in range(400) if n % 4 == number]
        failed = [n for n in mine if n % 10 == 9]
        assert (one.count, one.failed, one.failure_rate) == (100, len(failed), len(failed) / 100)
        times = sorted((n + 1) / 1000 for n in mine)
        for percent in (50, 95, 99):
            assert one.runtimes.percentile(percent) == pytest.approx(times[percent - 1], rel=0.0101)
    assert [stats[name].retried for name in sorted(stats)] == [1, 0, 0, 0]
    (alone,) = statistics.by_name(store, name="app.task2")
    assert alone.count == 100


@given(st.lists(st.floats(1e-6, 1e5), min_size=2, max_size=200))
def test_percentiles_are_within_one_percent(seconds):
    runtimes = statistics.Runtimes()
    for one in seconds:
        runtimes.add(one)
    ranked = sorted(seconds)
    for percent in (1, 50, 95, 99, 100):
        rank = max(1, -(-len(ranked) * percent // 100))
        assert runtimes.percentile(percent) == pytest.approx(ranked[rank - 1], rel=0.0101)
    assert runtimes.count == len(seconds)


def test_nothing_has_no_percentiles():
    assert statistics.Runtimes().percentile(50) is None
    assert statistics.NameStats("x").failure_rate == 0.0


def test_a_tiny_runtime_counts(store):
    store.put_many([event_message(events.SUCCEEDED, "t", "app.send", runtime=0)])
    (one,) = statistics.by_name(store)
    assert one.runtimes.percentile(50) == pytest.approx(statistics.LEAST_S, rel=0.03)


def _kept_bytes(store) -> int:
    tracemalloc.start()
    try:
        statistics.by_name(store)
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


def test_top_needs_no_more_memory_for_more_events(store):
    write(store, runs(1000))
    few = _kept_bytes(store)
    write(store, runs(4000, first=1000))
    assert _kept_bytes(store) < 2 * few


@pytest.mark.slow
def test_top_of_a_million_events(tmp_path):
    with cystore.open(tmp_path / "store", services=(), mapped_file_size_commit_log_bytes=64 << 20) as store:
        for first in range(0, 250_000, 10_000):
            write(store, runs(10_000, first=first))
        stats = statistics.by_name(store)
        assert sum(one.count for one in stats) == 250_000
        assert sum(one.failed for one in stats) == 25_000
        assert sum(1 for _ in history.events(store, states=[events.FAILED])) == 25_000


def test_a_queue_for_a_name():
    assert event_message(events.SENT, "t", "app.send").queue_id == records.queue_of("app.send")
    assert event_message(events.SENT, "t").queue_id == 0
