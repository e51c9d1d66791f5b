"""Extended units of consume queues as recovery and scrub read them: with pread, without trusting a unit."""

from __future__ import annotations

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Iterable
from pathlib import Path

from cystore._native.derived import queue_ext
from cystore.derived.files.consume_queue_ext import DIRECTORY, ExtUnit
from cystore.engine.files.segments import POSITIONS_END, base_of_name, file_name
from cystore.recovery.walk.log_visitor import Key
from cystore.system import files

BLOCK_BYTES = 64 * 1024  # twice as much is read at once, so that a whole unit is in it
BLOCKS_KEPT = 64


class UnitReader:
    """The units of all queues of a store. A walk that reads units in their order reads each block once."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._bases: dict[Key, list[int]] = {}
        self._blocks: OrderedDict[tuple[Key, int], bytes] = OrderedDict()

    def bases(self, key: Key) -> list[int]:
        """The positions at which the files of a queue begin, ascending."""
        if key not in self._bases:
            listed = files.entries(self._folder(key))
            self._bases[key] = sorted(
                base for entry in listed if (base := base_of_name(entry.name)) is not None
            )
        return self._bases[key]

    def path(self, key: Key, base: int) -> Path:
        """The path of the file that begins at `base`."""
        return self._folder(key) / file_name(base)

    def base_of(self, key: Key, position: int) -> int | None:
        """Where the file that holds a position begins; None if all files begin behind it."""
        bases = self.bases(key)
        at = bisect_right(bases, position)
        return bases[at - 1] if at else None

    def unit(self, key: Key, address: int) -> ExtUnit | None:
        """The unit at an address; None where no whole unit is."""
        data = self._from(key, queue_ext.position_of(address))
        status, size_bytes, tags_code, store_timestamp_ms, bitmap = queue_ext.read(data)
        return ExtUnit(size_bytes, tags_code, store_timestamp_ms, bitmap) if status == "ok" else None

    def limit(self, key: Key, addresses: Iterable[int]) -> int:
        """The position behind the unit of the newest entry that has one; the addresses come newest first. Behind a
        damaged unit of unknown length it is the begin of the next file."""
        for address in addresses:
            position = queue_ext.position_of(address)
            unit = self.unit(key, address)
            if unit is not None:
                return position + unit.size_bytes
            if self._from(key, position):
                return next((base for base in self.bases(key) if base > position), POSITIONS_END)
        return 0

    def problem(self, key: Key, address: int, tags_code: int | None, store_timestamp_ms: int) -> str:
        """Says how the unit at an address disagrees with a record; empty if it agrees. `tags_code` None: any."""
        unit = self.unit(key, address)
        if unit is None:
            return "points to no extended unit"
        if unit.store_timestamp_ms != store_timestamp_ms or tags_code not in (None, unit.tags_code):
            return "points to the extended unit of another record"
        return ""

    def _folder(self, key: Key) -> Path:
        return self._root / DIRECTORY / key[0] / str(key[1])

    def _from(self, key: Key, position: int) -> memoryview:
        """The bytes of a file from a position on; none where no file is."""
        base = self.base_of(key, position)
        if base is None:
            return memoryview(b"")
        begin = position - (position - base) % BLOCK_BYTES
        return memoryview(self._block(key, base, begin))[position - begin :]

    def _block(self, key: Key, base: int, begin: int) -> bytes:
        """The bytes of a file from position `begin` of the queue on; empty behind the end of the file."""
        kept = self._blocks.pop((key, begin), None)
        if kept is None:
            path = self.path(key, base)
            try:
                with files.opened(path) as fd:
                    kept = files.pread_full(fd, begin - base, 2 * BLOCK_BYTES, path)
            except FileNotFoundError:  # the cleaner has removed it
                kept = b""
        self._blocks[key, begin] = kept
        if len(self._blocks) > BLOCKS_KEPT:
            self._blocks.popitem(last=False)
        return kept
