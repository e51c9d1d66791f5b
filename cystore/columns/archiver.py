"""Archiving: writes sealed segments of the log to an archive of Parquet files and verifies them, before cleaning may
remove them.

Each step takes a range of whole segments from the archived offset on. It writes and verifies files under tmp/ of the
archive's folder, renames them to their places, and names them in a manifest. If the archive is a lakehouse table, the
manifest becomes a commit of the table (`cystore.columns.archive_table`). Only then does the store's archive mark move;
cleaning may remove the segments after that. A kill can leave files that no manifest names: the next run removes them
and makes them again from the log. Or it leaves a manifest that the table or the store does not know: the next run
enters it. So each record is in the archive exactly once.

The caller chooses the writer: this process, or the executors of a cluster (cystore.spark.jobs.archive).
"""

from __future__ import annotations

import fcntl
import logging
import os
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from cystore import clock
from cystore._native.system.descriptor import Descriptor
from cystore.columns.archive_formats import check_format, check_place, open_table
from cystore.columns.archive_layout import migrate, place_files, stale
from cystore.columns.archive_table import Place, Table, catch_up, check_end
from cystore.columns.object_store import is_url
from cystore.columns.parquet import WrittenRange, write_range
from cystore.derived.reading.snapshot import PIECE_BYTES, LogRange, LogSnapshot
from cystore.errors import CorruptRecordError, StoreConfigError, StoreFormatError, StoreLockedError
from cystore.services.retention.archive_mark import (
    DATA,
    ICEBERG,
    MANIFESTS,
    PARQUET,
    Archived,
    ArchivedFile,
    Manifest,
    content_of,
    manifests_from,
    newest_manifest,
    range_of,
    read_manifest,
    render_manifest,
    with_manifest,
)
from cystore.store import MessageStore
from cystore.system import files
from cystore.system.links import real_path

log = logging.getLogger("cystore")

Task = Callable[[LogRange], WrittenRange]
Mapper = Callable[[Task, Sequence[LogRange]], Sequence[WrittenRange]]
Report = Callable[[str, int, int], None]  # the work, the position in the log, the position at its end

EXPIRING_WITHIN_H = 24.0
STEP_BYTES = 64 * 1024 * 1024 * 1024  # of log between two manifests: a kill loses at most this work
HOUR_MS = 3_600_000


@dataclass
class ArchiveSummary:
    """The result of one run: what it archived, and the archive's end now."""

    store: str
    folder: str
    begin: int
    archived_up_to: int
    segments: int = 0
    rows: int = 0
    files: int = 0
    log_bytes: int = 0
    parquet_bytes: int = 0
    damaged: int = 0
    format: str = PARQUET
    commits: int = 0
    table: str = ""

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def in_this_process(task: Task, parts: Sequence[LogRange]) -> list[WrittenRange]:
    """Runs one range after the other."""
    return [task(part) for part in parts]


def check_steps(expiring_within_h: float, step_bytes: int, piece_bytes: int = PIECE_BYTES) -> None:
    """Raises StoreConfigError for numbers that are too small."""
    if not expiring_within_h >= 0 or step_bytes < 1 or piece_bytes < 1:
        raise StoreConfigError(
            "expiring_within_h must be 0 or more, step_bytes and piece_bytes 1 or more, not "
            f"{expiring_within_h!r}, {step_bytes!r}, "
            f"{piece_bytes!r}"
        )


