"""The files of the timer: a block for each 65,536 queue offsets of its queue (docs/delay.md, docs/format.md).

A block says which of its messages left the timer's queue, and, once all of them are dispatched, in which order they are
due. Everything in it can be read again from the log and the consume queue, so a block that is lost or damaged costs
time and no message.

A kill leaves a file in tmp/, which the next load removes, or a block whose header is not written yet. Such a block is
not valid, so the first process of the store reads its notes from the log before it writes the header.
"""

from __future__ import annotations

from pathlib import Path

from cystore._native.derived.delay import TimerBlock
from cystore._native.memory.mapping import MappedFile
from cystore.engine.files.segments import Mode, file_name
from cystore.errors import StoreError
from cystore.layout import CONSTANTS
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.system.threads import os_threads

DIRECTORY = "timer"
MESSAGES = CONSTANTS["TIMER_BLOCK_MESSAGES"][0]
BLOCK_BYTES = CONSTANTS["TIMER_BLOCK_BYTES"][0]


def begin_of(queue_offset: int) -> int:
    """The first queue offset of the block of a queue offset."""
    return queue_offset - queue_offset % MESSAGES


class TimerBlocks:
    """The blocks of one store in one process. Mappings last as long as the blocks are in use."""

    def __init__(self, root: Path, mode: Mode) -> None:
        self._root, self._mode = root, mode
        self.folder = root / DIRECTORY
        self._lock = os_threads.Lock()
        self._blocks: dict[int, TimerBlock] = {}

    def find(self, begin: int) -> TimerBlock | None:
        """The block that begins there; None if there is no valid one."""
        found = self._blocks.get(begin)
        if found is None or (found.file.in_memory and self._mode is Mode.READ):
            with self._lock:
                found = self._mapped(begin) or self._blocks.get(begin)
                if found is not None and found.valid:
                    self._blocks[begin] = found
        return found if found is not None and found.valid else None

    def make(self, begin: int) -> TimerBlock:
        """The block that begins there, made if need be. Its whole space is reserved, so that no later note fails on a
        full disk. Raises StoreFullError."""
        found = self.find(begin)
        if found is None:
            found = self._made(begin, replace=False)
            found.make()  # another process may write the same header now
        return found

    def remake(self, begin: int) -> TimerBlock:
        """A block without notes and without a valid header, in the place of a lost or damaged one. Only for the first
        process of the store: another one would keep the file that this one replaces. Raises StoreFullError."""
        return self._made(begin, replace=True)

    def _made(self, begin: int, *, replace: bool) -> TimerBlock:
        with self._lock:
            if self._mode is Mode.WRITE:
                path = self._path(begin)
                files.create_sized(self._root, path, BLOCK_BYTES, BLOCK_BYTES, replace=replace)
                block = TimerBlock(files.map_file(path, begin, BLOCK_BYTES), begin)
            else:
                block = TimerBlock(MappedFile.anonymous(begin, BLOCK_BYTES), begin)
            self._blocks[begin] = block
            return block

    def _path(self, begin: int) -> Path:
        return self.folder / file_name(begin)

    def _mapped(self, begin: int) -> TimerBlock | None:
        """A process that does not write to the store has its own copies of the pages that it changes."""
        try:
            file = files.map_file(self._path(begin), begin, BLOCK_BYTES, private=self._mode is not Mode.WRITE)
        except FileNotFoundError:
            return None
        except StoreError as error:
            if is_missing(error):
                return None
            if type(error) is StoreError:  # another length
                return None
            raise
        return TimerBlock(file, begin)

    def sync(self) -> None:
        """Makes all notes durable, whichever process wrote them. The caller has the deliver lock. Raises
        SyncFailedError."""
        for begin in self._begins():
            block = self.find(begin)
            if block is not None:
                block.sync()

    def remove_below(self, queue_offset: int) -> int:
        """Removes the blocks that end at or before a queue offset, which no message of the log has any more. Returns
        their number."""
        gone = [begin for begin in self._begins() if begin + MESSAGES <= queue_offset]
        for begin in gone:
            files.remove(self._path(begin), durable=False)
            self._blocks.pop(begin, None)
        return len(gone)

    def _begins(self) -> list[int]:
        try:
            found = files.names(self.folder)
        except StoreError as error:
            if is_missing(error):
                return []
            raise
        except FileNotFoundError:
            return []
        return sorted(int(name) for name in found if len(name) == len(file_name(0)) and name.isdecimal())
