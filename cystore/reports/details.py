"""Bodies of the lifecycle log as columns. Arrow parses whole batches; a body that Arrow might misread is parsed
separately.

A body that is no JSON object has no details, and a detail of another type is left out, so that one odd event does not
end a report.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as pa_json

# The fields of `cystore.celery.base.events.FIELDS` that tables of tasks have.
SCHEMA = pa.schema(
    [
        ("runtime", pa.float64()),
        ("retries", pa.int32()),
        ("requeue", pa.bool_()),
        ("exception", pa.string()),
        ("traceback", pa.string()),
        ("worker", pa.string()),
        ("queue", pa.string()),
        ("eta", pa.string()),
    ]
)
# Arrow reads one object a line, so a body must be one line that holds one object.
_ONE_OBJECT = r"^\{[^\r\n]*\}$"
_PERHAPS_TWO = r"\}[ \t]*\{"
_INT32_MAX = (1 << 31) - 1


def details_of(bodies: pa.Array) -> pa.Table:
    """A row of SCHEMA for each body; unknown details are null."""
    parsed = _by_arrow(bodies)
    return _by_python(bodies) if parsed is None else parsed


def _by_arrow(bodies: pa.Array) -> pa.Table | None:
    """None if a body is not exactly one object on one line, or if Arrow refuses a body."""
    if len(bodies) == 0 or bodies.null_count:
        return None
    try:
        texts = bodies.cast(pa.string())  # checks that all of it is UTF-8
        if not pc.all(pc.match_substring_regex(texts, _ONE_OBJECT)).as_py():
            return None
        if pc.any(pc.match_substring_regex(texts, _PERHAPS_TWO)).as_py():
            return None
        ends = pa.array([0, len(texts)], pa.int32())
        lines = pc.binary_join(pa.ListArray.from_arrays(ends, texts), "\n")[0].as_buffer()
        parsed = pa_json.read_json(
            pa.BufferReader(lines),
            read_options=pa_json.ReadOptions(block_size=lines.size + 1, use_threads=False),
            parse_options=pa_json.ParseOptions(explicit_schema=SCHEMA, unexpected_field_behavior="ignore"),
        )
        parsed.validate(full=True)
    except (pa.ArrowInvalid, pa.ArrowKeyError, pa.ArrowNotImplementedError):
        return None
    return parsed if parsed.num_rows == len(bodies) else None


def _by_python(bodies: pa.Array) -> pa.Table:
    rows = [_object(body) for body in bodies.to_pylist()]
    columns = [
        pa.array([_KINDS[field.name](row.get(field.name)) for row in rows], field.type) for field in SCHEMA
    ]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def _object(body: bytes | None) -> dict[str, Any]:
    try:
        found = json.loads(body or b"")
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _text(value: object) -> str | None:
    return value.encode(errors="replace").decode() if isinstance(value, str) else None


def _float(value: object) -> float | None:
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return None
    try:
        return float(value)
    except OverflowError:
        return None


def _count(value: object) -> int | None:
    known = isinstance(value, int) and not isinstance(value, bool) and abs(value) <= _INT32_MAX
    return value if known else None  # type: ignore[return-value]


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


_KINDS: dict[str, Callable[[object], Any]] = {
    **{field.name: _text for field in SCHEMA},
    "runtime": _float,
    "retries": _count,
    "requeue": _flag,
}
