"""Goal: what Celery promises holds with real workers. Method: a Redis, a prefork worker, and this process as the
publisher."""

from __future__ import annotations

import os
from collections import Counter

import pytest
from celery import chord, group, states
from celery.result import AsyncResult, GroupResult

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.identity import store_id_of
from cystore.celery.base.queues import queue_of_store
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, Fleet
from tests.support.celery import work


def lives(fleet: Fleet, task_id: str) -> list[str | None]:
    return [transition.state for transition in history.transitions(fleet.backend.store, task_id=task_id)]


def test_delay_and_get(fleet):
    result = fleet.task(work.add).delay(2, 3)
    assert result.get(timeout=PATIENCE_S) == 5
    assert result.state == states.SUCCESS
    assert lives(fleet, result.id) == [states.SUCCESS, states.STARTED]
    assert result.get(timeout=0) == 5


def test_a_failure_has_its_class_and_traceback(fleet):
    result = fleet.task(work.fail).delay("broken")
    with pytest.raises(work.SpecialError, match="broken"):
        result.get(timeout=PATIENCE_S)
    assert result.state == states.FAILURE
    assert "raise SpecialError(text)" in result.traceback
    (failure,) = history.transitions(fleet.backend.store, task_id=result.id, states=[states.FAILURE])
    assert failure.name == work.fail.name
    assert failure.traceback == result.traceback
    assert failure.result["exc_type"] == "SpecialError"


def test_a_group_keeps_its_order(fleet):
    result = group(fleet.task(work.add).s(number, 1) for number in range(40)).apply_async()
    assert result.get(timeout=PATIENCE_S) == [number + 1 for number in range(40)]
    assert result.join(timeout=PATIENCE_S) == result.join_native(timeout=PATIENCE_S)
    assert result.successful()


def test_a_group_with_a_failure(fleet):
    result = group(fleet.task(work.add).s(1, 1), fleet.task(work.fail).s("in a group")).apply_async()
    with pytest.raises(work.SpecialError, match="in a group"):
        result.get(timeout=PATIENCE_S)
    values = result.get(timeout=PATIENCE_S, propagate=False)
    assert values[0] == 2
    assert isinstance(values[1], work.SpecialError)


def test_a_saved_group_comes_back(fleet):
    result = group(fleet.task(work.add).s(number, number) for number in range(5)).apply_async()
    result.save()
    again = GroupResult.restore(result.id, app=fleet.app)
    assert again == result
    assert again.get(timeout=PATIENCE_S) == [0, 2, 4, 6, 8]
    again.delete()
    assert GroupResult.restore(result.id, app=fleet.app) is None


def test_a_chain_and_its_parents(fleet):
    result = (fleet.task(work.add).s(1, 1) | fleet.task(work.add).s(10)).apply_async()
    assert result.get(timeout=PATIENCE_S) == 12
    assert result.parent.get(timeout=PATIENCE_S) == 2


def test_a_chord(fleet):
    result = chord(fleet.task(work.add).s(number, number) for number in range(4))(fleet.task(work.total).s())
    assert result.get(timeout=PATIENCE_S) == 12


def test_retries(fleet):
    result = fleet.task(work.third_time_lucky).delay()
    assert result.get(timeout=PATIENCE_S) == 2
    # Celery sends the next try before it stores RETRY, and another worker may be faster: in any order, also after the
    # result.
    expected = {states.STARTED: 3, states.RETRY: 2, states.SUCCESS: 1}
    while True:
        seen = fleet.backend.store.wrote_position
        found = Counter(lives(fleet, result.id))
        if found == expected or not fleet.backend.store.wait_log(seen, PATIENCE_S):
            break
    assert found == expected
    assert AsyncResult(result.id, app=fleet.app).get() == 2


