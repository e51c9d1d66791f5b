"""Carrying delayed messages forward: appends waiting messages of expired segments again, so that the segments can be
removed.

A carried message waits in SCHEDULE_TOPIC_XXXX as before. Its property DELAY_DUE is its due time, so the wait does not
begin anew. Its property DELAY_SOURCE names the message that it replaces, like that of a delivered message. So carrying
is a delivery into another queue of the level: under the same lock, counted in the same way, exactly once even if
processes are killed (delivery_progress.py).

A queue of delayed messages is delivered in its order, so that must be the order of due times. A carried message is due
before younger ones of its level, so it goes to another queue of the level, a *run*: the first one whose last message is
not due later. Runs have the queue ids `level - 1 + RUN_QUEUES * run`. There are about as many runs as a message is
carried times: its delay divided by the log's retention.

RocketMQ keeps the log for no delayed message: it loses messages in expired segments. It does not look at runs; messages
there wait until cystore opens the store again.
"""

from __future__ import annotations

import heapq
import logging
from functools import partial

from cystore import clock
from cystore._native.append.appender import Appender
from cystore._native.derived.transfer import carried_properties
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, PutResult, due_message
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import QueuesFullError, StoreError
from cystore.layout import CONSTANTS, FLAGS, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import RUN_QUEUES, DeliveryProgress, level_of
from cystore.services.delay.timer import TIMER_QUEUE_ID
from cystore.services.delay.transfer import (
    BATCH_BYTES,
    BATCH_MESSAGES,
    Leaving,
    RoomNeededError,
    Transfer,
)
from cystore.services.delay.waiting import Head, WaitingQueues, has_target
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

LOCK_WAIT_MS = 1_000  # for a process that delivers, or dispatches
WAITING_MAX = 7 / 8  # of the bytes to remove; if more of them wait, carrying frees next to nothing
SAMPLES = 4096  # entries of a queue that are sampled to estimate the waiting bytes
BLANK_SIZE_MIN = CONSTANTS["BLANK_SIZE_MIN"][0]
FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]


class _NotDispatched(Exception):
    """The end of a run is unknown because dispatch has not reached it."""


