"""Attempts of tasks, from the events in one part of the lifecycle log: computed on executors, in columns.

A row of SCHEMA has the facts about an attempt (a task id with a number of retries) in one part of the log.
`task_runs.joined` joins the rows of an attempt from several parts. The events of an attempt are mostly close together,
so the join gets a quarter of the log's rows. `retries` is null for an end whose try began in another part (`tries`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote_to_bytes

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cystore.reports.details import details_of
from cystore.reports.fingerprints import classes, fingerprints
from cystore.reports.task_layout import (
    ENDS_OF_CODE,
    FAILURES,
    RECEIVED,
    REDELIVERED,
    RETRIED,
    ROOT,
    SENT,
    STARTED,
    SUCCEEDED,
    UNCOUNTED,
)
from cystore.reports.tries import tries

# The columns that are read from the log.
COLUMNS = ("timestamp", "tags", "keys", "properties", "value", "store")
_TIME = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("task_id", pa.string()),
        ("retries", pa.int32()),
        ("name", pa.string()),
        ("root_id", pa.string()),
        ("sent", _TIME),
        ("received", _TIME),
        ("started", _TIME),
        ("last_started", _TIME),
        ("ended", _TIME),
        ("deliveries", pa.int64()),
        ("worker", pa.string()),
        ("queue", pa.string()),
        ("eta", _TIME),
        ("runtime", pa.float64()),
        ("outcome", pa.string()),
        ("failed", pa.bool_()),
        ("class", pa.string()),
        ("fingerprint", pa.string()),
        ("exception", pa.string()),
        ("traceback", pa.string()),
        ("store", pa.string()),
    ]
)
EVENTS_AT_ONCE = 250_000  # bounds the memory of a task


def attempts(batches: Iterable[pa.RecordBatch], end_ms: int | None = None) -> Iterator[pa.RecordBatch]:
    """Batches with COLUMNS to batches of SCHEMA. Events at or after `end_ms` are left out."""
    held: list[pa.Table] = []
    for batch in batches:
        events = events_of(batch)
        if end_ms is not None:
            before = pa.scalar(end_ms * 1000, pa.int64()).cast(_TIME)
            events = events.filter(pc.less(events["time"], before))
        held.append(events)
        if sum(table.num_rows for table in held) >= EVENTS_AT_ONCE:
            yield from attempts_of(pa.concat_tables(held)).to_batches()
            held.clear()
    if held:
        yield from attempts_of(pa.concat_tables(held)).to_batches()


def events_of(batch: pa.RecordBatch) -> pa.Table:
    """The columns of `task_events`, in Arrow; events without a task id are left out."""
    keys, properties = batch["keys"], batch["properties"]
    first = _items(keys.offsets, keys.values, np.flatnonzero(np.diff(keys.offsets.to_numpy())), None)
    is_root = pc.fill_null(pc.starts_with(keys.values, ROOT), False)
    root = _items(keys.offsets, keys.values, None, is_root)
    named = _items(properties.offsets, properties.items, None, pc.equal(properties.keys, "task"))
    task_id = _ids(first)
    details = details_of(batch["value"])
    columns = {
        "time": batch["timestamp"].cast(_TIME),
        "event": batch["tags"],
        "name": named,
        "task_id": task_id,
        "root_id": pc.coalesce(_ids(pc.utf8_slice_codeunits(root, len(ROOT))), task_id),
        **{name: details[name] for name in details.schema.names},
        "store": batch["store"],
    }
    return pa.table(columns).filter(pc.is_valid(task_id))


def _items(
    offsets: pa.Array, items: pa.Array, rows: np.ndarray[Any, Any] | None, which: pa.Array | None
) -> pa.Array:
    """The first item of each list for which `which` is true; with `rows`, the first item of these lists."""
    ends = offsets.to_numpy()
    at = np.full(len(ends) - 1, -1, np.int64)
    if rows is not None:
        at[rows] = ends[rows]
    else:
        found = np.flatnonzero(np.asarray(pc.fill_null(which, False)))
        found = found[(found >= ends[0]) & (found < ends[-1])]
        at[np.searchsorted(ends, found, side="right")[::-1] - 1] = found[
            ::-1
        ]  # the first one is written last
    return items.take(pa.array(at, mask=at < 0))


def _ids(keys: pa.Array) -> pa.Array:
    """The ids in keys; few of them are percent-encoded."""
    coded = pc.fill_null(pc.match_substring(keys, "%"), False)
    if not pc.any(coded).as_py():
        return keys
    plain = pa.array([_id(key) for key in keys.filter(coded).to_pylist()], pa.string())
    return pc.replace_with_mask(keys, coded, plain)


def _id(key: str) -> str | None:
    try:
        return unquote_to_bytes(key).decode()
    except UnicodeDecodeError:
        return None


def attempts_of(events: pa.Table) -> pa.Table:
    """One row of SCHEMA for each attempt in the events."""
    events = _in_order(events)
    kind, time = events["event"], events["time"]
    told = np.asarray(pc.fill_null(events["retries"], 0))
    begun = np.asarray(pc.fill_null(pc.equal(kind, STARTED), False))
    ends_code = np.asarray(pc.is_in(kind, pa.array(ENDS_OF_CODE)))
    retries = tries(_whole(events["task_id"]), told, begun, ends_code & (told == 0))
    requeue = pc.fill_null(events["requeue"], False)
    failed = pc.and_(pc.is_in(kind, pa.array(FAILURES)), pc.invert(requeue))
    over = pc.or_(failed, pc.is_in(kind, pa.array([SUCCEEDED, RETRIED])))
    uncounted = pc.is_in(kind, pa.array(UNCOUNTED))
    arrived = pc.is_in(kind, pa.array([RECEIVED, REDELIVERED]))
    nothing = pa.scalar(None, pa.int64())
    rows = events.num_rows
    number = pa.array(np.arange(rows))
    # A message that comes again may be revoked after its task ended: any other end counts before that one.
    below = pc.if_else(uncounted, pa.array(np.arange(rows) - rows), nothing)
    texts = {name: ranked(events[name]) for name in ("name", "worker", "queue", "store")}
    table = pa.table(
        {
            "task_id": events["task_id"],
            "retries": retries,
            "first": number,
            "sent": _where(pc.equal(kind, SENT), time),
            "received": _where(arrived, time),
            "started": _where(pc.equal(kind, STARTED), time),
            "deliveries": arrived.cast(pa.int64()),
            "last": pc.if_else(over, number, below),
            "eta": _times(events["eta"]),
            **{name: ranks for name, (ranks, _) in texts.items()},
        }
    )
    wanted = [(name, "min") for name in ("first", "sent", "received", "started")]
    wanted += [(name, "max") for name in ("last", "started", "eta", *texts)]
    found = table.group_by(["task_id", "retries"]).aggregate([*wanted, ("deliveries", "sum")])
    last = found["last_max"]
    last = pc.if_else(pc.less(last, 0), pc.add(last, rows), last)
    ends = {name: events[name].take(last) for name in ("runtime", "exception", "traceback")}
    outcome, bad = kind.take(last), pc.fill_null(failed.take(last), False)
    missing = pa.scalar(None, pa.string())
    class_ = pc.if_else(bad, classes(_whole(ends["exception"]), _whole(outcome)), missing)
    columns = {
        "task_id": found["task_id"],
        "retries": found["retries"],
        "root_id": events["root_id"].take(found["first_min"]),
        **{name: found[f"{name}_min"] for name in ("sent", "received", "started")},
        "last_started": found["started_max"],
        "ended": time.take(last),
        "deliveries": found["deliveries_sum"],
        "eta": found["eta_max"],
        **{name: distinct.take(found[f"{name}_max"]) for name, (_, distinct) in texts.items()},
        **ends,
        "outcome": outcome,
        "failed": bad,
        "class": class_,
        "fingerprint": fingerprints(_whole(class_), _whole(ends["traceback"])),
    }
    return pa.table([columns[name] for name in SCHEMA.names], schema=SCHEMA)


def _in_order(events: pa.Table) -> pa.Table:
    """The events in ascending order of time. cystore writes a log in this order; another writer's clock may go back."""
    events = events.combine_chunks()
    times = events["time"].cast(pa.int64()).to_numpy()
    if len(times) < 2 or (np.diff(times) >= 0).all():
        return events
    return events.take(pa.array(np.argsort(times, kind="stable")))


