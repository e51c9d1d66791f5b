"""Goal: the contract holds in a worker of every pool. Method: a real worker of each, on a store whose puts are
durable."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from celery import chain, chord, group, states

from cystore.celery.base.identity import store_id_of
from cystore.celery.base.queues import own_queue, queue_of_store
from cystore.celery.duties.duty_runs import ALL
from cystore.celery.stores import close_shared
from cystore.services.duty_table import Outcome
from tests.celery.conftest import PATIENCE_S, Fleet, fleet_in, wait_until
from tests.support.celery import work

pytest.importorskip("gevent")
pytest.importorskip("eventlet")


POOLS = ("gevent", "eventlet", "threads")


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Fleet]]:
    """A fleet of each pool. They are stopped together, because Celery's own shutdown takes green pools five seconds."""
    with contextlib.ExitStack() as stack:
        fleets = {
            pool: stack.enter_context(fleet_in(tmp_path_factory.mktemp(pool), "?flush=sync"))
            for pool in POOLS
        }
        workers = [
            fleet.start("--concurrency=20", pool=pool, **{work.DUTIES: "1"}) for pool, fleet in fleets.items()
        ]
        yield fleets
        for fleet in fleets.values():  # a worker whose pool had no test here may still be starting
            assert fleet.task(work.add).delay(1, 1).get(timeout=PATIENCE_S) == 2
        close_shared()
        for worker in workers:
            worker.ask_to_stop()
        for worker, fleet in zip(workers, fleets.values(), strict=True):
            assert worker.stop() == 0, worker.log.read_text()
            assert not (
                fleet.store_path / "abort"
            ).exists()  # the worker was the last one out, and left a clean store


@pytest.fixture(params=POOLS)
def fleet(request: pytest.FixtureRequest, fleets: dict[str, Fleet]) -> Fleet:
    found = fleets[request.param]
    found.app.set_current()  # as if it were the only one of this process
    return found


def test_results_failures_and_retries(fleet):
    assert fleet.task(work.add).delay(2, 3).get(timeout=PATIENCE_S) == 5
    failed = fleet.task(work.fail).delay("broken")
    with pytest.raises(work.SpecialError, match="broken"):
        failed.get(timeout=PATIENCE_S)
    assert "raise SpecialError(text)" in failed.traceback
    assert fleet.task(work.third_time_lucky).delay().get(timeout=PATIENCE_S) == 2


def test_canvas(fleet):
    add = fleet.task(work.add)
    results = group(add.s(number, 1) for number in range(30)).apply_async()
    assert results.get(timeout=PATIENCE_S) == [number + 1 for number in range(30)]
    assert (add.s(1, 1) | add.s(10)).apply_async().get(timeout=PATIENCE_S) == 12
    result = chord(add.s(number, number) for number in range(4))(fleet.task(work.total).s())
    assert result.get(timeout=PATIENCE_S) == 12


def test_forget(fleet):
    result = fleet.task(work.add).delay(1, 1)
    assert result.get(timeout=PATIENCE_S) == 2
    result.forget()
    assert fleet.app.AsyncResult(result.id).state == states.PENDING


def test_a_task_that_waits_lets_the_others_of_its_worker_run(fleet):
    """What they wait for runs in the same worker, after them."""
    ids = [f"later-{number}" for number in range(3)]
    waiting = [fleet.task(work.result_of).delay(task_id, PATIENCE_S) for task_id in ids]
    for number, task_id in enumerate(ids):
        fleet.task(work.add).apply_async((number, 10), task_id=task_id)
    assert [result.get(timeout=PATIENCE_S) for result in waiting] == [10, 11, 12]


def test_ticks_of_all_duties_beside_a_chord(fleet):
    """Sent to the store's own queue, as beat's fan-out does it; what nobody asks for comes from the main process much
    later."""
    store = fleet.backend.store
    store.put("T", b"x", delay_level=1)
    before = {name: store.duties.last(name).runs for name in ALL}
    header = [fleet.task(work.add).s(number, number) for number in range(10)]
    body = chord(header)(fleet.task(work.total).s())
    queue = own_queue(queue_of_store(store_id_of(store)))
    for duty in ALL.values():
        fleet.app.send_task(duty.task, queue=queue)
    assert body.get(timeout=PATIENCE_S) == 90
    wait_until(
        lambda: all(store.duties.last(name).runs > before[name] for name in ALL), "all ticks were taken"
    )
    assert {store.duties.last(name).outcome for name in ALL} <= {Outcome.DONE, Outcome.BUSY}


def test_duties_as_parts_of_a_canvas(fleet):
    """Seen: the worker's main process took them as ticks, nothing that was to follow was sent, and `.get()` waited
    for ever."""
    app, add = fleet.app, fleet.task(work.add)
    duty = {name: app.signature(one.task, immutable=True) for name, one in ALL.items()}
    in_chain = chain(duty["reput"], add.si(1, 2), duty["flush"], add.si(3, 4)).apply_async()
    with_callback = duty["checkpoint"].clone()
    with_callback.link(add.si(5, 6).set(task_id="behind a duty"))
    with_callback.apply_async()
    in_chord = chord([duty["clean_expired"], add.si(7, 8), duty["scrub"]], add.si(9, 10)).apply_async()
    in_group = group(duty["chord_sweep"], add.si(11, 12)).apply_async()
    assert in_chain.get(timeout=PATIENCE_S) == 7
    assert app.AsyncResult("behind a duty").get(timeout=PATIENCE_S) == 11
    assert in_chord.get(timeout=PATIENCE_S) == 19
    assert in_group.results[1].get(timeout=PATIENCE_S) == 23
