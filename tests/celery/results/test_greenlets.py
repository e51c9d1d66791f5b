"""Goal: under gevent and eventlet only the greenlet that waits stands still. Method: a fresh interpreter that patches
the standard library first; what one greenlet waits for is done by another one of the same thread, so a wait that
blocked the thread would never end."""

from __future__ import annotations

import pytest

from tests.support.isolated import fresh

pytest.importorskip("gevent")
pytest.importorskip("eventlet")
LIBRARIES = pytest.mark.parametrize("library", ["gevent", "eventlet"])


def a_get_and_who_answers_it(url: str, library: str) -> list:
    from tests.support.isolated.green import patched

    green = patched(library)

    from celery import Celery

    app = Celery("test", broker="memory://", backend=url)
    turns = []

    def answer() -> None:
        for turn in range(50):
            green.sleep(0.001)
            turns.append(turn)
        app.backend.store_result("id", "from a greenlet", "SUCCESS")

    app.backend.store_result("before", 1, "SUCCESS")
    green.spawn(answer)
    got = app.AsyncResult("id").get(timeout=60)
    return [got, len(turns), app.backend is app.backend, type(app.backend.result_consumer.drainer).__name__]


@LIBRARIES
def test_another_greenlet_runs_during_a_get(url, library):
    got = fresh.run(a_get_and_who_answers_it, url, library)
    assert got == ["from a greenlet", 50, True, f"{library}Drainer"]


def many_that_wait(url: str, library: str) -> list:
    from tests.support.isolated.green import patched

    green = patched(library)

    from celery import Celery

    app = Celery("test", broker="memory://", backend=url)
    got, backends = [], set()

    def wait(number: int) -> None:
        backends.add(app.backend)
        got.append(app.AsyncResult(f"t{number}").get(timeout=60))

    waiting = [green.spawn(wait, number) for number in range(100)]
    green.sleep(0)
    for number in reversed(range(100)):
        app.backend.store_result(f"t{number}", number, "SUCCESS")
    for greenlet in waiting:
        greenlet.get() if library == "gevent" else greenlet.wait()
    return [sorted(got), len(backends)]


@pytest.mark.sampled(1)
@LIBRARIES
def test_more_greenlets_wait_than_the_hub_has_threads(url, library):
    """They share one backend, which waits in one native thread for all of them."""
    assert fresh.run(many_that_wait, url, library) == [list(range(100)), 1]


def a_put_and_who_lets_it_through(url: str, library: str, what: str, lock: str) -> list:
    from tests.support.isolated.green import patched

    green = patched(library)

    from celery import Celery

    from cystore.celery.base import events, records
    from cystore.celery.lifecycle import recorder
    from cystore.system.threads import os_threads

    flush = {"flush": "sync", "append": "async"}[lock]
    app = Celery("test", broker="memory://", backend=f"{url}?flush={flush}&sync_flush_timeout_ms=60000")
    app.backend.store_result("before", 1, "SUCCESS")
    recorder.BUSY_MS = 60_000
    life = recorder.log_of(app)
    control = app.backend.store._attached().control
    held, release = os_threads.Flag(), os_threads.Flag()

    def hold() -> None:  # the only one who may append, or flush, stands still
        turn = control.held(lock)
        turn.__enter__()
        held.set()
        release.wait()
        turn.__exit__(None, None, None)

    holder = os_threads.Thread(hold, "holder")
    held.wait()
    order = []

    def put() -> None:
        order.append("put begins")
        if what == "event":
            life.append("SENT", "id", "task", None, None)
        else:
            app.backend.store_result("id", 1, "SUCCESS")
        order.append("put ends")

    def others() -> None:
        for _ in range(20):
            green.sleep(0.001)
        order.append("others ran")
        release.set()

    greenlets = [green.spawn(put), green.spawn(others)]
    for greenlet in greenlets:
        greenlet.get() if library == "gevent" else greenlet.wait()
    holder.join()
    found = app.backend.store.query(events.EVENTS if what == "event" else records.RESULTS, "id")
    return [order, len(found)]


@pytest.mark.sampled(2)
@LIBRARIES
@pytest.mark.parametrize(("what", "lock"), [("result", "flush"), ("result", "append"), ("event", "append")])
def test_another_greenlet_runs_during_a_put(url, library, what, lock):
    """One that is to be durable, and two that find another process in the middle of an append. Seen: an event of the
    lifecycle log stopped the hub for a second."""
    got = fresh.run(a_put_and_who_lets_it_through, url, library, what, lock)
    assert got == [["put begins", "others ran", "put ends"], 1]


def a_wait_of_a_programs_own(path: str, library: str) -> list:
    """As docs/celery-results.md says it."""
    from tests.support.isolated.green import patched

    green = patched(library)

    import cystore

    order = []
    with cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20) as store:

        def wait() -> None:
            order.append("wait begins")
            if library == "gevent":
                order.append(green.get_hub().threadpool.apply(store.wait, ("T", 0, 0, 60)))
            else:
                from eventlet import tpool

                order.append(tpool.execute(store.wait, "T", 0, 0, 60))

        def put() -> None:
            order.append("put")
            store.put("T", b"body")

        greenlets = [green.spawn(wait), green.spawn(put)]
        for greenlet in greenlets:
            greenlet.get() if library == "gevent" else greenlet.wait()
    return order


