"""The service "clean": rolls the log, watches the disk, removes expired segments, and lets queues and index follow.

Source: DefaultMessageStore.CleanCommitLogService and CleanConsumeQueueService. engine/log/removal.py cleans the log
itself. Queues and index follow in turns of their own (derived/dispatch/follow.py), and no call waits for that.
Waiting delayed messages are carried forward. This module collects the needs: undispatched records, delayed messages
that were not carried, holds and the archive.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import whole
from cystore._native.record.properties import queues_of
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.flush import DerivedFlusher
from cystore.derived.dispatch.follow import Follower
from cystore.derived.dispatch.remove import QueueRemover
from cystore.engine.files.progress import Progress
from cystore.engine.log.allocate import Allocator, without_room
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.disk_space import DiskSpace
from cystore.engine.log.removal import LogCleaner, Need
from cystore.engine.log.roll import Roller
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.quarantine_limits import trim
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import StoreConfigError, StoreError, StoreFullError
from cystore.services.compact.compactor import Compactor
from cystore.services.delay.carry import Carrier
from cystore.services.delay.delivery_progress import DeliveryProgress
from cystore.services.retention.hold import HoldTable
from cystore.services.retention.untaken import Untaken
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore.services.retention.archive_mark import ArchiveMark

log = logging.getLogger("cystore")

SEGMENTS_AT_ONCE = 10  # CommitLog: DELETE_FILES_BATCH_MAX
DISPATCH_BYTES = 64 * 1024 * 1024  # of log that one turn of the service helps to dispatch
TURN_S = 1.0  # of one turn, for uncounted deliveries and for queues that follow


@value_class(frozen=True)
class Cleaned:
    """The result of one clean: numbers of removed files, and the log's new first offset."""

    segments: int
    queue_files: int
    index_files: int
    min_physical_offset: int
    unexpired: int = 0  # of the segments

    @property
    def files(self) -> int:
        """All files together."""
        return self.segments + self.queue_files + self.index_files


