"""The report as one HTML page that needs nothing else: its plots are SVG inside of it."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from cystore import clock
from cystore.spark.report_look import SCRIPT, STYLE, duration, short

Rows = Sequence[Mapping[str, Any]]
NAMES_SHOWN = 8  # of tasks in a plot, each in a colour of its own
NAME_MAX = 40
OTHERS = "all other tasks"
GREY, RED = "#8a8f98", "#d1344b"  # of all other tasks, and of what failed: no task has them
COLOURS = ("#4269d0", "#efb118", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#ff8ab7")
HOUR = timedelta(hours=1)


def page(
    title: str, facts: Mapping[str, Any], names: Rows, hours: Rows, tracebacks: Rows, workflows: Rows
) -> str:
    """The page. `hours` are the rows of `report.hourly`, the others of the functions of their name."""
    shown = [row["name"] for row in names[:NAMES_SHOWN]]
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(title)}</title><style>{STYLE}</style>"
    )
    parts = [f"<h1>{escape(title)}</h1>", f'<p class="when">{_when(hours)}</p>']
    parts += _parts(facts, names, hours, tracebacks, workflows, shown) if names else [EMPTY]
    body = "\n".join(parts)
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head><body>\n{body}\n<script>{SCRIPT}</script></body></html>\n'


EMPTY = (
    '<p class="empty">There is no task in this time. The lifecycle log has none: either no worker of Celery wrote to these stores, or it '
    "before or after.</p>"
)


def _parts(
    facts: Mapping[str, Any],
    names: Rows,
    hours: Rows,
    tracebacks: Rows,
    workflows: Rows,
    shown: Sequence[str],
) -> list[str]:
    listed = "".join(f"<li><b>{escape(str(value))}</b>{escape(name)}</li>" for name, value in facts.items())
    return [
        f'<ul class="facts">{listed}</ul>',
        "<h2>Runs by hour</h2>",
        _plot("runs", hours, lambda axes: _runs(axes, hours, shown)),
        "<h2>Runtime by hour, 95 of 100 are below</h2>",
        _plot("runtime", hours, lambda axes: _p95(axes, hours, shown)),
        "<h2>Tasks</h2>",
        _table(
            names,
            {
                "task": _name("name"),
                "runs": _number("count"),
                "failed": _number("failed"),
                "failure rate": _share("failure_rate"),
                "retries": _number("retried"),
                **{f"runtime p{p}": _seconds(f"runtime_p{p}") for p in (50, 95, 99)},
                **{f"wait p{p}": _seconds(f"wait_p{p}") for p in (50, 95, 99)},
            },
        ),
        "<h2>Most frequent failures</h2>",
        *([_failure(row) for row in tracebacks] or ["<p>No task failed.</p>"]),
        "<h2>Slowest workflows</h2>",
        _table(
            workflows,
            {
                "root task": _name("name"),
                "id": _name("root_id"),
                "begin (UTC)": lambda row: (f"{row['begin']:%Y-%m-%d %H:%M:%S}", row["begin"].timestamp()),
                "took": _seconds("seconds"),
                "tasks": _number("tasks"),
                "failed": _number("failed"),
            },
        ),
    ]


def _when(hours: Rows) -> str:
    made = f"Made {datetime.fromtimestamp(clock.now_ms() / 1000, UTC):%Y-%m-%d %H:%M} UTC"
    if not hours:
        return made
    first, last = _utc(min(row["hour"] for row in hours)), _utc(max(row["hour"] for row in hours)) + HOUR
    return f"{first:%Y-%m-%d %H:%M} to {last:%Y-%m-%d %H:%M} UTC. {made}"


def _utc(time: datetime) -> datetime:
    return time.astimezone(UTC) if time.tzinfo else time.replace(tzinfo=UTC)


# ------------------------------------------------------------------------------------------------------ plots


def _runs(axes: Any, hours: Rows, shown: Sequence[str]) -> None:
    """Bars that stand on their hour."""
    times = sorted({row["hour"] for row in hours})
    of: dict[tuple[str | None, datetime], int] = {}
    for row in hours:
        key = row["name"] if row["name"] in shown else None, row["hour"]
        of[key] = of.get(key, 0) + row["count"]
    bottom = [0] * len(times)
    for number, name in enumerate([*shown, None]):
        values = [of.get((name, time), 0) for time in times]
        if any(values):
            colour = GREY if name is None else COLOURS[number]
            axes.bar(
                times,
                values,
                width=HOUR,
                align="edge",
                bottom=bottom,
                color=colour,
                label=_label(name),
            )
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    failed = {time: sum(row["failed"] for row in hours if row["hour"] == time) for time in times}
    if any(failed.values()):
        axes.plot(
            [time + HOUR / 2 for time in times],
            list(failed.values()),
            "o-",
            color=RED,
            markersize=3,
            label="(failed)",
        )
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))


def _p95(axes: Any, hours: Rows, shown: Sequence[str]) -> None:
    for number, name in enumerate(shown):
        points = sorted(
            (row["hour"] + HOUR / 2, row["runtime_p95"])
            for row in hours
            if row["name"] == name and row["runtime_p95"]
        )
        if points:
            axes.plot(
                *zip(*points, strict=True),
                "o-",
                markersize=3,
                color=COLOURS[number],
                label=_label(name),
            )
            axes.set_yscale("log")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value)))


def _label(name: str | None) -> str:
    """Of the legend: a task may be called like our words, so these stand in brackets. A first _ would hide it."""
    return f"({OTHERS})" if name is None else "\u200b" + short(name, NAME_MAX)


def _plot(label: str, hours: Rows, draw: Callable[[Any], None]) -> str:
    """As SVG in the colours of the page; the legend stands below, so it takes no room of the plot."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    figure.patch.set_alpha(0)
    axes = figure.subplots()
    axes.patch.set_alpha(0)
    draw(axes)
    axes.set_ylabel(label)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    if hours:
        first, last = min(row["hour"] for row in hours), max(row["hour"] for row in hours) + HOUR
        margin = (last - first) / 40
        axes.set_xlim(first - margin, last + margin)
        locator = AutoDateLocator(minticks=3, maxticks=9)
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))
    handles, labels = axes.get_legend_handles_labels()
    if handles:
        legend = figure.legend(
            handles, [_plain(text) for text in labels], fontsize=8, loc="outside lower center", ncols=3
        )
        legend.get_frame().set_alpha(0)
    drawn = io.StringIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    svg = drawn.getvalue()[drawn.getvalue().index("<svg") :]
    return f'<div class="wide">{svg.replace("#000000", "currentColor")}</div>'


