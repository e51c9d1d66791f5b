"""The archive mark of a store (a section of its manifest), and the manifests in the archive's folder.

The mark names the physical offset below which every record is in the archive, the archive's folder, and its newest
manifest. Cleaning keeps everything from that offset on, without a limit of time or space; without a mark there is no
hold. The mark moves under the lock "clean", which cleaning takes too, after the archive's manifest is durable. That
manifest is written after its data was read back and found equal to the log. So after a kill the mark may be older than
the archive, never newer: the store keeps more than it must, and the next run repeats that part.

A manifest of the archive is for one range of the log and names the manifest before it. It contains no details of
Parquet but names, sizes and checksums.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeGuard

from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import choice, instance, text
from cystore.engine.manifest.manifest import Manifest as StoreManifest
from cystore.errors import CorruptRecordError, StoreConfigError, StoreFormatError
from cystore.system import checked_json, files
from cystore.system.threads.reentry import undisturbed

SECTION = "archive"  # in the manifest
DATA, MANIFESTS = "data", "manifests"  # in the archive's folder
PARQUET, DELTA, ICEBERG = "parquet", "delta", "iceberg"  # the latter two are tables, whose files are Parquet
FORMATS = (PARQUET, DELTA, ICEBERG)
_END_IT = "`cystore config PATH --end-archive` ends the hold"


@dataclass(frozen=True, slots=True)
class Archived:
    """Every record below the physical offset `up_to` is in the archive `archive_id` in `folder`. `manifest` is the
    path of the newest manifest inside the folder, None before the first one. `format` is one of FORMATS. `table` is
    the URL of the archive's table, empty if the table is in the folder."""

    archive_id: str
    folder: str
    up_to: int
    manifest: str | None = None
    format: str = PARQUET
    table: str = ""


