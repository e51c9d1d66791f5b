"""Goal: a worker on a store that takes no puts, or that other parts of cystore use as well, loses no task and says what
it does. Method: real workers on a slave, on a store that was switched off, and on one with messages of other kinds."""

from __future__ import annotations

import pytest
from celery import chord

import cystore
from cystore.celery.base.store_watch import EXIT_CODE
from cystore.celery.stores import close_shared
from cystore.clock import now_ms
from cystore.layout import FLAGS
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.celery.results.test_store_away import ready, send, waiting
from tests.support.celery import work

MASTER = "127.0.0.1:1"  # nobody listens there


def test_a_worker_on_a_slave_takes_no_task_and_names_the_master(tmp_path):
    """Seen: it ran every task, printed two tracebacks for each, and the results were lost."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=1")
        kept = fleet.task(work.add).delay(1, 2)
        assert kept.get(timeout=PATIENCE_S) == 3
        assert worker.stop() == 0
        close_shared()
        with cystore.open(fleet.store_path, broker_role="slave", ha_master_address=MASTER):
            send(fleet, 3)
            on_slave = fleet.start("--concurrency=1")
            assert on_slave.process.wait(PATIENCE_S) == EXIT_CODE
            told = on_slave.log.read_text()
            assert "takes no more tasks" in told and f"a slave of {MASTER}" in told
            assert "Traceback" not in told
            assert waiting(fleet) == 3, "the tasks are the broker's"
            assert fleet.app.AsyncResult(kept.id).get(timeout=PATIENCE_S) == 3, "a slave answers reads"
            with pytest.raises(cystore.StoreIsSlaveError, match=MASTER):
                fleet.app.AsyncResult(kept.id).forget()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("flag", ["FLAG_SLAVE", "FLAG_NOT_WRITABLE"])
def test_a_worker_that_waits_continues_with_its_store(tmp_path, flag):
    """As a member of a group does that is elected master."""
    with fleet_in(tmp_path, cystore_store_away="wait") as fleet:
        worker = fleet.start("--concurrency=1")
        ready(worker)
        control = fleet.backend.store._attached().control
        control.set_flag(FLAGS[flag][0])
        wait_until(lambda: "takes no more tasks" in worker.log.read_text(), "the worker knows")
        send(fleet, 3)
        assert worker.process.poll() is None
        control.clear_flag(FLAGS[flag][0])
        wait_until(lambda: not waiting(fleet), "the worker takes tasks again")
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        assert "Traceback" not in worker.log.read_text()


def test_other_parts_of_the_store_beside_the_plugin(tmp_path):
    """Messages that expire, wait, are put once, are half, or belong to a group: none of them is a result, and none
    disturbs one."""
    with fleet_in(tmp_path) as fleet:
        fleet.start("--concurrency=2")
        add, store = fleet.task(work.add), fleet.backend.store
        first = add.delay(1, 2)
        assert first.get(timeout=PATIENCE_S) == 3
        store.put("offers", b"over", keys=(first.id,), expires_at_ms=now_ms() - 1)
        store.put_once("orders", b"1", dedup_key=first.id, window_ms=60_000)
        store.begin("orders", b"half", keys=(first.id,))
        store.put("orders", b"later", keys=(first.id,), delay_level=3)
        assert fleet.app.AsyncResult(first.id).get(timeout=PATIENCE_S) == 3
        assert (
            fleet.task(work.once_waits).delay(1, str(tmp_path / "runs")).get(timeout=PATIENCE_S)[0]
            == "at once"
        )
        body = chord([add.s(n, n) for n in range(4)])(fleet.task(work.total).s())
        assert body.get(timeout=PATIENCE_S) == 12
