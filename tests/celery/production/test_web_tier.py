"""Goal: a web process may do what the table of docs/production.md says, no more and no less. Method: each row of the
table with a real worker. The rows without a store are in `routing/test_remote.py` and `routing/test_homes.py`."""

from __future__ import annotations

import json
import os
import threading

import pytest
from celery import chord, group, states
from celery.exceptions import TimeoutError as ResultTimeoutError

import cystore
from cystore.celery.stores import close_shared
from tests.celery.conftest import PATIENCE_S, wait_until
from tests.celery.production.test_page import PAGE
from tests.celery.results.test_store_away import waiting
from tests.support.celery import work

READS = "?read_only=true"


def test_beside_the_store_everything_after_a_fork_too(fleet):
    """Gunicorn's `preload_app` opens the store before it forks."""
    assert "everything: send, `.get()`, `.state`, groups, chords" in PAGE.read_text()
    add = fleet.task(work.add)
    assert add.delay(1, 2).get(timeout=PATIENCE_S) == 3
    read_end, write_end = os.pipe()
    child = os.fork()
    if not child:
        try:
            body = chord([add.s(n, n) for n in range(3)])(fleet.task(work.total).s())
            members = group(add.s(n, 1) for n in range(3)).apply_async()
            said = [
                add.delay(2, 2).get(timeout=PATIENCE_S),
                body.get(timeout=PATIENCE_S),
                members.get(timeout=PATIENCE_S),
                body.state,
            ]
            os.write(write_end, json.dumps(said).encode())
        finally:
            os._exit(0)
    os.close(write_end)
    with open(read_end, "rb") as pipe:
        assert json.loads(pipe.read()) == [4, 6, [1, 2, 3], states.SUCCESS]
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert add.delay(3, 3).get(timeout=PATIENCE_S) == 6, "the parent's store is as it was"


def test_a_reader_waits_for_results_and_stores_nothing(fleet):
    """Seen: the page said that it may not revoke, and did not say that it may send."""
    assert "send and revoke tasks, read results and wait for them; not store or forget" in PAGE.read_text()
    ended = fleet.task(work.add).delay(1, 2)
    assert ended.get(timeout=PATIENCE_S) == 3
    waits = fleet.task(work.add).apply_async((1, 2), queue="of_nobody")
    url = fleet.environment[work.BACKEND]
    close_shared()
    reader = work.make_app(fleet.environment[work.BROKER], url + READS)
    try:
        result = reader.AsyncResult(ended.id)
        assert (result.state, result.get(timeout=PATIENCE_S)) == (states.SUCCESS, 3)
        for change in (result.forget, lambda: reader.backend.store_result("any", 1, states.SUCCESS)):
            with pytest.raises(cystore.StoreNotWritableError):
                change()
        reader.control.revoke(waits.id)  # a worker stores it
        wait_until(lambda: reader.AsyncResult(waits.id).state == states.REVOKED, "it is revoked")
        # It waits for a task that it sent itself; the lifecycle log has no SENT of it.
        assert reader.tasks[work.add.name].delay(2, 3).get(timeout=PATIENCE_S) == 5
    finally:
        close_shared()
        fleet.app.set_current()


def test_an_idle_waiter_costs_nothing_and_a_wait_has_its_timeout(fleet):
    """Results of other tasks wake no waiter, and a `.get()` ends at its timeout."""
    never = fleet.app.AsyncResult("never")
    ended: list[str] = []

    def wait() -> None:
        try:
            never.get(timeout=2)
        except ResultTimeoutError:
            ended.append("timeout")

    threads = [threading.Thread(target=wait) for _ in range(20)]
    for thread in threads:
        thread.start()
    results = group(fleet.task(work.add).s(n, 1) for n in range(50)).apply_async()
    assert results.get(timeout=PATIENCE_S) == [n + 1 for n in range(50)]
    for thread in threads:
        thread.join(PATIENCE_S)
    assert ended == ["timeout"] * 20
    wait_until(lambda: not waiting(fleet), "the worker took all tasks")
