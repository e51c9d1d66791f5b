"""The answers to the append kernel when it cannot continue: room, a mapping, a repair; or an error with the reason."""

from __future__ import annotations

import errno
import logging
import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cystore._native.append.group_commit import GroupCommit
from cystore._native.memory.control import Control
from cystore._native.memory.locks import OVERWRITTEN
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import message_at
from cystore._native.record.properties import queues_of
from cystore._native.system.failpoint import failpoint
from cystore.clock import boottime_ms, monotonic_s
from cystore.engine.log.allocate import Allocator, writes_end_when_it_fails
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.disk_space import DiskSpace
from cystore.engine.log.flush import Flusher
from cystore.engine.log.slow_puts import SLOW_PUT_MS, SlowPuts
from cystore.engine.pool.buffers import BufferPool
from cystore.errors import (
    NotAcknowledgingError,
    PageCacheBusyError,
    StoreClosedError,
    StoreError,
    StoreFormatError,
    StoreIsSlaveError,
    StoreNotWritableError,
)
from cystore.layout import BLANK_SIZE_MIN, FLAGS, MAGIC, RECORD_MAGIC_BLANK, takes_queue_offset
from cystore.system.folders import check_place
from cystore.system.threads.reentry import undisturbed

if TYPE_CHECKING:
    from cystore._native.append.appender import Appender

log = logging.getLogger("cystore")

FLUSH_SYNC, FLUSH_REPLICATED = 1, 2  # put.pxd
NOT_YET = -1  # group_commit.pxd
RELIEF_BYTES = 256 * 1024  # of log; then a writer looks again whether it should help the dispatchers


def repair_append(control: Control, commit_log: CommitLog, buffers: BufferPool | None = None) -> None:
    """Repairs an append, under the append lock, after its owner died: the log ends at the published position, and queue
    offsets follow it.

    If the wrote position did not move, nothing of the append counts: its bytes are zeroed, so that they never become
    records. If it moved, all of it counts: the queues' next offsets are read from the records. Safe to repeat.
    """
    intent = control.intent
    if intent is not None:
        begin, end = intent
        failpoint("repair.begun")
        base = commit_log.files.base_of(begin)
        segment = (buffers.of(base) if buffers is not None else None) or commit_log.files.get(base)
        if segment is None:
            raise StoreFormatError(
                "the segment of an unfinished append is missing",
                path=commit_log.files.directory,
                offset=begin,
            )
        wrote = control.log_end
        if wrote == begin:
            segment.zero(begin - segment.base, min(end, control.allocated) - segment.base)
        else:
            _follow(control, segment, begin, min(wrote, segment.end))
        failpoint("repair.log_mended")
        log.warning(
            "%s: repaired an unfinished append of another process at %d", commit_log.files.directory, begin
        )
    control.settle_claims()
    failpoint("repair.settled")
    control.clear_intent()
    failpoint("repair.cleared")


def _follow(control: Control, segment: MappedFile, begin: int, end: int) -> None:
    """Sets next offsets and the last record from the published records of [begin, end)."""
    at = begin
    while at < end:
        if MAGIC.read(segment.read(at - segment.base, BLANK_SIZE_MIN)) == RECORD_MAGIC_BLANK:
            return
        message = message_at(segment, at - segment.base, end - at)
        if takes_queue_offset(message.sys_flag):
            for topic, queue_id, queue_offset in queues_of(message):
                slot = control.find_queue(topic, queue_id)
                if slot >= 0 and control.queue_next(slot) <= queue_offset:
                    control.set_queue_next(slot, queue_offset + 1)
        if not control.pooled:  # else the next commit says it
            control.last_record = at
        at += message.size_bytes


def repair_dead_append(control: Control) -> None:
    """Repairs the append that a killed process left, if there is one. A live process ends its own append."""
    if control.intent is not None and not control.read_only:
        undisturbed(partial(_repair_if_free, control))


def _repair_if_free(control: Control) -> None:
    with control.held_if_free("append"):
        pass  # entering the lock repairs


