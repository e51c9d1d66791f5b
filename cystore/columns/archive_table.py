"""Archives as lakehouse tables: a Delta or Iceberg table whose data files are the archive's own verified Parquet files.

A table is made from the archive's manifests. Each manifest is one commit, which carries the archive's id and the physical offset up
to which the table goes. The commit comes after the manifest and before the store's mark, which releases the segments. A kill leaves a
manifest without its commit, which the next run makes, or a commit that the store does not know of, which the next run finds by its
offset and does not repeat. A table that was lost, or brought back from an old copy, gets the commits that it lacks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from cystore.columns.arrow import COLUMNS
from cystore.columns.parquet import WITH_TOPIC
from cystore.errors import StoreFormatError
from cystore.services.retention.archive_mark import DATA, Manifest
from cystore.system import files

# The columns of every table, in this order. Delta has `date` after them, by which it is partitioned.
COLUMNS_OF_TABLE = pa.schema([(name, COLUMNS[name]) for name in WITH_TOPIC])
ARCHIVE_ID, ARCHIVED_UP_TO, STORE = "cystore.archive-id", "cystore.archived-up-to", "cystore.store"


class Table(Protocol):
    """The table of one archive, whether it is there yet or not."""

    @property
    def uri(self) -> str:
        """What readers are given: for Delta the table's folder, for Iceberg its newest metadata file."""

    def committed(self) -> int | None:
        """The physical offset up to which the table goes; None where there is no table yet. Raises StoreConfigError for a table of
        another archive, StoreFormatError for one with other columns."""

    def commit(self, manifest: Manifest) -> None:
        """Adds a manifest's files in one transaction. Makes the table at the first commit."""


def catch_up(table: Table, manifests: Iterable[Manifest]) -> int:
    """Commits those of an archive's manifests that the table lacks, oldest first; returns how many."""
    up_to = table.committed() or 0
    done = 0
    for one in manifests:
        if one.end > up_to:
            table.commit(one)
            done += 1
    return done


def check_end(table: Table, up_to: int, home: Path) -> None:
    """Raises StoreFormatError for a table that goes farther than the archive that it belongs to."""
    found = table.committed()
    if found is not None and found > up_to:
        raise StoreFormatError(
            f"the table goes up to {found}, the archive's manifests to {up_to}: bring the newest manifests back from a copy",
            path=home,
        )


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """How the columns of a table are not ours, as one line; empty where they are."""
    told = [f"no column {name}" for name in wanted if name not in found]
    told += [f"column {name} is not ours" for name in found if name not in wanted]
    told += [
        f"{name} is {found[name]}, not {wanted[name]}"
        for name in wanted
        if found.get(name, wanted[name]) != wanted[name]
    ]
    return "; ".join(told)


def made_durable(folder: Path, work: Callable[[], None]) -> None:
    """Does work that makes files in a folder, and syncs those: the libraries leave that to the system."""
    before = files.names(folder) if folder.exists() else set()
    work()
    for name in sorted(files.names(folder) - before):
        with files.opened(folder / name) as fd:
            files.sync(fd, folder / name)
    files.sync_directory(folder)


def inside_of_data(path: str) -> str:
    """A file's path inside of the table's folder."""
    return path.removeprefix(f"{DATA}/")
