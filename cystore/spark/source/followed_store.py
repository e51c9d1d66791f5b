"""The store that a stream follows, and its rows: the notes in an offset, and the checks of a restarted query.

The id in a store's manifest identifies the store. One record that was read identifies its log: the first record of a
segment, with its place, length, store timestamp and checksum. The record decides, because it is the log itself; a
copied or rebuilt manifest proves nothing about the log. If that record cannot be read any more, the id decides. Offsets
of earlier versions have neither, and get both with their next batch.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from cystore.derived.reading.snapshot import LogSnapshot
from cystore.errors import CorruptRecordError, OffsetError
from cystore.spark.options import ReadOptions

ID, LOG, READS = "id", "log", "reads"
At = Mapping[str, Any]  # an offset's notes about one store


def choice_of(options: ReadOptions) -> dict[str, Any]:
    """The options that choose rows: they must not change under one checkpoint."""
    found: dict[str, Any] = {
        "topic": sorted(options.topics),
        "subscribePattern": options.topic_pattern,
        "assign": [list(queue) for queue in options.assigned],
        "key": sorted(options.keys),
        "tags": sorted(options.tags),
        "includeTransactions": not options.in_queue,
    }
    return {name: value for name, value in found.items() if value}


def check_choice(options: ReadOptions, offset: Mapping[str, Any]) -> None:
    """Raises OffsetError if the query of an offset chose other rows."""
    before, now = offset.get(READS), choice_of(options)
    if before is not None and before != now:
        raise OffsetError(
            f"this query began with other options: {_shown(before)}, now {_shown(now)}. Rows that they choose below "
            "the query's position would "
            "be skipped: give the old options, or begin a query with another checkpointLocation"
        )


def _shown(choice: Mapping[str, Any]) -> str:
    parts = []
    for name, value in choice.items():
        plain = isinstance(value, list) and all(isinstance(one, str) for one in value)
        text = ",".join(value) if plain else value if isinstance(value, str) else json.dumps(value)
        parts.append(f"{name}={text}")
    return " ".join(parts) or "all topics"


def noted(snapshot: LogSnapshot, position: int, before: At | None = None) -> dict[str, Any]:
    """The notes about a store for an offset with this position. If the position is unchanged, the noted record stays
    too, because a changed offset would make an empty batch."""
    found: dict[str, Any] = {ID: snapshot.store_id} if snapshot.store_id else {}
    if before is not None and before["position"] == position and LOG in before:
        return {**found, LOG: before[LOG]}
    base = snapshot.base_of(position)
    if base == position:
        base -= snapshot.file_bytes  # the record at the position is not read yet
    record = _record(snapshot, base)
    return found if record is None else {**found, LOG: record}


def is_same(snapshot: LogSnapshot, at: At) -> bool | None:
    """Whether a store is the store that an offset names; None if that is unknown."""
    known, log_record = at.get(ID, ""), at.get(LOG)
    if log_record is not None and snapshot.minimum <= log_record[0] < snapshot.end:
        found = _record(snapshot, log_record[0])
        if found is not None:
            return bool(found == log_record)
    if known:
        return bool(known == snapshot.store_id)
    return False if log_record is not None and log_record[0] >= snapshot.end else None


def _record(snapshot: LogSnapshot, base: int) -> list[int] | None:
    """The first record of a segment; None if there is none, or if it is damaged."""
    if not snapshot.minimum <= base < snapshot.end:
        return None
    try:
        first = snapshot.record(base)
    except CorruptRecordError:
        return None
    except OffsetError:  # no record begins there: a log with segments of another length
        return [base, 0, 0, 0]
    return [base, first.size_bytes, first.store_timestamp_ms, first.body_crc]


def another(path: str, at: At, snapshot: LogSnapshot) -> OffsetError:
    """The error for a store that is not the offset's."""
    return OffsetError(
        f"this is not the store that this query followed here (its id was {at.get(ID) or 'not known'}, this one's is "
        f"{snapshot.store_id or 'not known'}): the old store was deleted and made anew, or replaced. If it was "
        "moved, name its new "
        f"place: option storeMoved = {json.dumps({path: '/its/new/place'})}. If this is the same store after all, set "
        f"storeMoved = {json.dumps({path: path})}. To give up the unread rows of the old store and read this "
        "one from its "
        "beginning, let failOnDataLoss be false",
        path=path,
    )


def gone(path: str, found_at: str | None) -> OffsetError:
    """The error for a store that the query does not read any more; `found_at`: its present place."""
    if found_at is not None:
        return OffsetError(
            f"a store that this query reads was moved to {found_at}: continue there with option storeMoved = "
            f"{json.dumps({path: found_at})}",
            path=path,
        )
    return OffsetError(
        "a store that this query reads does not exist any more; if it was moved, name its new place with "
        "option storeMoved = "
        f"{json.dumps({path: '/its/new/place'})}; let failOnDataLoss be false to continue without it",
        path=path,
    )


def not_moved(path: str, to: str, why: str) -> OffsetError:
    """The error for a move that storeMoved names and that did not happen."""
    return OffsetError(f"storeMoved says that this store was moved to {to}, but {why}", path=path)
