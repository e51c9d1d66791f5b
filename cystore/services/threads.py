"""Drives a service's `run_once` from a thread, for programs that embed a store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

from cystore.clock import monotonic_s
from cystore.engine.files.progress import Progress
from cystore.errors import StoreClosedError, StoreError, StoreMovedError
from cystore.system.threads import native_log as native_log  # its threads log through it
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

ERROR_INTERVAL_S = 1.0  # before the first call of a variable interval
PAUSE_MAX_S = 60.0
LEAST_WAIT = 0.1  # of the interval, after a turn that took longer than it


_moves: dict[str, Trouble] = {}  # by path: one line for all services of a process


class ServiceThread:
    """Calls `run_once` until `stop`: at once while there is more, else after a wait. The interval counts from the
    beginning of a turn to the beginning of the next one, so a slow disk does not make it longer. A thread always waits
    for the whole of a variable interval.

    An error of the store is logged by the rules of `Trouble`, and the service continues: space may come back. It ends
    by itself when the store is closed or collected. Any other error is logged, and the service continues after a pause
    that doubles with each error in a row. No sync put waits for a service `in_background`. `thread` and `flag` are made
    like those of `os_threads`, the default. It is appended to `among` before it starts, so that others can stop it. It
    calls `at_end` last, whatever ends it.

    `prepare` makes what the thread works with, in the thread that makes this object. It is called only when there is
    room for the thread, and the first turn comes after it. If it fails, no turn comes, and no `at_end`. Raises
    StoreResourceError if there is no room for a thread, and the error of `prepare`.
    """

    def __init__(
        self,
        name: str,
        run_once: Callable[[], Progress],
        interval_s: float | Callable[[], float],
        wait: Callable[[float], None] | None = None,
        *,
        thread: Callable[[Callable[[], None], str], Any] = os_threads.Thread,
        flag: Callable[[], Any] = os_threads.Flag,
        among: list[ServiceThread] | None = None,
        at_end: Callable[[], None] | None = None,
        in_background: bool = False,
        prepare: Callable[[], None] | None = None,
    ) -> None:
        self._run_once, self._interval_s = run_once, interval_s
        self._stopping = flag()
        self._wait = wait or self._stopping.wait
        self._name = f"cystore-{name}"
        self._at_end, self._in_background = at_end, in_background
        self._prepared = os_threads.Flag()
        self._works = prepare is None
        self._thread: Any = None
        if among is not None:
            among.append(self)
        try:
            self._thread = thread(self._run, self._name)  # runs before it is assigned
            if prepare is not None:
                prepare()
                self._works = True
        except BaseException:  # a handler's exception, perhaps: the thread may run
            self._stopping.set()
            raise
        finally:
            self._prepared.set()

    def _run(self) -> None:
        if not self._works:
            self._prepared.wait()
            if not self._works:
                return
        if self._in_background:
            os_threads.work_in_background()
        try:
            self._turns()
        finally:
            if self._at_end is not None:
                self._at_end()

    def _turns(self) -> None:
        trouble, pause_s, has_moved = Trouble(), ERROR_INTERVAL_S, False
        while not self._stopping.is_set():
            begun_s = monotonic_s()
            try:
                progress = self._run_once()
                pause_s = ERROR_INTERVAL_S
                trouble.over()
                if not progress.more:
                    self._wait(self._left_s(begun_s))
            except StoreClosedError:
                return
            except StoreError as error:
                # The first time it may be the end of a program that removed its store: the close tells that.
                if not isinstance(error, StoreMovedError):
                    trouble.tell(log, logging.ERROR, error, self._name)
                elif has_moved and trouble.is_due(error):
                    _moves.setdefault(str(error.path), Trouble()).tell(log, logging.ERROR, error, self._name)
                has_moved = isinstance(error, StoreMovedError)
                self._stopping.wait(ERROR_INTERVAL_S if callable(self._interval_s) else self._interval_s)
            except Exception:
                log.exception("%s failed: starting it again in %.0f s", self._name, pause_s)
                self._stopping.wait(pause_s)
                pause_s = min(2 * pause_s, PAUSE_MAX_S)

    def _left_s(self, begun_s: float) -> float:
        """The wait before the next turn, after one that began at `begun_s`."""
        if callable(self._interval_s):
            return self._interval_s()
        return max(self._interval_s - (monotonic_s() - begun_s), LEAST_WAIT * self._interval_s)

    def stop(self) -> None:
        """Asks the thread to end."""
        self._stopping.set()

    def join(self, timeout_s: float | None = None) -> None:
        """Waits until the thread has ended."""
        if self._thread is not None:
            self._thread.join(timeout_s)