@dataclass(frozen=True, slots=True)
class ArchivedFile:
    """A file of an archive: `path` inside the folder, a summary of its rows, and the CRC-32C of its bytes. Both ends of
    `physical`, of `times_ms` (store timestamps) and of each queue's offsets belong to rows in it."""

    path: str
    topic: str
    rows: int
    size_bytes: int
    crc32c: int
    physical: tuple[int, int]
    times_ms: tuple[int, int]
    queues: Mapping[int, tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Manifest:
    """The files with the records of [begin, end) of a store's log, and the ranges (begin, end, reason) that are not in
    them because the log was damaged there."""

    archive_id: str
    store: str
    begin: int
    end: int
    previous: str | None
    files: tuple[ArchivedFile, ...]
    damaged: tuple[tuple[int, int, str], ...] = ()
    format: str = PARQUET
    table: str = ""

    @property
    def name(self) -> str:
        """The manifest's path inside the archive's folder."""
        return f"{MANIFESTS}/{range_name(self.begin, self.end)}.json"

    @property
    def rows(self) -> int:
        """The sum over all files."""
        return sum(one.rows for one in self.files)


@dataclass(frozen=True)
class ArchiveContent:
    """The content of an archive, oldest first."""

    archived: Archived
    manifests: tuple[Manifest, ...] = ()
    queue_begins: Mapping[tuple[str, int], int] = field(default_factory=dict)  # lowest archived queue offsets


_RANGE = re.compile(r"(\d{20})-\d{20}(\.json)?")


def range_of(name: str) -> int | None:
    """The first offset of the range in the name of a file or folder of an archive; None for other names."""
    found = _RANGE.fullmatch(name)
    return None if found is None else int(found[1])


def range_name(begin: int, end: int) -> str:
    """The name of files and folders for a range of the log. Names sort as offsets do."""
    return f"{begin:020d}-{end:020d}"


class ArchiveMark:
    """The archive mark of a store, in its manifest."""

    def __init__(self, control: Control, manifest: StoreManifest) -> None:
        self._control, self._manifest = control, manifest

    @property
    def path(self) -> Path:
        """The file that contains the mark."""
        return self._manifest.path

    def read(self) -> Archived | None:
        """The mark; None: nothing is archived, and nothing held. Raises StoreFormatError if the manifest's entry is
        invalid."""
        content = self._manifest.snapshot().sections.get(SECTION)
        if content is None:
            return None
        try:
            return archived_of(content)
        except ValueError as error:
            raise StoreFormatError(
                f"cannot read the archive mark: {error}; cleaning is paused. The archive job with --restore "
                "writes the mark again "
                f"from the archive's newest manifest, or {_END_IT}",
                path=self.path,
            ) from error

    def begin(self, archive_id: str, folder: str, format: str = PARQUET, table: str = "") -> Archived:
        """Begins the hold: from the log's minimum on, cleaning removes nothing that is not archived."""
        given = [
            text("archive_id", archive_id, StoreConfigError),
            text("folder", folder, StoreConfigError),
            choice("format", format, FORMATS, StoreConfigError),
            text("table", table, StoreConfigError),
        ]
        return undisturbed(partial(self._begin, *given))

    def _begin(self, archive_id: str, folder: str, format: str, table: str) -> Archived:
        with self._control.held("clean"):
            if self.read() is not None:
                raise StoreConfigError(f"this store already has an archive; {_END_IT}", path=self.path)
            first = Archived(
                archive_id, folder, self._control.min_physical_offset, format=format, table=table
            )
            self._enter(first)
            return first

    def move(self, before: Archived, after: Archived) -> None:
        """Moves the hold, or the archive's place. Raises StoreConfigError if the present mark is not `before`."""
        instance("before", before, Archived, StoreConfigError)
        instance("after", after, Archived, StoreConfigError)
        undisturbed(partial(self._move, before, after))

    def _move(self, before: Archived, after: Archived) -> None:
        with self._control.held("clean"):
            now = self.read()
            if now != before or not before.up_to <= after.up_to <= self._control.flushed:
                raise StoreConfigError(
                    f"the archive is at {now and now.up_to}, not at {before.up_to}, or cannot be moved to "
                    f"{after.up_to}: another job "
                    "archives this store; run the job again",
                    path=self.path,
                )
            self._enter(after)

    def restore(self, archived: Archived) -> None:
        """Writes a mark again that was lost or cannot be read. Cleaning continues, if the missing mark paused it."""
        undisturbed(partial(self._restore, instance("archived", archived, Archived, StoreConfigError)))

    def _restore(self, archived: Archived) -> None:
        with self._control.held("clean"):
            self._enter(archived)
            self._manifest.resume_cleaning()

    def end(self) -> bool:
        """Ends the hold: cleaning does not wait for the archive any more. False when there was none."""
        return undisturbed(self._end)

    def _end(self) -> bool:
        with self._control.held("clean"):
            there = SECTION in self._manifest.snapshot().sections
            self._manifest.set_section(SECTION, None)
            return there

    def _enter(self, archived: Archived) -> None:
        self._manifest.set_section(SECTION, archived_fields(archived))


# -------------------------------------------------------------------------------------------------- as bytes


def parse_archived(data: bytes) -> Archived:
    """Reads the bytes of archive.json, which earlier versions wrote. Raises ValueError."""
    return archived_of(checked_json.parse(data, checked_json.COMPACT))


def archived_of(content: object) -> Archived:
    """Reads the mark from its JSON object. Raises ValueError."""
    if not isinstance(content, dict):
        raise ValueError(f"{content!r} does not name an archive")
    found = [content.get(name) for name in ("archiveId", "folder", "archivedUpTo", "manifest")]
    archive_id, folder, up_to, manifest = found
    if not isinstance(archive_id, str) or not isinstance(folder, str) or not _is_offset(up_to):
        raise ValueError(f"{content!r} does not name an archive")
    if manifest is not None and not isinstance(manifest, str):
        raise ValueError(f"{manifest!r} is not a manifest")
    return Archived(archive_id, folder, up_to, manifest, _format_of(content), _table_of(content))


def _format_of(content: Mapping[str, Any]) -> str:
    """The format; earlier versions wrote none, and only Parquet."""
    name = content.get("format", PARQUET)
    if name not in FORMATS:
        raise ValueError(f"{name!r} is not a format of an archive")
    return str(name)


def _table_of(content: Mapping[str, Any]) -> str:
    """The URL of the table. Only an archive whose table is elsewhere names it."""
    table = content.get("table", "")
    if not isinstance(table, str):
        raise ValueError(f"{table!r} is not the place of a table")
    return table


def archived_fields(archived: Archived) -> dict[str, Any]:
    """The mark as a JSON object."""
    return {
        "archiveId": archived.archive_id,
        "folder": archived.folder,
        "archivedUpTo": archived.up_to,
        "manifest": archived.manifest,
        "format": archived.format,
        **({"table": archived.table} if archived.table else {}),
    }


def parse_manifest(data: bytes) -> Manifest:
    """Reads a manifest from its bytes. Raises ValueError."""
    content = checked_json.parse(data, checked_json.COMPACT)
    try:
        listed = tuple(_file_of(entry) for entry in content["files"])
        damaged = tuple((int(begin), int(end), str(why)) for begin, end, why in content["damaged"])
        found = Manifest(
            content["archiveId"],
            content["store"],
            content["begin"],
            content["end"],
            content["previous"],
            listed,
            damaged,
            _format_of(content),
            _table_of(content),
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a manifest: {error!r}") from None
    if not (_is_offset(found.begin) and _is_offset(found.end) and found.begin < found.end):
        raise ValueError(f"{found.begin!r} to {found.end!r} is not a range")
    return found


def render_manifest(manifest: Manifest) -> bytes:
    """The bytes of a manifest."""
    listed = [
        {**asdict(one), "queues": {str(number): ends for number, ends in sorted(one.queues.items())}}
        for one in manifest.files
    ]
    return checked_json.render(
        {
            "archiveId": manifest.archive_id,
            "store": manifest.store,
            "begin": manifest.begin,
            "end": manifest.end,
            "previous": manifest.previous,
            "format": manifest.format,
            **({"table": manifest.table} if manifest.table else {}),
            "rows": manifest.rows,
            "damaged": [list(part) for part in manifest.damaged],
            "files": listed,
        },
        checked_json.COMPACT,
    )


def _file_of(entry: Any) -> ArchivedFile:
    first, last = entry["physical"]
    oldest, newest = entry["times_ms"]
    queues = {int(number): (ends[0], ends[1]) for number, ends in entry["queues"].items()}
    numbers = (entry["rows"], entry["size_bytes"], entry["crc32c"], first, last, oldest, newest)
    if not all(type(number) is int for number in numbers):
        raise TypeError(entry)
    return ArchivedFile(
        entry["path"],
        entry["topic"],
        entry["rows"],
        entry["size_bytes"],
        entry["crc32c"],
        (first, last),
        (oldest, newest),
        queues,
    )


def _is_offset(value: Any) -> TypeGuard[int]:
    return type(value) is int and value >= 0


# ------------------------------------------------------------------------------------------------- manifests


def read_manifest(folder: Path, name: str) -> Manifest:
    """Reads one manifest. Raises StoreFormatError if it does not exist, CorruptRecordError if it cannot be read."""
    path = folder / name
    if not path.exists():
        raise StoreFormatError("the archive's manifest does not exist: is its folder mounted?", path=path)
    try:
        return parse_manifest(files.read_all(path))
    except ValueError as error:
        raise CorruptRecordError(
            f"the archive's manifest cannot be read: {error}; bring it back from a copy of the archive",
            path=path,
        ) from error


def manifests_from(folder: Path, begin: int) -> list[Manifest]:
    """The manifests in a folder for ranges from an offset on, oldest first."""
    names = [entry.name for entry in files.entries(folder / MANIFESTS)]
    first = {name: range_of(name) for name in names if name.endswith(".json")}
    return [
        read_manifest(folder, f"{MANIFESTS}/{name}")
        for name, at in first.items()
        if at is not None and at >= begin
    ]


def newest_manifest(folder: Path, store: str) -> Manifest | None:
    """The last manifest of a store in an archive's folder."""
    found = (one for one in manifests_from(folder, 0) if one.store == store)
    return max(found, key=lambda one: one.end, default=None)


def content_of(archived: Archived) -> ArchiveContent:
    """Follows the manifests back to the first. Raises StoreFormatError or CorruptRecordError, also if two do not fit
    together."""
    found: list[Manifest] = []
    name, end = archived.manifest, archived.up_to
    while name is not None:
        one = read_manifest(Path(archived.folder), name)
        if one.archive_id != archived.archive_id or one.end != end:
            raise CorruptRecordError(
                f"the manifest is for {one.begin} to {one.end} of archive {one.archive_id}, but expected is the one "
                f"that ends at {end} of "
                f"{archived.archive_id}; bring it back from a copy of the archive",
                path=Path(archived.folder) / name,
            )
        found.append(one)
        name, end = one.previous, one.begin
    begins: dict[tuple[str, int], int] = {}
    for one in found:
        for part in one.files:
            for queue_id, (first, _) in part.queues.items():
                queue = part.topic, queue_id
                begins[queue] = min(begins.get(queue, first), first)
    return ArchiveContent(archived, tuple(reversed(found)), begins)


def with_manifest(archived: Archived, manifest: Manifest) -> Archived:
    """`archived`, moved to another manifest."""
    return replace(archived, up_to=manifest.end, manifest=manifest.name)
