"""The report as one self-contained HTML page: its plots are SVG inside the page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from cystore import clock
from cystore.operate.output import one_line
from cystore.reports.report_plots import (
    HOUR,
    NAME_MAX,
    NAMES_SHOWN,
    Axis,
    Rows,
    runs_plot,
    times_plot,
)
from cystore.reports.report_style import SCRIPT, SCRIPT_HASH, STYLE, duration, shown_lines, shown_text
from cystore.reports.report_tables import NUMBERS

EXCEPTION_MAX = 120
STORES_IN_TITLE = 3  # more stores are a list to unfold
# The page runs its own script and no other, and fetches nothing.
POLICY = (
    f"default-src 'none'; script-src 'sha256-{SCRIPT_HASH}'; style-src 'unsafe-inline'; base-uri 'none'; "
    "form-action 'none'"
)
NONE_FAILED = "<p>No task failed.</p>"
Cell = tuple[str, float | None, str]  # as HTML, the number to sort by, the text on hover


def page(
    stores: Sequence[str],
    facts: Mapping[str, Any],
    names: Rows,
    hours: Rows,
    tracebacks: Rows,
    workflows: Rows,
    workers: Rows = (),
    unfinished: Rows = (),
    columns: Sequence[str] = NUMBERS,
) -> str:
    """The page about `stores`. `hours` are the rows of the table `hourly`; `columns` are those of numbers by task and
    worker."""
    few = len(stores) <= STORES_IN_TITLE
    title = f"Tasks in {', '.join(stores) if few else f'{len(stores)} stores'}"
    shown = [row["name"] for row in names[:NAMES_SHOWN]]
    head = (
        f'<meta charset="utf-8"><meta HTTP-EQUIV="Content-Security-Policy" content="{POLICY}">'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{shown_text(title)}</title><style>{STYLE}</style>"
    )
    parts = [f"<h1>{shown_text(title)}</h1>", f'<p class="when">{_when(hours)}</p>']
    if not few:
        listed = shown_lines("\n".join(map(one_line, stores)))
        parts.append(f'<details class="stores"><summary>all stores</summary><pre>{listed}</pre></details>')
    if names or unfinished:
        numbers = {HEADS.get(name, name.replace("_", " ")): _CELLS[name](name) for name in columns}
        parts += _parts(facts, names, hours, tracebacks, workflows, workers, unfinished, shown, numbers)
    else:
        parts.append(EMPTY)
    body = "\n".join(parts)
    page = f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n'
    return f"{page}<script>{SCRIPT}</script></body></html>\n"


EMPTY = (
    '<p class="empty">There is no task in this time. The lifecycle log has none: either no worker of Celery wrote '
    "to these stores, or one "
    "did so before or after.</p>"
)


def _parts(
    facts: Mapping[str, Any],
    names: Rows,
    hours: Rows,
    tracebacks: Rows,
    workflows: Rows,
    workers: Rows,
    unfinished: Rows,
    shown: Sequence[str],
    numbers: Mapping[str, Callable[[Mapping[str, Any]], Cell]],
) -> list[str]:
    listed = "".join(
        f"<li><b>{shown_text(str(value))}</b>{shown_text(name)}</li>" for name, value in facts.items()
    )
    found = [f'<ul class="facts">{listed}</ul>']
    if hours:
        found += _plots(hours, shown)
    found += ["<h2>Tasks</h2>", _table(names, {"task": _name("name"), **numbers})]
    if workers:
        found += ["<h2>Workers</h2>", _table(workers, {"worker": _name("worker"), **numbers})]
    found += ["<h2>Most frequent failures</h2>", _failures(tracebacks) if tracebacks else NONE_FAILED]
    if workflows:
        found += ["<h2>Slowest workflows</h2>", _table(workflows, WORKFLOW)]
    if unfinished:
        found += [f"<h2>Unfinished tasks: {_oldest(unfinished)}</h2>", _table(unfinished, UNFINISHED)]
    return found


def _plots(hours: Rows, shown: Sequence[str]) -> list[str]:
    axis = Axis.of(hours)
    greatest = "" if axis.called == "hour" else f", the greatest of each {axis.called}"
    found = [f"<h2>Runs by {axis.called}</h2>", runs_plot(hours, shown, axis)]
    for what in ("runtime", "wait"):
        if drawn := times_plot(hours, shown, axis, f"{what}_p95"):
            found += [f"<h2>{what.title()}: 95 of 100 are shorter{greatest}</h2>", drawn]
    return found


def _oldest(unfinished: Rows) -> str:
    total = unfinished[0]["total"]
    return f"{total:,}" if total == len(unfinished) else f"the oldest {len(unfinished):,} of {total:,}"


def _when(hours: Rows) -> str:
    made = f"Made {datetime.fromtimestamp(clock.now_ms() / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    if not hours:
        return made
    first, last = _utc(min(row["hour"] for row in hours)), _utc(max(row["hour"] for row in hours)) + HOUR
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC. {made}"


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


# ------------------------------------------------------------------------------------------------------ tables


def _table(rows: Rows, columns: Mapping[str, Callable[[Mapping[str, Any]], Cell]]) -> str:
    head = "".join(f"<th>{shown_text(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(*of(row)) for of in columns.values()) + "</tr>\n" for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="wide"><table class="sorts">{table}</table></div>'


def _failures(rows: Rows) -> str:
    return _table(
        rows,
        {
            "task": _name("name"),
            "count": _number("count"),
            "first (UTC)": _time("first"),
            "last (UTC)": _time("last"),
            "raised": _failure,
        },
    )


def _cell(shown: str, value: float | None, hover: str) -> str:
    sort = "" if value is None else f' data-value="{value}"'
    title = f' title="{shown_text(hover)}"' if hover else ""
    return f"<td{sort}{title}>{shown}</td>"


def _name(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    """A text; a long one is cut, and the whole text appears on hover."""
    return lambda row: (shown_text(str(row[name] or "?"), NAME_MAX), None, str(row[name] or "?"))


def _number(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (f"{row[name]:,}", row[name], "")


def _share(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (f"{100 * (row[name] or 0):.2f} %", row[name] or 0.0, "")


def _seconds(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (duration(row[name]), -1.0 if row[name] is None else row[name], "")


def _time(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (f"{_utc(row[name]):%Y-%m-%d %H:%M:%S}", _utc(row[name]).timestamp(), "")


HEADS = {"count": "runs", "retried": "retries"}
_COUNTS = {"count": _number, "failed": _number, "failure_rate": _share, "retried": _number}
_CELLS = {name: _COUNTS.get(name, _seconds) for name in NUMBERS}


def _failure(row: Mapping[str, Any]) -> Cell:
    """The exception, with the traceback to unfold."""
    said = shown_text(row["exception"] or row["class"], EXCEPTION_MAX)
    told = f"task {row['task_id']}\n\n{row['traceback'] or 'no traceback'}"
    return f"<details><summary>{said}</summary><pre>{shown_lines(told)}</pre></details>", None, ""


WORKFLOW = {
    "root task": _name("name"),
    "id": _name("root_id"),
    "begin (UTC)": _time("begin"),
    "took": _seconds("seconds"),
    "tasks": _number("tasks"),
    "failed": _number("failed"),
}

UNFINISHED = {
    "task": _name("name"),
    "id": _name("task_id"),
    "state": _name("state"),
    "since (UTC)": _time("since"),
    "worker": _name("worker"),
    "retries": _number("retries"),
}
