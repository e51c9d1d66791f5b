"""The folder of a report: which folder may be replaced, and how a report gets its place completely or not at all."""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from cystore.columns.arrow import places_of
from cystore.columns.object_store import is_url, local_path
from cystore.engine.inspect.recognize import store_above
from cystore.errors import StoreConfigError
from cystore.operate import facts
from cystore.system import files
from cystore.system.links import real_path

MARKER = ".cystore-report"  # in every report, so that nothing else is replaced by one


def check_out(out: Path | str, stores: str | Sequence[str], *, overwrite: bool) -> Path:
    """The folder to make, absolute. Raises StoreConfigError for a folder that may not be made or replaced,
    StoreFormatError for a path among `stores` that is not a store."""
    folder = outside_of(existing_stores(stores), out)
    if not folder.exists():
        return folder
    if not overwrite:
        raise StoreConfigError(
            f"{folder} exists: choose another folder, or overwrite the report in it (--overwrite)"
        )
    if not Path(folder, MARKER).is_file():
        raise StoreConfigError(
            f"{folder} is not a report: it has no file {MARKER}. Only a report can be replaced; choose another "
            "folder, or remove this one"
        )
    return folder


@contextmanager
def replaced(folder: Path) -> Iterator[Path]:
    """Yields a folder to write a report into. At the end it is renamed to `folder`. After an error nothing has
    changed. A kill between the two renames leaves the old report under a name that ends in `.old`."""
    making = folder.with_name(f".{folder.name}.{os.getpid()}.{secrets.token_hex(4)}")
    old = folder.with_name(f".{folder.name}.old")
    try:
        files.make_directory(making)
        files.write_whole(making, making / MARKER, b"", keep_last=False)
        yield making
        files.remove_tree(making / files.TMP_DIRECTORY)
        shutil.rmtree(old, ignore_errors=True)
        if folder.exists():
            folder.rename(old)
        making.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        shutil.rmtree(making, ignore_errors=True)


def existing_store(path: str | Path) -> Path:
    """The place of the store at `path`, with every link resolved. Raises StoreFormatError if there is none: a job makes
    no store."""
    if not os.fspath(path):
        raise StoreConfigError("name a store: its path is empty")
    place = real_path(os.fspath(path))
    facts.state(place)
    return place


def existing_stores(patterns: str | Sequence[str]) -> list[Path]:
    """The stores that paths or globs name on this host, with every link resolved; URLs are left out. Raises
    StoreFormatError for a path that is no store, before Spark starts."""
    found: list[Path] = []
    for pattern in map(local_path, [patterns] if isinstance(patterns, str) else patterns):
        if is_url(pattern):
            continue
        found += map(existing_store, places_of(pattern) if pattern else [pattern])
    return found


def outside_of(stores: Sequence[Path], folder: Path | str) -> Path:
    """The folder of this host that a job writes to, with every link resolved. Raises StoreConfigError for a URL, for a
    file, for a folder that contains one of the stores, and for a folder that is or lies in any store."""
    text = local_path(os.fspath(folder))
    if not text:
        raise StoreConfigError("name the folder to write to: its path is empty")
    if is_url(text):
        raise StoreConfigError(f"{text} is a URL: name a folder, which is mounted where the job runs")
    place = real_path(text)
    there = next(path for path in (place, *place.parents) if path.exists())
    if not there.is_dir():
        raise StoreConfigError(f"{there} is a file: name a folder to write to")
    for store in stores:
        if place == store or store in place.parents or place in store.parents:
            raise StoreConfigError(
                f"{place} and the store {store} must not contain each other: name another folder"
            )
    above = store_above(place / "inside")
    if above is not None:
        raise StoreConfigError(f"{place} is or lies in the store {above}: name another folder")
    return place


def write_parquet(root: Path, path: Path, rows: pa.Table) -> None:
    """Makes or replaces a Parquet file below the folder `root` durably."""
    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="zstd")
    files.write_whole(root, path, memoryview(sink.getvalue()).cast("B"), keep_last=False)
