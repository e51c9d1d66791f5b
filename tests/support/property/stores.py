"""Store directories made of oracle bytes: a log with its checkpoint, and the files that follow from it."""

from dataclasses import dataclass
from pathlib import Path

from tests.oracle import index, queue
from tests.oracle.checkpoint import Checkpoint
from tests.oracle.checkpoint import encode as encode_checkpoint
from tests.oracle.log import Log
from tests.oracle.record import CYSTORE_MAGIC, Record

# Small, so that each kind of derived file has several.
QUEUE_FILE_BYTES = 10 * queue.ENTRY_BYTES
SLOTS, CAPACITY = 5, 20


@dataclass(frozen=True)
class Shape:
    """Sizes of derived files."""

    queue_file_bytes: int = QUEUE_FILE_BYTES
    slots: int = SLOTS
    capacity: int = CAPACITY


SMALL = Shape()


def config(log: Log, shape: Shape = SMALL) -> dict:
    """The settings under which cystore opens such a store."""
    return {
        "mapped_file_size_commit_log_bytes": log.file_size,
        "mapped_file_size_consume_queue_bytes": shape.queue_file_bytes,
        "max_hash_slot_num": shape.slots,
        "max_index_num": shape.capacity,
    }


def write_log(store: Path, log: Log, records: list[Record], checkpoint: Checkpoint, *, clean: bool) -> None:
    """Commit log, checkpoint, and `abort` unless the store was closed."""
    directory = store / "commitlog"
    directory.mkdir(parents=True)
    for base, data in log.files.items():
        (directory / f"{base:020d}").write_bytes(data)
    if any(record.magic == CYSTORE_MAGIC for record in records):
        (directory / "CYSTORE").touch()
    (store / "checkpoint").write_bytes(encode_checkpoint(checkpoint))
    (store / "lock").write_bytes(b"lock")
    if not clean:
        (store / "abort").touch()


def queue_images(records: list[Record], shape: Shape = SMALL) -> dict[str, bytes]:
    """The files of the consume queues that follow from `records`, by their paths in the store."""
    return {
        f"consumequeue/{topic}/{queue_id}/{base:020d}": data
        for (topic, queue_id), entries in queue.entries_of(records).items()
        for base, data in queue.queue_files(entries, shape.queue_file_bytes).items()
    }


def index_images(records: list[Record], shape: Shape = SMALL) -> dict[str, bytes]:
    """The index files that follow from `records`, by their paths in the store."""
    files: list[index.IndexFile] = []
    index.build(files, records, shape.slots, shape.capacity, repeat_last=False)
    return {f"index/20240101000000{number:03d}": bytes(file.data) for number, file in enumerate(files)}


def write_files(store: Path, images: dict[str, bytes]) -> None:
    for path, data in images.items():
        (store / path).parent.mkdir(parents=True, exist_ok=True)
        (store / path).write_bytes(data)


def durable_to(record: Record) -> Checkpoint:
    """A checkpoint whose durable watermark is the end of `record`; its times name no file to begin with."""
    return Checkpoint(
        durable_watermark=record.end,
        last_record=record.physical_offset,
        last_checksum=record.checksum,
    )
