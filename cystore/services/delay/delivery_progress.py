"""The progress of delayed delivery. After a kill it is found again in the log itself.

A delivered message names its source in the property DELAY_SOURCE: "queue id:queue offset:physical offset:store
timestamp" in SCHEDULE_TOPIC_XXXX. A message that was carried forward (carry.py) waits in another queue of its level and
names its source too. Both have left the queue of their source. So the log always has more than any note of progress,
and deliveries behind the last note are counted before any other message is moved. There are two notes: one in the
control block, where the next process continues after a killed one, and config/delayOffset.json, where the first process
continues after all of them. Both hold a log position and are never too high.

RocketMQ saves only offsets, which are too small, and its deliveries name no source. So behind a RocketMQ table a
delivered message counts for the first pending message with the same content.
"""

from __future__ import annotations

import logging
import zlib
from collections import Counter
from collections.abc import Callable, Hashable
from functools import partial
from pathlib import Path

from cystore._native.derived.delay import Delivered
from cystore._native.derived.transfer import carried_due_ms, source_text
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.files.offsets import DelayOffsets, read_delay_offsets, write_delay_offsets
from cystore.engine.log.append_policy import repair_dead_append
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreFormatError,
    StoreFullError,
    SyncFailedError,
)
from cystore.layout import CONSTANTS, FLAGS, SCHEDULE_TOPIC
from cystore.services.delay.timer import ENDS_QUEUE_ID, TIMER_QUEUE_ID, Timer
from cystore.system import files
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

SOURCE = "DELAY_SOURCE"
DUE = "DELAY_DUE"  # of a message that was carried forward: when it is due, ms
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]
RUN_QUEUES = CONSTANTS["DELAY_RUN_QUEUES"][0]  # queue id = level - 1 + RUN_QUEUES * run; run 0 is RocketMQ's
LOOK_AT_ONCE = 1024  # records between two notes of the search's progress
SAVE_BYTES = 64 * 1024 * 1024  # of log behind the last saved table at most, while messages are delivered


def level_of(queue_id: int) -> int:
    """The delay level whose messages wait in a queue."""
    return queue_id % RUN_QUEUES + 1


def content_of(message: Message) -> Hashable:
    """The common content of a waiting message and of RocketMQ's delivery of it, or of the message that it was carried
    from."""
    notes = (SOURCE, DUE) if carried_due_ms(message) is not None else (SOURCE,)
    properties = frozenset(pair for pair in message.properties.items() if pair[0] not in notes)
    body = message.body
    return message.born_timestamp_ms, message.born_host, message.flag, len(body), zlib.crc32(body), properties


