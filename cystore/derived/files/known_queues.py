"""config/queueTable: the state of every consume queue at an orderly close, so that the next open need not read the
files of each queue.

Nothing depends on it. The last process that closes a store of many queues writes it. The next open believes it if the
log ends as it did, and if no file or folder of a queue was changed, made or removed since, by inode numbers and times
of change (ctime). Otherwise recovery looks at every queue. The open removes the file, so a crash leaves none.
"""

from __future__ import annotations

import logging
import os
from array import array
from itertools import groupby, pairwise
from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.control import Control
from cystore._native.record.checksum import crc32c
from cystore._native.system import queue_files
from cystore.derived.files.consume_queue import DIRECTORY, ENTRY_BYTES
from cystore.derived.files.offsets import QUEUE_ID_MAX, QUEUE_OFFSETS
from cystore.engine.files.checkpoint import CheckpointFields
from cystore.engine.manifest.given_up_offsets import OFFSET_LIMIT
from cystore.engine.manifest.topic_names import is_topic
from cystore.errors import StoreError, StoreIOError
from cystore.layout import codec, field_of
from cystore.system import files
from cystore.system.os_errors import is_missing

log = logging.getLogger("cystore")

NAME = "queueTable"
MANY_QUEUES = 1024  # with fewer queues each open examines all files
MAGIC = int.from_bytes(b"CYSQTAB1", "big")
_HEADER, _ROW = codec("queue_table_header"), codec("queue_table_row")
_, _CHECKSUM = field_of("queue_table_header", "checksum")
Row = tuple[str, int, int, int]  # topic, queue id, next offset, minimum offset


class KnownQueues(NamedTuple):
    """All queues of a log that begins at `begin` and ends at `end`, sorted by (topic, queue id)."""

    begin: int
    end: int
    queue_file_bytes: int
    rows: list[Row]


def save_known_queues(root: Path, control: Control, checkpoint: CheckpointFields) -> None:
    """Writes the table, when everything is dispatched and durable. Called by a process that is alone in the store.
    Without it the next open takes longer, so an error is only logged."""
    rows = _rows(control) if control.queue_count >= MANY_QUEUES else []
    try:
        data = _rendered(root, control, checkpoint, rows) if rows else None
        if data is None:
            forget_known_queues(root)
        else:
            files.write_whole(root, _path(root), data, keep_last=False)
    except StoreError as error:
        log.warning(
            "%s: cannot save queueTable, so the next open reads the files of every queue: %s", root, error
        )


def forget_known_queues(root: Path) -> None:
    """Removes the table, before queues change. Raises StoreIOError."""
    with files.translated(_path(root)):
        there = _path(root).exists()
    if there:
        files.remove(_path(root), durable=False)


def read_known_queues(
    root: Path, checkpoint: CheckpointFields, begin: int, queue_file_bytes: int
) -> KnownQueues | None:
    """The table, if it belongs to this log, to this checkpoint, and to the queues' present files. Raises
    StoreIOError."""
    data = files.read_if_there(_path(root))
    if data is None or len(data) < _HEADER.size:
        return None
    magic, first, end, *proof, file_bytes, offsets_mark, folders_mark, topics, queues, checksum = (
        _HEADER.unpack_from(data)
    )
    sound = (
        magic == MAGIC and (first, file_bytes) == (begin, queue_file_bytes) and checksum == _checksum(data)
    )
    if not sound or proof != [checkpoint.last_record, checkpoint.last_record_checksum]:
        return None
    names, at = _names(data, topics)
    if names is None or len(data) - at != queues * _ROW.size:
        return None
    table = list(_ROW.iter_unpack(data[at:]))
    rows = [
        (names[topic], queue_id, following, minimum)
        for topic, queue_id, following, minimum, _ in table
        if 0 <= topic < len(names)
        and 0 <= queue_id <= QUEUE_ID_MAX
        and 0 <= minimum <= following < OFFSET_LIMIT
    ]
    if len(rows) != queues or any(left[:2] >= right[:2] for left, right in pairwise(rows)):
        return None
    now = _marks(root, rows, queue_file_bytes)
    if (
        now is None
        or now != (folders_mark, [mark for *_, mark in table])
        or offsets_mark != _offsets_mark(root)
    ):
        return None
    return KnownQueues(begin, end, queue_file_bytes, rows)


