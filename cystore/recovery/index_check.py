"""What of the index can be kept: every entry below a log position that is known synced, and nothing else.

Whatever is not certain is dropped and entered again from the log, so that each key that a scan of the log finds is found.
"""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass
from pathlib import Path

from cystore import files
from cystore._native.record import find_property
from cystore.checkpoint import CheckpointFields
from cystore.config import StoreConfig
from cystore.index import DIRECTORY, ENTRY_BYTES, HEADER_BYTES, SLOT_BYTES, IndexHeader, file_length
from cystore.layout import CONSTANTS
from cystore.recovery.log_reader import LogReader
from cystore.recovery.model import IndexMend, IndexScan

NAME = re.compile(r"[0-9]{17}\Z", re.ASCII)
TRANSACTION_MASK = CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0]
ROLLBACK = CONSTANTS["SYS_FLAG_ROLLBACK"][0]
# Records looked through for one with keys before the index is believed without it.
LOOK_FOR_KEYS_RECORDS = 2_000
_HEADER = struct.Struct(">qqqqii")
_ENTRY = struct.Struct(">iqii")


@dataclass
class IndexReader:
    """One index file of the configured shape, read with pread."""

    path: Path
    slots: int
    capacity: int
    header: IndexHeader

    @property
    def count(self) -> int:
        """Number of the next entry; what a damaged header says is bounded by the file."""
        return min(max(self.header.next_entry, 1), self.capacity)

    def read_entries(self, first: int, count: int) -> bytes:
        at = HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * first
        with files.opened(self.path) as fd:
            return files.pread_full(fd, at, ENTRY_BYTES * count, self.path)

    def physical_offset(self, number: int) -> int:
        """Of an entry; -1 for one that was never written."""
        if self._is_first_of_log(number):
            return 0
        data = self.read_entries(number, 1)
        key_hash, physical_offset, seconds, previous = _ENTRY.unpack(data)
        written = any(data) and key_hash >= 0 and seconds >= 0 and 0 <= previous < number
        return physical_offset if written else -1

    def below(self, physical_offset: int) -> int:
        """Number behind the last entry that points below a log position; entries ascend."""
        low, high = 1, self.count
        while low < high:
            middle = (low + high) // 2
            if 0 <= self.physical_offset(middle) < physical_offset:
                low = middle + 1
            else:
                high = middle
        return low

    def _is_first_of_log(self, number: int) -> bool:
        """An entry of hash 0 for the record at 0 is all zero and yet one."""
        return number == 1 and self.header.begin_physical_offset == 0 and self.header.end_physical_offset > 0

    @property
    def sound(self) -> bool:
        """Whether header and first entry agree."""
        head = self.header
        if (
            not 1 <= max(head.next_entry, 1) <= self.capacity
            or head.begin_physical_offset > head.end_physical_offset
        ):
            return False
        return self.count == 1 or self.physical_offset(1) == head.begin_physical_offset

    @property
    def whole(self) -> bool:
        """Whether the last entry is the one that the header names as the last."""
        return self.count == 1 or self.physical_offset(self.count - 1) == self.header.end_physical_offset


def list_index(root: Path, config: StoreConfig) -> tuple[list[IndexReader], list[Path]]:
    """The index files of the configured shape, oldest first, and those of another."""
    slots, capacity = config.max_hash_slot_num, config.max_index_num
    directory = root / DIRECTORY
    readers: list[IndexReader] = []
    strange: list[Path] = []
    if not directory.is_dir():
        return readers, strange
    with files.translated(directory):
        names = sorted(name for name in os.listdir(directory) if NAME.match(name))
    for name in names:
        path = directory / name
        with files.opened(path) as fd:
            head, length = files.pread_full(fd, 0, HEADER_BYTES, path), files.length_of(fd, path)
        if length == file_length(slots, capacity):
            readers.append(IndexReader(path, slots, capacity, IndexHeader(*_HEADER.unpack(head))))
        else:
            strange.append(path)
    return readers, strange


class IndexCheck:
    """Decides what of the index is kept. `ours`: the checkpoint's watermarks speak of this log."""

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
        self._root = root

    def run(self, end: int, dispatched: int) -> IndexScan:
        """`end` of the log, and the position below which every record has its queue entry."""
        if not self._config.message_index_enable:
            return IndexScan(dispatched)
        readers, strange = list_index(self._root, self._config)
        if not self._log.bases:
            return IndexScan(0, drop=(*(reader.path for reader in readers), *strange))
        if strange and not self._abnormal:
            # Files of another shape after a clean close know their entries.
            return IndexScan(dispatched)
        through = min(self._known_through(readers, end, dispatched), dispatched, end)
        through = min(through, self._first_gap(readers, through))
        drop = list(strange)
        mend: list[IndexMend] = []
        for reader in readers:
            if reader.path in drop:
                continue
            keep = reader.below(through) if reader.sound else 1
            if keep == 1:
                drop.append(reader.path)
            elif (
                keep < reader.count
                or reader.header.end_physical_offset >= through
                or self._is_last(reader, readers)
            ):
                mend += self._mend(reader, keep)
        return IndexScan(through, tuple(drop), tuple(mend))

    def _is_last(self, reader: IndexReader, readers: list[IndexReader]) -> bool:
        """After a crash the file written to last may have pages of different ages."""
        return self._abnormal and reader is readers[-1]

    def _mend(self, reader: IndexReader, keep: int) -> list[IndexMend]:
        last = reader.physical_offset(keep - 1)
        record = self._log.record(last)
        timestamp = record["store_timestamp"] if record is not None else reader.header.end_timestamp_ms
        return [IndexMend(reader.path, reader.slots, keep, timestamp, last)]

    def _known_through(self, readers: list[IndexReader], end: int, dispatched: int) -> int:
        """The log position up to which every key is known to be in the index, as far as the checkpoint and headers tell."""
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
        """Whether a record or blank begins at `offset`: a damaged number rarely hits one."""
        return (
            offset == self._log.begin or self._log.record(offset) is not None or self._log.blank_fills(offset)
        )

    def _first_gap(self, readers: list[IndexReader], through: int) -> int:
        """The first record with keys, below `through`, that lies before, between or behind the files and is in none.

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


def _has_keys(record: dict) -> bool:
    if record["sys_flag"] & TRANSACTION_MASK == ROLLBACK:
        return False
    properties = record["properties"]
    keys = find_property(properties, b"KEYS") or b""
    return bool(find_property(properties, b"UNIQ_KEY") or keys.strip(b" "))
