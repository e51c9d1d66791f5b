"""The upkeep of a store: cleaning, retention, holds, the archive's mark, the scrub, checkpoints and duties.

`MessageStore` inherits all of it; this module keeps it apart from the methods of programs that put and get.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from cystore._native.memory import store_clock
from cystore._native.record.argument_checks import any_text, function, whole, yes_or_no
from cystore.attachment.attachment import StoreHandle
from cystore.clock import wait_s
from cystore.config import StoreConfig
from cystore.engine.inspect.stats import put_bytes_by_topic, store_stats
from cystore.engine.manifest.store_settings import configure
from cystore.engine.manifest.topic_names import checked_topic
from cystore.engine.pool.buffers import pool_figures
from cystore.errors import StoreConfigError, StoreFullError
from cystore.layout import FLAGS
from cystore.services.compact.figures import figures
from cystore.services.scrub_progress import SLICE_BYTES
from cystore.system.folders import check_place
from cystore.system.os_errors import sorted_error

if TYPE_CHECKING:
    from cystore.attachment.waiting_work import Maintenance
    from cystore.derived.dispatch.remove import Removal
    from cystore.engine.files.progress import Progress
    from cystore.services.clean import Cleaned
    from cystore.services.compact.compactor import Compacted
    from cystore.services.duty_table import Duties
    from cystore.services.retention.archive_mark import Archived, ArchiveMark
    from cystore.services.retention.hold import Hold
    from cystore.services.scrub import Scrubbed

SWITCHED_OFF = FLAGS["FLAG_SLAVE"][0] | FLAGS["FLAG_NOT_WRITABLE"][0]
REFUSED = SWITCHED_OFF | FLAGS["FLAG_SYNC_FAILED"][0] | FLAGS["FLAG_DISK_FULL"][0]  # of a put


class StoreUpkeep(StoreHandle):
    """The part of a `MessageStore` that operators and duties use."""

    __slots__ = ()

    def stats(self) -> dict[str, Any]:
        """Positions, counters of all processes since the first attach, puts and gets by the time they took
        (StoreStatsService).

        `compacted_...`: the last compacted file (docs/compaction.md).

        `get_found`, `get_missed`, `get_messages`, `queries`, `healed_entries`, `mapped_files` and `mapped_bytes` are of
        this process alone.
        """
        parts = self._attached()
        own = parts.reader.counters()  # first: this call adds them to the counters of all processes
        return {
            **store_stats(parts.control),
            **pool_figures(parts.control, parts.root, parts.manifest.snapshot().store_id),
            **own,
            **figures(parts.compactor, parts.control),
            "delayed": parts.delivered.pending(),
            "delayed_overdue_ms": parts.scheduler.overdue_ms(),
            "holes": parts.commit_log.damaged_ranges.ranges(),
        }

    def put_bytes_by_topic(self) -> dict[str, int]:
        """Bytes of records that all processes appended since the first attach, by topic (BrokerStatsManager:
        TOPIC_PUT_SIZE)."""
        return put_bytes_by_topic(self._attached().control)

    def dispatch(self, *, max_bytes: int | None = None, timeout_s: float | None = None) -> int:
        """Builds consume queues and index up to the present wrote position; returns the length of the dispatched log in
        bytes.

        Ends earlier after about `max_bytes` of log; `timeout_s` bounds the wait for another dispatcher (default: none).
        """
        parts = self._writable()
        timeout_ms = int(wait_s(timeout_s) * 1000)
        if max_bytes is not None:
            max_bytes = whole("max_bytes", max_bytes)
        before = parts.control.dispatched
        if max_bytes is None and timeout_s is None:
            parts.dispatcher.run_to_end()
        else:
            parts.dispatcher.run_once(max_bytes, timeout_ms=timeout_ms)
        return parts.control.dispatched - before

    def deliver(self, *, max_messages: int | None = None, timeout_s: float | None = None) -> int:
        """Delivers delayed messages that are due by now, each once, to the topics of their puts; returns their number.

        Delivers at most `max_messages`, for about `timeout_s`, which includes the wait for another process that
        delivers. The service "schedule" does the same all the time. Raises the errors of `put`.
        """
        return self._writable().scheduler.deliver(max_messages, timeout_s)

    def clean(self, max_segments: int | None = None, *, forcibly: bool = False) -> Cleaned:
        """Removes expired messages (file_reserved_time_h), at any hour: whole segments, oldest first, then the queue
        and index files that only point to them.

        `forcibly`: on a disk that stays too full, also the oldest segments that have not expired, until the store has
        its reserved space and can grow by a segment. Segments that a hold or a delayed message needs stay.

        Views of bodies stay readable. The service "clean" does the same at delete_when, and when the disk fills up
        (RocketMQ's executeDeleteFilesManually).
        """
        forcibly = yes_or_no("forcibly", forcibly, StoreConfigError)
        return self._writable().cleaner.clean(max_segments, forcibly=forcibly)

    def compact(
        self, up_to: int | None = None, *, progress: Callable[[str, int, int], None] | None = None
    ) -> Compacted:
        """Compacts the topics of the setting compacted_topics now, up to an offset of the log (default: its present
        end): a file keeps the newest record of each key, for longer than the log does. Makes the log durable first.

        The services "compact" and "clean" do the same when there is enough to do, or before a segment is removed.
        `progress(what, done, total)` is called with bytes of the log. Raises StoreConfigError when the store compacts
        no topic, StoreFullError, StoreTimeoutError when another process compacts, StoreResourceError.
        """
        if up_to is not None:
            up_to = whole("up_to", up_to, error=StoreConfigError)
        if progress is not None:
            function("progress", progress, StoreConfigError)
        parts = self._writable()
        parts.flusher.flush_to(parts.control.log_end)
        parts.dispatcher.run_to_end()
        return parts.compactor.compact(up_to, report=progress)

    def compact_due(self) -> Progress:
        """One turn of the service "compact": compacts full segments if there are enough of them."""
        return self._writable().compactor.run_once()

    def let_pages_go(self) -> None:
        """Takes the pages of mapped files out of this process's memory (its resident size), both those it wrote and
        those it read. They stay in the page cache; the next touch is a page fault. The store does this by itself
        whenever these pages have grown by 32 MiB."""
        self._attached().commit_log.resident.let_go()

    def delete_topic(self, topic: str) -> Removal:
        """Removes all queues of a topic with the messages that are in them by now (RocketMQ's deleteTopic), for every
        process.

        Readers get OFFSET_TOO_SMALL. The topic continues to count: a later message gets the next queue offset. Records
        stay in the log until their segment expires, so `query`, `read` and `scan` find them until then. Delayed
        messages are still delivered. The log becomes durable first: after a power cut a deletion must not outlive its
        records, because a member gets other records in their places from its master.
        Raises StoreConfigError for a topic that the store writes for itself and for a name that no topic can have,
        FlushFailedError.
        """
        topic = checked_topic(topic)
        parts = self._writable()
        parts.control.commit()
        parts.flusher.flush_to(parts.control.log_end)
        delete = partial(
            parts.remover.delete_topic, topic, parts.compactor.deletion(topic, parts.control.wrote)
        )
        try:
            return delete()
        except StoreFullError:  # dispatch waits for space: expired segments leave some
            if not parts.cleaner.clean().segments:
                raise
            return delete()

    def remove_unused_queues(self) -> Removal:
        """Removes the files of queues without messages (cleanExpiredConsumerQueue, cleanUnusedTopic). The queues
        continue to count. Every clean does the same."""
        return self._writable().remover.settle()

    def configure(self, **settings: Any) -> None:
        """Changes the store's retention policy, for every process that has it open or opens it: it wins over their own
        settings. Changed delay levels apply from the next open while no other process has the store open. None removes
        the store's value. Raises StoreConfigError."""
        configure(self._writable().manifest, settings)

    @property
    def settings(self) -> StoreConfig:
        """The present settings. Settings that shape the files, and the retention policy, are the store's; `config` has
        the given values."""
        return self._attached().cleaner.settings

    def hold(self, name: str, physical_offset: int, *, max_age_ms: int | None = None) -> Hold:
        """From now on no clean removes the log at `physical_offset` or behind it, until the hold moves or is released.

        Records older than `max_age_ms` are removed nevertheless, with a warning, so a forgotten hold does not fill the
        disk. With 0 the hold keeps nothing, and only notes a place. The answer contains the begin of the hold: the
        log's minimum if that is beyond `physical_offset`. Holds outlive processes. Raises StoreConfigError.
        """
        return self._writable().cleaner.holds.set(name, physical_offset, max_age_ms)

    def release(self, name: str) -> bool:
        """Ends a hold; False when there was none of that name."""
        return self._writable().cleaner.holds.release(any_text("name of the hold", name, StoreConfigError))

    def holds(self) -> Mapping[str, Hold]:
        """Every hold by name."""
        return self._attached().cleaner.holds.read()

    def archived(self) -> Archived | None:
        """The archive mark; no clean removes the log from its `up_to` on. None: there is no archive, so no hold of it.
        Raises StoreFormatError if the mark cannot be read."""
        return self._attached().cleaner.archive.read()

    def resume_cleaning(self) -> bool:
        """Ends the pause of cleaning after an unreadable manifest. Call it when every user of old records has set its
        hold."""
        return self._writable().manifest.resume_cleaning()

    @property
    def archive_mark(self) -> ArchiveMark:
        """The archive mark of the store, for archive jobs."""
        return self._writable().cleaner.archive

    def clean_due(self) -> Progress:
        """One turn of the service "clean". In the hours of delete_when, or when the disk fills up, does the work of
        `clean` for at most ten segments. Begins a new segment by time (roll_interval_h), and switches writing off on a
        full disk."""
        return self._writable().cleaner.run_once()

    def flush_log(self) -> int:
        """Makes the log durable up to the present end, and no more; returns the number of bytes that were not durable.
        Raises FlushFailedError, StoreTimeoutError after sync_flush_timeout_ms."""
        parts = self._writable()
        wrote, before = parts.control.log_end, parts.control.flushed
        parts.flusher.flush_to(wrote)
        return max(wrote - before, 0)

    def checkpoint(self) -> int:
        """Makes queues and index durable as far as they are dispatched, then the checkpoint and the queues' next
        offsets; returns the number of bytes of log that the index was behind. Raises the errors of `flush_log`."""
        parts = self._writable()
        behind = parts.control.dispatched - parts.control.index_flushed
        parts.derived_flusher.flush_dispatched()
        parts.derived_flusher.save_queue_offsets()
        return max(behind, 0)

    def scrub(self, max_bytes: int = SLICE_BYTES, *, pause_ms: int = 0) -> Scrubbed:
        """Verifies the next slice of the store, about `max_bytes` of log: checksums, and queues and index against the
        records. The last slices of a round read the compacted file.

        The manifest keeps its position. Wrong queue entries and extended units of intact records are rewritten. A new
        round begins `pause_ms` after the last one. Raises StoreIOError for unreadable bytes.
        """
        try:
            from cystore.services.scrub import Scrubber
        except OSError as error:  # no descriptor is left
            raise sorted_error(error, self._attached().root) from error

        parts = self._writable()
        scrubber = Scrubber(
            parts.root, parts.config, parts.control, parts.queues, parts.dispatcher, parts.manifest
        )
        return scrubber.run_once(max_bytes, pause_ms=pause_ms)

    @property
    def duties(self) -> Duties:
        """The duties of the store: which process may do each, and the last result, which readers see too."""
        from cystore.services.duty_table import Duties

        return Duties(self._attached().control)

    @property
    def maintenance(self) -> Maintenance:
        """The present need for each duty. Cheap, so that a worker can ask before each turn."""
        from cystore.attachment.waiting_work import maintenance_of

        return maintenance_of(self._writable())

    def used_disk_percent(self) -> float:
        """The used percentage of the file system that holds the store, as `df` counts."""
        return self._attached().cleaner.used_percent()

    def check_usable(self) -> None:
        """Raises the error that every put of this process would get: StoreMovedError if the path names another
        directory now, FlushFailedError after a failed sync. Costs 2 microseconds."""
        parts = self._attached()
        check_place(parts.root)
        parts.flusher.check()

    def check_takes_puts(self) -> None:
        """Raises StoreIsSlaveError in a slave, and in a member of a group that is not its elected master. Raises
        StoreNotWritableError while writing is switched off. Costs a microsecond."""
        parts = self._writable()
        if parts.control.flags & SWITCHED_OFF:
            from cystore.engine.log.append_policy import refuse_by_flags
            from cystore.ha.role import master_of

            refuse_by_flags(parts.control.flags, parts.root, partial(master_of, parts.manifest, parts.root))

    @property
    def is_doubtful(self) -> bool:
        """Whether `check_usable`, `check_takes_puts` or `check_room` may raise, or `asked_to_leave` be true, because of
        what some process of this store has found. Costs a quarter of a microsecond; it looks at the path only each half
        second, as a put does. Raises StoreMovedError then."""
        control = self._attached().control
        return bool(control.flags & REFUSED) or control.handover

    @property
    def epoch(self) -> int:
        """The epoch in which the group of this store elected it as master; 0 in any other store. Costs a
        microsecond."""
        return self._attached().control.epoch

    def wait_replicated(self) -> None:
        """Returns when everything appended so far is replicated, as after a put with flush="replicated". Raises its
        errors."""
        from cystore.engine.log.append_policy import FLUSH_REPLICATED

        parts = self._writable()
        if parts.appender is not None:
            parts.appender.policy.reach(parts.control.wrote, FLUSH_REPLICATED)

    def check_room(self, *, refused: bool = False) -> None:
        """Raises StoreFullError while puts are refused because the disk is full. Looks at the disk in that case, or
        after a put was `refused`; otherwise it costs a microsecond."""
        cleaner = self._writable().cleaner
        if yes_or_no("refused", refused, StoreConfigError):
            cleaner.watch_space()
        cleaner.check_space()

    def check_reserved_space(self) -> None:
        """Raises StoreFullError if the disk has no space for what the store reserves for a clean and a recovery. Then
        nothing grows, and dispatch waits; the error says what helps."""
        self._writable().allocator.keep_headroom()

    def asked_to_leave(self) -> bool:
        """Whether `cystore handover` asks the processes of this store to close it, so that another version can open
        it. Everything works as before until then. Costs 1 microsecond."""
        return self._attached().control.handover

    def set_writable(self, writable: bool) -> None:
        """Switches writing off (or on again) for every attached process (RunningFlags)."""
        control = self._writable().control
        flag = FLAGS["FLAG_NOT_WRITABLE"][0]
        if yes_or_no("writable", writable, StoreConfigError):
            control.clear_flag(flag)
        else:
            control.set_flag(flag)

    def believe_clock(self) -> None:
        """For an operator who knows that the wall clock is right: every process uses it from now on, also after a jump
        (max_clock_jump_s)."""
        parts = self._writable()
        store_clock.believe(parts.control)
        parts.clock.look()
