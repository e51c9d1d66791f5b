"""One walk over the log from a start to its end: the end, the damage, and the state of each queue by its records and
entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from cystore._native.read import scan
from cystore._native.record.record import STATUS_NAMES
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up import GivenUp
from cystore.engine.manifest.removed_queues import Removed
from cystore.layout import takes_queue_offset
from cystore.recovery.walk import rules
from cystore.recovery.walk.log_reader import GONE, Finder, LogReader, Walk
from cystore.recovery.walk.queue_reader import QueueReader

FIRST_ENTRIES, MORE_ENTRIES = 128, 4096
LEAST_ENTRIES, ENTRIES_HELD = 16, 1 << 21
LOOK_AHEAD_RECORDS = 100_000
EVERYTHING = 1 << 62

Key = tuple[str, int]


@dataclass(frozen=True)
class WalkInput:
    """The input of a walk: files, the value of the checkpoint, and the rule for damage.

    `watermark` is -1 if it has to be found by the physic timestamp, once damage is met. It is at least `counted`, the
    log position that the saved queue offsets cover.
    """

    reader: LogReader
    queues: dict[Key, QueueReader]
    known_holes: DamagedRanges
    given_up: GivenUp
    removed: Removed
    watermark: int
    counted: int
    trusted: bool
    physic_timestamp: int
    keep: bool
    check_checksum: bool
    in_time_order: bool
    progress: Callable[[int], None] | None = None


@dataclass
class StoppedRecord:
    """A record at `position` that the scanner stopped at."""

    position: int
    key: Key
    queue_offset: int
    size: int
    store_timestamp: int
    magic: int


@dataclass
class PassResult:
    """`earlier` is set when consume queues turned out to lack entries of records before the start: walk again from there."""

    start: int
    end: int = 0
    reason: str = ""
    earlier: int | None = None
    damage: list[DamagedRange] = field(default_factory=list)
    lost_end: int = 0
    slots: dict[Key, int] = field(default_factory=dict)
    expected: dict[Key, int] = field(default_factory=dict)
    swallowed: dict[Key, list[tuple[int, int]]] = field(default_factory=dict)
    watermark: int = -1


class LogPass:
    """Walks once, and judges each stop by the rules of rules.py. Without `follow_queues` it compares no queue."""

    def __init__(self, situation: WalkInput, start: int, *, follow_queues: bool = True) -> None:
        self._about, self._reader = situation, situation.reader
        self.scanner = scan.LogScanner(
            check_checksum=situation.check_checksum,
            follow_queues=follow_queues,
            in_time_order=situation.in_time_order and situation.keep,
            watermark=max(situation.watermark, 0),
            physic_timestamp=situation.physic_timestamp,
            compare_tags=True,
        )
        self.scanner.limit = EVERYTHING
        self.scanner.move(start, start + self._reader.file_bytes)
        self._walk = Walk(self._reader, self.scanner, situation.progress)
        self._finder = Finder(self._reader, check_checksum=situation.check_checksum)
        self._watermark = situation.watermark
        self._readers: dict[int, QueueReader] = {}
        # Slots whose expected queue offset comes from entries, not from a record.
        self._weak: set[int] = set()
        self.result = PassResult(start)

    def run(self) -> PassResult:
        result, scanner = self.result, self.scanner
        result.reason = self._to_the_end()
        result.end = scanner.position
        result.watermark = self._watermark
        return result

    def _to_the_end(self) -> str:
        scanner = self.scanner
        while True:
            status = self._walk.run()
            if status == scan.NEW_QUEUE:
                self._add_queue(self._judged())
            elif status == scan.ENTRIES:
                self._load_entries(scanner.slot, scanner.wanted)
            elif status == scan.OTHER_ENTRY:
                scanner.limit_entries(scanner.slot, scanner.wanted)
            elif status == scan.OUT_OF_SEQUENCE:
                verdict = self._out_of_sequence(self._judged())
                if verdict:
                    return verdict
            elif status == scan.BACK_IN_TIME:
                if scanner.position >= self._durable_end():
                    return "a record older than the one before it"
                scanner.accept()
            elif status == scan.BLANK:
                if not self._step_over_missing_file():
                    return rules.A_BLANK
            else:
                reason = "no file" if status == GONE else STATUS_NAMES[scanner.reason]
                if not self._step_over(reason):
                    return reason

    def _judged(self) -> StoppedRecord:
        topic, queue_id, queue_offset, size, store_timestamp, magic, _ = self.scanner.record()
        key = topic.decode("ascii"), queue_id
        return StoppedRecord(self.scanner.position, key, queue_offset, size, store_timestamp, magic)

    # ----------------------------------------------------------------------------------- queues

    def _add_queue(self, record: StoppedRecord) -> None:
        """Adds a queue to the table. Its entries for records before the start give the first expected offset."""
        reader, start = self._about.queues.get(record.key), self.result.start
        # At the very start of the log there is nothing before: a queue begins with 0.
        expected, weak = 0, start > 0
        if weak and reader is not None and reader.bases:
            expected = reader.below(start)
        elif weak and (start == self._reader.begin or record.key in self._about.removed):
            expected = -1  # its earlier records may be gone with the log's start, its entries with the queue
        slot = self.scanner.add_queue(
            record.key[0].encode(),
            record.key[1],
            expected,
            reader.limit if reader is not None else 0,
            self._about.removed.end(record.key),
        )
        self.result.slots[record.key] = slot
        self.result.expected[record.key] = expected
        if reader is not None:
            self._readers[slot] = reader
        if weak:
            self._weak.add(slot)

    def _load_entries(self, slot: int, wanted: int) -> None:
        reader = self._readers[slot]
        if wanted < reader.first:
            # Entries that the queue's files do not hold any more cannot be compared.
            self.scanner.limit_entries(slot, min(wanted, reader.first))
            return
        room = ENTRIES_HELD // len(self.result.slots)  # bounds the entries that all queues hold together
        count = FIRST_ENTRIES if self.scanner.queue_first(slot)[0] < 0 else MORE_ENTRIES
        self.scanner.set_entries(slot, reader.read_some(wanted, min(count, max(room, LEAST_ENTRIES))), wanted)

    def _out_of_sequence(self, record: StoppedRecord) -> str | None:
        """Judges a queue offset that is not the next one. None: continue; otherwise the reason why the log ends
        here."""
        scanner, slot = self.scanner, self.scanner.slot
        expected = scanner.queue_next(slot)
        first = scanner.queue_first(slot)[0] < 0
        gap = record.queue_offset - expected
        possible = 0 <= record.queue_offset < 1 << 58
        if possible and first and slot in self._weak:
            if self._needs_earlier(record, expected, gap):
                return "walk again from an earlier file"
            if gap < 0 and not self._is_above_watermark(record):
                # The entries claim more than the log has: the log is right.
                scanner.set_next(slot, record.queue_offset)
                return None
            if gap > 0 and self.result.start == self._reader.begin and gap <= rules.BELIEVED_GAP:
                scanner.accept()
                return None
        reason = f"queue offset {record.queue_offset} where {expected} is next"
        explained = possible and (
            rules.explained_by_damage(gap, scanner.swallowed_since(slot))
            or self._about.given_up.explains(record.key, expected, record.queue_offset)
            or self._holes_stand_for(record, expected)
        )
        if not explained and self._is_above_watermark(record):
            return reason
        if explained or (possible and gap <= rules.BELIEVED_GAP and self._is_believed(record)):
            if gap > 0:
                self.result.swallowed.setdefault(record.key, []).append((expected, record.queue_offset))
            scanner.accept()
            return None
        return None if self._step_over(reason) else reason

    def _is_above_watermark(self, record: StoppedRecord) -> bool:
        """RocketMQ's rule knows no watermark: it takes every valid record."""
        return self._about.keep and record.position >= self._durable_end()

    def _holes_stand_for(self, record: StoppedRecord, expected: int) -> bool:
        """Whether hole entries already stand in the places of the record's predecessors: an earlier recovery gave these
        up."""
        reader = self._about.queues.get(record.key)
        gap = record.queue_offset - expected
        if reader is None or not 0 < gap <= rules.BELIEVED_GAP:
            return False
        return (
            reader.first <= expected
            and record.queue_offset < reader.limit
            and reader.all_holes(expected, record.queue_offset)
        )

    def _is_believed(self, record: StoppedRecord) -> bool:
        """A record below the watermark whose queue offset nothing explains: is the number right or the record damaged?"""
        if not self._about.keep or rules.header_is_proven(record.magic):
            return True
        return self._next_of_queue(record) == record.queue_offset + 1

    def _next_of_queue(self, record: StoppedRecord) -> int | None:
        """Queue offset of the next record of the same queue."""
        for count, found in enumerate(self._reader.records(record.position + record.size)):
            if count == LOOK_AHEAD_RECORDS:
                break
            plain = takes_queue_offset(found["sys_flag"])
            if plain and (found["topic"].decode(), found["queue_id"]) == record.key:
                return int(found["queue_offset"])
        return None

    def _needs_earlier(self, record: StoppedRecord, expected: int, gap: int) -> bool:
        """Entries of records before the start are missing or wrong: remembers from where to walk again."""
        start, begin = self.result.start, self._reader.begin
        if start == begin:
            return False
        reader = self._about.queues.get(record.key)
        last = reader.message_before(expected) if reader is not None and reader.bases else -1
        if gap < 0:
            if self.entry_is_true(record.key, last):
                return False  # the queue has that message already: this record repeats its offset
            self.result.earlier = begin
        elif reader is None or last < 0:
            self.result.earlier = begin
        else:
            base = self._reader.base_of(max(reader.entry(last).physical_offset, begin))
            self.result.earlier = max(min(base, start - self._reader.file_bytes), begin)
        return True

    def entry_is_true(self, key: Key, number: int) -> bool:
        """Whether the entry of a queue offset leads to the record of that offset. One below the log's minimum is believed."""
        reader = self._about.queues[key]
        if number < 0:
            return False
        entry = reader.entry(number)
        if not entry.written or entry.physical_offset < self._reader.begin:
            return entry.written
        found = self._reader.record(entry.physical_offset)
        return found is not None and matches(found, key, number, entry.size)

    # ----------------------------------------------------------------------------------- damage

    def _step_over(self, reason: str) -> bool:
        """Goes on behind damage; False when the log ends here."""
        scanner, about = self.scanner, self._about
        position = scanner.position
        known = about.known_holes.covering(position)
        if known is not None and known[1] <= self._reader.end:
            self._go_to(known[1])
            return True
        if not about.keep or position >= self._durable_end():
            return False
        resumed = self._resume(position)
        if resumed is None:
            self.result.lost_end = self._durable_end()
            return False
        self.result.damage.append(DamagedRange(position, resumed, reason))
        self._go_to(resumed)
        return True

    def _step_over_missing_file(self) -> bool:
        """Judges a blank without a next file: if later files follow, the missing part is damage."""
        scanner, reader = self.scanner, self._reader
        position, following = scanner.position, reader.base_of(scanner.position) + reader.file_bytes
        if following >= reader.end:
            return False
        scanner.move(following, following + reader.file_bytes)
        if self._step_over("no file"):
            return True
        scanner.move(position, following)
        return False

    def _go_to(self, position: int) -> None:
        self.scanner.step_over(position, self._reader.base_of(position) + self._reader.file_bytes)

    def _resume(self, position: int) -> int | None:
        """The first record behind `position` and below the watermark that belongs to this log."""
        begin, end = position + 1, self._durable_end()
        while (found := self._finder.find(begin, end)) is not None:
            place, (topic, queue_id, queue_offset, _, store_timestamp, _, sys_flag) = found
            slot = self.result.slots.get((topic.decode("ascii"), queue_id))
            if not takes_queue_offset(sys_flag):
                slot = None
            if rules.resume_is_sound(
                trusted=self._about.trusted,
                store_timestamp=store_timestamp,
                last_timestamp=self.scanner.last_timestamp,
                queue_offset=queue_offset,
                expected=0 if slot is None else self.scanner.queue_next(slot),
            ):
                return place
            begin = place + 1
        return None

    def _durable_end(self) -> int:
        """The watermark. If the checkpoint gives none, the end of the last record that was stored by its physic
        timestamp."""
        if self._watermark < 0:
            timed = max(self.scanner.timed_end, self._timed_end_behind())
            self._watermark = max(timed, self._about.counted, self.result.start)
            self.scanner.watermark = self._watermark
        return self._watermark

    def _timed_end_behind(self) -> int:
        """Searches the rest of the log for that record, over any damage."""
        scanner = scan.LogScanner(
            check_checksum=self._about.check_checksum,
            follow_queues=False,
            physic_timestamp=self._about.physic_timestamp,
        )
        scanner.limit = EVERYTHING
        walk = Walk(self._reader, scanner)
        position: int | None = self.scanner.position
        while position is not None:
            scanner.move(position, self._reader.base_of(position) + self._reader.file_bytes)
            walk.run()
            found = self._finder.find(scanner.position + 1, self._reader.end)
            position = None if found is None else found[0]
        return scanner.timed_end


def matches(record: dict[str, Any], key: Key, queue_offset: int, size: int) -> bool:
    """Whether a record's fields match a consume queue entry."""
    return (
        (record["topic"].decode(), record["queue_id"]) == key
        and record["queue_offset"] == queue_offset
        and record["total_size"] == size
        and takes_queue_offset(record["sys_flag"])
    )
