"""Scrub: verifies the whole store, a slice at a time, again and again, so that a flipped bit is found while a backup is
young.

After each slice the manifest keeps the position, so the scrub continues after a restart; a kill costs the interrupted
slice. The scrub reports damage of the log and of the index, and does not mend it: `cystore recover` and `cystore
rebuild` do. It rewrites a consume queue entry that disagrees with its intact record, from the log, under the dispatch
lock; if it is killed half-way, the entry is as wrong as before, and found again.
"""

from __future__ import annotations

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from cystore import clock
from cystore._native.derived import queue_ext
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record import record as kernel
from cystore._native.record.argument_checks import whole
from cystore._native.record.properties import find_property
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueue, ConsumeQueues
from cystore.engine.files.compacted_file import numbers
from cystore.engine.manifest.group_filters import group_filters_of
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import (
    StoreConfigError,
    StoreError,
    StoreIOError,
    StoreLockedError,
    StoreTimeoutError,
)
from cystore.layout import QUEUE_ENTRY, SCHEDULE_TOPIC
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_reader import LogReader, queue_places
from cystore.recovery.walk.queue_reader import open_queue
from cystore.services.scrub_progress import (
    FINDINGS_KEPT,
    SECTION,
    SLICE_BYTES,
    ScrubProgress,
    progress_fields,
    progress_of,
)
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.verify.bounds import Bounds
from cystore.verify.compacted import KIND as COMPACTED
from cystore.verify.compacted import CompactedCheck, missing_file
from cystore.verify.filter_marks import FilterMarks
from cystore.verify.record_walk import Comparison, WrongEntry

log = logging.getLogger("cystore")

MENDED_AT_ONCE = 1000  # more wrong entries than that in one slice are a case for `cystore rebuild`
LOCK_WAIT_MS = 100


@dataclass(frozen=True)
class Scrubbed:
    """The result of one slice: damage that stays, and the number of rewritten queue entries and extended units. `more`:
    the round is not finished."""

    begin: int
    end: int
    records: int
    damage: tuple[Damage, ...]
    mended: int
    more: bool