def _plain(text: str) -> str:
    """Dollar signs begin a formula in matplotlib."""
    return text.replace("$", r"\$")


# ------------------------------------------------------------------------------------------------------ tables

Cell = tuple[str, float | str | None]  # as HTML, and the number to sort by


def _table(rows: Rows, columns: Mapping[str, Callable[[Mapping[str, Any]], Cell]]) -> str:
    head = "".join(f"<th>{escape(name)}</th>" for name in columns)
    body = "".join("<tr>" + "".join(_cell(*of(row)) for of in columns.values()) + "</tr>\n" for row in rows)
    table = f"<thead><tr>{head}</tr></thead><tbody>\n{body}</tbody>"
    return f'<div class="wide"><table class="sorts">{table}</table></div>'


def _cell(shown: str, value: float | str | None) -> str:
    if isinstance(value, str):
        return f'<td title="{escape(value)}">{shown}</td>'
    return f'<td data-value="{"" if value is None else value}">{shown}</td>'


def _name(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    """Long ones are cut, with the whole on hover."""
    return lambda row: (escape(short(str(row[name] or "?"), NAME_MAX)), str(row[name] or "?"))


def _number(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (f"{row[name]:,}", row[name])


def _share(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (f"{100 * (row[name] or 0):.2f} %", row[name])


def _seconds(name: str) -> Callable[[Mapping[str, Any]], Cell]:
    return lambda row: (duration(row[name]), row[name])


def _failure(row: Mapping[str, Any]) -> str:
    when: datetime = row["last"]
    said = f"{row['count']:,} × {row['name'] or '?'}: {row['exception'] or row['class']}"
    return (
        f'<details><summary class="bad">{escape(said)}</summary><p>last {when:%Y-%m-%d %H:%M:%S}, task {escape(str(row["task_id"]))}</p>'
        f"<pre>{escape(row['traceback'] or 'no traceback')}</pre></details>"
    )
