"""The notes of a sink: its complete batches, and an unfinished one, in config/sparkSinks/ID.json.

The log itself shows a batch's progress, because each record names its sink, its batch and its number in the batch
(property SPARK_BATCH). The note has the batch's begin in the log, and its staged files. It is written durably,
completely or not at all, before the first record of a batch is appended and after all its records are durable. So a
kill leaves no trace of a batch, or the note of an unfinished batch. The next commit appends the missing records from
the same files.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from cystore._native.system.descriptor import ByteLock
from cystore.errors import StoreFormatError
from cystore.spark.sink.rows import SINK_PROPERTY
from cystore.spark.sink.staged_rows import StagedFile
from cystore.spark.sink.write_options import Sink
from cystore.store import MessageStore
from cystore.system import checked_json, files
from cystore.system.store_lock import locked_byte

FOLDER = Path("config") / "sparkSinks"
RANGES_MAX = 1000  # of an application's versions that are remembered
LOCK_BYTE = 0


@dataclass(frozen=True)
class Begun:
    """A batch whose records may be in the log, all after `position`. It consists of `files` in `folder`, in this
    order."""

    batch: int
    position: int
    folder: str
    files: tuple[StagedFile, ...]

    @property
    def rows(self) -> int:
        return sum(file.rows for file in self.files)


@dataclass(frozen=True)
class SinkNote:
    """`appended` has the ranges of batches (both ends included) that are complete in the log, ascending."""

    sink: str
    query: str | None = None
    appended: tuple[tuple[int, int], ...] = ()
    begun: Begun | None = None

    @property
    def last(self) -> int:
        """The highest batch that was appended, -1 before the first."""
        return self.appended[-1][1] if self.appended else -1

    @property
    def forgotten_below(self) -> int:
        """For batches below this number it is not known any more whether they were appended."""
        return self.appended[0][0] if len(self.appended) >= RANGES_MAX else 0

    def has(self, batch: int) -> bool:
        return any(first <= batch <= last for first, last in self.appended)

    def ended(self, batch: int) -> SinkNote:
        """The note with one more complete batch, and none begun."""
        found: list[tuple[int, int]] = []
        for first, last in sorted([*self.appended, (batch, batch)]):
            if found and first <= found[-1][1] + 1:
                found[-1] = found[-1][0], max(last, found[-1][1])
            else:
                found.append((first, last))
        return replace(self, appended=tuple(found[-RANGES_MAX:]), begun=None)


@dataclass
class SinkLog:
    """The notes of one sink in one store, for the holder of its lock."""

    store: MessageStore
    sink: Sink
    path: Path = field(init=False)

    def __post_init__(self) -> None:
        self.path = note_path(self.store.path, self.sink)

    def locked(self) -> ByteLock:
        """A with block that waits for another commit of the same sink, perhaps of a driver that was thought dead."""
        return locked_byte(self.path.with_suffix(".lock"), LOCK_BYTE)

    def read(self) -> SinkNote:
        return read_note(self.store.path, self.sink)

    def write(self, note: SinkNote) -> None:
        files.write_whole(self.store.path, self.path, render(note), keep_last=False)

    def appended_of(self, begun: Begun) -> int:
        """The number of a batch's records in the log. They were appended in their order, so they are the batch's first
        records."""
        mark = f"{self.sink.id}:{begun.batch}:"
        within = f"{SINK_PROPERTY}\x01{mark}".encode()
        count = 0
        for message in self.store.scan(max(begun.position, self.store.snapshot().minimum)):
            if within in (message.properties_bytes or b""):
                text = message.properties[SINK_PROPERTY]
                if text.startswith(mark):
                    count = max(count, int(text.removeprefix(mark)) + 1)
        return count


def note_path(store: Path, sink: Sink) -> Path:
    return store / FOLDER / f"{sink.id}.json"


def read_note(store: Path, sink: Sink) -> SinkNote:
    """Raises StoreFormatError for a damaged note: it must not count as a sink that wrote nothing."""
    path = note_path(store, sink)
    if not path.exists():
        return SinkNote(str(sink))
    try:
        return parse(files.read_all(path))
    except ValueError as error:
        raise StoreFormatError(
            f"cannot read what {sink} has appended: {error}; restore the file, or remove it if the next batch was "
            "not appended yet",
            path=path,
        ) from error


def render(note: SinkNote) -> bytes:
    """The bytes of a sink's file."""
    return checked_json.render(asdict(note))


def parse(data: bytes) -> SinkNote:
    """The note in the bytes of a sink's file. Raises ValueError."""
    content = checked_json.parse(data)
    begun: dict[str, Any] | None = content["begun"]
    return SinkNote(
        sink=content["sink"],
        query=content["query"],
        appended=tuple((first, last) for first, last in content["appended"]),
        begun=None
        if begun is None
        else Begun(
            begun["batch"],
            begun["position"],
            begun["folder"],
            tuple(StagedFile(**file) for file in begun["files"]),
        ),
    )
