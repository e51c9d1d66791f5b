"""Goal: a worker whose store's disk is full says so in a line, not in pages. Method: real workers; the store is told to keep
more space free than any disk has."""

from __future__ import annotations

import threading

import pytest
from celery import Celery

from cystore import StoreFullError
from tests.celery import work
from tests.celery.conftest import fleet_in, wait_until

PATIENCE_S = 60
TASKS = 20


def test_a_full_disk_is_told_in_one_line(tmp_path):
    """Seen: a hundred lines of tracebacks for each task."""
    with fleet_in(tmp_path) as fleet:
        worker = fleet.start("--concurrency=2")
        wait_until(lambda: " ready." in worker.log.read_text(), "the worker is ready")
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
        fleet.backend.store.configure(min_free_bytes=1 << 50)
        fleet.backend.store.clean_due()
        with pytest.raises(StoreFullError):
            fleet.backend.store.put("T", b"")
        sender = Celery(broker=fleet.environment[work.BROKER], backend="disabled://")
        received = f"{work.add.name}["
        before = len(worker.log.read_text().splitlines())
        for number in range(TASKS):
            sender.send_task(work.add.name, (number, 1), queue=work.QUEUE)

        def told() -> list[str]:
            return worker.log.read_text().splitlines()[before:]

        wait_until(lambda: sum(received in line for line in told()) >= TASKS, "the tasks came")
        threading.Event().wait(1.0)  # what the last ones say
        others = [line for line in told() if received not in line]
        assert len(others) == 1 and "cannot be stored" in others[0] and "min_free_bytes" in others[0]
        fleet.backend.store.configure(min_free_bytes=0)
        fleet.backend.store.clean_due()
        assert fleet.task(work.add).delay(1, 2).get(timeout=PATIENCE_S) == 3
