"""The service "compact": makes the next compacted file from the last one and the log behind it.

Any process may do a turn, one at a time. Cleaning keeps the log from the covered offset on (`need`), so a record leaves
the log when a durable compacted file has it, or has a newer one of each of its keys.

| | durable step of a turn | after a kill behind it |
|---|---|---|
| 1 | the new file is written and synced, without its name | the old file is in force; the draft is removed or reused |
| 2 | the new file gets its name | the new file is in force; cleaning relies on it as far as on the old one |
| 3 | the manifest enters the new file, and the damage that was met | cleaning relies on the new file |
| 4 | older files are removed | as before |
| 5 | the manifest forgets deletions that the new file applied | as before |

The next turn does the missing steps first. If the file that the manifest has is gone, its values are lost, and that is
reported. `delete_topic` enters the removed queues and the deleted values by one write of the manifest.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
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
    TRIES,
    CompactedFile,
    Header,
    next_number,
    numbers,
    path_of,
    render_header,
    reserve_path,
)
from cystore.engine.files.progress import Progress
from cystore.engine.files.quarantine import compacted_name, put_aside
from cystore.engine.files.segments import base_of_name
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.log.removal import Need
from cystore.engine.manifest.compaction_facts import compaction_of, facts_of, with_compaction
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import (
    CorruptRecordError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreTimeoutError,
)
from cystore.services.compact.in_force import InForce, Standing, Verdict
from cystore.services.compact.selection import Report, Selection, matches
from cystore.system import files
from cystore.system.ranges.new_file import NewFile, new_file
from cystore.system.threads import os_threads
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore.system.key_lock import NameLocks

log = logging.getLogger("cystore")

BUFFER_BYTES = 4 << 20
RESERVE_MORE_BYTES = 64 << 10  # for keys that are new
LOCK_NAME = "compact.lock"
WAIT_S = 60.0  # for another process's turn


@value_class(frozen=True)
class Compacted:
    """The result of one compaction: the offset up to which the log is covered, the numbers of kept records and keys and
    the length of their file, the number of examined records, and descriptions of the damage that was stepped over.
    Values that stood in the log below `uncertain_below` may be outdated."""

    covered: int
    records: int
    keys: int
    size_bytes: int
    looked_at: int
    damaged: tuple[str, ...] = ()
    uncertain_below: int = 0


class Compactor:
    """Compacts one store. Safe for threads."""

    def __init__(
        self, root: Path, control: Control, commit_log: CommitLog, policy: Policy, manifest: Manifest
    ) -> None:
        self._root, self._control, self._log = root, control, commit_log
        self._policy = policy
        self.in_force = InForce(root, control, commit_log, manifest)
        self._lock = os_threads.RLock()
        self._locks: NameLocks | None = None

    # ------------------------------------------------------------------------------------------- state

    @property
    def root(self) -> Path:
        """The store's directory."""
        return self._root

    @property
    def topics(self) -> tuple[str, ...]:
        """The names of the setting compacted_topics; none: nothing is compacted."""
        return self._policy.now().compacted_topic_names()

    def covered(self) -> int:
        """The offset up to which the log is covered: 0 without a file that can be relied on for all topics."""
        return self.in_force.covered(self.topics)

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
        return min(self._control.flushed, self._control.dispatched, self._control.readable)

    def is_due(self) -> bool:
        """Whether a turn is worth its cost: the uncovered part is at least a segment, and at least as long as the part
        that would be copied again. Or the file is missing, so that `latest` raises errors."""
        if self.is_lost():
            return True
        waiting = self.uncovered_bytes()
        found = self.in_force.newest() if waiting else None
        return waiting > 0 and (found is None or waiting >= found.file.length)

    def is_lost(self) -> bool:
        """Whether the file that must be there is missing."""
        return bool(self.topics) and self.in_force.missing() is not None

    # ------------------------------------------------------------------------------------ deleted topics

    def deleted(self) -> dict[str, int]:
        """The deleted topics, each with the log offset below which its records are deleted."""
        return dict(self.in_force.facts().deleted)

    def deletion(self, topic: str, end: int) -> Callable[[Facts], Facts]:
        """The change of the manifest by which the topic's records below an offset of the log are deleted: they are not
        found any more, and the next turn leaves them out."""
        # The file may have the topic because of an earlier setting, and a lost file may be put back.
        if not (matches(self.topics, topic) or self.in_force.newest() or self.in_force.facts().file):
            return lambda facts: facts
        return lambda facts: with_compaction(facts, compaction_of(facts).with_deleted(topic, end))

    def _forget_deleted(self, applied: dict[str, int]) -> None:
        """Forgets deletions whose records are neither in the new file nor in the log."""
        minimum = self._control.min_physical_offset
        listed = {**applied, **self.in_force.facts().skipped}
        gone = {topic: end for topic, end in listed.items() if end < minimum}
        if gone:
            self.in_force.enter(lambda known: known.without(gone))

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

    def cover(self, up_to: int, *, undispatched: bool = False) -> None:
        """Compacts the part of the log that is about to be removed, if it is not covered. `undispatched`: that part may
        be undispatched, because the disk is too full for it. Raises StoreError."""
        if self.topics and up_to > max(self.covered(), self._control.min_physical_offset):
            beyond = (
                undispatched or up_to > self._control.readable
            )  # what is removed must be covered in any case
            self.compact(max(up_to, self._sealed()), undispatched=beyond)

    def compact(
        self,
        up_to: int | None = None,
        *,
        report: Report | None = None,
        wait_s: float = WAIT_S,
        undispatched: bool = False,
    ) -> Compacted:
        """Compacts the log up to an offset (default: the durable and dispatched part). Raises StoreConfigError without
        compacted topics, StoreFullError, StoreResourceError (memory), StoreTimeoutError if another process compacts for
        `wait_s`, StoreError if cleaning is faster."""
        if not self.topics:
            raise StoreConfigError(
                "no topic of this store is compacted: name topics with `cystore config PATH --set "
                "compacted_topics=TOPIC,...`",
                path=self._root,
            )
        with self._turns().held("compaction", wait_s):
            limit = self._control.flushed if undispatched else self._limit()
            limit = limit if up_to is None else min(up_to, limit)
            for _ in range(TRIES):
                before = self._settle()
                if self._is_up_to_date(before, limit, again=up_to is None):
                    assert before.file is not None
                    return _result(before.file, 0, ())
                done = self._turn(before, limit, report, again=up_to is None)
                if done is not None:
                    return done
        raise StoreError("cleaning removes the log faster than it can be compacted", path=self._root)

    def _is_up_to_date(self, before: Verdict, limit: int, *, again: bool) -> bool:
        """Whether a turn would change nothing. `again`: it would look anew at damage that the log still has."""
        file, header = before.file, before.header
        return (
            before.standing is Standing.SOUND
            and file is not None
            and header is not None
            and header.covered >= limit
            and header.topics == ",".join(self.topics)
            and not (again and header.uncertain_below > self._control.min_physical_offset)
            and self._is_whole(file)
        )

    def _settle(self) -> Verdict:
        """Ends a turn that was killed: enters its file in the manifest, and removes the older ones."""
        before = self.in_force.verdict()
        if before.file is None or before.header is None:
            return before
        if not before.is_entered:
            self._enter(before.file, ())
            before = self.in_force.verdict()
        known = before.facts.file
        if before.file is not None and known is not None and before.file.number >= known.number:
            self._remove_below(before.file)
        return before

    def _enter(self, file: CompactedFile, damaged: tuple[str, ...]) -> None:
        assert file.header is not None
        entered, now_ms = facts_of(file.number, file.header), clock.now_ms(self._control)
        self.in_force.enter(
            lambda known: replace(known, file=entered).with_findings(damaged, now_ms),
        )

    def _turns(self) -> NameLocks:
        from cystore.system.key_lock import NameLocks  # here: most stores compact nothing

        with self._lock:
            if self._locks is None:
                self._locks = NameLocks(self._root / "config" / LOCK_NAME)
            return self._locks

    def close(self) -> None:
        """Ends the mappings of files."""
        self.in_force.forget()
        locks, self._locks = self._locks, None
        if locks is not None:
            locks.close()

    def _is_whole(self, found: CompactedFile) -> bool:
        """Whether no byte of the file is damaged."""
        try:
            header = found.whole_header()
        except CorruptRecordError:
            return False
        return Selection(self._log, (), {}, header.seeds).take_file(found, None)

    def _turn(self, before: Verdict, limit: int, report: Report | None, *, again: bool) -> Compacted | None:
        """Makes the next file. None if a part of the log was cleaned uncompacted meanwhile, because compaction was off
        for a moment."""
        minimum, topics = self._control.min_physical_offset, self.topics
        header = before.header if before.standing is Standing.SOUND else None
        if header is not None and header.covered < minimum:
            return None
        begin = self._begin(before, minimum, topics, again=again)
        deleted = self.deleted()
        chosen = Selection(self._log, topics, deleted, os.urandom(SEED_BYTES))
        whole = self._take_file(chosen, before, minimum)
        if not whole:
            begin = minimum  # the log may still have the damaged records
        chosen.take_log(begin, max(begin, limit), report)
        # What was cleaned meanwhile is in the last file, if that was made for all of the topics.
        relied_on = 0 if header is None or before.lacks(topics) else header.covered
        if chosen.cleaned_to > max(relied_on, begin):
            return None
        minimum = max(minimum, chosen.cleaned_to)
        chosen.table.sort()
        known = before.facts.file
        number = max(next_number(self._root), 0 if known is None else known.number + 1)
        if before.file is not None and not (
            whole and before.standing is Standing.SOUND and before.file.number == number - 1
        ):
            self._put_aside(before.standing)
        self._write(chosen, before, number, topics, self._uncertain_below(chosen, before, begin, minimum))
        failpoint("compact.published")
        after = self.in_force.newest()
        if after is None or after.header is None or after.number != number:
            raise StoreError("another process or program removed the new compacted file", path=self._root)
        self._enter(after, tuple(chosen.damaged))
        failpoint("compact.entered")
        self._remove_below(after)
        failpoint("compact.old_gone")
        self._forget_deleted(deleted)
        self.keep_reserve()
        made = after.header
        log.info("%s: compacted up to %d: %d records", self._root, made.covered, made.records)
        if made.uncertain_below > before.uncertain_below:
            log.warning(
                "%s: compacted values from below %d in the log may be outdated: newer records of unknown keys were "
                "damaged",
                self._root,
                made.uncertain_below,
            )
        return _result(after, chosen.table.looked_at, tuple(chosen.damaged))

    def _begin(self, before: Verdict, minimum: int, topics: tuple[str, ...], *, again: bool) -> int:
        """The offset from which a turn reads the log."""
        header = before.header
        if header is None or before.standing is not Standing.SOUND or before.lacks(topics):
            return minimum
        if again and header.uncertain_below > minimum:
            return minimum  # the damage may be repaired
        return max(header.covered, minimum)

    def _take_file(self, chosen: Selection, before: Verdict, minimum: int) -> bool:
        """Takes the records of the last file that count still. False if a part of it is damaged or missing."""
        if before.standing is Standing.LOST:
            known = before.facts.file
            assert known is not None
            chosen.tell(
                f"{path_of(self._root, known.number)} is missing or unreadable, and with it values that left the log"
            )
            return False
        if before.file is None:
            return True
        if before.standing is Standing.GAP:
            chosen.before = before.file
            log.warning(
                "%s: the log was cleaned from %d on while its topics were not compacted; older values do not count "
                "any more",
                before.file.path,
                before.header.covered if before.header is not None else 0,
            )
            return True
        known = before.facts.file
        return chosen.take_file(
            before.file,
            minimum if before.standing is Standing.CUT else None,
            end=known.records_end if before.header is None and known is not None else 0,
        )

    @staticmethod
    def _uncertain_below(chosen: Selection, before: Verdict, begin: int, minimum: int) -> int:
        """The header's field. A turn that began at the log's minimum has itself read every record from there on. Damage
        of the file makes no value uncertain that is in the log."""
        if before.standing is Standing.LOST or (
            before.standing is Standing.DAMAGED and before.facts.file is None
        ):
            return max(minimum, chosen.uncertain_in_log)
        if before.standing is Standing.GAP:
            return chosen.uncertain_in_log
        earlier = min(before.uncertain_below, minimum) if begin == minimum else before.uncertain_below
        return max(earlier, chosen.uncertain_in_log, min(chosen.uncertain_in_file, minimum))

    def _write(
        self, chosen: Selection, before: Verdict, number: int, topics: tuple[str, ...], uncertain_below: int
    ) -> None:
        """Steps 1 and 2."""
        table = chosen.table
        with self._new_file(number) as out:
            buffer, filled = bytearray(BUFFER_BYTES), 0
            now_ms = clock.now_ms(self._control)
            while (place := table.next) >= 0:
                file, end, in_log = chosen.source_of(place)
                filled, needed = table.copy(
                    file, end, buffer, filled, out.length + filled, now_ms, in_log=in_log
                )
                if needed:
                    out.append(memoryview(buffer)[:filled])
                    buffer, filled = buffer if needed <= len(buffer) else bytearray(needed), 0
                elif table.next == place:
                    raise CorruptRecordError("the record lies outside of its file", path=file.path)
            out.append(memoryview(buffer)[:filled])
            failpoint("compact.records")
            records_end = out.length
            slots = table.slots()
            out.append(bytes(-records_end % 16))
            out.append(slots)
            last_record, last_checksum = table.last_record
            if last_record < 0 and before.header is not None and before.standing is Standing.SOUND:
                last_record, last_checksum = before.header.last_record, before.header.last_checksum
            made = Header(
                chosen.end, ",".join(topics), table.records, table.keys_found, records_end, len(slots) // 16,
                crc32c(slots), chosen.seeds, last_record, last_checksum, uncertain_below, table.taken, now_ms,
            )  # fmt: skip
            out.write_at(0, render_header(made))

    @contextmanager
    def _new_file(self, number: int) -> Iterator[NewFile]:
        """The next file. Raises StoreFormatError if its name is taken by something else, a folder for example."""
        path = path_of(self._root, number)
        try:
            with new_file(self._root, path, HEADER_BYTES, reserve=reserve_path(self._root)) as out:
                yield out
        except FileExistsError as error:
            raise StoreFormatError(
                "the next compacted file needs this name; move away what has it", path=path
            ) from error

    def _put_aside(self, standing: Standing) -> None:
        """Copies the files to quarantine/, because the next one may lack records that they have: their part of the log
        was cut or lost, or they are damaged, or older than a part of the log that was never compacted."""
        for entry in files.entries(self._root / FOLDER, sizes=True):
            path = self._root / FOLDER / entry.name
            length = files.size_of(entry)
            if base_of_name(entry.name) is not None and entry.is_file() and length:
                try:
                    name = put_aside(self._root, [(path, 0, length)], compacted_name(entry.name))
                    copied = f"quarantine/{name} is a copy"
                except StoreFullError:
                    if standing is not Standing.GAP:
                        raise
                    copied = "the disk is too full for a copy"  # these values do not count any more
                log.warning(
                    "%s: the next compacted file may lack records of it, because %s; %s",
                    path,
                    "it is damaged" if standing is Standing.SOUND else standing.value,
                    copied,
                )

    def keep_reserve(self) -> None:
        """Reserves the space of the next file, so that a full disk can be cleaned. Without space there is none."""
        if not self.topics:
            return files.remove(reserve_path(self._root), durable=False)
        found = self.in_force.newest()
        if found is None or found.header is None:
            return
        for length in (found.file.length + RESERVE_MORE_BYTES, found.file.length):
            with suppress(StoreError):
                return files.reserve(reserve_path(self._root), length)

    def _remove_below(self, kept: CompactedFile) -> None:
        """Removes files that a newer one replaced."""
        for number in numbers(self._root):
            if number < kept.number:
                files.remove(path_of(self._root, number))


def _result(found: CompactedFile, looked_at: int, damaged: tuple[str, ...]) -> Compacted:
    header = found.header
    if header is None:
        raise CorruptRecordError(f"the compacted file is damaged ({found.problem})", path=found.path)
    return Compacted(
        header.covered,
        header.records,
        header.keys,
        found.file.length,
        looked_at,
        damaged,
        header.uncertain_below,
    )
