"""Goal: the results of many tasks are read in one look, and are those that a look for each gives. Method: ids in
every condition; a store whose `query` for one key is taken away."""

from __future__ import annotations

import pytest
from celery import states
from celery.result import ResultSet

from cystore.celery.base import records

COUNT = 3000


def stored(backend, count: int) -> list[str]:
    for number in range(count):
        backend.store_result(f"id {number}", number, states.STARTED)
        backend.store_result(f"id {number}", number, states.SUCCESS)
    return [f"id {number}" for number in range(count)]


def no_single_looks(backend, monkeypatch) -> list[int]:
    """From now on a query for one key fails; gives the numbers of keys of the looks that are made."""
    looks: list[int] = []
    store, many = backend.store, backend.store.query_many

    def query(*asked, **more):
        raise AssertionError(f"a look for one key: {asked}")

    def query_many(topic, keys, *more):
        keys = list(keys)
        looks.append(len(keys))
        return many(topic, keys, *more)

    monkeypatch.setattr(store, "query", query)
    monkeypatch.setattr(store, "query_many", query_many)
    return looks


def test_a_result_set_is_one_look(make_backend, monkeypatch):
    """Seen: a query for each id."""
    backend = make_backend()
    ids = stored(backend, COUNT)
    looks = no_single_looks(backend, monkeypatch)
    results = ResultSet([backend.app.AsyncResult(task_id) for task_id in ids], app=backend.app)
    assert results.get(timeout=60) == list(range(COUNT))
    assert looks == [COUNT]
    assert {task_id: meta["result"] for task_id, meta in backend.get_many(ids)} == dict(
        zip(ids, range(COUNT), strict=True)
    )
    assert looks == [COUNT, COUNT]


def test_answers_are_those_of_single_looks(make_backend):
    backend = make_backend()
    ids = [*stored(backend, 60), "never heard of", "begun", "failed", "of many states", "forgotten long ago"]
    backend.store_result("begun", None, states.STARTED)
    backend.store_result("failed", ValueError("no"), states.FAILURE)
    for number in range(records.FIRST_LOOK + 8):
        backend.store_result("of many states", number, f"STEP{number}")
        backend.store_result("forgotten long ago", number, states.SUCCESS)
    backend.store_result("of many states", "first", states.SUCCESS)
    for number in range(records.FIRST_LOOK + 8):
        backend.store_result("of many states", number, states.FAILURE)
    for task_id in ("id 1", "forgotten long ago"):
        backend.forget(task_id)
    found = backend.latest_of(ids)
    assert {task_id: message.physical_offset for task_id, message in found.items()} == {
        task_id: message.physical_offset
        for task_id in ids
        if (message := backend.latest(task_id)) is not None
    }
    got = dict(backend.get_many(ids, max_iterations=1))
    assert got["of many states"]["result"] == "first" and got["failed"]["status"] == states.FAILURE
    assert not {"id 1", "never heard of", "begun", "forgotten long ago"} & set(got)
    with pytest.raises(ValueError, match="no"):
        ResultSet([backend.app.AsyncResult(one) for one in ("id 2", "failed")], app=backend.app).get(
            timeout=60
        )
