"""Dispatch by a reader that finds the derived files behind the log."""

from __future__ import annotations

import logging
from pathlib import Path

from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.errors import CorruptRecordError, StoreFullError, StoreIOError, StoreResourceError
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

HELP_WAIT_MS = 1_000  # for another dispatcher


class DispatchHelp:
    """Dispatches before a read."""

    def __init__(self, dispatcher: Dispatcher, directory: Path) -> None:
        self._dispatcher, self._directory = dispatcher, directory
        self._trouble = Trouble()

    def run(self) -> None:
        """Dispatches the records that are appended by now, or waits a while for another dispatcher.

        An error of dispatch (a full or failing disk, a damaged record) does not stop reads of dispatched messages: it
        is logged here, and raised to callers of dispatch.
        """
        if self._dispatcher.turn_at_once():
            return
        try:
            self._dispatcher.run_once(timeout_ms=HELP_WAIT_MS)
        except (StoreFullError, StoreResourceError, StoreIOError, CorruptRecordError) as error:
            what = f"{self._directory}: dispatch failed; reading only dispatched messages"
            self._trouble.tell(log, logging.WARNING, error, what)
        else:
            self._trouble.over()
