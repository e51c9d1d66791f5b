"""Recovery, third part: carries out the plan. Every step may be repeated after a crash, and destroys only bytes that
are copied aside; a full disk or an input/output error ends recovery before the step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from cystore import clock
from cystore._native.derived import index_chains
from cystore._native.derived.queue_ext import is_address
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.files.consume_queue_ext import DIRECTORY as EXT_QUEUES
from cystore.derived.files.index import DIRECTORY as INDEX
from cystore.derived.files.index_layout import ENTRY_BYTES as INDEX_ENTRY_BYTES
from cystore.derived.files.index_layout import HEADER_BYTES, SLOT_BYTES
from cystore.engine.files.log_folders import segment_path
from cystore.engine.files.quarantine import QUARANTINE, copy_name, pieces_of, put_aside
from cystore.engine.files.segments import file_name
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.manifest import record_damaged_ranges, record_given_up
from cystore.engine.manifest.topic_names import TOPIC
from cystore.errors import StoreFullError
from cystore.layout import INDEX_HEADER
from cystore.recovery.actions import (
    CutQueue,
    ExtendLogFile,
    FillQueueHoles,
    MendIndex,
    MoveLogFile,
    PutAside,
    RecoveryPlan,
    RemoveFile,
    RemoveLogFile,
    WriteDamagedRanges,
    WriteGivenUp,
    ZeroLog,
)
from cystore.recovery.walk.findings import IndexMend, QueueScan
from cystore.recovery.walk.queue_reader import HOLE_BYTES, QueueReader
from cystore.recovery.walk.unit_reader import UnitReader
from cystore.system import files
from cystore.system.ranges import file_ranges

FILE, INDEX_FILE = re.compile(r"[0-9]{20}\Z", re.ASCII), re.compile(r"[0-9]{17}\Z", re.ASCII)
QUEUE_ID = re.compile(r"[0-9]{1,10}\Z", re.ASCII)
PIECE_ENTRIES = 200_000  # index entries read at once
BLOCK_BYTES = 4096


class Apply:
    """Carries out one plan on the store at `root`; `put_aside` are the names of its copies in quarantine/."""

    def __init__(self, root: Path, plan: RecoveryPlan, elsewhere: Path | None = None) -> None:
        self._root, self._plan, self._elsewhere = root, plan, elsewhere
        self._log_bytes = plan.scan.log.file_bytes
        self._queues: dict[tuple[str, int], QueueScan] = {(q.topic, q.queue_id): q for q in plan.scan.queues}
        self._names: dict[tuple[int, int], str] = {}
        self.put_aside: list[str] = []

    def run(self) -> DamagedRanges:
        """Returns the damaged ranges of the log after the plan. Raises StoreFullError, StoreIOError,
        StorePermissionError."""
        damaged = self._plan.damaged_ranges
        for action in self._plan.actions:
            match action:
                case ExtendLogFile(base, _):
                    file_ranges.extend(self._log_path(base), self._log_bytes)
                case PutAside(begin, end, _):
                    self._put_aside(begin, end)
                case WriteDamagedRanges():
                    damaged = DamagedRanges(self._with_name_of_copy(each) for each in damaged)
                    record_damaged_ranges(self._root, damaged)
                case WriteGivenUp(given_up):
                    record_given_up(self._root, given_up)
                case ZeroLog(begin, end):
                    base = begin - begin % self._log_bytes
                    file_ranges.zero_range(self._log_path(base), begin - base, end - base)
                case MoveLogFile(base):
                    self._move(base)
                case RemoveLogFile(base):
                    files.remove(self._log_path(base))
                case RemoveFile(path):
                    files.remove(path)
                case CutQueue(topic, queue_id, end):
                    self._cut_queue(self._queues[topic, queue_id], end)
                case FillQueueHoles(topic, queue_id, begin, end):
                    self._fill_queue(self._queues[topic, queue_id], begin, end)
                case MendIndex(index):
                    mend_index(index)
        for queue in self._plan.scan.queues:
            if queue.strays and not queue.bases:
                self._remove_folders(queue)
        return damaged

    def _remove_folders(self, queue: QueueScan) -> None:
        """Removes the empty folders of a queue whose files were all removed."""
        for name in (QUEUES, EXT_QUEUES):
            for folder in (
                self._root / name / queue.topic / str(queue.queue_id),
                self._root / name / queue.topic,
            ):
                if folder.is_dir():
                    _remove_if_empty(folder)

    def _log_path(self, base: int) -> Path:
        return segment_path(self._root, base)

    # -------------------------------------------------------------------------------- the log

    def _with_name_of_copy(self, each: DamagedRange) -> DamagedRange:
        """A new hole with the name of its copy, and the time when it was found."""
        name = self._names.get((each.begin, each.end))
        return each if name is None else DamagedRange(each.begin, each.end, each.reason, name, clock.now_ms())

    def _put_aside(self, begin: int, end: int) -> None:
        pieces = pieces_of(self._log_path, self._log_bytes, begin, end)
        try:
            name = put_aside(self._root, pieces, copy_name(begin, end), self._elsewhere)
        except StoreFullError as error:
            raise StoreFullError(
                f"no space for a copy of {end - begin} bytes of the log, which recovery has to put aside: make so many "
                "bytes free, or let the copy go to a folder on another disk with `cystore clean PATH --quarantine DIR`",
                path=error.path,
            ) from error
        self._names[begin, end] = name
        self.put_aside.append(name)

    def _move(self, base: int) -> None:
        source, wanted = self._log_path(base), copy_name(base, base + self._log_bytes)
        if not Path(str(source)).is_relative_to(str(self._root)):  # perhaps on another disk
            self._put_aside(base, base + self._log_bytes)
            return files.remove(source)
        for number in range(1_000_000):
            name = wanted if number == 0 else f"{wanted}.{number}"
            try:
                files.move(source, self._root / QUARANTINE / name)
            except FileExistsError:
                continue
            return self.put_aside.append(name)
        return None

    # ------------------------------------------------------------------------------ queues, index

    def _queue_path(self, queue: QueueScan, base: int) -> Path:
        return self._root / QUEUES / queue.topic / str(queue.queue_id) / file_name(base)

    def _cut_queue(self, queue: QueueScan, end: int) -> None:
        """Files behind the cut are removed from the last one on, so that a crash leaves no gap."""
        position = end * ENTRY_BYTES
        for base in reversed(queue.bases):
            if base >= position and base != queue.bases[0]:
                files.remove(self._queue_path(queue, base))
            else:
                file_ranges.zero_range(
                    self._queue_path(queue, base), max(position - base, 0), queue.file_bytes
                )
                if base < position:
                    break
        self._cut_units(queue, end)

    def _cut_units(self, queue: QueueScan, end: int) -> None:
        """Removes the extended units behind that of the last entry before queue offset `end`
        (ConsumeQueueExt.truncateByMaxAddress). RocketMQ, when it opens the store, steps from unit to unit: remains of
        longer units between new ones would lead it astray."""
        key, units = (queue.topic, queue.queue_id), UnitReader(self._root)
        if not units.bases(key):
            return
        limit = units.limit(key, self._addresses(queue, end))
        for base in reversed(units.bases(key)):
            path = units.path(key, base)
            if base >= limit and base != units.bases(key)[0]:
                files.remove(path)
                continue
            with files.opened(path) as fd:
                length = file_ranges.length_of(fd, path)
            file_ranges.zero_range(path, min(max(limit - base, 0), length), length)
            break

    def _addresses(self, queue: QueueScan, end: int) -> Iterator[int]:
        """The addresses of units in the entries before queue offset `end`, newest first."""
        reader = QueueReader(
            queue.topic, queue.queue_id, self._root / QUEUES, queue.file_bytes, tuple(queue.bases)
        )
        for number in range(min(end, reader.limit) - 1, reader.first - 1, -1):
            code = reader.entry(number).tags_code
            if is_address(code):
                yield code

    def _fill_queue(self, queue: QueueScan, begin: int, end: int) -> None:
        for base in queue.bases:
            first, last = max(begin, base // ENTRY_BYTES), min(end, (base + queue.file_bytes) // ENTRY_BYTES)
            if first < last:
                holes = HOLE_BYTES * (last - first)
                file_ranges.write_at(self._queue_path(queue, base), [(first * ENTRY_BYTES - base, holes)])


Pieces = list[tuple[int, bytes]]


def mended(index: IndexMend) -> Pieces:
    """(position, bytes) to write so that the slots of an index file point to its first `keep - 1` entries and its
    header counts only these; the header is the last piece."""
    path, entries_at = index.path, index.entries_at
    with files.opened(path) as fd:

        def entries(first: int, count: int) -> bytes:
            at = entries_at + INDEX_ENTRY_BYTES * first
            return files.pread_full(fd, at, INDEX_ENTRY_BYTES * count, path)

        head = files.pread_full(fd, 0, HEADER_BYTES, path)
        before = files.pread_full(fd, HEADER_BYTES, SLOT_BYTES * index.slots, path)
        slots = bytearray(before)
        if index.checked:
            slots[:] = bytes(len(slots))
            for first in range(1, index.keep, PIECE_ENTRIES):
                index_chains.chain(slots, entries(first, min(PIECE_ENTRIES, index.keep - first)), first)
        behind = (file_ranges.length_of(fd, path) - entries_at) // INDEX_ENTRY_BYTES - index.keep
        count = max(min(index_chains.newest(slots) + 1 - index.keep, behind), 0)
        if index_chains.mend_slots(slots, entries(index.keep, count), index.keep, index.keep):
            for first in range(1, index.keep, PIECE_ENTRIES):
                index_chains.relink(slots, entries(first, min(PIECE_ENTRIES, index.keep - first)), first)
    used = index_chains.settle(slots)
    changed = [
        (HEADER_BYTES + at, bytes(slots[at : at + BLOCK_BYTES]))
        for at in range(0, len(slots), BLOCK_BYTES)
        if slots[at : at + BLOCK_BYTES] != before[at : at + BLOCK_BYTES]
    ]
    begin_timestamp, _, begin_offset, *_ = INDEX_HEADER.unpack(head)
    bounds = (begin_timestamp, index.end_timestamp, begin_offset, index.end_physical_offset)
    return [*changed, (0, INDEX_HEADER.pack(*bounds, used, index.keep))]


def mend_index(index: IndexMend) -> None:
    """Writes the pieces of `mended`, durably.

    The header comes last: until it is written a second run finds the same work. Bytes behind the kept entries are
    zeroed before, so that no later crash takes an old entry for a new one.
    """
    *slots, header = mended(index)
    file_ranges.write_at(index.path, slots)
    with files.opened(index.path) as fd:
        length = file_ranges.length_of(fd, index.path)
    file_ranges.zero_range(index.path, index.entries_at + INDEX_ENTRY_BYTES * index.keep, length)
    file_ranges.write_at(index.path, [header])


def drop_derived(root: Path) -> None:
    """Removes the derived files: consume queues and index; the next recovery dispatches everything again.

    Only for a process that is alone in the store. Next offsets of queues whose messages are all gone stay in config/. A
    crash half-way leaves queues and index that lack files: recovery notices that and dispatches from the beginning; so
    does a second run.
    """
    for folder in (QUEUES, EXT_QUEUES):
        for topic in _matching_folders(root / folder, TOPIC):
            for queue in _matching_folders(topic, QUEUE_ID):
                _remove_matching(queue, FILE)
                _remove_if_empty(queue)
            _remove_if_empty(topic)
    _remove_matching(root / INDEX, INDEX_FILE)


def _matching_folders(folder: Path, names: re.Pattern[str]) -> list[Path]:
    return [entry.path for entry in files.entries(folder) if entry.is_dir() and names.match(entry.name)]


def _remove_matching(folder: Path, names: re.Pattern[str]) -> None:
    """Removes the files with names that cystore gives; other files are foreign."""
    for entry in files.entries(folder):
        if entry.is_file() and names.match(entry.name):
            files.remove(entry.path)


def _remove_if_empty(folder: Path) -> None:
    if not files.names(folder):
        files.remove_directory(folder)
