"""An archive as an Iceberg table in its folder `data`. Needs `pyiceberg[sql-sqlite]`.

The catalog is a SQLite file in the archive's folder. Each commit is one snapshot, and sets a property of the table to
the table's end, a physical offset: both are one change of the catalog's row. A kill leaves metadata files that no
snapshot names. Iceberg's metadata holds absolute paths, so a moved archive needs a new table.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from pyiceberg.catalog import Catalog
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import NamespaceAlreadyExistsError, NoSuchTableError
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import Table
from pyiceberg.transforms import DayTransform, IdentityTransform
from pyiceberg.types import (
    BinaryType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    TimestamptzType,
)

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
from cystore.errors import StoreConfigError, StoreError, StoreFormatError, StoreIOError
from cystore.services.retention.archive_mark import DATA, Manifest
from cystore.system import files

NAMESPACE, NAME = "cystore", "archive"
CATALOG = "catalog.db"
_INSIDE = 100  # ids of the fields inside lists and maps
_TYPES: dict[str, IcebergType] = {
    "string": StringType(),
    "binary": BinaryType(),
    "int32": IntegerType(),
    "int64": LongType(),
    "timestamp[us, tz=UTC]": TimestamptzType(),
    "list": ListType(_INSIDE, StringType(), element_required=False),
    "map": MapType(_INSIDE + 1, StringType(), _INSIDE + 2, StringType(), value_required=False),
}
SCHEMA = Schema(
    *(
        NestedField(
            number,
            field.name,
            _TYPES.get(str(field.type), _TYPES.get(str(field.type).partition("<")[0])),
            required=False,
        )
        for number, field in enumerate(COLUMNS_OF_TABLE, 1)
    )
)
SPEC = PartitionSpec(
    PartitionField(SCHEMA.find_field("topic").field_id, 1000, IdentityTransform(), "topic"),
    PartitionField(SCHEMA.find_field("timestamp").field_id, 1001, DayTransform(), "date"),
)


class IcebergArchive:
    """See `cystore.columns.archive_table.Table`."""

    def __init__(self, home: Path, archive_id: str, store: str, place: Place | None = None) -> None:
        self._home, self._id, self._store, self._place = home, archive_id, store, place

    @property
    def uri(self) -> str:
        with self._translated(), self._catalog() as catalog:
            table = _opened(catalog)
            return "" if table is None else table.metadata_location

    def committed(self) -> int | None:
        if not (self._home / CATALOG).exists():
            return None
        with self._translated(), self._catalog() as catalog:
            try:
                table = _opened(catalog)
            except (
                FileNotFoundError
            ) as error:  # the catalog names a metadata file that does not exist any more
                raise self._moved(str(error)) from None
            if table is None:
                return None
            owner = table.properties.get(ARCHIVE_ID)
            if owner != self._id:
                raise StoreConfigError(
                    f"the catalog holds the Iceberg table of {'another archive' if owner else 'somebody else'}: "
                    "name another folder",
                    path=self._home / CATALOG,
                )
            if table.location() != self._location:
                raise self._moved(table.location())
            wrong = differences(_types(table.schema()), _types(SCHEMA))
            if wrong:
                raise StoreFormatError(f"the Iceberg table has other columns: {wrong}", path=self._home)
            return int(table.properties.get(ARCHIVED_UP_TO, "0"))

    def commit(self, manifest: Manifest) -> None:
        if (self.committed() or 0) >= manifest.end:
            return
        with self._translated():
            if self._place is None:
                made_durable(self._home / DATA / "metadata", partial(self._commit, manifest))
            else:
                self._place.publish(self._home, manifest)
                self._commit(manifest)

    def _moved(self, what: str) -> StoreConfigError:
        return StoreConfigError(
            f"the Iceberg table's metadata names another place ({what}): move the archive back, or remove "
            f"{CATALOG} and data/metadata, "
            "and the next run makes the table anew",
            path=self._home,
        )

    @property
    def _location(self) -> str:
        return f"file://{self._home / DATA}" if self._place is None else self._place.url

    def _commit(self, manifest: Manifest) -> None:
        properties = {ARCHIVE_ID: self._id, ARCHIVED_UP_TO: str(manifest.end), STORE: manifest.store}
        with self._catalog() as catalog:
            table = _opened(catalog) or self._made(catalog)
            with table.transaction() as change:
                if manifest.files:
                    paths = [f"{self._location}/{inside_of_data(one.path)}" for one in manifest.files]
                    change.add_files(paths, snapshot_properties=properties, check_duplicate_files=False)
                change.set_properties(properties)

    def _made(self, catalog: Catalog) -> Table:
        try:
            catalog.create_namespace(NAMESPACE)
        except NamespaceAlreadyExistsError:
            pass
        return catalog.create_table(
            (NAMESPACE, NAME),
            SCHEMA,
            location=self._location,
            partition_spec=SPEC,
            properties={ARCHIVE_ID: self._id, STORE: self._store},
        )

    @contextmanager
    def _catalog(self) -> Iterator[Catalog]:
        path = self._home / CATALOG
        if not path.exists():
            files.open_file(path, os.O_RDWR | os.O_CREAT).close()  # SQLite's own would be readable for others
        catalog = SqlCatalog(
            "cystore",
            uri=f"sqlite:///{path}",
            warehouse=self._location if self._place else f"file://{self._home}",
            **(self._place.options_of_iceberg() if self._place else {}),
        )
        try:
            yield catalog
        finally:
            catalog.close()

    @contextmanager
    def _translated(self) -> Iterator[None]:
        try:
            yield
        except StoreError:
            raise
        except Exception as error:  # pyiceberg, SQLAlchemy, Arrow and pydantic have no common error class
            text = " ".join(str(error).split())
            raise StoreIOError(
                f"the Iceberg table cannot be read or written: {type(error).__name__}: {text}",
                path=self._home,
            ) from error


def _opened(catalog: Catalog) -> Table | None:
    try:
        return catalog.load_table((NAMESPACE, NAME))
    except NoSuchTableError:
        return None


def _types(schema: Schema) -> dict[str, str]:
    return {field.name: str(field.field_type) for field in schema.fields}
