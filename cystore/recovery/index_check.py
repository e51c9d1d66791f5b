"""Decides which part of the index is kept: only the entries below a log position up to which the index is known to be
synced.

The walk over the log compares the entries on its way (`begin`). A second walk compares them again only if the first one
stepped over damage, or if fewer entries are kept.

Uncertain entries are dropped and entered again from the log, so the index finds every key that a scan of the log finds.
"""

from __future__ import annotations

import mmap
from dataclasses import replace
from pathlib import Path

from cystore._native.derived import index_chains
from cystore._native.record.properties import find_property
from cystore._native.scan import log_walk
from cystore.config import StoreConfig
from cystore.derived.files.index_layout import SLOT_BYTES
from cystore.engine.files.checkpoint import CheckpointFields
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.layout import takes_index_entry
from cystore.recovery.walk.findings import IndexMend, IndexScan
from cystore.recovery.walk.index_reader import IndexReader, knows_its_shape, list_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_pass import KeysSeen, LogPass, PassResult
from cystore.recovery.walk.log_reader import LogReader, Walk
from cystore.system.os_errors import translated

# The search for a record with keys examines this many records before it believes the index.
LOOK_FOR_KEYS_RECORDS = 2_000
ENTRIES_AT_ONCE = 50_000


class IndexCheck:
    """Decides which entries of the index are kept. `ours`: the checkpoint's watermarks belong to this log."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        log: LogReader,
        checkpoint: CheckpointFields,
        *,
        abnormal: bool,
        ours: bool,
    ) -> None:
        self._config, self._log, self._checkpoint = config, log, checkpoint
        self._abnormal, self._ours = abnormal, ours
        # Of each examined file the right content of the hash slots, and the number of those in use.
        self._slots: dict[Path, tuple[mmap.mmap, int]] = {}
        self._readers, self._strange = list_index(root, config) if config.message_index_enable else ([], [])
        self._seen: KeysSeen | None = None

    def begin(self, walked: LogPass) -> None:
        """Lets a walk over the log compare the entries on its way."""
        if self._config.message_index_enable:
            walked.compare_keys(IndexStream([reader for reader in self._readers if reader.sound]))

    def run(self, walked: PassResult, dispatched: int, holes: DamagedRanges) -> IndexScan:
        """`dispatched`: the position below which every record has its queue entry. From the start of the walk on each
        kept entry is compared with its record."""
        end, start = walked.end, max(walked.start, self._log.begin)
        self._seen = walked.keys
        if not self._config.message_index_enable:
            return IndexScan(dispatched)
        readers, strange = self._readers, self._strange
        if not self._log.bases:
            return IndexScan(0, drop=(*(reader.path for reader in readers), *strange))
        if strange and not self._abnormal and all(knows_its_shape(path) for path in strange):
            # After a clean close the entries are right, if the shape of each file can be found.
            return IndexScan(dispatched)
        through = min(self._known_through(readers, end, dispatched), dispatched, end)
        through = min(through, self._first_gap(readers, through))
        kept = {reader.path: reader.below(through) if reader.sound else 1 for reader in readers}
        through = self._compare(readers, kept, through, start, holes)
        found: list[IndexMend] = []
        for reader in readers:
            keep = kept[reader.path]
            if keep > 1:
                found += self._mend(reader, keep, through, start, last=reader is readers[-1])
        dropped = [path for path, keep in kept.items() if keep == 1]
        return IndexScan(through, (*strange, *dropped), tuple(found))

    def _compare(
        self,
        readers: list[IndexReader],
        kept: dict[Path, int],
        through: int,
        start: int,
        holes: DamagedRanges,
    ) -> int:
        """Drops entries from `kept` that disagree with the log from `start` on; returns the position that is left."""
        for at, reader in enumerate(readers):
            keep = kept[reader.path]
            if keep == 1 or reader.header.end_physical_offset < start:
                continue
            slots = self._slots_of(reader, keep)
            if slots is None:
                through = min(through, reader.header.begin_physical_offset)
                kept.update((behind.path, 1) for behind in readers[at:])
                kept.update((r.path, min(kept[r.path], r.below(through))) for r in readers[:at])
                break
            self._slots[reader.path] = slots
        rows = IndexStream([replace(r, header=r.header._replace(next_entry=kept[r.path])) for r in readers])
        position, number = self._first_other_key(rows, start, through, holes)
        behind = False
        if number < rows.limit:
            place, inside = rows.place(number)
            for reader in readers:
                kept[reader.path] = 1 if behind else kept[reader.path]
                if reader.path == place.path:
                    kept[reader.path], behind = inside, True
        return min(through, position)

    def _slots_of(self, reader: IndexReader, keep: int) -> tuple[mmap.mmap, int] | None:
        """The right hash slots of a file with the entries below `keep`, and how many are in use. None if the entries do
        not form chains, or if the file does not begin at the time of its first record."""
        with translated(reader.path):
            # Unlike a bytearray, it costs nothing for pages that stay zero.
            slots = mmap.mmap(-1, SLOT_BYTES * reader.slots, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        used = 0
        for first in range(1, keep, ENTRIES_AT_ONCE):
            entries = reader.read_entries(first, min(ENTRIES_AT_ONCE, keep - first))
            used += index_chains.heads(entries)
            if index_chains.chain(slots, entries, first) >= 0:
                return None
        record = self._log.record(reader.header.begin_physical_offset)
        if record is not None and record["store_timestamp"] != reader.header.begin_timestamp_ms:
            return None
        return slots, used

    def _first_other_key(
        self, rows: IndexStream, start: int, through: int, holes: DamagedRanges
    ) -> tuple[int, int]:
        """The first record of [start, through) whose keys are not the next ones in the index (`through` if there is
        none), and the first entry that belongs to no record before it."""
        seen = self._seen
        if seen is not None and _counts_for(seen, rows, start, through, holes):
            position, number, last_record = seen.position, seen.number, seen.last_record
        else:
            position, number, last_record = self._compare_again(rows, start, through, holes)
        while position == through and number < rows.limit and rows.physical_offset(number) == last_record:
            number += 1  # RocketMQ may enter the last record of a file twice
        return position, number

    def _compare_again(
        self, rows: IndexStream, start: int, through: int, holes: DamagedRanges
    ) -> tuple[int, int, int]:
        """A walk of its own: the position and the number of `_first_other_key`, and the last record before the
        position."""
        log = self._log
        scanner = log_walk.LogWalker(check_checksum=False, follow_queues=False)
        scanner.limit = through
        scanner.move(start, log.base_of(start) + log.file_bytes)
        scanner.compare_keys(rows.below(start), rows.limit, rows.files)
        walk = Walk(log, scanner)
        while scanner.position < through:
            status = walk.run()
            if status == log_walk.LIMIT:
                break
            if status == log_walk.KEYS:
                count = scanner.wanted - scanner.keys_at + ENTRIES_AT_ONCE
                scanner.set_keys(rows.read(scanner.keys_at, count), scanner.keys_at)
                continue
            if status == log_walk.OTHER_KEY:  # perhaps a given-up record: checksums are not examined
                hole = holes.covering(scanner.position)
                following = None if hole is None else hole[1]
            else:
                following = self._behind_hole(scanner.position, holes)
            if following is None:
                return scanner.position, scanner.keys_at, scanner.last_record
            scanner.step_over(following, log.base_of(following) + log.file_bytes)
        return through, scanner.keys_at, scanner.last_record

    def _behind_hole(self, position: int, holes: DamagedRanges) -> int | None:
        """The log position behind a hole at `position`, or behind a hole at the begin of the next file."""
        for at in (position, self._log.base_of(position) + self._log.file_bytes):
            hole = holes.covering(at)
            if hole is not None:
                return hole[1]
        return None

    def _mend(
        self, reader: IndexReader, keep: int, through: int, start: int, *, last: bool
    ) -> list[IndexMend]:
        """The action for a file whose entries below `keep` stay. After a crash the newest file may have pages of
        different ages."""
        head, end = reader.header, reader.physical_offset(keep - 1)
        record = self._log.record(end)
        timestamp = record["store_timestamp"] if record is not None else head.end_timestamp_ms
        checked = reader.path in self._slots
        sound = keep == reader.count and head.end_physical_offset < through and not (last and self._abnormal)
        if sound and checked:
            sound = head.end_timestamp_ms >= timestamp and reader.has_slots(*self._slots[reader.path])
        return [] if sound else [IndexMend(reader.path, reader.slots, keep, timestamp, end, checked)]

    def _known_through(self, readers: list[IndexReader], end: int, dispatched: int) -> int:
        """The log position up to which the index has every key, by the checkpoint and headers."""
        begin, known = self._log.begin, dispatched
        synced = self._checkpoint.index_watermark
        if self._ours and (synced == end or (synced < end and self._is_boundary(synced))):
            known = synced
        elif self._abnormal:
            flushed = [
                r
                for r in readers
                if r.header.end_timestamp_ms <= self._checkpoint.index_timestamp and r.count > 1
            ]
            known = max((r.header.end_physical_offset for r in flushed), default=begin)
        before = 0
        for reader in readers:
            follows = reader.header.begin_physical_offset >= before or reader.count == 1
            if not reader.sound or not follows or (not self._abnormal and not reader.whole):
                return min(known, max(before, begin))
            before = max(before, reader.header.end_physical_offset)
        return known

    def _is_boundary(self, offset: int) -> bool:
        """Whether a record or blank begins at `offset`: a damaged number is rarely the begin of one."""
        return (
            offset == self._log.begin or self._log.record(offset) is not None or self._log.blank_fills(offset)
        )

    def _first_gap(self, readers: list[IndexReader], through: int) -> int:
        """The first record with keys below `through` that no index file has: it lies before, between or behind the
        files' ranges.

        RocketMQ deletes young index files after a crash and does not enter their older records again.
        """
        position, inclusive = self._log.begin, True
        for reader in [r for r in readers if r.count > 1]:
            begin = reader.header.begin_physical_offset
            keyed = self._first_with_keys(position, min(begin, through), inclusive=inclusive)
            if keyed is not None:
                return keyed
            if reader.header.end_physical_offset >= position:
                position, inclusive = reader.header.end_physical_offset, False
        keyed = self._first_with_keys(position, through, inclusive=inclusive)
        return through if keyed is None else keyed

    def _first_with_keys(self, position: int, until: int, *, inclusive: bool) -> int | None:
        for count, record in enumerate(self._log.records(position)):
            at = record["physical_offset"]
            if at >= until or count == LOOK_FOR_KEYS_RECORDS:
                break
            if (inclusive or at > position) and _has_keys(record):
                return int(at)
        return None


def _counts_for(seen: KeysSeen, rows: IndexStream, start: int, through: int, holes: DamagedRanges) -> bool:
    """Whether a second walk over [start, through) would find the same. Beside damage the two walks differ."""
    return (
        seen.start == start
        and seen.position <= through
        and rows.same_entries(seen.rows)
        and not holes.within(start, through)
    )


def _has_keys(record: dict) -> bool:
    if not takes_index_entry(record["sys_flag"]):
        return False
    properties = record["properties"]
    keys = find_property(properties, b"KEYS") or b""
    return bool(find_property(properties, b"UNIQ_KEY") or keys.strip(b" "))
