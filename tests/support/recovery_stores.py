"""Stores for the tests of recovery: logs of known records, closed or crashed, in directories that can be compared."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from cystore.config import StoreConfig
from cystore.engine.files.segments import Mode
from cystore.recovery.outcome import RecoveredState
from cystore.recovery.recover import recover
from tests.oracle.checkpoint import Checkpoint
from tests.oracle.log import Log, lay_out
from tests.oracle.record import CYSTORE_MAGIC, Record
from tests.support.property import stores

FILE_BYTES = 4096
NOW_MS = 1_700_000_000_000


def make_records(
    count: int,
    *,
    queues: int = 3,
    body: int = 60,
    magic: int = CYSTORE_MAGIC,
    first: int = 0,
    step_ms: int = 10,
) -> list[Record]:
    """`count` records, dealt out to the queues T/0, T/1, ... in turn; each has a key of its own, k0, k1, ..."""
    return [
        Record(
            topic="T",
            body=bytes([65 + n % 26]) * body,
            magic=magic,
            queue_id=n % queues,
            queue_offset=(first + n) // queues,
            born_timestamp_ms=NOW_MS + n * step_ms,
            store_timestamp_ms=NOW_MS + n * step_ms,
            raw_properties=f"KEYS\x01k{n}\x02TAGS\x01t{n % 2}".encode(),
        )
        for n in range(count)
    ]


@dataclass
class Written:
    """A store on disk and what is in it."""

    path: Path
    log: Log
    records: list[Record]
    end: int

    def file_of(self, offset: int) -> Path:
        return self.path / "commitlog" / f"{offset - offset % self.log.file_size:020d}"

    def overwrite(self, offset: int, data: bytes) -> None:
        """Changes bytes of the log in place."""
        with self.file_of(offset).open("r+b") as file:
            file.seek(offset % self.log.file_size)
            file.write(data)

    def flip(self, record: Record, at: int = 100) -> None:
        """Damages one byte of a record."""
        self.overwrite(record.physical_offset + at, bytes([record.raw[at] ^ 0xFF]))

    @property
    def config(self) -> StoreConfig:
        return StoreConfig(**stores.config(self.log))

    def recover(self, *, abnormal: bool = True, mode: Mode = Mode.WRITE, **settings) -> RecoveredState:
        return recover(self.path, replace(self.config, **settings), mode, abnormal=abnormal)

    def queue_file(self, queue_id: int, base: int = 0) -> Path:
        return self.path / "consumequeue" / "T" / str(queue_id) / f"{base:020d}"


def write(
    path: Path,
    records: list[Record],
    *,
    durable: int | None = None,
    clean: bool = False,
    derived: int | None = None,
    begin: int = 0,
    physic_ms: int = 0,
    file_bytes: int = FILE_BYTES,
) -> Written:
    """A store with these records. `durable`: the checkpoint's watermark stands behind record number `durable` (-1:
    the last); `derived`: consume queues and index know the first so many records (None: all)."""
    log, written, end = lay_out(records, file_bytes, begin)
    checkpoint = Checkpoint(physic_ms=physic_ms)
    if durable is not None:
        last = written[durable]
        checkpoint = Checkpoint(
            last.store_timestamp_ms,
            last.store_timestamp_ms,
            0,
            last.end,
            last.physical_offset,
            last.checksum,
            0,
        )
        if clean:
            checkpoint = replace(checkpoint, index_synced=last.end)
    stores.write_log(path, log, written, checkpoint, clean=clean)
    known = written if derived is None else written[:derived]
    stores.write_files(path, {**stores.queue_images(known), **stores.index_images(known)})
    return Written(path, log, written, end)


def fingerprint(path: Path) -> dict[str, str]:
    """Every file with the hash of its bytes."""
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


def log_bytes(path: Path) -> dict[str, bytes]:
    return {
        file.name: file.read_bytes()
        for file in sorted((path / "commitlog").iterdir())
        if file.name != "CYSTORE"
    }


def aside(path: Path) -> dict[str, bytes]:
    """The content of quarantine/, without the lists of holes and of given-up queue offsets."""
    folder = path / "quarantine"
    if not folder.is_dir():
        return {}
    return {
        file.name: file.read_bytes()
        for file in sorted(folder.iterdir())
        if not file.name.startswith("holes.json")
    }
