"""Goal: a fleet keeps what it acknowledged and delivers nothing twice, however its processes end. Method: two workers
of two pool processes each with the store's duties, beat and a Redis of their own; SIGKILL, SIGSTOP, and every kind of
shutdown."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from celery import states
from celery.result import AsyncResult

import cystore
from cystore import MessageStore
from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.duty_leases import redis_of
from cystore.celery.base.identity import store_id_of
from cystore.celery.duties.duty_runs import REPUT
from cystore.layout import LMQ_PREFIX, MUTEX_NAMES
from tests.celery.conftest import PATIENCE_S, Fleet, Worker, fleet_in, wait_until
from tests.support.celery import work
from tests.support.checks import check_chain, everything

DUTIES = {work.DUTIES: "1"}
DELAYED = "delayed"
SOFT_S = 20


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    with fleet_in(tmp_path) as fleet:
        yield fleet


class Blocked:
    """A task that has begun and stands still: until it is told to end, or for ever if it is cut off. It ends at once
    the second time."""

    def __init__(self, fleet: Fleet, name: str) -> None:
        self._fleet = fleet
        self.fifo = fleet.folder / name
        os.mkfifo(self.fifo)
        task = fleet.task(work.wait_unless_redelivered)
        self.result: AsyncResult = task.delay(str(fleet.folder / f"{name}-marker"), str(self.fifo))
        # Not its state: where messages are redelivered soon, the second run may end at any time.
        wait_until(self._has_begun, "the task has begun")

    def _has_begun(self) -> bool:
        store = self._fleet.backend.store
        return any(history.transitions(store, task_id=self.result.id, states=[work.MARKED]))

    @property
    def worker(self) -> int:
        """The number of the worker that began it last."""
        (begun, *_) = history.events(
            self._fleet.backend.store, task_id=self.result.id, states=[events.STARTED]
        )
        return int(begun.details["worker"].removeprefix("worker").removesuffix("@test"))

    def end(self) -> None:
        """Lets it return."""
        self.fifo.write_text("at once")


def put_delayed(store: MessageStore, numbers: range) -> None:
    for number in numbers:
        store.put(DELAYED, str(number).encode(), delay_level=1)


def delivered(store: MessageStore) -> list[int]:
    return sorted(int(bytes(message.body)) for message in everything(store).get((DELAYED, 0), []))


def add_some(fleet: Fleet, numbers: range) -> dict[str, int]:
    """Results that were handed out, by task id."""
    results = [fleet.task(work.add).delay(number, 1) for number in numbers]
    return {result.id: result.get(timeout=PATIENCE_S) for result in results}


def check_what_is_left(fleet: Fleet, acknowledged: dict[str, int], delayed: int) -> None:
    """Of the store that nobody has open any more."""
    fleet.stop()
    assert not (fleet.store_path / "abort").exists(), "the last one out left a clean store"
    with cystore.open(fleet.store_path) as store:
        own = {
            queue: found for queue, found in everything(store).items() if not queue[0].startswith(LMQ_PREFIX)
        }
        assert check_chain(store) == sum(map(len, own.values()))
        assert delivered(store) == list(range(delayed))
        for task_id, value in acknowledged.items():
            # Not how often: a message whose worker was stopped before it was acknowledged runs again.
            ends = history.transitions(store, task_id=task_id, states=[states.SUCCESS])
            assert {end.result for end in ends} == {value}
        assert not store.scrub(1 << 30).damage


def runs(store: MessageStore) -> dict[str, int]:
    return {name: store.duties.last(name).runs for name in ("reput", "deliver_delayed", "flush")}


def every_duty_goes_on(store: MessageStore) -> None:
    """Each that the store needs, because something is appended all the time. A duty without need rests for minutes."""
    before = runs(store)

    def ran_again() -> bool:
        store.put("needs", b"", delay_level=1)
        return all(runs(store)[name] > before[name] for name in before)

    wait_until(ran_again, "each duty ran again")


def test_a_worker_a_pool_process_and_beat_are_killed(fleet):
    workers = [fleet.start("--concurrency=2", **DUTIES, **work.SOON) for _ in range(2)]
    beat = fleet.start_beat()
    store = fleet.backend.store
    acknowledged = add_some(fleet, range(20))
    put_delayed(store, range(30))

    blocked = Blocked(fleet, "in-a-worker")
    workers[blocked.worker].kill()
    put_delayed(store, range(30, 60))
    assert blocked.result.get(timeout=PATIENCE_S) == "second time"
    every_duty_goes_on(store)

    workers = [worker for worker in workers if worker.process.poll() is None]
    workers.append(fleet.start("--concurrency=2", **DUTIES, **work.SOON))
    blocked = Blocked(fleet, "in-a-child")
    (begun, *_) = history.events(store, task_id=blocked.result.id, states=[events.STARTED])
    os.kill(begun.details["pid"], signal.SIGKILL)
    assert blocked.result.get(timeout=PATIENCE_S) == "second time"

    beat.kill()
    put_delayed(store, range(60, 90))
    acknowledged |= add_some(fleet, range(20, 40))
    every_duty_goes_on(store)
    fleet.start_beat()
    every_duty_goes_on(store)
    wait_until(lambda: delivered(store) == list(range(90)), "all is delivered")
    check_what_is_left(fleet, acknowledged, 90)


def threads_of(worker: Worker) -> set[int]:
    pids = (worker.process.pid, *worker.children())
    return {int(thread) for pid in pids for thread in os.listdir(f"/proc/{pid}/task")}


def stop(worker: Worker) -> None:
    """SIGSTOP for all of its processes; returns when they stand still."""
    os.killpg(worker.process.pid, signal.SIGSTOP)
    stats = [Path(f"/proc/{thread}/stat") for thread in threads_of(worker)]
    wait_until(
        lambda: all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in stats), "all stopped"
    )


def go_on(worker: Worker) -> None:
    os.killpg(worker.process.pid, signal.SIGCONT)


@pytest.mark.slow
def test_a_worker_is_stopped_for_longer_than_its_lease(fleet):
    """It dispatches all the time, under one lease. It stands between two steps: who stops inside a lock of the store
    is waited for."""
    hosting = {**DUTIES, work.SETTINGS: '{"cystore_host_reput": true}'}
    holder = fleet.start("--concurrency=2", **hosting)
    store = fleet.backend.store
    control = store._attached().control
    with redis_of(fleet.app) as client:
        lease = f"cystore:duties:{store_id_of(store)}:lease:{REPUT.name}"
        mine = f":{holder.process.pid}"
        wait_until(lambda: (client.hget(lease, "by") or b"").decode().endswith(mine), "it has the lease")
        fleet.start("--concurrency=2", **DUTIES)
        fleet.start_beat()
        acknowledged = add_some(fleet, range(10))
        threads = threads_of(holder)

        def stands_outside_of_all_locks() -> bool:
            stop(holder)
            if not any(control.owner(name) in threads for name in MUTEX_NAMES):
                return True
            go_on(holder)
            return False

        wait_until(stands_outside_of_all_locks, "it stands outside of all locks")
        old = store.duties.highest_token(REPUT.name)
        put_delayed(store, range(30))

        def somebody_else_has_it() -> bool:
            store.put(
                "needs", b""
            )  # nobody asks for the lease of a duty without need, and others dispatch too
            return store.duties.highest_token(REPUT.name) > old

        wait_until(somebody_else_has_it, "somebody else has it")
        every_duty_goes_on(store)
        wait_until(lambda: delivered(store) == list(range(30)), "all is delivered")
        go_on(holder)
    put_delayed(store, range(30, 60))
    acknowledged |= add_some(fleet, range(10, 20))
    every_duty_goes_on(store)
    wait_until(lambda: delivered(store) == list(range(60)), "all is delivered")
    assert holder.process.poll() is None
    check_what_is_left(fleet, acknowledged, 60)


def shut_down(worker: Worker, number: int) -> None:
    """To the main process alone, as a supervisor does it."""
    os.kill(worker.process.pid, number)


def test_a_warm_shutdown_ends_what_was_begun(fleet):
    worker = fleet.start("--concurrency=2", **DUTIES)
    acknowledged = add_some(fleet, range(10))
    blocked = Blocked(fleet, "fifo")
    shut_down(worker, signal.SIGTERM)
    wait_until(lambda: "Warm shutdown" in worker.log.read_text(), "it was told")
    assert worker.process.poll() is None
    blocked.end()
    assert blocked.result.get(timeout=PATIENCE_S) == "at once"
    assert worker.process.wait(PATIENCE_S) == 0
    check_what_is_left(fleet, {**acknowledged, blocked.result.id: "at once"}, 0)


@pytest.mark.slow
def test_a_cold_shutdown_gives_back_what_was_begun(fleet):
    """acks_late: the message goes back, and the task runs again elsewhere."""
    worker = fleet.start("--concurrency=2", **DUTIES)
    acknowledged = add_some(fleet, range(10))
    blocked = Blocked(fleet, "fifo")
    shut_down(worker, signal.SIGQUIT)
    assert worker.process.wait(PATIENCE_S) != -signal.SIGKILL
    assert not blocked.result.ready()
    fleet.start("--concurrency=2", **DUTIES)
    assert blocked.result.get(timeout=PATIENCE_S) == "second time"
    every_duty_goes_on(fleet.backend.store)
    check_what_is_left(fleet, {**acknowledged, blocked.result.id: "second time"}, 0)


@pytest.mark.slow
def test_a_soft_shutdown_waits_and_then_gives_back(fleet):
    soft = {**DUTIES, work.SETTINGS: f'{{"worker_soft_shutdown_timeout": {SOFT_S}}}'}
    worker = fleet.start("--concurrency=2", **soft)
    acknowledged = add_some(fleet, range(10))
    ends, stays = Blocked(fleet, "ends"), Blocked(fleet, "stays")
    shut_down(worker, signal.SIGQUIT)
    wait_until(lambda: "Initiating Soft Shutdown" in worker.log.read_text(), "it waits")
    ends.end()
    assert ends.result.get(timeout=PATIENCE_S) == "at once"
    assert worker.process.wait(PATIENCE_S) != -signal.SIGKILL
    assert not stays.result.ready()
    fleet.start("--concurrency=2", **DUTIES)
    assert stays.result.get(timeout=PATIENCE_S) == "second time"
    acknowledged |= {ends.result.id: "at once", stays.result.id: "second time"}
    check_what_is_left(fleet, acknowledged, 0)
