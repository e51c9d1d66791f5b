"""A second thread for a long dispatch: it reads the records that the dispatcher comes to next.

It compares their checksums and finds their queues and the hashes of their keys, so the dispatcher only enters them. A
dispatcher that is faster reads records itself, too, and this thread goes on behind these.
"""

from __future__ import annotations

import logging
import os

from cystore._native.derived.dispatch import DispatchKernel
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import StoreError, StoreResourceError
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

LEAST_BYTES = 64 * 1024 * 1024  # of log, some 50 ms: for less, a thread is not worth its start
BEGIN_S = 0.25  # if the thread has not begun by then, the dispatcher does all itself


class ReadAhead:
    """Reads the log from `begin` to `end` while its block dispatches that part."""

    def __init__(self, kernel: DispatchKernel, commit_log: CommitLog, begin: int, end: int) -> None:
        self._kernel, self._commit_log, self._begin, self._end = kernel, commit_log, begin, end
        self._thread: os_threads.Thread | None = None
        self._pid = os.getpid()
        self._turn = iter((True,))  # who takes it calls `end_ahead`

    def __enter__(self) -> None:
        is_long = self._end - self._begin >= LEAST_BYTES and self._commit_log.is_mapped
        if not is_long or not self._kernel.begin_ahead(self._begin):
            return
        try:  # a greenlet would stop its whole thread, and wait there for the dispatcher
            self._thread = os_threads.Thread(self._run, "cystore-read-ahead", BEGIN_S)
        except StoreResourceError as error:  # too many threads: the dispatcher does all itself
            self._kernel.end_ahead()
            log.debug("no thread reads ahead of dispatch: %s", error)
        except BaseException:  # a signal handler's: the thread may be at work, or may never begin
            self._kernel.stop_ahead()
            if next(self._turn, False):
                self._kernel.end_ahead()
            raise

    def __exit__(self, *_: object) -> None:
        if self._thread is not None:
            self._kernel.stop_ahead()
            if self._pid == os.getpid():  # a child that a signal handler forked has no such thread
                self._thread.join()

    def _run(self) -> None:
        """Ends at damage, at a missing segment or with the store; the dispatcher itself then says what is wrong."""
        if not next(self._turn, False):
            return
        position = self._begin
        try:
            while position < self._end:
                segment = self._commit_log.segment_for(position)
                reached = self._kernel.read_ahead(segment, position, self._end)
                if reached == position:
                    return
                position = reached
        except StoreError as error:
            log.debug("reading ahead of dispatch ended at %d: %s", position, error)
        finally:
            self._kernel.end_ahead()