class Carrier:
    """Carries the delayed messages of one store forward. Any process may do it."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        progress: DeliveryProgress,
        waiting: WaitingQueues,
        appender: Appender | None,
        config: StoreConfig,
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self._dispatcher, self._progress = dispatcher, progress
        self._waiting_queues, self._config = waiting, config
        self._transfer = None if appender is None else Transfer(progress, appender)
        self._stuck_at: int | None = None  # place of a message that cannot be carried, and that was reported

    def run(self, end: int, until_s: float | None = None) -> int:
        """Carries waiting messages below the log position `end`, the end of an expired segment; returns the number of
        messages. Messages that are not carried keep their segments: the time was over, another process delivers, or
        carrying is not worth its cost. Raises the errors of `put`."""
        control, progress, done = self._control, self._progress, 0
        if self._transfer is None or not progress.slots() or progress.first_waiting() >= end:
            return 0
        if control.flags & FLAG_SLAVE:  # its master carries
            return 0
        end = self._worthwhile(end)
        while progress.first_waiting() < end and (until_s is None or monotonic_s() < until_s):
            turn = undisturbed(partial(self._turn, end, until_s))
            if turn is None:
                break
            batch, carried, room = turn
            done += carried
            if room is not None:
                try:
                    room.make()
                except QueuesFullError as error:
                    log.warning(
                        "delayed messages keep the log from %d on: %s", progress.first_waiting(), error
                    )
                    break
            elif not batch and not self._dispatch():
                break
        if done:
            log.info("%d delayed messages below %d were carried forward", done, end)
        return done

    def _turn(
        self, end: int, until_s: float | None
    ) -> tuple[list[Leaving], int, RoomNeededError | None] | None:
        """One batch, under the deliver lock: the messages, how many of them were carried, and what the next needs. None
        if another process delivers, or the time is over."""
        progress = self._progress
        with self._control.held_if_free("deliver", within_ms=LOCK_WAIT_MS) as turn:
            if not turn.held or not progress.count(until_s):
                return None
            try:
                batch = self._batch(end)
                carried, room = self._carry(batch)
            except _NotDispatched:
                batch, carried, room = [], 0, None
            over = progress.first_waiting() >= end
            progress.save_if_old(0 if over else self._config.flush_delay_offset_interval_ms)
            return batch, carried, room

    def _dispatch(self) -> bool:
        """Dispatches what was carried; False if there is nothing to dispatch, or another process does it."""
        self._control.commit()  # no dispatcher sees what is in a pool
        return self._dispatcher.run_once(timeout_ms=LOCK_WAIT_MS).done > 0

    # ------------------------------------------------------------------------------------------- worth it?

    def _worthwhile(self, end: int) -> int:
        """The end of the segments below `end` that are worth carrying: if nearly all bytes of a segment wait, carrying
        them frees nothing."""
        minimum, file_bytes = self._control.min_physical_offset, self._commit_log.file_bytes
        waiting = self._waiting_bytes(end)
        best, moved = minimum, 0.0
        for base in range(minimum - minimum % file_bytes, end, file_bytes):
            moved += waiting.get(base, 0.0)
            if moved <= WAITING_MAX * (base + file_bytes - minimum):
                best = base + file_bytes
        return min(best, end)

    def _waiting_bytes(self, end: int) -> dict[int, float]:
        """The approximate number of waiting bytes in each segment below `end`, by its base."""
        found: dict[int, float] = {}
        for slot in self._progress.slots().values():
            queue = self._queues.get(slot)
            first, behind = self._progress.offset(slot), queue.offset_at(end)
            step = max((behind - first) // SAMPLES, 1)
            for queue_offset in range(first, behind, step):
                if slot == self._progress.timer.slot and not self._progress.timer.waits(queue_offset):
                    continue
                entry = queue.entry(queue_offset)
                if entry is not None:
                    base = entry.physical_offset - entry.physical_offset % self._commit_log.file_bytes
                    found[base] = found.get(base, 0.0) + entry.size_bytes * step
        return found

    # ------------------------------------------------------------------------------- under the deliver lock

    def _carry(self, batch: list[Leaving]) -> tuple[int, RoomNeededError | None]:
        """Appends the copies of a batch and counts them; returns (their number, the missing resource for the rest)."""
        assert self._transfer is not None
        copies = [copy for _, _, copy in batch if copy is not None]
        if not copies:
            self._advance(batch, [])
            return 0, None
        try:
            put, room = self._transfer.append(copies, makes_space=True)
        except StoreError as error:
            self._advance(batch, error.results or [])
            raise
        failpoint("carry.appended")
        self._advance(batch, put)
        return len(put), room

    def _advance(self, batch: list[Leaving], carried: list[PutResult]) -> None:
        """Counts the first messages of a batch, whose copies are in `carried`, and the stepped-over ones between
        them."""
        assert self._transfer is not None
        self._transfer.leave(batch, carried)
        failpoint("carry.counted")
        self._progress.finish()

    def _batch(self, end: int) -> list[Leaving]:
        """Waiting messages below `end`, in the order of the log, so that the oldest segments are free first."""
        heads: list[tuple[int, int, Head]] = []
        batch: list[Leaving] = []
        last_due: dict[int, int] = {}  # by queue id, of the runs that get messages of this batch
        size, now_ms = 0, clock.now_ms(self._control)

        def push(slot: int, begin: int) -> None:
            queue = self._queues.get(slot)
            if slot == self._progress.timer.slot:
                begin = self._progress.timer.next_waiting(begin, queue.max_offset)
            head = self._waiting_queues.head(queue, begin)
            if head is not None and head.physical_offset < end:
                heapq.heappush(heads, (head.physical_offset, slot, head))

        for slot in self._progress.slots().values():
            push(slot, self._progress.offset(slot))
        while heads and len(batch) < BATCH_MESSAGES and size < BATCH_BYTES:
            _, slot, head = heapq.heappop(heads)
            queue = self._queues.get(slot)
            message, due_ms = self._waiting_queues.read(queue, head, now_ms)
            if message is None or not has_target(queue, head, message):
                batch.append((slot, head.queue_offset, None))
            else:
                properties = carried_properties(message, due_ms)
                if properties is None or not self._fits(message, properties):
                    self._report_stuck(message)
                    break  # no message behind it can be carried
                run = TIMER_QUEUE_ID
                if queue.queue_id != TIMER_QUEUE_ID:
                    run = self._run_for(level_of(queue.queue_id), due_ms, last_due, now_ms)
                copy = due_message(message, SCHEDULE_TOPIC, run, properties)
                batch.append((slot, head.queue_offset, copy))
                last_due[run] = due_ms
                size += message.size_bytes
            push(slot, head.queue_offset + 1)
        return batch

    def _fits(self, message: Message, properties: bytes) -> bool:
        longer = len(properties) - len(message.properties_bytes or b"")
        return message.size_bytes + longer + BLANK_SIZE_MIN <= self._commit_log.file_bytes

    def _report_stuck(self, message: Message) -> None:
        if self._stuck_at != message.physical_offset:
            self._stuck_at = message.physical_offset
            log.warning(
                "%s: this delayed message has no room for its due time, so it cannot be carried; the log stays from "
                "%d on until it is delivered",
                message,
                message.physical_offset,
            )

    def _run_for(self, level: int, due_ms: int, last_due: dict[int, int], now_ms: int) -> int:
        """The queue id of the level's first run that a message of this due time may be appended to."""
        queue_id = level - 1 + RUN_QUEUES
        while True:
            last_ms = last_due.get(queue_id)
            if last_ms is None:
                last_ms = last_due[queue_id] = self._last_due(queue_id, now_ms)
            if last_ms <= due_ms:
                return queue_id
            queue_id += RUN_QUEUES

    def _last_due(self, queue_id: int, now_ms: int) -> int:
        """The due time of a run's last message; 0 if none waits."""
        slot = self._control.find_queue(SCHEDULE_TOPIC, queue_id)
        if slot < 0 or self._progress.offset(slot) >= self._control.queue_end(slot):
            return 0
        queue = self._queues.get(slot)
        if queue.max_offset < self._control.queue_end(slot):
            raise _NotDispatched
        at = queue.previous_message(self._progress.offset(slot), queue.max_offset)
        head = None if at is None else self._waiting_queues.head(queue, at)
        return 0 if head is None else self._waiting_queues.read(queue, head, now_ms)[1]
