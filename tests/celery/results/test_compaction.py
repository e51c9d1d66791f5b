"""Goal: with compaction, the state of a task outlives the log's retention, no longer than result_expires, and is the
one that was told before. Method: an app whose store removes all full segments at once."""

from __future__ import annotations

import uuid

import pytest
from celery import Celery, states

from cystore.celery.stores import Location, close_shared

KIB = 1024


def app_of(path, **more):
    options = {"compacted_topics": "celery_results", "file_reserved_time_h": 0,
               "mapped_file_size_commit_log_bytes": 64 * KIB}  # fmt: skip
    return Celery("compaction", broker="memory://", backend=f"cystore://{path}", set_as_current=False,
                  result_backend_transport_options=options, **more)  # fmt: skip


@pytest.fixture
def backend(tmp_path):
    yield app_of(tmp_path / "store").backend
    close_shared()


def clean(backend):
    """The log of everything that was stored by now is gone."""
    store = backend.store
    for _ in range(100):
        store.put("filler", bytes(1000))
    store.flush()
    assert store.clean().segments


def test_the_state_outlives_its_segments(backend):
    ids = [str(uuid.uuid4()) for _ in range(5)]
    done, failed, revoked, started, forgotten = ids
    for task_id in ids:
        backend.store_result(task_id, None, states.STARTED)
    backend.store_result(done, {"answer": 42}, states.SUCCESS)
    backend.mark_as_failure(failed, KeyError("x"))
    backend.mark_as_revoked(revoked)
    backend.store_result(forgotten, 1, states.SUCCESS)
    backend.forget(forgotten)
    backend.save_group("g", backend.app.GroupResult("g", []))
    for _ in range(2):
        clean(backend)
        assert backend.store.query("celery_results", done) == []
        result = backend.app.AsyncResult(done)
        assert (result.state, result.get(timeout=60)) == (states.SUCCESS, {"answer": 42})
        assert isinstance(backend.app.AsyncResult(failed).result, KeyError)
        assert backend.app.AsyncResult(revoked).state == states.REVOKED
        assert backend.app.AsyncResult(started).state == states.STARTED
        assert backend.app.AsyncResult(forgotten).state == states.PENDING
        found = {task_id: meta["status"] for task_id, meta in backend.get_many(ids, max_iterations=1)}
        assert found == {done: states.SUCCESS, failed: states.FAILURE, revoked: states.REVOKED}
    backend.forget(done)
    assert backend.app.AsyncResult(done).state == states.PENDING
    clean(backend)
    assert backend.app.AsyncResult(done).state == states.PENDING


@pytest.mark.parametrize("cleans", [(), (1,), (2,), (1, 2, 3)], ids=str)
def test_a_success_stays(backend, cleans):
    """A duplicate begins again, and fails, after the task succeeded: before and after its segments are gone."""
    task_id = str(uuid.uuid4())
    steps = [
        (1, states.STARTED),
        ({"first": 1}, states.SUCCESS),
        (None, states.STARTED),
        (KeyError("x"), states.FAILURE),
    ]
    for number, (result, state) in enumerate(steps):
        backend.store_result(task_id, result, state)
        if number in cleans:
            clean(backend)
    assert backend.app.AsyncResult(task_id).get(timeout=60) == {"first": 1}


def test_result_expires_bounds_it(tmp_path, monkeypatch):
    backend = app_of(tmp_path / "store", result_expires=60).backend
    kept, gone = str(uuid.uuid4()), str(uuid.uuid4())
    backend.store_result(kept, 1, states.SUCCESS)
    monkeypatch.setattr("cystore.celery.results.expiry.now_ms", lambda: 1_000)
    backend.store_result(gone, 2, states.SUCCESS)
    monkeypatch.undo()
    clean(backend)
    assert backend.app.AsyncResult(kept).state == states.SUCCESS
    assert backend.app.AsyncResult(gone).state == states.PENDING
    assert [message.keys[0] for message in backend.store.compacted("celery_results")] == [kept]
    assert backend.store.compact().records == 1
    assert backend.store.settings.file_reserved_time_h == 0
    close_shared()


def test_without_compaction_nothing_changes(tmp_path):
    app = Celery("plain", broker="memory://", backend=f"cystore://{tmp_path}/store", set_as_current=False)
    task_id = str(uuid.uuid4())
    app.backend.store_result(task_id, 1, states.SUCCESS)
    (message,) = app.backend.all_states(task_id)
    assert message.keys == (task_id,)
    assert message.expires_at_ms is None
    assert app.backend.store.settings.file_reserved_time_h >= 24
    close_shared()


def test_other_compacted_topics_do_not_shorten_retention():
    location = Location.parse("cystore:///x?compacted_topics=prices&file_reserved_time_h=1").keeping(
        86_400 * 9
    )
    assert location.config().file_reserved_time_h == 9 * 24
    location = Location.parse("cystore:///x?compacted_topics=celery_*&file_reserved_time_h=1").keeping(
        86_400 * 9
    )
    assert location.config().file_reserved_time_h == 1