def test_children_of_a_task(fleet):
    result = fleet.task(work.children).delay(3)
    ids = result.get(timeout=PATIENCE_S)
    assert [child.id for child in result.children] == ids
    assert [AsyncResult(task_id, app=fleet.app).get(timeout=PATIENCE_S) for task_id in ids] == [0, 2, 4]


def test_forget(fleet):
    result = fleet.task(work.add).delay(1, 1)
    assert result.get(timeout=PATIENCE_S) == 2
    result.forget()
    again = AsyncResult(result.id, app=fleet.app)
    assert again.state == states.PENDING
    assert not again.exists()
    assert lives(fleet, result.id)[0] == "FORGET"


def test_pool_processes_attach_by_themselves(fleet):
    """Both children of a main process that had the store open before it forked store results, and it does not
    meddle."""
    seen: set[int] = set()
    for _ in range(50):
        seen |= set(
            group(fleet.task(work.process_id).s() for _ in range(4)).apply_async().get(timeout=PATIENCE_S)
        )
        if len(seen) == 2:
            break
    assert len(seen) == 2
    assert os.getpid() not in seen


def test_a_worker_that_is_killed_loses_nothing(fresh_fleet):
    """What it had finished is there, what it was at runs again elsewhere (acks_late)."""
    marker, fifo = fresh_fleet.folder / "marker", fresh_fleet.folder / "fifo"
    os.mkfifo(fifo)
    worker = fresh_fleet.start("--concurrency=1", **work.SOON)
    done = [fresh_fleet.task(work.add).delay(number, number) for number in range(20)]
    assert [result.get(timeout=PATIENCE_S) for result in done] == [2 * number for number in range(20)]

    begun = fresh_fleet.task(work.wait_unless_redelivered).delay(str(marker), str(fifo))
    store = fresh_fleet.backend.store
    while begun.state != work.MARKED:
        position = store.wrote_position
        if begun.state != work.MARKED:
            assert store.wait_log(position, PATIENCE_S)
    worker.kill()

    fresh_fleet.start("--concurrency=1", **work.SOON)
    assert begun.get(timeout=PATIENCE_S) == "second time"
    # More than once elsewhere: a busy machine does not acknowledge a message before it is redelivered again.
    again, first = lives(fresh_fleet, begun.id)[:-2], lives(fresh_fleet, begun.id)[-2:]
    assert first == [work.MARKED, states.STARTED]
    assert states.SUCCESS in again and set(again) == {states.SUCCESS, states.STARTED}
    for number, result in enumerate(done):
        again = fresh_fleet.backend.get_task_meta(result.id, cache=False)
        assert (again["status"], again["result"]) == (states.SUCCESS, 2 * number)


def test_the_last_worker_out_leaves_a_clean_store(fresh_fleet):
    """Pool processes detach before they end: nothing has to be recovered afterwards."""
    worker = fresh_fleet.start("--concurrency=2")
    assert fresh_fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
    abort = fresh_fleet.store_path / "abort"
    assert abort.exists()
    close_shared()
    assert worker.stop() == 0, worker.log.read_text()
    assert not abort.exists()


def test_a_quiet_worker_has_the_queue_of_its_store_and_keeps_the_log(fresh_fleet):
    """Nothing in it asks for the result backend before the first result: it shows no banner."""
    worker = fresh_fleet.start("--concurrency=1", quiet=True)
    result = fresh_fleet.task(work.add).delay(1, 2)
    assert result.get(timeout=PATIENCE_S) == 3
    assert "[queues]" not in worker.log.read_text()
    (queues,) = fresh_fleet.app.control.inspect(timeout=PATIENCE_S, limit=1).active_queues().values()
    store = fresh_fleet.backend.store
    # An exchange would leave a binding in the broker that outlives the store.
    assert {queue["name"]: queue["exchange"]["name"] for queue in queues} == {
        work.QUEUE: work.QUEUE,
        queue_of_store(store_id_of(store)): "",
    }
    told = [event.event for event in history.events(store, task_id=result.id)]
    assert events.RECEIVED in told
