"""Dispatch: consume queues and index follow the log (RocketMQ's ReputMessageService and CommitLogDispatchers).

Whoever holds the dispatch lock goes on where the last one stopped, in whatever process: a reader that finds the dispatch
behind helps first. The kernel does the work record by record and stops where a file, space or a decision is needed; that is
here. Nothing has to be repaired after a holder died: queue entries are written again as they were, and index entries at or past
the dispatched position are taken back before anything is entered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from cystore._native import dispatch as kernel
from cystore._native.control import Control
from cystore._native.message import Message, message_at
from cystore._native.record import STATUS_NAMES
from cystore.config import StoreConfig
from cystore.derived.consume_queue import ConsumeQueues
from cystore.derived.index import IndexFiles
from cystore.engine.commit_log import CommitLog
from cystore.engine.holes import Holes
from cystore.engine.progress import Progress
from cystore.errors import CorruptRecordError, StoreLockedError
from cystore.layout import CONSTANTS, FLAGS
from cystore.system import files

log = logging.getLogger("cystore")

BATCH_BYTES = 16 * 1024 * 1024  # of log between two looks at the budget; some 50 ms
REPORT_BYTES = 64 * 1024 * 1024  # of log between two reports of progress
MAX_MAPPED_QUEUES = 4096
RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]


class Dispatcher:
    """Fills consume queues and index of one store, in one process beside others.

    `more_queues()` makes room in the queue table; it is called where a log that was just loaded has more queues than fit.
    """

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        holes: Holes,
        config: StoreConfig,
        *,
        more_queues: Callable[[], None] | None = None,
    ) -> None:
        self._control, self._commit_log, self._queues, self._index = control, commit_log, queues, index
        self._holes, self._more_queues = holes.ranges(), more_queues
        self._with_index = config.message_index_enable
        self._stopped_at = (
            -1
        )  # where this process's last turn ended; another one has been at work if it is not there now
        self._offered = -1  # index_seq when the kernel got its index file
        self._kernel = kernel.DispatchKernel(
            control,
            delay_levels_ms=config.delay_levels_ms(),
            with_index=self._with_index,
            with_ext=config.enable_consume_queue_ext,
        )

    def run_once(self, budget_bytes: int | None = None, *, timeout_ms: int | None = 0) -> Progress:
        """Dispatches what was appended by now, at most about `budget_bytes` of log; `done` counts bytes.

        When another thread or process is dispatching it waits for that up to `timeout_ms` (None: for ever) and then gives up;
        a thread that is dispatching already (a signal handler inside of it) never waits. Raises StoreFullError, StoreIOError and
        CorruptRecordError; the dispatched position stays where the trouble is.
        """
        control = self._control
        if control.dispatched >= control.wrote or control.read_only:
            return Progress(0, more=control.dispatched < control.wrote)
        due = control.try_lock("dispatch")
        if due is None:
            if timeout_ms == 0:
                return Progress(0, more=True)
            try:
                due = control.lock("dispatch", timeout_ms=-1 if timeout_ms is None else timeout_ms)
            except StoreLockedError:
                return Progress(0, more=True)
        try:
            with files.translated(self._commit_log.files.root):
                begin = self._begin()
                end = control.wrote
                self._run(end if budget_bytes is None else min(end, begin + max(budget_bytes, 1)), end)
            if due:
                control.repaired("dispatch")
            return Progress(control.dispatched - begin, more=control.dispatched < control.wrote)
        finally:
            control.unlock("dispatch")

    def run_to_end(self, progress: Callable[[str, int, int], None] | None = None) -> None:
        """Dispatches all that is appended by now, waiting for whoever else is dispatching. `progress` is told from time to time
        how many bytes of log are done, and of how many."""
        begin, target = self._control.dispatched, self._control.wrote
        step = None if progress is None else REPORT_BYTES
        while self._control.dispatched < target:
            if self.run_once(step, timeout_ms=None).done == 0 and self._control.dispatched < target:
                return  # this thread is dispatching already, or the store is open for reading only
            if progress is not None:
                progress("dispatch", self._control.dispatched - begin, target - begin)

    def repair(self) -> None:
        """Takes back what a dispatcher that died had entered of a record it did not finish. Under the dispatch lock."""
        if self._with_index:
            self._index.cut(self._control.dispatched)

    # ------------------------------------------------------------------- under the dispatch lock

    def _begin(self) -> int:
        """Takes up where the last dispatcher stopped, whoever it was."""
        control = self._control
        position = control.dispatched
        if position < control.min_physical_offset:
            log.warning(
                "%s: records from %d to %d were removed before they were dispatched",
                self._commit_log.files.directory,
                position,
                control.min_physical_offset,
            )
            position = control.dispatched = control.min_physical_offset
        if self._with_index:
            self._index.cut(position)
        if position != self._stopped_at:
            self._kernel.forget_ext()
            self._offered = -1
            self._stopped_at = -1
        if self._with_index and self._offered != control.index_seq:
            self._offer_index()
        return position

    def _run(self, until: int, wrote: int) -> None:
        """Dispatches records that begin below `until`; holes are stepped over."""
        control = self._control
        position = control.dispatched
        self._kernel.begin(position)
        holes = [hole for hole in self._holes if hole[1] > position]
        while position < until:
            if holes and holes[0][0] <= position:
                position = control.dispatched = max(position, holes.pop(0)[1])
                self._kernel.begin(position)
                continue
            limit = min(wrote, holes[0][0]) if holes else wrote
            self._run_batch(min(until, limit, position + BATCH_BYTES), limit)
            position = control.dispatched
        self._stopped_at = position

    def _run_batch(self, end: int, limit: int) -> None:
        while (status := self._kernel.run(end, limit)) != kernel.DONE:
            FETCH[status](self)

    def _record(self, position: int) -> Message:
        segment = self._commit_log.segment_for(position)
        return message_at(segment, position - segment.base, min(segment.end, self._control.wrote) - position)

    def _use_segment(self) -> None:
        self._kernel.use_segment(self._commit_log.segment_for(self._kernel.position))

    def _add_missing_queue(self) -> None:
        """Only a log that was just loaded has records of queues that are not in the table: an append enters them first."""
        control, record = self._control, self._record(self._kernel.position)
        while control.queue_count >= control.queue_capacity and self._more_queues is not None:
            self._more_queues()
        if control.lock("append"):
            control.settle_claims()  # links the newest slot, which a killed append may not have done; the rest stays due
        try:
            if control.find_queue(record.topic, record.queue_id) < 0:
                offset = record.queue_offset or 0
                control.add_queue(
                    record.topic, record.queue_id, next=offset, dispatched=offset, minimum=offset
                )
        finally:
            control.unlock("append")

    def _fill_gap(self) -> None:
        """The records between the queue's last one and this one are lost: they were inside a hole, or below the minimum."""
        slot, wanted = self._kernel.slot, self._kernel.wanted
        queue = self._queues.get(slot)
        expected = queue.max_offset
        room = self._kernel.position - queue.end_of_last_record()
        if queue.has_files() and (wanted - expected) * RECORD_SIZE_MIN > room:
            raise self._damage(
                f"queue offset {wanted} of {queue.topic}/{queue.queue_id}, where {expected} is next, leaves no room in the "
                f"log for the records between"
            )
        log.warning(
            "%s/%d: no records for queue offsets %d to %d", queue.topic, queue.queue_id, expected, wanted - 1
        )
        queue.fill_gap(wanted)

    def _use_queue_file(self) -> None:
        slot = self._kernel.slot
        while self._kernel.queue_count >= MAX_MAPPED_QUEUES:
            for unused in self._kernel.least_used(MAX_MAPPED_QUEUES // 8):
                self._kernel.forget_queue(unused)
        self._kernel.use_queue(slot, self._queues.get(slot).prepare(self._kernel.wanted))

    def _allocate_queue(self) -> None:
        self._queues.get(self._kernel.slot).allocate(self._kernel.wanted)

    def _use_ext_file(self) -> None:
        slot = self._kernel.slot
        self._kernel.use_ext(slot, *self._queues.get(slot).prepare_ext(self._kernel.ext_next(slot)))

    def _offer_index(self) -> None:
        """Hands the kernel the index file that keys go into now."""
        newest = self._index.newest()
        self._offered = self._control.index_seq
        if newest is None:
            self._kernel.use_index(None, 0, 0, 0)
        else:
            self._kernel.use_index(newest.file, newest.slots, newest.capacity, self._control.index_allocated)

    def _use_index_file(self) -> None:
        if self._index.newest() is None:
            self._index.add()
        self._offer_index()

    def _allocate_index(self) -> None:
        newest = self._index.newest()
        if newest is not None:
            self._index.allocate(newest, self._kernel.wanted)
        self._offer_index()

    def _refuse(self) -> None:
        raise self._damage(STATUS_NAMES[self._kernel.detail])

    def _damage(self, reason: str) -> CorruptRecordError:
        """The error for a record that cannot be dispatched. Dispatch stays before it, and the flag tells everybody; appends and
        reads go on. The next load's recovery makes a hole of it."""
        self._control.set_flag(FLAGS["FLAG_CORRUPT"][0])
        position = self._kernel.position
        return CorruptRecordError(
            f"a record cannot be dispatched: {reason}",
            path=self._commit_log.files.path(self._commit_log.files.base_of(position)),
            offset=position,
        )


# What each status of the kernel asks for.
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
