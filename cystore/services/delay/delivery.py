"""Delivery of delayed messages: a due message leaves SCHEDULE_TOPIC_XXXX for its own topic, once.

Source: ScheduleMessageService. Three differences: any process may deliver, one batch at a time under the deliver lock.
A delivered message names its source, so a kill at any point delivers nothing twice. A message whose due time is further
away than its level waits, whereas RocketMQ takes that for a clock that was set back and delivers early.

A kill leaves delivered, uncounted messages behind the position that the batch noted before its first append. The next
delivery counts them first (delivery_progress.py).
"""

from __future__ import annotations

import heapq
import logging
from functools import partial

from cystore import clock
from cystore._native.append.appender import Appender
from cystore._native.derived.transfer import delivered_copy, leave_source_out
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import whole
from cystore._native.record.message import Message, PutResult
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s, seconds
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ConsumeQueue, ConsumeQueues
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.engine.files.progress import Progress
from cystore.engine.log.flush import Flusher
from cystore.errors import MessageIllegalError, QueuesFullError, StoreConfigError, StoreError
from cystore.layout import FLAGS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import RUN_QUEUES, DeliveryProgress, level_of
from cystore.services.delay.timer import TIMER_QUEUE_ID
from cystore.services.delay.transfer import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Leaving,
    RoomNeededError,
    Transfer,
)
from cystore.services.delay.waiting import WaitingQueues, has_target, report_undeliverable
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]
RUN_ONCE_S = 1.0
BUSY_MS = 10
IDLE_MS = 100  # ScheduleMessageService.DELAY_FOR_A_WHILE
TIMER_BATCH = 256
TIMER_IDLE_MS = 20  # while messages wait in the timer: another one may be due sooner
SET_ASIDE_MS = 10_000  # of a message of the timer whose queue cannot be made
OVERDUE_MS = 10_000  # of a message that is due, before the store says that nobody delivers


def nobody_delivers(overdue_ms: int) -> str:
    """The words for people about a message that has been due for so long; none if that is normal."""
    if overdue_ms < OVERDUE_MS:
        return ""
    return (
        f"NOBODY DELIVERS, or too slowly: a message has been due for {overdue_ms // 1000} s; run `cystore serve`, or a "
        "process with the service schedule"
    )


