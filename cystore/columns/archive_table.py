"""Archives as lakehouse tables: a Delta or Iceberg table whose data files are the archive's own verified Parquet files.

A table is made from the archive's manifests. Each manifest is one commit, which carries the archive's id and the
table's end, a physical offset. The commit comes after the manifest and before the move of the store's archive mark,
which releases the segments. A kill can leave a manifest without its commit: the next run makes the commit. Or it
leaves a commit that the store does not know: the next run finds it by its offset and does not repeat it. A table that
was lost, or restored from an old copy, gets its missing commits.

A table may be at a URL instead (`Place`). Then each commit begins with a copy of the manifest's files to the URL. A
kill leaves copies that no commit names; the next run writes them again under the same names.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from cystore._native.record.checksum import crc32c
from cystore.columns.archive_layout import place_of
from cystore.columns.arrow import COLUMNS
from cystore.columns.object_store import ObjectStore, in_parallel
from cystore.columns.parquet import WITH_TOPIC
from cystore.errors import CorruptRecordError, StoreConfigError, StoreFormatError
from cystore.services.retention.archive_mark import DATA, ArchivedFile, Manifest
from cystore.system import files

# The columns of every table, in this order. Delta adds `date`, a column of its partitions.
COLUMNS_OF_TABLE = pa.schema([(name, COLUMNS[name]) for name in WITH_TOPIC])
ARCHIVE_ID, ARCHIVED_UP_TO, STORE = "cystore.archive-id", "cystore.archived-up-to", "cystore.store"


# Options of pyarrow's S3FileSystem, with their names in deltalake and in pyiceberg.
_S3_OPTIONS = {
    "access_key": ("AWS_ACCESS_KEY_ID", "s3.access-key-id"),
    "secret_key": ("AWS_SECRET_ACCESS_KEY", "s3.secret-access-key"),
    "session_token": ("AWS_SESSION_TOKEN", "s3.session-token"),
    "region": ("AWS_REGION", "s3.region"),
    "endpoint_override": ("AWS_ENDPOINT_URL", "s3.endpoint"),
    "scheme": None,  # deltalake and pyiceberg take it as a part of the endpoint's URL
}


@dataclass(frozen=True)
class Place:
    """The URL of a table outside the archive's folder, and its file system."""

    url: str
    object_store: ObjectStore

    @classmethod
    def of(cls, url: str, options: Mapping[str, str]) -> Place:
        """Raises StoreConfigError for a URL or an option that a table cannot have."""
        unknown = sorted(set(options) - set(_S3_OPTIONS))
        if unknown:
            raise StoreConfigError(
                f"storage option {unknown[0]} is not one of those that a table takes: {', '.join(_S3_OPTIONS)}"
            )
        object_store, plain = ObjectStore.of(url, dict(options))
        if object_store.scheme != "s3":
            raise StoreConfigError(f"a table's URL must be like s3://bucket/path, not {plain}")
        return cls(plain, object_store)

    def check_empty(self) -> None:
        """Raises StoreConfigError for a folder that is not empty, StoreFormatError for a bucket that does not
        exist."""
        self.object_store.check_bucket(self.url)
        if self.object_store.files(self.url) or self.object_store.folders(self.url):
            raise StoreConfigError(f"there are files in {self.url}: name an empty folder for the table")

    def publish(self, home: Path, manifest: Manifest) -> None:
        """Copies a manifest's files to the URL and reads them back. Raises CorruptRecordError if a copy differs."""

        def copy(one: ArchivedFile) -> None:
            content = files.read_all(place_of(home, one))
            if crc32c(content) != one.crc32c:
                raise CorruptRecordError(
                    "a file of the archive is damaged; bring it back from a copy of the archive",
                    path=place_of(home, one),
                )
            target = f"{self.url}/{inside_of_data(one.path)}"
            self.object_store.write_whole(target, content)
            if crc32c(self.object_store.read_whole(target)) != one.crc32c:
                raise CorruptRecordError("the server returns other bytes than were written", path=target)

        in_parallel(copy, manifest.files)

    def options_of_delta(self) -> dict[str, str]:
        """The file system's options for deltalake. It takes other options from the environment."""
        given = self._translated(0)
        endpoint = given.get("AWS_ENDPOINT_URL") or os.environ.get("AWS_ENDPOINT_URL", "")
        return {**given, **({"AWS_ALLOW_HTTP": "true"} if endpoint.startswith("http://") else {})}

    def options_of_iceberg(self) -> dict[str, str]:
        """The file system's options for pyiceberg."""
        return self._translated(1)

    def _translated(self, which: int) -> dict[str, str]:
        options = dict(self.object_store.options)
        scheme = options.get("scheme", "https")
        found = {}
        for name, value in options.items():
            names = _S3_OPTIONS[name]
            if names is not None:
                at_url = name == "endpoint_override" and "://" not in value
                found[names[which]] = f"{scheme}://{value}" if at_url else value
        return found


class Table(Protocol):
    """The table of one archive; it may not exist yet."""

    @property
    def uri(self) -> str:
        """The address for readers: for Delta the table's folder, for Iceberg its newest metadata file."""

    def committed(self) -> int | None:
        """The table's end, a physical offset; None if there is no table yet. Raises StoreConfigError for a table of
        another archive, StoreFormatError for a table with other columns."""

    def commit(self, manifest: Manifest) -> None:
        """Adds a manifest's files in one transaction. Makes the table at the first commit."""


def catch_up(table: Table, manifests: Iterable[Manifest]) -> int:
    """Commits the manifests that the table lacks, oldest first; returns their number."""
    up_to = table.committed() or 0
    done = 0
    for one in manifests:
        if one.end > up_to:
            table.commit(one)
            done += 1
    return done


def check_end(table: Table, up_to: int, home: Path) -> None:
    """Raises StoreFormatError if the table's end is after the archive's end."""
    found = table.committed()
    if found is not None and found > up_to:
        raise StoreFormatError(
            f"the table goes up to {found}, the archive's manifests to {up_to}: bring the newest manifests "
            "back from a copy",
            path=home,
        )


def differences(found: dict[str, str], wanted: dict[str, str]) -> str:
    """The differences between a table's columns and ours, in one line; empty if there are none."""
    problems = [f"no column {name}" for name in wanted if name not in found]
    problems += [f"column {name} is not ours" for name in found if name not in wanted]
    problems += [
        f"{name} is {found[name]}, not {wanted[name]}"
        for name in wanted
        if found.get(name, wanted[name]) != wanted[name]
    ]
    return "; ".join(problems)


def made_durable(folder: Path, work: Callable[[], None]) -> None:
    """Calls `work`, and syncs the files that it made in a folder, because the libraries do not sync them. The files get
    the access of the folder above."""
    files.make_directory(folder.parent)
    before = files.names(folder) if folder.exists() else set()
    with files.access_of(folder.parent):
        work()
    for name in sorted(files.names(folder) - before):
        with files.opened(folder / name) as fd:
            files.sync(fd, folder / name)
    files.sync_directory(folder)


def inside_of_data(path: str) -> str:
    """A file's path inside the table's folder."""
    return path.removeprefix(f"{DATA}/")
