"""Goal: a worker opens its store beside the rest of its start, and is no less careful for that. Method: the steps and
the opening in this process; real workers on stores that they cannot open, or that were moved before a pool process
opened them."""

from __future__ import annotations

import gc
import os
import sys
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from celery import Celery
from celery.exceptions import ImproperlyConfigured, WorkerShutdown
from celery.worker import state

import cystore
from cystore.celery import stores
from cystore.celery.base.identity import store_id_of
from cystore.celery.base.store_watch import EXIT_CODE
from cystore.celery.duties import main_process, ticks, worker_steps
from cystore.celery.stores import close_shared
from cystore.ha.lock import is_replicated
from tests.celery.conftest import PATIENCE_S, fleet_in, wait_until
from tests.celery.results.test_store_away import ready, send, waiting
from tests.support.celery import work
from tests.support.ha.ha_pair import free_port
from tests.support.isolated import fresh

NOWHERE = "redis://127.0.0.1:1/0"  # no server listens at this port


def steps_of_a_worker(url: str) -> list[str]:
    from celery import Celery

    import cystore.celery  # noqa: F401 - it listens for workers; the command `celery worker` imports it

    worker = Celery("steps", broker="redis://", backend=url).Worker(hostname="w@here", beat=True)
    return [type(step).__name__ for step in worker.steps]


@pytest.mark.parametrize("there", [True, False])
def test_the_opening_begins_behind_the_last_fork_of_the_boot(url, there):
    """A worker that has to make its store opens it at once."""
    if there:
        Celery("first", backend=url, set_as_current=False).backend.store.put("T", b"x")
        close_shared()
    order = fresh.run(steps_of_a_worker, url)
    assert order[-1] == "Consumer"
    assert ("OpeningStep" in order) == there
    if there:
        assert max(order.index("Pool"), order.index("Beat")) < order.index("OpeningStep"), order


def steps_beside_one_given_by_its_name(url: str) -> list[str]:
    from celery import Celery

    import cystore.celery  # noqa: F401 - it listens for workers; the command `celery worker` imports it

    app = Celery("steps", broker="redis://", backend=url)
    app.steps["consumer"].add("celery.bootsteps:StartStopStep")
    worker = app.Worker(hostname="w@here")
    return [type(step).__name__ for step in (*worker.steps, *worker.consumer.steps)]


def test_an_app_may_give_a_step_by_its_name(url):
    """Seen: the worker ended with a KeyError."""
    Celery("first", backend=url, set_as_current=False).backend.store.put("T", b"x")
    close_shared()
    order = fresh.run(steps_beside_one_given_by_its_name, url)
    assert {"OpeningStep", "StoreStep", "ReadStep", "DutyStep", "StartStopStep"} <= set(order)


def embedded_worker(url: str) -> tuple[list[str], bool]:
    from celery import Celery
    from celery.contrib.testing.worker import TestWorkController

    import cystore.celery  # noqa: F401 - it listens for workers
    from cystore.celery.stores import opened_at

    app = Celery("steps", broker="redis://", backend=url)
    worker = TestWorkController(app=app, pool="solo", hostname="w@here")
    return [type(step).__name__ for step in worker.steps], opened_at(app.backend.location.path) is not None


def test_a_worker_inside_a_program_opens_its_store_when_it_is_made(url):
    """Such a program waits until its worker is ready, perhaps in another thread. Seen: for ever, because the thread
    that opened the store failed."""
    Celery("first", backend=url, set_as_current=False).backend.store.put("T", b"x")
    close_shared()
    order, is_open = fresh.run(embedded_worker, url)
    assert is_open
    assert "OpeningStep" not in order


def test_a_worker_refuses_a_store_that_its_app_found_for_reading(url):
    """The app made its backend before it had a worker."""
    Celery("first", backend=url, set_as_current=False).backend.store.put("T", b"x")
    close_shared()
    app = Celery("reads", broker="memory://", backend=f"{url}?read_only=true", set_as_current=False)
    opening = worker_steps.Opening(app.backend, [])
    opening.run()
    with pytest.raises(ImproperlyConfigured, match="read_only forbids that"):
        opening.wait()