def refuse_by_flags(flags: int, path: Path, master: Callable[[], str]) -> None:
    """Raises StoreIsSlaveError or StoreNotWritableError if a flag of the control block forbids puts."""
    if flags & FLAGS["FLAG_SLAVE"][0]:
        raise StoreIsSlaveError(
            f"this store is a slave of {master() or 'another store'}: put there, or make this one the master "
            "(`cystore ha promote` in a group, else broker_role)",
            path=path,
        )
    if flags & FLAGS["FLAG_NOT_WRITABLE"][0]:
        raise StoreNotWritableError("writing to this store was switched off", path=path)


class AppendPolicy:
    """The parts of one attachment that the Appender calls."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        allocator: Allocator,
        flusher: Flusher,
        space: DiskSpace,
        revive: Callable[[], Appender],
        *,
        cystore_records: bool,
        relieve: Callable[[int], None] | None = None,
        master: Callable[[], str] = str,
        replicated: Callable[[int, int | None], None] | None = None,
        announce: Callable[[], None] | None = None,
        buffers: BufferPool | None = None,
        begin_timer: Callable[[], None] = lambda: None,
    ) -> None:
        self._control, self._commit_log = control, commit_log
        self._allocator, self._flusher, self._space = allocator, flusher, space
        self.more_queues, self._relieve = allocator.more_queues, relieve
        self.begin_timer = begin_timer
        # What a put with a time calls now and then. A weak one: the store's parts must not keep each other.
        self.delivery: Callable[[], Callable[[], None] | None] = lambda: None
        self.revive = revive
        self._marks, self._master = cystore_records, master
        self._replicated, self._announce, self._buffers = replicated, announce, buffers
        self.slow_put = SlowPuts(control, commit_log.files.directory).tell

    def reach(self, end: int, flush: int, disk_ms: int = 0, slaves_ms: int = NOT_YET) -> None:
        """Returns when the log is durable up to `end` (FLUSH_SYNC of put.pxd), when a slave has it (FLUSH_REPLICATED),
        or both. An elected master belongs to its in-sync set, and each member of the set must have the bytes on its
        disk. The kernel (GroupCommit) has waited for `disk_ms` for the one, and for `slaves_ms` for the other."""
        control, since_s = self._control, monotonic_s()
        if control.wrote < end:
            self._flusher.commit()
        if flush & FLUSH_SYNC or (flush & FLUSH_REPLICATED and control.epoch):
            # The slaves receive the bytes while this host's disk takes them: one announcement for all puts of a sync.
            announce = self._announce if flush & FLUSH_REPLICATED else None
            self._flusher.flush_to(end, leading=announce, gathers=True, waited_ms=disk_ms)
        if flush & FLUSH_REPLICATED and self._replicated is not None:
            self._replicated(end, None if slaves_ms == NOT_YET else slaves_ms)
        took_ms = disk_ms + max(slaves_ms, 0) + int(1000 * (monotonic_s() - since_s))
        if took_ms > SLOW_PUT_MS:
            self.slow_put(took_ms, "was made durable, or replicated,")

    @property
    def commits(self) -> GroupCommit | None:
        """The kernel that leads syncs."""
        return self._flusher.commits

    def look_at_delivery(self) -> None:
        """Warns if messages are due and nobody delivers them."""
        tell = self.delivery()
        if tell is not None:
            tell()

    def check_sync(self) -> None:
        """Raises FlushFailedError when a sync failed since the store was opened."""
        self._flusher.check()

    def make_durable(self, end: int) -> None:
        """`reach` of a thread that appends alone: no other put comes while it waits."""
        self._flusher.flush_to(end)

    def make_room(self, needed: int) -> None:
        """Makes room in the log up to `needed`."""
        check_place(self._commit_log.files.root)
        self._allocator.make_room(needed)

    def segment_at(self, position: int) -> MappedFile:
        """The mapped segment that holds `position`, made if need be. The kernel also asks before a process's first
        append."""
        with writes_end_when_it_fails(self._control, self._commit_log.files.directory):
            return self._segment_at(position)

    def _segment_at(self, position: int) -> MappedFile:
        check_place(self._commit_log.files.root)
        if self._marks:
            self._commit_log.mark_cystore_records()
            self._marks = False
        base = self._commit_log.files.base_of(position)
        segment = self._commit_log.files.get(base)
        if segment is None:
            self._allocator.make_room(position + 1)
            segment = self._commit_log.files.get(base)
        if segment is None or not self._commit_log.files.is_there(segment):
            self._flusher.check_files(base)
        if segment is not None and self._buffers is not None:
            segment = self._buffers.writing(base, segment)
        if segment is None:
            # Other processes appended meanwhile, and a cleaner removed the segment: append at the present end of the
            # log.
            return self._segment_at(self._control.log_end)
        return segment

    def faulted_in(self, begin: int, end: int) -> int:
        """Faults the pages of the log in that appends of this process go to from `begin` on, up to `end` and some more.
        Returns the position up to which they are in memory; behind it the append asks again. A writer that is far ahead
        of the dispatchers helps them first (`relieve`), and comes back after a short piece."""
        if self._relieve is None:
            return self._allocator.fault_in(begin, end)
        self._relieve(end - begin)
        return min(self._allocator.fault_in(begin, end), max(end, begin + RELIEF_BYTES))

    def repair(self, busy_ms: int) -> None:
        """Takes the append lock, which repairs the last owner's work, and gives it back. Raises PageCacheBusyError
        after `busy_ms`."""
        undisturbed(partial(self._repair, busy_ms))

    def _repair(self, busy_ms: int) -> None:
        with self._control.held("append", timeout_ms=busy_ms, busy=PageCacheBusyError):
            pass

    def refused(self, *, copying: bool = False) -> None:
        """Raises the error for the flag that forbids writing; returns if a full disk has space again. `copying`: a
        slave appends the bytes that its master sent."""
        self._flusher.check()
        self._space.check()
        flags = self._control.flags & ~(FLAGS["FLAG_SLAVE"][0] if copying else 0)
        refuse_by_flags(flags, self._commit_log.files.directory.parent, self._master)

    def not_acknowledging(self) -> None:
        """A replicated put was refused: by a flag, or because an elected master has no lease. Raises StoreIsSlaveError,
        NotAcknowledgingError, and the errors of `refused`; returns when the put may be tried again."""
        self.refused()
        control = self._control
        if control.epoch and control.in_sync < control.in_sync_needed:
            reason = (
                f"{control.in_sync} of {control.in_sync_needed} members are in sync (min_in_sync_replicas)"
            )
        elif not control.epoch or boottime_ms() < control.lease_until_ms:
            return
        else:
            reason = f"the lease of epoch {control.epoch} is over by this host's clock"
        raise NotAcknowledgingError(
            f"{reason}: nothing was appended; try again, or put to the master that `cystore ha status` names",
            path=self._commit_log.files.directory.parent,
        )

    def no_lock(self, status: int, owner: int, busy_ms: int) -> None:
        """Raises the error for an append lock that was not obtained: `status` is the system's error, `owner` the thread
        that holds the lock."""
        if status == errno.ETIMEDOUT:
            raise PageCacheBusyError(
                f"thread {owner} has held the append lock for {busy_ms} ms; nothing was appended"
            )
        if status == errno.EDEADLK:
            raise PageCacheBusyError(
                "an interrupted call of this thread holds the append lock; nothing was appended"
            )
        raise StoreError(f"the append lock is unusable: {os.strerror(status)}", path=self._control.file.path)

    def closed(self) -> NoReturn:
        """The store was closed while an append was under way."""
        raise StoreClosedError("the store was closed meanwhile", path=self._commit_log.files.root)

    def not_for_puts(self, segment: MappedFile, bytes_max: int) -> NoReturn:
        """The segment at the end of the log cannot be written to."""
        if segment.writable:
            raise StoreFormatError(
                f"a segment of {segment.length} bytes is not written to, at most {bytes_max}",
                path=segment.path,
                offset=segment.base,
            )
        raise StoreError("the segment is mapped for reading only", path=segment.path)

    def unreadable(self) -> None:
        """The kernel refused to write a record that no reader would accept."""
        raise StoreError("the record would not be readable; nothing was written")

    def overwritten(self) -> None:
        """The control block was changed by a foreign program: this handle writes nothing any more."""
        raise StoreFormatError(OVERWRITTEN, path=self._control.file.path)
