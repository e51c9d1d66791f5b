"""The report as one HTML page that needs nothing else: its plots are SVG inside of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime
from html import escape
from typing import Any

from matplotlib.figure import Figure

Rows = Sequence[Mapping[str, Any]]
NAMES_SHOWN = 10
STYLE = """
body { font: 15px/1.45 system-ui, sans-serif; margin: 2rem auto; max-width: 70rem; padding: 0 1rem; color: #222; }
table { border-collapse: collapse; width: 100%; margin: .5rem 0 2rem; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid #ddd; font-variant-numeric: tabular-nums; }
th:first-child, td:first-child, td.text { text-align: left; }
pre { overflow-x: auto; background: #f6f6f6; padding: .6rem; font-size: 12px; }
svg { max-width: 100%; height: auto; }
.bad { color: #b00020; }
"""


def page(
    title: str, facts: Mapping[str, Any], names: Rows, hours: Rows, tracebacks: Rows, workflows: Rows
) -> str:
    """The page. `hours` are the rows of `report.hourly`, the others of the functions of their name."""
    shown = [row["name"] for row in names[:NAMES_SHOWN]]
    parts = [
        f"<h1>{escape(title)}</h1>",
        f"<p>{escape(', '.join(f'{value} {name}' for name, value in facts.items()))}</p>",
        "<h2>Runs by hour</h2>",
        _plot("runs", lambda axes: _runs(axes, hours, shown)),
        "<h2>Tasks</h2>",
        _plot("p95 of the runtime, s", lambda axes: _p95(axes, hours, shown)),
        _table(
            names,
            {
                "task": _text("name"),
                "runs": _number("count"),
                "failed": _number("failed"),
                "failure rate": lambda row: f"{100 * (row['failure_rate'] or 0):.2f} %",
                "retries": _number("retried"),
                **{f"runtime p{p}": _seconds(f"runtime_p{p}") for p in (50, 95, 99)},
                **{f"wait p{p}": _seconds(f"wait_p{p}") for p in (50, 95, 99)},
            },
        ),
        "<h2>Failures that come most often</h2>",
        *(_failure(row) for row in tracebacks),
        "<h2>Slowest workflows</h2>",
        _table(
            workflows,
            {
                "root task": _text("name"),
                "id": _text("root_id"),
                "begin": lambda row: f"{row['begin']:%Y-%m-%d %H:%M:%S}",
                "seconds": _seconds("seconds"),
                "tasks": _number("tasks"),
                "failed": _number("failed"),
            },
        ),
    ]
    head = f'<meta charset="utf-8"><title>{escape(title)}</title><style>{STYLE}</style>'
    return f"<!DOCTYPE html>\n<html><head>{head}</head><body>\n" + "\n".join(parts) + "\n</body></html>\n"


def _runs(axes: Any, hours: Rows, shown: Sequence[str]) -> None:
    times = sorted({row["hour"] for row in hours})
    of = {(row["name"], row["hour"]): row["count"] for row in hours}
    counts = [[of.get((name, time), 0) for time in times] for name in shown]
    others = [
        sum(row["count"] for row in hours if row["hour"] == time and row["name"] not in shown)
        for time in times
    ]
    bottom = [0] * len(times)
    for name, values in [*zip(shown, counts, strict=True), ("others", others)]:
        if any(values):
            axes.bar(times, values, width=1 / 26, bottom=bottom, label=name)
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    failed = [sum(row["failed"] for row in hours if row["hour"] == time) for time in times]
    if any(failed):
        axes.plot(times, failed, "o-", color="#b00020", label="failed")


def _p95(axes: Any, hours: Rows, shown: Sequence[str]) -> None:
    for name in shown:
        points = sorted(
            (row["hour"], row["runtime_p95"]) for row in hours if row["name"] == name and row["runtime_p95"]
        )
        if points:
            axes.plot(*zip(*points, strict=True), "o-", markersize=3, label=name)
            axes.set_yscale("log")


def _plot(label: str, draw: Callable[[Any], None]) -> str:
    figure = Figure(figsize=(11, 3.6), layout="constrained")
    axes = figure.subplots()
    draw(axes)
    axes.set_ylabel(label)
    if axes.get_legend_handles_labels()[0]:
        axes.legend(fontsize=8, loc="center left", bbox_to_anchor=(1, 0.5))
    axes.tick_params(axis="x", labelrotation=30, labelsize=8)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    return drawn.getvalue()[drawn.getvalue().index("<svg") :]


def _table(rows: Rows, columns: Mapping[str, Callable[[Mapping[str, Any]], str]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join(
        "<tr>" + "".join(f"<td>{of(row)}</td>" for of in columns.values()) + "</tr>\n" for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>\n{body}</tbody></table>"


def _text(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: escape(str(row[name] or "?"))


def _number(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: f"{row[name]:,}"


def _seconds(name: str) -> Callable[[Mapping[str, Any]], str]:
    return lambda row: "" if row[name] is None else f"{row[name]:.3f}"


def _failure(row: Mapping[str, Any]) -> str:
    when: datetime = row["last"]
    said = f"{row['count']:,} × {row['name'] or '?'}: {row['exception'] or row['class']}"
    return (
        f'<details><summary class="bad">{escape(said)}</summary><p>last {when:%Y-%m-%d %H:%M:%S}, task {escape(str(row["task_id"]))}</p>'
        f"<pre>{escape(row['traceback'] or 'no traceback')}</pre></details>"
    )
