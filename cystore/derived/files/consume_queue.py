"""Consume queues: the place, length and tags code of each record of a (topic, queue id) (ConsumeQueue).

Entries are fixed in size and derived from the log. The holder of the dispatch lock writes them, at `dispatched`, and
publishes that position; readers do not look behind it. Space is reserved in steps before it is written, so a full disk
is a StoreFullError here and never a signal.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from cystore._native.derived import queue as kernel
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue_ext import ConsumeQueueExt
from cystore.derived.files.pace import Pace
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.segments import MappedFileQueue, Mode
from cystore.errors import OffsetError, StoreFormatError, StoreFullError, StoreIOError, SyncFailedError
from cystore.layout import CONSTANTS
from cystore.system.file_system import FileSystem
from cystore.system.os_errors import is_missing
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

DIRECTORY = "consumequeue"
MANY_DIRTY = 256  # queues that are synced together
FEW_QUEUES = 64  # up to this number the kernel may read whole files ahead
ENTRY_BYTES = CONSTANTS["QUEUE_ENTRY_BYTES"][0]
PAGE_BYTES = 4 * 1024
FIRST_STEP_BYTES = 4 * 1024
LAST_STEP_BYTES = 1024 * 1024
FAST_STEP_BYTES = (
    5 * 1024 * 1024
)  # more, of a queue that grows fast in long steps: a whole file of RocketMQ's length; some 1 ms
MAX_OPEN = 16384  # queues with files mapped in one process; a process may have some 65,000 mappings in all


class QueueEntry(NamedTuple):
    """The place of a message: `physical_offset` and `size_bytes` of its record, and its tags code, or the value that
    replaces the tags code."""

    physical_offset: int
    size_bytes: int
    tags_code: int


class ConsumeQueue:
    """One queue. Offsets count messages; positions are bytes, `20 * offset`."""

    def __init__(
        self,
        root: Path,
        topic: str,
        queue_id: int,
        slot: int,
        config: StoreConfig,
        mode: Mode,
        control: Control,
        mappings: Mappings | None = None,
    ) -> None:
        self.topic, self.queue_id, self.slot = topic, queue_id, slot
        self._control = control
        self.files = MappedFileQueue(
            root,
            root / DIRECTORY / topic / str(queue_id),
            control.consume_queue_file_bytes,
            mode,
            mappings=mappings,
            max_mapped=2,
            durable_names=False,
            odd_files="remove",
            scattered=control.queue_count > FEW_QUEUES,
        )
        if self.files.file_bytes % ENTRY_BYTES:
            raise StoreFormatError(
                f"consume queue files have {self.files.file_bytes} bytes, which is no multiple of an entry",
                path=self.files.directory,
            )
        self.ext = (
            ConsumeQueueExt(root, topic, queue_id, config, mode, mappings)
            if config.enable_consume_queue_ext
            else None
        )
        self._pace = Pace()
        self._removals = control.queue_removals(slot)
        # The file used last, and the count of removals when it was found: another thread may put an older one here.
        self._last: tuple[int, MappedFile] | None = None

    @property
    def min_offset(self) -> int:
        """The lowest offset that can be read."""
        return self._control.queue_minimum(self.slot)

    @property
    def max_offset(self) -> int:
        """The offset behind the last entry."""
        return self._control.queue_dispatched(self.slot)

    def file_of(self, queue_offset: int) -> MappedFile | None:
        """The mapped file that holds an entry; None without one."""
        position = queue_offset * ENTRY_BYTES
        removals = self.notice_removal()
        last = self._last
        if last is not None and last[0] == removals and last[1].base <= position < last[1].end:
            return last[1]
        found = self.files.get(self.files.base_of(position))
        if found is not None:
            self._last = removals, found
        return found

    def entry(self, queue_offset: int) -> QueueEntry | None:
        """The entry of an offset; None for a hole, or if a cleaner removes the file meanwhile. Raises OffsetError if
        there is no entry."""
        inside = 0 <= queue_offset < self.max_offset
        file = self.file_of(queue_offset) if inside else None
        if file is None:
            if inside and queue_offset < self.min_offset:
                return None
            raise OffsetError(f"no entry for queue offset {queue_offset}", path=self.files.directory)
        found = kernel.entry_at(file, queue_offset * ENTRY_BYTES - file.base)
        return None if found is None else QueueEntry(*found)

    def entries(self, begin: int, end: int) -> Iterator[tuple[int, QueueEntry | None]]:
        """(offset, entry) from `begin` to before `end`, as far as entries exist."""
        for queue_offset in range(max(begin, self.min_offset), min(end, self.max_offset)):
            yield queue_offset, self.entry(queue_offset)

    def has_files(self) -> bool:
        """Whether the queue has any file."""
        return bool(self.files.bases() or self.files.refresh())

    # ------------------------------------------------------------------- under the dispatch lock

    def prepare(self, position: int) -> MappedFile:
        """The file for the next entry, which goes to `position`: made if need be, with space for the entry.

        A queue that begins inside a file is filled up to its first entry with pre-blank entries, as RocketMQ does; a
        kill before the last of them is written leaves the filling to be done again. Raises StoreFullError.
        """
        base = self.files.base_of(position)
        return self.files.prepared(base, lambda: self._made(base, position))

    def _made(self, base: int, position: int) -> MappedFile:
        self.notice_removal()
        file = self.files.get(base)
        if file is not None and not self.files.is_there(
            file
        ):  # another thread found the file before it was removed
            self.forget(position // ENTRY_BYTES)
            file = self.files.get(base)
        if file is None:
            file = self.files.create(base, _stepped(0, position - base + ENTRY_BYTES, self.files.file_bytes))
        file.mark_written()
        inside = position - base
        if not file.in_memory:
            file.expect_scattered(inside)  # there is nothing to read ahead
        self.allocate(position)
        if (
            inside
            and position == ENTRY_BYTES * self.min_offset
            and not any(file.read(inside - ENTRY_BYTES, ENTRY_BYTES))
        ):
            kernel.put_holes(file, 0, inside // ENTRY_BYTES)
        return file

    def notice_removal(self) -> int:
        """Ends the mappings of files that another process has removed, or made anew. Returns the queue's count of
        removals, as read before."""
        removals = self._control.queue_removals(self.slot)
        if removals != self._removals:
            self._last = None
            self.files.forget_all()
            if self.ext is not None:
                self.ext.files.forget_all()
            self._removals = removals  # last, so that no other thread takes the old mappings for new ones
        return removals

    def allocate(self, position: int) -> None:
        """Reserves space for the entry at `position` and some behind it. Raises StoreFullError."""
        base = self.files.base_of(position)
        allocated = max(self._control.queue_allocated(self.slot), base)
        needed = position + ENTRY_BYTES
        if needed <= allocated:
            return
        begin, file_bytes = allocated - base, self.files.file_bytes
        end = _stepped(begin or self._first_step(base), needed - base, file_bytes)
        is_fast = self._pace.is_fast(end - (needed - base)) and self.files.mode is Mode.WRITE
        if is_fast and end - begin >= LAST_STEP_BYTES:
            end = min(end + FAST_STEP_BYTES, file_bytes)
        zeros_from = position - base if is_fast else None
        try:
            self.files.allocate(base, begin, end, zeros_from)
        except StoreFullError:
            end = min(-(-(needed - base) // PAGE_BYTES) * PAGE_BYTES, file_bytes)  # only for this entry
            self.files.allocate(base, begin, end, zeros_from)
        self._control.set_queue_allocated(self.slot, base + end)

    def _first_step(self, base: int) -> int:
        """How much of a new file is reserved at once: a long step if the queue filled the file before it."""
        return LAST_STEP_BYTES if ENTRY_BYTES * self.min_offset < base else 0

    def remade(self, queue_offset: int) -> MappedFile:
        """The file that now has the name of an entry's file, with space for all its entries; made again if another
        process removed it."""
        base = self.files.base_of(queue_offset * ENTRY_BYTES)
        return self.files.prepared(base, lambda: self._made_again(base, queue_offset))

    def _made_again(self, base: int, queue_offset: int) -> MappedFile:
        self.forget(queue_offset)
        end = _stepped(
            0, min(self.max_offset * ENTRY_BYTES - base, self.files.file_bytes), self.files.file_bytes
        )
        file = self.files.get(base)
        if file is not None:
            self.files.allocate(base, 0, end)
            return file
        file = self.files.create(base, end)
        blank = self.min_offset * ENTRY_BYTES - base
        if blank > 0:
            kernel.put_holes(file, 0, blank // ENTRY_BYTES)
        return file

    def forget(self, queue_offset: int) -> None:
        """Ends this process's mapping of the file that holds an entry: its name may lead to another file by now."""
        self._last = None
        self.files.forget(self.files.base_of(queue_offset * ENTRY_BYTES))

    def forget_everywhere(self) -> None:
        """Under the dispatch lock: makes every process look for the queue's files by their names again, and reserve
        space there."""
        self._control.count_queue_removal(self.slot)
        self._control.set_queue_allocated(self.slot, self.max_offset * ENTRY_BYTES)

    def fill_gap(self, queue_offset: int) -> None:
        """Enters holes up to an offset whose predecessors are lost. In a queue without entries the offset becomes the
        first one."""
        control, slot = self._control, self.slot
        if not self.has_files():
            control.set_queue_minimum(slot, queue_offset)
            control.set_queue_dispatched(slot, queue_offset)
            return
        at = control.queue_dispatched(slot)
        while at < queue_offset:
            file = self.prepare(at * ENTRY_BYTES)
            end = min(queue_offset, file.end // ENTRY_BYTES)
            self.allocate((end - 1) * ENTRY_BYTES)
            kernel.put_holes(file, at * ENTRY_BYTES - file.base, end - at)
            at = end
            control.set_queue_dispatched(slot, at)

    def overwrite_with_holes(self, begin: int, end: int) -> None:
        """PRIVATE: turns [begin, end) into hole entries in this process's view, where recovery would have written
        them."""
        while begin < end:
            file = self.file_of(begin)
            if file is None:
                return
            stop = min(end, file.end // ENTRY_BYTES)
            file.mark_written()
            kernel.put_holes(file, begin * ENTRY_BYTES - file.base, stop - begin)
            begin = stop

    def next_message(self, begin: int, end: int) -> int | None:
        """The first offset of [begin, end) that stands for a message."""
        while begin < end:
            file = self.file_of(begin)
            if file is None:
                return None
            first, stop = begin * ENTRY_BYTES - file.base, min(end * ENTRY_BYTES, file.end) - file.base
            at = kernel.step_over_holes(file, first, stop)
            if at >= 0:
                return (file.base + at) // ENTRY_BYTES
            begin = (file.base + stop) // ENTRY_BYTES
        return None

    def previous_message(self, begin: int, end: int) -> int | None:
        """The last offset of [begin, end) that stands for a message."""
        while begin < end:
            file = self.file_of(end - 1)
            if file is None:
                return None
            first, stop = max(begin * ENTRY_BYTES, file.base) - file.base, end * ENTRY_BYTES - file.base
            at = kernel.step_over_holes(file, first, stop, backwards=True)
            if at >= 0:
                return (file.base + at) // ENTRY_BYTES
            end = (file.base + first) // ENTRY_BYTES
        return None

    def next_file_offset(self, queue_offset: int) -> int:
        """The first offset of the file behind the one that holds an offset (ConsumeQueue.rollNextFile)."""
        return (self.files.base_of(queue_offset * ENTRY_BYTES) + self.files.file_bytes) // ENTRY_BYTES

    def offset_at(self, physical_offset: int) -> int:
        """The first offset whose message is at or behind a log position; the end if there is none."""
        low, high = self.min_offset, self.max_offset
        while low < high:
            middle = (low + high) // 2
            at = self.next_message(middle, high)
            if at is None:
                high = middle
                continue
            entry = self.entry(at)
            if entry is not None and entry.physical_offset < physical_offset:
                low = at + 1
            else:
                high = middle
        return low

    def remove_expired(self) -> int:
        """Unlinks the files that lie completely below the minimum offset, extended ones too, but never the last;
        returns their number."""
        minimum = self.min_offset
        removed = self.files.remove_below(minimum * ENTRY_BYTES)
        if removed and self.ext is not None:
            at = self.next_message(minimum, self.max_offset)  # None too if somebody removed its file
            first = None if at is None else self.entry(at)
            if first is not None:
                removed += self.ext.remove_below(first.tags_code)
        return removed

    def remove_unused(self) -> int:
        """Under the dispatch lock: removes all files and the folders of a queue without messages; returns the number of
        files. The next entry makes them anew.

        From the first step on every dispatcher opens the file of the next entry by its name. A kill half-way leaves
        files with entries below the minimum; the next removal takes them, or they stay like those of other queues.
        """
        control, slot = self._control, self.slot
        if self.min_offset < self.max_offset:
            return 0  # a message was appended since
        control.set_queue_allocated(slot, -1)
        control.count_queue_removal(slot)
        failpoint("queue.removal_begun")
        self.notice_removal()
        removed = 0
        for listed in (self.files, *((self.ext.files,) if self.ext is not None else ())):
            for base in listed.refresh():
                listed.remove(base, durable=False)
                removed += 1
                failpoint("queue.file_removed")
            listed.remove_folders()
        control.set_queue_allocated(slot, kernel.NO_FILES)
        control.count_queue_removal(slot)  # a process that mapped a file again meanwhile drops it
        self.notice_removal()
        return removed

    def end_of_last_record(self) -> int:
        """Physical offset behind the newest record that has an entry; 0 if there is none."""
        last = self.previous_message(self.min_offset, self.max_offset)
        entry = None if last is None else self.entry(last)
        return 0 if entry is None else entry.physical_offset + entry.size_bytes

    def prepare_ext(self, position: int) -> tuple[MappedFile, int, int]:
        """The extended file for the next unit, the unit's place in the queue (`position` if that is known, else below
        0), and the position up to which space is reserved. Raises StoreFullError."""
        if self.ext is None:
            raise StoreFormatError(
                "the queue is open without its extended units (enable_consume_queue_ext)",
                path=self.files.directory,
            )
        if position < 0:
            numbers = range(self.max_offset - 1, self.min_offset - 1, -1)
            newest_first = ((number, self.entry(number)) for number in numbers)
            position = self.ext.next_position(
                (number, entry.tags_code) for number, entry in newest_first if entry is not None
            )
        file, allocated = self.ext.prepare(position)
        return file, position, allocated

    # ------------------------------------------------------------------------------------- flush

    def close(self) -> None:
        """Lets its mappings go."""
        self._last = None
        self.files.close()
        if self.ext is not None:
            self.ext.files.close()

    def flush(self) -> None:
        """Makes all entries durable, and the names of files that had none before. Raises OSError."""
        begin, end = self._control.queue_flushed(self.slot), self.max_offset
        if begin >= end:
            return
        removals = (
            self.notice_removal()
        )  # after `end` is read: the files that are mapped now have these entries
        bases = range(self.files.base_of(begin * ENTRY_BYTES), end * ENTRY_BYTES, self.files.file_bytes)
        synced = [file for base in bases if (file := self.files.get(base)) is not None]
        for file in synced:
            file.sync()
        # A queue whose messages are all lost in damage has no file yet.
        if synced and (begin <= self.min_offset or bases[-1] >= begin * ENTRY_BYTES):
            try:
                self.files.sync_names()
            except StoreIOError as error:
                removed = self._control.queue_removals(self.slot) != removals
                if not (removed and is_missing(error)):
                    raise
        if self.ext is not None:
            first = self._first_entry(max(begin, self.min_offset), end, synced)
            if first is not None:
                self.ext.flush(first.tags_code)
        self._control.set_queue_flushed(self.slot, end)

    @staticmethod
    def _first_entry(begin: int, end: int, there: list[MappedFile]) -> QueueEntry | None:
        """The first entry of a message from offset `begin` to before `end`, in the files `there`: other files may be
        deleted."""
        for file in there:
            for at in range(
                max(begin * ENTRY_BYTES, file.base), min(end * ENTRY_BYTES, file.end), ENTRY_BYTES
            ):
                found = kernel.entry_at(file, at - file.base)
                if found is not None:
                    return QueueEntry(*found)
        return None


def _stepped(allocated: int, needed: int, file_bytes: int) -> int:
    """The position up to which a file with `allocated` bytes is reserved next: steps of 4 KiB that double to 1 MiB.
    Each takes some 0.2 ms, and a busy program may keep the dispatcher waiting for the interpreter 5 ms more."""
    while allocated < needed:
        allocated += min(max(allocated, FIRST_STEP_BYTES), LAST_STEP_BYTES)
    return min(allocated, file_bytes)


class ConsumeQueues:
    """All queues of a store, opened when they are used; the `MAX_OPEN` used last stay open. Safe for threads."""

    def __init__(
        self,
        root: Path,
        config: StoreConfig,
        mode: Mode,
        control: Control,
        mappings: Mappings | None = None,
    ) -> None:
        self._mappings = mappings
        self._root, self._config, self._mode, self._control = root, config, mode, control
        self._open: OrderedDict[int, ConsumeQueue] = OrderedDict()
        self._file_system = FileSystem(root)
        self._lock = os_threads.RLock()  # a signal handler of the same thread reads, too

    def get(self, slot: int) -> ConsumeQueue:
        """The queue in a slot of the control block's table."""
        with self._lock:
            opened = self._open
            queue = opened.get(slot)
            if queue is None:
                topic, queue_id, *_ = self._control.queue(slot)
                queue = ConsumeQueue(
                    self._root, topic, queue_id, slot, self._config, self._mode, self._control, self._mappings
                )
                opened[slot] = queue
                # Only private files hold the changes of recovery and dispatch.
                while len(opened) > MAX_OPEN and self._mode is not Mode.PRIVATE:
                    opened.popitem(last=False)[1].close()
            else:
                opened.move_to_end(slot)
                queue.notice_removal()
            return queue

    def file_of(self, slot: int, queue_offset: int) -> MappedFile | None:
        """The mapped file of the queue in a slot that holds an entry, None where there is no file."""
        return self.get(slot).file_of(queue_offset)

    def find(self, topic: str, queue_id: int) -> ConsumeQueue | None:
        """The queue of a topic, None when it is unknown."""
        slot = self._control.find_queue(topic, queue_id)
        return None if slot < 0 else self.get(slot)

    def flush(self) -> None:
        """Makes every entry dispatched by now durable. Only one process may call it at a time. Raises
        SyncFailedError."""
        slots = kernel.queues_to_flush(self._control)
        if len(slots) < MANY_DIRTY or not self._sync_together(slots):
            for slot in slots:
                self.get(slot).flush()

    def any_dirty(self, least_pages: int) -> bool:
        """Whether a queue has so many dirty pages, or entries beyond the file that was synced last
        (MappedFile.isAbleToFlush)."""
        control, file_bytes = self._control, self._control.consume_queue_file_bytes
        if least_pages == 0:
            return True
        for slot in kernel.queues_to_flush(control):
            flushed = control.queue_flushed(slot) * ENTRY_BYTES
            written = control.queue_dispatched(slot) * ENTRY_BYTES
            if written // file_bytes > flushed // file_bytes:
                return True
            if written // PAGE_BYTES - flushed // PAGE_BYTES >= least_pages:
                return True
        return False

    def _sync_together(self, slots: list[int]) -> bool:
        """One sync of the whole file system instead of thousands of files. False if it fails, or if the kernel would
        not report a failure: then each file is synced by itself and reports its own error."""
        ends = [(slot, self._control.queue_dispatched(slot)) for slot in slots]
        try:
            if self._mode is not Mode.WRITE or not self._file_system.sync():
                return False
        except SyncFailedError:
            log.exception("%s: the sync of the file system failed; syncing each queue by itself", self._root)
            return False
        for slot, end in ends:
            self._control.set_queue_flushed(slot, end)
        return True

    def close(self) -> None:
        """Lets all mappings go. Takes no lock: in a forked child the lock may be held by a thread of the parent."""
        opened, self._open = self._open, OrderedDict()
        for queue in opened.values():
            queue.close()
        self._file_system.close()