class DeliveryProgress:
    """Progress of one store. Changes need the deliver lock; reading needs none."""

    def __init__(
        self,
        root: Path,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        timer: Timer,
        begin_timer: Callable[[], None] = lambda: None,
    ) -> None:
        self.timer, self._begin_timer = timer, begin_timer
        self._root, self._control, self._commit_log, self._queues = root, control, commit_log, queues
        self.shared = Delivered(control)
        self._slots: dict[int, int] = {}
        self._slots_seen = 0
        self._pending_by_content: dict[int, dict[Hashable, list[int]]] = {}

    # -------------------------------------------------------------------------------------------- looking

    def slots(self) -> dict[int, int]:
        """The slot of each queue of delayed messages, by its queue id."""
        count = self._control.queue_count
        if count > self._slots_seen:
            rows = [(slot, self._control.queue(slot)) for slot in range(self._slots_seen, count)]
            new = {
                queue_id: slot
                for slot, (topic, queue_id, *_) in rows
                if topic == SCHEDULE_TOPIC and queue_id != ENDS_QUEUE_ID
            }
            self._slots, self._slots_seen = {**self._slots, **new}, count
        return self._slots

    def offset(self, slot: int) -> int:
        """The first offset of a queue that may be pending."""
        return max(self.shared.offset(slot), self._control.queue_minimum(slot))

    def waits(self, queue_id: int, queue_offset: int) -> bool:
        """Whether a message of a queue of delayed messages has not left, as far as it is noted."""
        slot = self.slots().get(queue_id)
        if slot is None:  # the queue of the records that cancel
            return False
        if queue_offset < self.offset(slot):  # the timer may have no block for it any more
            return False
        return slot != self.timer.slot or self.timer.waits(queue_offset)

    def runs_behind(self) -> dict[int, int]:
        """The ends of the runs whose last messages have no entries, by slot."""
        behind = {}
        for queue_id, slot in self.slots().items():
            end = self._control.queue_end(slot) if queue_id >= RUN_QUEUES else 0
            if end > self._queues.get(slot).max_offset:
                behind[slot] = end
        return behind

    def pending(self) -> dict[int, int]:
        """The number of waiting messages in each level's queues, by level; those with a time of their own are level 0.
        Delivered ones count too until they are counted as such."""
        waiting: Counter[int] = Counter()
        for queue_id, slot in self.slots().items():
            if queue_id == TIMER_QUEUE_ID:
                waiting[0] += self.timer.count(self.offset(slot))
                continue
            waiting[level_of(queue_id)] += max(self._control.queue_end(slot) - self.offset(slot), 0)
        return {level: count for level, count in sorted(waiting.items()) if count}

    def first_needed(self) -> int:
        """The log position before which no message waits; undispatched records do not count as examined."""
        return min(self._control.dispatched, self.first_waiting())

    def first_waiting(self) -> int:
        """The position of the first dispatched, waiting message; the wrote position if there is none."""
        needed = self._control.wrote
        for slot in self.slots().values():
            queue = self._queues.get(slot)
            begin = self.offset(slot)
            if slot == self.timer.slot:
                begin = self.timer.next_waiting(begin, queue.max_offset)
            at = queue.next_message(begin, queue.max_offset)
            entry = None if at is None else queue.entry(at)
            if entry is not None:
                needed = min(needed, entry.physical_offset)
        return needed

    # --------------------------------------------------------------------------------- the first process in

    def load(self, *, writable: bool) -> None:
        """Reads the saved table, while the process is alone in the store. If it is lost, damaged, or ahead of a log
        that a power cut made shorter, the first delivery counts from the log."""
        control, shared = self._control, self.shared
        damaged: list[Path] = []
        try:
            saved = read_delay_offsets(self._root, self._check, damaged)
        except StoreFormatError as error:
            log.warning("%s; counting deliveries from the log", error)
            saved = DelayOffsets()
        for queue_id, slot in self.slots().items():
            shared.set_offset(slot, max(saved.table.get(queue_id + 1, 0), control.queue_minimum(slot)))
        if self.timer.slot >= 0:
            if writable:
                self._begin_timer()  # the log may come from a master, or the manifest was made anew
            self.timer.load(self.offset(self.timer.slot), saved.physical_offset)
        position = max(saved.physical_offset, self.first_needed(), control.min_physical_offset)
        shared.position = position
        shared.unfinished = position < control.wrote
        if writable:
            for path in damaged:
                files.remove(path)  # else it would be believed when the log is long enough again
            self.save()

    def _check(self, saved: DelayOffsets) -> None:
        """Raises ValueError for a table that counts more than the log has."""
        if saved.physical_offset > self._control.wrote:
            raise ValueError(
                f"it counts deliveries up to {saved.physical_offset}; the log ends at {self._control.wrote}"
            )
        for level, offset in saved.table.items():
            slot = self.slots().get(level - 1)
            end = 0 if slot is None else self._control.queue_next(slot)
            if offset > end:
                raise ValueError(f"level {level} was delivered up to {offset}; its queue ends at {end}")

    # --------------------------------------------------------------------------------- under the deliver lock

    def count(self, until_s: float | None = None) -> bool:
        """Counts deliveries behind the last note; False if the time was up before the end. Damage is reported and
        stepped over: messages there are not in their topics any more."""
        shared, control = self.shared, self._control
        if not self._has_uncounted:
            return True
        repair_dead_append(control)  # else the queues do not count its messages yet
        control.commit()
        slave = control.flags & FLAG_SLAVE
        end = control.wrote
        shared.position = max(shared.position, control.min_physical_offset)
        while shared.position < end:
            try:
                if not self._count_to(end, until_s):
                    return False
            except CorruptRecordError:
                log.exception(
                    "%s: the log is damaged; counting deliveries behind the damage",
                    self._commit_log.files.directory,
                )
                shared.position = self._behind_damage(end)
        failpoint("deliver.looked")
        self.finish()
        if slave and control.wrote > end:  # this store may be a master by now, which looks only at the mark
            shared.unfinished = True
        return True

    @property
    def _has_uncounted(self) -> bool:
        """Whether deliveries may be uncounted. A slave's log grows by its master's deliveries, which set no mark."""
        shared, control = self.shared, self._control
        return bool(shared.unfinished or (control.flags & FLAG_SLAVE and shared.position < control.wrote))

    def _count_to(self, end: int, until_s: float | None) -> bool:
        """Counts from the last note to `end`; False if the time was up before."""
        shared = self.shared
        behind = shared.position
        try:
            for looked_at, message in enumerate(self._commit_log.scan(behind, end), 1):
                self._count(message)
                behind = message.physical_offset + message.size_bytes
                if looked_at % LOOK_AT_ONCE == 0:
                    shared.position = behind
                    if until_s is not None and monotonic_s() >= until_s:
                        return False
            behind = end
        finally:
            shared.position = behind
        return True

    def _behind_damage(self, end: int) -> int:
        """The next valid record behind an unreadable one."""
        from cystore.recovery.walk.log_reader import Finder, LogReader

        reader = LogReader(self._root, self._commit_log.file_bytes)
        try:
            found = Finder(reader, check_checksum=True).find(self.shared.position + 1, end)
        finally:
            reader.close()
        return end if found is None else found[0]

    def settle(self, until_s: float | None = None) -> None:
        """`count` for a process that does not deliver. Does nothing while another process delivers."""
        if self._has_uncounted:
            undisturbed(partial(self._settle, until_s))

    def _settle(self, until_s: float | None) -> None:
        with self._control.held_if_free("deliver") as turn:
            if turn.held:
                self.count(until_s)

    def begin(self) -> None:
        """Records that from here on deliveries may be uncounted."""
        self.shared.position = self._control.wrote
        self.shared.unfinished = True
        failpoint("deliver.begun")

    def move(self, slot: int, queue_offset: int) -> None:
        """Records that all messages of a queue before `queue_offset` are delivered."""
        if queue_offset > self.shared.offset(slot):
            self.shared.set_offset(slot, queue_offset)

    def leave(self, slot: int, queue_offset: int, position: int) -> None:
        """Records that the record at `position` took the place of a message."""
        if slot == self.timer.slot:
            self.timer.leave(queue_offset, position)
        else:
            self.move(slot, queue_offset + 1)

    def finish(self) -> None:
        """Records that every delivery is counted."""
        self.shared.unfinished = False
        self._pending_by_content.clear()

    def _forward_timer(self) -> None:
        """Moves the timer's offset over the messages that left, and removes blocks that no message needs."""
        slot = self.timer.slot
        if slot >= 0:
            begin = self.offset(slot)
            self.move(slot, self.timer.next_waiting(begin, self._queues.get(slot).max_offset))
            self.timer.blocks.remove_below(self._control.queue_minimum(slot))

    def _count(self, message: Message) -> None:
        if b"REAL_TOPIC\x01" not in (message.properties_bytes or b""):
            return
        properties = message.properties
        if message.topic == SCHEDULE_TOPIC:
            if (
                SOURCE not in properties
            ):  # it was put there; one that was carried forward or set aside names its source
                return
        elif properties.get("REAL_TOPIC") != message.topic:
            return
        if SOURCE in properties:
            found = self._place_of_source(properties[SOURCE])
        else:
            found = self._alike(message)
        if found is not None:
            self.leave(*found, message.physical_offset)

    def _place_of_source(self, text: str) -> tuple[int, int] | None:
        """(slot, queue offset) of a source; None for a source in another store, whose messages were copied here."""
        try:
            queue_id, queue_offset, physical_offset, _ = map(int, text.split(":"))
        except ValueError:
            return None
        slot = self.slots().get(queue_id)
        if slot is None or not self.offset(slot) <= queue_offset < self._control.queue_end(slot):
            return None
        try:
            source = self._commit_log.read(physical_offset)
        except (OffsetError, CorruptRecordError):
            source = None
        if source is not None:
            return (slot, queue_offset) if source_text(source) == text else None
        # The source is damaged; its queue still knows its place.
        queue = self._queues.get(slot)
        entry = queue.entry(queue_offset) if queue_offset < queue.max_offset else None
        there = entry is not None and entry.physical_offset == physical_offset
        return (slot, queue_offset) if there else None

    def _alike(self, message: Message) -> tuple[int, int] | None:
        """(slot, queue offset) of the first pending message of which this one may be RocketMQ's delivery."""
        for slot in self._slots_of(message.delay_level):
            if slot not in self._pending_by_content:
                self._pending_by_content[slot] = self._contents(slot)
            for queue_offset in self._pending_by_content[slot].get(content_of(message), ()):
                if queue_offset >= self.offset(slot):
                    entry = self._queues.get(slot).entry(queue_offset)
                    if entry is not None and entry.physical_offset < message.physical_offset:
                        return slot, queue_offset
        return None

    def _slots_of(self, level: int) -> list[int]:
        """The queues of a level, RocketMQ's own first."""
        return [slot for queue_id, slot in sorted(self.slots().items()) if level_of(queue_id) == level]

    def _contents(self, slot: int) -> dict[Hashable, list[int]]:
        """Pending offsets of a queue by the content of their messages, lowest first."""
        found: dict[Hashable, list[int]] = {}
        queue = self._queues.get(slot)
        for queue_offset, entry in queue.entries(self.offset(slot), queue.max_offset):
            if entry is None:
                continue
            try:
                message = self._commit_log.read(entry.physical_offset)
            except CorruptRecordError:
                continue  # no process can have delivered it since; the process that meets it reports it
            found.setdefault(content_of(message), []).append(queue_offset)
        return found

    def save(self) -> None:
        """Writes config/delayOffset.json completely or not at all; a full disk is a warning, because the log knows the
        deliveries."""
        shared = self.shared
        if not self.slots():
            return
        self._control.commit()  # what is counted must not be lost where the table is not
        self._forward_timer()
        if self.timer.slot >= 0:
            try:
                self.timer.blocks.sync()  # the table's position says that they are durable
            except SyncFailedError:
                log.exception("%s: cannot save the progress of delayed messages", self._root)
                return
        position = shared.position if self._has_uncounted else self._control.wrote
        table = {queue_id + 1: self.offset(slot) for queue_id, slot in self.slots().items()}
        try:
            write_delay_offsets(self._root, DelayOffsets(table, position))
        except StoreFullError:
            log.warning("%s: no space to save the progress of delayed messages", self._root)
        failpoint("deliver.saved")
        shared.saved = (position, int(monotonic_s() * 1000))

    def save_if_old(self, interval_ms: int) -> None:
        """`save` when the saved table is older than that, or far behind in the log."""
        position, saved_ms = self.shared.saved
        if position == self._control.wrote:
            return
        if monotonic_s() * 1000 - saved_ms >= interval_ms or self._control.wrote - position >= SAVE_BYTES:
            self.save()
