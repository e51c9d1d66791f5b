"""Filters that Spark pushes down, as bounds on the read.

Spark evaluates every filter again, so a bound may admit too many rows, but must not remove a row that the filter keeps.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
)

from cystore.columns.arrow import FOREVER, RowFilter

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND = timedelta(milliseconds=1)
WORDS_MAX = 64  # more values of one `in` are left to Spark
BOUNDS = {"offset": "offsets", "physical_offset": "physical", "timestamp": "times_ms"}
VALUES = {"topic": "topics", "partition": "queue_ids", "key": "keys", "tags": "tags"}


def narrowed(rows: RowFilter, filters: Iterable[Filter]) -> RowFilter | None:
    """`rows` narrowed by the filters; None if no row can match both."""
    narrow: dict[str, Any]
    for one in filters:
        name = ".".join(getattr(one, "attribute", ()))
        if name in BOUNDS:
            bounds = _bounds(one, name == "timestamp")
            if bounds is not None:
                low, high = getattr(rows, BOUNDS[name])
                low, high = max(low, bounds[0]), min(high, bounds[1])
                if low >= high:
                    return None
                narrow = {BOUNDS[name]: (low, high)}
                rows = replace(rows, **narrow)
        elif name in VALUES:
            values = _values(one, int if name == "partition" else str)
            if values is not None:
                before = getattr(rows, VALUES[name])
                if name == "key" and before:
                    continue  # of the option: it matches any of a record's keys; the column is only the first key
                kept = tuple(value for value in values if value in before) if before else values
                if not kept:
                    return None
                narrow = {VALUES[name]: kept}
                rows = replace(rows, **narrow)
    return rows


def _values(one: Filter, kind: type) -> tuple[Any, ...] | None:
    """The allowed values of a column; None if the filter does not limit it."""
    if isinstance(one, (EqualTo, EqualNullSafe)):
        found: tuple[Any, ...] = (one.value,)
    elif isinstance(one, In):
        found = tuple(value for value in one.value if value is not None)
    else:
        return None
    sound = all(type(value) is kind and "\ufffd" not in str(value) for value in found)
    return found if sound and len(found) <= WORDS_MAX else None


def _bounds(one: Filter, is_time: bool) -> tuple[int, int] | None:
    """[begin, end) that contains every value that the filter keeps."""
    if isinstance(one, In):
        values = [value for value in one.value if value is not None]
    elif isinstance(
        one, (EqualTo, EqualNullSafe, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual)
    ):
        values = [one.value]
    else:
        return None
    numbers = [_number(value, is_time) for value in values]
    if not numbers or any(number is None for number in numbers):
        return None
    known = [number for number in numbers if number is not None]
    low, high = min(known), min(max(known) + 1, FOREVER)
    if isinstance(one, (GreaterThan, GreaterThanOrEqual)):
        return low, FOREVER
    if isinstance(one, (LessThan, LessThanOrEqual)):
        return -FOREVER, high
    return low, high


def _number(value: Any, is_time: bool) -> int | None:
    if not is_time:
        return value if type(value) is int else None
    if not isinstance(value, datetime):
        return None
    return ((value if value.tzinfo else value.replace(tzinfo=UTC)) - EPOCH) // MILLISECOND
