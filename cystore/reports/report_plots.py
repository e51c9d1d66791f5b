"""The plots of the report, as SVG in the colours of the page. Each has a legend in HTML, outside the plot.

If there are too many hours for a screen, a bar stands for two hours, a day or a week.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import matplotlib
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from cystore.reports.report_style import duration, shown_text

Rows = Sequence[Mapping[str, Any]]
NAMES_SHOWN = 8  # of tasks in a plot, each in its own colour
NAME_MAX = 40
OTHERS = "all other tasks"
GREY, RED = "#8a8f98", "#d1344b"  # of all other tasks, and of failed runs: no task has these colours
COLOURS = ("#4269d0", "#efb118", "#6cc5b0", "#3ca951", "#a463f2", "#97bbf5", "#9c6b4e", "#ff8ab7")
HOUR = timedelta(hours=1)
EPOCH = datetime(1970, 1, 5, tzinfo=UTC)  # a Monday, so weeks begin with one
BARS_MAX = 100
WIDTH = 7  # in inches: small enough that a telephone shows it whole with texts that can be read
STEPS = {1: "hour", 2: "2 hours", 6: "6 hours", 24: "day", 7 * 24: "week", 28 * 24: "4 weeks"}
# Seconds at which the axis of times has a line; with further lines between them if there would be too few.
TIMES = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1, 10, 60, 600, 3_600, 86_400, 864_000)
BETWEEN = (
    *(part * 10.0**power for power in range(-6, 1) for part in (2, 5)),
    *(20, 30, 120, 300, 1_200, 1_800, 7_200, 21_600, 43_200, 172_800, 432_000),
)
LINES_MIN = 3
FEW_BARS = 4  # with so few steps of time, a line over the whole step shows its value
_SVG: Any = {"svg.fonttype": "none", "svg.hashsalt": "cystore", "font.family": "sans-serif", "font.size": 11}


@dataclass(frozen=True)
class Axis:
    """The time range of a report: [begin, end) in steps of whole hours."""

    begin: datetime
    end: datetime
    step: timedelta

    @classmethod
    def of(cls, hours: Rows) -> Axis:
        """Fits all hours, of which there is at least one."""
        first, last = min(row["hour"] for row in hours), max(row["hour"] for row in hours) + HOUR
        steps = [timedelta(hours=count) for count in STEPS]
        step = next((step for step in steps if (last - first) / step <= BARS_MAX), steps[-1])
        begin = first - (first - EPOCH) % step
        return cls(begin, begin + -(-(last - begin) // step) * step, step)

    @property
    def called(self) -> str:
        """The label of a bar."""
        return STEPS[self.step // HOUR]

    def bar(self, hour: datetime) -> datetime:
        """The begin of the bar that contains an hour."""
        return hour - (hour - self.begin) % self.step


def runs_plot(hours: Rows, shown: Sequence[str], axis: Axis) -> str:
    """Runs by task as bars over their hours; below them the failed runs, if there are any."""
    of: dict[str | None, dict[datetime, int]] = defaultdict(lambda: defaultdict(int))
    failed: dict[datetime, int] = defaultdict(int)
    for row in hours:
        bar = axis.bar(row["hour"])
        of[row["name"] if row["name"] in shown else None][bar] += row["count"]
        failed[bar] += row["failed"]
    bad = any(failed.values())
    figure = _figure(4.2 if bad else 3.2)
    parts = figure.subplots(
        2 if bad else 1, sharex=True, height_ratios=(3, 1) if bad else None, squeeze=False
    )
    bars = sorted(failed)
    bottom = [0] * len(bars)
    drawn = [name for name in (*shown, None) if any(of[name].values())]
    for name in drawn:
        values = [of[name].get(bar, 0) for bar in bars]
        _bars(parts[0, 0], axis, bars, values, _colour(name, shown), bottom)
        bottom = [below + value for below, value in zip(bottom, values, strict=True)]
    parts[0, 0].set_ylabel("runs")
    if bad:
        _bars(parts[1, 0], axis, bars, [failed[bar] for bar in bars], RED)
        parts[1, 0].set_ylabel("failed", color=RED)
    for axes in parts[:, 0]:
        axes.yaxis.set_major_locator(MaxNLocator(4, integer=True))
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
        _dress(axes, axis)
    return _html(figure, drawn, shown)


def times_plot(hours: Rows, shown: Sequence[str], axis: Axis, column: str) -> str:
    """A percentile by task, over time; for hours in one bar, the greatest. Empty if no value is known."""
    figure = _figure(3.2)
    axes = figure.subplots()
    drawn = []
    for name in shown:
        of: dict[datetime, float] = {}
        for row in hours:
            if row["name"] == name and row[column]:
                bar = axis.bar(row["hour"])
                of[bar] = max(of.get(bar, 0.0), row[column])
        if of:
            bars = sorted(of)
            values = [of[bar] for bar in bars]
            if (axis.end - axis.begin) // axis.step <= FEW_BARS:
                axes.hlines(
                    values, bars, [bar + axis.step for bar in bars], _colour(name, shown), linewidth=3
                )
            else:
                middles = [bar + axis.step / 2 for bar in bars]
                axes.plot(middles, values, "o-", markersize=3, color=_colour(name, shown))
            drawn.append(name)
    if not drawn:
        return ""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(FixedLocator(_lines(*axes.get_ylim())))
    axes.yaxis.set_minor_locator(NullLocator())
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: duration(value, 1).replace(".0 ", " ")))
    _dress(axes, axis)
    return _html(figure, drawn, shown)


def _lines(low: float, high: float) -> list[float]:
    """The seconds from `low` to `high` at which the axis has a line."""
    lines = [time for time in TIMES if low <= time <= high]
    if len(lines) < LINES_MIN:
        lines = [time for time in (*TIMES, *BETWEEN) if low <= time <= high]
    if len(lines) < LINES_MIN - 1:  # all values are close together
        lines = [float(f"{low * (high / low) ** part:.2g}") for part in (0.1, 0.5, 0.9)]
    return sorted(lines)


def _figure(height: float) -> Any:
    return Figure(figsize=(WIDTH, height), layout="constrained")


def _bars(
    axes: Any,
    axis: Axis,
    bars: Sequence[datetime],
    values: Sequence[int],
    colour: str,
    bottom: Sequence[int] = (),
) -> None:
    axes.bar(bars, values, width=axis.step, align="edge", bottom=list(bottom) or 0, color=colour, linewidth=0)


def _dress(axes: Any, axis: Axis) -> None:
    axes.patch.set_alpha(0)
    axes.set_axisbelow(True)
    axes.grid(axis="y", alpha=0.25)
    axes.spines[["top", "right"]].set_visible(False)
    margin = (axis.end - axis.begin) / 60
    axes.set_xlim(axis.begin - margin, axis.end + margin)
    locator = AutoDateLocator(minticks=3, maxticks=7)
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator))


def _colour(name: str | None, shown: Sequence[str]) -> str:
    return GREY if name is None else COLOURS[shown.index(name)]


def _html(figure: Any, drawn: Sequence[str | None], shown: Sequence[str]) -> str:
    """The plot, and below it the colour of each task. Our own words are in brackets, because a task may have such a
    name."""
    figure.patch.set_alpha(0)
    text = io.StringIO()
    with matplotlib.rc_context(_SVG):
        figure.savefig(text, format="svg", metadata={"Date": None})
    svg = text.getvalue()[text.getvalue().index("<svg") :].replace("#000000", "currentColor")
    items = "".join(
        f'<li title="{shown_text(name or OTHERS)}"><i style="background:{_colour(name, shown)}"></i>'
        f"{shown_text(name, NAME_MAX) if name is not None else f'<em>({OTHERS})</em>'}</li>"
        for name in drawn
    )
    return f'<div class="wide">{svg}</div>\n<ul class="legend">{items}</ul>'