def archive_store(
    store: MessageStore,
    folder: str | os.PathLike[str],
    *,
    format: str | None = None,
    table: str | None = None,
    storage: Mapping[str, str] | None = None,
    mapper: Mapper = in_this_process,
    expiring_within_h: float = EXPIRING_WITHIN_H,
    all_sealed: bool = False,
    skip_damage: bool = False,
    restore: bool = False,
    step_bytes: int = STEP_BYTES,
    piece_bytes: int = PIECE_BYTES,
    report: Report | None = None,
) -> ArchiveSummary:
    """Archives the segments that expire within `expiring_within_h` (or `all_sealed` ones) to `folder`; cleaning may
    remove them then.

    The first run begins the store's hold and decides the archive's `format`: parquet (the default), or delta or
    iceberg, which make a table of the same files. Later runs may leave it out. Damage stops the step that contains it
    (CorruptRecordError); with `skip_damage` the step leaves it out and lists it in the manifest. `restore` takes the
    archive's end from its newest manifest if the store has lost its archive mark.

    `table` is the URL of a table in an object store (`s3://bucket/path`): then each commit begins with a copy of the
    verified files to the URL. The first run decides it, as it decides the format. `storage` holds options of its file
    system, as for `cystore.scan`; they are never stored.

    Raises StoreConfigError for the folder of another store, for a format that is unknown, not installed or not the
    format of earlier runs, and for the table of another archive; StoreLockedError if another run works in the folder;
    StoreFormatError if log and archive do not meet, and for a table with other columns.
    """
    check_format(format)
    if is_url(os.fspath(folder)):
        raise StoreConfigError(
            f"{folder} is a URL, and an archive needs a folder of this host; format delta and iceberg also write their "
            "table to a URL (option table)"
        )
    home = real_path(folder)
    if home == store.path or store.path in home.parents or home in store.path.parents:
        raise StoreConfigError("the archive's folder and the store must not contain each other", path=home)
    check_steps(expiring_within_h, step_bytes, piece_bytes)
    files.make_directory(home)
    tell = report or (lambda what, done, total: None)
    with alone(home, "archive folder"):
        archived, made = _started(store, home, format, table, storage or {}, restore=restore)
        _remove_stale(home, archived.up_to)
        if migrate(home):
            tell("migrated", archived.up_to, archived.up_to)
        done = ArchiveSummary(
            str(store.path), str(home), archived.up_to, archived.up_to, format=archived.format
        )
        newest_ms = clock.now_ms() - int((store.settings.file_reserved_time_h - expiring_within_h) * HOUR_MS)
        snapshot = store.snapshot()
        wanted = list(_segments(store, snapshot, archived.up_to, None if all_sealed else newest_ms))
        at_once = max(1, step_bytes // snapshot.file_bytes)
        for first in range(0, len(wanted), at_once):
            begin, end = archived.up_to, wanted[first : first + at_once][-1] + snapshot.file_bytes
            manifest = _step(
                store, snapshot, archived, end, mapper, tell, skip_damage=skip_damage, piece_bytes=piece_bytes
            )
            if made is not None:
                made.commit(manifest)
                done.commits += 1
                tell("committed", end, end)
            after = with_manifest(archived, manifest)
            store.archive_mark.move(archived, after)
            archived = after
            tell("archived", end, wanted[-1] + snapshot.file_bytes)
            done.archived_up_to = end
            done.segments += (end - begin) // snapshot.file_bytes
            done.rows += manifest.rows
            done.files += len(manifest.files)
            done.log_bytes += end - begin
            done.parquet_bytes += sum(one.size_bytes for one in manifest.files)
            done.damaged += len(manifest.damaged)
        done.table = "" if made is None else made.uri
        return done


def _segments(store: MessageStore, snapshot: LogSnapshot, up_to: int, newest_ms: int | None) -> Iterator[int]:
    """The sealed segments from `up_to` on. With `newest_ms`, stops at the first segment with a newer record."""
    sealed = min(snapshot.flushed, snapshot.dispatched)
    for base in range(up_to, sealed - snapshot.file_bytes + 1, snapshot.file_bytes):
        if newest_ms is not None:
            behind = base + snapshot.file_bytes
            newest = _timestamp_ms(store, behind) if behind < snapshot.end else None
            if newest is None or newest > newest_ms:
                return
        yield base


def _timestamp_ms(store: MessageStore, position: int) -> int | None:
    """The timestamp of the record at `position`; no record before it is newer. None if the record cannot be read: then
    no record before it expires."""
    try:
        return store.read(position).store_timestamp_ms
    except CorruptRecordError:
        return None


# ----------------------------------------------------------------------------------------------------- a step


def _step(
    store: MessageStore,
    snapshot: LogSnapshot,
    archived: Archived,
    end: int,
    mapper: Mapper,
    tell: Report,
    *,
    skip_damage: bool,
    piece_bytes: int,
) -> Manifest:
    """Writes and verifies files for [archived.up_to, end), moves them to their places, and writes the manifest. The
    caller moves the store's mark."""
    home, begin = Path(archived.folder), archived.up_to
    run = home / files.TMP_DIRECTORY / uuid.uuid4().hex
    data = run / DATA
    files.make_directory(data)
    parts = list(snapshot.pieces(begin, end, piece_bytes, at_most=True))
    tell("writing", begin, end)
    task = partial(
        write_range, run=run, data=data, skip_damage=skip_damage, with_topic=archived.format == ICEBERG
    )
    written = mapper(task, parts)
    listed = _checked(parts, written, data)
    tell("verified", end, end)
    placed = place_files(home, data, listed)
    tell("placed", end, end)
    files.remove_tree(run)
    manifest = Manifest(
        archived.archive_id,
        str(store.path),
        begin,
        end,
        archived.manifest,
        placed,
        tuple(damage for one in written for damage in one.damaged),
        archived.format,
        archived.table,
    )
    files.write_whole(home, home / manifest.name, render_manifest(manifest), keep_last=False)
    tell("named", end, end)
    for first, behind, why in manifest.damaged:
        log.warning("%s: %d to %d is damaged (%s) and not in the archive", store.path, first, behind, why)
    return manifest


def _checked(parts: Sequence[LogRange], written: Sequence[WrittenRange], data: Path) -> list[ArchivedFile]:
    """Checks that every range was written once, and that the folder has exactly the files that the ranges name."""
    if [(one.begin, one.end) for one in written] != [(part.begin, part.end) for part in parts]:
        raise CorruptRecordError(
            "some range of the log was not written exactly once; run the job again", path=data
        )
    listed = [one for part in written for one in part.files]
    if sum(one.rows for one in listed) != sum(part.rows for part in written):
        raise CorruptRecordError(
            "the files have another number of rows than the log; run the job again", path=data
        )
    named = {data / one.path: one.size_bytes for one in listed}
    for path in _files_in(data):
        size = named.pop(path, None)
        if size is None:
            files.remove(path)  # of an attempt that Spark abandoned
        elif path.stat().st_size != size:
            raise CorruptRecordError(
                f"the file's size changed after verification (expected {size} bytes); run the job again",
                path=path,
            )
    if named:
        raise StoreFormatError(
            "a written file does not exist on this host: every executor needs the archive's folder under the same path",
            path=min(named),
        )
    return listed


def _files_in(folder: Path) -> Iterator[Path]:
    for entry in files.entries(folder):
        if entry.is_dir(follow_symlinks=False):
            yield from _files_in(Path(entry.path))
        else:
            yield Path(entry.path)


# --------------------------------------------------------------------------------------------- where a run begins


def _started(
    store: MessageStore,
    home: Path,
    format: str | None,
    url: str | None,
    storage: Mapping[str, str],
    *,
    restore: bool,
) -> tuple[Archived, Table | None]:
    """The archive's mark and its table; makes a mark if there is none. Checks all given values before it removes or
    writes anything."""
    mark = store.archive_mark
    place = None if url is None else Place.of(url, storage)
    try:
        archived = mark.read()
    except StoreFormatError:
        if not restore:
            raise
        archived = None
    if archived is None and restore:
        last = newest_manifest(home, str(store.path))
        if last is None:
            raise StoreConfigError(
                "the folder has no manifest of this store, so --restore cannot work", path=home
            )
        archived = Archived(last.archive_id, str(home), last.end, last.name, last.format, last.table)
        _check_same(archived, format, place)
        content_of(archived)
        mark.restore(archived)
    if archived is None:
        if files.entries(home / MANIFESTS) or files.entries(home / DATA):
            raise StoreConfigError(
                "the folder has an archive that this store does not know: name another folder, or continue "
                "this archive with --restore",
                path=home,
            )
        check_place(format or PARQUET, home)
        archived = _begun(store, home, format or PARQUET, place)
    _check_same(archived, format, place)
    if place is None and archived.table:
        place = Place.of(archived.table, storage)
    if archived.folder != str(home):
        if archived.manifest is not None and (
            not (home / archived.manifest).exists()
            or read_manifest(home, archived.manifest).archive_id != archived.archive_id
        ):
            raise StoreConfigError(
                f"this store's archive is in {archived.folder}: name that folder, or move all of it to this one first",
                path=home,
            )
        moved = replace(archived, folder=str(home))
        mark.move(archived, moved)
        archived = moved
    if archived.manifest is not None:
        last = read_manifest(home, archived.manifest)
        if (last.archive_id, last.end) != (archived.archive_id, archived.up_to):
            raise StoreFormatError(
                f"the manifest ends at {last.end}, the store's archive at {archived.up_to}", path=home
            )
    table = open_table(archived.format, home, archived.archive_id, str(store.path), place)
    if table is not None:
        _catch_up(table, archived)
    archived = _adopted(store, home, archived, table)
    if table is not None:
        check_end(table, archived.up_to, home)
    minimum = store.stats()["min_physical_offset"]
    if minimum > archived.up_to:
        raise StoreFormatError(
            f"the archive ends at {archived.up_to}, and the log begins at {minimum}: neither has the records "
            "between. Bring the "
            "archive's newest manifests back from a copy, or end the hold (`cystore config PATH --end-archive`) and "
            "begin another archive",
            path=home,
        )
    return archived, table


def _begun(store: MessageStore, home: Path, format: str, place: Place | None) -> Archived:
    """A new archive's mark. If its table cannot be at the URL, raises StoreConfigError or StoreIOError before it writes
    the mark."""
    archive_id = uuid.uuid4().hex
    if place is not None:
        if format == PARQUET:
            raise StoreConfigError(
                "only format delta and iceberg have a table: name one of them, or no table"
            )
        place.check_empty()
        open_table(format, home, archive_id, str(store.path), place)
    return store.archive_mark.begin(archive_id, str(home), format, "" if place is None else place.url)


def _check_same(archived: Archived, format: str | None, place: Place | None) -> None:
    if place is not None and place.url != archived.table:
        raise StoreConfigError(
            f"this store's archive has its table in {archived.table or 'its folder'}, not in {place.url}: "
            "leave the table out, or end "
            "the hold (`cystore config PATH --end-archive`) and begin another archive in another folder",
            path=archived.folder,
        )
    if format not in (None, archived.format):
        raise StoreConfigError(
            f"this store's archive has format {archived.format}, not {format}: leave the format out, or end "
            "the hold (`cystore config "
            "PATH --end-archive`) and begin another archive in another folder",
            path=archived.folder,
        )


def _catch_up(table: Table, archived: Archived) -> None:
    """Commits the manifests that the table lacks, because it was lost or restored from an old copy."""
    if (table.committed() or 0) < archived.up_to and archived.manifest is not None:
        missing = catch_up(table, content_of(archived).manifests)
        log.warning("%s: the table lacked %d commits; they were made again", archived.folder, missing)


def _remove_stale(home: Path, up_to: int) -> None:
    """Removes the leftovers of a killed run; the log still has all records from `up_to` on."""
    files.remove_tree(home / files.TMP_DIRECTORY)
    for entry in files.entries(home / MANIFESTS):
        begin = range_of(entry.name)
        if begin is not None and begin >= up_to:
            files.remove(Path(entry.path))
    for path in stale(home, up_to):
        if path.is_dir() and not path.is_symlink():
            files.remove_tree(path)
        else:
            files.remove(path)


def _adopted(store: MessageStore, home: Path, archived: Archived, table: Table | None) -> Archived:
    """Takes over manifests that continue the archive and that the store does not know: a run writes a manifest only
    after it has verified the files."""
    for one in manifests_from(home, archived.up_to):
        if (one.archive_id, one.begin, one.previous) == (
            archived.archive_id,
            archived.up_to,
            archived.manifest,
        ):
            after = with_manifest(archived, one)
            if table is not None:
                table.commit(one)
            store.archive_mark.move(archived, after)
            archived = after
    return archived


def alone(home: Path, what: str) -> Descriptor:
    """For a with block: only one run at a time works in a folder. The kernel releases the lock of a killed run. Raises
    StoreLockedError."""
    folder = files.opened(home, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        folder.close()
        raise StoreLockedError(f"another run writes to this {what}; wait until it ends", path=home) from None
    return folder