class Cleaner:
    """Cleans one store. Any process may do it.

    The log's minimum is published before the first file is removed, so a late reader gets OFFSET_TOO_SMALL. A kill
    leaves files below the minimum, which the next clean removes. If all processes are gone, the log still begins with
    these files.
    """

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        follower: Follower,
        remover: QueueRemover,
        dispatcher: Dispatcher,
        allocator: Allocator,
        roller: Roller,
        space: DiskSpace,
        flusher: DerivedFlusher,
        delivered: DeliveryProgress,
        carrier: Carrier,
        compactor: Compactor,
        policy: Policy,
        manifest: Manifest,
        untaken: Untaken,
    ) -> None:
        self._control, self._commit_log, self._follower = control, commit_log, follower
        self._remover = remover
        self._dispatcher, self._allocator, self._policy = dispatcher, allocator, policy
        self._roller, self._space, self._flusher = roller, space, flusher
        self._delivered, self._carrier, self._compactor = delivered, carrier, compactor
        self._root = commit_log.files.directory.parent
        self._manifest = manifest
        self.holds, self.untaken = HoldTable(control, manifest), untaken
        self.log = LogCleaner(control, commit_log, policy, manifest)
        self._told_paused = ""
        self._undispatched_go = False  # whether this clean removes undispatched records
        self._uncompacted_from: int | None = None  # the covered offset that was reported
        self._stalled_at: int | None = None  # the archived offset at which a full disk was reported

    @property
    def archive(self) -> ArchiveMark:
        """The archive mark. An open does not import its module: most stores have no archive."""
        from cystore.services.retention.archive_mark import ArchiveMark

        return ArchiveMark(self._control, self._manifest)

    @property
    def settings(self) -> StoreConfig:
        """All settings; the retention policy is the store's present one."""
        return self._policy.now()

    def run_once(self) -> Progress:
        """Cleans in the hours of delete_when, or when the disk fills up; switches writing off on a full disk."""
        used = self._space.watch()
        self._attempt("begin a new segment", self._roller.run_once)
        if self._compactor.is_lost():
            self._attempt("compact", self._compactor.run_once)
        forced, due = self._is_time(used)
        until_s = monotonic_s() + TURN_S
        segments = 0
        if due:
            segments = self._clean_log(
                SEGMENTS_AT_ONCE,
                lambda: self._dispatcher.run_once(DISPATCH_BYTES),
                forced=forced,
                until_s=until_s,
            )
        self._attempt("trim quarantine/", self._trim)
        followed = self._follower.run(until_s)
        removed = self._remove_unused(until_s)
        done = segments + followed.queue_files + followed.index_files + removed
        return Progress(done, more=segments >= SEGMENTS_AT_ONCE or (done > 0 and self._follower.behind))

    def _is_time(self, used: float) -> tuple[bool, bool]:
        """(whether the disk forces a clean of unexpired segments, whether it is time for a clean)."""
        settings = self.settings
        forced = settings.clean_file_forcibly_enable and used >= settings.disk_space_clean_forcibly_ratio
        hours = {int(hour) for hour in settings.delete_when.split(";")}
        hour_has_come = time.localtime(clock.now_ms(self._control) / 1000).tm_hour in hours
        return forced, forced or hour_has_come or used >= settings.disk_max_used_space_ratio

    def is_due(self) -> bool:
        """Whether `run_once` has work that should not wait for minutes: the disk filled up or has space again, a
        segment ends by time, an unneeded segment expired, the compacted file is missing, or queues and index do not
        follow the log yet."""
        if (
            self._space.has_changed()
            or self._follower.behind
            or self._roller.is_due()
            or self._compactor.is_lost()
        ):
            return True
        forced, due = self._is_time(self._space.used_percent())
        if not due:
            return False
        end = self.log.end_of_removable(1, self._needs_of_others(), forced=forced)
        return end > self._control.min_physical_offset

    def watch_space(self) -> None:
        """Switches writing off on a full disk, and on again."""
        self._space.watch()

    def check_space(self) -> None:
        """Raises StoreFullError while writing is switched off because the disk is full; looks at the disk then."""
        self._space.check()

    def used_percent(self) -> float:
        """The used share of the file system that holds the store."""
        return self._space.used_percent()

    def clean(self, max_segments: int | None = None, *, forcibly: bool = False) -> Cleaned:
        """Removes expired segments, at any hour. `forcibly`: if the disk is still too full for the store's reserved
        space and the next step of the log, also the oldest ones, although they have not expired. Raises OSError's
        StoreError for a file that cannot be unlinked."""
        if max_segments is not None:
            max_segments = whole("max_segments", max_segments, error=StoreConfigError)
        segments = self._clean_log(max_segments, self._dispatcher.run_to_end, forced=False)
        unexpired = 0
        while forcibly and self.lacks_room() and unexpired + segments != max_segments:
            gone = self._clean_log(1, self._dispatcher.run_to_end, forced=True)
            if not gone:
                break
            unexpired += gone
        self._attempt("trim quarantine/", self._trim)
        followed = self._follower.run()
        queue_files = followed.queue_files + self._remove_unused(None)
        minimum = self._control.min_physical_offset
        return Cleaned(segments + unexpired, queue_files, followed.index_files, minimum, unexpired)

    def lacks_room(self) -> StoreFullError | None:
        """The reason why the log cannot grow, or None: the disk has no space for what the store reserves, or for the
        next step of the log."""
        try:
            self._allocator.keep_headroom()
        except StoreFullError as error:
            return error
        needed = min(self._commit_log.file_bytes, self.settings.allocate_ahead_bytes)
        free_bytes = self._space.free_bytes()
        return without_room(self._root, needed - free_bytes) if free_bytes < needed else None

    def _clean_log(
        self,
        max_segments: int | None,
        dispatch: Callable[[], object],
        *,
        forced: bool,
        until_s: float | None = None,
    ) -> int:
        """Dispatches, because undispatched records stay, and removes segments; returns their number.

        If the disk is too full to dispatch, segments whose records are dispatched go first: dispatch takes no space
        that a clean needs, and continues in the space that they leave. If there is none, segments go undispatched.
        """
        remove = partial(self._remove_segments, forced=forced, until_s=until_s)
        if self._dispatched(dispatch):
            return remove(max_segments)
        segments = remove(max_segments)
        if segments and self._dispatched(dispatch):
            return segments + (0 if forced else remove(_less(max_segments, segments)))
        if segments and (forced or segments == max_segments):
            return segments
        log.warning(
            "%s: the disk is too full to dispatch the log from %d on; expired segments there are removed undispatched",
            self._root,
            self._control.dispatched,
        )
        self._undispatched_go = True
        try:
            return segments + remove(_less(max_segments, segments))
        finally:
            self._undispatched_go = False

    def _remove_unused(self, until_s: float | None) -> int:
        """Removes queues without messages; returns the number of files."""
        removed = 0

        def remove() -> None:
            nonlocal removed
            removed = self._remover.settle(until_s).files

        self._attempt("remove unused queues", remove)
        return removed

    def needs(self) -> Iterator[Need]:
        """The needs for the log, each with its position."""
        yield Need("a delayed message", self._delivered.first_waiting())
        yield from self._other_needs()

    def _other_needs(self) -> Iterator[Need]:
        """The needs other than delayed messages."""
        compaction = self._compactor.need()
        if compaction is not None:
            yield compaction
        yield from self._needs_of_others()

    def _needs_of_others(self) -> Iterator[Need]:
        """The needs that a clean itself cannot end."""
        if not self._undispatched_go:
            yield Need("dispatch", self._control.dispatched)
        paused = self._manifest.snapshot().paused
        if paused:
            yield Need(f"unknown holds ({paused}; `cystore config PATH --resume-cleaning` ends the pause)", 0)
        archived = self.archive.read()
        if archived is not None:
            yield Need("the archive", archived.up_to)
        for name, hold in self.holds.read().items():
            if not hold.keeps_nothing:
                yield Need(name, hold.physical_offset, hold.max_age_ms)
        yield from self.untaken.needs()

    def _remove_segments(self, max_segments: int | None, *, forced: bool, until_s: float | None) -> int:
        """Carries waiting messages forward first. A delivered or carried copy must be durable before its source is
        removed. So this looks up the waiting messages before it flushes the log, and later copies count for the next
        clean."""
        self._attempt("count deliveries", lambda: self._delivered.settle(until_s))
        if self._compactor.topics:
            # Only durable records are compacted, and a segment stays until it is.
            self._attempt("make the log durable", self._flusher.flush_log)
        up_to = self.log.end_of_removable(max_segments, self._needs_of_others(), forced=forced)
        self._attempt("compact", lambda: self._compact(up_to))
        up_to = self.log.end_of_removable(max_segments, self._other_needs(), forced=forced)
        self._attempt("carry delayed messages forward", lambda: self._carrier.run(up_to, until_s))
        waiting = self._delivered.first_waiting() if self._undispatched_go else self._delivered.first_needed()
        if not self._attempt("make the log durable", self._flusher.flush_log) and self._delivered.slots():
            waiting = self._control.min_physical_offset
        end = self.log.end_of_expired(forced=forced)
        self._tell_of_pause()
        saved = 0

        def needs() -> list[Need]:
            return [Need("a delayed message", waiting), *self._other_needs()]

        if end > self._control.min_physical_offset:
            # Before a segment is removed: a queue without other messages must continue to count, whatever else is lost.
            saved = self._save_offsets(needs, forced=forced)
        segments = saved + self.log.remove_expired(
            _less(max_segments, saved), needs, forced=forced and not saved
        )
        if segments:
            self._attempt("reserve space", self._allocator.keep_headroom)
            self._attempt("reserve space for compaction", self._compactor.keep_reserve)
        if end > self._control.min_physical_offset:
            self._tell_of_archive(end)
            self._tell_of_compaction(end)
        return segments

    def _compact(self, up_to: int) -> None:
        """Compacts before a clean. Uses the reserved space on a full disk, because only a clean makes room again."""
        undispatched = self._undispatched_go
        try:
            self._compactor.cover(up_to, undispatched=undispatched)
        except StoreFullError:
            self._allocator.lend_headroom()
            self._compactor.cover(up_to, undispatched=undispatched)

    def _trim(self) -> int:
        return trim(
            self._root, self._commit_log.damaged_ranges, self.settings, clock.expiry_ms(self._control)
        )

    def _save_offsets(self, needs: Callable[[], list[Need]], *, forced: bool) -> int:
        """The table has its own space on a full disk; if that is too little, the reserved space is used. If that is
        gone, too, the oldest segment goes first, if its queues count on all the same. Returns the number of segments
        that are gone."""
        try:
            self._flusher.save_queue_offsets()
        except StoreFullError:
            self._allocator.lend_headroom()
        else:
            return 0
        try:
            self._flusher.save_queue_offsets()
        except StoreFullError:
            self._flusher.flush_dispatched()
            end = self.log.end_of_removable(1, needs(), forced=forced)
            if not self._count_on(end) or not self.log.remove_expired(1, needs, forced=forced):
                raise
            self._flusher.save_queue_offsets()
            return 1
        return 0

    def _count_on(self, end: int) -> bool:
        """Whether every queue counts on although the log below `end` is removed, and no table says where: its records
        there have durable entries, or it has a later record."""
        begin, flushed = (
            max(self._control.index_flushed, self._control.min_physical_offset),
            self._control.flushed,
        )
        if end <= begin:
            return True
        waiting = {queue[:2] for record in self._commit_log.scan(begin, end) for queue in queues_of(record)}
        for record in self._commit_log.scan(end, flushed):
            waiting.difference_update(queue[:2] for queue in queues_of(record))
            if not waiting:
                return True
        return not waiting

    def _dispatched(self, work: Callable[[], object]) -> bool:
        """Dispatches, because undispatched records stay. False if the disk is too full."""
        try:
            work()
        except StoreFullError:
            return False
        except StoreError:
            log.exception("%s: cannot dispatch; cleaning continues without", self._root)
        return True

    def _attempt(self, what: str, work: Callable[[], object]) -> bool:
        """Runs work that cleaning does not depend on, and logs its errors: a full disk must be cleaned in any case."""
        try:
            work()
        except StoreError:
            log.exception("%s: cannot %s; cleaning continues without", self._root, what)
            return False
        return True

    def _tell_of_pause(self) -> None:
        """Logs that cleaning is paused, once for each reason."""
        paused = self._manifest.snapshot().paused
        if paused and paused != self._told_paused:
            log.error(
                "%s: cleaning is paused, because the holds are unknown: %s; `cystore config PATH "
                "--resume-cleaning` ends the pause",
                self._root,
                paused,
            )
        self._told_paused = paused

    def _tell_of_compaction(self, end: int) -> None:
        """Logs that compaction keeps expired segments: its hold never ends by itself, either."""
        need = self._compactor.need()
        if need is None or need.position >= end or need.position == self._uncompacted_from:
            return
        self._uncompacted_from = need.position
        log.warning(
            "%s: expired segments from %d on stay, because they are not compacted: run `cystore compact PATH`, or end "
            "compaction (`cystore config PATH --set compacted_topics=`)",
            self._root,
            need.position,
        )

    def _tell_of_archive(self, end: int) -> None:
        """Logs that the archive keeps expired segments: its hold never ends by itself. On a disk that fills up this is
        a warning, once for each position of the hold."""
        archived = self.archive.read()
        if archived is None or archived.up_to >= end:
            return
        up_to, used = archived.up_to, self._space.used_percent()
        if used < self.settings.disk_max_used_space_ratio:
            log.info("expired segments from %d on stay, because they are not archived yet", up_to)
        elif self._stalled_at != up_to:
            self._stalled_at = up_to
            log.warning(
                "%s: %.1f %% of the disk is used, and expired segments from %d on stay, because they are not "
                "archived: run the archive job, "
                "or end the hold (`cystore config PATH --end-archive`)",
                self.archive.path,
                used,
                up_to,
            )


def _less(max_segments: int | None, done: int) -> int | None:
    return None if max_segments is None else max_segments - done
