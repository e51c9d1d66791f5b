"""An archive as a Delta table in its folder `data`. Needs `deltalake`.

Each commit is a transaction of the application `cystore-ARCHIVE`; its version is the table's end, a physical offset.
Delta refuses a second writer at the same version of its log, so each commit exists once. A kill leaves at most a
temporary file in `_delta_log`.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pyarrow as pa
from deltalake import CommitProperties, DeltaTable, Schema, Transaction
from deltalake.exceptions import DeltaError, TableNotFoundError
from deltalake.transaction import AddAction

from cystore import clock
from cystore.columns.archive_table import (
    ARCHIVE_ID,
    ARCHIVED_UP_TO,
    COLUMNS_OF_TABLE,
    STORE,
    Place,
    differences,
    inside_of_data,
    made_durable,
)
from cystore.errors import StoreConfigError, StoreFormatError, StoreIOError
from cystore.services.retention.archive_mark import DATA, ArchivedFile, Manifest

PARTITIONS = ["topic", "date"]
NO_DATE = "__HIVE_DEFAULT_PARTITION__"
SCHEMA = Schema.from_arrow(COLUMNS_OF_TABLE.append(pa.field("date", pa.date32())))


class DeltaArchive:
    """See `cystore.columns.archive_table.Table`."""

    def __init__(self, home: Path, archive_id: str, store: str, place: Place | None = None) -> None:
        self._home, self._data, self._id, self._store, self._place = (
            home,
            home / DATA,
            archive_id,
            store,
            place,
        )
        self._path: Path | str = self._data if place is None else place.url  # for errors
        self._uri = self._data.as_uri() if place is None else place.url
        self._options = None if place is None else place.options_of_delta()

    @property
    def uri(self) -> str:
        return str(self._path)

    def committed(self) -> int | None:
        table = self._opened()
        if table is None:
            return None
        owner = table.metadata().configuration.get(ARCHIVE_ID)
        if owner != self._id:
            raise StoreConfigError(
                f"the folder holds the Delta table of {'another archive' if owner else 'somebody else'}: name "
                "another folder",
                path=self._path,
            )
        if table.schema() != SCHEMA:
            wrong = differences(_types(table.schema()), _types(SCHEMA))
            raise StoreFormatError(
                f"the Delta table has other columns: {wrong or 'in another order'}", path=self._path
            )
        return table.transaction_version(self._application) or 0

    def commit(self, manifest: Manifest) -> None:
        if (self.committed() or 0) >= manifest.end:
            return
        try:
            if self._place is None:
                made_durable(self._data / "_delta_log", partial(self._commit, manifest))
            else:
                self._place.publish(self._home, manifest)
                self._commit(manifest)
        except (DeltaError, OSError) as error:
            raise StoreIOError(f"the Delta table cannot be written: {error}", path=self._path) from error

    @property
    def _application(self) -> str:
        return f"cystore-{self._id}"

    def _opened(self) -> DeltaTable | None:
        try:
            return DeltaTable(self._uri, storage_options=self._options)
        except TableNotFoundError:
            return None
        except (DeltaError, OSError) as error:
            raise StoreFormatError(f"the Delta table cannot be read: {error}", path=self._path) from error

    def _commit(self, manifest: Manifest) -> None:
        table = self._opened() or self._made()
        table.create_write_transaction(
            [_added(one) for one in manifest.files],
            "append",
            SCHEMA,
            PARTITIONS,
            commit_properties=CommitProperties(
                custom_metadata={
                    ARCHIVE_ID: self._id,
                    ARCHIVED_UP_TO: str(manifest.end),
                    STORE: manifest.store,
                },
                app_transactions=[Transaction(self._application, manifest.end)],
            ),
        )

    def _made(self) -> DeltaTable:
        return DeltaTable.create(
            self._uri,
            SCHEMA,
            partition_by=PARTITIONS,
            name="cystore",
            configuration={"delta.appendOnly": "true", ARCHIVE_ID: self._id, STORE: self._store},
            raise_if_key_not_exists=False,
            storage_options=self._options,
        )


def _added(one: ArchivedFile) -> AddAction:
    path = inside_of_data(one.path)
    date = Path(path).parent.name.removeprefix("date=")
    return AddAction(
        path=path,
        size=one.size_bytes,
        partition_values={"topic": one.topic, "date": None if date == NO_DATE else date},
        modification_time=clock.now_ms(),
        data_change=True,
        stats=json.dumps(_statistics(one)),
    )


def _statistics(one: ArchivedFile) -> dict[str, object]:
    """A manifest's facts about a file, with which readers skip files that cannot have a wanted row."""
    offsets = [end for ends in one.queues.values() for end in ends]
    low: dict[str, object] = {
        "physical_offset": one.physical[0],
        "partition": min(one.queues),
        "offset": min(offsets),
    }
    high: dict[str, object] = {
        "physical_offset": one.physical[1],
        "partition": max(one.queues),
        "offset": max(offsets),
    }
    try:
        low["timestamp"], high["timestamp"] = map(_time, one.times_ms)
    except (ValueError, OverflowError, OSError):
        pass  # times outside the calendar have no statistics
    return {
        "numRecords": one.rows,
        "minValues": low,
        "maxValues": high,
        "nullCount": dict.fromkeys(low, 0),
    }


def _time(ms: int) -> str:
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: str(field.type) for field in schema.fields}
