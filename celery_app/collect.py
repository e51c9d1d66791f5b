"""Takes the results of the main job as the store pushes them, and sends tasks again that a Redis lost."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.result import AsyncResult, ResultSet

from celery_app.app import TASK_QUEUE, app
from celery_app.fleet import Fleet
from celery_app.tasks import index_file
from celery_app.tell import bar, say
from cystore.celery.base.duty_leases import redis_of
from cystore.celery.redis_urls import redis_location_of

QUIET_S = 2.0  # without a result; then lost messages are looked for
UNACKED = "unacked"  # Celery's notes in Redis of the messages that workers have

Meta = dict[str, Any]


class CollectError(RuntimeError):
    """Not all results came; the text says why."""


class Collection:
    """The results of one run as they arrive: `metas` holds them by task id."""

    def __init__(self, paths: dict[str, str], fleet: Fleet, timeout_s: float) -> None:
        """`paths` are the tasks that were sent: id and file."""
        self.metas: dict[str, Meta] = {}
        self.sent_again = 0
        self._paths, self._fleet, self._timeout_s = paths, fleet, timeout_s
        self._last_s = time.monotonic()
        self._arriving: Iterator[tuple[str, Meta]] = ResultSet(
            [AsyncResult(task_id, app=app) for task_id in paths], app=app
        ).iter_native(timeout=timeout_s, on_interval=self._check)

    def take(self, until: int) -> None:
        """Takes results until this number is reached. Raises CollectError."""
        total = len(self._paths)
        with bar("indexing", total) as report:
            try:
                while len(self.metas) < until:
                    task_id, meta = next(self._arriving)
                    self.metas[task_id] = meta
                    self._last_s = time.monotonic()
                    report(len(self.metas))
            except ResultTimeoutError:
                raise CollectError(
                    f"only {len(self.metas):,} of {total:,} results arrived within {self._timeout_s:.0f} s"
                ) from None

    def _check(self) -> None:
        """Called between results. Raises CollectError if a process ended; sends lost messages again."""
        for name, code in self._fleet.ended().items():
            raise CollectError(f"{name} exited unexpectedly with exit code {code}: see its log")
        if time.monotonic() - self._last_s > QUIET_S:
            self._last_s = time.monotonic()
            if redis_location_of(app) is None:
                return  # the store loses no message
            redis = redis_of(app)
            if not redis.llen(TASK_QUEUE) and not redis.hlen(UNACKED):
                self._send_again()

    def _send_again(self) -> None:
        """Celery removes a message from Redis before it notes there that a worker has it. If the worker is killed in
        between, the message is lost, and the sender must send it again. Under the same id that is safe."""
        lost = [task_id for task_id in self._paths if task_id not in self.metas]
        for task_id in lost:
            index_file.apply_async((self._paths[task_id],), task_id=task_id)
        self.sent_again += len(lost)
        say(f"        {len(lost)} messages were lost between Redis and the killed worker: sent again")
