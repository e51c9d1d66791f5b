"""The parts of one process's access to one store."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cystore._native.append.appender import Appender
from cystore._native.lookup.get_result import GetResult
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, PutResult
from cystore.clock import monotonic_s
from cystore.config import INT_MAX, StoreConfig
from cystore.derived.dispatch.backlog import BacklogKeeper
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.flush import DerivedFlusher
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.derived.dispatch.remove import QueueRemover
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.reader import Reader
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.progress import Progress
from cystore.engine.files.segments import Mode
from cystore.engine.log.allocate import Allocator
from cystore.engine.log.clock_keeper import ClockKeeper
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.flush import Flusher
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.pool.buffers import BufferPool
from cystore.engine.pool.committer import Committer
from cystore.errors import StoreMovedError
from cystore.services.clean import Cleaner
from cystore.services.compact.compactor import Compactor
from cystore.services.compact.newest import Newest
from cystore.services.delay.delivery import Scheduler
from cystore.services.delay.delivery_progress import DeliveryProgress
from cystore.services.delay.withdraw import Withdrawals
from cystore.services.service_waits import Sleepers
from cystore.system import folders
from cystore.system.other_processes import View
from cystore.system.store_lock import StoreLocks
from cystore.system.threads import os_threads
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore.ha.facts.shipment import GroupOffsets
    from cystore.recovery.outcome import RecoveredState

TURNS_END_S = 5.0
TURN_LOCKS = ("clean", "housekeeping", "deliver", "dispatch", "sync", "commit", "manifest")


@value_class
class Attachment:
    """The parts of one process's access to one store."""

    root: Path
    config: StoreConfig
    mode: Mode
    control: Control
    manifest: Manifest
    checkpoint: Checkpoint
    clock: ClockKeeper
    commit_log: CommitLog
    queues: ConsumeQueues
    index: IndexFiles
    dispatcher: Dispatcher
    flusher: Flusher
    derived_flusher: DerivedFlusher
    allocator: Allocator
    delivered: DeliveryProgress
    scheduler: Scheduler
    withdrawals: Withdrawals
    cleaner: Cleaner
    compactor: Compactor
    newest: Newest
    remover: QueueRemover
    reader: Reader
    backlog: BacklogKeeper
    appender: Appender | None
    locks: StoreLocks | None
    recovered: RecoveredState | None
    sleepers: Sleepers
    buffers: BufferPool | None = None  # of a store with a pool, for a writer
    committer: Committer | None = None
    ground: View | None = None  # of a private view of files: shows when the view is outdated
    filters: KnownFilters | None = None  # only of a store with extended units
    groups: object = None  # the table of consumer groups, when it is in use
    group_offsets: Callable[[Attachment], GroupOffsets] | None = None  # their offsets, for replication
    transactions: object = None  # the table of open transactions, when it is in use
    followed: int = 0  # how often the handle (MessageStore) had followed its path before
    once: object = None  # the locks of messages that are put once, when they are in use
    dispatchers: dict[str, object] = field(default_factory=dict)  # of the program, by name
    at_stop: list[Callable[[], object]] = field(
        default_factory=list
    )  # called when the services are asked to end; must not fail
    at_leave: list[Callable[[], object]] = field(
        default_factory=list
    )  # called before a writer detaches; errors of the store are logged

    def let_cleaned_go(self) -> None:
        """Ends the mappings of cleaned segments. A private view does not know which segments were cleaned: it ends all
        mappings when another process came."""
        self.reader.forget_cleaned()
        self.reader.counts.merge()
        minimum = self.control.min_physical_offset
        self.dispatcher.forget_below(minimum)
        if self.appender is not None and self.appender.segment_end <= minimum:
            self.appender.forget_segment()
            self.allocator.active.forget()
        if self.ground is not None and self.ground.moved():
            self.let_mappings_go()

    def look_at_place(self) -> None:
        """Raises StoreMovedError if the path names another directory. All calls of the store share the stamp of the
        last look: while that is fresh, this costs 0.1 microseconds."""
        if self.control.place_due:
            folders.check_place(self.root)
            self.control.place_seen()

    def look_around(self) -> None:
        """Begins each turn of a service: ends the mappings of cleaned segments. Raises StoreMovedError if the path
        names another directory."""
        self.let_cleaned_go()
        try:
            folders.check_place(self.root)
        except StoreMovedError:
            if self.appender is not None:
                self.appender.forget_segment()  # the next put asks for the segment, and is refused
            raise
        self.control.place_seen()

    def look_while_quiet(self) -> None:
        """Work that a service thread does now and then while nothing is appended."""
        self.look_around()
        self.clock.look()

    def turn(self, run_once: Callable[[], Progress]) -> Callable[[], Progress]:
        """A service's `run_once`, with `look_around` before it. Its pages are released when they have become many."""

        def turned() -> Progress:
            self.look_around()
            progress = run_once()
            self.commit_log.resident.look()
            return progress

        return turned

    def flush_once(self) -> Progress:
        """One turn of all threads of the service "flush"."""
        done = 0 if self.committer is None else self.committer.run_once().done
        done += self.flusher.run_once().done
        derived = self.flush_derived_once()
        return Progress(done + derived.done, more=derived.more)

    def flush_derived_once(self) -> Progress:
        """The derived files, by a thread of their own: makes them durable, then dispatches what waits."""
        self.clock.look()
        done = self.derived_flusher.run_once().done
        return Progress(done, more=self.backlog.run_once().more)

    def allocate_once(self) -> Progress:
        """One turn of the service "allocate", which runs often: makes room ahead of the appends, then dispatches what
        waits."""
        allocated = self.allocator.run_once()
        return Progress(allocated.done, more=allocated.more or self.backlog.run_once().more)

    def forget(self) -> None:
        """Drops everything without a trace for other processes: in a forked child, or when a store is closed."""
        if self.appender is not None:
            self.appender.detach()
        self.control.detach()
        if self.locks is not None:
            self.locks.close()
        if self.ground is not None:
            self.ground.leave()

    def release(self) -> None:
        """`forget`, and ends mappings and descriptors that no view uses."""
        self.forget()
        if self.appender is not None:
            self.appender.release()
        if self.flusher.commits is not None:
            self.flusher.commits.release()
        self.checkpoint.close()
        self.let_mappings_go()
        if self.buffers is not None:
            self.buffers.release()
        folders.let_go(self.root)

    def await_turns(self) -> None:
        """Waits a while for other threads of this process that hold a lock: they write files that the lock protects. A
        signal handler that closes the store does not interrupt a service thread in its turn."""
        if not self.control.closed and self.control.intact:
            self._pause_for_turns()

    def end_turns(self) -> None:
        """From now on no thread of this process begins a turn. Waits a while for the turns that have begun: when this
        process gives the store's lock back, another one may be alone in the store."""
        intact = not self.control.closed and self.control.intact
        if self.appender is not None:
            self.appender.detach()
        self.control.detach()
        if intact:
            self._pause_for_turns()

    def _pause_for_turns(self) -> None:
        until_s = monotonic_s() + TURNS_END_S
        while self._has_turns() and monotonic_s() < until_s:
            os_threads.pause(0.001)

    def _has_turns(self) -> bool:
        owners = {self.control.turn_owner(name) for name in TURN_LOCKS} - {0, os_threads.native_id()}
        return any(os_threads.is_ours(owner) for owner in owners)

    def forked(self) -> None:
        """`release` for a forked child, whatever locks of Python the parent's other threads held at the fork."""
        self.groups = self.once = None
        self.at_leave.clear()
        self.at_stop.clear()
        self.dispatchers.clear()
        self.commit_log.files.forked()  # log, queues and index share its mappings
        self.release()

    def let_mappings_go(self) -> None:
        """Ends the mappings that no view uses."""
        self.reader.forget_windows()
        self.allocator.active.forget()
        if not self.control.closed:
            self.dispatcher.forget_below(INT_MAX << 32)
        self.queues.close()
        self.index.close()
        self.commit_log.files.close()

    def replace_private(self) -> None:
        """Ends a private view that another attachment replaces. Snapshots made of it still find the store's
        directory."""
        if self.ground is not None:
            self.ground.leave()
        self.let_mappings_go()


class StoreHandle(ABC):
    """A store for its own groups, dispatchers and transactions. `MessageStore` is the only one; it attaches again after
    a fork, and follows its path."""

    __slots__ = ()

    path: Path
    followed: int

    @abstractmethod
    def _attached(self) -> Attachment:
        """The present attachment. Raises StoreClosedError, StoreMovedError."""

    @abstractmethod
    def _writable(self) -> Attachment:
        """The same. Raises StoreNotWritableError, too."""

    @property
    @abstractmethod
    def settings(self) -> StoreConfig: ...

    @abstractmethod
    def get(self, *args: Any, **options: Any) -> GetResult: ...

    @abstractmethod
    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: str = "nearest"
    ) -> int: ...

    @abstractmethod
    def put(self, *args: Any, **options: Any) -> PutResult: ...

    @abstractmethod
    def put_many(
        self, messages: Sequence[Message], *, flush: str | None = None, batch: bool = False
    ) -> list[PutResult]: ...

    @abstractmethod
    def wait(self, topic: str, queue_id: int, queue_offset: int, timeout_s: float | None = None) -> bool: ...
