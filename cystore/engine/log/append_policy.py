"""The answers to the append kernel when it cannot continue: room, a mapping, a repair; or an error with the reason."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from cystore._native.memory.control import Control
from cystore._native.memory.locks import OVERWRITTEN
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import message_at
from cystore._native.system.failpoint import failpoint
from cystore.engine.log.allocate import Allocator, writes_end_when_it_fails
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.disk_space import DiskSpace
from cystore.engine.log.flush import Flusher
from cystore.errors import PageCacheBusyError, StoreFormatError, StoreNotWritableError
from cystore.layout import FLAGS, RECORD_MAGIC_BLANK
from cystore.system.folders import check_place
from cystore.system.threads.reentry import undisturbed

if TYPE_CHECKING:
    from cystore._native.append.appender import Appender

log = logging.getLogger("cystore")

NO_QUEUE_OFFSET = (4, 12)  # prepared and rollback


def repair_append(control: Control, commit_log: CommitLog) -> None:
    """Repairs an append, under the append lock, after its owner died: the log ends at the published position, and queue
    offsets follow it.

    If the wrote position did not move, nothing of the append counts: its bytes are zeroed, so that they never become
    records. If it moved, all of it counts: the queues' next offsets are read from the records. Safe to repeat.
    """
    intent = control.intent
    if intent is not None:
        begin, end = intent
        failpoint("repair.begun")
        segment = commit_log.files.get(commit_log.files.base_of(begin))
        if segment is None:
            raise StoreFormatError(
                "the segment of an unfinished append is missing",
                path=commit_log.files.directory,
                offset=begin,
            )
        wrote = control.wrote
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
        if int.from_bytes(segment.read(at - segment.base + 4, 4), "big") == RECORD_MAGIC_BLANK:
            return
        message = message_at(segment, at - segment.base, end - at)
        if message.sys_flag & 12 not in NO_QUEUE_OFFSET:
            slot = control.find_queue(message.topic, message.queue_id)
            if slot >= 0 and control.queue_next(slot) <= message.queue_offset:
                control.set_queue_next(slot, message.queue_offset + 1)
        control.last_record = at
        at += message.size_bytes


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
        relieve: Callable[[], None] | None = None,
    ) -> None:
        self._control, self._commit_log = control, commit_log
        self._allocator, self._flusher, self._space = allocator, flusher, space
        self.more_queues, self._relieve = allocator.more_queues, relieve
        self.sync, self.revive = flusher.flush_to, revive
        self._marks = cystore_records

    def make_room(self, needed: int) -> None:
        """Makes room in the log up to `needed`. A writer that is far ahead of the dispatchers helps them first
        (`relieve`)."""
        if self._relieve is not None:
            self._relieve()
        check_place(self._commit_log.files.root)
        self._allocator.make_room(needed)

    def segment_at(self, position: int) -> MappedFile:
        """The mapped segment that holds `position`, made if need be. Asked before a process's first append, too."""
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
        if segment is None:
            # Others appended meanwhile, and a cleaner removed the segment: the append goes to the present end of the
            # log.
            return self._segment_at(self._control.wrote)
        return segment

    def faulted_in(self, begin: int, end: int) -> int:
        """Faults the pages of the log in that appends of this process go to from `begin` on, up to `end` and some more. Gives the position
        up to which they are at hand; behind it the append asks again."""
        return self._allocator.fault_in(begin, end)

    def repair(self, busy_ms: int) -> None:
        """Takes the append lock, which repairs the last owner's work, and gives it back. Raises PageCacheBusyError
        after `busy_ms`."""
        undisturbed(partial(self._repair, busy_ms))

    def _repair(self, busy_ms: int) -> None:
        with self._control.held("append", timeout_ms=busy_ms, busy=PageCacheBusyError):
            pass

    def refused(self) -> None:
        """Some flag forbids writing; a disk that was full may have space again."""
        self._flusher.check()
        self._space.check()
        if self._control.flags & FLAGS["FLAG_NOT_WRITABLE"][0]:
            raise StoreNotWritableError(
                "writing to this store was switched off", path=self._commit_log.files.directory
            )

    def overwritten(self) -> None:
        """The control block was changed by a foreign program: this handle writes nothing any more."""
        raise StoreFormatError(OVERWRITTEN, path=self._control.file.path)
