"""The formats of archives: plain Parquet, and tables. Each table format needs its own library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from cystore.columns.archive_table import Place, Table
from cystore.errors import StoreConfigError
from cystore.services.retention.archive_mark import DELTA, FORMATS, ICEBERG, PARQUET

_PACKAGES = {DELTA: "deltalake", ICEBERG: "pyiceberg"}
_NO_URI = {
    DELTA: "%",
    ICEBERG: "%#?",
}  # with these characters in its path, a library does not find a folder again


def check_format(name: str | None) -> None:
    """Raises StoreConfigError for an unknown format, and for a format whose library is not installed."""
    if name is not None and name not in FORMATS:
        raise StoreConfigError(f"format must be one of {', '.join(FORMATS)}, not {name!r}")
    if name in _PACKAGES:
        _opener(name)


def _opener(name: str) -> Callable[[Path, str, str, Place | None], Table]:
    try:
        if name == DELTA:
            from cystore.columns.archive_delta import DeltaArchive

            return DeltaArchive
        from cystore.columns.archive_iceberg import IcebergArchive

        return IcebergArchive
    except ModuleNotFoundError as error:
        raise StoreConfigError(
            f"format {name} needs {_PACKAGES[name]}: pip install 'cystore[{name}]' (there is no {error.name})"
        ) from None


def check_place(name: str, home: Path) -> None:
    """Raises StoreConfigError if the folder cannot hold an archive of the format: it is a table itself, or the
    format's library cannot use its path."""
    if (home / "_delta_log").exists() or (home / "metadata").exists():
        raise StoreConfigError(
            "the folder is a table already: name another folder for the archive", path=home
        )
    wrong = [character for character in _NO_URI.get(name, "") if character in str(home)]
    if wrong:
        raise StoreConfigError(
            f"format {name} cannot be written below a folder with {wrong[0]!r} in its name", path=home
        )


def open_table(
    name: str, home: Path, archive_id: str, store: str, place: Place | None = None
) -> Table | None:
    """The table of an archive; None for plain Parquet. Raises StoreConfigError, StoreFormatError."""
    if name == PARQUET:
        return None
    table = _opener(name)(home, archive_id, store, place)
    table.committed()
    return table
