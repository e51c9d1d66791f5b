"""The part of a store that is verified."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from cystore.config import StoreConfig
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.recovery.scan import likely_end, missing_begin, missing_end, scan_log
from cystore.recovery.walk import rules
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.log_reader import LogReader


@dataclass(frozen=True)
class Bounds:
    """The bounds of a verification: records of [begin, end); below `dispatched` each must have its entries.

    `complete`: queues and index contain no other entries. While other processes append, or after a crash, they may.
    """

    begin: int
    end: int
    dispatched: int
    complete: bool


def likely_bounds(root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool) -> Bounds | None:
    """The bounds of a sound store that no process has open, without recovery's walk; None if only the walk can tell."""
    if missing_begin(root, reader) is not None or missing_end(read_checkpoint(root), reader) is not None:
        return None
    end = likely_end(root, config, reader, abnormal=abnormal)
    return None if end < 0 else Bounds(reader.begin, end, end, complete=not abnormal)


def bounds_at_rest(
    root: Path, config: StoreConfig, reader: LogReader, *, abnormal: bool
) -> tuple[Bounds, list[Damage]]:
    """The bounds of a store that no process has open, and the damage behind its end that recovery would truncate."""
    log = scan_log(root, config, reader, abnormal=abnormal)
    damage = []
    missing = missing_begin(root, reader)
    if missing is not None:
        damage.append(
            Damage("record", reader.path(missing[0]), *missing, "the log's first files are missing")
        )
    missing = missing_end(read_checkpoint(root), reader)
    if missing is not None:
        path = reader.path(reader.base_of(missing[0]))
        damage.append(Damage("record", path, *missing, "the log's last files are missing"))
    if log.dirty is not None and log.reason != rules.A_BLANK:
        path = reader.path(reader.base_of(log.end))
        damage.append(Damage("record", path, log.end, log.dirty.end, log.reason))
    for file in log.later:
        if not file.zero:
            end = file.base + log.file_bytes
            damage.append(Damage("record", reader.path(file.base), file.base, end, log.reason))
    return Bounds(log.begin, log.end, log.end, complete=not abnormal), damage
