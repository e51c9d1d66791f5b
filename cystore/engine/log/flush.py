"""Flush of the log: one fsync makes many appends durable, whichever processes they came from.

Source: CommitLog.GroupCommitService and FlushRealTimeService, StoreCheckpoint. A failed sync is never repeated and
believed: it makes the store read-only for every process until it is reopened.
"""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple, NoReturn

from cystore._native.append.group_commit import GroupCommit
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.progress import Progress
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import (
    FlushFailedError,
    StoreTimeoutError,
    SyncFailedError,
)
from cystore.layout import (
    BLANK_SIZE_MIN,
    CONSTANTS,
    FLAGS,
    MAGIC,
    RECORD_MAGIC_BLANK,
    TOTAL_SIZE,
    field_of,
    record_store_timestamp,
)
from cystore.system import files
from cystore.system.folders import AT_FDCWD, at, check_place

log = logging.getLogger("cystore")

SYNC_FAILED = FLAGS["FLAG_SYNC_FAILED"][0]
WAIT_SLICE_MS = 100
CHECKPOINT_INTERVAL_MS = 1000
URGENT_BYTES = 16 * 1024 * 1024  # of log that are not durable: the disk needs some 0.1 s for this
PAGE_BYTES = os.sysconf("SC_PAGESIZE")
PAGE_LOOKS, PAGE_LOOK_MS = 5, 2  # a flush that no caller waits for looks this often for a full last page
RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
BORN_HOST_V6 = CONSTANTS["SYS_FLAG_BORN_HOST_V6"][0]
_SIZE, _CHECKSUM = field_of("record", "total_size"), field_of("record", "checksum_field")


def refuse_writes(control: Control, error: SyncFailedError) -> None:
    """A sync failed: from now on every put in every process is refused, until the store is opened anew."""
    control.failed_errno = error.errno or errno.EIO
    control.set_flag(SYNC_FAILED)


class LastRecord(NamedTuple):
    """End (physical offset), checksum field and store timestamp of the last record below the flushed position."""

    end: int
    checksum: int
    store_timestamp_ms: int


class _Watermark(NamedTuple):
    """A flush's facts for the checkpoint: the end of the last durable record, and that record."""

    end: int
    record: int
    checksum: int
    store_timestamp_ms: int


