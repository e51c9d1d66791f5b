"""Goal: a process leaves a store that none of its apps uses any more. Method: apps that are made and dropped, or
closed; then threads and descriptors are counted, and another handle opens the store for itself alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from celery import Celery, states

import cystore
from cystore.celery.stores import opened_at
from cystore.system.threads import os_threads
from tests.structure.sources import ROOT
from tests.structure.test_docs import blocks
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
    assert store.closed
    assert second.AsyncResult("id").get() == 1
    second.close()


@pytest.mark.parametrize("how", ["app", "backend", "with"])
def test_a_close_leaves_the_store_before_it_returns(tmp_path, how):
    path = tmp_path / "s"
    app = app_of(path)
    store = app.backend.store
    if how == "with":
        with app:
            app.backend.store_result("id", 1, states.SUCCESS)
    else:
        app.backend.store_result("id", 1, states.SUCCESS)
        (app if how == "app" else app.backend).close()
    assert (store.closed, opened_at(str(path)), mapped(path)) == (True, None, [])
    cystore.open(path, exclusive=True).close()
    assert app.AsyncResult("id").get() == 1  # opens it again
    app.close()
    assert mapped(path) == []


def test_a_backend_that_is_closed_leaves_the_store_to_other_threads_of_its_app(tmp_path):
    path = tmp_path / "s"
    app = app_of(path)
    with ThreadPoolExecutor(1) as other:
        store = other.submit(lambda: app.backend.store).result()
        assert app.backend.store is store
        app.backend.close()
        assert not store.closed
        other.submit(lambda: app.backend.close()).result()
        assert store.closed
        store = other.submit(lambda: app.backend.store).result()
        app.close()  # for all threads
        assert store.closed
        other.submit(lambda: app.backend.store).result()
    assert app.backend.store is opened_at(str(path))  # the other thread has ended
    app.backend.close()
    assert mapped(path) == []


REMOVED = """
import shutil, sys
from celery import Celery
app = Celery("app", broker="memory://", backend=f"cystore://{sys.argv[1]}/s")
app.backend.store_result("id", 1, "SUCCESS")
shutil.rmtree(sys.argv[1])
"""


def test_a_store_that_was_removed_gives_one_line_at_exit(tmp_path):
    """Seen: 50 lines of tracebacks at the end of each test suite with a temporary folder."""
    (tmp_path / "folder").mkdir()
    done = subprocess.run(
        [sys.executable, "-c", REMOVED, str(tmp_path / "folder")],
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=True,
        timeout=120,
    )
    (line,) = done.stderr.splitlines()
    assert "was moved, deleted or replaced" in line


def test_the_fixture_of_the_manual(tmp_path):
    (source,) = [
        block.source
        for block in blocks((ROOT / "docs/celery.md").read_text())
        if "@pytest.fixture" in block.source
    ]
    (tmp_path / "test_shop.py").write_text(source)
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-s", "-p", "no:cacheprovider", "test_shop.py"],
        cwd=tmp_path,
        text=True,
        capture_output=True,
        check=False,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, ""), done.stdout
    assert "1 passed" in done.stdout
