"""Stores as a lazy Arrow dataset: polars, DuckDB and pyarrow name columns and rows, and the dataset reads only these.

Each scan makes a new plan, so you may read a dataset again, and the scan includes messages written meanwhile. A scan
reads the messages that are published when it begins. It writes nothing, so a kill leaves nothing behind.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as pds
from pyarrow import fs

from cystore.columns.arrow import (
    COLUMNS,
    DAMAGE_COLUMNS,
    OnCorruption,
    ReadSettings,
    RowFilter,
    path_text,
    plan_ranges,
    read_missing,
    read_ranges,
    reading,
    several,
    stores_of,
)
from cystore.columns.expressions import columns_in, narrowed
from cystore.columns.object_store import ObjectStore, is_url
from cystore.columns.sealed import SealedLog, read_sealed
from cystore.derived.reading.snapshot import LogRange
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.store import MessageStore

Place = str | os.PathLike[str] | MessageStore
Progress = Callable[[int, int], None]  # bytes of log: read, in all
CHEAPEST = "offset"
_NO_FILE = "this dataset has no files: use its scanner, to_batches or to_table"


def scan(
    stores: Place | Sequence[Place],
    *,
    columns: Sequence[str] | None = None,
    topic: str | Sequence[str] = (),
    tags: str | Sequence[str] = (),
    key: str | Sequence[str] = (),
    transactions: bool = False,
    check_checksum: bool = True,
    on_corruption: OnCorruption = "fail",
    progress: Progress | None = None,
    storage: Mapping[str, str] | None = None,
    **settings: Any,
) -> LogDataset:
    """Stores as a `pyarrow.dataset.Dataset` that reads nothing before a query.

    `stores` are paths, globs, URLs (of sealed segments; `storage` holds options of their file system) or open stores,
    one or several. `polars.scan_pyarrow_dataset(...)`, DuckDB (``SELECT ... FROM dataset``) and `pyarrow` name the
    columns and rows of a query. Filters on topic, partition, offset, physical_offset, timestamp, tags and key limit
    the reads. `columns` (default: all), `topic`, `tags`, `key`, `transactions`, `check_checksum`, `on_corruption` and
    `settings` are those of `cystore.to_arrow`. The reading thread calls `progress(done, total)`, in bytes of log.

    Raises StoreConfigError here; a scan raises the errors of `cystore.to_arrow`.
    """
    known = {**COLUMNS, **DAMAGE_COLUMNS} if on_corruption == "column" else COLUMNS
    rows = RowFilter(
        topics=several("topic", topic, str),
        tags=several("tags", tags, str),
        keys=several("key", key, str),
        in_queue=not transactions,
    )
    read = ReadSettings(
        columns=tuple(known if columns is None else columns),
        rows=rows,
        check_checksum=check_checksum,
        on_corruption=on_corruption,
    )
    if progress is not None and not callable(progress):
        raise StoreConfigError(f"progress must be a function of two numbers, not {progress!r}")
    options = _options(storage)
    return LogDataset(_places(stores, options), read, progress, options, settings)


def _options(storage: object) -> dict[str, str]:
    if storage is None:
        return {}
    if not isinstance(storage, Mapping) or not all(
        isinstance(one, str) for pair in storage.items() for one in pair
    ):
        raise StoreConfigError("storage must be a mapping of names to texts")  # its values may be secret
    return dict(storage)


def _places(stores: object, options: dict[str, str]) -> tuple[Place, ...]:
    if isinstance(stores, (str, os.PathLike, MessageStore)):
        places: tuple[Any, ...] = (stores,)
    elif isinstance(stores, Iterable):
        places = tuple(stores)
    else:
        raise StoreConfigError(f"stores must be a path, a glob, a URL, a store or several, not {stores!r}")
    if not places:
        raise StoreConfigError("stores: no store to scan: give a path, a glob, a URL or several of them")
    for place in places:
        if isinstance(place, MessageStore):
            continue
        text = path_text(place)
        if isinstance(place, str) and is_url(text):
            ObjectStore.of(text, options)
    return places


class LogDataset(pds.FileSystemDataset):
    """The messages of stores. Made by `cystore.scan`.

    Arrow needs one of its own datasets as the base. Here it names a file that does not exist, so every method that is
    not overridden here fails instead of giving a wrong answer.
    """

    def __init__(
        self,
        places: tuple[Any, ...],
        read: ReadSettings,
        progress: Progress | None,
        storage: dict[str, str],
        settings: dict[str, Any],
        wanted: pc.Expression | None = None,
    ) -> None:
        ipc = pds.IpcFileFormat()
        fragment = ipc.make_fragment(_NO_FILE, fs.LocalFileSystem())
        super().__init__([fragment], read.schema, ipc, fs.LocalFileSystem())
        self._parts = places, read, progress, storage, settings, wanted

    def __reduce__(self) -> tuple[Any, ...]:
        """For a copy in another process."""
        return LogDataset, self._parts

    @property
    def schema(self) -> pa.Schema:
        """The columns."""
        return self._parts[1].schema

    @property
    def partition_expression(self) -> pc.Expression:
        """No condition holds for all rows."""
        return pc.scalar(True)

    # ------------------------------------------------------------------------------------------- scans

    def scanner(
        self,
        columns: Sequence[str] | Mapping[str, pc.Expression] | None = None,
        filter: pc.Expression | None = None,
        **options: Any,
    ) -> pds.Scanner:
        """A scan of columns (names, or expressions by name) and rows; `options` are those of
        `pyarrow.dataset.Scanner`."""
        wanted = _both(self._parts[5], filter)
        read = replace(self._parts[1], columns=self._needed(columns, wanted))
        if isinstance(columns, Mapping):
            columns = dict(columns)
        elif columns is None:
            columns = list(self.schema.names)
        return pds.Scanner.from_batches(
            self._batches(read, wanted),
            schema=read.schema,
            columns=columns if isinstance(columns, dict) else list(columns),
            filter=wanted,
            **options,
        )

    def _needed(self, columns: Any, wanted: pc.Expression | None) -> tuple[str, ...]:
        """The columns that must be decoded."""
        known = tuple(self.schema.names)
        names: set[str] = set()
        for one in (
            known if columns is None else columns.values() if isinstance(columns, Mapping) else columns
        ):
            names |= {one} if isinstance(one, str) else columns_in(one, known)
        if wanted is not None:
            names |= columns_in(wanted, known)
        cheapest = CHEAPEST if CHEAPEST in known else known[0]
        return tuple(name for name in known if name in names) or (cheapest,)

    def _batches(self, read: ReadSettings, wanted: pc.Expression | None) -> Iterator[pa.RecordBatch]:
        places, _, progress, storage, settings, _ = self._parts
        rows = read.rows if wanted is None else narrowed(read.rows, wanted)
        if rows is None:
            return
        read = replace(read, rows=rows)
        plan = _planned(places, read, storage, settings)
        total, done = sum(part.size_bytes for part, _ in plan), 0
        for part, reader in plan:
            yield from reader([part], read)
            done += part.size_bytes
            if progress is not None:
                progress(done, total)

    def to_batches(self, columns: Any = None, filter: Any = None, **options: Any) -> Iterator[pa.RecordBatch]:
        """The record batches of a scan."""
        return iter(self.scanner(columns, filter, **options).to_batches())

    def to_table(self, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """All rows of a scan."""
        return self.scanner(columns, filter, **options).to_table()

    def head(self, num_rows: int, columns: Any = None, filter: Any = None, **options: Any) -> pa.Table:
        """The first rows of a scan."""
        return self.scanner(columns, filter, **options).head(num_rows)

    def count_rows(self, filter: Any = None, **options: Any) -> int:
        """The number of rows of a scan; decodes only the columns of the filter, or one numeric column."""
        wanted = _both(self._parts[5], filter)
        needed = self._needed((), wanted)
        if wanted is None:
            read = replace(self._parts[1], columns=needed)
            return sum(batch.num_rows for batch in self._batches(read, None))
        return int(self.scanner(list(needed), filter, **options).count_rows())

    # ------------------------------------------------------------------------------- what is made of a dataset

    def filter(self, expression: pc.Expression) -> LogDataset:
        """The rows of this dataset that match an expression, as lazy as this one."""
        return LogDataset(*self._parts[:5], _both(self._parts[5], expression))

    def replace_schema(self, schema: pa.Schema) -> LogDataset:
        """Other columns of the same stores. Raises StoreConfigError for other names or types."""
        read = replace(self._parts[1], columns=tuple(schema.names))
        if not read.schema.equals(schema):
            raise StoreConfigError(f"the columns of a log are {read.schema}; cast them after reading")
        return LogDataset(self._parts[0], read, *self._parts[2:])

    def get_fragments(self, filter: pc.Expression | None = None) -> Iterator[pds.Fragment]:
        """The rows of a scan, as one fragment in memory."""
        yield from pds.InMemoryDataset(self.to_table(filter=filter)).get_fragments()

    def take(self, indices: Any, **options: Any) -> pa.Table:
        """The rows with these numbers."""
        return self.to_table(**options).take(indices)

    def sort_by(self, sorting: Any, **options: Any) -> pds.InMemoryDataset:
        """The rows, sorted, in memory."""
        return pds.InMemoryDataset(self.to_table().sort_by(sorting, **options))

    def join(self, right_dataset: Any, *arguments: Any, **options: Any) -> pds.InMemoryDataset:
        """The rows joined with another dataset, in memory."""
        return pds.InMemoryDataset(self.to_table()).join(right_dataset, *arguments, **options)

    def join_asof(self, right_dataset: Any, *arguments: Any, **options: Any) -> pds.InMemoryDataset:
        """The rows joined with the nearest rows of another dataset, in memory."""
        return pds.InMemoryDataset(self.to_table()).join_asof(right_dataset, *arguments, **options)

    @property
    def files(self) -> list[str]:
        """The stores, as they were named."""
        return [str(place) for place in self._parts[0]]


def _both(one: pc.Expression | None, other: pc.Expression | None) -> pc.Expression | None:
    if one is None or other is None:
        return other if one is None else one
    return one & other


Reader = Callable[[Iterable[LogRange], ReadSettings], Iterator[pa.RecordBatch]]


def _planned(
    places: tuple[Any, ...], read: ReadSettings, storage: dict[str, str], settings: dict[str, Any]
) -> list[tuple[LogRange, Reader]]:
    """The ranges of each store that may contain wanted rows, with their reader."""
    rows = read.rows
    found: list[tuple[LogRange, Reader]] = []
    by_path = [place for place in places if not (isinstance(place, str) and is_url(place))]
    for store in stores_of(by_path) if by_path else ():
        with reading(store, settings) as opened:
            found += [(part, read_ranges) for part in plan_ranges(opened.snapshot(), rows)]
    for place in places:
        if place in by_path:
            continue
        home, pattern = ObjectStore.of(place, dict(storage))
        matches = home.matching(pattern)
        if not matches:
            raise StoreFormatError("no store matches", path=pattern)
        for url in matches:
            reader = partial(read_sealed, object_store=home)
            log = SealedLog(home, url, fail_on_data_loss=read.on_corruption == "fail")
            low, high = rows.physical
            lost = [part for part in log.missing() if part.end > low and part.begin < high]
            parts: list[tuple[LogRange, Reader]] = [(part, reader) for part in plan_ranges(log, rows)]
            parts += [(part, read_missing) for part in lost]
            found += sorted(parts, key=lambda one: one[0].begin)
    return found
