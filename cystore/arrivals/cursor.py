"""The cursor of a named dispatcher: config/dispatcher.NAME, which survives the kill of every process and a power cut.

The file has two places that are written in turn. Each has the dispatcher's position (`position`), and the part of it
that was durable (`durable`): the log up to `durable` is on the disk. A kill leaves both places or the older one. After
a power cut `durable` counts, because the log behind it may be gone and its offsets given to other records. A write
needs no sync, because an older place only repeats messages.

The process that runs the dispatcher holds a byte lock of the file, which the kernel releases when the process ends.
"""

from __future__ import annotations

import os
import re
import struct
from pathlib import Path
from typing import NamedTuple

from cystore._native.record.argument_checks import any_text
from cystore._native.record.checksum import crc32c
from cystore._native.system.descriptor import Descriptor
from cystore._native.system.failpoint import failpoint
from cystore.attachment.attachment import Attachment
from cystore.errors import StoreClosedError, StoreConfigError, StoreFormatError, StoreLockedError
from cystore.system import files, platform
from cystore.system.folders import inside
from cystore.system.key_lock import PlaceLocks

PREFIX = "dispatcher."
_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9_.-]{0,47}")
_NO_NAME = (".bak", ".spare")  # endings that other files of config/ have
MAGIC = b"CYSCURS1"
# Magic, number of the write, boot id, position, durable position, failures in a row, CRC-32C of all that.
_FIELDS = struct.Struct("<8sQ36s4xqqI")
_CRC = struct.Struct("<I")
PLACE_BYTES = 512  # a sector, so that no torn write touches both
FILE_BYTES = 2 * PLACE_BYTES
RUNNING = 1 << 40  # the byte that the owner has locked


class State(NamedTuple):
    """The state of a dispatcher. `write` is the number of the last write."""

    write: int
    boot_id: str
    position: int
    durable: int
    failures: int


def checked_name(name: object) -> str:
    """The name of a dispatcher. Raises StoreConfigError."""
    text = any_text("name of the dispatcher", name, StoreConfigError)
    if not _NAME.fullmatch(text) or text.endswith(_NO_NAME):
        raise StoreConfigError(
            f"a dispatcher's name must be 1 to 48 letters, digits, '_', '-' or '.', not with '.' in front nor with "
            f"{' or '.join(_NO_NAME)} at the end, not {text!r}"
        )
    return text


def path_of(root: Path, name: str) -> Path:
    """The file of a dispatcher."""
    return root / "config" / f"{PREFIX}{name}"


def names(root: Path) -> list[str]:
    """The names of all dispatchers that have a cursor, sorted."""
    listed = [entry.name for entry in files.entries(root / "config") if entry.is_file()]
    found = [name.removeprefix(PREFIX) for name in listed if name.startswith(PREFIX)]
    return sorted(name for name in found if _NAME.fullmatch(name) and not name.endswith(_NO_NAME))


