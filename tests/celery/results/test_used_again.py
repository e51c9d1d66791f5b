"""Goal: a task id that is used again is as new: a result that has expired or was forgotten hides no later run, from no
reader. Method: the same records for every reader, with an expiry that falls between the first run and the second."""

from __future__ import annotations

import json

import pytest
from celery import states
from celery.result import ResultSet

from cystore import clock
from cystore.celery.base import events, records
from cystore.celery.duties.answers import ReadService
from cystore.celery.lifecycle import task_lives
from cystore.celery.once import Once
from cystore.celery.redis_urls import RedisLocation
from cystore.celery.results.expiry import Expiry
from cystore.celery.routing.messages import Request, new_request_id
from tests.celery.conftest import PATIENCE_S
from tests.support.celery.logs import event_message

ID = "daily-report"


def report(day=0):
    return day


def newest(backend):
    return records.records_of(backend.store, records.RESULTS, ID)[0]


def run_one(backend):
    """The first run succeeds; returns when the clock is past its record."""
    backend.store_result(ID, "run 1", states.SUCCESS)
    begin_ms = newest(backend).store_timestamp_ms
    while clock.now_ms() <= begin_ms + 1:
        pass
    return begin_ms


@pytest.fixture(params=["expired", "forgotten"])
def gone(request, monkeypatch):
    """`gone(backend, begin_ms)`: from now on no reader sees the records of that time; later ones are seen for ever."""

    def expire(backend, begin_ms):
        backend.expiry = Expiry(1.0, 1.0)
        monkeypatch.setattr("cystore.celery.results.expiry.now_ms", lambda: begin_ms + 1_000)

    def forget(backend, begin_ms):
        backend.forget(ID)

    return expire if request.param == "expired" else forget


def seen(backend):
    backend._cache.clear()
    return backend.app.AsyncResult(ID).state


def test_every_reader_sees_the_later_run(make_backend, gone):
    backend = make_backend()
    gone(backend, run_one(backend))
    app, told = backend.app, []
    assert (seen(backend), backend.task_result_exists(ID)) == (states.PENDING, False)
    assert list(backend.get_many([ID], max_iterations=1)) == []
    backend.store_result(ID, {"pid": 1}, states.STARTED)
    assert seen(backend) == states.STARTED
    backend.store_result(ID, "run 2", states.SUCCESS)
    assert seen(backend) == states.SUCCESS
    assert app.AsyncResult(ID).get(timeout=PATIENCE_S) == "run 2"
    assert ResultSet([app.AsyncResult(ID)], app=app).get(timeout=PATIENCE_S) == ["run 2"]
    assert dict(backend.get_many([ID]))[ID]["result"] == "run 2"
    assert {key: bytes(one.body) for key, one in backend.latest_of([ID]).items()} == {
        ID: bytes(newest(backend).body)
    }
    for state in backend.all_states(ID):
        told.append((state.tags, backend.meta_of(state)["result"]))
    assert told == [(states.STARTED, {"pid": 1}), (states.SUCCESS, "run 2")]
    backend.store_result(ID, None, states.STARTED)  # a duplicate: a SUCCESS that is seen stays
    assert seen(backend) == states.SUCCESS


def test_other_hosts_get_no_part_of_a_result_that_readers_do_not_see(make_backend, gone):
    backend = make_backend()
    begin_ms = run_one(backend)
    backend.store_result("other", "x", states.SUCCESS)
    service = ReadService(backend, backend.store, RedisLocation.parse("redis://nowhere"), None)
    request = Request(new_request_id(), service.home, (ID,), "results")
    at = newest(backend).physical_offset
    assert service._part(request, at, 0).body
    other = records.records_of(backend.store, records.RESULTS, "other")[0].physical_offset
    assert not service._part(request, other, 0).body
    gone(backend, begin_ms)
    assert not service._part(request, at, 0).body
    assert service._find(request)[0][0].state is None
    backend.store_result(ID, "run 2", states.SUCCESS)
    assert service._find(request)[0][0].state == states.SUCCESS
    assert service._part(request, newest(backend).physical_offset, 0).body