def _path(root: Path) -> Path:
    return root / "config" / NAME


def _rows(control: Control) -> list[Row]:
    """All queues; none if one of them is not dispatched to its end, or if config/queueOffset.json lags behind."""
    if control.offsets_saved != control.wrote:
        return []
    queues = [control.queue(slot) for slot in range(control.queue_count)]
    if any(following != dispatched for _, _, following, dispatched, _ in queues):
        return []
    return sorted((topic, queue_id, following, minimum) for topic, queue_id, following, _, minimum in queues)


def _rendered(root: Path, control: Control, checkpoint: CheckpointFields, rows: list[Row]) -> bytes | None:
    """The table's bytes; None if the files of a queue differ from its row."""
    found = _marks(root, rows, control.consume_queue_file_bytes)
    if found is None or not all(found[1]):
        return None
    names = sorted({topic for topic, *_ in rows})
    numbers = {topic: number for number, topic in enumerate(names)}
    body = [bytes([len(name)]) + name.encode() for name in names]
    body += [
        _ROW.pack(numbers[topic], *rest, mark) for (topic, *rest), mark in zip(rows, found[1], strict=True)
    ]
    values = (
        MAGIC, control.min_physical_offset, control.wrote, checkpoint.last_record, checkpoint.last_record_checksum,
        control.consume_queue_file_bytes, _offsets_mark(root), found[0], len(names), len(rows),
    )  # fmt: skip
    data = _HEADER.pack(*values, 0) + b"".join(body)
    return _HEADER.pack(*values, _checksum(data)) + data[_HEADER.size :]


def _checksum(data: bytes) -> int:
    return crc32c(data[: _HEADER.size - _CHECKSUM.size] + data[_HEADER.size :])


def _names(data: bytes, count: int) -> tuple[list[str] | None, int]:
    """The topics behind the header, and the begin of the rows. None if they are not topics."""
    names, at = [], _HEADER.size
    for _ in range(count):
        length = data[at] if at < len(data) else 0
        name = data[at + 1 : at + 1 + length].decode("ascii", "replace")
        if not is_topic(name):
            return None, at
        names.append(name)
        at += 1 + length
    return names, at


def _offsets_mark(root: Path) -> int:
    """Changes with config/queueOffset.json; 0 without it."""
    path = root / "config" / QUEUE_OFFSETS
    with files.translated(path):
        try:
            return _number(path.lstat())
        except FileNotFoundError:
            return 0


def _number(status: os.stat_result) -> int:
    return crc32c(repr((status.st_mode, status.st_ino, status.st_size, status.st_ctime_ns)).encode())


def _marks(root: Path, rows: list[Row], file_bytes: int) -> tuple[int, list[int]] | None:
    """A mark of all folders of topics, and one of each queue's files. None if a folder is missing."""
    folders, found = 0, array("Q")
    try:
        for topic, group in groupby(rows, key=lambda row: row[0]):
            queues = list(group)
            first = [minimum * ENTRY_BYTES for _, _, _, minimum in queues]
            last = [(following - 1) * ENTRY_BYTES for _, _, following, _ in queues]
            bounds = [
                (low - low % file_bytes, high - high % file_bytes) if low <= high else (1, 0)
                for low, high in zip(first, last, strict=True)
            ]
            path = root / DIRECTORY / topic
            with files.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
                folders = crc32c(f"{folders} {topic} {_number(os.fstat(fd))}".encode())
                found += queue_files.marks(
                    fd,
                    array("I", [queue_id for _, queue_id, *_ in queues]),
                    array("q", [low for low, _ in bounds]),
                    array("q", [high for _, high in bounds]),
                    file_bytes,
                )
        path = root / DIRECTORY
        with files.opened(path, os.O_RDONLY | os.O_DIRECTORY) as fd:
            return crc32c(f"{folders} {_number(os.fstat(fd))}".encode()), list(found)
    except StoreIOError as error:
        if is_missing(error):
            return None
        raise
