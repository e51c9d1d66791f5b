"""Commits: copies records from the pool's buffers to their segments, and publishes the position up to which they are
there, which is the wrote position. Readers, dispatch, flush and replication end there.

Source: CommitLog.CommitRealTimeService, MappedFileQueue.commit, MappedFile.commit0.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import NoReturn

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.progress import Progress
from cystore.engine.files.segments import MappedFileQueue
from cystore.engine.pool.buffers import BufferPool
from cystore.errors import StoreIOError, StoreTimeoutError, SyncFailedError
from cystore.layout import FLAGS
from cystore.system.os_errors import is_missing
from cystore.system.ranges import file_ranges

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
URGENT_BYTES = 16 * 1024 * 1024  # of log that are not committed; as Flusher's
SYNC_FAILED = FLAGS["FLAG_SYNC_FAILED"][0]


class Committer:
    """Commits the log of one store. One process does it at a time, under the commit lock."""

    def __init__(
        self, control: Control, segments: MappedFileQueue, buffers: BufferPool, config: StoreConfig
    ) -> None:
        self._control, self._segments, self._buffers, self._config = control, segments, buffers, config
        self._committed_s = 0.0

    def commit_to(self, position: int) -> None:
        """Returns when the log is committed up to `position`, which is appended. Raises StoreIOError, StoreFullError;
        StoreTimeoutError if another process has been committing for sync_flush_timeout_ms."""
        control, limit_ms = self._control, self._config.sync_flush_timeout_ms
        until_s = monotonic_s() + limit_ms / 1000
        while control.wrote < position:
            if self._turn(max(int((until_s - monotonic_s()) * 1000), 0)):
                return
            if monotonic_s() >= until_s and control.wrote < position:
                raise StoreTimeoutError(
                    f"not committed after {limit_ms} ms; thread {control.owner('commit')} is committing",
                    offset=position,
                )

    def _turn(self, within_ms: int) -> bool:
        """Commits all that is appended by now, and frees buffers. False if another thread is at it for so long."""
        with self._control.held_if_free("commit", within_ms=within_ms) as turn:
            # A signal handler inside its own thread's commit copies, too; the interrupted one continues afterwards.
            if turn.held or turn.mine:
                self._copy()
            if turn.held:
                self._buffers.give_back(self._control.wrote)
            return bool(turn.held or turn.mine)

    def _copy(self) -> None:
        """Under the commit lock: commits all that is appended by now."""
        control, log = self._control, self._segments
        last_record, end = control.appended_record, control.appended
        at = begin = control.wrote
        if end <= begin:
            return
        failpoint("commit.begun")
        while at < end:
            base = log.base_of(at)
            upto = min(end, base + log.file_bytes)
            buffer = self._buffers.of(base)
            if buffer is not None:
                self._write(buffer, at - base, upto - base)
            # A signal handler inside this copy may have committed the segment, and given its buffer back.
            elif control.wrote < upto and not self._buffers.is_unbuffered(base):
                self._vanished(self._buffers.folder)
            failpoint("commit.copied")
            at = upto
        if end > control.wrote:
            control.wrote = end
            failpoint("commit.published")
        if last_record > control.last_record:
            control.last_record = last_record
        control.wake_committed()

    def _write(self, buffer: MappedFile, begin: int, end: int) -> None:
        path = self._segments.path(buffer.base)
        try:
            file_ranges.write_view(path, begin, buffer.view(begin, end - begin))
        except StoreIOError as error:
            if is_missing(error):
                self._vanished(path)
            raise

    def _vanished(self, path: Path) -> NoReturn:
        """A segment or a buffer was removed under live processes: as after a failed sync, no put is accepted, because
        its record would be lost with the last mapping."""
        self._control.failed_errno = errno.ESTALE
        self._control.set_flag(SYNC_FAILED)
        raise SyncFailedError.of(errno.ESTALE, path)

    # ------------------------------------------------------------------------------------------ service

    @property
    def idle(self) -> bool:
        """Whether all that is appended is committed."""
        return self._control.wrote >= self._control.log_end

    @property
    def urgent(self) -> bool:
        """Whether so much is not committed that the next turn should begin at once."""
        return self._control.log_end - self._control.wrote >= URGENT_BYTES

    def run_once(self) -> Progress:
        """One turn: commits if enough pages are appended, if a segment is full, or if enough time has passed."""
        control, config = self._control, self._config
        wrote, end = control.wrote, control.log_end
        if end <= wrote:
            return Progress(0)
        pages = end // PAGE_BYTES - wrote // PAGE_BYTES
        full = self._segments.base_of(end) != self._segments.base_of(wrote)
        waited_ms = (monotonic_s() - self._committed_s) * 1000
        old = waited_ms >= config.commit_commit_log_thorough_interval_ms
        if not full and not old and pages < config.commit_commit_log_least_pages:
            return Progress(0)
        if not self._turn(0):
            return Progress(0)
        self._committed_s = monotonic_s()
        return Progress(control.wrote - wrote)
