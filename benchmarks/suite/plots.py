"""Plots as SVG without a background, in colours that a light and a dark page both show."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("svg")
from matplotlib import pyplot as plt

INK = "#8a8f98"
COLOURS = {"put": "#3b82f6", "put, default settings": "#b455d9", "get": "#e07b00", "query": "#16a37f"}
STYLE = {
    "svg.hashsalt": "cystore",  # the same figures make the same file
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "savefig.transparent": True,
    "font.size": 9,
}


def _save(figure: Any, path: Path) -> None:
    figure.tight_layout()
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)


def draw_growth(figures: dict[str, list[dict[str, Any]]], operations: Sequence[str], path: Path) -> None:
    """Time of a call by the size of the store, relative to the smallest."""
    with mpl.rc_context(STYLE):
        figure, parts = plt.subplots(1, len(figures), figsize=(9, 3), sharey=True)
        for part, (what, rows) in zip(parts, figures.items(), strict=True):
            part.axhspan(0.85, 1.15, color=INK, alpha=0.2, linewidth=0)
            for name in operations:
                ratios = [row[name] / rows[0][name] for row in rows]
                part.plot([row["x"] for row in rows], ratios, marker="o", color=COLOURS[name], label=name)
            part.set_xscale("log")
            part.set_xlabel(what)
            part.set_yscale("log", base=2)
            part.yaxis.set_major_formatter(lambda ratio, _: f"{ratio:g}")
        parts[0].set_ylabel("processor time of a call, smallest = 1")
        parts[0].legend()
        _save(figure, path)


def draw_latency(single: dict[str, list[int]], path: Path) -> None:
    """Draws, for each time, the part of the calls that took longer."""
    with mpl.rc_context(STYLE):
        figure, part = plt.subplots(figsize=(6, 3.2))
        for name, taken in single.items():
            # A thousand points: each of the slowest calls, and a sample of the others.
            ranks = sorted({int(len(taken) * 0.98**step) for step in range(1000)} - {0})
            part.plot(
                [taken[-rank] / 1000 for rank in ranks],
                [rank / len(taken) for rank in ranks],
                color=COLOURS[name],
                label=name,
            )
        part.set_xscale("log")
        part.set_yscale("log")
        part.set_xlabel("µs")
        part.set_ylabel("part of the calls that took longer")
        part.legend()
        _save(figure, path)
