"""Ends the mappings of cleaned segments in processes whose services do not: a mapping keeps a removed file's space on
the disk.

One thread serves all stores of a process. It wakes twice a second, and ends when the last store that needs it is left.
"""

from __future__ import annotations

import contextlib
import logging
import os

from cystore.attachment.attach import Attachment
from cystore.config import StoreConfig
from cystore.engine.files.progress import Progress
from cystore.engine.files.segments import Mode
from cystore.errors import StoreClosedError, StoreResourceError
from cystore.services.threads import ServiceThread
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

INTERVAL_S = 0.5


def is_needed(parts: Attachment, config: StoreConfig) -> bool:
    """Whether no service of this process ends the mappings of cleaned segments within INTERVAL_S, or when a cleaner
    wakes it."""
    if parts.mode is not Mode.WRITE:
        return True
    interval_ms = min(config.flush_interval_commit_log_ms, config.flush_interval_consume_queue_ms)
    return "allocate" not in config.services and (
        "flush" not in config.services or interval_ms > 1000 * INTERVAL_S
    )


class Housekeeper:
    """The thread, and the stores that it looks at."""

    def __init__(self) -> None:
        self._lock = os_threads.RLock()
        self._watched: dict[int, Attachment] = {}
        self._thread: ServiceThread | None = None

    def watch(self, parts: Attachment, config: StoreConfig) -> None:
        """Watches these parts from now on, if no service does. If no thread can be started, the next call of the store
        does the work."""
        if not is_needed(parts, config):
            return
        with self._lock:
            self._watched[id(parts)] = parts
            if self._thread is None:
                try:
                    self._thread = ServiceThread("let-go", self.run_once, INTERVAL_S)
                except StoreResourceError as error:
                    log.warning("%s: cleaned segments stay mapped until the next call: %s", parts.root, error)

    def unwatch(self, parts: Attachment) -> None:
        """Ends `watch`; harmless for parts that were never watched."""
        with self._lock:
            self._watched.pop(id(parts), None)
            thread = None if self._watched else self._thread
            if thread is not None:
                self._thread = None
        if thread is not None:
            thread.stop()
            thread.join()

    def run_once(self) -> Progress:
        """One look at each store."""
        for parts in list(self._watched.values()):
            with contextlib.suppress(StoreClosedError):
                parts.let_cleaned_go()
        return Progress(0)


housekeeper = Housekeeper()
# A forked child has no such thread, and the watched parts are the parent's.
os.register_at_fork(after_in_child=housekeeper.__init__)  # type: ignore[misc]
