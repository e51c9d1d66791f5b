"""Keeps what is appended and not dispatched small: cleaning, readers and read-only handles pay for it."""

from __future__ import annotations

import logging

from cystore._native.control import Control
from cystore.clock import monotonic_s
from cystore.derived.dispatch import Dispatcher
from cystore.engine.progress import Progress
from cystore.errors import StoreClosedError, StoreError

log = logging.getLogger("cystore")

MAX_BYTES = 16 * 1024 * 1024  # a quarter of the bound: writers go on while this is dispatched
MAX_AGE_S = 0.4
TURN_BYTES = 4 * 1024 * 1024


class BacklogKeeper:
    """Dispatches when more than MAX_BYTES wait, or some have waited for MAX_AGE_S. The process that runs a service calls `run_once`
    from its thread. Another dispatcher at work is not waited for."""

    def __init__(self, control: Control, dispatcher: Dispatcher) -> None:
        self._control, self._dispatcher = control, dispatcher
        self._mark, self._since_s = (
            control.wrote,
            monotonic_s(),
        )  # all below `_mark` was appended by `_since_s`
        self._reported = ""

    def run_once(self) -> Progress:
        """One look; `more` is True while too much waits. Trouble of dispatch is logged when it begins and is not the caller's."""
        control, now = self._control, monotonic_s()
        if control.dispatched >= self._mark:
            self._mark, self._since_s = control.wrote, now
        behind = control.wrote - control.dispatched
        late = behind > 0 and now - self._since_s >= MAX_AGE_S and control.dispatched < self._mark
        if control.read_only or not (behind >= MAX_BYTES or late):
            return Progress(0)
        try:
            done = self._dispatcher.run_once(TURN_BYTES).done
        except StoreClosedError:
            raise
        except StoreError as error:
            if str(error) != self._reported:
                log.exception("dispatch cannot go on; it is tried again")
                self._reported = str(error)
            self._since_s = now
            return Progress(0)
        if done:
            self._reported = ""
        return Progress(done, more=done > 0 and control.dispatched < self._mark)
