"""Keeps the undispatched part of the log small, because cleaning, readers and read-only handles pay for it.

A service thread dispatches (`run_once`). A faster writer is slowed down when it asks for the next pages of the log:
each time it dispatches a little more than the pages that it got last time (`relieve`). So no put waits for long.
Appending never depends on dispatch: if dispatch stands still, the writer continues after a short wait.
"""

from __future__ import annotations

import logging

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.engine.files.progress import Progress
from cystore.errors import StoreClosedError, StoreError
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

MAX_BYTES = 16 * 1024 * 1024  # a quarter of the bound: writers continue while this is dispatched
MAX_AGE_S = 0.4
TURN_BYTES = 64 * 1024 * 1024  # more than a turn has time for
TURN_WAIT_MS = 10  # for a writer of this process that dispatches a piece
BOUND_BYTES = 64 * 1024 * 1024
HELP_BYTES = BOUND_BYTES // 2  # a writer helps from here on
HELP_TURN_BYTES = 512 * 1024  # dispatched by a put, some 1 ms: twice what it then appends
HELP_WAIT_MS = 2  # for another dispatcher


class BacklogKeeper:
    """Dispatches when more than MAX_BYTES are undispatched, or some bytes for longer than MAX_AGE_S. The process that
    runs a service calls `run_once` from its thread.

    That thread waits for a writer of its own process that dispatches a piece. Otherwise it would pause for an interval,
    and the writer would dispatch alone meanwhile. It does not wait for a dispatcher of another process."""

    def __init__(self, control: Control, dispatcher: Dispatcher) -> None:
        self._control, self._dispatcher = control, dispatcher
        self._mark, self._since_s = (
            control.wrote,
            monotonic_s(),
        )  # all below `_mark` was appended by `_since_s`
        self._has_relieved = False  # a writer found too much undispatched since the last `run_once`
        self._trouble = Trouble()

    def run_once(self) -> Progress:
        """One turn; `more` is True while too much is undispatched. An error of dispatch is logged and not raised."""
        control, now = self._control, monotonic_s()
        if control.dispatched >= self._mark:
            self._mark, self._since_s = control.wrote, now
        behind = control.wrote - control.dispatched
        late = behind > 0 and now - self._since_s >= MAX_AGE_S and control.dispatched < self._mark
        if control.read_only or not (behind >= MAX_BYTES or late):
            return Progress(0)
        wait_ms, self._has_relieved = TURN_WAIT_MS if self._has_relieved else 0, False
        done = self._dispatch(TURN_BYTES, wait_ms)
        if done is None:
            self._since_s = now
            return Progress(0)
        too_much = control.wrote - control.dispatched >= MAX_BYTES
        return Progress(done, more=done > 0 and (too_much or control.dispatched < self._mark))

    def relieve(self, wanted: int = 0) -> None:
        """A writer calls this before it takes the next pages, for at least `wanted` bytes. Dispatches a piece if much
        is undispatched."""
        if self._control.wrote - self._control.dispatched >= HELP_BYTES:
            self._has_relieved = True
            self._dispatch(max(HELP_TURN_BYTES, 2 * wanted), HELP_WAIT_MS)

    def _dispatch(self, turn_bytes: int, wait_ms: int) -> int | None:
        """Dispatches for one turn; returns the number of bytes. If dispatch fails, logs the error and returns None. A
        put, or the thread that makes room for puts, waits for this call."""
        try:
            done = self._dispatcher.run_once(turn_bytes, timeout_ms=wait_ms, one_turn=True).done
        except StoreClosedError:
            raise
        except StoreError as error:
            self._trouble.tell(log, logging.ERROR, error, "dispatch failed and will be tried again")
            return None
        if done:
            self._trouble.over()
        return done
