"""The app of the fleet tests: workers import it by name, tests configure it through the environment."""

from __future__ import annotations

import os
from pathlib import Path

from celery import Celery, shared_task, signals

BROKER, BACKEND, OPEN_EARLY = "CYSTORE_TEST_BROKER", "CYSTORE_TEST_BACKEND", "CYSTORE_TEST_OPEN_EARLY"
QUEUE = "cystore_tests"
REDELIVER_AFTER_S = 2
MARKED = "MARKED"  # a state of the app's own


def make_app(broker_url: str, result_backend: str) -> Celery:
    """A new app with the tasks below (and every other shared one)."""
    app = Celery("work", broker=broker_url, backend=result_backend)
    app.conf.update(
        result_backend_thread_safe=True,
        task_default_queue=QUEUE,
        task_acks_late=True,
        task_reject_on_worker_lost=True,
        task_track_started=True,
        worker_prefetch_multiplier=1,
        broker_transport_options={
            "visibility_timeout": REDELIVER_AFTER_S,
            "unacked_restore_interval": 1,
            "unacked_restore_throttle": 1,
            "unacked_mutex_expire": REDELIVER_AFTER_S,
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
def process_id() -> int:
    return os.getpid()


@shared_task
def fail(text: str) -> None:
    raise SpecialError(text)


@shared_task(bind=True, max_retries=3)
def third_time_lucky(self) -> int:
    if self.request.retries < 2:
        raise self.retry(countdown=0, exc=SpecialError("not yet"))
    return self.request.retries


@shared_task(bind=True, acks_late=False)
def children(self, count: int) -> list[str]:
    """Sends tasks and returns at once: their results are children of this one's."""
    return [add.delay(number, number).id for number in range(count)]


@shared_task(bind=True)
def wait_unless_redelivered(self, marker: str, fifo: str) -> str:
    """Blocks for ever the first time; the second time the marker is there. Its state tells when it is."""
    if Path(marker).exists():
        return "second time"
    Path(marker).touch()
    self.update_state(state=MARKED)
    return Path(fifo).read_text()  # nobody ever writes into it


if BROKER in os.environ:
    app = make_app(os.environ[BROKER], os.environ[BACKEND])

    @signals.worker_init.connect(weak=False)
    def open_in_the_main_process(**_: object) -> None:
        """Where asked for, the store is open before the pool forks: its processes inherit an attachment that is not theirs."""
        if os.environ.get(OPEN_EARLY):
            assert app.backend.store.wrote_position >= 0
