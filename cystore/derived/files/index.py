"""Index files: from a topic and key to the records that hold it (RocketMQ's IndexService and IndexFile).

Files follow each other by name, the local time of their creation; keys are entered into the newest until it is full.
The index is derived from the log: entries at or past a log position are taken back (`trim`) before the log is
dispatched again from there, so no key is entered twice.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path

from cystore import clock
from cystore._native.derived import index as kernel
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig
from cystore.derived.files.index_layout import (
    ENTRY_BYTES,
    HEADER_BYTES,
    SLOT_BYTES,
    IndexHeader,
    file_length,
    header_of,
    read_header,
    shape_in_file,
)
from cystore.derived.files.pace import Pace
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.segments import Mode
from cystore.errors import StoreError, StoreFormatError, StoreFullError, StoreIOError, StoreResourceError
from cystore.layout import INDEX_ENTRY, INDEX_HEADER, field_of
from cystore.system import files
from cystore.system.folders import check_place
from cystore.system.os_errors import is_missing, lacks_descriptor
from cystore.system.ranges import unreadable_ranges
from cystore.system.ranges.changed_lengths import has_length, mend_length
from cystore.system.ranges.pages_ahead import fault_in
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

DIRECTORY = "index"
NAME_DIGITS = 17
# Room for entries is reserved in steps that double.
FIRST_STEP_BYTES, ALLOCATE_BYTES, PAGE_BYTES = 64 * 1024, 4 * 1024 * 1024, 4 * 1024
_END_AT, _END_OFFSET = field_of("index_header", "end_physical_offset")
_USED_SLOTS_AT, _ = field_of("index_header", "used_slots")


def _nothing() -> None:
    """Stands for a mapping that does not exist."""


class IndexFile:
    """One index file. `name` is its file name as a number; `slots` and `capacity` are its own, whatever the settings
    say.

    A `sealed` file is not the newest, and no process writes to it.
    """

    def __init__(self, owner: IndexFiles, name: int, slots: int, capacity: int, *, sealed: bool) -> None:
        self._owner, self.name, self.slots, self.capacity, self.sealed = owner, name, slots, capacity, sealed

    def look(self) -> MappedFile | None:
        """The mapping, which a caller keeps while it works on it. Maps the file if it is not mapped; None if it was
        cleaned."""
        return self._owner.look(self)

    def peek(self) -> IndexHeader | None:
        """The header, read without mapping the file; None if it was cleaned."""
        return self._owner.peek(self)

    @property
    def file(self) -> MappedFile:
        """The mapping of a file that must be there. Raises StoreIOError."""
        found = self.look()
        if found is None:
            raise StoreIOError(
                "an index file was removed while it was used", path=f"{self.name:0{NAME_DIGITS}d}"
            )
        return found

    @property
    def header(self) -> IndexHeader:
        """The header as it is now."""
        return read_header(self.file)

    @property
    def end_physical_offset(self) -> int:
        """The header's end offset, read alone because dispatch needs it each time it begins."""
        return _END_OFFSET.unpack(self.file.read(_END_AT, _END_OFFSET.size))[0]

    def set_bounds(self, header: IndexHeader) -> None:
        """Writes the first four fields; the counts belong to the kernel."""
        self.file.write(0, INDEX_HEADER.pack(*header)[:_USED_SLOTS_AT])

    def entry(self, number: int) -> tuple[int, int, int, int]:
        """(key hash, physical offset, seconds, previous entry) of an entry."""
        at = HEADER_BYTES + SLOT_BYTES * self.slots + ENTRY_BYTES * number
        return INDEX_ENTRY.unpack(self.file.read(at, ENTRY_BYTES))

    @property
    def is_full(self) -> bool:
        """Whether there is no room for another entry."""
        return self.header.next_entry >= self.capacity


# An index file with its slots and capacity for the kernel: a reference to its mapping, and the function that maps it
# again.
Shape = tuple[Callable[[], MappedFile | None], int, int, Callable[[], MappedFile | None]]