def test_a_worker_that_serves_no_slaves_says_so(url, tmp_path, caplog):
    """Seen: a worker with a port for slaves, and without the service `ha`, served nobody and was silent."""
    named = f"ha_listen_port={free_port()}"

    def opened(options: str) -> str:
        caplog.clear()
        app = Celery("serves", broker="memory://", backend=f"{url}?{options}", set_as_current=False)
        worker_steps.Opening(app.backend, []).run()
        close_shared()
        return caplog.text

    assert f"{named} has no effect" in opened(named)
    assert "has no effect" not in opened("flush=async")
    assert "has no effect" not in opened(f"{named}&ha_allow_plain=true&services=all")
    serves = {"services": ["ha"], "ha_listen_port": free_port(), "ha_allow_plain": True}
    with cystore.open(url.removeprefix("cystore://"), **serves) as beside:
        wait_until(lambda: is_replicated(beside.path), "the other process replicates")
        assert "has no effect" not in opened(named)


def test_a_fork_waits_for_the_opening_and_a_stop_does_not(url):
    inside, go_on, order = threading.Event(), threading.Event(), []

    def opens() -> cystore.MessageStore:
        inside.set()
        go_on.wait()
        order.append("opened")
        raise ImproperlyConfigured("not usable")

    backend = SimpleNamespace(location=SimpleNamespace(path="/p"), open_for_worker=opens)
    opening = worker_steps.Opening(backend, [])
    opening.begin()
    inside.wait()
    state.should_stop = 0
    try:
        with pytest.raises(WorkerShutdown):
            opening.wait()
        threading.Timer(0.2, go_on.set).start()
        child = os.fork()
        if not child:
            os._exit(0)
        order.append("forked")
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert order == ["opened", "forked"]
        with pytest.raises(ImproperlyConfigured, match="not usable"):
            opening.wait()
    finally:
        go_on.set()
        state.should_stop = None


def opening_of(opens: Callable[[], object]) -> worker_steps.Opening:
    return worker_steps.Opening(
        SimpleNamespace(location=SimpleNamespace(path="/p"), open_for_worker=opens), []
    )


def join_openings() -> None:
    for thread in threading.enumerate():
        if thread.name == "cystore-opening":
            thread.join(PATIENCE_S)


def test_the_short_switch_interval_lasts_no_longer_than_the_turn(monkeypatch):
    """Otherwise a child of a fork keeps it, and so does a process in which two workers start at once."""
    usual_s, seen, inside = sys.getswitchinterval(), [], []

    class Turn:
        def __enter__(self) -> None:
            seen.append(sys.getswitchinterval())

        def __exit__(self, *_: object) -> None:
            seen.append(sys.getswitchinterval())

    def opens() -> None:
        inside.append(sys.getswitchinterval())
        raise ImproperlyConfigured("not usable")

    monkeypatch.setattr(worker_steps, "TURN", Turn())
    opening = opening_of(opens)
    opening.begin()
    with pytest.raises(ImproperlyConfigured):
        opening.wait()
    join_openings()
    state.should_stop = None
    assert inside[0] < usual_s
    assert seen[0] == seen[-1] == sys.getswitchinterval() == usual_s


def test_an_error_that_ends_one_worker_ends_no_later_one():
    def opens() -> None:
        raise ImproperlyConfigured("not usable")

    opening = opening_of(opens)
    opening.begin()
    try:
        with pytest.raises(ImproperlyConfigured):
            opening.wait()
        join_openings()
        assert state.should_stop is None
    finally:
        state.should_stop = None


def test_an_app_whose_worker_is_over_can_be_collected(url):
    app = Celery("over", broker="memory://", backend=url, set_as_current=False)
    opening = worker_steps._openings[app] = worker_steps.Opening(app.backend, [])
    opening.run()
    opening.wait()
    known = weakref.ref(app)
    del app, opening
    gc.collect()
    assert known() is None


class Parent:
    """A consumer whose event loop has not begun."""

    hostname, hub = "w@here", None

    def __init__(self, app: Celery) -> None:
        self.app, self.soon = app, []

    def call_soon(self, call: Callable[..., None], *args: object) -> None:
        self.soon.append((call, args))


def test_a_tick_that_comes_before_the_first_turn_is_taken(url, monkeypatch):
    """A broker such as RabbitMQ sends waiting messages while the worker still asks for them. Such a tick went to the
    pool."""
    monkeypatch.setattr(main_process, "takes_ticks", lambda: True)
    app = Celery("ticks", broker="memory://", backend=url, set_as_current=False)
    opening = worker_steps._openings[app] = worker_steps.Opening(app.backend, [])
    opening.run()
    opening.has_thread = True
    parent = Parent(app)
    step = worker_steps.DutyStep(parent)
    step.start(parent)
    assert parent in ticks._takers
    step.shutdown(parent)


