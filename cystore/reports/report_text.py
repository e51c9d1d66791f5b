"""The report as JSON for programs, and as Markdown for a chat, a ticket or a terminal."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cystore import clock
from cystore.operate.output import one_line
from cystore.reports.report_style import duration, short
from cystore.reports.report_tables import NUMBERS

Rows = Sequence[Mapping[str, Any]]
NAME_MAX, EXCEPTION_MAX = 60, 120
_SPECIAL = str.maketrans({character: f"\\{character}" for character in "\\`*_[]<>|#&~"})


def as_json(stores: Sequence[str], facts: Mapping[str, int], tables: Mapping[str, Rows]) -> str:
    """One JSON object: `stores`, `made`, `facts`, and the rows of each table. Times are RFC 3339, in UTC; a number that
    is not known is null."""
    found = {"stores": list(stores), "made": _time_text(_now()), "facts": dict(facts), "tables": dict(tables)}
    return json.dumps(_plain(found), ensure_ascii=True, allow_nan=False) + "\n"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_plain(one) for one in value]
    if isinstance(value, datetime):
        return _time_text(value)
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_markdown(
    stores: Sequence[str], facts: Mapping[str, int], tables: Mapping[str, Rows], columns: Sequence[str]
) -> str:
    """The tables as Markdown. Texts of tasks are escaped: none makes a link, a tag or a line of its own."""
    numbers = {name: _OF_NUMBERS[name] for name in columns}
    parts = [
        f"# Tasks in {_shown(', '.join(stores), 1000)}",
        f"Made {_time_text(_now())}. "
        + ", ".join(f"{name}: {value:,}" for name, value in facts.items())
        + ".",
    ]
    for title, name, cells in (
        ("Tasks", "names", {"task": _text("name"), **numbers}),
        ("Workers", "workers", {"worker": _text("worker"), **numbers}),
        ("Most frequent failures", "tracebacks", _FAILURES),
        ("Slowest workflows", "workflows", _WORKFLOWS),
        ("Unfinished tasks", "unfinished", _UNFINISHED),
    ):
        if tables[name]:
            parts += [f"## {title}", _table(tables[name], cells)]
    if len(parts) == 2:
        parts.append("There is no task in this time.")
    return "\n\n".join(parts) + "\n"


def _table(rows: Rows, cells: Mapping[str, Callable[[Mapping[str, Any]], str]]) -> str:
    lines = [f"| {' | '.join(cells)} |", f"|{'|'.join(' --- ' for _ in cells)}|"]
    lines += [f"| {' | '.join(of(row) for of in cells.values())} |" for row in rows]
    return "\n".join(lines)


def _shown(text: str, most: int) -> str:
    return short(one_line(text), most).translate(_SPECIAL)


def _text(name: str, most: int = NAME_MAX) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: _shown(str(row[name] or "?"), most)


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row[name]:,}"


def _share(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{100 * (row[name] or 0):.2f} %"


def _seconds(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: duration(row[name])


def _time(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "?" if row[name] is None else _time_text(row[name])


def _time_text(time: datetime) -> str:
    return time.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _now() -> datetime:
    return datetime.fromtimestamp(clock.now_ms() / 1000, UTC)


_COUNTS = {"count": _number, "failed": _number, "failure_rate": _share, "retried": _number}
_OF_NUMBERS = {name: _COUNTS.get(name, _seconds)(name) for name in NUMBERS}
_FAILURES = {
    "task": _text("name"),
    "count": _number("count"),
    "first": _time("first"),
    "last": _time("last"),
    "raised": lambda row: _shown(str(row["exception"] or row["class"] or "?"), EXCEPTION_MAX),
    "last task": _text("task_id"),
}
_WORKFLOWS = {
    "root task": _text("name"),
    "id": _text("root_id"),
    "begin": _time("begin"),
    "took": _seconds("seconds"),
    "tasks": _number("tasks"),
    "failed": _number("failed"),
}
_UNFINISHED = {
    "task": _text("name"),
    "id": _text("task_id"),
    "state": _text("state"),
    "since": _time("since"),
    "worker": _text("worker"),
    "retries": _number("retries"),
}