@LIBRARIES
def test_a_wait_of_a_programs_own_in_a_native_thread_lets_others_run(tmp_path, library):
    got = fresh.run(a_wait_of_a_programs_own, str(tmp_path / "store"), library)
    assert got == ["wait begins", "put", True]


def a_step_of_a_duty_and_who_ends_it(url: str, library: str) -> list:

    from tests.support.isolated.green import patched

    green = patched(library)

    from celery import Celery

    from cystore.celery.duties import duty_runs
    from cystore.system.threads import os_threads

    app = Celery("test", broker="memory://", backend=url)
    app.backend.store_result("before", 1, "SUCCESS")
    release, order = os_threads.Flag(), []

    def slow(app: Celery, store: object) -> tuple[int, bool]:
        order.append("step begins")
        release.wait(60)
        order.append("step ends")
        return 1, False

    def others() -> None:
        while not order:  # its thread may begin late
            green.sleep(0.001)
        order.append("others ran")
        release.set()

    duty = duty_runs.FLUSH._replace(step=slow)
    greenlets = [green.spawn(duty_runs.run, app, duty), green.spawn(others)]
    for greenlet in greenlets:
        greenlet.get() if library == "gevent" else greenlet.wait()
    return [order, app.backend.store.duties.last("flush").done, duty_runs.run(app, duty_runs.FLUSH)]


@LIBRARIES
def test_another_greenlet_runs_during_a_step_of_a_duty(url, library):
    """A slow disk, a large slice: what a duty does to the store takes no turn away from a worker's tasks."""
    order, done, flushed = fresh.run(a_step_of_a_duty_and_who_ends_it, url, library)
    assert (order, done) == (["step begins", "others ran", "step ends"], 1)
    assert flushed is not None


def services_and_locks(path: str, library: str) -> list:
    """The store's services run in threads of the operating system, whose locks are its own too; patched after the
    import here."""
    import os
    import threading

    import cystore
    from cystore import clock
    from cystore.system.threads import os_threads
    from tests.celery.conftest import PATIENCE_S
    from tests.support.isolated.green import patched

    native = type(threading.RLock())
    patched(library)

    before = len(os.listdir("/proc/self/task"))
    with cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20) as store:
        store.put("T", b"body")
        until = clock.monotonic_s() + PATIENCE_S
        # a thread of the open itself may take a moment to end
        while (threads := len(os.listdir("/proc/self/task")) - before) > 3 and clock.monotonic_s() < until:
            os_threads.pause(0.001)
        is_native = (
            type(store._lock).__name__ == native.__name__ and type(store._lock).__module__ == "_thread"
        )
    return [threads, is_native, store.closed]


@LIBRARIES
def test_the_store_keeps_to_threads_of_the_operating_system(tmp_path, library):
    assert fresh.run(services_and_locks, str(tmp_path / "store"), library) == [3, True, True]


def native_threads_that_log(path: str, library: str) -> list:
    """Two native threads log, and five greenlets do, through one handler whose lock is a greenlet's. Some of the
    store's loggers and levels are asked for the first time by a native thread."""
    from tests.support.isolated.green import patched

    green = patched(library)

    import logging

    from cystore.celery.base import greenlets
    from cystore.system.threads import os_threads

    logging.basicConfig(filename=path, level=logging.INFO, format="%(threadName)s %(funcName)s %(message)s")
    log, ended = logging.getLogger("cystore"), []

    def native() -> None:
        for number in range(1_000):
            log.warning("native %d", number)
            log.debug("nobody reads it")
        try:
            raise ValueError("a native thread's")
        except ValueError:
            log.exception("it failed")
        ended.append(1)

    def said_in_the_hubs_pool() -> None:
        for number in range(1_000):
            logging.getLogger("cystore.celery").error("pool %d", number)

    def said_by_a_greenlet() -> None:
        for number in range(1_000):
            log.warning("green %d", number)
            green.sleep(0)

    def lines() -> list:
        with open(path) as file:
            return file.read().splitlines()

    os_threads.Thread(native, "native")
    waiting = [green.spawn(said_by_a_greenlet) for _ in range(5)]
    waiting.append(green.spawn(greenlets.off_the_hub, said_in_the_hubs_pool))
    for greenlet in waiting:
        greenlet.get() if library == "gevent" else greenlet.wait()
    while not ended or not any("a native thread's" in line for line in lines()):
        green.sleep(0.01)
    told = lines()
    counts = [sum(f"{who} {what} " in line for line in told) for who, what in
              (("native", "native"), ("said_by_a_greenlet", "green"), ("said_in_the_hubs_pool", "pool"))]  # fmt: skip
    tracebacks = sum(line.startswith("ValueError: a native") for line in told)
    in_order = [line.rpartition(" ")[2] for line in told if " native native " in line]
    return [counts, tracebacks, in_order == sorted(in_order, key=int), any("nobody" in line for line in told)]


@LIBRARIES
def test_native_threads_and_greenlets_log_through_one_handler(tmp_path, library):
    """Seen: eventlet's hub stopped (`Cannot switch to a different thread`), gevent's found that it would block for
    ever, because the handler's lock, a greenlet's, woke a greenlet in the native thread."""
    got = fresh.run(native_threads_that_log, str(tmp_path / "log"), library)
    assert got == [[1_000, 5_000, 1_000], 1, True, False]
