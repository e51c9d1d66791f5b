"""A queue of equally long files that are named by the offset of their first byte (RocketMQ's MappedFileQueue)."""

from __future__ import annotations

import enum
import logging
from bisect import bisect_left, bisect_right
from collections import Counter, OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Literal, TypeVar

from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import Drops
from cystore._native.system import log_files
from cystore.engine.files.mappings import Mappings
from cystore.errors import StoreError, StoreFormatError, StoreResourceError
from cystore.system import files, folders
from cystore.system.os_errors import lacks_descriptor
from cystore.system.ranges.changed_lengths import has_length, mend_length
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

Prepared = TypeVar("Prepared")

NAME_DIGITS = 20
POSITIONS_END = 1 << 63  # positions are long in RocketMQ
NOTHING_RESERVED = -1, 0
MAKE_TRIES = 5  # another process may remove a file before it is mapped
OURS = ("CYSTORE",)  # the marker file in commitlog/


class Mode(enum.Enum):
    """How files are mapped."""

    WRITE = "write"
    READ = "read"  # shared, for reading only: another process writes
    PRIVATE = "private"  # no process is attached: recovery and dispatch run on private copies of the pages


def file_name(base: int) -> str:
    """Name of the file that begins at `base` (UtilAll.offset2FileName)."""
    return f"{base:0{NAME_DIGITS}d}"


def base_of_name(name: str) -> int | None:
    """The position in a file's name; None for other names, also for digits that cannot be a position of a log."""
    if len(name) != NAME_DIGITS or not name.isascii() or not name.isdecimal():
        return None
    base = int(name)
    return base if base < POSITIONS_END else None


def sizes_in(folder: Path) -> dict[int, int]:
    """{base: length} of each file in a folder, by few system calls."""
    try:
        with folders.open_folder(folder) as opened:
            found = log_files.list_files(opened, OURS[0].encode())
    except FileNotFoundError:
        return {}
    except OSError:
        found = None
    return _sizes_one_by_one(folder) if found is None else found


def _sizes_one_by_one(folder: Path) -> dict[int, int]:
    """The same with an error that names the entry that is not a file of a queue."""
    sizes = {}
    for entry in files.entries(folder, sizes=True):
        if entry.name in OURS:
            continue
        base = base_of_name(entry.name)
        if base is None or not entry.is_file(follow_symlinks=False):
            raise StoreFormatError("not a valid file name for this folder; move it away", path=entry.path)
        size = files.size_of(entry)
        if size is not None:
            sizes[base] = size
    return sizes


