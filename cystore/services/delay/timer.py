"""The timer: messages with a due time of their own, and the order in which they are due.

They wait in one queue of SCHEDULE_TOPIC_XXXX, in the order of their puts. Whatever ends the wait of a message appends a
record that names it as its source: its delivery, its cancellation, or its copy with another place or due time. So the
log alone says which messages wait. Notes of that are in the blocks (timer_blocks.py); deliveries behind the last saved
position are noted again from the log (delivery_progress.py).

In memory a process has the due times of one block, the last one, which is not complete. Of the others it has the next
due time only: their order is in their files.
"""

from __future__ import annotations

import heapq
import logging
from collections.abc import Iterable, Iterator

from cystore._native.derived.delay import TimerBlock
from cystore._native.derived.transfer import carried_due_ms
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue, ConsumeQueues, QueueEntry
from cystore.engine.files.segments import Mode
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, OffsetError, StoreFullError
from cystore.layout import CONSTANTS, SCHEDULE_TOPIC
from cystore.services.delay.timer_blocks import MESSAGES, TimerBlocks, begin_of
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

TIMER_QUEUE_ID = CONSTANTS["TIMER_QUEUE_ID"][0]
# Queue of the records that cancel: nothing waits there.
ENDS_QUEUE_ID = CONSTANTS["TIMER_ENDS_QUEUE_ID"][0]
STEPPED_OVER = 1  # a note without a record: the message cannot be delivered. No record begins there
FOREIGN_BELOW = 1 << 31  # RocketMQ's tags codes: it rebuilt the queue, and the record has the due time
TAKEN_AT_ONCE = 64
OFFSET_BITS = 48  # of a queue offset beside a due time in one number

Due = tuple[int, int]  # due time, queue offset


