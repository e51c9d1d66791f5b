"""Option includeArchive: the archive and the later log as one table.

The plan of a query fixes the border between them. Cleaning only removes the log below the border, so it does not
disturb a plan; records that are archived later are read from the log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pyarrow as pa
from pyspark.sql.datasource import InputPartition

from cystore.columns.arrow import ReadSettings, RowFilter
from cystore.columns.parquet import may_hold, read_files
from cystore.derived.reading.snapshot import LogSnapshot, packed
from cystore.errors import CorruptRecordError, OffsetError
from cystore.services.retention.archive_mark import ArchiveContent, ArchivedFile, content_of
from cystore.spark.options import ReadOptions
from cystore.store import MessageStore

PARTITION_BYTES = 32 * 1024 * 1024  # of Parquet, a partition's worth of log


@dataclass
class ArchivePartition(InputPartition):
    """The input of one task from an archive: files, and the log's damage at the time when they were made."""

    store: str
    folder: str
    files: tuple[ArchivedFile, ...]
    damaged: tuple[tuple[int, int, str], ...]
    rows: RowFilter

    def read(self, settings: ReadSettings) -> Iterator[pa.RecordBatch]:
        """The rows, and the rows or the error for damage, as the settings say."""
        settings = replace(settings, rows=self.rows)
        for begin, end, why in self.damaged:
            if settings.on_corruption == "fail":
                raise CorruptRecordError(
                    f"the log was damaged up to {end} when it was archived: {why}; onCorruption skip or column "
                    "continues behind it",
                    path=self.folder,
                    offset=begin,
                )
            if settings.on_corruption == "column":
                row = {"physical_offset": begin, "store": self.store, "corrupt": why, "corrupt_end": end}
                arrays = [pa.array([row.get(name)], settings.known[name]) for name in settings.columns]
                yield pa.RecordBatch.from_arrays(arrays, schema=settings.schema)
        yield from read_files(Path(self.folder), self.files, self.store, settings)


def archive_of(store: MessageStore, snapshot: LogSnapshot, options: ReadOptions) -> ArchiveContent | None:
    """The archive mark of a store; None if the archive is not wanted, or does not exist. The snapshot must be older, so
    the archive has the records that the snapshot lacks. Raises OffsetError if records are missing between them."""
    archived = store.archived() if options.include_archive else None
    if archived is None:
        return None
    if archived.up_to < snapshot.minimum and options.fail_on_data_loss:
        raise OffsetError(
            f"the archive ends at {archived.up_to}, and the log begins at {snapshot.minimum}: the records "
            "between are lost to this "
            "read; let failOnDataLoss be false to read the rest",
            path=archived.folder,
        )
    return content_of(archived)


def border_of(content: ArchiveContent | None, snapshot: LogSnapshot) -> int:
    """The border: rows below it come from the archive, rows from it on from the log."""
    return snapshot.minimum if content is None else min(content.archived.up_to, snapshot.end)


def archive_partitions(
    content: ArchiveContent | None, snapshot: LogSnapshot, rows: RowFilter, least: int | None
) -> list[ArchivePartition]:
    """The tasks for the part below the border."""
    if content is None:
        return []
    border = border_of(content, snapshot)
    rows = replace(rows, physical=(rows.physical[0], min(rows.physical[1], border)))
    found = [one for part in content.manifests for one in part.files if may_hold(one, rows)]
    damaged = tuple(
        damage
        for part in content.manifests
        for damage in part.damaged
        if damage[0] < rows.physical[1] and damage[1] > rows.physical[0]
    )
    size = PARTITION_BYTES
    if least is not None:
        size = max(1, min(size, sum(one.size_bytes for one in found) // least))
    packs = packed(found, size, at_most=least is not None)
    if damaged:
        packs.insert(0, ())
    return [
        ArchivePartition(
            str(snapshot.path), content.archived.folder, pack, damaged if not number else (), rows
        )
        for number, pack in enumerate(packs)
    ]
