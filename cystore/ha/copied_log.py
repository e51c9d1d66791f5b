"""The log of a slave: takes the bytes that the master ships, and appends the complete records at the same offsets.

Source: DefaultMessageStore.appendToCommitLog. RocketMQ's slave appends incomplete records too. This log's end moves by
complete records, so every attached process may read up to it, and a kill at any point leaves a log that can continue.
"""

from __future__ import annotations

import os

from cystore._native.append import copied
from cystore._native.append.append import end_segment
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.replication.inflow import Inflow
from cystore._native.system.descriptor import Descriptor
from cystore._native.system.failpoint import failpoint
from cystore.engine.log.allocate import PAGE_BYTES
from cystore.engine.log.append_policy import AppendPolicy
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import CorruptRecordError, MessageIllegalError, ReplicationError
from cystore.ha.home import keep_home
from cystore.layout import CONSTANTS
from cystore.system import files

BLANK_SIZE_MIN = CONSTANTS["BLANK_SIZE_MIN"][0]
ROOM_BYTES = 2 << 20
RECORD_MORE_BYTES = 64 << 10  # the most that a record has besides its body


class CopiedLog:
    """Used by one thread, in the process that follows the master for the whole store."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        policy: AppendPolicy,
        manifest: Manifest,
        max_body_bytes: int,
    ) -> None:
        self._control, self._commit_log, self._policy = control, commit_log, policy
        self._manifest, self._max_bytes = manifest, max_body_bytes + RECORD_MORE_BYTES
        self._records = copied.CopiedRecords(control)
        self.flow = Inflow(
            control, self._records, commit_log.file_bytes, self._max_bytes, bytearray(ROOM_BYTES)
        )
        self.flow.commits = policy.commits
        self._file: Descriptor | None = None  # of the segment that begins at `_file_base`
        self._file_base = -1

    def of_home(self, home: str) -> None:
        """Notes the id of the log, as its master named it."""
        keep_home(self._manifest, home)

    @property
    def received(self) -> int:
        """The log position after the received bytes."""
        return self._control.wrote - self.flow.skip + self.flow.end - self.flow.begin

    @property
    def whole(self) -> int:
        """The end of the log; while a file's blank is still being received, the position up to which it was received.
        The log's own end is after the blank already, ahead of the master's bytes."""
        return self._control.wrote - self.flow.skip

    def restart(self) -> None:
        """Forgets the bytes that were not appended: the next bytes belong to the log's end."""
        self.flow.begin = self.flow.end = self.flow.skip = 0
        self._forget_file()

    @property
    def is_empty(self) -> bool:
        """Whether the log is empty, and may begin at any position."""
        return self._control.wrote == 0

    def begin_at(self, position: int) -> None:
        """Makes an empty log begin at `position`, the begin of a file. Raises ReplicationError.

        Holds the locks of every position that moves. The wrote position moves last: a kill before that leaves an empty
        log.
        """
        control, segments = self._control, self._commit_log.files
        if position == control.wrote:
            return
        if not self.is_empty or position % segments.file_bytes:
            raise ReplicationError(
                f"a log of files of {segments.file_bytes} bytes that ends at {control.wrote} cannot begin at "
                f"{position}",
                path=segments.directory,
            )
        with (
            control.held("clean"),
            control.held("housekeeping"),
            control.held("dispatch"),
            control.held("append"),
            control.held("flush"),
        ):
            if not self.is_empty:
                raise ReplicationError("another process appended to the empty log", path=segments.directory)
            for base in segments.refresh():
                if base != position:
                    segments.remove(base)
            segments.create(position, PAGE_BYTES)
            segments.allocate(position, 0, PAGE_BYTES)
            self._manifest.set_log_begin(position)
            failpoint("copied.log_begun")
            control.min_physical_offset = control.ready_base = control.followed = position
            control.allocated = position + PAGE_BYTES
            control.dispatched = control.index_flushed = control.flushed = position
            failpoint("copied.begin_published")
            control.wrote = position

    def check_disk(self) -> None:
        """Raises FlushFailedError after a failed sync: then nothing can be appended."""
        self._policy.check_sync()

    def make_durable(self, position: int) -> None:
        """Returns when the log is on the disk up to `position`. Raises the errors of a flush."""
        self._policy.make_durable(position)

    def room(self) -> memoryview:
        """The memory for the next bytes; the caller tells their number to `took`."""
        flow = self.flow
        if flow.end == len(flow.data):
            left = flow.end - flow.begin
            if flow.begin == 0:  # the record is longer than the memory
                flow.data = flow.data + bytearray(len(flow.data))
            else:
                flow.data[:left] = flow.data[flow.begin : flow.end]
                flow.begin, flow.end = 0, left
                return self.room()
        return memoryview(flow.data)[flow.end :]

    def took(self, count: int) -> None:
        """Takes `count` bytes that the caller put into `room`. Appends the complete records. Raises CorruptRecordError,
        ReplicationError and the errors of put."""
        flow = self.flow
        flow.end += count
        try:
            while self._step():
                pass
        finally:
            self._records.forget()
        if flow.begin == flow.end:
            flow.begin = flow.end = 0

    def _step(self) -> bool:
        """Appends one batch of records, or one blank; False if more bytes are needed first."""
        flow = self.flow
        if flow.skip:
            skipped = min(flow.skip, flow.end - flow.begin)
            flow.begin, flow.skip = flow.begin + skipped, flow.skip - skipped
        if flow.begin == flow.end:
            return False
        segments, position = self._commit_log.files, self._control.wrote
        file_end = segments.base_of(position) + segments.file_bytes
        records = self._records
        if records.check(flow.data, flow.begin, flow.end, position, file_end):
            self._append(file_end)
            flow.begin += records.length
            return True
        if records.blank:
            self._end_file(position, file_end)
            flow.skip = file_end - position
            return True
        if records.short > self._max_bytes:
            raise MessageIllegalError(
                f"the master's record at {position} has {records.short} bytes: raise max_message_size_bytes of "
                "the slave"
            )
        return False

    def _append(self, file_end: int) -> None:
        records, policy = self._records, self._policy
        missing = records.needs & ~self.flow.prepared
        if missing & copied.MARKER:
            self._commit_log.mark_cystore_records()
        if missing & copied.TIMER:
            policy.begin_timer()
        self.flow.prepared |= missing
        begin, end = records.position, records.position + records.length + BLANK_SIZE_MIN
        while True:
            if self._control.allocated < end:
                policy.make_room(end)
            segment, fd = policy.segment_at(begin), -1
            opened, ready = self._opened(segment).fd, begin
            if records.length >= copied.WRITTEN_BYTES:
                fd = opened
            else:
                ready = policy.faulted_in(begin, end)
            self.flow.append_to(segment, ready, opened)  # the next ones
            with files.translated(segment.path), self._control.held("append"):
                status = records.append(segment, fd)
            if status == copied.DONE:
                return records.wake()
            if status == copied.NEED_SPACE:
                policy.make_room(end)
            elif status == copied.NEED_QUEUES:
                policy.more_queues()
            elif status == copied.UNREADABLE:
                raise CorruptRecordError(
                    "a queue offset is impossible: too many messages before it are missing", offset=begin
                )
            elif status == copied.REFUSED:
                policy.refused(copying=True)
            else:
                policy.overwritten()

    def _opened(self, segment: MappedFile) -> Descriptor:
        if self._file is None or self._file_base != segment.base:
            self._forget_file()
            path = self._commit_log.files.path(segment.base)
            self._file, self._file_base = files.open_file(path, os.O_RDWR), segment.base
            if not self._commit_log.files.is_there(segment):
                raise CorruptRecordError("the file was replaced", path=path)
        return self._file

    def _forget_file(self) -> None:
        self.flow.append_to(None, 0, -1)  # before the number of the descriptor gets another meaning
        file, self._file = self._file, None
        if file is not None:
            file.close()

    def _end_file(self, position: int, file_end: int) -> None:
        """Ends the file in a blank, as the master's file ends here."""
        self._policy.make_room(file_end + BLANK_SIZE_MIN)
        segment = self._policy.segment_at(position)
        with self._control.held("append"):
            ended = self._control.wrote == position and end_segment(self._control, segment)
        if not ended:
            raise ReplicationError("the file cannot be ended", path=segment.path, offset=position)
