"""Where a copy of a store goes: into a folder, or into a pack. The copy of a live store and an unpacked one are made in
the same folder, in the same way."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Protocol

from cystore.engine.files.segments import base_of_name, file_name
from cystore.engine.log.commit_log import DIRECTORY
from cystore.errors import StoreIOError
from cystore.operate.packs.members import segment_base
from cystore.operate.packs.reader import Piece
from cystore.operate.packs.writer import PackWriter
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.system.ranges import file_ranges

# A mark file. It lies beside the folder of a copy in the making, so that no open takes the draft for an empty folder
# and makes a store in it. It also lies in the copy's log until the log is complete.
INCOMPLETE = "INCOMPLETE"


class Destination(Protocol):
    """Takes the files of a copy. `name` is a path inside the store."""

    def segment(self, source: Path, base: int, since: int, end: int) -> None:
        """[base, end) of the log, from one segment; it already has what is before `since`."""

    def drop_to(self, last: int) -> None:
        """Drops the segment at `last` and all earlier ones: without its last records there would be a gap."""

    def copy_if_there(self, source: Path, name: str) -> bool:
        """Copies a file that another process may remove; False if it did."""

    def data(self, name: str, data: bytes) -> None:
        """A small file."""


class IntoFolder:
    """A copy in a folder that will be a store."""

    def __init__(self, draft: Path, file_bytes: int) -> None:
        self._draft, self._file_bytes = draft, file_bytes
        self._log = draft / DIRECTORY

    def begin(self) -> None:
        """Makes the log's folder, with the mark of a log that is not complete."""
        files.make_directory(self._log)
        files.create_sized(self._draft, self._log / INCOMPLETE, 0, 0)

    def complete(self) -> None:
        """From now on the folder is a store."""
        files.remove(self._log / INCOMPLETE)

    def segment(self, source: Path, base: int, since: int, end: int) -> None:
        """A segment's bytes up to a place in the log, and zeros behind it."""
        copy = self._log / file_name(base)
        files.remove(copy, durable=False)  # the copy that ends at `since`
        file_ranges.copy_ranges(self._draft, [(source, 0, min(self._file_bytes, end - base))], copy)
        file_ranges.extend(copy, self._file_bytes)

    def drop_to(self, last: int) -> None:
        """See `Destination`."""
        for entry in files.entries(self._log):
            base = base_of_name(entry.name)
            if base is not None and base <= last:
                files.remove(entry.path)

    def copy_if_there(self, source: Path, name: str) -> bool:
        """See `Destination`."""
        try:
            with files.opened(source) as fd:
                length = file_ranges.length_of(fd, source)
            file_ranges.copy_ranges(self._draft, [(source, 0, length)], self._draft / name)
        except StoreIOError as error:
            if not is_missing(error):
                raise
            return False
        return True

    def data(self, name: str, data: bytes) -> None:
        """See `Destination`."""
        files.write_whole(self._draft, self._draft / name, data, keep_last=False)


class IntoPack:
    """A copy in one file, which is written from its beginning to its end."""

    def __init__(self, pack: PackWriter, file_bytes: int) -> None:
        self._pack, self._file_bytes = pack, file_bytes

    def segment(self, source: Path, base: int, since: int, end: int) -> None:
        """See `Destination`: the pack has what is before `since`, so only the rest follows."""
        with files.opened(source) as fd:
            upto = min(self._file_bytes, end - base)
            self._pack.segment(f"{DIRECTORY}/{file_name(base)}", fd, source, max(since - base, 0), upto)

    def drop_to(self, last: int) -> None:
        """Nothing to do: the end of the pack says where its log begins."""

    def copy_if_there(self, source: Path, name: str) -> bool:
        """See `Destination`."""
        try:
            file = files.opened(source)
        except StoreIOError as error:
            if not is_missing(error):
                raise
            return False
        with file as fd:
            self._pack.file(name, fd, source, file_ranges.length_of(fd, source))
        return True

    def data(self, name: str, data: bytes) -> None:
        """See `Destination`."""
        self._pack.data(name, data)


def unpack(pieces: Iterable[Piece], draft: Path, file_bytes: int) -> None:
    """Writes the checked pieces of a pack into a folder that will be a store, each file durably. One file is open at a
    time. Raises StoreFullError."""
    for name, run in itertools.groupby(pieces, lambda piece: piece.name):
        path = draft / name
        files.create_sized(draft, path, 0 if segment_base(name) is None else file_bytes, 0)
        with files.opened(path, os.O_RDWR) as fd:
            for piece in run:
                file_ranges.write_open(fd, piece.offset, piece.data, path)
            files.sync(fd, path)
