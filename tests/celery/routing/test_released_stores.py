"""Goal: a process leaves a store that none of its apps uses any more. Method: apps that are made and dropped, or
closed; then threads and descriptors are counted, and another handle opens the store for itself alone."""

from __future__ import annotations

import gc

import pytest
from celery import Celery, states

import cystore
from cystore.system.threads import os_threads
from tests.support.interrupts import descriptors, mapped, threads

pytestmark = [pytest.mark.celery, pytest.mark.unsanitized]

SMALL = "?mapped_file_size_commit_log_bytes=1048576&allocate_ahead_bytes=65536&populate_ahead_bytes=0"
APPS = 80


def app_of(path) -> Celery:
    """An app that keeps its results in a store."""
    return Celery("app", backend=f"cystore://{path}{SMALL}", set_as_current=False, broker="memory://")


def wait_for(path, before, threads_before) -> None:
    """A thread of its own leaves a store that was dropped."""
    for _ in range(5000):
        gc.collect()
        if threads() <= threads_before and descriptors() == before and not mapped(path):
            break
        os_threads.pause(0.01)
    assert (threads() - threads_before, descriptors(), mapped(path)) == (set(), before, [])


@pytest.mark.slow
def test_apps_that_are_dropped_leave_their_stores(tmp_path):
    """Seen: 80 apps left 80 threads."""
    gc.collect()
    before, threads_before = descriptors(), threads()
    for number in range(APPS):
        app = app_of(tmp_path / str(number))
        app.backend.store_result("id", number, states.SUCCESS)
        assert app.AsyncResult("id").get() == number
        del app
    wait_for(tmp_path, before, threads_before)


def test_a_backend_that_is_closed_leaves_its_store_and_opens_it_again(tmp_path):
    path = tmp_path / "s"
    gc.collect()
    before, threads_before = descriptors(), threads()
    app = app_of(path)
    for number in range(3):
        app.backend.store_result(f"id{number}", number, states.SUCCESS)
        app.backend.close()
        wait_for(path, before, threads_before)
    assert [app.AsyncResult(f"id{number}").get() for number in range(3)] == [0, 1, 2]
    app.backend.close()
    wait_for(path, before, threads_before)
    cystore.open(path, exclusive=True).close()


def test_a_store_stays_open_while_another_app_uses_it(tmp_path):
    path = tmp_path / "s"
    first, second = app_of(path), app_of(path)
    store = first.backend.store
    assert second.backend.store is store
    first.backend.close()
    del first
    gc.collect()
    assert not store.closed
    second.backend.store_result("id", 1, states.SUCCESS)
    assert second.backend.store is store
    second.backend.close()
    assert not store.closed  # this test still has it
    store.close()
