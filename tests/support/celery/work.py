"""The app of the fleet tests: workers import it by name, tests configure it through the environment."""

from __future__ import annotations

import functools
import importlib
import json
import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
from celery import Celery, chain, group, shared_task, signals
from celery.result import AsyncResult, allow_join_result

import cystore
from cystore.celery import Once
from tests.support.clock import turn

BROKER, BACKEND, OPEN_EARLY = "CYSTORE_TEST_BROKER", "CYSTORE_TEST_BACKEND", "CYSTORE_TEST_OPEN_EARLY"
DIE_IN, DIED, CLAIM_S = "CYSTORE_TEST_DIE_IN", "CYSTORE_TEST_DIED", "CYSTORE_TEST_CLAIM_S"
DUTIES, SETTINGS = (
    "CYSTORE_TEST_DUTIES",
    "CYSTORE_TEST_SETTINGS",
)  # how often beat looks after the duties, in s; further settings as JSON
SPARK = "CYSTORE_TEST_SPARK"  # the jobs of cystore.spark are tasks, too
QUEUE = "cystore_tests"
REDELIVER_AFTER = "CYSTORE_TEST_REDELIVER_AFTER_S"
# Redis redelivers a message that no worker acknowledged within this time. On a busy machine a short time redelivers
# messages of workers that live. So a test asks for it (`SOON`) if it kills a whole worker that has messages.
REDELIVER_AFTER_S, SOON_S = 3600, 2
SOON = {REDELIVER_AFTER: str(SOON_S)}
AT_ONCE = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": SOON_S}
CLOCK_AHEAD_MS = "CYSTORE_TEST_CLOCK_AHEAD_MS"  # the time by which a worker cleans
# kombu opens 10 at most. In a green pool more tasks may acknowledge at once: then the worker drops its connection, and
# a message that it had not begun waits for `visibility_timeout`.
MAX_CONNECTIONS = 50
MARKED = "MARKED"  # a state of the app's own


def make_app(broker_url: str, result_backend: str, **settings: object) -> Celery:
    """A new app with the tasks below (and every other shared one)."""
    app = Celery("work", broker=broker_url, backend=result_backend)
    redeliver_after_s = float(os.environ.get(REDELIVER_AFTER, REDELIVER_AFTER_S))
    app.conf.update(
        result_backend_thread_safe=True,
        **settings,
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_track_started=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={
            "visibility_timeout": redeliver_after_s,
            "max_connections": MAX_CONNECTIONS,
            **(AT_ONCE if redeliver_after_s == SOON_S else {}),
        },
    )
    return app


class SpecialError(Exception):
    """A failure of the app's own kind."""


@shared_task
def add(x: int, y: int) -> int:
    return x + y


@shared_task
def total(values: list[int]) -> int:
    return sum(values)


@shared_task
def same(value: Any) -> Any:
    return value


@shared_task(bind=True)
def adds_to_its_chord(self, x: int) -> int:
    self.add_to_chord(add.s(x, 100))
    return x


@shared_task(bind=True)
def becomes_a_group(self, x: int) -> None:
    self.replace(group(add.s(x, 1), add.s(x, 2)))


@shared_task
def waits_for_its_child() -> int:
    with allow_join_result():
        return add.delay(1, 1).get(timeout=60)


@shared_task
def tell_error(task_id: str, path: str) -> None:
    Path(path).write_text(task_id)


@shared_task
def process_id() -> int:
    return os.getpid()


@shared_task
def fail(text: str) -> None:
    raise SpecialError(text)


@shared_task
def fail_at_length(characters: int) -> None:
    raise SpecialError("x" * characters)


@shared_task
def text_of(characters: int, runs: str) -> str:
    """Leaves a mark in the file `runs` each time that it runs."""
    with open(runs, "a") as file:
        file.write("ran\n")
    return "x" * characters


@shared_task
def what_no_serializer_takes(runs: str) -> object:
    with open(runs, "a") as file:
        file.write("ran\n")
    return object()


@shared_task
def raw_bytes() -> dict[str, bytes]:
    return {"raw": bytes(range(256))}


@shared_task(ignore_result=True)
def ignored() -> int:
    return 1


@shared_task(bind=True)
def progress(self) -> str:
    self.update_state(state=MARKED, meta={"done": 1})
    return "done"


@shared_task(acks_late=False)
def result_of(task_id: str, timeout_s: float) -> object:
    with allow_join_result():
        return AsyncResult(task_id).get(timeout=timeout_s)


@shared_task(bind=True, max_retries=3)
def third_time_lucky(self) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0, exc=SpecialError("not yet"))
    return self.request.retries


@shared_task(bind=True, max_retries=1)
def retries_after(self, countdown_s: float) -> int:
    if not self.request.retries:
        raise self.retry(countdown=countdown_s)
    return self.request.retries


@shared_task(bind=True, acks_late=False)
def children(self, count: int) -> list[str]:
    """Sends tasks and returns at once: their results are children of this one's."""
    return [add.delay(number, number).id for number in range(count)]


