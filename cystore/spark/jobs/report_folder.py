"""The folder of a report: which folder may be replaced, and how a report gets its place completely or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from cystore.errors import StoreConfigError
from cystore.spark.jobs.running import existing_stores, outside_of
from cystore.system import files

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
    making = folder.with_name(f".{folder.name}.{os.getpid()}")
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
