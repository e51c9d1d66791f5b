"""Recovery, first part: examines all files and changes none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.files.known_queues import KnownQueues, read_known_queues
from cystore.derived.files.offsets import QueueOffsets, read_queue_offsets
from cystore.engine.files.checkpoint import CheckpointFields, read_checkpoint
from cystore.engine.files.log_folders import check_list_is_there
from cystore.engine.log.commit_log import MARKER
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.given_up_offsets import GivenUp
from cystore.engine.manifest.manifest import look, read_damaged_ranges_or_copy, read_given_up, read_removed
from cystore.engine.manifest.removed_queues import Removed
from cystore.engine.manifest.store_settings import effective_at
from cystore.errors import StoreFormatError
from cystore.recovery.index_check import IndexCheck
from cystore.recovery.queue_check import QueueCheck, QueueFindings, known_scans, take_removed
from cystore.recovery.walk import rules
from cystore.recovery.walk.findings import IndexScan, LogScan, QueueScan, ScanResult
from cystore.recovery.walk.log_pass import EVERYTHING, LogPass, WalkInput
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.queue_reader import QueueReader, list_queues

T = TypeVar("T")
Progress = Callable[[str, int, int], None]


def scan(
    root: Path,
    config: StoreConfig,
    *,
    abnormal: bool,
    progress: Progress | None = None,
    with_index: bool = True,
) -> ScanResult:
    """The content of the store's files; without `with_index` not that of the index.

    Calls `progress` with a word for the work, the finished bytes of log, and all bytes of log.

    Raises StoreFormatError for files that do not belong to a store, StoreIOError for unreadable ones.
    """
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        return _Scan(root, config, reader, abnormal=abnormal, progress=progress).run(with_index=with_index)
    finally:
        reader.close()


def missing_begin(root: Path, reader: LogReader) -> tuple[int, int] | None:
    """The range of the log whose files were removed, but not by the cleaner, which would have recorded that."""
    facts = look(root).facts
    if facts is None or not reader.bases or not 0 <= facts.log_begin < reader.begin:
        return None
    return facts.log_begin, reader.begin


def missing_end(checkpoint: CheckpointFields, reader: LogReader) -> tuple[int, int] | None:
    """The range behind the log's last file that was durable by the checkpoint."""
    if not reader.end <= checkpoint.last_record < checkpoint.watermark:
        return None
    return reader.end, checkpoint.watermark


def scan_log(root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool) -> LogScan:
    """The part of `scan` about the log, which does not depend on the index. Raises as `scan` does."""
    return _Scan(root, config, reader, abnormal=abnormal, progress=None).log()


def likely_end(root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool) -> int:
    """The end that `scan` gives for a sound log; -1 if that is unknown before a walk. Examines only the last record.

    It is the watermark: below it no order of times or queue offsets ends a log, and behind it the log must be empty. It
    is unknown if files are too short, if a file is missing, if bytes behind the end are not zero, if damage is known,
    or if the walk would begin behind the end.
    """
    return _Scan(root, config, reader, abnormal=abnormal, progress=None).likely_end()


