"""The checkpoint: how far the log, the consume queues and the index are known to be on disk (RocketMQ's
StoreCheckpoint).

One page, mapped and shared by every attached process; the holder of the flush lock writes it. Each field is stored with
one aligned 8-byte store inside one sector, so neither a kill nor a power cut leaves half a number. A kill between two
of the three watermark fields leaves a set that disagrees with the log; recovery notices that and ignores it.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.engine.files.segments import Mode
from cystore.errors import StoreClosedError
from cystore.layout import CONSTANTS, DISK_STRUCTS
from cystore.system import files
from cystore.system.ranges import file_ranges

FILE_NAME = "checkpoint"
FILE_BYTES = CONSTANTS["CHECKPOINT_BYTES"][0]

_FIELDS = {f.name: f for struct_ in DISK_STRUCTS if struct_.name == "checkpoint" for f in struct_.fields}


class CheckpointFields(NamedTuple):
    """The checkpoint's numbers. RocketMQ's own files have zeros behind the three timestamps.

    The timestamps are store timestamps in ms: of the last record known flushed, of the last record whose consume queue
    entry is flushed, and of the last record in a flushed index file. `watermark` is the durable watermark,
    `last_record` the physical offset of the last record below it, `last_record_checksum` that record's checksum field,
    `index_watermark` the physical offset through which index entries are synced. The `clock_` fields are the store's
    clock beside CLOCK_BOOTTIME (clock_keeper.py).
    """

    physic_timestamp: int = 0
    logics_timestamp: int = 0
    index_timestamp: int = 0
    watermark: int = 0
    last_record: int = 0
    last_record_checksum: int = 0
    index_watermark: int = 0
    clock_boot: int = 0
    clock_offset_ms: int = 0
    clock_seen_ms: int = 0
    clock_seen_since_ms: int = 0
    clock_stood_ms: int = 0
    clock_known_ms: int = 0
    clock_check: int = 0


def parse_checkpoint(data: bytes) -> CheckpointFields:
    """The fields in a checkpoint's bytes; fields beyond the end of a short file count as zero."""
    padded = data.ljust(FILE_BYTES, b"\0")
    return CheckpointFields(
        **{
            name: int.from_bytes(padded[f.at : f.at + f.width], "big", signed=not f.unsigned)
            for name, f in _FIELDS.items()
        }
    )


def render_checkpoint(fields: CheckpointFields) -> bytes:
    """The bytes of a checkpoint with these fields."""
    data = bytearray(FILE_BYTES)
    for name, f in _FIELDS.items():
        data[f.at : f.at + f.width] = getattr(fields, name).to_bytes(f.width, "big", signed=not f.unsigned)
    return bytes(data)


def read_checkpoint(root: Path) -> CheckpointFields:
    """The fields of the store's checkpoint; all zero without a checkpoint."""
    return parse_checkpoint(files.read_if_there(root / FILE_NAME, first=FILE_BYTES) or b"")


def _field(name: str) -> property:
    def get(checkpoint: Checkpoint) -> int:
        return checkpoint._get(name)

    def set_(checkpoint: Checkpoint, value: int) -> None:
        checkpoint._set(name, value)

    return property(get, set_, doc=f"{_FIELDS[name].doc}; see CheckpointFields.")


class Checkpoint:
    """The mapped checkpoint. Setting a field publishes it to the page cache, `sync` makes it durable.

    When it opens for writing, it makes a file that is missing or has another length. With Mode.READ it shows the fields
    that other processes set; with Mode.PRIVATE its changes stay in this process.
    """

    def __init__(self, root: Path, mode: Mode) -> None:
        self.path = root / FILE_NAME
        found = files.read_if_there(self.path, first=FILE_BYTES + 1) or b""
        self._file: MappedFile | None
        if mode is Mode.WRITE:
            if len(found) < FILE_BYTES:
                files.write_whole(root, self.path, found.ljust(FILE_BYTES, b"\0"), keep_last=False)
            elif len(found) > FILE_BYTES:  # in place: other processes may have it mapped
                file_ranges.shorten(self.path, FILE_BYTES)
            self._file = files.map_file(self.path, 0, FILE_BYTES)
        elif mode is Mode.READ and len(found) == FILE_BYTES:
            self._file = files.map_file(self.path, 0, FILE_BYTES, writable=False)
        else:
            self._file = MappedFile.anonymous(0, FILE_BYTES, self.path)
            self._file.write(0, found[:FILE_BYTES])

    def _page(self) -> MappedFile:
        file = self._file
        if file is None:
            raise StoreClosedError("the store was closed meanwhile", path=self.path)
        return file

    @property
    def page(self) -> MappedFile:
        """The mapped page. Raises StoreClosedError."""
        return self._page()

    def fields(self) -> CheckpointFields:
        """The present fields."""
        return parse_checkpoint(self._page().read(0, FILE_BYTES))

    def _get(self, name: str) -> int:
        field = _FIELDS[name]
        return int.from_bytes(self._page().read(field.at, field.width), "big", signed=not field.unsigned)

    def _set(self, name: str, value: int) -> None:
        field = _FIELDS[name]
        self._page().store_number(field.at, value, field.width)

    def set_watermark(self, watermark: int, last_record: int, last_record_checksum: int) -> None:
        """Stores the durable watermark with the record that proves it. Call it after the fsync and before any process
        hears of it. Like every other store it is not durable before the next `sync`."""
        self._set("last_record", last_record)
        failpoint("checkpoint.last_record_stored")
        self._set("last_record_checksum", last_record_checksum)
        failpoint("checkpoint.checksum_stored")
        self._set("watermark", watermark)

    physic_timestamp = _field("physic_timestamp")
    logics_timestamp = _field("logics_timestamp")
    index_timestamp = _field("index_timestamp")
    watermark = _field("watermark")
    last_record = _field("last_record")
    last_record_checksum = _field("last_record_checksum")
    index_watermark = _field("index_watermark")
    clock_boot = _field("clock_boot")
    clock_offset_ms = _field("clock_offset_ms")
    clock_seen_ms = _field("clock_seen_ms")
    clock_seen_since_ms = _field("clock_seen_since_ms")
    clock_stood_ms = _field("clock_stood_ms")
    clock_known_ms = _field("clock_known_ms")
    clock_check = _field("clock_check")

    def sync(self) -> None:
        """Makes the stored fields durable. Other threads run meanwhile, because the disk may take long. Raises
        SyncFailedError; a second try after it would prove nothing."""
        self._page().sync()

    def close(self) -> None:
        """Ends the mapping without a sync. If another thread is in a sync, the mapping lasts until that sync ends."""
        self._file = None
