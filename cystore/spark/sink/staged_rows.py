"""Staged rows: a task's rows for the commit, in files that the driver and every executor can reach.

A file has its final name from the beginning. It counts only if the task's message names it, with its size and number of
rows; the task makes it durable before that. If a task dies or runs twice, no message names its file, and the next
commit of the same sink removes the file.
"""

from __future__ import annotations

import io
import os
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import WriterCommitMessage

from cystore.clock import now_ms
from cystore.errors import StoreFormatError, StoreIOError
from cystore.spark.sink.rows import STAGED, RowEncoder
from cystore.system import files
from cystore.system.os_errors import is_missing
from cystore.system.ranges import file_ranges

SUFFIX = ".rows"
ANONYMOUS = "batch-"  # folders of jobs without a name
KEEP_MS = 7 * 24 * 3600 * 1000  # a job without a name that staged nothing for this time is dead


@dataclass(frozen=True)
class StagedFile:
    """One file of the staging folder: `size_bytes` and `rows` are the expected values."""

    name: str
    size_bytes: int
    rows: int


@dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):
    """A task's message to the commit; without rows it stages nothing."""

    task: int
    staged: StagedFile | None = None
    largest_bytes: int = 0
    query: str | None = None  # of a stream: stays the same as long as its checkpoint


def stage(folder: Path, batches: Iterable[pa.RecordBatch], encoder: RowEncoder) -> StagedFile | None:
    """Writes a task's rows into a new file of the folder; returns None if there are no rows. An error leaves no file
    behind."""
    batches = (batch for batch in batches if batch.num_rows)
    first = next(batches, None)
    if first is None:
        return None
    files.make_directory(folder)
    path = folder / f"{uuid.uuid4().hex}{SUFFIX}"
    try:
        with files.opened(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as fd, files.translated(path):
            with (
                io.FileIO(fd, "w", closefd=False) as raw,
                io.BufferedWriter(raw, 1 << 20) as out,
                pa.ipc.new_stream(out, STAGED) as stream,
            ):
                stream.write_batch(encoder.encode(first))
                for batch in batches:
                    stream.write_batch(encoder.encode(batch))
            files.sync(fd, path)
            size = file_ranges.length_of(fd, path)
        files.sync_directory(folder)
    except BaseException:
        files.remove(path, durable=False)
        raise
    return StagedFile(path.name, size, encoder.rows)


def check_staged(folder: Path, wanted: Iterable[StagedFile]) -> None:
    """Raises StoreIOError if the driver does not see a file as the task left it."""
    for file in wanted:
        path = folder / file.name
        with _opened(path) as fd:
            found = file_ranges.length_of(fd, path)
        if found != file.size_bytes:
            raise StoreIOError(f"a task staged {file.size_bytes} bytes, but the file has {found}", path=path)


def staged_batches(
    folder: Path, wanted: Iterable[StagedFile], columns: Sequence[str] | None = None
) -> Iterator[pa.RecordBatch]:
    """The staged rows, file after file; with `columns` only these. Raises StoreIOError, and StoreFormatError for a file
    that differs from the written one."""
    included = None if columns is None else [STAGED.get_field_index(name) for name in columns]
    options = pa.ipc.IpcReadOptions(included_fields=included)
    for file in wanted:
        path, rows = folder / file.name, 0
        try:
            with (
                _opened(path) as fd,
                io.FileIO(fd, "r", closefd=False) as raw,
                pa.ipc.open_stream(raw, options=options) as stream,
            ):
                for batch in stream:
                    rows += batch.num_rows
                    yield batch
        except pa.ArrowInvalid as error:
            raise StoreFormatError(f"the staged file is damaged: {error}", path=path) from error
        if rows != file.rows:
            raise StoreFormatError(f"the staged file has {rows} rows, not {file.rows}", path=path)


@contextmanager
def _opened(path: Path) -> Iterator[int]:
    try:
        with files.opened(path) as fd:
            yield fd
    except StoreIOError as error:
        if not is_missing(error):
            raise
        raise StoreIOError(
            "a staged file is missing: the driver and every executor must share the staging folder (option "
            "stagingPath), and "
            "only one job at a time may write under one name",
            path=path,
        ) from error


def clear_folder(folder: Path, but: Iterable[StagedFile] = ()) -> None:
    """Removes a job's folder with its staged files except some; a file that a late task has just written stays."""
    kept = {file.name for file in but}
    for entry in files.entries(folder):
        if entry.name.endswith(SUFFIX) and entry.name not in kept:
            files.remove(Path(entry.path), durable=False)
    if folder.exists() and not files.entries(folder):
        files.remove_directory(folder)


def clear_dead(staging: Path) -> None:
    """Removes folders of nameless jobs that have staged nothing for a long time, so they must be dead."""
    for entry in files.entries(staging):
        if not entry.name.startswith(ANONYMOUS):
            continue
        inside = files.entries(Path(entry.path))
        newest = max(one.stat().st_mtime_ns for one in [entry, *inside]) // 1_000_000
        if newest < now_ms() - KEEP_MS:
            clear_folder(Path(entry.path))