class Flusher:
    """Flushes the log and stores the durable watermark. One leader at a time, in whatever process."""

    def __init__(
        self,
        root: Path,
        control: Control,
        commit_log: CommitLog,
        checkpoint: Checkpoint,
        config: StoreConfig,
    ) -> None:
        self._root = root
        self._control, self._commit_log = control, commit_log
        self._checkpoint, self._config = checkpoint, config
        self._watermarks: list[
            _Watermark
        ] = []  # of one turn; more than one when a signal handler leads inside a flush
        self.commits: GroupCommit | None = None  # of puts that wait; it leads most syncs
        if not control.read_only and self._control.flushed_ms == 0:
            self._control.flushed_ms = _now_ms()

    # ------------------------------------------------------------------------------------------ commit log

    def flush_to(
        self,
        position: int,
        timeout_ms: int | None = None,
        *,
        appended: tuple[int, int] | None = None,
        leading: Callable[[], None] | None = None,
        gathers: bool = False,
        waited_ms: int = 0,
    ) -> None:
        """Returns when everything below `position` is durable. Raises FlushFailedError, or StoreTimeoutError after
        sync_flush_timeout_ms: the bytes are in the log then, but may not be durable yet. A leader flushes up to
        `appended` (see `_appended`), by default all that is appended by then. Before that it waits for other
        puts, if it `gathers`, and calls `leading`. `waited_ms` counts, too."""
        control = self._control
        limit_ms = self._config.sync_flush_timeout_ms if timeout_ms is None else timeout_ms
        until = monotonic_s() + (limit_ms - waited_ms) / 1000
        if control.wrote < position:
            self.commit()
        while control.flushed < position:
            self.check()
            turn, leads = control.flush_turn(position, WAIT_SLICE_MS), False
            try:
                with turn:
                    # A signal handler inside its own thread's flush leads, too; the interrupted flush continues
                    # afterwards.
                    leads = turn.held or turn.mine  # both end with the block
                    if turn.held:
                        self._watermarks.clear()
                    if leads and not control.flags & SYNC_FAILED:  # the leader before may have failed
                        if gathers and self.commits is not None:
                            self.commits.gather()
                        if leading is not None:
                            leading()
                        self._lead(appended or self._appended())
            finally:
                if leads:
                    control.wake_flush()
            if leads:
                continue
            if control.flushed < position and monotonic_s() > until:
                raise StoreTimeoutError(
                    f"not flushed after {limit_ms} ms; thread {control.owner('flush')} is flushing",
                    offset=position,
                )
        self.check_covered(position)
        check_place(self._root)  # otherwise the path may name another directory than the one that is synced

    def commit(self) -> None:
        """Brings the records of the pool's buffers, if there is a pool, to their segments. Raises FlushFailedError."""
        try:
            self._control.commit()
        except SyncFailedError as error:
            self.poison(error)

    def check_covered(self, position: int) -> None:
        """After a failed sync nothing is acknowledged any more."""
        if self._control.flushed < position:
            self.check()

    def check(self) -> None:
        """Raises FlushFailedError when a sync failed since the store was opened."""
        if self._control.flags & SYNC_FAILED:
            raise self._failure()

    def _failure(self) -> FlushFailedError:
        code = self._control.failed_errno or errno.EIO
        return FlushFailedError(
            f"the disk failed with {os.strerror(code)}: the store is read-only until every process has closed it",
            path=self._commit_log.files.directory,
        )

    def repair(self) -> None:
        """Repairs, under the flush lock, after a leader died or failed. The kernel reports an error of the disk once
        per descriptor, and that report may have died with the leader. So the range that it was about to sync is made
        dirty again, and the next sync writes it."""
        begin, (end, _) = self._control.flushed, self._appended()
        file_bytes = self._commit_log.files.file_bytes
        try:
            for segment in self._segments(begin, end):
                segment.redirty(max(begin - segment.base, 0), min(end - segment.base, file_bytes))
        except SyncFailedError as error:
            self.poison(error)

    def _segments(self, begin: int, end: int) -> Iterator[MappedFile]:
        """The uncleaned segments of [begin, end). Raises SyncFailedError for a missing one."""
        log = self._commit_log.files
        for base in range(log.base_of(begin), end, log.file_bytes):
            segment = log.get(base)
            if self._is_cleaned(base):
                continue
            if segment is None:
                self._vanished(log.path(base))
            yield segment

    def _lead(self, appended: tuple[int, int]) -> None:
        """Under the flush lock: syncs up to `appended` (end, last record), then publishes the flushed position. A
        signal handler may lead once more inside of this, and get further: positions only move forward."""
        control, begun_ms = self._control, _now_ms()
        begin, (target, last_record) = control.flushed, appended
        if target <= begin:
            return
        failpoint("flush.leading")
        file_bytes = self._commit_log.files.file_bytes
        try:
            for segment in self._segments(begin, target):
                # Syncs only appended bytes. Pages ahead are dirty because they were faulted in; a synced page is
                # write-protected, so that the next append there would fault again.
                begun_s = monotonic_s()
                with files.translated(segment.path):
                    segment.sync_range(max(begin - segment.base, 0), min(target - segment.base, file_bytes))
                self._check_linked(segment)
                if self.commits is not None:
                    self.commits.sync_us = 1e6 * (monotonic_s() - begun_s)
                    self._name(segment)
        except SyncFailedError as error:
            self.poison(error)
        failpoint("flush.synced")
        newest = self._last(last_record)
        if newest is not None:
            self._store_watermark(
                _Watermark(newest.end, last_record, newest.checksum, newest.store_timestamp_ms)
            )
        failpoint("flush.watermark_stored")
        control.advance_flushed(target)
        failpoint("flush.published")
        self._control.flushed_ms = begun_ms  # later appends are not durable

    def _name(self, segment: MappedFile) -> None:
        """Tells the kernel where the name of a segment is: then it leads the next syncs itself."""
        assert self.commits is not None
        if self.commits.base != segment.base:
            folder, name = at(segment.path)
            self.commits.name_segment(segment.base, folder, AT_FDCWD if folder is None else folder.fd, name)

    def _store_watermark(self, watermark: _Watermark) -> None:
        """Writes the highest watermark last, even if a signal handler brings a higher one in between."""
        self._watermarks.append(watermark)
        while True:
            highest = max(self._watermarks)
            # The timestamp must be that of this very record: if it were later, recovery would take the watermark for
            # stale.
            self._checkpoint.physic_timestamp = highest.store_timestamp_ms
            self._checkpoint.set_watermark(highest.end, highest.record, highest.checksum)
            if max(self._watermarks) == highest:
                break

    def _appended(self) -> tuple[int, int]:
        """(end, last record): a written position, and the last record below it, read without the append lock.

        `last_record` follows `wrote`: an append may be between the two stores, or was killed there. Then the walk
        continues from `last_record`; records there are published, so they are complete. Damage ends the walk: the bytes
        up to `wrote` become durable nevertheless, and the watermark names the last record before the damage.
        """
        control, segments = self._control, self._commit_log.files
        wrote, last_record = control.wrote, control.last_record
        newest = self._last(last_record)
        if newest is None and last_record >= control.min_physical_offset:
            return wrote, last_record  # damaged
        at = control.min_physical_offset if newest is None else newest.end
        while at < wrote:
            segment = segments.get(segments.base_of(at))
            if segment is None:
                return wrote, last_record  # cleaned meanwhile
            head = segment.read(at - segment.base, BLANK_SIZE_MIN)
            if MAGIC.read(head) == RECORD_MAGIC_BLANK:
                at = segment.end
                continue
            size = TOTAL_SIZE.read(head)
            if not RECORD_SIZE_MIN <= size <= wrote - at:
                log.warning("%s: the record at %d is damaged; syncing its bytes unchanged", segment.path, at)
                return wrote, last_record
            last_record, at = at, at + size
        return at, last_record

    def _last(self, position: int) -> LastRecord | None:
        """The checkpoint's facts of the last record; None if there is none, its segment was cleaned, or it is
        damaged."""
        segment = (
            self._commit_log.files.get(self._commit_log.files.base_of(position)) if position >= 0 else None
        )
        if segment is None:
            return None
        head = segment.read(position - segment.base, RECORD_SIZE_MIN)
        size, checksum = (codec.unpack_from(head, at)[0] for at, codec in (_SIZE, _CHECKSUM))
        if not RECORD_SIZE_MIN <= size <= min(segment.end, self._control.wrote) - position:
            return None
        return LastRecord(position + size, checksum, record_store_timestamp(head))

    def restate_watermark(self) -> None:
        """Moves the watermark back to the log's end. For recovery alone, which has reported the loss of durable records
        behind that: otherwise each later open would report them again. Raises FlushFailedError."""
        last_record = self._control.last_record
        newest = self._last(last_record)
        if newest is None:
            self._checkpoint.set_watermark(0, 0, 0)
        else:
            self._checkpoint.set_watermark(newest.end, last_record, newest.checksum)
        self.sync_checkpoint()

    def sync_checkpoint(self) -> None:
        """Makes the watermark itself durable, with the other present fields of the checkpoint. Raises
        FlushFailedError."""
        flushed, self._control.checkpointed_ms = (
            self._control.flushed,
            _now_ms(),
        )  # so that other processes do not repeat it
        try:
            self._checkpoint.sync()
            self._control.checkpointed = flushed
        except SyncFailedError as error:
            self.poison(error)

    def _is_cleaned(self, base: int) -> bool:
        """Whether the cleaner removed a segment: then no byte of it has to become durable."""
        return base + self._commit_log.files.file_bytes <= self._control.min_physical_offset

    def _check_linked(self, segment: MappedFile) -> None:
        """RocketMQ's load removes files ahead of the log's end before it looks at the lock; a person may do so too.
        Records in such a file are lost with its last mapping, so they are never acknowledged as durable."""
        with files.translated(segment.path):
            there = self._commit_log.files.is_there(segment)
        if not there and not self._is_cleaned(segment.base):
            self._vanished(segment.path)

    def _vanished(self, path: object) -> NoReturn:
        check_place(self._root)
        log.error("%s was removed while processes were attached", path)
        raise SyncFailedError.of(errno.ESTALE, path)

    def check_files(self, position: int | None = None) -> None:
        """Checks that the current segment (or that of `position`) still has its name. If not, no put is accepted any
        more."""
        log = self._commit_log.files
        base = log.base_of(self._control.wrote if position is None else position)
        try:
            segment = log.get(base)
            if segment is not None:
                self._check_linked(segment)
            elif self._control.allocated > base and not self._is_cleaned(base):
                self._vanished(log.path(base))
        except SyncFailedError as error:
            self.poison(error)

    def poison(self, error: SyncFailedError) -> NoReturn:
        """A sync failed: the store is read-only from now on. Raises FlushFailedError. No other error may do this."""
        refuse_writes(self._control, error)
        raise self._failure() from error

    # ------------------------------------------------------------------------------------------ service

    @property
    def idle(self) -> bool:
        """Whether nothing is left to be made durable."""
        return self._control.checkpointed >= self._control.flushed >= self._control.wrote

    @property
    def urgent(self) -> bool:
        """Whether so many bytes are not durable that the next turn should begin at once. The disk takes long for a
        whole interval of fast appends, and the oldest append waits for the interval and the disk."""
        control = self._control
        return not control.flags & SYNC_FAILED and control.wrote - control.flushed >= URGENT_BYTES

    def _flush_pages(self) -> None:
        """Flushes what is appended by now. While appends continue, it first waits until they have left the last page: a
        synced page is write-protected, and the next append to it would meet a page fault with the append lock held."""
        control, appended = self._control, self._appended()
        page_end = -(-appended[0] // PAGE_BYTES) * PAGE_BYTES
        for _ in range(PAGE_LOOKS):
            if control.wrote >= page_end:
                break
            control.wait_flush(control.flush_seq, PAGE_LOOK_MS)
        self.flush_to(appended[0], appended=appended)

    def run_once(self) -> Progress:
        """One turn: flushes the log if enough pages are dirty, or if enough time has passed; then the checkpoint, once
        a second. Skips work that another process did recently."""
        control, config = self._control, self._config
        if control.flags & SYNC_FAILED:
            return Progress(0)
        dirty = control.wrote - control.flushed
        if dirty:
            self.check_files()
        enough = config.flush_commit_log_least_pages * PAGE_BYTES
        old = _now_ms() - self._control.flushed_ms >= config.flush_commit_log_thorough_interval_ms
        # Readers of an elected master, or of its replica, wait for the disk.
        if dirty >= max(enough, 1) or (dirty and (old or control.confirming)):
            self._flush_pages()
        behind = self._control.checkpointed < control.flushed
        if behind and _now_ms() - self._control.checkpointed_ms >= CHECKPOINT_INTERVAL_MS:
            self.sync_checkpoint()
        return Progress(dirty)


def _now_ms() -> int:
    """A clock that all processes of this boot share."""
    return int(monotonic_s() * 1000)
