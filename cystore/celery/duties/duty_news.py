"""News of the duties of a worker's main process: a line of its log a minute, and events if the app asks for them."""

from __future__ import annotations

import logging
import uuid
from pathlib import Path
from typing import Any

from cystore.clock import monotonic_s

log = logging.getLogger("cystore.celery")

TELL_S = 60.0


class MinuteLog:
    """Counts the work, and logs it once a minute; nothing if there was none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._runs: dict[str, int] = {}
        self._done: dict[str, int] = {}
        self._tell_at = monotonic_s() + TELL_S

    def ran(self, name: str, done: int) -> None:
        """A duty was done once."""
        self._runs[name] = self._runs.get(name, 0) + 1
        self._done[name] = self._done.get(name, 0) + done

    def tell(self) -> None:
        """The line, if a minute is over."""
        if monotonic_s() < self._tell_at:
            return
        self._tell_at = monotonic_s() + TELL_S
        if any(self._done.values()):
            counts = ", ".join(f"{name} {runs} x ({self._done[name]:,})" for name, runs in self._runs.items())
            log.info("%s: duties of the last minute: %s", self._path, counts)
        self._runs, self._done = {}, {}


class DutyEvents:
    """Celery events for each run of a duty, as if it were a task of the pool. The worker's own thread sends them,
    through its present connection to the broker."""

    def __init__(self, consumer: Any) -> None:
        self._consumer = consumer

    def ran(self, task: str, task_id: str | None, done: int, took_s: float) -> None:
        """A duty was done."""
        self._consumer.call_soon(self._send, task, task_id or str(uuid.uuid4()), done, took_s)

    def _send(self, task: str, task_id: str, done: int, took_s: float) -> None:
        eventer = self._consumer.event_dispatcher
        if not eventer or not eventer.enabled:
            return
        eventer.send("task-received", uuid=task_id, name=task, args="()", kwargs="{}", retries=0)
        eventer.send("task-started", uuid=task_id)
        eventer.send("task-succeeded", uuid=task_id, result=repr(done), runtime=took_s)
