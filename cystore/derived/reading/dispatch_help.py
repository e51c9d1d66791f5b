"""Dispatch by a reader, or a delivery, that finds the derived files behind the log."""

from __future__ import annotations

import logging
from pathlib import Path

from cystore._native.memory.control import Control
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.errors import (
    CorruptRecordError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StorePermissionError,
    StoreResourceError,
    StoreTimeoutError,
)
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

HELP_WAIT_MS = 1_000  # for another dispatcher
# Of the files of a queue or of the index: they say nothing of what is dispatched.
STOPS_DISPATCH = (
    StoreFullError,
    StoreResourceError,
    StoreIOError,
    StorePermissionError,
    StoreFormatError,
    CorruptRecordError,
)


class DispatchHelp:
    """Dispatches before somebody needs what is in the log. `without` says how that goes on if dispatch fails."""

    def __init__(self, control: Control, dispatcher: Dispatcher, directory: Path, without: str) -> None:
        self._control, self._dispatcher = control, dispatcher
        self._directory, self._without = directory, without
        self._trouble = Trouble()

    def run(self, *, tells_of_others: bool = False) -> None:
        """Dispatches the records that are appended by now, or waits a while for another dispatcher.

        An error of dispatch (a full or failing disk, a refused access, a strange file, a damaged record) does not stop
        the caller: it is logged here, and raised to callers of dispatch. So is another dispatcher that takes too long,
        if the caller `tells_of_others`.
        """
        if self._dispatcher.turn_at_once():
            return
        control, target = self._control, self._control.wrote
        try:
            self._dispatcher.run_once(timeout_ms=HELP_WAIT_MS)
        except STOPS_DISPATCH as error:
            self._tell(error)
            return
        owner = control.owner("dispatch") if tells_of_others and control.dispatched < target else 0
        if owner and owner != os_threads.native_id():
            self._tell(StoreTimeoutError(f"thread {owner} has held the dispatch lock for {HELP_WAIT_MS} ms"))
        else:
            self._trouble.over()

    def _tell(self, error: StoreError) -> None:
        self._trouble.tell(
            log, logging.WARNING, error, f"{self._directory}: dispatch failed; {self._without}"
        )