class Scrubber:
    """Scrubs one store. Only one process may do it at a time: two would do the same slice, and record it twice."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        control: Control,
        queues: ConsumeQueues,
        dispatcher: Dispatcher,
        manifest: Manifest,
    ) -> None:
        self._manifest = manifest
        self._root, self._config, self._control = root, config, control
        self._queues, self._dispatcher = queues, dispatcher

    def run_once(self, max_bytes: int = SLICE_BYTES, *, pause_ms: int = 0) -> Scrubbed:
        """Verifies about `max_bytes` of log with their entries in queues and index, from the end of the last slice on.
        The last slices of a round read the compacted file.

        A new round begins at least `pause_ms` after the end of the last one. Raises StoreIOError if the disk cannot be
        read, and StoreTimeoutError if another process dispatches all the time: the slice is repeated next time.
        """
        max_bytes = whole("max_bytes", max_bytes, error=StoreConfigError)
        pause_ms = whole("pause_ms", pause_ms, error=StoreConfigError)
        before = progress_of(self._manifest.snapshot().sections.get(SECTION))
        minimum, dispatched = self._control.min_physical_offset, self._control.dispatched
        now = clock.now_ms()
        if before.ended_ms or not before.began_ms:
            if before.ended_ms and now < before.ended_ms + pause_ms:
                return Scrubbed(before.position, before.position, 0, (), 0, more=False)
            before = ScrubProgress(
                position=minimum, began_ms=now, rounds=before.rounds, findings=before.findings
            )
        begin = max(before.position, minimum)
        if begin > dispatched:  # the log lost its end
            begin = minimum
        end = min(begin + max(max_bytes, 1), dispatched)
        found, check = self._verify(begin, end, dispatched)
        minimum = self._control.min_physical_offset
        if minimum > begin:  # cleaned meanwhile: a missing segment there is no damage
            found, check = [], None
        mended, damage = self._mend(found, check)
        position = check.position if check is not None else max(begin, minimum)
        over = position >= dispatched
        if over:  # the compacted file is read behind the log
            in_file, before, over = self._verify_compacted(before, max_bytes)
            damage += in_file
        for finding in damage:
            log.error(
                "%s: scrub: %s %s %d..%d: %s; %s",
                self._root,
                finding.kind,
                finding.path,
                finding.begin,
                finding.end,
                finding.reason,
                "see `cystore verify`"
                if finding.kind == "record"
                else "see `cystore compact`"
                if finding.kind == COMPACTED
                else "`cystore rebuild` makes it anew from the log",
            )
        kept = (*before.findings, *({**_finding(each), "found_ms": now} for each in damage))
        self._save(
            dataclasses.replace(
                before,
                position=position,
                ended_ms=clock.now_ms() if over else 0,
                records=before.records + (check.records if check is not None else 0),
                damaged=before.damaged + len(damage),
                mended=before.mended + mended,
                rounds=before.rounds + over,
                findings=kept[-FINDINGS_KEPT:],
            ),
        )
        records = check.records if check is not None else 0
        return Scrubbed(begin, position, records, tuple(damage), mended, more=not over)

    def _save(self, progress: ScrubProgress) -> None:
        failpoint("scrub.verified")
        self._manifest.set_section(SECTION, progress_fields(progress))

    def _verify(self, begin: int, end: int, dispatched: int) -> tuple[list[Damage], Comparison | None]:
        """Damage of the slice, without holes that recovery reported already; None for a slice that holds nothing."""
        if begin >= end:
            return [], None
        bounds = Bounds(begin, end, dispatched, complete=False)
        try:
            reader = LogReader(self._root, self._config.mapped_file_size_commit_log_bytes)
            try:
                check = self._comparison(reader, bounds)
                found = [each for each in check.run() if not each.reason.startswith("known hole")]
            finally:
                reader.close()
        except StoreError as error:
            if self._control.min_physical_offset > begin or is_missing(error):
                return [], None  # cleaned while it was read; the slice is done again next time
            raise
        return found, check

    def _verify_compacted(
        self, before: ScrubProgress, max_bytes: int
    ) -> tuple[list[Damage], ScrubProgress, bool]:
        """Reads the next slice of the compacted file: its damage, the progress, and whether that was the last slice. A
        file that a turn replaced counts as read: the turn verified its checksums."""
        listed = numbers(self._root)
        number = before.compacted - 1 if before.compacted else max(listed, default=-1)
        missing = missing_file(self._root) if not before.compacted else None
        found = [] if missing is None else [missing]
        if number not in listed:
            return found, before, True
        try:
            check = CompactedCheck(self._root, number, before.compacted_position)
        except StoreIOError as error:
            if is_missing(error):
                return found, before, True
            raise
        try:
            found += check.step(max(max_bytes, 1))
        finally:
            check.close()
        after = dataclasses.replace(before, compacted=number + 1, compacted_position=check.position)
        return found, after, check.done

    def _comparison(self, reader: LogReader, bounds: Bounds) -> Comparison:
        """The comparison of the slice alone: it reads only the slice's records, and ignores other entries of queues and
        index."""
        root, file_bytes = self._root, self._config.mapped_file_size_consume_queue_bytes
        filters = group_filters_of(self._manifest.snapshot().sections).rows
        marks = FilterMarks(filters, self._config.bit_map_length_consume_queue_ext) if filters else None
        check = Comparison(
            root, reader, bounds, lambda key: open_queue(root, *key, file_bytes), each_entry=True, marks=marks
        )
        if self._config.message_index_enable:
            readers, _ = list_readable_index(root, self._config)
            stream = IndexStream([each for each in readers if each.sound])
            check.compare_keys(stream, stream.below(bounds.begin))
        return check

    def _mend(self, found: list[Damage], check: Comparison | None) -> tuple[int, list[Damage]]:
        """Rewrites wrong entries; returns their number, and the damage that is left."""
        wrong = check.wrong_entries if check is not None else []
        if not wrong or len(wrong) > MENDED_AT_ONCE:
            return 0, found
        try:
            with self._control.held("dispatch", timeout_ms=LOCK_WAIT_MS):
                written = [(entry, self._write(entry)) for entry in wrong]
        except StoreLockedError as error:
            raise StoreTimeoutError(f"wrong queue entries are not mended yet: {error}") from error
        mended = [entry for entry, file in written if file is not None]
        for file in {file.path: file for _, file in written if file is not None}.values():
            with files.translated(file.path):
                file.sync()  # the file's regular flush may be over
        for entry in mended:
            log.warning(
                "%s/%d: the entry or extended unit of queue offset %d disagreed with its record at %d; rewritten",
                entry.topic,
                entry.queue_id,
                entry.queue_offset,
                entry.physical_offset,
            )
        gone = [entry.damage for entry in mended]
        return len(mended), [each for each in found if each not in gone]

    def _write(self, wrong: WrongEntry) -> MappedFile | None:
        """Rewrites an entry, or its extended unit, from its record, under the dispatch lock; returns the file that
        changed, None if nothing changed. An entry without a whole unit of its own gets the tags code itself: RocketMQ
        writes such entries when it cannot write a unit."""
        queue = self._queues.find(wrong.topic, wrong.queue_id)
        if (
            queue is None
            or wrong.topic == SCHEDULE_TOPIC  # its entries hold a due time, which depends on settings
            or not queue.min_offset <= wrong.queue_offset < queue.max_offset
        ):
            return None
        reader = LogReader(self._root, self._config.mapped_file_size_commit_log_bytes)
        try:
            found = reader.record(wrong.physical_offset)
        finally:
            reader.close()
        file = queue.file_of(wrong.queue_offset)
        if found is None or file is None:
            return None
        if ((wrong.topic, wrong.queue_id), wrong.queue_offset) not in queue_places(found):
            return None
        tags_code = kernel.hash_code(find_property(found["properties"], b"TAGS") or b"")
        if queue.ext is not None:
            entry = queue.entry(wrong.queue_offset)
            place = wrong.physical_offset, wrong.size_bytes
            if entry is not None and entry[:2] == place and _has_own_unit(queue, wrong.queue_offset):
                mended = queue.ext.mend(entry.tags_code, tags_code, found["store_timestamp"])
                if mended is not None:
                    return mended
        rewritten = QUEUE_ENTRY.pack(wrong.physical_offset, wrong.size_bytes, tags_code)
        file.write(wrong.queue_offset * ENTRY_BYTES - file.base, rewritten)
        return file


def _has_own_unit(queue: ConsumeQueue, queue_offset: int) -> bool:
    """Whether the addresses of an entry and its neighbours rise: a wrong address may lead to the unit of another entry.
    False also if a neighbour has no address, because then nothing tells."""
    around = range(max(queue_offset - 1, queue.min_offset), min(queue_offset + 2, queue.max_offset))
    codes = [0 if entry is None else entry.tags_code for _, entry in queue.entries(around.start, around.stop)]
    positions = [queue_ext.position_of(code) for code in codes if queue_ext.is_address(code)]
    return len(positions) == len(around) and positions == sorted(set(positions))


def _finding(damage: Damage) -> dict[str, Any]:
    return {**dataclasses.asdict(damage), "path": str(damage.path)}
