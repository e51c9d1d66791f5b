"""The service "compact": makes the next compacted file from the last one and the log behind it.

Any process may do a turn, one at a time. Cleaning keeps the log from the covered offset on (`need`), so a record leaves
the log when a durable compacted file has it, or has a newer one of each of its keys. After a kill the old file or the
new one is in force; the next turn removes the other.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.record.checksum import crc32c
from cystore._native.system.failpoint import failpoint
from cystore.engine.files.compacted_file import (
    FOLDER,
    HEADER_BYTES,
    SEED_BYTES,
    CompactedFile,
    Header,
    next_number,
    numbers,
    open_newest,
    path_of,
    render_header,
)
from cystore.engine.files.progress import Progress
from cystore.engine.files.quarantine import put_aside
from cystore.engine.files.segments import base_of_name
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.removal import Need
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreTimeoutError,
)
from cystore.services.compact.selection import Report, Selection, matches
from cystore.system import files
from cystore.system.ranges.new_file import NewFile, new_file
from cystore.system.threads import os_threads

if TYPE_CHECKING:
    from cystore.system.key_lock import NameLocks

log = logging.getLogger("cystore")

BUFFER_BYTES = 4 << 20
SECTION = "compaction"  # in the manifest
LOCK_NAME = "compact.lock"
WAIT_S = 60.0  # for another process's turn


@dataclass(frozen=True, slots=True)
class Compacted:
    """The result of one compaction: the offset up to which the log is covered, the numbers of kept records and keys and
    the length of their file, the number of examined records, and descriptions of the damage that was stepped over."""

    covered: int
    records: int
    keys: int
    size_bytes: int
    looked_at: int
    damaged: tuple[str, ...] = ()


class Compactor:
    """Compacts one store. Safe for threads."""

    def __init__(
        self, root: Path, control: Control, commit_log: CommitLog, policy: Policy, manifest: Manifest
    ) -> None:
        self._root, self._control, self._log = root, control, commit_log
        self._policy, self._manifest = policy, manifest
        self._known: CompactedFile | None = None
        self._lock = os_threads.RLock()
        self._locks: NameLocks | None = None

    # ------------------------------------------------------------------------------------------- state

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the setting compacted_topics; none: nothing is compacted."""
        return self._policy.now().compacted_topic_names()

    def newest(self) -> CompactedFile | None:
        """The file in force; None without one."""
        with self._lock:
            self._known = open_newest(self._root, self._known)
            return self._known

    def covered(self) -> int:
        """The offset up to which the log is covered: 0 without a file, or if it is damaged or for other topics."""
        found = self.newest()
        if found is None or found.header is None or self.lacks_topics(found.header):
            return 0
        return found.header.covered

    def lacks_topics(self, header: Header) -> bool:
        """Whether a file was made before one of the topics was compacted."""
        return not set(self.topics) <= set(header.topics.split(","))

    def need(self) -> Need | None:
        """The need for the log, for cleaning. Raises StoreError if that cannot be known."""
        return Need("compaction", self.covered()) if self.topics else None

    def uncovered_bytes(self) -> int:
        """Bytes of full segments that are not compacted yet."""
        if not self.topics:
            return 0
        return max(self._sealed() - max(self.covered(), self._control.min_physical_offset), 0)

    def _sealed(self) -> int:
        return self._log.files.base_of(self._limit())

    def _limit(self) -> int:
        return min(self._control.flushed, self._control.dispatched)

    def is_due(self) -> bool:
        """Whether a turn is worth its cost: the uncovered part is at least a segment, and at least as long as the part
        that would be copied again."""
        waiting = self.uncovered_bytes()
        found = self.newest() if waiting else None
        return waiting > 0 and (found is None or waiting >= found.file.length)

    # ------------------------------------------------------------------------------------ deleted topics

    def deleted(self) -> dict[str, int]:
        """The deleted topics, each with the log offset below which its records are deleted."""
        listed = self._manifest.snapshot().sections.get(SECTION)
        found = listed.get("deleted") if isinstance(listed, dict) else None
        if not isinstance(found, dict):
            return {}
        return {topic: end for topic, end in found.items() if type(end) is int}

    def delete_topic(self, topic: str, end: int) -> None:
        """From now on the topic's records below an offset of the log are not found, and the next turn leaves them
        out."""
        if (
            matches(self.topics, topic) or self.newest() is not None
        ):  # the file may have it of an earlier setting
            self._enter_deleted(lambda known: {**known, topic: max(end, known.get(topic, 0))})

    def _forget_deleted(self, applied: dict[str, int]) -> None:
        """Forgets deletions whose records are neither in the new file nor in the log."""
        gone = {topic for topic, end in applied.items() if end < self._control.min_physical_offset}
        if gone:
            self._enter_deleted(
                lambda known: {
                    topic: end for topic, end in known.items() if topic not in gone or end != applied[topic]
                }
            )

    def _enter_deleted(self, change: Callable[[dict[str, int]], dict[str, int]]) -> None:
        def entered(facts: Facts) -> Facts:
            listed = facts.sections.get(SECTION)
            known = listed.get("deleted") if isinstance(listed, dict) else None
            after = change(known if isinstance(known, dict) else {})
            return facts.with_section(SECTION, {"deleted": after} if after else None)

        self._manifest.update(entered)

    # -------------------------------------------------------------------------------------------- turns

    def run_once(self) -> Progress:
        """Makes a turn over the full segments, if it is due and no other process makes one."""
        if not self.topics or not self.is_due():
            return Progress(0)
        before = self.covered()
        try:
            done = self.compact(self._sealed(), wait_s=0.0)
        except StoreTimeoutError:
            return Progress(0)
        return Progress(max(done.covered - before, 0))

    def cover(self, up_to: int) -> None:
        """Compacts the part of the log that is about to be removed, if it is not covered. Raises StoreError."""
        if self.topics and up_to > max(self.covered(), self._control.min_physical_offset):
            self.compact(max(up_to, self._sealed()))

    def compact(
        self, up_to: int | None = None, *, report: Report | None = None, wait_s: float = WAIT_S
    ) -> Compacted:
        """Compacts the log up to an offset (default: the durable and dispatched part). Raises StoreConfigError without
        compacted topics, StoreFullError, StoreResourceError (memory), StoreTimeoutError when another process has been
        compacting for so long."""
        if not self.topics:
            raise StoreConfigError(
                "no topic of this store is compacted: name topics with `cystore config PATH --set "
                "compacted_topics=TOPIC,...`",
                path=self._root,
            )
        with self._turns().held("compaction", wait_s):
            limit = self._limit() if up_to is None else min(up_to, self._limit())
            before = self.newest()
            if before is not None and before.header is not None:
                self._remove_below(before)
            if before is not None and before.header is not None and before.header.covered >= limit \
                    and before.header.topics == ",".join(self.topics) and self._is_whole(before):  # fmt: skip
                return _result(before, 0, ())
            return self._turn(before, limit, report)

    def _turns(self) -> NameLocks:
        from cystore.system.key_lock import NameLocks  # here: most stores compact nothing

        with self._lock:
            if self._locks is None:
                self._locks = NameLocks(self._root / "config" / LOCK_NAME)
            return self._locks

    def close(self) -> None:
        """Ends the mappings of files."""
        self._known = None
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.close()

    def _is_whole(self, found: CompactedFile) -> bool:
        """Whether no byte of the file is damaged, and the log is still the log that the file was made from."""
        try:
            header = found.whole_header()
        except CorruptRecordError:
            return False
        return not self.log_was_truncated(header) and Selection(self._log, (), {}, header.seeds).take_file(
            found, None
        )

    def log_was_truncated(self, header: Header) -> bool:
        """Whether the log lost its end since the file was made: a slave that follows another master, for example."""
        control = self._control
        if header.covered > control.wrote:
            return True
        if header.last_record < control.min_physical_offset:
            return False
        try:
            last = self._log.read(header.last_record)
        except OffsetError:
            return header.last_record >= control.min_physical_offset
        except CorruptRecordError:
            return False
        return (last.body_crc or 0) & 0xFFFFFFFF != header.last_checksum & 0xFFFFFFFF

    def _turn(self, before: CompactedFile | None, limit: int, report: Report | None) -> Compacted:
        minimum, topics = self._control.min_physical_offset, self.topics
        header = None if before is None else before.header
        begin, leave_out_from = minimum, None
        if header is not None and self.log_was_truncated(header):
            leave_out_from = minimum
        elif header is not None and not self.lacks_topics(header):
            begin = max(header.covered, minimum)
        seeds = os.urandom(SEED_BYTES)
        deleted = self.deleted()
        chosen = Selection(self._log, topics, deleted, seeds)
        whole = before is None or chosen.take_file(before, leave_out_from)
        if not whole:
            begin = minimum  # the log may still have the damaged records
        chosen.take_log(begin, max(begin, limit), report)
        chosen.table.sort()
        number = next_number(self._root)
        if before is not None and not (whole and leave_out_from is None and before.number == number - 1):
            self._put_aside()
        with self._new_file(number) as out:
            buffer, filled = bytearray(BUFFER_BYTES), 0
            now_ms = clock.now_ms(self._control)
            while (place := chosen.table.next) >= 0:
                file, end, in_log = chosen.source_of(place)
                filled, needed = chosen.table.copy(
                    file, end, buffer, filled, out.length + filled, now_ms, in_log=in_log
                )
                if needed:
                    out.append(memoryview(buffer)[:filled])
                    buffer, filled = buffer if needed <= len(buffer) else bytearray(needed), 0
                elif chosen.table.next == place:
                    raise CorruptRecordError("the record lies outside of its file", path=file.path)
            out.append(memoryview(buffer)[:filled])
            failpoint("compact.records")
            records_end = out.length
            slots = chosen.table.slots()
            out.append(bytes(-records_end % 16))
            out.append(slots)
            last_record, last_checksum = chosen.table.last_record
            if last_record < 0 and header is not None:
                last_record, last_checksum = header.last_record, header.last_checksum
            made = Header(
                chosen.end, ",".join(topics), chosen.table.records, chosen.table.keys_found, records_end,
                len(slots) // 16, crc32c(slots), seeds, last_record, last_checksum,
            )  # fmt: skip
            out.write_at(0, render_header(made))
        failpoint("compact.published")
        after = self.newest()
        if after is not None:
            self._remove_below(after)
        failpoint("compact.old_gone")
        self._forget_deleted(deleted)
        if after is None:
            raise StoreError("another process or program removed the new compacted file", path=self._root)
        log.info("%s: compacted up to %d: %d records", self._root, made.covered, made.records)
        return _result(after, chosen.table.looked_at, tuple(chosen.damaged))

    @contextmanager
    def _new_file(self, number: int) -> Iterator[NewFile]:
        """The next file. Raises StoreFormatError if its name is taken by something else, a folder for example."""
        path = path_of(self._root, number)
        try:
            with new_file(self._root, path, HEADER_BYTES) as out:
                yield out
        except FileExistsError as error:
            raise StoreFormatError(
                "the next compacted file needs this name; move away what has it", path=path
            ) from error

    def _put_aside(self) -> None:
        """Copies the files to quarantine/, because the next one may lack records that they have: their part of the log
        was cut or lost, or they are damaged."""
        for entry in files.entries(self._root / FOLDER, sizes=True):
            path = self._root / FOLDER / entry.name
            length = files.size_of(entry)
            if base_of_name(entry.name) is not None and entry.is_file() and length:
                name = put_aside(self._root, [(path, 0, length)], f"compacted-{entry.name}")
                log.warning(
                    "%s: the log was cut, or this file is damaged. The next compacted file may lack records "
                    "of it; quarantine/%s is a copy",
                    path,
                    name,
                )

    def _remove_below(self, kept: CompactedFile) -> None:
        """Removes files that a newer one replaced."""
        for number in numbers(self._root):
            if number < kept.number:
                files.remove(path_of(self._root, number))


def _result(found: CompactedFile, looked_at: int, damaged: tuple[str, ...]) -> Compacted:
    header = found.header
    if header is None:
        raise CorruptRecordError(f"the compacted file is damaged ({found.problem})", path=found.path)
    return Compacted(header.covered, header.records, header.keys, found.file.length, looked_at, damaged)
