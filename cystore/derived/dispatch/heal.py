"""Rewrites consume queue files that were deleted or damaged under attached processes, from the log, while all continue
to work."""

from __future__ import annotations

import logging

from cystore._native.lookup import tail as tail_kernel
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.properties import queues_of
from cystore._native.record.window import LogWindow
from cystore.derived.dispatch.resume import DamageSearch
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue, ConsumeQueues
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import CONSTANTS, QUEUE_ENTRY, SCHEDULE_TOPIC, field_of

log = logging.getLogger("cystore")

WRITE_ENTRIES = 4096  # compared and written in one turn under the dispatch lock
LOCK_WAIT_MS = 1_000
HOLE_ENTRY = QUEUE_ENTRY.pack(0, CONSTANTS["HOLE_ENTRY_SIZE"][0], 0)
PLACE_BYTES = field_of("queue_entry_disk", "tags_code").at  # of an entry: position and length of its record
DAMAGES_MAX = 100  # damaged ranges of the log that one walk steps over


class QueueHealer:
    """Heals the queues of one store. The log is walked without a lock; entries are written in short turns under the
    dispatch lock."""

    def __init__(self, control: Control, commit_log: CommitLog, queues: ConsumeQueues) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self.healed = 0  # entries that this process rewrote
        self._hopeless: set[tuple[int, int]] = set()  # (slot, queue offset): the log has nothing better

    def heal(self, slot: int, queue_offset: int) -> bool:
        """Rewrites the wrong entries of the file that holds a queue offset, from that offset on; True if there were
        some.

        A process that may not write gives False. Raises StoreFullError, StoreIOError.
        """
        control, queue = self._control, self._queues.get(slot)
        if control.read_only or queue.topic == SCHEDULE_TOPIC or (slot, queue_offset) in self._hopeless:
            return False
        end = queue.max_offset
        behind_file = queue.next_file_offset(queue_offset)
        first = max(queue.min_offset, behind_file - queue.files.file_bytes // ENTRY_BYTES)
        if queue.file_of(queue_offset) is not None:
            first = queue_offset
        found = self._entries(queue, first, min(end, behind_file))
        written = 0 if found is None else self._write(queue, found, first)
        if not written:
            if len(self._hopeless) > 10_000:
                self._hopeless.clear()
            self._hopeless.add((slot, queue_offset))
            return False
        self.healed += written
        log.error(
            "%s: %d entries from queue offset %d on were missing or wrong; rewriting them from the log",
            queue.files.directory,
            written,
            first,
        )
        return True

    def entries(self, slot: int, queue_offset: int) -> tuple[MappedFile, int] | None:
        """The right entries from a queue offset to the end of its file, and the number of those that the log
        determines."""
        queue = self._queues.get(slot)
        end = min(queue.max_offset, queue.next_file_offset(queue_offset))
        return self._entries(queue, queue_offset, end)

    def _entries(self, queue: ConsumeQueue, first: int, end: int) -> tuple[MappedFile, int] | None:
        """The right entries [first, end): memory like a consume queue file, and the number of those that the log
        determines."""
        control = self._control
        out = MappedFile.anonymous(first * ENTRY_BYTES, max(end - first, 1) * ENTRY_BYTES)
        minimum, dispatched = control.min_physical_offset, control.dispatched
        for position in self._starts(queue, first, minimum):
            try:
                count = self._walk(queue, out, minimum, dispatched, position)
            except OffsetError:  # a segment was cleaned
                continue
            if count and end > first:
                count = min(count, end - first)
                self._keep_sound(queue, out, first, count)
                return out, count
        return None

    def _walk(
        self, queue: ConsumeQueue, out: MappedFile, minimum: int, dispatched: int, position: int
    ) -> int:
        """Fills `out` with entries from the records of [position, dispatched), over any damage in the log; returns
        their number. An entry of a damaged record stays, so that a `get` of it reports the damage."""
        name, known = queue.topic.encode(), self._commit_log.damaged_ranges
        holes, damaged = known, DamagedRanges()
        for _ in range(DAMAGES_MAX):
            window = LogWindow(self._commit_log.segment_for, holes.ranges())
            try:
                count, at = tail_kernel.entries_into(
                    out, window, minimum, dispatched, position, name, queue.queue_id
                )
            except CorruptRecordError as error:  # a segment is missing
                count, at = 0, error.offset or 0
            if count * ENTRY_BYTES >= out.length or not position <= at < dispatched:
                break
            search = DamageSearch(self._commit_log, at, "damaged")
            while not search.step(dispatched):
                pass
            damaged = damaged.merged([DamagedRange(at, search.end)])
            holes = known.merged(damaged)
        if damaged:
            _keep_entries_of(damaged, queue, out, count)
        return count

    def _keep_sound(self, queue: ConsumeQueue, out: MappedFile, first: int, count: int) -> None:
        """Puts an entry of the queue that leads to its own record in place of one that leads elsewhere: a record before
        it may have a wrong queue offset, which no checksum of RocketMQ's format covers."""
        file = queue.file_of(first)
        if file is None:
            return
        at = first * ENTRY_BYTES - file.base
        wanted, present = out.read(0, count * ENTRY_BYTES), file.read(at, count * ENTRY_BYTES)
        for place in range(0, len(wanted) if wanted != present else 0, ENTRY_BYTES):
            entry = present[place : place + ENTRY_BYTES]
            if wanted[place : place + PLACE_BYTES] != entry[:PLACE_BYTES] and self._is_sound(
                queue, first + place // ENTRY_BYTES, entry
            ):
                out.write(place, entry)

    def _is_sound(self, queue: ConsumeQueue, number: int, entry: bytes) -> bool:
        """Whether an entry leads to an intact record with that queue offset."""
        position, size, _ = QUEUE_ENTRY.unpack(entry)
        if position < 0 or size <= 0 or entry == HOLE_ENTRY:
            return False
        try:
            record = self._commit_log.read(position)
        except (OffsetError, CorruptRecordError):
            return False
        return record.size_bytes == size and (queue.topic, queue.queue_id, number) in queues_of(record)

    def _starts(self, queue: ConsumeQueue, first: int, minimum: int) -> list[int]:
        """Log positions to walk from: the record before the first entry, if that is sound, else the log's minimum."""
        before = None
        if first > queue.min_offset and queue.file_of(first - 1) is not None:
            before = queue.entry(first - 1)
        if before is None:
            return [minimum]
        try:
            record = self._commit_log.read(before.physical_offset)
        except (OffsetError, CorruptRecordError):
            return [minimum]
        sound = (queue.topic, queue.queue_id, first - 1) in queues_of(record)
        return [before.physical_offset] if sound else [minimum]

    def _write(self, queue: ConsumeQueue, found: tuple[MappedFile, int], first: int) -> int:
        """Writes the entries that differ; returns their number."""
        memory, count = found
        written = 0
        for begin in range(first, first + count, WRITE_ENTRIES):
            end = min(begin + WRITE_ENTRIES, first + count)
            with self._control.held("dispatch", timeout_ms=LOCK_WAIT_MS):
                if end > queue.max_offset or begin < queue.min_offset:
                    return written  # cleaned meanwhile
                file = queue.remade(begin)
                at, length = begin * ENTRY_BYTES, (end - begin) * ENTRY_BYTES
                wanted, present = (
                    memory.read(at - memory.base, length),
                    file.read(at - file.base, length),
                )
                if wanted != present:
                    file.write(at - file.base, wanted)
                    written += sum(
                        wanted[place : place + ENTRY_BYTES] != present[place : place + ENTRY_BYTES]
                        for place in range(0, length, ENTRY_BYTES)
                    )
                queue.forget_everywhere()
        if written:
            with self._control.held("dispatch", timeout_ms=LOCK_WAIT_MS):
                file = queue.remade(first)
            file.sync()
        return written


def _keep_entries_of(damaged: DamagedRanges, queue: ConsumeQueue, out: MappedFile, count: int) -> None:
    """Puts entries of the queue that lead into damage where `out` has hole entries."""
    entries = out.read(0, count * ENTRY_BYTES)
    at = entries.find(HOLE_ENTRY)
    while at >= 0:
        if at % ENTRY_BYTES == 0:
            file = queue.file_of((out.base + at) // ENTRY_BYTES)
            present = b"" if file is None else file.read(out.base + at - file.base, ENTRY_BYTES)
            if present and damaged.covering(QUEUE_ENTRY.unpack(present)[0]) is not None:
                out.write(at, present)
        at = entries.find(HOLE_ENTRY, at + 1)


def is_queue_damage(error: CorruptRecordError) -> bool:
    """Whether a read failed because of an entry, or of its target, and not because of the record's own checksum."""
    return "bad checksum" not in str(error)
