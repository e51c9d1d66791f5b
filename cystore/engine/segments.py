"""A queue of equally long files that are named by the offset of their first byte (RocketMQ's MappedFileQueue)."""

from __future__ import annotations

import enum
import logging
import os
from collections import OrderedDict
from pathlib import Path
from typing import Literal

from cystore._native.mapping import MappedFile
from cystore.errors import StoreFormatError
from cystore.system import files, os_threads

log = logging.getLogger("cystore")

NAME_DIGITS = 20
OURS = ("CYSTORE",)  # the marker file in commitlog/


class Mode(enum.Enum):
    """How files are mapped."""

    WRITE = "write"
    READ = "read"  # shared, for reading only: another process writes
    PRIVATE = "private"  # nobody is attached: recovery and dispatch run on private copies of the pages


def file_name(base: int) -> str:
    """Name of the file that begins at `base` (UtilAll.offset2FileName)."""
    return f"{base:0{NAME_DIGITS}d}"


def base_of_name(name: str) -> int | None:
    """The position that a file's name tells, None for another kind of name."""
    return int(name) if len(name) == NAME_DIGITS and name.isascii() and name.isdecimal() else None


class MappedFileQueue:
    """Files of one directory. Safe for threads of a process; several processes may create files at once.

    `file_bytes` is that of the first file found; a configured length that differs is reported once and not used.
    Mappings are kept for the `max_mapped` files used last; one that somebody still holds stays mapped all the same.
    Without `durable_names` files are made without waiting for the disk, and `sync_names` does that for all of them at once.
    A file of another length is refused; with Mode.PRIVATE `odd_files` says what recovery would have made of it: lengthened with
    zeros ("extend") or removed ("remove").
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        file_bytes: int,
        mode: Mode,
        *,
        max_mapped: int = 64,
        keep_descriptors: bool = True,
        durable_names: bool = True,
        odd_files: Literal["refuse", "extend", "remove"] = "refuse",
    ) -> None:
        self.root, self.directory, self.mode = root, directory, mode
        self.file_bytes = file_bytes
        self._max_mapped = max_mapped
        self._keep_descriptors, self._durable_names = keep_descriptors, durable_names
        self._mapped: OrderedDict[int, MappedFile] = OrderedDict()
        self._imagined: dict[int, MappedFile] = {}  # PRIVATE: files that exist in memory only
        self._removed: set[int] = set()  # PRIVATE: files that recovery dropped
        self._odd_files = odd_files if mode is Mode.PRIVATE else "refuse"
        self._lock = os_threads.RLock()
        self._configured_bytes = file_bytes
        self._bases = self._list()

    def _list(self) -> list[int]:
        """Bases of the files there are. A strange name or a length that fits no other file is a StoreFormatError."""
        bases, sizes = [], {}
        for entry in files.entries(self.directory):
            if entry.name in OURS:
                continue
            base = base_of_name(entry.name)
            if base is None or not entry.is_file(follow_symlinks=False):
                raise StoreFormatError("strange name in a queue of files; move it away", path=entry.path)
            size = files.size_of(entry)
            if size is not None:
                bases.append(base)
                sizes[base] = size
        bases.sort()
        if self._odd_files != "refuse":
            bases = self._as_recovered(bases, sizes)
        if bases:
            first = sizes[bases[0]]
            if first != self._configured_bytes:
                if first != self.file_bytes:
                    log.warning(
                        "%s: files have %d bytes, the configuration says %d; using the files' length",
                        self.directory,
                        first,
                        self._configured_bytes,
                    )
                self.file_bytes = first
            for base in bases:
                if sizes[base] != first:
                    raise StoreFormatError(
                        f"the file has {sizes[base]} bytes, its neighbours {first}", path=self.path(base)
                    )
                if first <= 0 or base % first:
                    raise StoreFormatError(
                        f"name is no multiple of the file length {first}", path=self.path(base)
                    )
        bases = [base for base in bases if base not in self._removed]
        return sorted({*bases, *self._imagined})

    def _as_recovered(self, bases: list[int], sizes: dict[int, int]) -> list[int]:
        """PRIVATE: the files that recovery would have left; a lengthened one exists in memory only."""
        odd = [base for base in bases if sizes[base] != self._configured_bytes]
        for base in odd:
            if self._odd_files == "remove":
                self._removed.add(base)
            elif base not in self._imagined and sizes[base] < self._configured_bytes:
                whole = MappedFile.anonymous(base, self._configured_bytes, self.path(base))
                whole.write(0, files.read_all(self.path(base)))
                self._imagined[base] = whole
        return [base for base in bases if base not in odd]

    def path(self, base: int) -> Path:
        """Path of the file that begins at `base`."""
        return self.directory / file_name(base)

    def refresh(self) -> list[int]:
        """Lists the directory anew."""
        with self._lock:
            self._bases = self._list()
            return list(self._bases)

    def bases(self) -> list[int]:
        """Bases of the known files, ascending."""
        return list(self._bases)

    def base_of(self, offset: int) -> int:
        """Base of the file that holds `offset`, whether or not it exists."""
        return offset - offset % self.file_bytes

    def get(self, base: int) -> MappedFile | None:
        """The mapped file that begins at `base`, None where there is none."""
        with self._lock:
            found = self._mapped.get(base) or self._imagined.get(base)
            if found is None:
                if base in self._removed:
                    return None
                try:
                    found = files.map_file(
                        self.path(base),
                        base,
                        self.file_bytes,
                        writable=self.mode is not Mode.READ,
                        private=self.mode is Mode.PRIVATE,
                        keep_descriptor=self._keep_descriptors,
                    )
                except FileNotFoundError:
                    return None
                except OSError as error:
                    with files.translated(self.path(base)):
                        raise error
                if base not in self._bases:
                    self._bases = sorted({*self._bases, base})
            if self.mode is Mode.PRIVATE and found.path != "(memory)":
                self._imagined[base] = found  # a private mapping holds what we wrote: it must stay
                return found
            self._mapped[base] = found
            self._mapped.move_to_end(base)
            while len(self._mapped) > self._max_mapped:
                self._mapped.popitem(last=False)
            return found

    def create(self, base: int, allocated_bytes: int) -> MappedFile:
        """Makes the file at `base` unless it is there (another process may be faster) and maps it."""
        if self.mode is Mode.PRIVATE:
            with self._lock:
                existing = self.get(base)
                if existing is None:
                    existing = MappedFile.anonymous(base, self.file_bytes)
                    self._imagined[base] = existing
                    self._removed.discard(base)
                    self._bases = sorted({*self._bases, base})
                return existing
        if not self.path(base).exists():
            files.create_sized(
                self.root, self.path(base), self.file_bytes, allocated_bytes, durable=self._durable_names
            )
        elif self._durable_names:
            files.sync_directory(self.directory)  # whoever named it may have died before that
        created = self.get(base)
        if created is None:
            raise StoreFormatError("the file vanished while it was being made", path=self.path(base))
        return created

    def sync_names(self) -> None:
        """Makes the names of the files, and of the folders down to them, durable."""
        if self.mode is Mode.WRITE:
            folder = self.directory
            while folder != self.root:
                files.sync_directory(folder)
                folder = folder.parent
            files.sync_directory(self.root)

    def allocate(self, base: int, begin: int, end: int) -> None:
        """Reserves disk space for [begin, end), offsets inside the file at `base`. Raises StoreFullError."""
        file = self.get(base)
        if file is None or self.mode is not Mode.WRITE:
            return
        end = min(end, self.file_bytes)
        if file.fd >= 0:
            files.allocate(file.fd, begin, end, file.path)
        else:
            with files.opened(self.path(base), os.O_RDWR) as fd:
                files.allocate(fd, begin, end, file.path)

    def remove(self, base: int) -> None:
        """Unlinks the file at `base`; views of it stay readable."""
        with self._lock:
            self._mapped.pop(base, None)
            self._imagined.pop(base, None)
            self._bases = [other for other in self._bases if other != base]
            if self.mode is Mode.PRIVATE:
                self._removed.add(base)
                return
        files.remove(self.path(base))

    def remove_below(self, position: int) -> int:
        """Unlinks the files that end at or below a position, oldest first, but never the last; returns how many."""
        old = [base for base in self.refresh()[:-1] if base + self.file_bytes <= position]
        for base in old:
            self.remove(base)
        return len(old)

    def close(self) -> None:
        """Lets all mappings go; views keep theirs. Takes no lock: in a forked child a thread that is gone may hold it."""
        self._mapped, self._imagined = OrderedDict(), {}

    def forget(self, base: int) -> None:
        """Drops this process's mapping of the file at `base`; it is mapped again by its name when it is asked for."""
        with self._lock:
            self._mapped.pop(base, None)

    def forget_below(self, offset: int) -> None:
        """Drops this process's mappings of files that end at or below `offset`; another process unlinked them."""
        with self._lock:
            for base in [b for b in self._bases if b + self.file_bytes <= offset]:
                self._mapped.pop(base, None)
                self._bases.remove(base)