@shared_task(acks_late=False)
def fills_its_disk(path: str) -> None:
    """From now on the store refuses what is put."""
    with cystore.open(path, allow_any_owner=True) as store:
        store.configure(min_free_bytes=1 << 50)
        store.clean_due()


@shared_task(bind=True)
def wait_unless_redelivered(self, marker: str, fifo: str) -> str:
    """Blocks for ever the first time; the second time the marker is there. Its state tells when it is."""
    if Path(marker).exists():
        return "second time"
    Path(marker).touch()
    self.update_state(state=MARKED)
    return Path(fifo).read_text()  # nobody ever writes into it


@shared_task(track_started=False)
def waits_for_a_word(runs: str, fifo: str) -> str:
    """Stores nothing before it has the word."""
    Path(runs).touch()
    while not Path(fifo).exists():
        threading.Event().wait(0.02)
    return Path(fifo).read_text()


def _run_to_the_end(task: Any, runs: str, fifo: str) -> list[str]:
    """Notes that it runs, waits for a word, and gives it with its own id."""
    with open(runs, "a") as noted:
        noted.write(f"{task.request.id} {os.getpid()}\n")
    while fifo and not Path(fifo).exists():  # under gevent no pipe, whose opening holds up all greenlets
        threading.Event().wait(0.02)
    word = Path(fifo).read_text() if fifo else "at once"
    if word == "fail":
        raise SpecialError(word)
    return [word, task.request.id]


@shared_task(bind=True, base=Once, once={"keys": ["order"], "window_s": 3600})
def once_waits(self, order: object, runs: str, fifo: str = "") -> list[str]:
    return _run_to_the_end(self, runs, fifo)


@shared_task(bind=True, base=Once, once={"keys": ["order"], "on_duplicate": "refuse"})
def once_refuses(self, order: object, runs: str, fifo: str = "") -> list[str]:
    return _run_to_the_end(self, runs, fifo)


@shared_task(bind=True, base=Once, once={"keys": ["order"], "on_duplicate": "running"})
def once_joins(self, order: object, runs: str, fifo: str = "") -> list[str]:
    return _run_to_the_end(self, runs, fifo)


def _go_on(task: Any, order: object, runs: str) -> int:
    """Each run but the last one sends its own task again, each in another way. Gives the number of the run."""
    with open(runs, "a") as noted:
        noted.write(f"{task.request.id}\n")
    run = len(Path(runs).read_text().splitlines())
    if run == 1:
        raise SpecialError("retried by itself")
    if run == 2:
        raise task.retry(countdown=0)
    if run == 3:
        task.replace(task.s(order, runs))
    if run == 4:
        task.replace(chain(task.s(order, runs), same.s()))
    return run


_RETRIED: dict[str, Any] = {
    "autoretry_for": (SpecialError,),
    "retry_backoff": False,
    "default_retry_delay": 0,
}


@shared_task(bind=True, base=Once, once={"keys": ["order"], "on_duplicate": "refuse"}, **_RETRIED)
def once_refuses_and_goes_on(self, order: object, runs: str) -> int:
    return _go_on(self, order, runs)


@shared_task(bind=True, base=Once, once={"keys": ["order"], "on_duplicate": "running"}, **_RETRIED)
def once_joins_and_goes_on(self, order: object, runs: str) -> int:
    return _go_on(self, order, runs)


@shared_task(bind=True, base=Once)
def once_by_id(self, runs: str, fifo: str = "") -> list[str]:
    return _run_to_the_end(self, runs, fifo)


def die_in(place: str, marker: str) -> None:
    """Kills the first process that calls `module:Class.method`, and only that one: it leaves the marker."""
    module, _, path = place.partition(":")
    owner, name = path.split(".")
    cls = getattr(importlib.import_module(module), owner)
    method = getattr(cls, name)

    @functools.wraps(method)
    def deadly(*args: Any, **kwargs: Any) -> Any:
        try:
            os.close(os.open(marker, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return method(*args, **kwargs)
        os.kill(os.getpid(), signal.SIGKILL)

    setattr(cls, name, deadly)


if BROKER in os.environ:
    app = make_app(os.environ[BROKER], os.environ[BACKEND], **json.loads(os.environ.get(SETTINGS, "{}")))
    app.conf.cystore_chord_claim_s = float(os.environ.get(CLAIM_S, 0)) or None
    if DIE_IN in os.environ:
        die_in(os.environ[DIE_IN], os.environ[DIED])
    if CLOCK_AHEAD_MS in os.environ:
        turn(pytest.MonkeyPatch(), int(os.environ[CLOCK_AHEAD_MS]))
    if os.environ.get(DUTIES):
        from cystore.celery.tasks import install

        install(app, float(os.environ[DUTIES]))

    if os.environ.get(SPARK):
        from cystore.celery import spark_tasks

        spark_tasks.install(app)

    @signals.worker_init.connect(weak=False)
    def open_in_the_main_process(**_: object) -> None:
        """Where asked for, the store is open before the pool forks: its processes inherit an attachment that is not
        theirs."""
        if os.environ.get(OPEN_EARLY):
            assert app.backend.store.wrote_position >= 0
