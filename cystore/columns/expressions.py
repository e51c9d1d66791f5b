"""Bounds on the reading of a log from an Arrow filter, and the columns that the filter uses.

Arrow shows an expression as text, and the types of its values only in a pickle. This module understands only
conjunctions of comparisons of a column with a plain value. Other parts give no bound: bytes, for example, because
the text shows them like a string of their hex digits. Arrow evaluates the whole filter on the rows afterwards, so a
bound may admit too many rows, but never too few.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from cystore.columns.arrow import FOREVER, RowFilter

VALUES = {"topic": "topics", "partition": "queue_ids", "key": "keys", "tags": "tags"}
BOUNDS = {"offset": "offsets", "physical_offset": "physical", "timestamp": "times_ms"}
INT32_MIN, INT32_MAX = -(1 << 31), (1 << 31) - 1
TEXT_MAX = 127  # a topic's longest name
WORDS_MAX = 64
MIRRORED = {"<": ">", ">": "<", "<=": ">=", ">=": "<=", "==": "=="}
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)

_TOKEN = re.compile(
    r"""\s*(?:(?P<text>"(?:[^"\\]|\\.)*")
    |(?P<time>-?\d{4}-\d\d-\d\d[ ]\d\d:\d\d:\d\d(?:\.\d+)?Z)
    |(?P<number>-?\d+(?![\w.]))
    |(?P<mark>[()]|==|<=|>=|!=|<|>)
    |(?P<word>[A-Za-z_]\w*)
    |(?P<other>.))""",
    re.VERBOSE | re.DOTALL,
)
Token = tuple[str, str]


def columns_in(expression: pc.Expression, known: tuple[str, ...]) -> set[str]:
    """The columns that an expression uses, and perhaps more; all columns if it names a column by number."""
    text = str(expression)
    if "FieldPath" in text:
        return set(known)
    return set(re.findall(r"\w+", text)) & set(known)


def narrowed(rows: RowFilter, expression: pc.Expression) -> RowFilter | None:
    """`rows` narrowed by an expression; None if no row can match both."""
    found: RowFilter | None = rows
    unlike = _unlike_their_text(expression)
    if unlike is None:
        return rows
    for name, operator, value in _comparisons(str(expression)):
        values = value if isinstance(value, tuple) else (value,)
        if found is not None and not any(isinstance(one, str) and one in unlike for one in values):
            found = _with(found, name, operator, value)
    return found


def _with(rows: RowFilter, name: str, operator: str, value: Any) -> RowFilter | None:
    if name in BOUNDS:
        bounds = _interval(operator, value)
        if bounds is None:
            return rows
        low, high = getattr(rows, BOUNDS[name])
        low, high = max(low, bounds[0]), min(high, bounds[1])
        narrow: dict[str, Any] = {BOUNDS[name]: (low, high)}
        return replace(rows, **narrow) if low < high else None
    kind = int if name == "partition" else str
    values = value if isinstance(value, tuple) else (value,)
    if name not in VALUES or operator != "==" or any(type(one) is not kind for one in values):
        return rows
    if kind is int:
        values = tuple(
            one for one in values if INT32_MIN <= one <= INT32_MAX
        )  # every queue id is in this range
    before = getattr(rows, VALUES[name])
    if name == "key" and before:
        return rows  # a record may have several keys; the column holds only the first
    kept = tuple(one for one in values if one in before) if before else values
    narrow = {VALUES[name]: kept}
    return replace(rows, **narrow) if kept else None


def _interval(operator: str, value: Any) -> tuple[int, int] | None:
    """[begin, end) that contains each whole number for which the comparison is true; times in ms."""
    if isinstance(value, _Time):
        low, high = value.ms_up, value.ms_down
    elif type(value) is int:
        low = high = value
    else:
        return None
    bounds = {
        "==": (low, high + 1),
        "<": (-FOREVER, low),
        "<=": (-FOREVER, high + 1),
        ">": (high + 1, FOREVER),
        ">=": (low, FOREVER),
    }.get(operator)
    return None if bounds is None else (max(bounds[0], -FOREVER), min(bounds[1], FOREVER))


class _Time:
    """A time rounded up and down to whole ms."""

    def __init__(self, text: str) -> None:
        whole, _, fraction = text.removesuffix("Z").partition(".")
        seconds = (datetime.fromisoformat(whole).replace(tzinfo=UTC) - EPOCH) // timedelta(seconds=1)
        nanoseconds = seconds * 10**9 + int(fraction.ljust(9, "0")[:9] or 0)
        self.ms_down = nanoseconds // 10**6
        self.ms_up = -(-nanoseconds // 10**6)


# --------------------------------------------------------------------------------------- types of values


def _unlike_their_text(expression: pc.Expression) -> set[str] | None:
    """The hex texts of those values that are bytes. None if a value's type is unknown: then the text may mislead."""
    try:
        with pa.ipc.open_file(expression.__reduce__()[1][0]) as file:
            values = file.get_batch(0).columns
    except pa.ArrowException:  # an expression that cannot be pickled
        return None
    found = set()
    for value in values:
        if any(one(value.type) for one in BYTES):
            found |= {one.hex().upper() for one in value.to_pylist() if one is not None}
        elif not any(one(value.type) for one in PLAIN):
            return None
    return found


