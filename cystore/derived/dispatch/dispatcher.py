"""Dispatch: consume queues and index follow the log (RocketMQ's ReputMessageService and CommitLogDispatchers).

The process that holds the dispatch lock continues where the last one stopped; a reader that finds the dispatch behind
helps first. The lock is held in short turns. The kernel does the work record by record and stops when it needs a file,
space or a decision; this module provides them. A dead holder leaves nothing to repair: queue entries are rewritten with
the same content, and index entries at or past the dispatched position are taken back before new ones are entered.

Damage stops nothing: the range up to the next valid record is copied aside, listed as a hole and stepped over. Its
queue offsets become hole entries when the next record of their queue shows them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from cystore._native.derived import dispatch as kernel
from cystore._native.derived import queue as queue_kernel
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, message_at
from cystore._native.record.properties import queues_of
from cystore._native.record.record import STATUS_NAMES
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.dispatch.jumps import JumpCheck
from cystore.derived.dispatch.known_filters import NO_TABLE, KnownFilters
from cystore.derived.dispatch.read_ahead import ReadAhead
from cystore.derived.dispatch.resume import DamageSearch
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.engine.files.progress import Progress
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import FLAGS
from cystore.system import files
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

TURN_S = 0.010  # the approximate time of one turn under the lock; then others may have it
REPORT_BYTES = 64 * 1024 * 1024  # of log between two reports of progress
MAX_MAPPED_QUEUES = 16384


class Dispatcher:
    """Fills consume queues and index of one store, in one process beside others.

    `more_queues()` makes room in the queue table; it is called if a log that was just loaded has more queues than fit.
    `keep_headroom()` raises StoreFullError while the store's reserved space is not whole: then dispatch waits, because
    a clean needs what is left of the disk.
    """

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        config: StoreConfig,
        *,
        given_up: Callable[[], GivenUp] = GivenUp,
        more_queues: Callable[[], None] | None = None,
        filters: KnownFilters | None = None,
        keep_headroom: Callable[[], None] | None = None,
    ) -> None:
        self._keep_headroom = keep_headroom
        self._control, self._commit_log, self._queues, self._index = control, commit_log, queues, index
        self._damage, self._more_queues = commit_log.damage, more_queues
        self._jumps = JumpCheck(control, commit_log, given_up)
        self._with_index = config.message_index_enable
        self._search: DamageSearch | None = None  # the damage at the dispatched position
        self._filters, self._filters_seq = filters, NO_TABLE
        self._kernel = kernel.DispatchKernel(
            control,
            delay_levels_ms=config.delay_levels_ms(),
            with_index=self._with_index,
            with_ext=config.enable_consume_queue_ext,
        )

    def run_once(
        self, budget_bytes: int | None = None, *, timeout_ms: int | None = 0, one_turn: bool = False
    ) -> Progress:
        """Dispatches the records that are appended by now, at most about `budget_bytes` of log; `done` counts bytes.
        With `one_turn` it ends with the first turn: new queues need a file each, so a few bytes of log may take long.

        Gives the lock back after each turn of about 10 ms. If another thread or process has it, this call waits for it
        up to `timeout_ms` (None: for ever) and then gives up. A thread that is already dispatching (a signal handler
        interrupts it) never waits. Raises StoreFullError and StoreIOError; the dispatched position then stays before
        the cause.
        """
        control = self._control
        wait_ms = -1 if timeout_ms is None else timeout_ms
        done, target = 0, control.wrote
        while control.dispatched < target and not control.read_only:
            if self._keep_headroom is not None:
                self._keep_headroom()
            with control.held_if_free("dispatch", within_ms=wait_ms) as turn:
                if not turn.held:
                    break
                with files.translated(self._commit_log.files.root):
                    begin = self._begin()
                    left = target if budget_bytes is None else begin + max(budget_bytes - done, 1)
                    self._run(min(left, target), target, monotonic_s() + TURN_S)
                done += control.dispatched - begin
                search = self._search
            if search is not None and search.end >= 0:
                search.put_aside()
            if one_turn or (budget_bytes is not None and done >= budget_bytes):
                break
        return Progress(done, more=control.dispatched < control.wrote)

    def turn_at_once(self) -> bool:
        """Dispatches everything appended by now, in one turn that the kernel makes by itself. False if the kernel could
        not: then `run_once` dispatches, or raises the reason."""
        return self._kernel.turn()

    @property
    def kernel(self) -> kernel.DispatchKernel:
        """The kernel, for readers that dispatch within their own kernel call."""
        return self._kernel

    def run_to_end(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Dispatches all records that are appended by now, and waits for other dispatchers. Calls `progress` from time
        to time with the dispatched bytes of log, and all of them."""
        begin, target = self._control.dispatched, self._control.wrote
        step = None if progress is None else REPORT_BYTES
        with ReadAhead(self._kernel, self._commit_log, begin, target):
            while self._control.dispatched < target:
                if self.run_once(step, timeout_ms=None).done == 0 and self._control.dispatched < target:
                    return  # this thread is dispatching already, or the store is open for reading only
                if progress is not None:
                    progress("dispatch", self._control.dispatched - begin, target - begin)

    def forget_below(self, position: int) -> None:
        """Ends the mapping of the segment that was dispatched last, if it ends at or below a log position. If a
        dispatcher is at work, the next call does it."""
        if 0 < self._kernel.segment_end <= position:
            with self._control.held_if_free("dispatch") as turn:
                if turn.held:
                    self._kernel.forget_segment()

    def repair(self) -> None:
        """Takes back the entries that a dead dispatcher made for an unfinished record. Under the dispatch lock."""
        if self._with_index:
            self._index.trim(self._control.dispatched)

    def give_up_swallowed(self) -> None:
        """Makes hole entries for the queue offsets that were given out and whose records are lost in damage: if a queue
        ended before them, they would be given out again. For the last process, when all is dispatched. Raises
        StoreFullError."""
        if self._control.dispatched >= self._control.log_end:
            behind = queue_kernel.queues_behind(self._control)
            if behind and self._keep_headroom is not None:
                self._keep_headroom()
            for slot in behind:
                self._queues.get(slot).fill_gap(self._control.queue_next(slot))

    def forget_queue(self, slot: int) -> None:
        """Under the dispatch lock: ends the mappings of a queue's removed files."""
        self._kernel.forget_queue(slot)

    # ------------------------------------------------------------------- under the dispatch lock

    def _begin(self) -> int:
        """Continues where the last dispatcher of any process stopped."""
        control = self._control
        position = control.dispatched
        if position < control.min_physical_offset:
            position = self._skip_removed(control.min_physical_offset)
        if self._with_index:
            self._index.trim(position)
        if position != self._kernel.stopped_at:  # another process has been at work since this one's last turn
            self._kernel.forget_ext()
            self._kernel.mapped_index_seq = self._kernel.stopped_at = -1
        if self._with_index and self._kernel.mapped_index_seq != control.index_seq:
            self._offer_index()
        return position

    def _skip_removed(self, minimum: int) -> int:
        """The cleaner removed records before they were dispatched."""
        control = self._control
        log.warning(
            "%s: records from %d to %d were removed before they were dispatched",
            self._commit_log.files.directory,
            control.dispatched,
            minimum,
        )
        control.dispatched = minimum
        self._kernel.begin(minimum)
        return minimum

    def _run(self, until: int, wrote: int, deadline_s: float) -> None:
        """Dispatches records that begin below `until`, until the time is over; damage is stepped over."""
        control, damage = self._control, self._damage
        begin = position = control.dispatched
        self._kernel.begin(position)
        while position < until and (position == begin or monotonic_s() < deadline_s):
            manifest_seq = control.manifest_seq
            self._use_filters(manifest_seq)
            hole = damage.ranges.covering(position)
            if hole is not None:
                position = control.dispatched = min(hole[1], wrote)
                self._kernel.begin(position)
                continue
            sound_until = damage.ranges.next_begin(position)
            self._kernel.set_sound(sound_until, manifest_seq)
            limit = min(wrote, sound_until)
            self._run_batch(min(until, limit), limit, deadline_s)
            position = control.dispatched
            if self._search is not None and not self._judge(position, wrote, deadline_s):
                break
        self._kernel.stopped_at = position

    def _use_filters(self, manifest_seq: int) -> None:
        """Gives the kernel the filters of the manifest with that number."""
        if self._filters is not None and self._filters_seq != manifest_seq:
            self._filters_seq, table = self._filters.table(manifest_seq)
            self._kernel.use_filters(table)

    def _run_batch(self, end: int, limit: int, deadline_s: float) -> None:
        """Lets the kernel run up to `end`, into damage (`_search`), or until the time is over."""
        begin = self._control.dispatched
        while (status := self._kernel.run(end, limit, deadline_s)) != kernel.DONE:
            FETCH[status](self)
            if self._search is not None or (self._control.dispatched > begin and monotonic_s() > deadline_s):
                return

    def _meet_damage(self, reason: str) -> None:
        """The record at the kernel's position cannot be dispatched."""
        position = self._kernel.position
        if self._search is None or self._search.begin != position:
            self._search = DamageSearch(self._commit_log, position, reason)

    def _judge(self, position: int, wrote: int, deadline_s: float) -> bool:
        """Handles the damage at the dispatched position; True when the damage is listed, so that dispatch can step over
        it.

        The end of the damage is searched within the time of this turn. Then the turn ends, and the bytes are copied
        aside without the lock. The damage is listed in a later turn, in which the kernel has read the record once
        more.
        """
        search = self._search
        if search is None or search.begin != position:
            self._search = None
            return True
        if self._damage.covering(position) is None:
            while not search.step(wrote):
                if monotonic_s() > deadline_s:
                    return False
            if search.copy is None:
                return False
            self._damage.add(position, search.end, search.reason, search.copy)
            self._control.set_flag(FLAGS["FLAG_CORRUPT"][0])
            log.error(
                "%s: %d bytes at %d are damaged (%s); dispatch continues behind them, %s",
                self._commit_log.files.path(self._commit_log.files.base_of(position)),
                search.end - position,
                position,
                search.reason,
                f"a copy is quarantine/{search.copy}" if search.copy else "there are no bytes to copy",
            )
        self._search = None
        return True

    def _record(self, position: int) -> Message:
        segment = self._commit_log.segment_for(position)
        return message_at(segment, position - segment.base, min(segment.end, self._control.wrote) - position)

    def _use_segment(self) -> None:
        try:
            self._kernel.use_segment(self._commit_log.segment_for(self._kernel.position))
        except CorruptRecordError:
            self._meet_damage("the commit log file is missing")
        except OffsetError:
            minimum = self._control.min_physical_offset
            if self._kernel.position >= minimum:
                raise
            self._skip_removed(minimum)

    def _add_missing_queue(self) -> None:
        """Only a log that was just loaded has records of queues that are not in the table: an append enters them
        first."""
        control, record = self._control, self._record(self._kernel.position)
        for topic, queue_id, queue_offset in queues_of(record):
            while control.queue_count >= control.queue_capacity and self._more_queues is not None:
                self._more_queues()
            undisturbed(partial(self._add_queue, topic, queue_id, queue_offset))

    def _add_queue(self, topic: str, queue_id: int, offset: int) -> None:
        with self._control.held("append"):
            if self._control.find_queue(topic, queue_id) < 0:
                slot = self._control.add_queue(
                    topic, queue_id, next=offset + 1, dispatched=offset, minimum=offset
                )
                self._jumps.loaded.add(slot)

    def _fill_gap(self) -> None:
        """The records between the queue's last one and this one are lost: they were inside a hole, or below the
        minimum, or in a tail that was given up. Or this record's queue offset is wrong. Then the record is damaged; if
        it is the offset in a light queue, or if another record may be the wrong one, only that queue goes without the
        record."""
        slot, wanted, light = self._kernel.slot, self._kernel.wanted, self._kernel.in_light_queue
        queue = self._queues.get(slot)
        expected = queue.max_offset
        record = self._record(self._kernel.position)
        judged = self._jumps.judge(queue, record, expected, wanted, light=light)
        if not judged.problem:
            log.warning(
                "%s/%d: no records for queue offsets %d to %d",
                queue.topic,
                queue.queue_id,
                expected,
                wanted - 1,
            )
            queue.fill_gap(wanted)
            return
        reason = (
            f"queue offset {wanted} of {queue.topic}/{queue.queue_id}, where {expected} is next, is "
            f"impossible: {judged.problem}"
        )
        if light or not judged.certain:
            log.error("%s: the record at %d: %s", self._commit_log.files.root, self._kernel.position, reason)
            self._kernel.leave_out()
        else:
            self._meet_damage(reason)

    def _use_queue_file(self) -> None:
        slot = self._kernel.slot
        while self._kernel.queue_count >= MAX_MAPPED_QUEUES:
            for unused in self._kernel.least_used(MAX_MAPPED_QUEUES // 8):
                self._kernel.forget_queue(unused)
        self._kernel.use_queue(slot, self._queues.get(slot).prepare(self._kernel.wanted))

    def _allocate_queue(self) -> None:
        """Also opens the file by its name again, because another process may have removed it, or made it anew."""
        slot, wanted = self._kernel.slot, self._kernel.wanted
        queue = self._queues.get(slot)
        queue.forget(wanted // ENTRY_BYTES)
        file = queue.prepare(wanted)
        self._kernel.use_queue(slot, file)

    def _use_ext_file(self) -> None:
        slot = self._kernel.slot
        self._kernel.use_ext(slot, *self._queues.get(slot).prepare_ext(self._kernel.ext_next(slot)))

    def _offer_index(self) -> None:
        """Hands the kernel the index file that keys go into now."""
        newest, seq = self._index.newest(), self._control.index_seq
        if newest is None:
            self._kernel.use_index(None, 0, 0, 0)
        else:
            self._kernel.use_index(newest.file, newest.slots, newest.capacity, self._control.index_allocated)
        self._kernel.mapped_index_seq = seq  # last: an exception leaves the kernel with the file from before

    def _use_index_file(self) -> None:
        if self._index.newest() is None:
            self._index.add(self._control.wrote - self._kernel.position)
        self._offer_index()

    def _allocate_index(self) -> None:
        newest = self._index.newest()
        if newest is not None:
            self._index.allocate(newest, self._kernel.wanted)
        self._offer_index()

    def _refuse(self) -> None:
        self._meet_damage(STATUS_NAMES[self._kernel.detail])


# The answers to the kernel's statuses.
FETCH: dict[int, Callable[[Dispatcher], None]] = {
    kernel.NEED_SEGMENT: Dispatcher._use_segment,
    kernel.NEED_QUEUE: Dispatcher._add_missing_queue,
    kernel.NEED_GAP: Dispatcher._fill_gap,
    kernel.NEED_QUEUE_FILE: Dispatcher._use_queue_file,
    kernel.NEED_QUEUE_SPACE: Dispatcher._allocate_queue,
    kernel.NEED_EXT_FILE: Dispatcher._use_ext_file,
    kernel.NEED_EXT_SPACE: Dispatcher._use_ext_file,
    kernel.NEED_INDEX_FILE: Dispatcher._use_index_file,
    kernel.NEED_INDEX_SPACE: Dispatcher._allocate_index,
    kernel.DAMAGED: Dispatcher._refuse,
}
