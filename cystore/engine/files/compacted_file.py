"""The compacted file: the newest record of each key of the compacted topics, up to an offset of the log.

`compacted/NUMBER`: a header of HEADER_BYTES, which is JSON with a checksum; the records, verbatim and in log order; an
index from the prints of keys to the records' positions. The file with the highest number is in force. A file is never
changed: the next compaction makes one with the next number, and removes the older ones when the new one is durable.
`compacted/reserve` has no content; the next file is written into its space.
"""

from __future__ import annotations

import binascii
import os
from pathlib import Path
from typing import Any, NamedTuple

from cystore._native.filters.latest import BYTES_OF_SLOT, find_newest
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.checksum import crc32c
from cystore.engine.files.segments import base_of_name, file_name
from cystore.errors import CorruptRecordError, StoreFormatError, StoreIOError
from cystore.system import checked_json, files
from cystore.system.os_errors import is_missing

FOLDER = "compacted"
HEADER_BYTES = 4096
FORMAT = 1
SEED_BYTES = 32
NUMBER_MAX = (1 << 63) - 1
TRIES = 100  # another process may remove a file between a listing and an open


class Header(NamedTuple):
    """The description that a compacted file has of itself.

    It has the newest records of `topics` (as the setting has them) below `covered`, an offset of the log. The last
    record that the compaction read from the log stands at `last_record` (-1: none) and has the checksum field
    `last_checksum`. If the log has another record there, it was cut since. The records end at `records_end`, the index
    of `slots` slots follows. Values below the offset `uncertain_below` may be outdated, because a damaged record
    with unknown keys stood between them and it. The turn read `examined` records of the topics, and made the file at
    `made_ms`.
    """

    covered: int
    topics: str
    records: int
    keys: int
    records_end: int
    slots: int
    slots_checksum: int
    seeds: bytes
    last_record: int
    last_checksum: int
    uncertain_below: int = 0
    examined: int = 0
    made_ms: int = 0

    @property
    def slots_at(self) -> int:
        """The begin of the index."""
        return -(-self.records_end // BYTES_OF_SLOT) * BYTES_OF_SLOT

    @property
    def length(self) -> int:
        """The length of the file."""
        return self.slots_at + self.slots * BYTES_OF_SLOT


def render_header(header: Header) -> bytes:
    """The first HEADER_BYTES of a file."""
    data = checked_json.render(
        {
            "format": FORMAT,
            "coveredUpTo": header.covered,
            "topics": header.topics,
            "records": header.records,
            "keys": header.keys,
            "recordsEnd": header.records_end,
            "slots": header.slots,
            "slotsChecksum": header.slots_checksum,
            "seeds": header.seeds.hex(),
            "lastRecord": header.last_record,
            "lastChecksum": header.last_checksum,
            "uncertainBelow": header.uncertain_below,
            "examined": header.examined,
            "madeMs": header.made_ms,
        }
    )
    if len(data) > HEADER_BYTES:
        raise StoreFormatError(f"compacted_topics is too long for the header of {HEADER_BYTES} bytes")
    return data.ljust(HEADER_BYTES, b"\n")


def parse_header(data: bytes, length: int) -> Header:
    """The header of a file of that length. Raises ValueError; StoreFormatError for a newer format."""
    try:
        content = checked_json.parse(data)
    except UnicodeDecodeError as error:
        raise ValueError(str(error)) from None
    if type(content.get("format")) is not int or content["format"] > FORMAT:
        raise StoreFormatError(
            f"the compacted file has format {content.get('format')}, this cystore knows {FORMAT}"
        )
    names = (
        "coveredUpTo",
        "records",
        "keys",
        "recordsEnd",
        "slots",
        "slotsChecksum",
        "lastRecord",
        "lastChecksum",
    )
    later = ("uncertainBelow", "examined", "madeMs")  # files of earlier versions have none of them
    numbers: list[Any] = [content.get(name) for name in names] + [content.get(name, 0) for name in later]
    if not all(type(number) is int and number >= -1 for number in numbers):
        raise ValueError(f"one of {', '.join((*names, *later))} is not a number")
    covered, records, keys, records_end, slots, slots_checksum, last_record, last_checksum, *more = numbers
    try:
        seeds = binascii.unhexlify(str(content.get("seeds")))
    except ValueError:
        seeds = b""
    found = Header(
        covered, str(content.get("topics")), records, keys, records_end, slots, slots_checksum, seeds, last_record,
        last_checksum, *more,
    )  # fmt: skip
    if len(seeds) != SEED_BYTES or records_end < HEADER_BYTES or slots < 1 or slots & (slots - 1):
        raise ValueError("its numbers contradict each other")
    if found.length != length:
        raise ValueError(f"it has {length} bytes, but its header says {found.length}")
    return found


class CompactedFile:
    """One mapped compacted file; it stays readable when it was removed. If the header cannot be read, `header` is None,
    and `problem` says why."""

    def __init__(self, path: Path, number: int, file: MappedFile) -> None:
        self.path, self.number, self.file = path, number, file
        self.header: Header | None = None
        self.problem = ""
        self._checked = False
        try:
            self.header = parse_header(file.read(0, min(HEADER_BYTES, file.length)), file.length)
        except ValueError as error:
            if isinstance(error, StoreFormatError):
                raise StoreFormatError(str(error), path=path) from error
            self.problem = str(error)

    def whole_header(self) -> Header:
        """The header, after a check of the index. Raises CorruptRecordError if either is damaged."""
        header = self.header
        if header is not None and not self._checked:
            index = self.file.view(header.slots_at, header.slots * BYTES_OF_SLOT)
            if crc32c(index) != header.slots_checksum:
                self.problem = "the checksum of its index is wrong"
            self._checked = True
        if header is None or self.problem:
            raise CorruptRecordError(
                f"the compacted file is damaged ({self.problem}); `cystore compact PATH` makes it anew from its "
                "intact records and the log",
                path=self.path,
            )
        return header

    @property
    def records_end(self) -> int:
        """The end of the part that holds records; of a damaged file, the end of the file."""
        return self.file.length if self.header is None else self.header.records_end

    def find(self, topic: bytes, key: bytes) -> int:
        """The position of a key's newest record; -1: it has none. Raises CorruptRecordError."""
        header = self.whole_header()
        return find_newest(self.file, header.slots_at, header.slots, header.seeds, topic, key)


def numbers(root: Path) -> list[int]:
    """The numbers of the existing files, ascending. Files with other names are foreign and are left alone."""
    found = (base_of_name(entry.name) for entry in files.entries(root / FOLDER) if entry.is_file())
    return sorted(number for number in found if number is not None)


def path_of(root: Path, number: int) -> Path:
    """The path of the file with that number."""
    return root / FOLDER / file_name(number)


def reserve_path(root: Path) -> Path:
    """The path of the file whose space the next compacted file gets."""
    return root / FOLDER / "reserve"


def next_number(root: Path) -> int:
    """The number of the file that is made next. Raises StoreFormatError if a foreign file has the last one."""
    listed = numbers(root)
    if listed and listed[-1] >= NUMBER_MAX:
        raise StoreFormatError(
            "no compacted file of this store has such a number; move it away", path=path_of(root, listed[-1])
        )
    return listed[-1] + 1 if listed else 0


def open_newest(root: Path, known: CompactedFile | None = None) -> CompactedFile | None:
    """The file in force: the newest one whose header is intact, else the newest one; None without one. Returns `known`
    if that file is still in force. Raises StoreError."""
    for _ in range(TRIES):
        listed = numbers(root)
        if not listed:
            return None
        if known is not None and known.number == listed[-1]:
            return known
        try:
            newest = _open(root, listed[-1])
            for number in reversed(listed[:-1]):
                if newest.header is not None:
                    break
                older = _open(root, number)
                if older.header is not None:
                    return older
            return newest
        except StoreIOError as error:
            if not is_missing(error):
                raise
    raise StoreIOError("the compacted files change faster than one can be opened", path=root / FOLDER)


def open_file(root: Path, number: int) -> CompactedFile | None:
    """The file of that number; None without one. Raises StoreError."""
    try:
        return _open(root, number)
    except StoreIOError as error:
        if not is_missing(error):
            raise
        return None


def _open(root: Path, number: int) -> CompactedFile:
    path = path_of(root, number)
    with files.opened(path) as fd, files.translated(path):
        length = os.fstat(fd).st_size
    if length == 0:  # a foreign program cut it; nothing can be mapped
        return CompactedFile(path, number, MappedFile.anonymous(0, HEADER_BYTES, path))
    with files.translated(path):
        file = files.map_file(path, 0, length, writable=False, sealed=True)
    return CompactedFile(path, number, file)
