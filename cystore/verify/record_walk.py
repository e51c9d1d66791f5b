"""Walks over the records of a range of the log and verifies them. `queue_comparison` compares them with the consume
queues, `index_comparison` with the index."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

from cystore._native.derived.queue_ext import is_address
from cystore._native.scan import log_walk
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.engine.manifest.manifest import read_damaged_ranges, read_removed
from cystore.recovery.walk import rules
from cystore.recovery.walk.entry_target import entry_target
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.log_visitor import Key, LogVisitor
from cystore.recovery.walk.queue_reader import Entry, QueueReader
from cystore.recovery.walk.unit_reader import UnitReader
from cystore.verify.bounds import Bounds
from cystore.verify.filter_marks import FilterMarks
from cystore.verify.index_comparison import IndexEntries
from cystore.verify.queue_comparison import QueueEntries, QueueSpan


class WrongEntry(NamedTuple):
    """A consume queue entry that disagrees with its intact record."""

    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    size_bytes: int
    damage: Damage


class Comparison(LogVisitor):
    """The records of [bounds.begin, bounds.end), which begins at a record. `run` gives the damage.

    `find_queue` opens the files of a queue. Without `follow` it verifies the records alone: queues and index may still
    lack them. With `each_entry` wrong entries are listed in `wrong_entries`, one damage for each; an entry that is all
    zero, or whose extended unit is damaged, is then wrong too. So is one whose unit hides the message from a group of
    `marks`. `jumps`: some queue offset was not the next one, whether that counts as damage or not.
    """

    def __init__(
        self,
        root: Path,
        reader: LogReader,
        bounds: Bounds,
        find_queue: Callable[[Key], QueueReader | None],
        *,
        follow: bool = True,
        each_entry: bool = False,
        marks: FilterMarks | None = None,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        scanner = log_walk.LogWalker(compare_tags=True, follow_queues=follow, stop_at_units=each_entry)
        scanner.limit = bounds.end
        scanner.move(bounds.begin, reader.base_of(bounds.begin) + reader.file_bytes)
        super().__init__(reader, scanner, progress=progress)
        self._root, self._bounds, self._find_queue, self._each_entry = root, bounds, find_queue, each_entry
        self._units, self._marks = UnitReader(root), marks
        self._known_damage = read_damaged_ranges(root)
        self.queues = QueueEntries(root, reader, bounds, read_removed(root), [])
        self.index = IndexEntries(root, reader, scanner, bounds)
        self.jumps = False
        self.wrong_entries: list[WrongEntry] = []
        self._found: list[Damage] = []

    def compare_keys(self, stream: IndexStream, first: int) -> None:
        """The index must hold the records' keys, from entry number `first` of `stream` on."""
        self._stops[log_walk.KEYS] = self._load_keys
        self._stops[log_walk.OTHER_KEY] = self._other_key
        self.index.begin(stream, first)

    def run(self) -> Iterator[Damage]:
        """Every damaged range."""
        scanner, found = self.scanner, self._found
        while scanner.position < self._bounds.end and self.next_stop() is None:
            if found:
                yield from found
                found.clear()
        yield from found
        yield from self.queues.runs()
        yield from self.index.last_run()

    @property
    def position(self) -> int:
        """The end of the walk, so far."""
        return self.scanner.position

    @property
    def records(self) -> int:
        """The number of intact records, so far."""
        return self.scanner.record_count

    @property
    def broken(self) -> list[tuple[int, int]]:
        """The damaged ranges of the log."""
        return self.queues.broken

    def spans(self) -> dict[Key, QueueSpan]:
        """The findings of the walk about each queue with a record in it."""
        scanner = self.scanner
        return {
            key: QueueSpan(
                *scanner.queue_first(slot),
                scanner.queue_next(slot),
                scanner.queue_missing(slot),
                scanner.queue_entries_limit(slot),
            )
            for key, slot in sorted(self.slots.items())
            if scanner.queue_first(slot)[1] >= 0
        }

    # ---------------------------------------------------------------------------------- records

    def _no_next_file(self) -> str | None:
        following = self._reader.base_of(self.scanner.position) + self._reader.file_bytes
        self.scanner.move(following, following + self._reader.file_bytes)
        return None

    def _damaged(self, reason: str) -> str | None:
        """The range from here to the next valid record is damaged; the walk continues there."""
        position, end = self.scanner.position, self._bounds.end
        known = self._known_damage.covering(position)
        if known is not None:
            following, reason = known[1], f"known hole: {reason}"
        else:
            found = self._finder.find(position + 1, end)
            following = end if found is None else found[0]
        self.go_to(following)
        self.broken.append((position, following))
        path = self._reader.path(self._reader.base_of(position))
        self._found.append(Damage("record", path, position, following, reason))
        return None

    # ----------------------------------------------------------------------------------- queues

    def _new_queue(self) -> str | None:
        scanner = self.scanner
        topic, queue_id, queue_offset, *_ = scanner.record()
        key = topic.decode("ascii"), queue_id
        reader = self._find_queue(key)
        expected = 0 if self._bounds.begin == 0 else -1
        removed = self.queues.removed.end(key)
        limit = reader.limit if reader is not None and reader.first <= max(queue_offset, removed) else 0
        slot = scanner.add_queue(topic, queue_id, expected, limit, removed)
        self.slots[key] = slot
        if reader is not None:
            self._readers[slot] = reader
        return None

    def _out_of_sequence(self) -> str | None:
        self.jumps = True
        scanner, slot = self.scanner, self.scanner.slot
        topic, queue_id, queue_offset, size, _, magic, _ = scanner.record()
        position, expected, reader = scanner.position, scanner.queue_next(slot), self._readers.get(slot)
        queue = f"{topic.decode()}/{queue_id}"
        place = self._record_damage(size, f"queue offset {queue_offset} of {queue} where {expected} is next")
        proven = rules.header_is_proven(magic)
        if not proven and not scanner.in_light_queue and self._known_damage.covering(position) is not None:
            return self._damaged(place.reason)
        if self._left_out(reader, queue_offset):
            return None
        if not proven and self._is_elsewhere(reader, queue_offset, expected):
            self._found.append(place)
            scanner.leave_out()
            return None
        swallowed = scanner.swallowed_since(slot)
        self._found += self.queues.gap(reader, (expected, queue_offset), swallowed, place, proven=proven)
        scanner.accept()
        return None

    def _is_elsewhere(self, reader: QueueReader | None, number: int, expected: int) -> bool:
        """Whether the entries contradict the queue offset `number` of the record here: that of the expected one leads
        here, or to a record that is still to come."""
        position, target = self.scanner.position, entry_target(self._reader, reader, expected)
        if target is None or target.begin == position:
            return target is not None
        if not target.agrees or not position < target.begin < self._bounds.dispatched:
            return False
        own = entry_target(self._reader, reader, number)
        return own is None or own.begin != position

    def _left_out(self, reader: QueueReader | None, number: int) -> bool:
        """Whether another record has the queue offset that the record here claims, and the entry; reports that. The
        record here is not compared with the queue then."""
        scanner = self.scanner
        topic, queue_id, _, size, _, magic, _ = scanner.record()
        target = None if rules.header_is_proven(magic) else entry_target(self._reader, reader, number)
        if target is None or not target.agrees or target.begin == scanner.position:
            return False
        if target.begin >= self._bounds.dispatched:
            return False
        reason = f"queue offset {number} of {topic.decode()}/{queue_id}, which the record at {target.begin} has, too"
        self._found.append(self._record_damage(size, reason))
        scanner.leave_out()
        return True

    def _record_damage(self, size: int, reason: str) -> Damage:
        position = self.scanner.position
        path = self._reader.path(self._reader.base_of(position))
        return Damage("record", path, position, position + size, reason)

    def _other_entry(self) -> str | None:
        scanner, number = self.scanner, self.scanner.wanted
        reader = self._readers[scanner.slot]
        if self._left_out(reader, number):
            return None
        if self._each_entry:
            reason = self._wrong_by(reader.entry(number), (reader.topic, reader.queue_id))
            if reason:
                self._found.append(self._listed(reader, number, reason))
        elif not any(reader.read(number, 1)) and not self._bounds.complete:
            scanner.limit_entries(scanner.slot, number)  # not dispatched before the crash
            return None
        else:
            self._found += self.queues.wrong(reader, number, "not the entry of the record")
        scanner.accept_entry()
        return None

    def _wrong_by(self, entry: Entry, key: Key) -> str:
        """Says what is wrong with the entry of the record; empty if its extended unit is the record's."""
        scanner = self.scanner
        _, _, _, size, store_timestamp_ms, *_ = scanner.record()
        if (entry.physical_offset, entry.size) != (scanner.position, size) or not is_address(entry.tags_code):
            return "not the entry of the record"
        problem = self._units.problem(key, entry.tags_code, scanner.tags_code, store_timestamp_ms)
        return problem or self._hides(entry, key)

    def _hides(self, entry: Entry, key: Key) -> str:
        """Says from which group the unit of the record hides it; empty if from none."""
        marks = self._marks
        if marks is None or not marks.concern(key[0]):
            return ""
        unit, record = self._units.unit(key, entry.tags_code), self._reader.record(entry.physical_offset)
        if unit is None or record is None:
            return ""
        return marks.problem(key[0], entry.physical_offset, record["properties"], unit.bitmap)

    def _listed(self, reader: QueueReader, number: int, reason: str) -> Damage:
        """Lists a wrong entry, which the caller may rewrite from its record."""
        topic, queue_id, queue_offset, size, *_ = self.scanner.record()
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        begin = position - base
        damage = Damage("consume_queue", reader.path(base), begin, begin + ENTRY_BYTES, reason)
        place = self.scanner.position
        self.wrong_entries.append(
            WrongEntry(topic.decode("ascii"), queue_id, queue_offset, place, size, damage)
        )
        return damage

    # ------------------------------------------------------------------------------------ index

    def _load_keys(self) -> str | None:
        self.index.load()
        return None

    def _other_key(self) -> str | None:
        self._found += self.index.other_key()
        return None
