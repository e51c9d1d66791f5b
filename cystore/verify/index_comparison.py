"""Compares the index with the log: each key of a record must have its entry, and no entry may lead behind the log.
Also finds the damage that an index file shows by itself."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from cystore._native.scan.log_walk import LogWalker
from cystore.derived.files.index import DIRECTORY as INDEX
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import IndexReader
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_reader import LogReader
from cystore.verify.bounds import Bounds

KEYS_AT_ONCE = 50_000
UNKEYED = "keys of these records are missing or wrong"


class IndexEntries:
    """The comparison of the index with the records of one walk. The walk's `scanner` compares and stops where an entry
    is not that of the next key."""

    def __init__(self, root: Path, reader: LogReader, scanner: LogWalker, bounds: Bounds) -> None:
        self._root, self._reader, self._scanner, self._bounds = root, reader, scanner, bounds
        self.stream = IndexStream([])
        # The last run of records whose keys the index lacks; it may still grow.
        self._unkeyed: Damage | None = None

    def begin(self, stream: IndexStream, first: int) -> None:
        """From here on the entries of `stream` are compared, beginning with number `first`."""
        self.stream = stream
        self._scanner.compare_keys(first, stream.limit, stream.files)

    def load(self) -> None:
        """Gives the scanner the next entries. All keys of a record are compared at once, however many files they are
        in."""
        scanner = self._scanner
        count = scanner.wanted - scanner.keys_at + KEYS_AT_ONCE
        scanner.set_keys(self.stream.read(scanner.keys_at, count), scanner.keys_at)

    def other_key(self) -> Iterator[Damage]:
        """The record here lacks its entry: the walk continues with the index entries of a later record. Gives the run
        of records before it, if that has ended."""
        scanner = self._scanner
        position, size = scanner.position, scanner.record()[3]
        following = self.stream.first_from(scanner.keys_at, position + 1)
        if following == self.stream.limit and not self._bounds.complete:
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
        if scanner.keys_at < self.stream.limit:
            path = self.stream.place(scanner.keys_at)[0].path
        self._unkeyed = Damage("index", path, position, position + size, UNKEYED)

    def last_run(self) -> Iterator[Damage]:
        """The run of records without keys at the end of the walk."""
        if self._unkeyed is not None:
            yield self._unkeyed


def unreadable_index(path: Path) -> Damage:
    """The damage of an index file of unknown shape: its entries are not compared."""
    return Damage(
        "index",
        path,
        0,
        0,
        "the shape of the file is unknown: its entries were not compared",
    )


def index_file_damage(reader: IndexReader, bounds: Bounds) -> Iterator[Damage]:
    """The damage that one file shows by itself."""
    if not reader.sound or (bounds.complete and not reader.whole):
        head, reason = reader.header, "the header disagrees with the entries"
        yield Damage("index", reader.path, head.begin_physical_offset, head.end_physical_offset, reason)
    if reader.sound:
        for path, number, reason in IndexStream([reader]).broken_chains():
            yield Damage("index", path, 0, 0, f"entry {number}: {reason}")


def past_the_end(stream: IndexStream, number: int, bounds: Bounds) -> Iterator[Damage]:
    """Index entries from a number on that lead behind the log."""
    at = stream.first_from(number, bounds.end) if bounds.complete else stream.limit
    if at < stream.limit:
        begin, end = stream.physical_offset(at), stream.physical_offset(stream.limit - 1)
        path = stream.place(at)[0].path
        yield Damage("index", path, begin, end, "entries for records past the end of the log")