@pytest.mark.parametrize("broker", ["there", "away"])
def test_a_worker_that_cannot_open_its_store_ends_and_takes_no_task(tmp_path, broker):
    """The worker finds that out in a thread, after it forked its pool."""
    with fleet_in(tmp_path) as fleet:
        assert fleet.backend.store
        close_shared()
        send(fleet, 3)
        with cystore.open(fleet.store_path, exclusive=True, allow_any_owner=True):
            away = {work.BROKER: NOWHERE} if broker == "away" else {}
            worker = fleet.start("--concurrency=1", **away)
            assert worker.process.wait(PATIENCE_S) == 1
        told = worker.log.read_text()
        assert f"'cystore://{fleet.store_path}' cannot be used: " in told
        assert "Traceback" not in told and told.count("cannot be used") == 1
        assert "ready." not in told
        assert waiting(fleet) == 3


def test_a_worker_whose_store_has_a_damaged_id_ends_and_takes_no_task(tmp_path):
    """Seen: it ran all tasks, and could store none of their results."""
    with fleet_in(tmp_path) as fleet:
        store_id_of(fleet.backend.store)
        close_shared()
        send(fleet, 3)
        damaged = fleet.store_path / "config" / "storeId"
        damaged.write_text("no id")
        worker = fleet.start("--concurrency=1")
        assert worker.process.wait(PATIENCE_S) == 1
        told = worker.log.read_text()
        assert "Traceback" not in told
        assert "the store's id is damaged: 'no id'. Write its id into the file" in told
        assert f"[path {damaged}]" in told
        assert waiting(fleet) == 3


@pytest.mark.parametrize("quiet", [False, True])
def test_a_worker_that_cannot_make_its_store_ends_and_takes_no_task(tmp_path, quiet):
    """Celery only logs what a handler of its signals raises. Seen: a worker with --quiet took the tasks, and lost
    their results."""
    (tmp_path / "store").write_text("no directory")
    with fleet_in(tmp_path) as fleet:
        send(fleet, 3)
        worker = fleet.start("--concurrency=1", quiet=quiet)
        assert worker.process.wait(PATIENCE_S) == 1
        told = worker.log.read_text()
        assert "Traceback" not in told
        assert told.count("cannot be used: not a directory") == 1
        assert "Signal handler" not in told
        assert waiting(fleet) == 3


def test_a_pool_process_opens_only_the_store_that_its_worker_found(tmp_path):
    """The process did not use the store before. Otherwise it would make a second one, and lose the result in it."""
    with fleet_in(tmp_path, cystore_lifecycle=False) as fleet:
        assert fleet.backend.store
        close_shared()
        worker = fleet.start("--concurrency=1")
        ready(worker)
        fifo, runs = tmp_path / "fifo", tmp_path / "runs"
        fleet.task(work.waits_for_a_word).delay(str(runs), str(fifo))
        wait_until(runs.exists, "the task runs")
        close_shared()
        fleet.store_path.rename(tmp_path / "moved")
        fifo.write_text("go on")
        assert worker.process.wait(PATIENCE_S) == EXIT_CODE
        assert waiting(fleet) == 1, worker.log.read_text()
        assert not fleet.store_path.exists(), "a second store was made"


@pytest.mark.parametrize("now", ["missing", "another"])
def test_a_store_that_was_put_off_is_opened_at_its_directory_only(url, now):
    app = Celery("put off", broker="memory://", backend=url, set_as_current=False)
    path = Path(app.backend.location.path)
    location = app.backend.location
    assert app.backend.store
    close_shared()
    stores.open_later(app)
    assert stores.put_off(location, app)
    path.rename(path.with_name("moved"))
    if now == "another":
        cystore.open(path).close()
    with pytest.raises(cystore.StoreMovedError, match=str(path)):
        stores.open_shared(location, app)
    assert isinstance(stores.moved(location.path), cystore.StoreMovedError)
    assert path.exists() == (now == "another")
    if now == "missing":
        path.with_name("moved").rename(path)
        assert stores.open_shared(location, app)
        assert not stores.is_put_off(location)