class MappedFileQueue:
    """Files of one directory. Safe for threads of a process; several processes may create files at once.

    `file_bytes` is the length of most files found; a different configured length is reported once and not used.
    `mappings` keeps the mappings of all queues of files of a store within one budget. Of this queue it keeps at most
    those of the `max_mapped` files used last, and always those that are `needed`. A file that a view uses stays mapped
    in any case. `is_sealed(end)` says that no process writes any more to a file with that end. Without `durable_names`
    files are made without waiting for the disk, and `sync_names` makes the names of all of them durable at once.
    `scattered`: accesses are scattered, so a page fault reads nothing ahead. A file of another length is refused. With
    Mode.PRIVATE `odd_files` gives the treatment by recovery: lengthened with zeros ("extend") or removed ("remove").
    Recovery removes a file only if the log determines its bytes. Then a process that writes restores the file's length
    when it maps it, and for a reader the file does not exist.
    """

    def __init__(
        self,
        root: Path,
        directory: Path,
        file_bytes: int,
        mode: Mode,
        *,
        mappings: Mappings | None = None,
        max_mapped: int | None = None,
        needed: Callable[[MappedFile], bool] | None = None,
        is_sealed: Callable[[int], bool] | None = None,
        durable_names: bool = True,
        odd_files: Literal["refuse", "extend", "remove"] = "refuse",
        scattered: bool = False,
    ) -> None:
        self.root, self.directory, self.mode = root, directory, mode
        self.file_bytes = file_bytes
        self._durable_names, self._scattered = durable_names, scattered
        self._mappings = mappings or Mappings(1 << 62, 64)
        self._number = Mappings.number()
        self._mapped: OrderedDict[int, None] = (
            OrderedDict()
        )  # bases of the kept mappings, the one used last at the end
        self._max_mapped = max_mapped
        self._is_needed, self._is_sealed = needed, is_sealed
        self._imagined: dict[int, MappedFile] = {}  # PRIVATE: files that exist in memory only
        self._removed: set[int] = set()  # PRIVATE: files that recovery dropped
        self._odd_files = odd_files if mode is Mode.PRIVATE else "refuse"
        self._odd_length: Literal["refuse", "mend", "skip"] = "refuse"
        if odd_files == "remove" and mode is not Mode.PRIVATE:
            self._odd_length = "mend" if mode is Mode.WRITE else "skip"
        self._lock = os_threads.RLock()
        self._configured_bytes = file_bytes
        # (base, bytes) of the file that `create` made and mapped last, until the next `allocate` or mapping
        self._reserved = NOTHING_RESERVED
        self._forgotten = 0  # how often all mappings were dropped
        self._bases = self._list()

    def _list(self) -> list[int]:
        """Bases of the existing files. A strange name or a length that fits no other file is a StoreFormatError."""
        sizes = self._sizes()
        bases = sorted(sizes)
        if self._odd_files != "refuse":
            bases = self._as_recovered(bases, sizes)
        if self._odd_length == "skip":
            bases = [base for base in bases if sizes[base] == self._configured_bytes]
        elif self._odd_length == "mend":
            sizes = dict.fromkeys(bases, self._configured_bytes)
        if bases:
            first = self._common_length([sizes[base] for base in bases])
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
                        f"the name is not a multiple of the file length {first}", path=self.path(base)
                    )
        bases = [base for base in bases if base not in self._removed]
        return sorted({*bases, *self._imagined})

    def _common_length(self, lengths: list[int]) -> int:
        """The length of most files. If several lengths are as frequent, it is the configured one, or else the first
        one: any file may be damaged, also the first one. An empty file says nothing."""
        counts = Counter(length for length in lengths if length > 0) or Counter(lengths)
        most = max(counts.values())
        if counts[self._configured_bytes] == most:
            return self._configured_bytes
        return next(length for length in lengths if counts[length] == most)

    def _sizes(self) -> dict[int, int]:
        """{base: length} of each file."""
        return sizes_in(self.directory)

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

    @property
    def drops(self) -> Drops:
        """Counts when the budget of the mappings drops some."""
        return self._mappings.drops

    def path(self, base: int) -> Path:
        """Path of the file that begins at `base`."""
        return self.directory / file_name(base)

    def is_imagined(self, base: int) -> bool:
        """Whether the file at `base` exists in this process's memory only."""
        return base in self._imagined

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
        """The mapped file that begins at `base`; None without one."""
        if self._max_mapped is None and not self._imagined:  # the log's: a mapped file needs no lock
            found = self._mappings.get(self._number, base)
            if found is not None:
                return found
        with self._lock:
            found = self._imagined.get(base) or self._mappings.get(self._number, base)
            if found is not None:
                if self._max_mapped is not None and base in self._mapped:
                    self._mapped.move_to_end(base)
                return found
            if base in self._removed:
                return None
            forgotten = self._forgotten
            found = self._map(base)
            self._reserved = NOTHING_RESERVED
            if found is None:
                return None
            place = bisect_left(self._bases, base)
            if place == len(self._bases) or self._bases[place] != base:
                self._bases = [*self._bases[:place], base, *self._bases[place:]]
            self._mapped[base] = None
            self._mapped.move_to_end(base)
            gone = self._let_oldest_go()
        del gone
        self._mappings.keep(self._number, found, self._needed)
        with self._lock:
            if self._forgotten != forgotten:  # another process removed it since it was mapped
                self._let_go(base)
        return found

    def _map(self, base: int) -> MappedFile | None:
        path = self.path(base)
        while True:
            try:
                with files.translated(path):
                    try:
                        file = files.map_file(
                            path,
                            base,
                            self.file_bytes,
                            writable=self.mode is not Mode.READ,
                            private=self.mode is Mode.PRIVATE,
                            sealed=self._is_sealed is not None and self._is_sealed(base + self.file_bytes),
                        )
                    except FileNotFoundError:
                        return None
                    if self._scattered:
                        file.expect_scattered()
                    return file
            except StoreResourceError as error:
                if lacks_descriptor(error) or not self._mappings.make_room():
                    raise
            except StoreError:
                if self._odd_length == "refuse" or has_length(path, self.file_bytes):
                    raise
                if self._odd_length == "skip":
                    return None
                mend_length(path, self.file_bytes)

    def _needed(self, file: MappedFile) -> bool:
        """Whether a mapping must stay, because only private memory has its changes."""
        return (file.private and file.touched) or (self._is_needed is not None and self._is_needed(file))

    def _let_oldest_go(self) -> list[MappedFile | None]:
        """Calls `_let_go` for the mappings used longest ago until no more than the limit are kept."""
        gone: list[MappedFile | None] = []
        if self._max_mapped is not None and len(self._mapped) > self._max_mapped:
            for base in list(self._mapped)[: len(self._mapped) - self._max_mapped]:
                file = self._mappings.get(self._number, base)
                if file is None or not self._needed(file):
                    gone.append(self._let_go(base))
        return gone

    def _let_go(self, base: int) -> MappedFile | None:
        """Removes a mapping from the kept ones, and returns it. The caller ends it outside the lock: the end of a
        removed file's last mapping waits until the disk has freed the blocks, and a put may wait for the lock."""
        self._mapped.pop(base, None)
        return self._mappings.drop(self._number, base)

    def create(self, base: int, allocated_bytes: int) -> MappedFile:
        """Makes the file at `base` if it does not exist (another process may be faster) and maps it."""
        if self.mode is Mode.PRIVATE:
            with self._lock:
                existing = self.get(base)
                if existing is None:
                    existing = MappedFile.anonymous(base, self.file_bytes)
                    self._imagined[base] = existing
                    self._removed.discard(base)
                    self._bases = sorted({*self._bases, base})
                return existing
        for _ in range(MAKE_TRIES):
            path, made = self.path(base), False
            if not path.exists():
                made = self._make(path, base, allocated_bytes)
            elif self._durable_names:
                files.sync_directory(path.parent)  # the maker of the name may have died before this
            created = self.get(base)
            if created is not None:
                self._reserved = (base, allocated_bytes) if made else NOTHING_RESERVED
                return created
        raise StoreFormatError("another process removed the file while it was made", path=self.path(base))

    def _make(self, path: Path, base: int, allocated_bytes: int) -> bool:
        """Makes a file that no folder had a moment ago. True if the file is this call's, with all of that space."""
        return files.create_sized(
            self.root, path, self.file_bytes, allocated_bytes, durable=self._durable_names, stays=True
        )

    def sync_removed(self) -> None:
        """Makes removals without `durable` durable."""
        files.sync_directory(self.directory)

    def sync_names(self) -> None:
        """Makes the names of the files, and of the folders down to them, durable."""
        if self.mode is Mode.WRITE:
            folder = self.directory
            while folder != self.root:
                files.sync_directory(folder)
                folder = folder.parent
            files.sync_directory(self.root)

    def prepared(self, base: int, prepare: Callable[[], Prepared]) -> Prepared:
        """The result of `prepare`, which maps the file at `base` and reserves space there. If another process removes
        or replaces the file between these two steps, the mapping is dropped and `prepare` runs again, which makes the
        file anew."""
        for _ in range(MAKE_TRIES):
            try:
                return prepare()
            except files.FileReplacedError:
                self.forget(base)
        return prepare()

    def allocate(self, base: int, begin: int, end: int, zeros_from: int | None = None) -> None:
        """Reserves disk space for [begin, end), offsets inside the file at `base`. From `zeros_from` on it also makes
        the pages (`write_zeros_ahead`). Raises StoreFullError, FileReplacedError."""
        if self.mode is not Mode.WRITE:
            return
        file = self.get(base)
        if file is None:  # other processes may still write to it, and must not get room that nobody reserved
            raise files.FileReplacedError("the file was removed while it was in use", path=self.path(base))
        end = min(end, self.file_bytes)
        reserved, self._reserved = self._reserved, NOTHING_RESERVED
        if (
            base == reserved[0]
            and end <= reserved[1]
            and zeros_from is None
            and files.is_at(self.path(base), file)
        ):
            return
        files.allocate_mapped(self.path(base), file, begin, end, zeros_from)

    def remove(self, base: int, *, durable: bool = True) -> None:
        """Unlinks the file at `base`; views of it stay readable."""
        with self._lock:
            gone = self._let_go(base)
            self._imagined.pop(base, None)
            self._bases = [other for other in self._bases if other != base]
            if self.mode is Mode.PRIVATE:
                self._removed.add(base)
                return
        del gone
        files.remove(self.path(base), durable=durable)

    def remove_below(self, position: int) -> int:
        """Unlinks the files that end at or below a position, oldest first, but never the last; returns their number."""
        old = [base for base in self.refresh()[:-1] if base + self.file_bytes <= position]
        for base in old:
            self.remove(base)
        return len(old)

    def remove_folders(self) -> None:
        """Removes the folder if it is empty, and then the one above it, but none that stands in the store's root. A
        power cut may bring them back, empty."""
        folder = self.directory
        while folder.parent != self.root and folder.is_dir() and not files.names(folder):
            files.remove_directory(folder, durable=False)
            folder = folder.parent

    def let_pages_go(self, end: int) -> None:
        """Takes the pages of the store's mapped files out of this process's memory: of this queue's last segment only
        those below `end`."""
        self._mappings.let_pages_go(self._mappings.get(self._number, self.base_of(end)), end)

    def close(self) -> None:
        """Lets all mappings go; views keep theirs. Takes no lock: in a forked child a thread that is gone may hold
        it."""
        for base in list(self._mapped):
            self._let_go(base)
        self._imagined = {}

    def forked(self) -> None:
        """Makes the queue usable in a forked child, before `close`."""
        self._mappings.forked()

    def is_there(self, file: MappedFile) -> bool:
        """Whether a mapped file still has its name."""
        return file.in_memory or files.is_at(self.path(file.base), file)

    def forget(self, base: int) -> None:
        """Drops this process's mapping of the file at `base`; the next use maps it again by its name. Changed private
        memory stays, because nothing else holds the changes."""
        gone = None
        with self._lock:
            file = self._mappings.get(self._number, base)
            if file is None or not (file.private and file.touched):
                gone = self._let_go(base)
        del gone, file  # outside the lock

    def forget_all(self) -> None:
        """Drops all of this process's mappings: another process removed the files."""
        with self._lock:
            self._forgotten += 1
            gone = [self._let_go(base) for base in list(self._mapped)]
            self._bases = []
        del gone

    def forget_below(self, offset: int) -> None:
        """Drops this process's mappings of files that end at or below `offset`; another process unlinked them."""
        with self._lock:
            last = offset - self.file_bytes
            gone = [self._let_go(base) for base in list(self._mapped) if base <= last]
            self._bases = self._bases[bisect_right(self._bases, last) :]
        del gone