def test_once_holds_by_the_later_run(make_backend, gone):
    """Seen: five runs where two are right."""
    backend = make_backend()
    task = backend.app.task(base=Once, name="shop.report", shared=False)(report)
    key = task._once_key(ID, (), {})
    request = type(task.request)(id=ID, cystore_once_key=key, task=task.name)
    backend.store_result(ID, 1, states.SUCCESS, request=request)
    begin_ms = newest(backend).store_timestamp_ms
    while clock.now_ms() <= begin_ms + 1:
        pass
    assert task._succeeded(key, ID)
    gone(backend, begin_ms)
    assert task._succeeded(key, ID) is None
    backend.store_result(ID, 2, states.SUCCESS, request=request)
    assert backend.meta_of(task._succeeded(key, ID))["result"] == 2


def test_once_takes_the_result_of_its_own_key(make_backend):
    """The sender gave two calls with other arguments the same task id."""
    backend = make_backend()
    task = backend.app.task(base=Once, once={"keys": ["day"]}, name="shop.of", shared=False)(report)
    keys = [task._once_key("", (day,), {}) for day in (1, 2)]
    for day, key in zip((1, 2), keys, strict=True):
        assert task._succeeded(key, ID) is None
        request = type(task.request)(id=ID, cystore_once_key=key, task=task.name)
        backend.store_result(ID, day, states.SUCCESS, request=request)
    assert [backend.meta_of(task._succeeded(key, ID))["result"] for key in keys] == [1, 2]


def test_a_later_run_is_unfinished(make_backend, gone):
    backend = make_backend()
    put = backend.store.put_many
    put([event_message(kind, ID, "shop.report", None, None) for kind in (events.SENT, events.STARTED)])
    begin_ms = run_one(backend)
    put([event_message(events.SUCCEEDED, ID, "shop.report", None, None)])

    def unfinished():
        found = task_lives.history.events(backend.store, states=(*task_lives.BEGINS, *task_lives.ENDS))
        valid = backend.expiry.is_valid
        return [life.task_id for life in task_lives.unfinished(backend.store, found, 1 << 62, valid)]

    assert unfinished() == []
    gone(backend, begin_ms)
    assert unfinished() == []
    for kind in (events.SENT, events.RECEIVED, events.STARTED):
        put([event_message(kind, ID, "shop.report", None, None)])
        assert unfinished() == [ID], kind
    backend.store_result(ID, "run 2", states.SUCCESS)
    assert unfinished() == []


def test_a_wait_takes_the_state_of_several_records_and_not_the_first_one(make_backend):
    """Records of one look: a state that was forgotten in it, or a failure that a success followed."""
    backend = make_backend()
    consumer = backend.result_consumer
    for task_id in ("a", "b"):
        consumer.consume_from(task_id)
    assert consumer._read() == []
    backend.store_result("a", "forgotten", states.SUCCESS)
    backend.forget("a")
    backend.store_result("b", ValueError("x"), states.FAILURE)
    backend.store_result("b", "after all", states.SUCCESS)
    assert [json.loads(bytes(one.body))["result"] for one in consumer._read()] == ["after all"]


def test_an_expired_failure_does_not_bring_back_what_it_ended(make_backend, monkeypatch):
    """Failures may be kept for a shorter time than other states."""
    backend = make_backend(result_expires=None, result_failure_expires=60)
    backend.store_result(ID, None, states.STARTED)
    backend.store_result(ID, ValueError("x"), states.FAILURE)
    end_ms = newest(backend).store_timestamp_ms
    assert seen(backend) == states.FAILURE
    monkeypatch.setattr("cystore.celery.results.expiry.now_ms", lambda: end_ms + 61_000)
    assert seen(backend) == states.PENDING
