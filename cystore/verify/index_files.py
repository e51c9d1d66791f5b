"""Verifies index files: the damage that a file shows by itself, and entries past the end of the log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import IndexReader
from cystore.recovery.walk.index_stream import IndexStream
from cystore.verify.bounds import Bounds


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