class Cursor:
    """The existing cursor of one dispatcher."""

    def __init__(self, parts: Attachment, name: str, *, write: bool) -> None:
        self.name, self.path = name, path_of(parts.root, name)
        self._control = parts.control
        self._boot_id = platform.identity()["boot_id"]
        self._file: Descriptor = files.open_file(self.path, os.O_RDWR if write else os.O_RDONLY)
        self._own: PlaceLocks | None = None
        self._candidate = -1  # a position that is durable once the log is flushed up to it

    @classmethod
    def make(cls, parts: Attachment, name: str) -> Cursor:
        """The cursor, for writing. If there is no file, makes one and takes space for all its bytes, so that no later
        write needs more. Raises StoreFullError."""
        path = path_of(parts.root, name)
        if not path.exists():
            files.create_sized(parts.root, path, FILE_BYTES, FILE_BYTES, stays=True)
            failpoint("dispatcher.made")
        else:
            files.sync_directory(path.parent)  # the maker of the name may have died before this
        return cls(parts, name, write=True)

    # ------------------------------------------------------------------------------------------- reading

    def read(self) -> State | None:
        """The state, with the position from which the dispatcher continues; None for a file that was made and never
        written. Raises StoreFormatError if both places are damaged."""
        found = self._newest()
        if found is None:
            if any(self._bytes(0)) or any(self._bytes(1)):
                raise StoreFormatError(
                    f"the cursor of dispatcher {self.name} is damaged: end its processes and remove the file, "
                    "and it begins anew",
                    path=self.path,
                )
            return None
        position = found.position if found.boot_id == self._boot_id else found.durable
        return found._replace(position=min(position, self._control.wrote))

    def _newest(self) -> State | None:
        found = [state for place in (0, 1) if (state := self._place(place)) is not None]
        return max(found, default=None)

    def _bytes(self, place: int) -> bytes:
        with files.translated(self.path):
            return files.pread_full(self._file.fd, place * PLACE_BYTES, _FIELDS.size + _CRC.size, self.path)

    def _place(self, place: int) -> State | None:
        data = self._bytes(place)
        if len(data) < _FIELDS.size + _CRC.size or _CRC.unpack_from(data, _FIELDS.size) != (
            crc32c(data[: _FIELDS.size]),
        ):
            return None
        magic, write, boot_id, position, durable, failures = _FIELDS.unpack_from(data)
        if magic != MAGIC:
            return None
        return State(write, boot_id.rstrip(b"\0").decode("ascii", "replace"), position, durable, failures)

    # ------------------------------------------------------------------------------------------- writing

    def move(self, position: int, failures: int = 0) -> State:
        """Sets position and failures. The durable position follows when the log is flushed up to an earlier position.
        For the owner."""
        old = self._newest()
        durable = 0 if old is None else min(old.durable, position)
        try:
            flushed = self._control.flushed
        except StoreClosedError:  # the function had a batch when the store was closed
            flushed = -1
        if durable <= self._candidate <= min(flushed, position):
            durable, self._candidate = self._candidate, -1
        if position <= flushed:
            durable = position
        elif self._candidate < 0 or self._candidate > position:
            self._candidate = position
        state = State(1 if old is None else old.write + 1, self._boot_id, position, durable, failures)
        self._write(state)
        return state

    def _write(self, state: State) -> None:
        data = _FIELDS.pack(
            MAGIC, state.write, state.boot_id.encode("ascii"), state.position, state.durable, state.failures
        )
        with files.translated(self.path):
            os.pwrite(self._file.fd, data + _CRC.pack(crc32c(data)), state.write % 2 * PLACE_BYTES)

    def sync(self) -> None:
        """Makes the cursor durable, so that a power cut repeats little."""
        files.sync(self._file.fd, self.path, data_only=True)

    # ------------------------------------------------------------------------------------------- the file

    def locks(self) -> PlaceLocks:
        """A new lock object. With `try_take(RUNNING)` its owner becomes the process that runs the dispatcher."""
        return PlaceLocks(self.path)

    def is_there(self) -> bool:
        """Whether the path still leads to this file: it may have been removed, and made anew."""
        with files.translated(self.path), inside(self.path) as (folder, name):
            mine = os.fstat(self._file.fd)
            try:
                found = os.stat(name, dir_fd=folder, follow_symlinks=False)
            except FileNotFoundError:
                return False
            return os.path.samestat(mine, found)

    def own(self) -> None:
        """Makes this cursor the owner until it is closed. Raises StoreLockedError while a process runs the
        dispatcher."""
        self._own = self.locks()
        if not self._own.try_take(RUNNING):
            raise StoreLockedError(
                f"a process runs the dispatcher {self.name}: close it there first", path=self.path
            )

    def close(self) -> None:
        """Closes the file, which releases its locks."""
        if self._own is not None:
            self._own.close()
        self._file.close()
