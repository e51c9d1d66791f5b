"""Options of a table made by SQL: Spark 4.3 does not give them to the source when it reads the table.

Spark keeps the columns that the source named when the table was made, so this module puts the table's options into the
metadata of its first column. Spark copies metadata with a column: into the plans, schemas and files of every query on
the table. So the metadata must not contain a secret, and a read or write that names its own store ignores it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping

from pyspark.sql.types import StructType

from cystore.errors import StoreConfigError
from cystore.spark.options import NAMES, SETTING_PREFIX, STORAGE_PREFIX, may_be_secret

METADATA = "cystore.options"
COPY = "copyTable"
_PLACES = frozenset({"path", "paths", "location"})


def is_table(options: Mapping[str, str]) -> bool:
    """Whether Spark asks for the columns of a table that it is making."""
    return "provider" in options


def remember(options: Mapping[str, str], schema: StructType) -> None:
    """Puts a table's options into its columns. Raises StoreConfigError for an option that may be a secret."""
    kept = {}
    names = {name.lower() for name in NAMES} | _PLACES
    for name, value in options.items():
        plain = name.lower()
        if plain.startswith(STORAGE_PREFIX) and may_be_secret(plain.removeprefix(STORAGE_PREFIX)):
            raise StoreConfigError(
                f"option {name} may be a secret, and Spark stores a table's options in its columns, where "
                "every query and every file "
                "written from it shows them: put the secret into the environment, or read with "
                'spark.read.format("cystore").option(...)'
            )
        if plain in names or plain.startswith((SETTING_PREFIX, STORAGE_PREFIX)):
            kept[name] = value
    schema.fields[0].metadata = {METADATA: json.dumps(kept)}


def remembered(schema: StructType) -> dict[str, str]:
    """The options of the table from which a schema's first column came; empty if it came from no table."""
    if not schema.fields:
        return {}
    found: dict[str, str] = json.loads((schema.fields[0].metadata or {}).get(METADATA, "{}"))
    return found


def names_place(options: Mapping[str, str]) -> bool:
    """Whether the options name a store."""
    return any(name.lower() in _PLACES for name in options)


def read_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Options of a read. A table's options count only if the call names no store. Raises StoreConfigError for a table
    without options."""
    if names_place(options):
        return dict(options)
    kept = remembered(schema)
    if not kept and not options:
        raise StoreConfigError(
            "the table was made with a list of columns, or of rows, and Spark does not tell a Python data source the "
            "path of such a table. DROP TABLE it, which leaves the store as it is, and make it without a list: CREATE "
            "TABLE name USING cystore OPTIONS (path '/var/lib/app/store', columns 'topic,value'). Or name the path in "
            "the query: SELECT * FROM name WITH (path '/var/lib/app/store')"
        )
    return {**kept, **options}


def write_options(options: Mapping[str, str], schema: StructType) -> dict[str, str]:
    """Options of a write: only those of the call. Raises StoreConfigError if the call names no store (INSERT and CREATE
    TABLE AS SELECT cannot name one), and for the columns of a table made by SQL, which is the source of the rows or the
    target."""
    if not names_place(options):
        raise StoreConfigError(
            "Spark does not tell a Python data source which table a query writes to, so cystore cannot write to a "
            "table. Write to the store's "
            'directory: df.write.format("cystore").mode("append").save("/var/lib/app/store")'
        )
    chosen = {name: value for name, value in options.items() if name.lower() != COPY.lower()}
    if remembered(schema) and len(chosen) == len(options):
        raise StoreConfigError(
            "the first column is that of a table made by SQL. If a table is the target (saveAsTable, insertInto, "
            "writeTo): Spark does not tell a Python data source which one it is. If the rows come from a table: a new "
            "table of them would read the old store. Write to the store's directory: "
            'df.write.format("cystore").mode("append").save("/var/lib/app/store"), and for rows of a table add '
            f'.option("{COPY}", "true")'
        )
    return chosen
