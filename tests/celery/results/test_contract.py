"""Goal: what a first-class result backend does, it does with real prefork workers. Method: one worker whose store
takes results of at most 20,000 bytes, with extended results; and one whose results are pickled and compressed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import states
from celery.exceptions import TaskRevokedError
from celery.result import AsyncResult, ResultSet
from kombu.exceptions import EncodeError

from cystore.celery import history
from cystore.celery.base import records
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in
from tests.support.celery import work

LIMIT_BYTES = 20_000


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    options = f"?max_message_size_bytes={LIMIT_BYTES}"
    with fleet_in(tmp_path_factory.mktemp("contract"), options, result_extended=True) as fleet:
        fleet.start("--concurrency=2")
        assert fleet.task(work.add).delay(1, 1).get(timeout=PATIENCE_S) == 2  # it hears of revoked tasks now
        yield fleet


def lives(fleet: Fleet, task_id: str) -> list[str | None]:
    return [transition.state for transition in history.transitions(fleet.backend.store, task_id=task_id)]


def test_an_extended_result_tells_how_it_came_about(fleet):
    result = fleet.task(work.add).apply_async((2,), {"y": 3})
    assert result.get(timeout=PATIENCE_S) == 5
    assert (result.name, result.args, result.kwargs) == (work.add.name, [2], {"y": 3})
    assert (result.worker, result.retries, result.queue) == ("worker0@test", 0, work.QUEUE)
    assert result.date_done is not None


def test_a_result_that_is_too_large_is_a_failure_that_says_so(fleet, tmp_path):
    runs = tmp_path / "runs"
    result = fleet.task(work.text_of).delay(LIMIT_BYTES, str(runs))
    with pytest.raises(EncodeError) as raised:
        result.get(timeout=PATIENCE_S)
    for named in (work.text_of.name, result.id, f"the store's {LIMIT_BYTES}", "max_message_size_bytes"):
        assert named in str(raised.value)
    assert result.state == states.FAILURE
    assert lives(fleet, result.id) == [states.FAILURE, states.STARTED]
    assert runs.read_text() == "ran\n"
    assert fleet.task(work.text_of).delay(LIMIT_BYTES // 2, str(runs)).get(timeout=PATIENCE_S)


def test_a_value_that_the_serializer_refuses_is_a_failure_that_says_so(fleet, tmp_path):
    runs = tmp_path / "runs"
    result = fleet.task(work.what_no_serializer_takes).delay(str(runs))
    with pytest.raises(
        EncodeError, match=r"is refused by result_serializer: .*not JSON serializable"
    ) as raised:
        result.get(timeout=PATIENCE_S)
    assert work.what_no_serializer_takes.name in str(raised.value)
    assert lives(fleet, result.id) == [states.FAILURE, states.STARTED]
    assert runs.read_text() == "ran\n"


def test_a_failure_that_is_too_large_is_told_in_short(fleet):
    result = fleet.task(work.fail_at_length).delay(LIMIT_BYTES)
    with pytest.raises(EncodeError, match=r"max_message_size_bytes.*it was .*SpecialError"):
        result.get(timeout=PATIENCE_S)
    assert result.state == states.FAILURE
    assert "raise SpecialError" in result.traceback


def test_arguments_that_are_too_large_for_an_extended_result(fleet):
    """The failure itself is short; what Celery stores beside it is not."""
    result = fleet.task(work.fail).delay("x" * LIMIT_BYTES)
    with pytest.raises(EncodeError, match="max_message_size_bytes"):
        result.get(timeout=PATIENCE_S)
    assert result.state == states.FAILURE


def test_results_that_nobody_wants_are_not_stored(fleet):
    result = fleet.task(work.ignored).delay()
    again = fleet.task(work.add).apply_async((1, 1), ignore_result=True)
    last = fleet.task(work.add).delay(1, 1)
    assert last.get(timeout=PATIENCE_S) == 2
    assert fleet.app.control.ping(timeout=PATIENCE_S, limit=1)
    assert not records.records_of(fleet.backend.store, records.RESULTS, result.id)
    assert not records.records_of(fleet.backend.store, records.RESULTS, again.id)


def test_states_of_the_apps_own(fleet):
    result = fleet.task(work.progress).delay()
    assert result.get(timeout=PATIENCE_S) == "done"
    assert lives(fleet, result.id) == [states.SUCCESS, work.MARKED, states.STARTED]


def test_a_revoked_task(fleet):
    result = fleet.task(work.add).apply_async((1, 1), countdown=3600)
    result.revoke()
    assert fleet.app.control.ping(timeout=PATIENCE_S, limit=1)
    late = fleet.task(work.add).apply_async((1, 1), task_id=result.id)
    with pytest.raises(TaskRevokedError):
        late.get(timeout=PATIENCE_S)
    assert late.state == states.REVOKED


def test_many_results_by_id(fleet):
    ids = [fleet.task(work.add).delay(number, number).id for number in range(50)]
    failed = fleet.task(work.fail).delay("one of many").id
    got = dict(fleet.backend.get_many([*ids, failed], timeout=PATIENCE_S))
    assert [got[task_id]["result"] for task_id in ids] == [2 * number for number in range(50)]
    assert got[failed]["status"] == states.FAILURE
    results = ResultSet([AsyncResult(task_id, app=fleet.app) for task_id in ids], app=fleet.app)
    assert results.join(timeout=PATIENCE_S) == results.join_native(timeout=PATIENCE_S)


def test_pickled_and_compressed_results(tmp_path):
    """History and store show what they are; only an app that accepts pickle reads it."""
    settings = {
        "result_serializer": "pickle",
        "result_compression": "zlib",
        "accept_content": ["json", "pickle"],
    }
    with fleet_in(tmp_path, **settings) as fleet:
        fleet.start("--concurrency=1", C_FORCE_ROOT="1")  # Celery's rule for root and pickle
        result = fleet.task(work.raw_bytes).delay()
        assert result.get(timeout=PATIENCE_S) == {"raw": bytes(range(256))}
        newest = next(iter(history.transitions(fleet.backend.store, task_id=result.id)))
        assert newest.content_type == "application/x-python-serialize"
        assert newest.size_bytes > 0
        assert newest.meta == {}


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    ("options", "named"),
    [
        ("", "not a directory"),
        ("?max_queue=1", "did you mean max_queues"),
        ("?read_only=1", "has to store results"),
    ],
    ids=["a path that is a file", "a wrong option", "an option for readers"],
)
def test_a_worker_refuses_to_start_with_a_store_that_it_cannot_use(tmp_path, options, named):
    with fleet_in(tmp_path) as fleet:
        fleet.store_path.write_text("a file")
        worker = fleet.start("--concurrency=1", **{work.BACKEND: f"cystore://{fleet.store_path}{options}"})
        assert worker.process.wait(PATIENCE_S) != 0
        told = Path(worker.log).read_text()
        assert named in told
        assert "Traceback" not in told and told.count("CRITICAL") == 1
        assert "ready." not in told