class Timer:
    """The messages that wait in the timer's queue of one store. Safe for threads. Notes are written under the deliver
    lock."""

    def __init__(
        self, control: Control, commit_log: CommitLog, queues: ConsumeQueues, blocks: TimerBlocks, mode: Mode
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self.blocks, self._mode = blocks, mode
        self._slot = -1
        self._lock = os_threads.RLock()
        self._entered: int | None = None  # messages before this queue offset are in `_soon` or `_sorted`
        # Due time and queue offset in one number, for the block that is not complete, and for messages that were taken
        # and did not leave, or that are due later than their entry says.
        self._soon: list[int] = []
        self._sorted: list[
            tuple[int, int, int]
        ] = []  # next due time, begin of the block, number in its order
        self._taken: list[Due] = []
        self._trouble = Trouble()

    # -------------------------------------------------------------------------------------------- places

    @property
    def slot(self) -> int:
        """The slot of the timer's queue; -1 without one."""
        if self._slot < 0:
            self._slot = self._control.find_queue(SCHEDULE_TOPIC, TIMER_QUEUE_ID)
        return self._slot

    @property
    def queue(self) -> ConsumeQueue:
        """The timer's queue, which must exist."""
        return self._queues.get(self.slot)

    def _minimum(self) -> int:
        return self._control.queue_minimum(self.slot)

    def waits(self, queue_offset: int) -> bool:
        """Whether a message has not left, as far as it is noted."""
        if queue_offset < self._minimum():
            return False
        block = self.blocks.find(begin_of(queue_offset))
        return block is None or block.left(queue_offset - block.begin) <= 0

    def next_waiting(self, begin: int, end: int) -> int:
        """The first queue offset in [begin, end) whose message waits; `end` if there is none."""
        at = max(begin, self._minimum())
        while at < end:
            block = self.blocks.find(begin_of(at))
            if block is None:
                return at
            at = block.begin + block.next_waiting(at - block.begin, end - block.begin)
            if at < min(end, block.begin + MESSAGES):
                return at
        return end

    def count(self, begin: int) -> int:
        """The number of messages from `begin` on that wait."""
        if self.slot < 0:
            return 0
        at, end, found = max(begin, self._minimum()), self._control.queue_end(self.slot), 0
        while at < end:
            first = begin_of(at)
            stop = min(end, first + MESSAGES)
            block = self.blocks.find(first)
            found += stop - at if block is None else block.waiting(at - first, stop - first)
            at = stop
        return found

    # ------------------------------------------------------------------------------- under the deliver lock

    def leave(self, queue_offset: int, position: int) -> None:
        """Notes the record that took a message's place. Raises StoreFullError if the message has no block yet."""
        block = self.blocks.make(begin_of(queue_offset))
        block.leave(queue_offset - block.begin, position)

    def leave_all(self, left: list[tuple[int, int]]) -> None:
        """The same for many messages: (queue offset, position) of each. `take_back` need not look at them any more."""
        in_block: dict[int, list[tuple[int, int]]] = {}
        for one in left:
            begin = one[0] - one[0] % MESSAGES
            if begin not in in_block:
                in_block[begin] = []
            in_block[begin].append(one)
        for begin, some in in_block.items():
            self.blocks.make(begin).leave_all(some)
        gone = {queue_offset for queue_offset, _ in left}
        with self._lock:
            self._taken = [due for due in self._taken if due[1] not in gone]

    # ------------------------------------------------------------------------------- the first process in

    def load(self, floor: int, saved: int) -> None:
        """Compares the notes with the log, while the process is alone in the store. Notes of records before `saved`,
        the log position of the saved progress, are durable; later ones may be missing or ahead of the log. A block that
        is lost or damaged is read again from the log up to there; the delivery reads the rest."""
        if self.slot < 0:
            return
        end, wrote = self._control.queue_end(self.slot), self._control.wrote
        lost: list[int] = []
        for begin in range(begin_of(max(floor, self._minimum())), end, MESSAGES):
            block = self.blocks.find(begin)
            damaged = block is not None and block.sync_failed
            for place, position in [] if block is None else block.notes_from(saved):
                assert block is not None
                damaged = damaged or position < 0
                if position != STEPPED_OVER and not (
                    0 < position < wrote and self._is_of(position, begin + place)
                ):
                    block.forget(place)
            if block is None or damaged:
                lost.append(begin)
        if lost:
            self._read_again(lost, floor, saved, end)

    def _is_of(self, position: int, queue_offset: int) -> bool:
        """Whether the record at a position took the place of a message of the timer's queue."""
        try:
            return self._source_of(self._commit_log.read(position)) == queue_offset
        except (OffsetError, CorruptRecordError):
            return False

    def _source_of(self, message: Message) -> int | None:
        """The queue offset of the timer's message that a record took the place of; None for any other record, also for
        one that was copied from another store."""
        if b"DELAY_SOURCE\x01" not in (message.properties_bytes or b""):
            return None
        try:
            queue_id, queue_offset, physical_offset, _ = map(
                int, message.properties.get("DELAY_SOURCE", "").split(":")
            )
        except ValueError:
            return None
        if queue_id != TIMER_QUEUE_ID or not self._minimum() <= queue_offset < self.queue.max_offset:
            return None
        entry = self.queue.entry(queue_offset)
        return queue_offset if entry is None or entry.physical_offset == physical_offset else None

    def _read_again(self, lost: list[int], floor: int, saved: int, end: int) -> None:
        """Makes blocks without notes, enters the notes of the records up to `saved`, and then writes the headers. A
        kill before that leaves blocks that are not valid, and the next load does the same."""
        first = self._position(max(floor, lost[0], self._minimum()), end)
        was_there = self.blocks.folder.exists()
        blocks = {begin: self.blocks.remake(begin) for begin in lost}
        if first is not None and first < saved:
            if was_there:  # a snapshot has none of them
                log.warning(
                    "%s: %d files of the timer were lost or damaged; reading the log from %d to %d again",
                    self.blocks.folder, len(lost), first, saved,
                )  # fmt: skip
            for message in self._commit_log.scan(first, min(saved, self._control.wrote)):
                queue_offset = self._source_of(message)
                block = None if queue_offset is None else blocks.get(begin_of(queue_offset))
                if block is not None and queue_offset is not None:
                    block.leave(queue_offset - block.begin, message.physical_offset)
        for block in blocks.values():
            block.sync()
            block.make()

    def _position(self, begin: int, end: int) -> int | None:
        queue = self.queue
        at = queue.next_message(begin, min(end, queue.max_offset))
        entry = None if at is None else queue.entry(at)
        return None if entry is None else entry.physical_offset

    # -------------------------------------------------------------------------------------- order of due times

    def enter(self, floor: int) -> None:
        """Takes notice of the messages that were dispatched since the last call; those before `floor` have left. On a
        full disk, messages without a block wait until there is space: no note of them could be written."""
        if self.slot < 0:
            return
        try:
            self._enter(floor)
            self._trouble.over()
        except StoreFullError as error:
            self._trouble.tell(log, logging.WARNING, error, "messages of the timer wait for space")

    def _enter(self, floor: int) -> None:
        with self._lock:
            queue = self.queue
            at, end = self._entered, queue.max_offset
            if at is None:
                at = max(floor, self._minimum())
            while at < end:
                first = begin_of(at)
                block = self.blocks.make(first)
                stop = min(end, first + MESSAGES)
                # If the queue begins inside the block, the entries before that may be gone.
                if stop == first + MESSAGES and (first >= self._minimum() or block.is_sorted):
                    self._sort(block)
                    self._soon = [one for one in self._soon if not first <= _offset_of(one) < stop]
                    heapq.heapify(self._soon)
                    _, number, due_ms = block.take(0, -1, 0)
                    if due_ms is not None:
                        heapq.heappush(self._sorted, (due_ms, first, number))
                else:
                    for queue_offset, entry in queue.entries(at, stop):
                        if block.left(queue_offset - first) <= 0:
                            heapq.heappush(self._soon, _one(_due_of(entry), queue_offset))
                self._entered = at = stop

    def _sort(self, block: TimerBlock) -> None:
        if not block.is_sorted:
            block.sort(self._entries(block.begin))

    def _entries(self, begin: int) -> bytes:
        """The entries of a whole block; holes are due at once, and stepped over then."""
        queue, parts, at = self.queue, [], begin
        while at < begin + MESSAGES:
            file = queue.file_of(at)
            if file is None:
                raise OffsetError(f"no entry for queue offset {at}", path=queue.files.directory)
            stop = min(begin + MESSAGES, file.end // ENTRY_BYTES)
            parts.append(file.read(at * ENTRY_BYTES - file.base, (stop - at) * ENTRY_BYTES))
            at = stop
        return b"".join(parts)

    def next_due_ms(self) -> int | None:
        """The next due time by the entries; None if nothing waits."""
        with self._lock:
            while self._soon and not self.waits(_offset_of(self._soon[0])):
                heapq.heappop(self._soon)
            first = [self._soon[0] >> OFFSET_BITS] if self._soon else []
            first += [self._sorted[0][0]] if self._sorted else []
            return min(first, default=None)

    def take(self, until_ms: int, room: int) -> list[Due]:
        """Takes at most `room` waiting messages that are due by then, in the order of due times. Those that have not
        left by the next `take_back` are there again then."""
        taken: list[Due] = []
        with self._lock:
            while len(taken) < room:
                soon_ms = self._soon[0] >> OFFSET_BITS if self._soon else None
                sorted_ms = self._sorted[0][0] if self._sorted else None
                if sorted_ms is not None and (soon_ms is None or sorted_ms <= soon_ms):
                    if sorted_ms > until_ms:
                        break
                    taken += self._take_sorted(
                        until_ms if soon_ms is None else min(until_ms, soon_ms), room - len(taken)
                    )
                elif soon_ms is not None and soon_ms <= until_ms:
                    queue_offset = _offset_of(heapq.heappop(self._soon))
                    if self.waits(queue_offset):
                        taken.append((soon_ms, queue_offset))
                else:
                    break
            self._taken += taken
        return taken

    def _take_sorted(self, until_ms: int, room: int) -> list[Due]:
        """Takes messages of the block that has the next one, as long as none of another block comes before."""
        _, begin, number = self._sorted[0]
        others = self._sorted[1:3]
        if others:
            until_ms = min(until_ms, max(min(others)[0], self._sorted[0][0]))
        block = self.blocks.find(begin)
        found: list[Due] = []
        due_ms: int | None = None
        if block is not None:
            found, number, due_ms = block.take(number, until_ms, room)
        if due_ms is None:
            heapq.heappop(self._sorted)
        else:
            heapq.heapreplace(self._sorted, (due_ms, begin, number))
        minimum = self._minimum()
        return found if begin >= minimum else [due for due in found if due[1] >= minimum]

    def take_back(self) -> None:
        """Puts the messages that were taken and have not left back into the order."""
        with self._lock:
            for due_ms, queue_offset in self._taken:
                if self.waits(queue_offset):
                    heapq.heappush(self._soon, _one(due_ms, queue_offset))
            self._taken.clear()

    def wait_until(self, queue_offset: int, due_ms: int) -> None:
        """Enters a taken message again, with the due time that its record has."""
        with self._lock:
            self._taken = [one for one in self._taken if one[1] != queue_offset]
            heapq.heappush(self._soon, _one(due_ms, queue_offset))

    def in_order(self, begin_ms: int, end_ms: int, floor: int) -> Iterator[Due]:
        """The waiting messages that are due in [begin_ms, end_ms), in the order of due times. Keeps one page of each
        block in memory."""
        if self.slot < 0:
            return iter(())
        self.enter(floor)
        with self._lock:
            last = begin_of(max((self._entered or 0) - 1, 0))
            soon = sorted(
                (one >> OFFSET_BITS, _offset_of(one))
                for one in [*self._soon, *(_one(*due) for due in self._taken)]
            )
            blocks = [begin for _, begin, _ in self._sorted]
        runs: list[Iterable[Due]] = [
            [due for due in soon if begin_ms <= due[0] < end_ms],
            *(self._run(begin, begin_ms, end_ms) for begin in blocks if begin <= last),
        ]
        return self._each_once(heapq.merge(*runs))

    def _each_once(self, found: Iterable[Due]) -> Iterator[Due]:
        before: Due | None = None
        for due in found:
            if due != before and self.waits(due[1]):
                yield due
            before = due

    def _run(self, begin: int, begin_ms: int, end_ms: int) -> Iterator[Due]:
        block = self.blocks.find(begin)
        if block is None:
            return
        number: int = block.due_from(begin_ms)
        while True:
            found, number, due_ms = block.take(number, end_ms - 1, TAKEN_AT_ONCE)
            yield from found
            if due_ms is None or due_ms >= end_ms:
                return


def _one(due_ms: int, queue_offset: int) -> int:
    return due_ms << OFFSET_BITS | queue_offset


def _offset_of(one: int) -> int:
    return one & (1 << OFFSET_BITS) - 1


def _due_of(entry: QueueEntry | None) -> int:
    """The due time in an entry. Without one the message is looked at at once: its record has the due time."""
    return 0 if entry is None or entry.tags_code < FOREIGN_BELOW else entry.tags_code


def due_of_record(message: Message) -> int:
    """The due time of a waiting message, by its record; 0 if that names none: it is due at once."""
    return carried_due_ms(message) or 0
