"""The newest record of each key, chosen from the compacted file and the log behind it."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Mapping

from cystore._native.filters.latest import BLANK, IN_LOG, OK, SHORT, LatestTable, next_record
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message, message_at
from cystore.engine.files.compacted_file import HEADER_BYTES, CompactedFile
from cystore.engine.log.commit_log import CommitLog, tell_cleaned
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import BLANK_SIZE_MIN

log = logging.getLogger("cystore")

OFFSET_MAX = (1 << 63) - 1

Report = Callable[[str, int, int], None]


def matches(topics: Iterable[str], topic: str) -> bool:
    """Whether a topic is one of the compacted ones."""
    return any(topic.startswith(name[:-1]) if name.endswith("*") else topic == name for name in topics)


class Selection:
    """A walk over a compacted file and then over the log, and its findings. Keeps the mappings of the segments that it
    reads, so a clean meanwhile does not disturb it."""

    def __init__(
        self, commit_log: CommitLog, topics: tuple[str, ...], deleted: Mapping[str, int], seeds: bytes
    ) -> None:
        gone = [(topic.encode(), end) for topic, end in deleted.items()]
        self.table = LatestTable([name.encode() for name in topics], seeds, gone)
        self.damaged: list[str] = []  # descriptions of the damage that was stepped over
        self.end = 0  # the end of the examined part of the log
        self.before: CompactedFile | None = None
        self.seeds = seeds
        # Values of unknown keys were lost below these offsets of the log, by damage of the log and of the file.
        self.uncertain_in_log = self.uncertain_in_file = 0
        self.cleaned_to = 0  # the log was cleaned up to here during the walk
        self._log = commit_log
        self._segments: dict[int, MappedFile] = {}

    def take_file(self, before: CompactedFile, leave_out_from: int | None, *, end: int = 0) -> bool:
        """Takes the records of a compacted file, except those that stood in the log at an offset or behind it. `end`:
        of its records, if its header is damaged. False if a part of it is damaged."""
        self.before = before
        if leave_out_from is not None:
            self.table.leave_out_from(leave_out_from)
        at, whole = HEADER_BYTES, before.header is not None
        known, end = end, min(end or before.records_end, before.records_end)
        while at < end:
            at, status = self.table.take(before.file, at, end, in_log=False)
            if status != OK:
                following = next_record(before.file, at + 1, end, in_log=False) if at < end else -1
                following = end if following < 0 else following
                if before.header is not None:
                    self.tell(f"bytes {at} to {following} of {before.path}")
                self.uncertain_in_file = max(self.uncertain_in_file, _offset_at(before, following, end))
                at, whole = following, False
        if before.header is None:
            self.tell(f"the header of {before.path} ({before.problem})")
        if known > end:  # the file was cut
            self.uncertain_in_file = OFFSET_MAX
        return whole

    def take_log(self, begin: int, end: int, report: Report | None = None) -> None:
        """Takes the records of [begin, end) of the log. Damage is stepped over."""
        at = self.end = begin
        while at < end:
            damaged = self._log.damaged_ranges.covering(at)
            if damaged is not None:
                self.damaged.append(f"[{damaged[0]}, {damaged[1]}) of the log")  # logged when it was found
                self.end = at = self.uncertain_in_log = damaged[1]
                continue
            if report is not None:
                report("compacting", at - begin, end - begin)
            try:
                segment = self._segment(at)
            except OffsetError:
                minimum = self._log.control.min_physical_offset
                if at >= minimum:
                    raise
                tell_cleaned(self._log, at, minimum)
                self.end = at = self.cleaned_to = minimum
                continue
            except CorruptRecordError as error:
                self.tell(str(error))
                self.end = at = self.uncertain_in_log = self._log.files.base_of(at) + self._log.file_bytes
                continue
            at = self._take_part(segment, at, end)
            if at < 0:
                break
            self.end = at

    def _take_part(self, segment: MappedFile, at: int, end: int) -> int:
        """The position where the walk continues; -1: the record at `at` goes beyond the end."""
        file_end = self._log.files.base_of(at) + self._log.file_bytes
        until = min(segment.end, end, self._log.damaged_ranges.next_begin(at))
        place, status = self.table.take(segment, at - segment.base, until - segment.base, in_log=True)
        reached = segment.base + place
        if status == BLANK or file_end - reached < BLANK_SIZE_MIN:
            return file_end
        if status == OK or (status == SHORT and reached > at):
            return reached
        if status == SHORT and until == end:
            return -1
        damaged = self._log.damage.covering(reached)  # listed meanwhile?
        if damaged is None:
            found = next_record(segment, reached + 1 - segment.base, until - segment.base, in_log=True)
            damaged = reached, until if found < 0 else segment.base + found
            self.tell(f"[{damaged[0]}, {damaged[1]}) of the log")
        self.uncertain_in_log = damaged[1]
        return damaged[1]

    def tell(self, what: str) -> None:
        """Notes damage that is stepped over."""
        self.damaged.append(what)
        log.error("compaction steps over damage: %s", what)

    def _segment(self, offset: int) -> MappedFile:
        base = self._log.files.base_of(offset)
        found = self._segments.get(base)
        if found is None or not found.base <= offset < found.end:
            found = self._log.segment_for(offset)
            if found.base == base:
                self._segments[base] = found
        return found

    def source_of(self, place: int) -> tuple[MappedFile, int, bool]:
        """(file, number of its bytes that count, whether it is one of the log) for a place of the table."""
        if not place & IN_LOG:
            assert self.before is not None
            return self.before.file, self.before.records_end, False
        segment = self._segment(place ^ IN_LOG)
        return segment, min(segment.end, self.end) - segment.base, True

    def messages(self) -> Iterator[Message]:
        """The newest record of each key, in log order, tombstones included. A damaged one is left out."""
        for number in range(self.table.sort()):
            place = self.table.place(number)
            try:
                file, end, in_log = self.source_of(place)
                at = (place ^ IN_LOG) - file.base if in_log else place
                yield message_at(file, at, end - at)
            except (CorruptRecordError, OffsetError) as error:
                self.tell(str(error))


def _offset_at(file: CompactedFile, at: int, end: int) -> int:
    """The log offset of the record at a position of a compacted file; at its end, the highest one possible."""
    if at >= end:
        return OFFSET_MAX
    return message_at(file.file, at, end - at).physical_offset or 0