class _Scan:
    def __init__(
        self, root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool, progress: Progress | None
    ) -> None:
        self._root, self._config, self._reader = root, effective_at(config, root), reader
        check_list_is_there(root, self._config)
        self._abnormal, self._progress = abnormal, progress
        self._warnings: list[str] = []
        self._checkpoint = read_checkpoint(root)
        self._last = self._last_record()
        self._ours = rules.watermark_is_valid(self._checkpoint, self._last)
        self._index: IndexCheck | None = None
        self._saved = QueueOffsets()
        self._queues: dict[tuple[str, int], QueueReader] = {}
        self._queue_file_bytes = config.mapped_file_size_consume_queue_bytes
        self._removed = self._read(read_removed, Removed())
        self._leftovers: dict[tuple[str, int], tuple[Path, ...]] = {}
        self._known = self._known_queues()
        if self._known is None:
            self._list_queues()
        self._given_up = self._read(read_given_up, GivenUp())
        # Holes below the usual start are known from their list alone.
        self._known_damage, newest = self._read(read_damaged_ranges_or_copy, (DamagedRanges(), False))
        self._from_the_beginning = not newest
        if not newest and self._known_damage:
            self._warnings.append(
                "the list of damaged ranges is damaged; its copy may lack some, so recovery checks all of the log"
            )
        missing = missing_begin(root, reader)
        if missing is not None:
            self._warnings.append(
                f"the log's first files are missing: it began at {missing[0]}, and begins at {missing[1]} now"
            )
        missing = missing_end(self._checkpoint, reader)
        if missing is not None:
            self._warnings.append(
                f"the log's last files are missing: it reached {missing[1]}, and its files end at {missing[0]} now"
            )
        # The watermark's last record is missing, so it does not prove the watermark; but the log below it was durable.
        self._claimed = (
            min(self._checkpoint.watermark, reader.end)
            if self._last is None and 0 <= self._checkpoint.last_record < self._checkpoint.watermark
            else 0
        )
        if reader.bases and reader.file_bytes != config.mapped_file_size_commit_log_bytes:
            self._warnings.append(
                f"commit log files have {reader.file_bytes} bytes, the configuration says "
                f"{config.mapped_file_size_commit_log_bytes}"
            )

    def _known_queues(self) -> KnownQueues | None:
        """The queues by the table of an orderly close; None if their files have to be examined."""
        if self._abnormal or not self._ours or self._config.enable_consume_queue_ext:
            return None
        begin, file_bytes = self._reader.begin, self._queue_file_bytes
        return self._read(lambda root: read_known_queues(root, self._checkpoint, begin, file_bytes), None)

    def _list_queues(self) -> None:
        """Examines the files of every queue."""
        self._known = None
        self._saved = self._read(read_queue_offsets, QueueOffsets())
        self._queues, self._queue_file_bytes = list_queues(
            self._root, self._queue_file_bytes, self._warnings, short=self._short()
        )
        self._leftovers = take_removed(self._queues, self._removed)

    def _short(self) -> Callable[[str, int], bool] | None:
        """The queues that have only their first file, by the table of a clean close."""
        if self._abnormal or not self._saved.physical_offset:
            return None
        limit = self._config.mapped_file_size_consume_queue_bytes // ENTRY_BYTES
        following = self._saved.next
        return lambda topic, queue_id: 0 < following.get((topic, queue_id), 0) < limit

    def _read(self, read: Callable[[Path], T], default: T) -> T:
        """Reads a small file that recovery does not depend on. Damage in it becomes a warning."""
        try:
            return read(self._root)
        except StoreFormatError as error:
            self._warnings.append(str(error))
            return default

    def _last_record(self) -> rules.LastRecord | None:
        """The record that the checkpoint names as the last below its watermark."""
        at = self._checkpoint.last_record
        record = self._reader.record(at) if self._checkpoint.watermark > 0 and at >= 0 else None
        if record is None:
            return None
        end = at + record["total_size"]
        blank_end = (
            self._reader.base_of(end) + self._reader.file_bytes if self._reader.blank_fills(end) else -1
        )
        return rules.LastRecord(end, record["checksum"], record["store_timestamp"], blank_end)

    # ------------------------------------------------------------------------------------ the walk

    def run(self, *, with_index: bool) -> ScanResult:
        if with_index:
            self._index = IndexCheck(
                self._root,
                self._config,
                self._reader,
                self._checkpoint,
                abnormal=self._abnormal,
                ours=self._ours,
            )
        return self._result(*self._walked())

    def log(self) -> LogScan:
        return self._log_of(self._walked()[0])

    def likely_end(self) -> int:
        reader = self._reader
        if not reader.bases or reader.short or self._known_damage or self._from_the_beginning:
            return -1
        end = self._walk_input().watermark
        if not reader.begin < end < reader.end or not reader.has(reader.base_of(end)) or self._start() > end:
            return -1
        empty = reader.nonzero(end, reader.base_of(end) + reader.file_bytes) is None
        return end if empty and all(file.zero for file in reader.later_files(end)) else -1

    def _walked(self) -> tuple[LogPass, QueueFindings]:
        if not self._reader.bases:
            return self._without_log()
        known = self._walked_with(self._known) if self._known is not None else None
        if known is not None:
            return known
        if self._known is not None:
            self._list_queues()
        walk_input = self._walk_input()
        start = self._start()
        while True:
            walked = self._pass(walk_input, start)
            result = walked.run()
            if result.end < self._claimed:
                result.lost_end = max(result.lost_end, self._claimed)
            if result.earlier is None:
                found = QueueCheck(walk_input, walked, self._saved, self._leftovers).run()
                if found.earlier is None:
                    break
                result.earlier = found.earlier
            self._warnings.append(
                f"consume queues lack entries below {start}: checked again from {result.earlier}"
            )
            start = result.earlier
        return walked, found

    def _walked_with(self, known: KnownQueues) -> tuple[LogPass, QueueFindings] | None:
        """A walk over a log whose queues are known; None if the log has changed, so that the queues must be
        examined."""
        if self._from_the_beginning:
            return None
        walked = self._pass(self._walk_input(), self._start(), follow_queues=False)
        result = walked.run()
        if result.damage or result.end != known.end or max(result.lost_end, self._claimed) > known.end:
            return None
        return walked, QueueFindings(known_scans(known), known.end, None, self._given_up)

    def _pass(self, walk_input: WalkInput, start: int, *, follow_queues: bool = True) -> LogPass:
        """A walk that compares the index on its way, if the index is wanted."""
        walked = LogPass(walk_input, start, follow_queues=follow_queues)
        if self._index is not None:
            self._index.begin(walked)
        return walked

    def _start(self) -> int:
        bases = self._reader.bases
        if self._from_the_beginning:
            return bases[0]
        if not self._abnormal:
            return rules.start_after_clean_close(
                bases, self._reader.file_bytes, self._config.check_at_load_bytes
            )
        start = next(
            (b for b in reversed(bases) if rules.is_old_enough(self._first_record(b), self._checkpoint)),
            bases[0],
        )
        return min(start, self._reader.base_of(self._checkpoint.last_record)) if self._ours else start

    def _first_record(self, base: int) -> rules.FirstRecord:
        record = self._reader.record(base)
        return rules.FirstRecord(base, record["store_timestamp"] if record is not None else 0)

    def _walk_input(self) -> WalkInput:
        config, watermark = self._config, -1
        # The queues' next offsets were saved when all that they count was durable.
        saved = self._saved.physical_offset if self._known is None else self._known.end
        counted = min(saved, self._reader.end)
        if self._ours:
            watermark = self._checkpoint.watermark
        elif not self._abnormal:
            watermark = max((_end_of_entries(queue) for queue in self._queues.values()), default=0)
            watermark = min(max(watermark, counted), self._reader.end)
        return WalkInput(
            reader=self._reader,
            queues=self._queues,
            known_damage=self._known_damage,
            given_up=self._given_up,
            removed=self._removed,
            watermark=watermark,
            counted=counted,
            trusted=self._ours,
            physic_timestamp=self._checkpoint.physic_timestamp,
            keep=config.damaged_range == "keep",
            check_checksum=config.check_crc_on_recover,
            in_time_order=(self._reader.directory / MARKER).exists(),
            progress=None if self._progress is None else self._show,
        )

    def _show(self, position: int) -> None:
        if self._progress is not None:
            self._progress("recover", position - self._reader.begin, self._reader.end - self._reader.begin)

    def _result(self, walked: LogPass, found: QueueFindings) -> ScanResult:
        result, reader = walked.result, self._reader
        index = IndexScan(found.dispatch_from)
        if self._index is not None:
            index = self._index.run(result, found.dispatch_from, self._known_damage.merged(result.damage))
        return ScanResult(
            log=self._log_of(walked),
            queues=found.queues,
            index=index,
            known_damage=self._known_damage.within(reader.begin, result.end),
            known_given_up=self._given_up,
            given_up=found.given_up,
            dispatched=max(min(found.dispatch_from, index.through), reader.begin),
            queue_file_bytes=self._queue_file_bytes,
            offsets_saved=self._known is not None or self._are_saved(found.queues, result.end),
            warnings=tuple(self._warnings),
        )

    def _are_saved(self, queues: tuple[QueueScan, ...], end: int) -> bool:
        """Whether config/queueOffset.json agrees with recovery about every queue."""
        saved = self._saved
        return saved.physical_offset == end and all(
            saved.next.get((q.topic, q.queue_id)) == q.next == q.dispatched
            and saved.minimum.get((q.topic, q.queue_id)) == q.minimum
            for q in queues
        )

    def _log_of(self, walked: LogPass) -> LogScan:
        result, scanner, reader = walked.result, walked.scanner, self._reader
        last_record, last_checksum, last_time = self._last_of(walked)
        watermark = result.watermark
        if watermark < 0:  # the walk met nothing for which the watermark mattered
            watermark = max(scanner.timed_end, result.start)
        end_base = reader.base_of(result.end)
        return LogScan(
            begin=reader.begin,
            start=result.start,
            end=result.end,
            reason=result.reason,
            watermark=min(watermark, result.end),
            watermark_source="checkpoint"
            if self._ours
            else "timestamps"
            if self._abnormal
            else "consume queues",
            damage=tuple(result.damage),
            lost_end=max(result.lost_end, result.end),
            last_record=last_record,
            last_checksum=last_checksum,
            last_store_timestamp_ms=last_time,
            records=scanner.record_count,
            dirty=reader.nonzero(result.end, end_base + reader.file_bytes) if reader.has(end_base) else None,
            later=reader.later_files(result.end),
            short=reader.short,
            file_bytes=reader.file_bytes,
        )

    def _last_of(self, walked: LogPass) -> tuple[int, int, int]:
        """Place and checksum of the last record, and the newest store timestamp known."""
        scanner = walked.scanner
        if scanner.record_count:
            return scanner.last_record, scanner.last_checksum, scanner.last_timestamp
        return -1, 0, self._checkpoint.physic_timestamp

    def _without_log(self) -> tuple[LogPass, QueueFindings]:
        """There is no commit log file, so all other files refer to a log that is gone (CommitLog.recoverNormally)."""
        walk_input = self._walk_input()._replace(watermark=0)
        walked = LogPass(walk_input, 0)
        walked.run()
        return walked, QueueCheck(walk_input, walked, self._saved, self._leftovers).without_log()


def _end_of_entries(queue: QueueReader) -> int:
    """Physical offset behind the last record that a queue has an entry for; 0 if there is none."""
    last = queue.message_before(queue.below(EVERYTHING))
    if last < 0:
        return 0
    entry = queue.entry(last)
    return entry.physical_offset + entry.size
