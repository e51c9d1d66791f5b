"""config/confirmed: the confirmed position, written before readers see the log up to it.

So a kill of all processes takes back nothing that a reader saw: the page cache has the file. A power cut may; then the
position in the status, or none, counts. Layout: position, CRC-32C of its bytes; little-endian.
"""

from __future__ import annotations

import os
import struct
from pathlib import Path

from cystore._native.record.checksum import crc32c
from cystore._native.system.descriptor import Descriptor
from cystore.system import files

PATH = ("config", "confirmed")
_POSITION, _CRC = struct.Struct("<q"), struct.Struct("<I")


class ConfirmedFile:
    """The file of one store. One process writes it, the one that replicates."""

    def __init__(self, root: Path) -> None:
        self._path = root.joinpath(*PATH)
        self._file: Descriptor | None = None

    def write(self, position: int) -> None:
        """Overwrites the position. Raises StoreFullError, StoreIOError."""
        if self._file is None:
            files.make_directory(self._path.parent)
            self._file = files.open_file(self._path, os.O_RDWR | os.O_CREAT)
        data = _POSITION.pack(position)
        with files.translated(self._path):
            os.pwrite(self._file.fd, data + _CRC.pack(crc32c(data)), 0)

    def close(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            file.close()


def read_confirmed(root: Path) -> int:
    """The position; 0 if the file is missing or damaged."""
    data = files.read_if_there(root.joinpath(*PATH)) or b""
    if (
        len(data) != _POSITION.size + _CRC.size
        or crc32c(data[: _POSITION.size]) != _CRC.unpack_from(data, 8)[0]
    ):
        return 0
    return max(int(_POSITION.unpack_from(data)[0]), 0)


def limit_confirmed(root: Path, position: int) -> None:
    """Lowers the position: the log was truncated there. The process is alone in the store."""
    if read_confirmed(root) > position:
        files.remove(root.joinpath(*PATH))