class Scheduler:
    """Delivers the delayed messages of one store. Without an appender it only gives the times at which they are due."""

    def __init__(
        self,
        control: Control,
        queues: ConsumeQueues,
        progress: DeliveryProgress,
        dispatch_help: DispatchHelp,
        flusher: Flusher,
        waiting: WaitingQueues,
        appender: Appender | None,
        config: StoreConfig,
    ) -> None:
        self._control, self._queues = control, queues
        self._progress, self._dispatch_help = progress, dispatch_help
        self._flusher, self._config = flusher, config
        self._appender = appender
        self._waiting_queues = waiting
        # By a queue's slot: the next message, its due time by the queue's entry, and its due time after a check of the
        # record.
        self._waiting: dict[int, tuple[int, int | None, int]] = {}
        # The last answer of `runs_behind`, and the log position where the messages of those runs end.
        self._behind: tuple[dict[int, int], int] = {}, 0
        self._transfer = None if appender is None else Transfer(progress, appender)
        # By queue offset: the records of due messages of the timer that come again, the first one of them is in the
        # batch. They are appended together.
        self._groups: dict[int, list[Message]] = {}
        self._told_overdue = False
        self._told: set[tuple[str, int]] = set()  # queues that cannot be made, and that were reported

    # ------------------------------------------------------------------------------------------- delivering

    def run_once(self, budget: int | None = None) -> Progress:
        """Delivers messages that are due by now, at most `budget`; `done` counts them. Does nothing while another
        process delivers."""
        return self._run(budget, monotonic_s() + RUN_ONCE_S, wait=False)

    def deliver(self, max_messages: int | None = None, timeout_s: float | None = None) -> int:
        """Delivers the messages that are due at the time of the call; returns their number. Ends after about
        `timeout_s`, which includes the wait for another delivering process; then some may be left. Those that are not
        dispatched are left too; the log says what stops dispatch. Raises the errors of `put`."""
        if max_messages is not None:
            max_messages = whole("max_messages", max_messages, 1, error=StoreConfigError)
        until_s = None if timeout_s is None else monotonic_s() + seconds(timeout_s, least=0)
        return undisturbed(partial(self._run, max_messages, until_s, wait=True)).done

    def _run(self, limit: int | None, until_s: float | None, *, wait: bool) -> Progress:
        control, done, awaited, now_ms = self._control, 0, 0, clock.now_ms(self._control)
        no_queues: QueuesFullError | None = None  # messages for new queues are set aside from then on
        if self._appender is None or not self._progress.slots() or control.flags & FLAG_SLAVE:
            return Progress(0)  # a slave gets its master's deliveries
        self._dispatch_help.run(tells_of_others=True)
        while limit is None or done < limit:
            left_ms = -1 if until_s is None else max(int((until_s - monotonic_s()) * 1000), 0)
            with control.held_if_free("deliver", within_ms=left_ms if wait else 0) as turn:
                if not turn.held:
                    return Progress(done)
                if not self._progress.count(until_s):
                    return Progress(done, more=True)
                unseen = self._unseen_end()
                most = BATCH_MESSAGES if limit is None else min(limit - done, BATCH_MESSAGES)
                batch = [] if unseen else self._due(now_ms, most)
                if no_queues is not None:
                    self._set_aside(batch, no_queues)
                delivered, end, room = self._put_all(batch)
                self._progress.save_if_old(self._config.flush_delay_offset_interval_ms)
            if end and self._config.flush_disk_type == "sync":
                self._flusher.flush_to(end)
            done += delivered
            if self._groups:  # the next time of one may be over, too
                self._dispatch_help.run(tells_of_others=True)
            if unseen:
                if unseen == awaited:
                    return Progress(done)  # no reader sees yet what is delivered
                awaited = unseen
                self._dispatch_help.run(tells_of_others=True)
            elif room is not None:
                try:
                    room.make()
                except QueuesFullError as error:
                    no_queues = error
            elif not batch:
                return Progress(done)
            if until_s is not None and monotonic_s() >= until_s:
                break
        return Progress(done, more=True)

    # ------------------------------------------------------------------------------- under the deliver lock

    def _unseen_end(self) -> int:
        """The log position that dispatch has to reach before anything is delivered; 0: it did. Carried messages without
        an entry are due before others of their level."""
        behind = self._progress.runs_behind()
        if behind != self._behind[0]:
            self._control.commit()  # their messages may be in a pool, and no dispatcher sees them there
            self._behind = behind, self._control.wrote
        end = self._behind[1]
        return end if behind and self._control.dispatched < end else 0  # a damaged one never gets an entry

    def _set_aside(self, batch: list[Leaving], why: QueuesFullError) -> None:
        """Messages for queues that cannot be made do not hold up the others: each waits once more, for the delay of the
        next longer level that has a queue, and behind the messages there. Changes the batch."""
        slots = self._progress.slots()
        for place, (slot, queue_offset, copy) in enumerate(batch):
            if copy is None or self._control.find_queue(copy.topic, copy.queue_id) >= 0:
                continue
            queue = self._queues.get(slot)
            if queue.queue_id == TIMER_QUEUE_ID:
                later_ms = clock.now_ms(self._control) + SET_ASIDE_MS
                batch[place] = (
                    slot,
                    queue_offset,
                    self._waiting_queues.wait_longer(queue, queue_offset, later_ms),
                )
            else:
                level = self._longer_level(level_of(queue.queue_id), slots)
                batch[place] = slot, queue_offset, self._waiting_queues.set_aside(queue, queue_offset, level)
            key = copy.topic, copy.queue_id
            if key not in self._told:
                self._told.add(key)
                log.warning(
                    "%s/%d: delayed messages for %s/%d wait again, because %s",
                    queue.topic, queue.queue_id, *key, why,
                )  # fmt: skip

    def _longer_level(self, level: int, slots: dict[int, int]) -> int:
        """The level with the next longer delay whose queue exists; without one, the level itself."""
        delays = self._config.delay_levels_ms()
        own = delays[min(level, len(delays)) - 1]
        longer = [(delay, one) for one, delay in enumerate(delays, 1) if delay > own and one - 1 in slots]
        return min(longer)[1] if longer else level

    def _put_all(self, batch: list[Leaving]) -> tuple[int, int, RoomNeededError | None]:
        """Delivers a batch: returns the number of messages that reached their topics, where the last record ends (0:
        there is none), and the missing resource for the rest."""
        done, end = 0, 0
        for part in self._parts(batch):
            copies = self._group(part) or [copy for _, _, copy in part if copy is not None]
            put, room = self._put(part, copies)
            done += sum(copy.topic != SCHEDULE_TOPIC for copy in copies[: len(put)])
            if put:
                end = put[-1].physical_offset + put[-1].size_bytes
            if room is not None or len(put) < len(copies):
                return done, end, room
        return done, end, None

    def _parts(self, batch: list[Leaving]) -> list[list[Leaving]]:
        """The batch in parts that are appended at once: a message that comes again is one by itself."""
        if not self._groups:
            return [batch]
        parts: list[list[Leaving]] = [[]]
        for leaving in batch:
            if self._group([leaving]):
                parts += [[leaving], []]
            else:
                parts[-1].append(leaving)
        return [part for part in parts if part]

    def _group(self, part: list[Leaving]) -> list[Message] | None:
        """The records of a message that comes again, if it is the part, and was not set aside."""
        if not self._groups or len(part) != 1:
            return None
        slot, queue_offset, copy = part[0]
        group = self._groups.get(queue_offset) if slot == self._progress.timer.slot else None
        return group if group is not None and group[0] is copy else None

    def _put(
        self, batch: list[Leaving], copies: list[Message]
    ) -> tuple[list[PutResult], RoomNeededError | None]:
        """Delivers a part of a batch, counts its delivered messages, and returns the missing resource for the rest."""
        if not copies:
            self._advance(batch, [])
            return [], None
        group = self._group(batch)
        try:
            put, room = self._append(copies, together=group is not None)
        except MessageIllegalError:
            return self._put_one(batch)  # nothing was written, because all messages are checked first
        except StoreError as error:
            self._advance(batch, error.results or [])
            raise
        self._advance(batch, put if group is None else put[:1])
        return put, room

    def _append(
        self, messages: list[Message], *, together: bool = False
    ) -> tuple[list[PutResult], RoomNeededError | None]:
        assert self._transfer is not None
        put, room = self._transfer.append(messages, together=together)
        if room is None:
            failpoint("deliver.appended")
        return put, room

    def _put_one(self, batch: list[Leaving]) -> tuple[list[PutResult], RoomNeededError | None]:
        """For a batch with a message that cannot be put: delivers the first of its messages. A message that cannot be
        put even without the name of its source is stepped over."""
        for slot, queue_offset, copy in batch:
            for names_source in (True, False) if copy is not None else ():
                assert copy is not None
                if not names_source:
                    leave_source_out(copy)
                try:
                    put, room = self._append([copy])
                except MessageIllegalError as error:
                    report_undeliverable(self._queues.get(slot), queue_offset, error)
                    continue
                self._advance([(slot, queue_offset, copy)], put)
                return put, room
            self._advance([(slot, queue_offset, None)], [])
        return [], None

    def _advance(self, batch: list[Leaving], delivered: list[PutResult]) -> None:
        """Counts the first messages of a batch, whose copies are in `delivered`, and the stepped-over ones between
        them."""
        assert self._transfer is not None
        self._transfer.leave(batch, delivered)
        failpoint("deliver.counted")
        self._progress.finish()

    def _due(self, now_ms: int, limit: int) -> list[Leaving]:
        """Copies of due messages, in the order of due times; within a level in the order of the puts."""
        # Due time, whether it was not carried, queue id, slot, queue offset; and the message with its bytes, if it is
        # not a plain one. Of two that are due in the same millisecond the carried one is the older one.
        heads: list[tuple[int, bool, int, int, int, tuple[Leaving, int] | None]] = []
        batch: list[Leaving] = []
        size, runs = 0, self._waiting_queues.runs(now_ms)
        self._groups.clear()
        self._enter_timed()

        timer = self._progress.timer

        def take_timed(slot: int, until_ms: int) -> None:
            """Takes messages of the timer that are due by then, and notes its next one."""
            nonlocal size, limit
            queue = self._queues.get(slot)
            while len(batch) < limit and size < BATCH_BYTES:
                taken = timer.take(until_ms, min(limit - len(batch), TIMER_BATCH))
                if not taken:
                    break
                found, more = self._waiting_queues.timed(runs, queue, taken, BATCH_BYTES - size)
                size += more
                for _, queue_offset, copy in found:
                    if len(batch) >= limit:
                        break
                    if copy is None:
                        odd = self._timed(queue, queue_offset, now_ms, limit - len(batch))
                        if odd is None:
                            continue
                        copy, length = odd
                        size += length
                        group = self._groups.get(queue_offset, [])
                        limit -= max(sum(one.topic != SCHEDULE_TOPIC for one in group) - 1, 0)
                    batch.append((slot, queue_offset, copy))
            due_ms = timer.next_due_ms()
            if due_ms is not None and due_ms <= now_ms:
                heapq.heappush(heads, (due_ms, True, TIMER_QUEUE_ID, slot, 0, None))

        def take(queue_id: int, slot: int, begin: int, until_ms: int) -> None:
            """Takes plain messages of a queue that are due by then, and notes its next one."""
            nonlocal size
            if queue_id == TIMER_QUEUE_ID:
                take_timed(slot, until_ms)
                return
            queue, odd = self._queues.get(slot), None
            found, taken, at, due_ms = self._waiting_queues.run(
                runs, queue, begin, until_ms, limit - len(batch), BATCH_BYTES - size
            )
            batch.extend(found)
            size += taken
            if due_ms is None and len(batch) < limit and size < BATCH_BYTES:
                head = self._head(queue, at, now_ms)
                if head is not None:
                    due_ms, at, copy, length = head
                    odd = (slot, at, copy), length
            if due_ms is not None:
                heapq.heappush(heads, (due_ms, queue_id < RUN_QUEUES, queue_id, slot, at, odd))

        for queue_id, slot in self._progress.slots().items():
            take(queue_id, slot, self._progress.offset(slot), -1)
        while heads and len(batch) < limit and size < BATCH_BYTES:
            _, uncarried, queue_id, slot, at, odd = heapq.heappop(heads)
            if odd is not None:
                batch.append(odd[0])
                size += odd[1]
                at += 1
            until_ms = now_ms
            if heads:  # up to the next message of another queue
                until_ms = heads[0][0] if (uncarried, queue_id) < heads[0][1:3] else heads[0][0] - 1
            if len(batch) < limit and size < BATCH_BYTES:
                take(queue_id, slot, at, until_ms)
        return batch

    def _enter_timed(self) -> None:
        timer = self._progress.timer
        if timer.slot >= 0:
            timer.take_back()
            timer.enter(self._progress.offset(timer.slot))

    def _timed(
        self, queue: ConsumeQueue, queue_offset: int, now_ms: int, most: int
    ) -> tuple[Message | None, int] | None:
        """(copy, bytes) of a message of the timer, which may come `most` times at once; no copy for one that is
        stepped over. None if its record says that it is due later."""
        head = self._waiting_queues.head(queue, queue_offset)
        if head is None or head.queue_offset != queue_offset:
            return None, 0
        message, due_ms = self._waiting_queues.read(queue, head, now_ms)
        if message is None:
            return None, 0
        if due_ms > now_ms:
            self._progress.timer.wait_until(queue_offset, due_ms)
            return None
        if not has_target(queue, head, message):
            return None, 0
        group = self._waiting_queues.again(message, due_ms, now_ms, max(most, 1))
        if group is None:
            return delivered_copy(message), message.size_bytes
        if not group:  # its last time was missed
            return None, 0
        self._groups[queue_offset] = group
        return group[0], message.size_bytes * len(group)

    def _head(
        self, queue: ConsumeQueue, begin: int, now_ms: int
    ) -> tuple[int, int, Message | None, int] | None:
        """(due time, queue offset, copy, bytes) of a queue's first message from `begin` on, if it is due."""
        head = self._waiting_queues.head(queue, begin)
        if head is None:
            return None
        at = head.queue_offset
        known = self._waiting.get(queue.slot)
        if known is not None and known[:2] == (at, head.noted_ms) and known[2] > now_ms:
            return None
        message, due_ms = self._waiting_queues.read(queue, head, now_ms)
        if message is None:
            return 0, at, None, 0
        if due_ms > now_ms:
            self._waiting[queue.slot] = at, head.noted_ms, due_ms
            return None
        if not has_target(queue, head, message):
            return due_ms, at, None, 0
        return due_ms, at, delivered_copy(message), message.size_bytes or 0

    # ---------------------------------------------------------------------------------------------- looking

    def next_due_ms(self) -> int | None:
        """The time when the next dispatched message is due; None if none waits."""
        due: list[int] = []
        for queue_id, slot in self._progress.slots().items():
            if queue_id == TIMER_QUEUE_ID:
                self._progress.timer.enter(self._progress.offset(slot))
                timed_ms = self._progress.timer.next_due_ms()
                due += [] if timed_ms is None else [timed_ms]
                continue
            head = self._waiting_queues.head(self._queues.get(slot), self._progress.offset(slot))
            if head is not None:
                known = self._waiting.get(slot)
                checked = known is not None and known[:2] == (head.queue_offset, head.noted_ms)
                due.append(known[2] if known is not None and checked else head.noted_ms or 0)
        return min(due, default=None)

    def overdue_ms(self) -> int:
        """How long the first due message has been waiting for a process that delivers it."""
        due_ms = self.next_due_ms()
        return 0 if due_ms is None else max(clock.now_ms(self._control) - due_ms, 0)

    def tell_if_nobody_delivers(self) -> None:
        """One warning for a process that puts messages with a time of their own, and does not deliver itself."""
        if self._told_overdue or "schedule" in self._config.services:
            return
        try:
            words = nobody_delivers(self.overdue_ms())
        except StoreError as error:
            words = f"cannot look for delayed messages that are due: {error}"
        if words:
            self._told_overdue = True
            log.warning("%s: %s", self._control.file.path, words)

    def idle_s(self) -> float:
        """The sleep of a thread: until the next message is due, at most RocketMQ's time. An overdue message means that
        another process delivers now."""
        due_ms = self.next_due_ms()
        left_ms = IDLE_MS if due_ms is None else due_ms - clock.now_ms(self._control)
        idle_ms = IDLE_MS if self._progress.timer.slot < 0 else TIMER_IDLE_MS
        return min(left_ms if left_ms > 0 else BUSY_MS, idle_ms) / 1000
