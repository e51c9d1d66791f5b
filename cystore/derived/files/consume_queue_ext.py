"""Extended consume queues: a tags code, a store time and a filter bitmap for each entry of a queue (RocketMQ's
ConsumeQueueExt).

The queue's entry holds the address of its unit instead of the tags code. Units are weakly reliable by design: a reader
that cannot find one uses the message itself. A unit is written before its entry, so bytes behind the last entry's unit,
left by a kill, are overwritten.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from cystore._native.derived import queue_ext
from cystore._native.memory.mapping import MappedFile
from cystore.config import StoreConfig
from cystore.engine.files.mappings import Mappings
from cystore.engine.files.segments import MappedFileQueue, Mode
from cystore.errors import CorruptRecordError, StoreError

DIRECTORY = "consumequeue_ext"
ALLOCATE_BYTES = 64 * 1024
END_BYTES = 4  # a unit leaves this room for the end mark of its file


class ExtUnit(NamedTuple):
    """`size_bytes` of the unit, the message's `tags_code` and `store_timestamp_ms`, and the filter `bitmap` (may be
    empty)."""

    size_bytes: int
    tags_code: int
    store_timestamp_ms: int
    bitmap: bytes


class ConsumeQueueExt:
    """The units of one queue."""

    def __init__(
        self,
        root: Path,
        topic: str,
        queue_id: int,
        config: StoreConfig,
        mode: Mode,
        mappings: Mappings | None = None,
    ) -> None:
        self.files = MappedFileQueue(
            root,
            root / DIRECTORY / topic / str(queue_id),
            config.mapped_file_size_consume_queue_ext_bytes,
            mode,
            mappings=mappings,
            max_mapped=2,
            odd_files="remove",
        )

    def get(self, address: int) -> ExtUnit | None:
        """The unit at an address; None if `address` is a plain tags code, or if its file was removed.

        A place that holds no whole unit raises CorruptRecordError.
        """
        if not queue_ext.is_address(address):
            return None
        position = queue_ext.position_of(address)
        file = self.files.get(self.files.base_of(position))
        if file is None:
            return None
        status, size_bytes, tags_code, store_timestamp_ms, bitmap = queue_ext.read(file, position - file.base)
        if status != "ok":
            raise CorruptRecordError(f"not a valid extended unit: {status}", path=file.path, offset=position)
        return ExtUnit(size_bytes, tags_code, store_timestamp_ms, bitmap)

    def file_of(self, position: int) -> MappedFile | None:
        """The mapped file that holds a position; None without one. A unit that cannot be reached is no error: its
        message is looked at."""
        try:
            return self.files.get(self.files.base_of(position))
        except StoreError:
            return None

    def mend(self, address: int, tags_code: int, store_timestamp_ms: int) -> MappedFile | None:
        """Under the dispatch lock: rewrites a unit in its place; returns its file, None where no whole unit is.

        All bits of its bitmap are set, because the bitmap may be as wrong as the rest: each filter then looks at the
        message itself.
        """
        try:
            unit = self.get(address)
        except CorruptRecordError:
            return None
        position = queue_ext.position_of(address)
        file = None if unit is None else self.files.get(self.files.base_of(position))
        if unit is None or file is None:
            return None
        data = bytearray(unit.size_bytes + END_BYTES)
        queue_ext.put(data, 0, tags_code, store_timestamp_ms, b"\xff" * len(unit.bitmap))
        file.write(position - file.base, bytes(data[: unit.size_bytes]))
        return file

    def next_position(self, newest_first: Iterable[tuple[int, int]]) -> int:
        """The place of the next unit: behind that of the newest entry with a unit. The entries come newest first, each
        as its queue offset and tags code. Behind a unit of unknown length it is a new file: no later unit may take the
        address of one that was damaged or removed, because an entry still leads there."""
        bases = self.files.bases()
        for queue_offset, code in newest_first:
            try:
                unit = self.get(code)
            except CorruptRecordError:
                unit = None
            if unit is not None:
                return queue_ext.position_of(code) + unit.size_bytes
            # An entry takes at most one file; a later address is damage.
            if queue_ext.is_address(code) and self._file_number(code) <= queue_offset:
                return self.files.base_of(queue_ext.position_of(code)) + self.files.file_bytes
        return bases[0] if bases else 0

    def _file_number(self, address: int) -> int:
        return queue_ext.position_of(address) // self.files.file_bytes

    def prepare(self, position: int) -> tuple[MappedFile, int]:
        """The file that holds `position`, made if need be, and the position up to which space is reserved there.

        The file is opened by its name, because another process may have removed it, or made it anew. Raises
        StoreFullError.
        """
        base = self.files.base_of(position)
        upto = min(position - base + ALLOCATE_BYTES, self.files.file_bytes)
        return self.files.prepared(base, lambda: self._made(base, position - base, upto)), base + upto

    def _made(self, base: int, begin: int, upto: int) -> MappedFile:
        self.files.forget(base)
        file = self.files.create(base, upto)
        file.mark_written()
        self.files.allocate(base, begin, upto)
        return file

    def flush(self, address: int) -> None:
        """Makes the unit at an address, and all behind it, durable. Raises OSError."""
        if not queue_ext.is_address(address):
            return
        begin = self.files.base_of(queue_ext.position_of(address))
        for base in self.files.refresh():
            file = self.files.get(base) if base >= begin else None
            if file is not None:
                file.sync()

    def remove_below(self, address: int) -> int:
        """Unlinks the files before the one of a unit's address, but never the last; returns their number."""
        return self.files.remove_below(queue_ext.position_of(address)) if queue_ext.is_address(address) else 0
