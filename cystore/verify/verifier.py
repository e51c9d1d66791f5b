"""Verify: every record's checksum, and consume queues and index against the log. Changes nothing; reads with pread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from cystore._native.read import scan as kernel
from cystore._native.record.record import STATUS_NAMES
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import DIRECTORY as QUEUES
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.files.index import DIRECTORY as INDEX
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.engine.manifest.manifest import read_holes, read_removed
from cystore.engine.manifest.store_settings import effective_at
from cystore.recovery.scan import Progress, missing_begin, missing_end, scan_log
from cystore.recovery.walk import rules
from cystore.recovery.walk.index_reader import IndexReader, list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_pass import Key
from cystore.recovery.walk.log_reader import GONE, Finder, LogReader, Walk
from cystore.recovery.walk.model import Damage
from cystore.recovery.walk.queue_reader import HOLE_BYTES, Entry, QueueReader, list_queues

ENTRIES_AT_ONCE = 3200
KEYS_AT_ONCE = 50_000
NOTHING = Entry(0, 0, 0)
UNKEYED = "keys of these records are missing or wrong"


@dataclass(frozen=True)
class Bounds:
    """The bounds of a verification: records of [begin, end); below `dispatched` each must have its entries.

    `complete`: queues and index contain nothing else. While others append, or after a crash, they may.
    """

    begin: int
    end: int
    dispatched: int
    complete: bool


class QueueSpan(NamedTuple):
    """One queue in a walk over a part of the log: its first record, the offset behind its last one, and the first
    record without an entry in the files (-1: all have one), which end at `entries_limit`."""

    first_offset: int
    first_physical: int
    following: int
    missing: int
    entries_limit: int


def verify(
    root: Path,
    config: StoreConfig,
    *,
    abnormal: bool = False,
    bounds: Bounds | None = None,
    progress: Progress | None = None,
) -> Iterator[Damage]:
    """Every damaged range of the store at `root`, reported holes too.

    Without `bounds` no process may have the store open: verification ends where recovery (`abnormal`: after a crash)
    would end the log, and reports the part that recovery would truncate. After a crash entries may be missing, but none
    may be wrong. Raises StoreFormatError and StoreIOError.
    """
    config = effective_at(config, root)
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        if bounds is None:
            bounds, damage = bounds_at_rest(root, config, reader, abnormal=abnormal)
            yield from damage
        if reader.bases:
            yield from Verifier(root, config, reader, bounds, progress).run()
    finally:
        reader.close()


def strange_index(path: Path) -> Damage:
    """The damage of an index file of unknown shape: its entries are not compared."""
    return Damage(
        "index",
        path,
        0,
        0,
        "the shape of the file is unknown: its entries were not compared",
    )


def bounds_at_rest(
    root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool
) -> tuple[Bounds, list[Damage]]:
    """The bounds of a store that no process has open, and the damage behind its end that recovery would truncate."""
    log = scan_log(root, config, reader, abnormal=abnormal)
    damage = []
    missing = missing_begin(root, reader)
    if missing is not None:
        damage.append(
            Damage("record", reader.path(missing[0]), *missing, "the log's first files are missing")
        )
    missing = missing_end(read_checkpoint(root), reader)
    if missing is not None:
        path = reader.path(reader.base_of(missing[0]))
        damage.append(Damage("record", path, *missing, "the log's last files are missing"))
    if log.dirty is not None and log.reason != rules.A_BLANK:
        path = reader.path(reader.base_of(log.end))
        damage.append(Damage("record", path, log.end, log.dirty.end, log.reason))
    for file in log.later:
        if not file.zero:
            end = file.base + log.file_bytes
            damage.append(Damage("record", reader.path(file.base), file.base, end, log.reason))
    return Bounds(log.begin, log.end, log.end, complete=not abnormal), damage


class Verifier:
    """One comparison of a store's files with each other; `run` gives the damage."""

    def __init__(
        self, root: Path, config: StoreConfig, reader: LogReader, bounds: Bounds, progress: Progress | None
    ) -> None:
        self._root, self._config, self._reader, self._bounds = root, config, reader, bounds
        self._progress = progress
        self._holes = read_holes(root)
        self._removed = read_removed(root)
        self._queues = self._list_queues()
        self._slots: dict[Key, int] = {}
        self._readers: dict[int, QueueReader] = {}
        # The last damaged run of entries of each queue, which may still grow; and of records with keys that the index
        # lacks.
        self._wrong: dict[int, Damage] = {}
        self._unkeyed: Damage | None = None
        self._broken: list[tuple[int, int]] = []  # damaged ranges of the log
        self._stream = IndexStream([])

    def _list_queues(self) -> Mapping[Key, QueueReader]:
        return list_queues(self._root, self._config.mapped_file_size_consume_queue_bytes, [])[0]

    def _queue(self, key: Key) -> QueueReader | None:
        return self._queues.get(key)

    def run(self) -> Iterator[Damage]:
        """Every damaged range."""
        scanner = kernel.LogScanner(compare_tags=True)
        if self._config.message_index_enable:
            yield from self._index_files(scanner)
        yield from self._walk(scanner, self._bounds.begin, min(self._bounds.dispatched, self._bounds.end))
        yield from self._wrong.values()
        yield from self._queue_ends(scanner)
        yield from self._index_end(scanner)
        if scanner.position < self._bounds.end:
            plain = kernel.LogScanner(follow_queues=False)
            yield from self._walk(plain, scanner.position, self._bounds.end)

    # ---------------------------------------------------------------------------------- records

    def _walk(self, scanner: kernel.LogScanner, begin: int, end: int) -> Iterator[Damage]:
        scanner.limit = end
        scanner.move(begin, self._reader.base_of(begin) + self._reader.file_bytes)
        walk = Walk(self._reader, scanner, self._show)
        finder = Finder(self._reader, check_checksum=True)
        while scanner.position < end:
            status = walk.run()
            if status == kernel.LIMIT:
                return
            if status == kernel.NEW_QUEUE:
                self._add_queue(scanner)
            elif status == kernel.ENTRIES:
                slot, wanted = scanner.slot, scanner.wanted
                scanner.set_entries(slot, self._readers[slot].read(wanted, ENTRIES_AT_ONCE), wanted)
            elif status == kernel.KEYS:
                # All keys of a record are compared at once, however many files they are in.
                count = scanner.wanted - scanner.keys_at + KEYS_AT_ONCE
                scanner.set_keys(self._stream.read(scanner.keys_at, count), scanner.keys_at)
            elif status == kernel.OTHER_ENTRY:
                yield from self._other_entry(scanner)
            elif status == kernel.OTHER_KEY:
                yield from self._other_key(scanner)
            elif status == kernel.OUT_OF_SEQUENCE:
                yield from self._out_of_sequence(scanner)
            elif status == kernel.BLANK:
                following = self._reader.base_of(scanner.position) + self._reader.file_bytes
                scanner.move(following, following + self._reader.file_bytes)
            else:
                yield self._damaged_range(scanner, finder, status, end)

    def _show(self, position: int) -> None:
        if self._progress is not None:
            begin = self._bounds.begin
            self._progress("verify", position - begin, self._bounds.end - begin)

    def _damaged_range(self, scanner: kernel.LogScanner, finder: Finder, status: int, end: int) -> Damage:
        """The damage from here to the next valid record; the scan continues there."""
        position = scanner.position
        reason = "no file" if status == GONE else STATUS_NAMES[scanner.reason]
        known = self._holes.covering(position)
        if known is not None:
            following, reason = known[1], f"known hole: {reason}"
        else:
            found = finder.find(position + 1, end)
            following = end if found is None else found[0]
        scanner.step_over(following, self._reader.base_of(following) + self._reader.file_bytes)
        self._broken.append((position, following))
        return Damage(
            "record", self._reader.path(self._reader.base_of(position)), position, following, reason
        )

    # ----------------------------------------------------------------------------------- queues

    def _add_queue(self, scanner: kernel.LogScanner) -> None:
        topic, queue_id, queue_offset, *_ = scanner.record()
        key = topic.decode("ascii"), queue_id
        reader = self._queue(key)
        expected = 0 if self._bounds.begin == 0 else -1
        removed = self._removed.end(key)
        limit = reader.limit if reader is not None and reader.first <= max(queue_offset, removed) else 0
        slot = scanner.add_queue(topic, queue_id, expected, limit, removed)
        self._slots[key] = slot
        if reader is not None:
            self._readers[slot] = reader

    def _out_of_sequence(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        topic, queue_id, queue_offset, size, *_ = scanner.record()
        slot, position = scanner.slot, scanner.position
        place = Damage(
            "record",
            self._reader.path(self._reader.base_of(position)),
            position,
            position + size,
            f"queue offset {queue_offset} of {topic.decode()}/{queue_id} where {scanner.queue_next(slot)} is next",
        )
        between = scanner.queue_next(slot), queue_offset
        yield from self._gap(slot, self._readers.get(slot), between, scanner.swallowed_since(slot), place)
        scanner.accept()

    def _gap(
        self, slot: int, reader: QueueReader | None, between: tuple[int, int], swallowed: int, place: Damage
    ) -> Iterator[Damage]:
        """The queue offsets between the expected one and the record's: their records are damaged, or this record is."""
        expected, queue_offset = between
        in_files = reader is not None and reader.first <= expected <= queue_offset <= reader.limit
        holes = in_files and reader is not None and reader.all_holes(expected, queue_offset)
        lost = rules.explained_by_damage(queue_offset - expected, swallowed)
        if queue_offset < expected or not (holes or lost):
            yield place
        elif reader is not None and in_files:
            for number in range(expected, queue_offset):
                if not self._stands_for_nothing(reader.entry(number)):
                    yield from self._entry(reader, slot, number, "not a hole entry for a lost record")

    def _stands_for_nothing(self, entry: Entry) -> bool:
        """Accepts a hole entry, or an entry into damage that no process has recovered from yet."""
        return entry.hole or (
            entry.written and any(begin <= entry.physical_offset < end for begin, end in self._broken)
        )

    def _other_entry(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        slot, number = scanner.slot, scanner.wanted
        reader = self._readers[slot]
        if not any(reader.read(number, 1)) and not self._bounds.complete:
            scanner.limit_entries(slot, number)  # not dispatched before the crash
            return
        yield from self._entry(reader, slot, number, "not the entry of the record")
        scanner.accept_entry()

    def _entry(self, reader: QueueReader, slot: int, number: int, reason: str) -> Iterator[Damage]:
        """A damaged entry; a run of them is reported as one range, when it ends."""
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        new = Damage(
            "consume_queue", reader.path(base), position - base, position - base + ENTRY_BYTES, reason
        )
        last = self._wrong.get(slot)
        if last is not None and (last.path, last.end, last.reason) == (new.path, new.begin, reason):
            self._wrong[slot] = replace(last, end=new.end)
            return
        if last is not None:
            yield last
        self._wrong[slot] = new

    def _spans(self, scanner: kernel.LogScanner) -> dict[Key, QueueSpan]:
        """The findings of the walk about each queue with a record in it."""
        return {
            key: QueueSpan(
                *scanner.queue_first(slot),
                scanner.queue_next(slot),
                scanner.queue_missing(slot),
                scanner.queue_entries_limit(slot),
            )
            for key, slot in sorted(self._slots.items())
            if scanner.queue_first(slot)[1] >= 0
        }

    def _queue_ends(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        """Entries that no record of the log stands behind, and records without entries."""
        spans = self._spans(scanner)
        for key in sorted({*self._queues, *spans}):
            yield from self._queue_end(key, self._queues.get(key), spans.get(key))

    def _queue_end(self, key: Key, reader: QueueReader | None, span: QueueSpan | None) -> Iterator[Damage]:
        if reader is None:
            if span is not None and self._bounds.complete:
                queue = QueueReader(*key, self._root / QUEUES, 1)
                yield self._missing(queue, span.first_offset, span.following, span.first_physical)
            return
        first, following = reader.first, reader.first
        if span is not None:
            first, following = span.first_offset, span.following
            if span.missing >= 0 and self._bounds.complete:
                at = min(span.entries_limit, following)
                yield self._missing(reader, at, following, span.missing)
        begin = max(reader.first, self._removed.end(key))
        yield from self._without_records(reader, begin, min(first, reader.limit))
        if self._bounds.complete:
            yield from self._without_records(reader, max(following, begin), reader.limit)
        for stray in reader.strays:
            yield Damage("consume_queue", stray, 0, 0, "a file of another length, or behind a missing one")

    def _missing(self, reader: QueueReader, begin: int, end: int, physical_offset: int) -> Damage:
        reason = (
            f"entries of queue offsets {begin}..{end} are missing, from the record at {physical_offset} on"
        )
        position = min(begin * ENTRY_BYTES, reader.limit * ENTRY_BYTES)
        base = position - position % reader.file_bytes
        path = reader.path(base) if base in reader.bases else reader.directory
        return Damage("consume_queue", path, position - base, end * ENTRY_BYTES - base, reason)

    def _without_records(self, reader: QueueReader, begin: int, end: int) -> Iterator[Damage]:
        """Entries of expired records are right; so are holes and unwritten entries."""
        while begin < end:
            data = reader.read(begin, min(ENTRIES_AT_ONCE, end - begin))
            count = len(data) // ENTRY_BYTES
            if any(data) and data != HOLE_BYTES * count:
                for number in range(begin, begin + count):
                    entry = reader.entry(number)
                    expired = entry.written and entry.physical_offset < self._bounds.begin
                    if not expired and not self._stands_for_nothing(entry) and entry != NOTHING:
                        yield self._stranger(reader, number)
            begin += count

    def _stranger(self, reader: QueueReader, number: int) -> Damage:
        position = number * ENTRY_BYTES
        base = position - position % reader.file_bytes
        reason = f"the entry of queue offset {number} points to no record of the queue"
        return Damage(
            "consume_queue", reader.path(base), position - base, position - base + ENTRY_BYTES, reason
        )

    # ------------------------------------------------------------------------------------ index

    def _index_files(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        readers, strange = list_readable_index(self._root, self._config)
        yield from map(strange_index, strange)
        if strange:
            return
        for reader in readers:
            yield from self._index_file(reader)
        self._stream = IndexStream([reader for reader in readers if reader.sound])
        scanner.compare_keys(
            self._stream.first_from(0, self._bounds.begin), self._stream.limit, self._stream.files
        )

    def _index_file(self, reader: IndexReader) -> Iterator[Damage]:
        """The damage that one file shows by itself."""
        if not reader.sound or (self._bounds.complete and not reader.whole):
            head, reason = reader.header, "the header disagrees with the entries"
            yield Damage("index", reader.path, head.begin_physical_offset, head.end_physical_offset, reason)
        if reader.sound:
            for path, number, reason in IndexStream([reader]).broken_chains():
                yield Damage("index", path, 0, 0, f"entry {number}: {reason}")

    def _other_key(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        """A record whose keys are not the next ones in the index: continue with the entries of a later record."""
        position, size = scanner.position, scanner.record()[3]
        following = self._stream.first_from(scanner.keys_at, position + 1)
        if following == self._stream.limit and not self._bounds.complete:
            scanner.stop_comparing_keys()
            return
        scanner.skip_keys(following)
        last = self._unkeyed
        if last is not None and (last.end == position or self._reader.blank_fills(last.end)):
            self._unkeyed = replace(last, end=position + size)
            return
        if last is not None:
            yield last
        path = self._root / INDEX
        if scanner.keys_at < self._stream.limit:
            path = self._stream.place(scanner.keys_at)[0].path
        self._unkeyed = Damage("index", path, position, position + size, UNKEYED)

    def _index_end(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        if self._unkeyed is not None:
            yield self._unkeyed
        yield from self._past_the_end(scanner.keys_at)

    def _past_the_end(self, number: int) -> Iterator[Damage]:
        """Index entries from a number on that lead behind the log."""
        at = self._stream.first_from(number, self._bounds.end)
        if self._bounds.complete and self._config.message_index_enable and at < self._stream.limit:
            begin, end = (
                self._stream.physical_offset(at),
                self._stream.physical_offset(self._stream.limit - 1),
            )
            reader = self._stream.place(at)[0]
            yield Damage("index", reader.path, begin, end, "entries for records past the end of the log")
