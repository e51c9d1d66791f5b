"""One walk over the log from a start to its end: the end, the damage, and the state of each queue by its records and
entries."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import field
from typing import Any, NamedTuple

from cystore._native.scan import log_walk
from cystore.derived.dispatch.jumps import repeated
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.removed_queues import Removed
from cystore.layout import takes_queue_offset
from cystore.recovery.walk import rules
from cystore.recovery.walk.entry_target import entry_target, proven_wrong
from cystore.recovery.walk.index_stream import ENTRIES_AT_ONCE, IndexStream
from cystore.recovery.walk.log_reader import LogReader, Walk, queue_places
from cystore.recovery.walk.log_visitor import Key as Key
from cystore.recovery.walk.log_visitor import LogVisitor
from cystore.recovery.walk.queue_reader import QueueReader
from cystore.value_class import value_class

LOOK_AHEAD_RECORDS = 100_000
NEAR_RECORDS = 200  # the same behind damage, in which every queue may have lost records
FOLLOWERS = 4
WITNESSES_ASKED = 8  # times that a walk asks the entries of all other queues
DAMAGES_MAX = 8  # damaged ranges of the log that the search for them steps over
EVERYTHING = 1 << 62


class WalkInput(NamedTuple):
    """The input of a walk: files, the value of the checkpoint, and the rule for damage.

    `watermark` is -1 if it has to be found by the physic timestamp, once damage is met. It is at least `counted`, the
    log position that the saved queue offsets cover.
    """

    reader: LogReader
    queues: dict[Key, QueueReader]
    known_damage: DamagedRanges
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


@value_class
class StoppedRecord:
    """A record at `position` that the scanner stopped at."""

    position: int
    key: Key
    queue_offset: int
    size: int
    store_timestamp: int
    magic: int


@value_class
class KeysSeen:
    """The comparison of an index with the log. From `start` up to `position` the keys of each record are the next
    entries of `rows`. `number` is the first entry that belongs to none of these records, `last_record` the place of the
    last one."""

    rows: IndexStream
    start: int
    position: int = -1
    number: int = -1
    last_record: int = -1


@value_class
class PassResult:
    """`earlier` is set when consume queues turned out to lack entries of records before the start: walk again from
    there."""

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
    keys: KeysSeen | None = None


class LogPass(LogVisitor):
    """Walks once, and judges each stop by the rules of rules.py. Without `follow_queues` it compares no queue."""

    def __init__(self, walk_input: WalkInput, start: int, *, follow_queues: bool = True) -> None:
        self._about = walk_input
        scanner = log_walk.LogWalker(
            check_checksum=walk_input.check_checksum,
            follow_queues=follow_queues,
            in_time_order=walk_input.in_time_order and walk_input.keep,
            watermark=max(walk_input.watermark, 0),
            physic_timestamp=walk_input.physic_timestamp,
            compare_tags=True,
        )
        scanner.limit = EVERYTHING
        scanner.move(start, start + walk_input.reader.file_bytes)
        super().__init__(
            walk_input.reader, scanner, check_checksum=walk_input.check_checksum, progress=walk_input.progress
        )
        self._stops[log_walk.BACK_IN_TIME] = self._back_in_time
        self._watermark = walk_input.watermark
        # Slots whose expected queue offset comes from entries, not from a record.
        self._weak: set[int] = set()
        self._witnesses_left = WITNESSES_ASKED
        self.result = PassResult(start, slots=self.slots)

    def compare_keys(self, rows: IndexStream) -> None:
        """The walk compares the entries of the index too, up to the first record that has other keys."""
        self.result.keys = KeysSeen(rows, self.result.start)
        self._stops[log_walk.KEYS] = self._load_keys
        self._stops[log_walk.OTHER_KEY] = self._other_key
        self.scanner.compare_keys(rows.below(self.result.start), rows.limit, rows.files)

    def run(self) -> PassResult:
        result, reason = self.result, None
        while reason is None:
            reason = self.next_stop()
        result.reason = reason
        result.end = self.scanner.position
        result.watermark = self._watermark
        self._keys_agree_until(result.end)
        return result

    def _other_entry(self) -> str | None:
        """Entries from here on are made anew. But if the entry leads to another record with that queue offset, the
        record here is the wrong one: it must not take the place of the other."""
        scanner, number, record = self.scanner, self.scanner.wanted, self._stopped_record()
        if self._steps_over_known():
            return None
        target = None
        # A log that RocketMQ wrote may have old records behind its end.
        if self._about.trusted and not rules.header_is_proven(record.magic):
            target = entry_target(self._reader, self._readers[scanner.slot], number)
        if (
            target is not None
            and target.agrees
            and target.begin != record.position
            and target.begin < max(self._watermark, record.position)
        ):
            scanner.leave_out()
        else:
            scanner.limit_entries(scanner.slot, number)
        return None

    def _steps_over_known(self) -> bool:
        """Steps over a record that an earlier walk, or dispatch, found to be damaged because of its queue offset."""
        known = self._about.known_damage.covering(self.scanner.position)
        return known is not None and not self.scanner.in_light_queue and self._step_over("a known hole")

    def _back_in_time(self) -> str | None:
        if self.scanner.position >= self._durable_end():
            return "a record older than the one before it"
        self.scanner.accept()
        return None

    def _no_next_file(self) -> str | None:
        return None if self._step_over_missing_file() else rules.A_BLANK

    def _damaged(self, reason: str) -> str | None:
        return None if self._step_over(reason) else reason

    def _stopped_record(self) -> StoppedRecord:
        topic, queue_id, queue_offset, size, store_timestamp, magic, _ = self.scanner.record()
        key = topic.decode("ascii"), queue_id
        return StoppedRecord(self.scanner.position, key, queue_offset, size, store_timestamp, magic)

    # ----------------------------------------------------------------------------------- queues

    def _new_queue(self) -> str | None:
        """Adds a queue to the table. Its entries for records before the start give the first expected offset."""
        record = self._stopped_record()
        reader, start = self._about.queues.get(record.key), self.result.start
        # No record is before the very start of the log: there a queue begins with 0.
        expected, weak = 0, start > 0
        if weak and reader is not None and reader.bases:
            expected = reader.below(start)
        elif weak and (start == self._reader.begin or record.key in self._about.removed):
            expected = -1  # earlier records may be gone with the log's start, entries with the queue's files
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
        return None

    def _out_of_sequence(self) -> str | None:
        if self._steps_over_known():
            return None
        record = self._stopped_record()
        scanner, slot = self.scanner, self.scanner.slot
        expected = scanner.queue_next(slot)
        first = scanner.queue_first(slot)[0] < 0
        gap = record.queue_offset - expected
        possible = 0 <= record.queue_offset < 1 << 58
        if possible and first and slot in self._weak:
            if self._needs_earlier(record, expected, gap):
                return "walk again from an earlier file"
            if gap < 0 and not self._is_above_watermark(record):
                # The entries count more records than the log has: the log is right.
                scanner.set_next(slot, record.queue_offset)
                return None
            if gap > 0 and self.result.start == self._reader.begin and gap <= rules.BELIEVED_GAP:
                scanner.accept()
                return None
        reason = f"queue offset {record.queue_offset} where {expected} is next"
        by_damage = possible and rules.explained_by_damage(gap, scanner.swallowed_since(slot))
        if by_damage and self._is_misplaced(record, expected):
            scanner.leave_out(lost=True)
            return None
        explained = (possible and gap > 0) and (
            by_damage
            or self._about.given_up.explains(record.key, expected, record.queue_offset)
            or self._holes_stand_for(record, expected)
        )
        if not explained and self._is_above_watermark(record):
            return reason
        if gap < 0 and self._displaces(record, expected):
            scanner.accept()
            return None
        if not explained and possible and gap <= rules.BELIEVED_GAP and not scanner.in_light_queue:
            explained = self._is_believed(record, expected)
        if explained:
            if gap > 0:
                self.result.swallowed.setdefault(record.key, []).append((expected, record.queue_offset))
            scanner.accept()
            return None
        if scanner.in_light_queue:  # the record's own queue has taken it
            if possible and self._is_misplaced(record, expected, votes=1):
                scanner.leave_out(lost=True)
            else:
                scanner.accept()
            return None
        if self._repeats(record, expected):
            scanner.leave_out(lost=True)
            return None
        return None if self._step_over(reason) else reason

    def _repeats(self, record: StoppedRecord, expected: int) -> bool:
        """Whether a record below the watermark has a queue offset that its queue has already. Perhaps the other record
        is the wrong one, so this one is not called damaged. In a log that RocketMQ wrote it may be an old record."""
        about = self._about
        return 0 <= record.queue_offset < expected and about.keep and about.trusted

    def _displaces(self, record: StoppedRecord, expected: int) -> bool:
        """Whether the record that has this record's queue offset already belongs to another queue, by that queue's
        entry. Then it is damaged, and this record gets its place."""
        if (
            self.scanner.in_light_queue
            or rules.header_is_proven(record.magic)
            or not self._repeats(record, expected)
            or not self._witnesses_left
        ):
            return False
        self._witnesses_left -= 1
        wrong = proven_wrong(self._reader, self._about.queues, record.key, record.queue_offset)
        if wrong is None or not self.result.start <= wrong.begin < record.position:
            return False
        if any(each.begin <= wrong.begin < each.end for each in self.result.damage):
            return False
        topic, queue_id = record.key
        reason = (
            f"it claims queue offset {record.queue_offset} of {topic}/{queue_id}, and is in another queue"
        )
        self.result.damage.append(DamagedRange(wrong.begin, wrong.end, reason))
        return True

    def _is_above_watermark(self, record: StoppedRecord) -> bool:
        """Whether a record is above the watermark. RocketMQ's rule has no watermark: it takes every valid record."""
        return self._about.keep and record.position >= self._durable_end()

    def _holes_stand_for(self, record: StoppedRecord, expected: int) -> bool:
        """Whether the record's predecessors already have hole entries: an earlier recovery gave them up."""
        reader = self._about.queues.get(record.key)
        gap = record.queue_offset - expected
        if reader is None or not 0 < gap <= rules.BELIEVED_GAP:
            return False
        return (
            reader.first <= expected
            and record.queue_offset < reader.limit
            and reader.all_holes(expected, record.queue_offset)
        )

    def _is_believed(self, record: StoppedRecord, expected: int) -> bool:
        """Whether the queue offset of a record below the watermark is right although nothing explains it; otherwise the
        record is damaged. The queue's entry is one witness; the next records of the queue are others."""
        if not self._about.keep or rules.header_is_proven(record.magic):
            return True
        found = record.queue_offset
        target = entry_target(self._reader, self._about.queues.get(record.key), found)
        if target is not None and target.begin == record.position:
            return True
        followers = self._next_of_queue(record)
        if found < expected:
            return followers[:1] == [found + 1]
        right = sum(number == found + place for place, number in enumerate(followers, 1))
        wrong = sum(number == expected + place for place, number in enumerate(followers, 1))
        # One record can be in another queue because its queue id is wrong; several cannot.
        return right > wrong or (not followers and found == expected + 1)

    def _is_misplaced(self, record: StoppedRecord, expected: int, votes: int = 2) -> bool:
        """Whether the next records of the queue speak against a jump: then the record gets no entry. Against a jump
        that damage explains it takes two."""
        if rules.header_is_proven(record.magic) or not self._about.trusted:
            return False
        target = entry_target(self._reader, self._about.queues.get(record.key), record.queue_offset)
        if target is not None and target.begin == record.position:
            return False
        followers = self._next_of_queue(record, look_ahead=NEAR_RECORDS)
        return repeated(expected, record.queue_offset, followers, votes=votes)

    def _next_of_queue(self, record: StoppedRecord, look_ahead: int = LOOK_AHEAD_RECORDS) -> list[int]:
        """Queue offsets of the next records of the same queue, over damage."""
        offsets: list[int] = []
        at, end, count = record.position + record.size, self._durable_end(), 0
        for _ in range(DAMAGES_MAX):
            for found in self._reader.records(at):
                at, count = found["physical_offset"] + found["total_size"], count + 1
                if takes_queue_offset(found["sys_flag"]):
                    offsets += [number for queue, number in queue_places(found) if queue == record.key]
                if count == look_ahead or len(offsets) == FOLLOWERS:
                    return offsets
            resumed = self._finder.find(at + 1, end) if at + 1 < end else None
            if resumed is None:
                break
            at = resumed[0]
        return offsets

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
        """Whether the entry of a queue offset leads to the record of that offset. An entry below the log's minimum is
        believed."""
        reader = self._about.queues[key]
        if number < 0:
            return False
        entry = reader.entry(number)
        if not entry.written or entry.physical_offset < self._reader.begin:
            return entry.written
        found = self._reader.record(entry.physical_offset)
        return found is not None and matches(found, key, number, entry.size)

    # ------------------------------------------------------------------------------------ index

    def _load_keys(self) -> str | None:
        scanner, keys = self.scanner, self.result.keys
        if keys is not None:
            count = scanner.wanted - scanner.keys_at + ENTRIES_AT_ONCE
            scanner.set_keys(keys.rows.read(scanner.keys_at, count), scanner.keys_at)
        return None

    def _other_key(self) -> str | None:
        self._keys_agree_until(self.scanner.position)
        self.scanner.stop_comparing_keys()
        return None

    def _keys_agree_until(self, position: int) -> None:
        keys = self.result.keys
        if keys is not None and keys.position < 0:
            keys.position, keys.number = position, self.scanner.keys_at
            keys.last_record = self.scanner.last_record

    # ----------------------------------------------------------------------------------- damage

    def _step_over(self, reason: str) -> bool:
        """Continues behind damage; False if the log ends here."""
        scanner, about = self.scanner, self._about
        position = scanner.position
        known = about.known_damage.covering(position)
        if known is not None and known[1] <= self._reader.end:
            self.go_to(known[1])
            return True
        if not about.keep or position >= self._durable_end():
            return False
        resumed = self._resume(position)
        if resumed is None:
            self.result.lost_end = self._durable_end()
            return False
        self.result.damage.append(DamagedRange(position, resumed, reason))
        self.go_to(resumed)
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
        """Searches the rest of the log for the last record that was stored by the physic timestamp, over any damage."""
        scanner = log_walk.LogWalker(
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
        (key, queue_offset) in queue_places(record)
        and record["total_size"] == size
        and takes_queue_offset(record["sys_flag"])
    )
