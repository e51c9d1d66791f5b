"""The commit log as a place to read from: segments by physical offset, single records, records in physical order."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from cystore._native.filters.program import FilterProgram
from cystore._native.filters.text_walk import next_containing
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.argument_checks import WHOLE_MAX, whole
from cystore._native.record.message import Message, message_at, messages_in
from cystore._native.record.window import LogWindow
from cystore.config import LOG_FOLDER, StoreConfig
from cystore.engine.files.cold_pages import ColdPages, memory_bytes
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.multi_path_queue import MultiPathMappedFileQueue
from cystore.engine.files.resident_pages import SCAN_BYTES, ResidentPages
from cystore.engine.files.segments import MappedFileQueue, Mode
from cystore.engine.log.log_windows import LogWindows, read_range
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.known_damage import KnownDamage
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import BLANK_SIZE_MIN, MAGIC, RECORD_MAGIC_BLANK
from cystore.system import files
from cystore.system.folders import check_place

log = logging.getLogger("cystore")

DIRECTORY = LOG_FOLDER
MARKER = "CYSTORE"
SCAN_BATCH = 256
CHECKED_BYTES = 1 << 20


class CommitLog:
    """Readable part: from the minimum offset to the wrote position, damaged ranges left out (RocketMQ's CommitLog,
    MappedFileQueue)."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        mode: Mode,
        control: Control,
        manifest: Manifest,
        mappings: Mappings | None = None,
    ) -> None:
        self.folders = LogFolders.of(root)
        queue: Callable[..., MappedFileQueue] = MappedFileQueue
        if self.folders is not None:
            queue = partial(MultiPathMappedFileQueue, self.folders, Policy(manifest, config).now)
        self.files = queue(
            root,
            root / DIRECTORY,
            config.mapped_file_size_commit_log_bytes,
            mode,
            mappings=mappings or Mappings.of(config),
            # A mapping reports a failed write of its bytes, so it stays until they are durable.
            needed=(lambda file: file.end > control.flushed) if mode is Mode.WRITE else None,
            is_sealed=lambda end: end <= control.flushed,
            odd_files="extend",
        )
        self.control, self.damage = control, KnownDamage(manifest)
        self.resident = ResidentPages(self.files, control)
        self._root, self._mode = root, mode
        # Reads the log's present minimum, if the control block is this process's own.
        self.look_again: Callable[[], None] | None = None
        self._forgotten_below = 0
        self._windows = LogWindows() if config.read_through == "pread" else None
        self._held_bytes = memory_bytes(config)

    @property
    def damaged_ranges(self) -> DamagedRanges:
        """The damaged ranges that are known, as they are now; immutable."""
        return self.damage.ranges

    @property
    def file_bytes(self) -> int:
        return self.files.file_bytes

    @property
    def is_mapped(self) -> bool:
        """Whether segments are read through mappings, not with `pread`."""
        return self._windows is None

    def window(self, *, with_expired: bool = False) -> LogWindow:
        """A window in which the kernels look up records; one call at a time uses it."""
        return LogWindow(
            self.segment_for,
            self.damaged_ranges.ranges(),
            None if with_expired else self.control,
            self.file_bytes if self.is_mapped else 0,
            self.files.drops,
        )

    def segment_for(self, physical_offset: int) -> MappedFile:
        """The mapped segment that contains a readable offset, or with read_through="pread" a part of it that begins
        with a record there. Raises OffsetError, StoreIOError."""
        self.forget_cleaned()
        self._check_readable(physical_offset)
        segment = self._part_at(physical_offset)
        if segment is None:
            if self.look_again is not None:
                self.look_again()
            self._check_readable(physical_offset)  # cleaned meanwhile?
            check_place(self._root)  # all files are missing in a directory that was deleted
            raise CorruptRecordError(
                "the commit log file is missing",
                path=self.files.path(self.files.base_of(physical_offset)),
                offset=physical_offset,
            )
        return segment

    def _part_at(self, offset: int) -> MappedFile | None:
        log, base = self.files, self.files.base_of(offset)
        if self._windows is None or log.is_imagined(base):
            return log.get(base)
        return self._windows.at(log.path(base), base, offset, base + log.file_bytes, self.control.wrote)

    def piece(self, begin: int, end: int) -> memoryview | None:
        """Bytes of one segment for a search, unchecked; None if the file is missing. Raises StoreIOError."""
        log, base = self.files, self.files.base_of(begin)
        if self._windows is None or log.is_imagined(base):
            segment = log.get(base)
            return None if segment is None else segment.view(begin - base, end - begin)
        data = read_range(log.path(base), base, begin, end - begin, least=end - begin)
        return None if data is None else memoryview(data)

    def check_readable(self, begin: int, end: int) -> None:
        """Reads with `pread` a part of one segment before the process writes to it through its mapping, if mappings may
        hit unreadable sectors. Raises StoreIOError."""
        if self._windows is not None:
            for at in range(begin, end, CHECKED_BYTES):
                self.piece(at, min(at + CHECKED_BYTES, end))

    def forget_cleaned(self) -> None:
        """Ends this process's mappings of cleaned segments: their space is free when no process maps them."""
        minimum = self.control.min_physical_offset
        if minimum != self._forgotten_below:
            self.files.forget_below(minimum)
            if self._windows is not None:
                self._windows.forget()
            self._forgotten_below = minimum

    def _check_readable(self, physical_offset: int) -> None:
        minimum, wrote = self.control.min_physical_offset, self.control.wrote
        if physical_offset < minimum:
            raise OffsetError(
                f"the offset is below the log's minimum {minimum}",
                path=self.files.directory,
                offset=physical_offset,
            )
        if physical_offset >= wrote:
            raise OffsetError(
                f"the offset is past the log's end {wrote}", path=self.files.directory, offset=physical_offset
            )

    def read(self, physical_offset: int) -> Message:
        """The record that begins at an offset. A blank, a damaged range or a place inside a record is an error."""
        physical_offset = check_offset(physical_offset)
        self._check_sound(physical_offset)
        segment = self.segment_for(physical_offset)
        limit = min(segment.end, self.control.wrote) - physical_offset
        if self._is_blank(segment, physical_offset, limit):
            raise OffsetError(
                "not a record, but a blank at the end of a file", path=segment.path, offset=physical_offset
            )
        try:
            message = message_at(segment, physical_offset - segment.base, limit)
        except CorruptRecordError:
            self._check_sound(physical_offset)  # listed meanwhile?
            raise
        if message.physical_offset != physical_offset:
            raise OffsetError("not the beginning of a record", path=segment.path, offset=physical_offset)
        return message

    def _check_sound(self, physical_offset: int) -> None:
        damaged = self.damage.ranges
        damaged_range = damaged.covering(physical_offset) if damaged else None
        if damaged_range is not None:
            raise CorruptRecordError(
                f"the offset is inside the damaged range {damaged_range[0]}..{damaged_range[1]}",
                path=self.files.directory,
                offset=physical_offset,
            )

    @staticmethod
    def _is_blank(segment: MappedFile, physical_offset: int, limit: int) -> bool:
        if limit < BLANK_SIZE_MIN:
            return True
        return MAGIC.read(segment.read(physical_offset - segment.base, BLANK_SIZE_MIN)) == RECORD_MAGIC_BLANK

    def scan(
        self,
        begin: int | None = None,
        end: int | None = None,
        *,
        over_cleaned: bool = False,
        texts: FilterProgram | None = None,
    ) -> Iterator[Message]:
        """Records in physical order from `begin` (a record's beginning; default: the minimum) to before `end`
        (default: the wrote position when the scan began). Damage that is not a reported range raises
        CorruptRecordError; segments that are cleaned meanwhile raise OffsetError; with `over_cleaned` the scan
        continues behind them, but not where `begin` itself is gone. `texts`: only records that contain one of the
        program's texts; the checksums of others are not compared."""
        first, last = (None if at is None else check_offset(at) for at in (begin, end))
        return self._scan(first, last, over_cleaned, texts)

    def _scan(
        self, begin: int | None, end: int | None, over_cleaned: bool, texts: FilterProgram | None
    ) -> Iterator[Message]:
        cold = ColdPages(self._held_bytes)
        try:
            yield from self._walk(begin, end, over_cleaned, texts, cold)
        finally:
            cold.end()
            if texts is not None:
                self.resident.look(now=True)  # many short scans in a row are as fast as a long one

    def _walk(
        self,
        begin: int | None,
        end: int | None,
        over_cleaned: bool,
        texts: FilterProgram | None,
        cold: ColdPages,
    ) -> Iterator[Message]:
        at = looked_at = self.control.min_physical_offset if begin is None else begin
        until = self.control.wrote if end is None else min(end, self.control.wrote)
        while at < until:
            damaged_range = self.damaged_ranges.covering(at)
            if damaged_range is not None:
                at = damaged_range[1]
                continue
            try:
                segment = self.segment_for(at)
                cold.at(segment, at, self.control.wrote)
                sound_until = min(segment.end, self.control.wrote, self.damaged_ranges.next_begin(at))
                if texts is None:
                    messages, following = messages_in(
                        segment, at - segment.base, sound_until - segment.base, SCAN_BATCH
                    )
                else:
                    messages, following = _containing(
                        segment, at, min(until, sound_until), sound_until, texts
                    )
            except CorruptRecordError:
                if self.damage.covering(at) is None:
                    raise
                continue
            except OffsetError:
                minimum = self.control.min_physical_offset
                if not over_cleaned or at >= minimum or at == begin:
                    raise
                tell_cleaned(self, at, minimum)
                at = minimum
                continue
            for message in messages:
                if message.physical_offset >= until:
                    return
                yield message
            at = segment.base + following
            if at - looked_at >= SCAN_BYTES:
                self.resident.look(now=True)
                looked_at = at

    def mark_cystore_records(self) -> None:
        """Makes the marker durable that keeps RocketMQ from loading (and cutting) a log with records it cannot read."""
        places = [(self.files.directory, self._root)]
        if self.folders is not None:
            places = [(folder.path, folder.room) for folder in self.folders.folders]
        for folder, room in places:
            marker = folder / MARKER
            if not marker.exists():
                # It removes the file again if the file's name may not be durable.
                files.create_sized(room, marker, 0, 0)


def _containing(
    segment: MappedFile, at: int, until: int, sound_until: int, texts: FilterProgram
) -> tuple[list[Message], int]:
    """The first message from `at` to before `until` that contains one of the texts, if there is one, and the place in
    the segment where the next record begins. Raises CorruptRecordError where the walk meets damage."""
    base, end = segment.base, min(until, at + SCAN_BYTES)
    found = next_containing(segment, at - base, end - base, sound_until - base, texts)
    if found >= end - base:
        return [], found
    messages, following = messages_in(segment, found, sound_until - base, 1)
    return [one for one in messages if texts.matches_message(one)], following


def tell_cleaned(commit_log: CommitLog, begin: int, end: int) -> None:
    """Logs that a scan continues behind segments that were cleaned meanwhile."""
    log.warning("%s: cleaned while it was read: [%d, %d)", commit_log.files.directory, begin, end)


def check_offset(physical_offset: object) -> int:
    """The offset as a number. Raises OffsetError for anything else."""
    return whole("physical_offset", physical_offset, -WHOLE_MAX, WHOLE_MAX, OffsetError)
