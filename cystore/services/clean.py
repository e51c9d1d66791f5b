"""Cleaning: what has expired is unlinked, whole files at a time, oldest first.

Source: DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService. Different here: a segment's age is that of its
newest record and not of its file, so copying a store does not make it young; a forced clean is off by default, because other
people's files must not delete your messages; and what is not yet dispatched or durable stays, as do delayed messages that wait.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass

from cystore import clock
from cystore._native.control import Control
from cystore._native.failpoint import failpoint
from cystore.archive import ArchiveMark
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.consume_queue import ConsumeQueues
from cystore.derived.dispatch import Dispatcher
from cystore.derived.flush import DerivedFlusher
from cystore.derived.index import IndexFiles
from cystore.engine.commit_log import CommitLog
from cystore.engine.disk_space import DiskSpace
from cystore.engine.progress import Progress
from cystore.engine.roll import Roller
from cystore.errors import CorruptRecordError
from cystore.holds import Hold, Holds
from cystore.services.delivered import DeliveryProgress

log = logging.getLogger("cystore")

SEGMENTS_AT_ONCE = 10  # CommitLog: DELETE_FILES_BATCH_MAX
HOUR_MS = 3_600_000
SETTLE_S = 1.0  # of one run for deliveries that nobody counted


@dataclass(frozen=True, slots=True)
class Cleaned:
    """What one clean removed: numbers of files, and where the log begins now (physical offset)."""

    segments: int
    queue_files: int
    index_files: int
    min_physical_offset: int

    @property
    def files(self) -> int:
        """All files together."""
        return self.segments + self.queue_files + self.index_files


class Cleaner:
    """Cleans one store. Any process may do it; the housekeeping lock makes it one.

    The log's minimum is published before the first file goes, so a reader that comes too late is told so (OFFSET_TOO_SMALL). A
    kill leaves files below the minimum, which the next clean removes, or, when everybody is gone, a log that still begins there.
    """

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        dispatcher: Dispatcher,
        roller: Roller,
        space: DiskSpace,
        flusher: DerivedFlusher,
        delivered: DeliveryProgress,
        config: StoreConfig,
    ) -> None:
        self._control, self._commit_log, self._queues, self._index = control, commit_log, queues, index
        self._dispatcher, self._config = dispatcher, config
        self._roller, self._space, self._flusher, self._delivered = roller, space, flusher, delivered
        self.holds = Holds(commit_log.files.directory.parent, control)
        self.archive = ArchiveMark(commit_log.files.directory.parent, control)
        self._stalled_at: int | None = None  # the archived offset at which a full disk was reported
        self._hours = {int(hour) for hour in config.delete_when.split(";")}

    def run_once(self) -> Progress:
        """Cleans when the hour has come (delete_when), or when the disk fills up; switches writing off on a disk that is full."""
        self._roller.run_once()
        used = self._space.watch()
        forced = (
            self._config.clean_file_forcibly_enable and used >= self._config.disk_space_clean_forcibly_ratio
        )
        due = time.localtime(clock.now_ms() / 1000).tm_hour in self._hours
        if not (due or forced or used >= self._config.disk_max_used_space_ratio):
            return Progress(0)
        self._delivered.settle(monotonic_s() + SETTLE_S)
        self._save_offsets(forced=forced)
        repair = self._control.try_lock("housekeeping")
        if repair is None:
            return Progress(0)  # somebody else is at it
        try:
            done = self._clean(SEGMENTS_AT_ONCE, forced=forced)
            if repair:
                self._control.repaired("housekeeping")
        finally:
            self._control.unlock("housekeeping")
        return Progress(done.files, more=done.segments == SEGMENTS_AT_ONCE)

    def used_percent(self) -> float:
        """How full the file system is that holds the store."""
        return self._space.used_percent()

    def clean(self, max_segments: int | None = None) -> Cleaned:
        """Removes what has expired, at any hour. Raises OSError's StoreError for a file that cannot be unlinked."""
        self._delivered.settle()
        self._save_offsets(forced=False)
        with self._control.locked("housekeeping"):
            return self._clean(max_segments, forced=False)

    def _save_offsets(self, *, forced: bool) -> None:
        """Before a segment goes: a queue that has no other messages goes on counting, whatever else is lost."""
        bases = self._commit_log.files.refresh()
        if self._end_of_expired(bases, forced=forced):
            self._flusher.save_queue_offsets()

    # --------------------------------------------------------------------- under the housekeeping lock

    def _clean(self, max_segments: int | None, *, forced: bool) -> Cleaned:
        segments = self._commit_log.files
        bases = segments.refresh()
        end = self._end_of_expired(bases, forced=forced)
        expired = [base for base in bases if base < end][:max_segments]
        if expired:
            self._control.min_physical_offset = max(
                self._control.min_physical_offset, expired[-1] + segments.file_bytes
            )
            failpoint("clean.published")
        minimum = self._control.min_physical_offset
        # With what a clean that was killed left behind. Each name goes for good before the next: a power cut leaves no gap.
        gone = [base for base in bases if base + segments.file_bytes <= minimum]
        for base in gone:
            segments.remove(base)
            failpoint("clean.segment_gone")
        if gone:
            log.info("%s: removed %d files below %d", segments.directory, len(gone), minimum)
        queue_files, index_files = self._follow(minimum) if minimum else (0, 0)
        return Cleaned(len(gone), queue_files, index_files, minimum)

    def _end_of_expired(self, bases: list[int], *, forced: bool) -> int:
        """Where the log may begin after this clean, at the earliest where it does now."""
        control, file_bytes = self._control, self._commit_log.file_bytes
        needed = min(
            control.dispatched,
            control.flushed,
            self._commit_log.files.base_of(control.wrote),
            self._delivered.first_needed(),
        )
        candidates = [base for base in bases if control.min_physical_offset <= base <= needed - file_bytes]
        now_ms = clock.now_ms()
        oldest_kept_ms = now_ms - self._config.file_reserved_time_h * HOUR_MS
        holds = self.holds.read() if candidates else {}
        archived = self.archive.read() if candidates else None
        end = 0
        for base in candidates:
            newest_ms = self._timestamp_at_or_behind(base + file_bytes)
            expired = forced or (newest_ms is not None and newest_ms <= oldest_kept_ms)
            if not expired or self._is_held(holds, base + file_bytes, newest_ms, now_ms):
                break
            if archived is not None and base + file_bytes > archived.up_to:
                self._waits_for_archive(archived.up_to)
                break
            end = base + file_bytes
            if forced:
                break  # one at a time: the disk is looked at again
        return end

    def _is_held(self, holds: Mapping[str, Hold], end: int, newest_ms: int | None, now_ms: int) -> bool:
        """Whether somebody needs a segment that ends at `end`; who held it for too long is named in the log."""
        for name, hold in holds.items():
            if hold.keeps(end, newest_ms, now_ms):
                log.info("a hold of %s keeps what is behind %d", name, hold.physical_offset)
                return True
            if end > hold.physical_offset:
                log.warning(
                    "the hold of %s on what is behind %d is older than its limit of %d h: removed all the same",
                    name,
                    hold.physical_offset,
                    (hold.max_age_ms or 0) // HOUR_MS,
                )
        return False

    def _waits_for_archive(self, up_to: int) -> None:
        """The archive's hold never yields by itself; on a disk that fills up somebody is told, once for each place it stands at."""
        used = self._space.used_percent()
        if used < self._config.disk_max_used_space_ratio:
            log.info("what is behind %d expired and is not archived yet: it stays", up_to)
        elif self._stalled_at != up_to:
            self._stalled_at = up_to
            log.warning(
                "%s: %.1f %% of the disk are used, and what expired behind %d stays because it is not archived: run the archive job, "
                "or remove the file to end the hold",
                self.archive.path,
                used,
                up_to,
            )

    def _timestamp_at_or_behind(self, base: int) -> int | None:
        """The store timestamp of the first record of a segment, no record before which is younger; of the last one when there is
        none; None when it cannot be read: then nobody knows how old the segment before is."""
        if base >= self._control.wrote:
            return self._control.last_store_timestamp_ms
        try:
            return self._commit_log.read(base).store_timestamp_ms
        except CorruptRecordError:
            return None

    def _follow(self, minimum: int) -> tuple[int, int]:
        """Queues and index let go of what leads below the log's minimum; returns how many files each."""
        queue_files = 0
        for slot in range(self._control.queue_count):
            queue = self._queues.get(slot)
            with self._control.locked("dispatch") as due:
                if due:
                    self._dispatcher.repair()
                self._control.set_queue_minimum(slot, max(queue.min_offset, queue.offset_at(minimum)))
            failpoint("clean.queue_minimum")
            queue_files += queue.remove_expired()
        with self._control.locked("dispatch") as due:
            if due:
                self._dispatcher.repair()
            return queue_files, self._index.remove_below(minimum)
