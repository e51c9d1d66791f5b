"""The tables of the report, computed in this process, in columns.

The tables are those of `cystore.spark.report`, row for row; percentiles are exact. A test compares both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cystore.reports.attempts import SCHEMA, ranked
from cystore.reports.task_layout import RETRIED, UNCOUNTED
from cystore.reports.tries import tries

PERCENTILES = (0.5, 0.95, 0.99)
# The columns of numbers by task, worker and hour.
NUMBERS = (
    *("count", "failed", "failure_rate", "retried"),
    *(f"{what}_p{round(100 * p)}" for what in ("runtime", "wait") for p in PERCENTILES),
)
HOUR_US = 3_600_000_000
_TIME = pa.timestamp("us", tz="UTC")
Numbers = np.ndarray[Any, Any]


def tables_of(parts: Sequence[pa.RecordBatch], top: int, names: Sequence[str] = ()) -> dict[str, pa.Table]:
    """`hourly`, `names`, `workers`, `tracebacks`, `workflows` and `unfinished` from the attempts in parts of the log
    (`attempts.SCHEMA`); with `names` of these tasks alone."""
    runs = joined(pa.Table.from_batches(parts, schema=SCHEMA))
    if names:
        runs = runs.filter(pc.fill_null(pc.is_in(runs["name"], pa.array(names, pa.string())), False))
    return {
        "hourly": _numbers(runs, "name", hourly=True),
        "names": _numbers(runs, "name", hourly=False),
        "workers": _numbers(runs, "worker", hourly=False),
        "tracebacks": _tracebacks(runs, top),
        "workflows": _workflows(runs, top),
        "unfinished": _unfinished(runs, top),
    }


def joined(parts: pa.Table) -> pa.Table:
    """One row for each attempt, with its `wait` in seconds."""
    parts = _with_tries(parts.combine_chunks())
    ended = _micros(parts["ended"])
    counted = np.asarray(pc.invert(pc.is_in(parts["outcome"], pa.array(UNCOUNTED))))
    # Attempts that have not ended come last; ends that are not counted come before all that are.
    by_end = np.lexsort((ended, counted))
    place = np.empty(parts.num_rows, np.int64)
    place[by_end] = np.arange(parts.num_rows)
    texts = {name: ranked(parts[name]) for name in ("name", "root_id", "worker", "store")}
    table = parts.select(["task_id", "retries", "sent", "received", "started", "eta"])
    table = table.append_column("last", pa.array(place, mask=np.isnan(ended)))
    for name, (ranks, _) in texts.items():
        table = table.append_column(name, ranks)
    least, greatest = ("sent", "received", "started"), ("eta", "last", *texts)
    found = table.group_by(["task_id", "retries"]).aggregate(
        [*((name, "min") for name in least), *((name, "max") for name in greatest)]
    )
    last = pa.array(by_end).take(found["last_max"])
    at_end = ("ended", "runtime", "outcome", "class", "fingerprint", "exception", "traceback")
    return pa.table(
        {
            "task_id": found["task_id"],
            "retries": found["retries"],
            **{name: distinct.take(found[f"{name}_max"]) for name, (_, distinct) in texts.items()},
            **{name: found[f"{name}_min"] for name in least},
            **{name: parts[name].take(last) for name in at_end},
            "failed": pc.fill_null(parts["failed"].take(last), False),
            "wait": pa.array(_waits(found), from_pandas=True),
        }
    )


def _with_tries(parts: pa.Table) -> pa.Table:
    """The parts, each with its try: that of an end may have begun in another part."""
    lacking = pc.is_null(parts["retries"])
    ids = parts["task_id"].filter(lacking)
    if not len(ids):
        return parts
    some = np.flatnonzero(np.asarray(pc.is_in(parts["task_id"], ids.combine_chunks())))
    begun = _micros(parts["last_started"])[some]
    is_begin, is_lacking = ~np.isnan(begun), np.asarray(lacking)[some]
    times = np.where(is_begin, begun, _micros(parts["ended"])[some])
    by_time = np.lexsort((is_lacking, times))
    order = some[by_time]
    known = np.asarray(pc.fill_null(parts["retries"], 0)).copy()
    task_ids = parts["task_id"].take(pa.array(order)).combine_chunks()
    found = tries(task_ids, known[order], is_begin[by_time], is_lacking[by_time])
    known[order] = np.asarray(pc.fill_null(found, 0))
    at = parts.schema.get_field_index("retries")
    return parts.set_column(at, parts.schema.field(at), pa.array(known, pa.int32()))


def _waits(found: pa.Table) -> Numbers:
    sent, received, started = (_micros(found[f"{name}_min"]) for name in ("sent", "received", "started"))
    since = np.where(np.isnan(sent), received, sent)
    since = np.where(np.isnan(since), since, np.fmax(since, _micros(found["eta_max"])))
    waits: Numbers = np.maximum(started - since, 0) / 1e6
    return waits


def _micros(times: pa.ChunkedArray) -> Numbers:
    """Microseconds since 1970 as floats, exact for 285 years; NaN for null."""
    return _floats(times.cast(pa.int64()))


def _floats(column: pa.ChunkedArray) -> Numbers:
    return np.asarray(pc.fill_null(column.cast(pa.float64(), safe=False), np.nan))  # a time may be any


def _numbers(runs: pa.Table, by: str, *, hourly: bool) -> pa.Table:
    ended = pc.and_(pc.is_valid(runs["outcome"]), pc.invert(pc.is_in(runs["outcome"], pa.array(UNCOUNTED))))
    runs = runs.filter(pc.and_(pc.is_valid(runs[by]), ended))
    ranks, distinct = ranked(runs[by])
    name = np.asarray(ranks)
    hour = np.asarray(runs["ended"].cast(pa.int64())) // HOUR_US if hourly else np.zeros(len(name), np.int64)
    keys, group = np.unique(np.stack([hour, name]), axis=1, return_inverse=True)
    group = group.reshape(-1)
    retried = np.asarray(pc.equal(runs["outcome"], RETRIED))
    failed = np.asarray(runs["failed"])
    size = keys.shape[1]
    count = np.bincount(group[~retried], minlength=size)
    bad = np.bincount(group[failed], minlength=size)
    with np.errstate(invalid="ignore", divide="ignore"):
        rate = np.where(count > 0, bad / count, np.nan)
    columns: dict[str, Any] = {by: distinct.take(pa.array(keys[1]))}
    if hourly:
        columns["hour"] = pa.array(keys[0] * HOUR_US).cast(_TIME)
    columns |= {
        "count": count,
        "failed": bad,
        "failure_rate": pa.array(rate, from_pandas=True),
        "retried": np.bincount(group[retried], minlength=size),
        **_percentiles("runtime", group, np.where(retried, np.nan, _floats(runs["runtime"])), size),
        **_percentiles("wait", group, _floats(runs["wait"]), size),
    }
    found = pa.table(columns)
    order = [("hour", "ascending")] if hourly else [("count", "descending")]
    return found.sort_by([*order, (by, "ascending")])


def _percentiles(name: str, group: Numbers, values: Numbers, size: int) -> dict[str, pa.Array]:
    """For each group and percentile, the least value that this share of the group's values does not exceed; null for a
    group without values."""
    known = ~np.isnan(values)
    group, values = group[known], values[known]
    values = values[np.lexsort((values, group))]
    counts = np.bincount(group, minlength=size)
    begins = np.cumsum(counts) - counts
    found = {}
    for p in PERCENTILES:
        rank = np.maximum(np.ceil(p * counts).astype(np.int64), 1) - 1
        at = pa.array(begins + rank, mask=counts == 0)
        found[f"{name}_p{round(100 * p)}"] = pa.array(values).take(at)
    return found


def _tracebacks(runs: pa.Table, top: int) -> pa.Table:
    runs = runs.filter(runs["failed"]).sort_by([("ended", "ascending"), ("task_id", "ascending")])
    keys = ["name", "class", "fingerprint"]
    table = runs.select([*keys, "ended"]).append_column("last", pa.array(np.arange(runs.num_rows)))
    found = table.group_by(keys).aggregate([([], "count_all"), ("ended", "min"), ("last", "max")])
    last = found["last_max"]
    columns: Mapping[str, Any] = {
        **{name: found[name] for name in keys},
        "count": found["count_all"],
        "first": found["ended_min"],
        "last": runs["ended"].take(last),
        **{name: runs[name].take(last) for name in ("exception", "traceback", "task_id")},
    }
    order = [
        ("count", "descending"),
        ("last", "descending"),
        ("name", "ascending"),
        ("fingerprint", "ascending"),
    ]
    return pa.table(columns).sort_by(order).slice(0, top)


def _unfinished(runs: pa.Table, top: int) -> pa.Table:
    newest = runs.group_by("task_id").aggregate([("retries", "max")])
    at = pc.index_in(runs["task_id"], value_set=newest["task_id"].combine_chunks())
    is_newest = pc.equal(runs["retries"], newest["retries_max"].take(at))
    runs = runs.filter(pc.and_(pc.is_null(runs["outcome"]), is_newest))
    state = pc.if_else(pc.is_valid(runs["received"]), "received", "sent")
    times = [runs[name].cast(pa.int64()) for name in ("sent", "received", "started")]
    result = pa.table(
        {
            **{name: runs[name] for name in ("name", "task_id", "retries")},
            "state": pc.if_else(pc.is_valid(runs["started"]), "started", state),
            "since": pc.min_element_wise(*times).cast(_TIME),
            "worker": runs["worker"],
            "total": pa.array(np.full(runs.num_rows, runs.num_rows)),
        }
    )
    return result.sort_by([("since", "ascending"), ("task_id", "ascending")]).slice(0, top)


def _workflows(runs: pa.Table, top: int) -> pa.Table:
    runs = runs.filter(pc.is_valid(runs["root_id"]))
    nothing = pa.scalar(None, pa.int64())
    is_root = pc.equal(runs["task_id"], runs["root_id"])
    times = [runs[name].cast(pa.int64()) for name in ("sent", "received", "started", "ended")]
    table = pa.table(
        {
            "root_id": runs["root_id"],
            "task_id": runs["task_id"],
            "begin": pc.min_element_wise(*times),
            "end": pc.if_else(
                pc.not_equal(runs["outcome"], RETRIED), runs["ended"], pa.scalar(None, runs["ended"].type)
            ),
            "root": pc.if_else(is_root, pa.array(np.arange(runs.num_rows)), nothing),
            "failed": runs["failed"].cast(pa.int64()),
        }
    )
    wanted = [
        ("begin", "min"),
        ("end", "max"),
        ("root", "max"),
        ("task_id", "count_distinct"),
        ("failed", "sum"),
    ]
    found = table.group_by("root_id").aggregate(wanted)
    found = found.filter(pc.is_valid(found["end_max"]))
    took = (_micros(found["end_max"]) - _micros(found["begin_min"])) / 1e6
    result = pa.table(
        {
            "root_id": found["root_id"],
            "name": runs["name"].take(found["root_max"]),
            "begin": found["begin_min"].cast(_TIME),
            "seconds": pa.array(took),
            "tasks": found["task_id_count_distinct"],
            "failed": found["failed_sum"],
        }
    )
    alone = pc.equal(result["tasks"], 1)  # a task by itself is hardly a workflow
    order = [("alone", "ascending"), ("seconds", "descending"), ("root_id", "ascending")]
    found = result.append_column("alone", alone.cast(pa.int8())).sort_by(order).slice(0, top)
    return found.drop_columns(["alone"])
