"""Compares consume queues with the findings of a walk: gaps between records, records with another queue offset than
their entry, wrong entries, entries without a record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cystore._native.scan import log_walk
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.engine.manifest.manifest import read_given_up
from cystore.engine.manifest.removed_queues import Removed
from cystore.recovery.walk import rules
from cystore.recovery.walk.entry_target import entry_target
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.log_visitor import Key
from cystore.recovery.walk.queue_reader import HOLE_BYTES, Entry, QueueReader
from cystore.verify.bounds import Bounds

ENTRIES_AT_ONCE = 3200
MISPLACED_MAX = 1024  # records that one gap may name
NOTHING = Entry(0, 0, 0)


class QueueSpan(NamedTuple):
    """One queue in a walk over a part of the log: its first record, the offset behind its last one, and the first
    record without an entry in the files (-1: all have one), which end at `entries_limit`."""

    first_offset: int
    first_physical: int
    following: int
    missing: int
    entries_limit: int


class QueueEntries:
    """The comparison of all queues of one verification. `broken` are the damaged ranges of the log, as far as known."""

    def __init__(
        self,
        root: Path,
        log: LogReader,
        bounds: Bounds,
        removed: Removed,
        broken: list[tuple[int, int]],
    ) -> None:
        self._root, self._log, self._bounds = root, log, bounds
        self.removed, self.broken = removed, broken
        # The last damaged run of entries of each queue, which may still grow.
        self._runs: dict[Key, Damage] = {}

    def gap(
        self,
        reader: QueueReader | None,
        between: tuple[int, int],
        swallowed: int,
        place: Damage,
        *,
        proven: bool,
    ) -> Iterator[Damage]:
        """The queue offsets between the expected one and the record's: their records are damaged, or they say other
        queue offsets, or this record does (`place`). `proven`: a checksum covers the record's queue offset."""
        expected, queue_offset = between
        in_files = reader is not None and reader.first <= expected <= queue_offset <= reader.limit
        lost = rules.explained_by_damage(queue_offset - expected, swallowed)
        if reader is not None and in_files and expected < queue_offset:
            key = reader.topic, reader.queue_id
            if lost or reader.all_holes(expected, queue_offset):
                known = lost or proven or expected < self.removed.end(key)
                if not known and not read_given_up(self._root).explains(key, expected, queue_offset):
                    for number in range(expected, queue_offset):
                        yield from self.wrong(reader, number, "a hole entry, and the log has no damage there")
                for number in range(expected, queue_offset):
                    if not self._stands_for_nothing(reader.entry(number)):
                        yield from self.wrong(reader, number, "not a hole entry for a lost record")
                return
            misplaced = self._misplaced(reader, expected, queue_offset)
            if len(misplaced) == queue_offset - expected:
                yield from misplaced
                return
        if queue_offset < expected or not lost:
            yield place

    def _misplaced(self, reader: QueueReader, begin: int, end: int) -> list[Damage]:
        """The records that the entries [begin, end) lead to, as far as they say other queue offsets."""
        found = []
        for number in range(begin, min(end, begin + MISPLACED_MAX)):
            target = entry_target(self._log, reader, number)
            if target is None or target.agrees:
                break
            reason = f"not the record of queue offset {number} of {reader.topic}/{reader.queue_id}, as it was"
            path = self._log.path(self._log.base_of(target.begin))
            found.append(Damage("record", path, target.begin, target.end, reason))
        return found

    def _stands_for_nothing(self, entry: Entry) -> bool:
        """Accepts a hole entry, or an entry into damage that no process has recovered from yet."""
        return entry.hole or (
            entry.written and any(begin <= entry.physical_offset < end for begin, end in self.broken)
        )

    def wrong(self, reader: QueueReader, number: int, reason: str) -> Iterator[Damage]:
        """Takes in a damaged entry. A run of damaged entries is reported as one range, when it ends."""
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        new = Damage(
            "consume_queue", reader.path(base), position - base, position - base + ENTRY_BYTES, reason
        )
        key = reader.topic, reader.queue_id
        last = self._runs.get(key)
        if last is not None and (last.path, last.end, last.reason) == (new.path, new.begin, reason):
            self._runs[key] = replace(last, end=new.end)
            return
        if last is not None:
            yield last
        self._runs[key] = new

    def end(self, key: Key, reader: QueueReader | None, span: QueueSpan | None) -> Iterator[Damage]:
        if reader is None:
            if span is not None and self._bounds.complete:
                queue = QueueReader(*key, self._root / QUEUES, 1)
                yield self._missing(queue, span.first_offset, span.following, span.first_physical)
            return
        first, following = reader.first, reader.first
        if span is not None:
            first, following = span.first_offset, span.following
            if span.missing >= 0 and self._bounds.complete:
                at = min(span.entries_limit, following)
                yield self._missing(reader, at, following, span.missing)
        begin = max(reader.first, self.removed.end(key))
        yield from self._without_records(reader, begin, min(first, reader.limit))
        if self._bounds.complete:
            yield from self._without_records(reader, max(following, begin), reader.limit)
        for stray in reader.strays:
            yield Damage("consume_queue", stray, 0, 0, "a file of another length, or behind a missing one")

    def _missing(self, reader: QueueReader, begin: int, end: int, physical_offset: int) -> Damage:
        reason = (
            f"entries of queue offsets {begin}..{end} are missing, from the record at {physical_offset} on"
        )
        position = min(begin * ENTRY_BYTES, reader.limit * ENTRY_BYTES)
        base = position - position % reader.file_bytes
        path = reader.path(base) if base in reader.bases else reader.directory
        return Damage("consume_queue", path, position - base, end * ENTRY_BYTES - base, reason)

    def _without_records(self, reader: QueueReader, begin: int, end: int) -> Iterator[Damage]:
        """Entries of expired records are right; so are holes and unwritten entries."""
        while begin < end:
            data = reader.read(begin, min(ENTRIES_AT_ONCE, end - begin))
            count = len(data) // ENTRY_BYTES
            if log_walk.leading_zeros(data) < len(data) and data != HOLE_BYTES * count:
                for number in range(begin, begin + count):
                    entry = reader.entry(number)
                    expired = entry.written and entry.physical_offset < self._bounds.begin
                    if not expired and not self._stands_for_nothing(entry) and entry != NOTHING:
                        yield self._stranger(reader, number)
            begin += count

    def _stranger(self, reader: QueueReader, number: int) -> Damage:
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        reason = f"the entry of queue offset {number} points to no record of the queue"
        return Damage(
            "consume_queue", reader.path(base), position - base, position - base + ENTRY_BYTES, reason
        )

    def runs(self) -> list[Damage]:
        """The runs of wrong entries that were not reported yet."""
        return list(self._runs.values())


def begins_as_expected(
    bounds: Bounds, removed: Removed, key: Key, reader: QueueReader | None, first_offset: int
) -> bool:
    """Whether recovery's walk accepts a queue's first record."""
    if bounds.begin == 0:
        return first_offset in (0, removed.end(key))
    if reader is None or not reader.bases:
        return True
    return abs(first_offset - reader.below(bounds.begin)) <= rules.BELIEVED_GAP