def _where(which: pa.ChunkedArray, values: pa.ChunkedArray) -> pa.ChunkedArray:
    return pc.if_else(which, values, pa.scalar(None, values.type))


def _whole(column: pa.Array | pa.ChunkedArray) -> pa.Array:
    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def ranked(column: pa.ChunkedArray) -> tuple[pa.Array, pa.Array]:
    """Numbers in the order of the texts, and the distinct texts by number, so that the greatest text of a group is
    found by numbers."""
    coded = _whole(column).dictionary_encode()
    order = pc.sort_indices(coded.dictionary)
    rank = np.empty(len(order), np.int64)
    rank[order.to_numpy()] = np.arange(len(order))
    return pa.array(rank).take(coded.indices), coded.dictionary.take(order)


def _times(texts: pa.ChunkedArray) -> pa.Array:
    """ISO 8601 texts as times, in UTC unless the text has a zone; null for a text that is no time."""
    coded = _whole(texts).dictionary_encode()
    return pa.array([_time(text) for text in coded.dictionary.to_pylist()], _TIME).take(coded.indices)


def _time(text: str) -> datetime | None:
    try:
        time = datetime.fromisoformat(text)
        return (time if time.tzinfo else time.replace(tzinfo=UTC)).astimezone(UTC)
    except (ValueError, OverflowError):
        return None