class IndexFiles:
    """All index files of a store. Queries run beside dispatch; changes of files need the dispatch lock.

    `mappings` keeps the mappings within the budget that they share with log and queues. Mappings of unflushed files
    stay, and those of changed private memory.
    """

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        mode: Mode,
        control: Control,
        mappings: Mappings | None = None,
    ) -> None:
        self.directory = root / DIRECTORY
        self._root, self._mode, self._control = root, mode, control
        self._slots, self._capacity = config.max_hash_slot_num, config.max_index_num
        self._lock = os_threads.RLock()  # a signal handler of the same thread reads, too
        self._files: list[IndexFile] = []  # ascending by name; replaced as a whole, never changed
        self._shapes: tuple[list[IndexFile], list[Shape]] = ([], [])  # of these very files
        self._seen = -1  # index_seq when the files were listed
        self._dropped: set[int] = set()  # PRIVATE: files that are gone for this process only
        self._imagined: dict[int, MappedFile] = {}  # PRIVATE: files that exist in memory only
        self._mappings = mappings or Mappings.of(config)
        self._number, self._pace = Mappings.number(), Pace()
        # Recovery has corrected all files: a file of another length was changed since.
        self.recovered = False

    # -------------------------------------------------------------------------------------- files

    def files(self) -> list[IndexFile]:
        """The existing files, oldest first. Raises StoreFormatError for a name or a length that no index file has."""
        seen = self._control.index_seq
        if seen != self._seen:
            with self._lock:
                self._files = self._list()
                self._seen = seen
        return self._files

    def shapes(self) -> list[Shape]:
        """The files for the kernel's search, newest first."""
        listed, (known, shapes) = self.files(), self._shapes
        if known is not listed:
            shapes = [(_nothing, file.slots, file.capacity, file.look) for file in reversed(listed)]
            self._shapes = listed, shapes
        return shapes

    def _list(self) -> list[IndexFile]:
        known = {file.name: file for file in self._files}
        names = set(self._imagined)
        for entry in files.entries(self.directory):
            if (
                len(entry.name) != NAME_DIGITS
                or not entry.name.isascii()
                or not entry.name.isdecimal()
                or not entry.is_file(follow_symlinks=False)
            ):
                raise StoreFormatError("not a valid name of an index file; move it away", path=entry.path)
            names.add(int(entry.name))
        found = sorted(names - self._dropped)
        for name in {*known}.difference(found).union(self._replaced()):
            self._mappings.drop(self._number, name)
            del known[name]
        opened = [known.get(name) or self._open(name, sealed=name != found[-1]) for name in found]
        listed = self._with_newest([file for file in opened if file is not None])
        if not listed and self._mode is not Mode.PRIVATE:
            check_place(self._root)  # a deleted directory has no index files either
        return listed

    def _replaced(self) -> list[int]:
        """The known files whose mappings are of removed files: another process took back all their entries, and gave
        the same names to new files within the same millisecond. It removes the newest files only."""
        found: list[int] = []
        for file in reversed(self._files if self._mode is not Mode.PRIVATE else []):
            mapped = self._mappings.get(self._number, file.name)
            if mapped is not None:
                if files.is_at(self._path(file.name), mapped):
                    break
                found.append(file.name)
        return found

    def _with_newest(self, listed: list[IndexFile]) -> list[IndexFile]:
        """Maps the last file once more if it was not the last before, because it may be written now."""
        while listed and self._mode is not Mode.PRIVATE:
            newest = listed[-1]
            if newest.sealed:
                newest.sealed = False
                self._mappings.drop(self._number, newest.name)
            if newest.look() is not None:
                break
            listed = listed[:-1]
        return listed

    def peek(self, file: IndexFile) -> IndexHeader | None:
        """See `IndexFile.peek`."""
        mapped = self._mappings.get(self._number, file.name) or self._imagined.get(file.name)
        if mapped is not None:
            return read_header(mapped)
        data = files.read_if_there(self._path(file.name), first=HEADER_BYTES)
        return None if data is None else header_of(data.ljust(HEADER_BYTES, b"\0"))

    def look(self, file: IndexFile) -> MappedFile | None:
        """See `IndexFile.look`. The mapping becomes the one used last."""
        found = self._mappings.get(self._number, file.name) or self._imagined.get(file.name)
        if found is not None:
            return found
        with self._lock:
            found = self._mappings.get(self._number, file.name) or self._map(file)
            if found is not None:
                self._mappings.keep(self._number, found, self._needed)
            return found

    def _needed(self, file: MappedFile) -> bool:
        """Whether a mapping must stay: changed private memory, and unflushed files. The kernel reports an error of the
        disk only to a mapping that existed when it happened."""
        if file.private:
            return file.touched or (bool(self._files) and self._files[-1].name == file.base)
        end = _END_OFFSET.unpack(file.read(_END_AT, _END_OFFSET.size))[0]
        return file.writable and end >= self._control.index_flushed

    def hide(self, paths: Iterable[Path]) -> None:
        """PRIVATE: leaves out files that recovery would have removed from the disk."""
        self._dropped.update(int(path.name) for path in paths)

    def overwrite(self, path: Path, pieces: Iterable[tuple[int, bytes]]) -> None:
        """PRIVATE: writes (position, bytes) into this process's view of a file, where recovery would have written
        them."""
        for file in self.files():
            if file.name == int(path.name):
                for at, data in pieces:
                    file.file.write(at, data)

    def _path(self, name: int) -> Path:
        return self.directory / f"{name:0{NAME_DIGITS}d}"

    def _open(self, name: int, *, sealed: bool) -> IndexFile | None:
        """An existing file; None if it is gone, or has no entry and another shape than the settings give."""
        path = self._path(name)
        try:
            shape = self._shape(path, path.stat(follow_symlinks=False).st_size)
        except FileNotFoundError:
            return None
        except StoreFormatError:
            if not self.recovered:
                raise
            shape = self._slots, self._capacity
            if not self._mends(path, file_length(*shape)):
                return None
        except OSError as error:
            with files.translated(path):
                raise error
        return None if shape is None else IndexFile(self, name, *shape, sealed=sealed)

    def _map(self, file: IndexFile) -> MappedFile | None:
        """Maps a file; None when it is gone."""
        path, length = self._path(file.name), file_length(file.slots, file.capacity)
        writable, private = self._mode is not Mode.READ, self._mode is Mode.PRIVATE
        while True:
            try:
                with files.translated(path):
                    try:
                        mapped = files.map_file(
                            path, file.name, length, writable=writable, private=private, sealed=file.sealed
                        )
                        break
                    except FileNotFoundError:
                        check_place(self._root)  # else a cleaner removed it
                        return None
            except StoreResourceError as error:
                if lacks_descriptor(error) or not self._mappings.make_room():
                    raise
            except StoreError:
                if not self.recovered or has_length(path, length):
                    raise
                if not self._mends(path, length):
                    return None
        if self._mode is Mode.WRITE and not file.sealed:
            try:
                self._allocate_sparse(path, mapped, file)
            except StoreIOError as error:
                if is_missing(error):
                    return None  # a cleaner removed it after it was mapped
                raise
        return mapped

    def _mends(self, path: Path, length: int) -> bool:
        """Restores the length of a file that a foreign program made shorter or longer: queries find the remaining
        entries. A process that may not write ignores the file."""
        if self._mode is not Mode.WRITE:
            return False
        mend_length(path, length)
        self._control.index_files_changed()  # readers use the file again
        return True

    @staticmethod
    def _allocate_sparse(path: Path, mapped: MappedFile, file: IndexFile) -> None:
        entries_at = HEADER_BYTES + SLOT_BYTES * file.slots
        unreadable_ranges.allocate_sparse(path, mapped, 0, entries_at)
        next_entry = min(read_header(mapped).next_entry, file.capacity)
        end = entries_at + ENTRY_BYTES * next_entry
        unreadable_ranges.allocate_sparse(path, mapped, entries_at, end)
        mapped.expect_scattered(end)  # there is nothing to read ahead

    def _shape(self, path: Path, length: int) -> tuple[int, int] | None:
        """(slots, capacity) of a file: the settings' if its length is theirs, else those that its entries imply."""
        if length == file_length(self._slots, self._capacity):
            return self._slots, self._capacity
        if length <= file_length(1, 1):
            raise StoreFormatError(f"an index file cannot have {length} bytes", path=path)
        has_entries, shape = shape_in_file(path, length)
        if not has_entries:
            return None
        if shape is None:
            raise StoreFormatError(
                f"the file has {length} bytes, not the {file_length(self._slots, self._capacity)} of max_hash_slot_num "
                f"{self._slots} and max_index_num {self._capacity}; set both to the values with which the "
                "index was made",
                path=path,
            )
        log.warning(
            "%s: has %d slots and %d entries; the configuration says %d and %d",
            path,
            *shape,
            self._slots,
            self._capacity,
        )
        return shape

    # ------------------------------------------------------------------- under the dispatch lock

    def newest(self) -> IndexFile | None:
        """The file for new keys; None if none has room."""
        listed = self.files()
        if not listed:
            return None
        newest = listed[-1]
        if self._control.index_base != newest.name:
            self._publish(newest, 0)
        if self._mode is Mode.PRIVATE:
            newest.file.mark_written()  # by the kernel: it must stay mapped
        if len(listed) > 1 and newest.header.next_entry == 1 and newest.header.end_physical_offset == 0:
            self.allocate(newest, HEADER_BYTES)
            self._continue(newest, listed[-2])
        return None if newest.is_full else newest

    def _publish(self, newest: IndexFile | None, allocated: int) -> None:
        """Publishes the newest file, and the part of it that may be written."""
        self._control.index_allocated = allocated
        self._control.index_base = newest.name if newest is not None else 0
        self._seen = self._control.index_seq

    @staticmethod
    def _continue(file: IndexFile, before: IndexFile) -> None:
        """Gives a file without entries the begin and end of an empty one: both are the end of the file before it, or
        zero if that was cleaned."""
        end = before.peek() or IndexHeader(0, 0, 0, 0, 0, 1)
        file.set_bounds(
            IndexHeader(
                end.end_timestamp_ms,
                end.end_timestamp_ms,
                end.end_physical_offset,
                end.end_physical_offset,
                0,
                1,
            )
        )

    def add(self, backlog_bytes: int = 0) -> IndexFile:
        """Makes the file that follows the newest one. Raises StoreFullError.

        After a kill the file may lack its begin and end; `newest` then writes them. The keys of a long backlog of log
        need almost every page of the slots.
        """
        listed = self.files()
        name = _next_name(listed[-1].name if listed else 0)
        length = file_length(self._slots, self._capacity)
        allocated = min(HEADER_BYTES + SLOT_BYTES * self._slots + FIRST_STEP_BYTES, length)
        if self._mode is Mode.PRIVATE:
            self._imagined[name] = MappedFile.anonymous(name, length)
        else:
            self._control.index_files_changed()  # an exception may end this call when the file has its name
            files.create_sized(self._root, self._path(name), length, allocated)
            self._pace.is_fast(0)
        added = IndexFile(self, name, self._slots, self._capacity, sealed=False)
        if listed:
            self._continue(added, listed[-1])
        self._files = [*listed, added]
        self._publish(added, allocated)
        if self._mode is Mode.WRITE and backlog_bytes >= SLOT_BYTES * self._slots:
            fault_in(added.file, 0, HEADER_BYTES + SLOT_BYTES * self._slots)
        return added

    def allocate(self, file: IndexFile, needed: int) -> None:
        """Reserves space in the newest file up to `needed` bytes and some more. Raises StoreFullError."""
        begin = self._control.index_allocated
        entries_at = HEADER_BYTES + SLOT_BYTES * file.slots
        needed = max(needed, entries_at)
        step = min(max(needed - entries_at, FIRST_STEP_BYTES), ALLOCATE_BYTES)
        end = min(needed + step, file.file.length)
        if self._mode is Mode.WRITE:
            if is_fast := self._pace.is_fast(end - needed):
                end = min(end + step, file.file.length)  # each step waits for the interpreter
            with files.opened(self._path(file.name), os.O_RDWR) as fd:
                try:
                    files.allocate(fd, begin, end, file.file.path)
                except StoreFullError:
                    end = min(-(-needed // PAGE_BYTES) * PAGE_BYTES, file.file.length)  # only for this entry
                    files.allocate(fd, begin, end, file.file.path)
                if is_fast:
                    files.write_zeros_ahead(fd, needed, end)
        self._control.index_allocated = end

    def trim(self, physical_offset: int) -> None:
        """Takes back all entries at or past a log position.

        Safe to repeat after a kill at any point: a file's end is corrected last, so until then it shows that there is
        work.
        """
        listed = self.files()
        if listed and listed[-1].look() is None:  # a trim ended before it published the removal
            self._seen = -1
            listed = self.files()
            self._publish(listed[-1] if listed else None, 0)
        while listed:
            newest = listed[-1]
            end = newest.end_physical_offset
            if end >= physical_offset:
                if self._mode is Mode.PRIVATE:
                    newest.file.mark_written()
                left = kernel.trim_file(newest.file, newest.slots, newest.capacity, physical_offset)
                if left:
                    self._end_with(newest, left)
                    break
                if len(listed) == 1:
                    newest.set_bounds(IndexHeader(0, 0, 0, 0, 0, 1))
                    break
                before = listed[-2].peek()
                if before is None or (before.end_physical_offset < physical_offset and before.has_begun):
                    self._continue(newest, listed[-2])
                    break
            elif end > 0 or len(listed) == 1 or newest.header.has_begun:
                break
            self._control.index_files_changed()  # also for this process, if an exception ends this call
            self._remove(newest)
            listed = self._with_newest(listed[:-1])
            self._files = listed
            self._publish(listed[-1] if listed else None, 0)

    @staticmethod
    def _end_with(file: IndexFile, number: int) -> None:
        """Makes an entry the file's last. Only the second of its time is known: the file's end timestamp is the end of
        that second."""
        _, physical_offset, seconds, _ = file.entry(number)
        header = file.header
        latest = header.begin_timestamp_ms + (1000 * seconds + 999 if number > 1 else 0)
        file.set_bounds(
            header._replace(
                end_timestamp_ms=min(latest, header.end_timestamp_ms), end_physical_offset=physical_offset
            )
        )

    def _remove(self, file: IndexFile) -> None:
        if self._mode is Mode.PRIVATE:
            self._dropped.add(file.name)
            self._imagined.pop(file.name, None)
        else:
            files.remove(self._path(file.name))
        self._mappings.drop(self._number, file.name)

    # ------------------------------------------------------------------------------ clean, flush and close

    def remove_below(self, physical_offset: int) -> int:
        """Unlinks the files whose entries all point below a log position, oldest first, but never the newest; returns
        their number. Needs no lock, because dispatch works on the newest ones."""
        old = [
            file
            for file in self.files()[:-1]
            if (header := file.peek()) is not None and header.end_physical_offset < physical_offset
        ]
        for file in old:
            self._remove(file)
        if old:
            self._control.index_files_changed()
        return len(old)

    def flush(self) -> None:
        """Makes every entry dispatched by now durable. Raises OSError."""
        flushed = self._control.index_flushed
        for file in reversed(self.files()):
            header = file.peek()
            if header is None or header.end_physical_offset < flushed:
                break  # those before it are flushed, or cleaned
            mapped = file.look()
            if mapped is None:
                break
            mapped.sync()

    def close(self) -> None:
        """Lets all mappings go."""
        for file in self._files:
            self._mappings.drop(self._number, file.name)
        self._imagined = {}
        self._files, self._seen = [], -1
        self._shapes = [], []


def _next_name(newest: int) -> int:
    """The name of a new file: the present time, or the millisecond after the newest file's name if that name is not
    earlier."""
    name = int(clock.index_file_name(clock.now_ms()))
    if name > newest:
        return name
    from datetime import datetime, timedelta

    text = f"{newest:0{NAME_DIGITS}d}"
    try:
        moment = datetime.strptime(text[:14], "%Y%m%d%H%M%S") + timedelta(milliseconds=int(text[14:]) + 1)
    except ValueError:  # not a date: RocketMQ would not have made it, but it sorts correctly
        return newest + 1
    return int(f"{moment:%Y%m%d%H%M%S}{moment.microsecond // 1000:03d}")