BYTES = (pa.types.is_binary, pa.types.is_large_binary, pa.types.is_fixed_size_binary)
PLAIN = (
    *(pa.types.is_string, pa.types.is_large_string, pa.types.is_integer, pa.types.is_floating),
    *(pa.types.is_timestamp, pa.types.is_boolean, pa.types.is_null),
    pa.types.is_struct,  # a function's options
)


# ----------------------------------------------------------------------------------------------- as text


def _comparisons(text: str) -> Iterator[tuple[str, str, Any]]:
    """The comparisons (column, operator, value) that must all hold. A tuple as value: one of its values must match."""
    tokens = [
        (found.lastgroup or "", found[found.lastgroup or 0])
        for found in _TOKEN.finditer(text)
        if found.lastgroup
    ]
    yield from _of(tokens)


def _of(tokens: list[Token]) -> Iterator[tuple[str, str, Any]]:
    parts = _split(tokens, "and")
    if parts is not None:
        for part in parts:
            yield from _of(part)
        return
    either = _one_of(tokens)
    if either is not None:
        yield either
        return
    single = _comparison(tokens)
    if single is not None:
        yield single


def _split(tokens: list[Token], word: str) -> list[list[Token]] | None:
    """The two sides of ( SIDE word SIDE ); None for other tokens."""
    if len(tokens) < 3 or tokens[0] != ("mark", "(") or tokens[-1] != ("mark", ")"):
        return None
    inner, depth = tokens[1:-1], 0
    for at, token in enumerate(inner):
        depth += {"(": 1, ")": -1}.get(token[1], 0) if token[0] == "mark" else 0
        if depth < 0:
            return None
        if depth == 0 and token == ("word", word):
            return [inner[:at], inner[at + 1 :]]
    return None


def _one_of(tokens: list[Token]) -> tuple[str, str, Any] | None:
    """Several values of one column with `or` between them."""
    sides = _split(tokens, "or")
    if sides is None:
        return None
    found = [_one_of(side) or _comparison(side) for side in sides]
    names: set[str] = set()
    values: list[Any] = []
    for one in found:
        if one is None or one[1] != "==" or one[0] not in VALUES:
            return None
        names.add(one[0])
        values += one[2] if isinstance(one[2], tuple) else (one[2],)
    return (names.pop(), "==", tuple(values)) if len(names) == 1 and len(values) <= WORDS_MAX else None


def _comparison(tokens: list[Token]) -> tuple[str, str, Any] | None:
    if len(tokens) != 5 or tokens[0] != ("mark", "(") or tokens[-1] != ("mark", ")"):
        return None
    left, (_, operator), right = tokens[1:4]
    if operator not in MIRRORED:
        return None
    if left[0] != "word":
        left, operator, right = right, MIRRORED[operator], left
    value = _READ.get(right[0], lambda text: None)(right[1])
    return None if left[0] != "word" or value is None else (left[1], operator, value)


def _text(shown: str) -> str | None:
    """A string that Arrow shows unchanged; None if the text may represent other characters, or bytes that are not
    UTF-8."""
    text = shown[1:-1]
    plain = 0 < len(text) <= TEXT_MAX and text.isprintable() and "\\" not in text and "\ufffd" not in text
    return text if plain else None


def _time(shown: str) -> _Time | None:
    try:
        return _Time(shown)
    except ValueError:  # a year outside Python's calendar
        return None


_READ: dict[str, Callable[[str], Any]] = {"text": _text, "time": _time, "number": int}
