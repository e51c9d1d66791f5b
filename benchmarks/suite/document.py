"""Sections of docs/benchmarks.md from the JSON of a run: every row that was measured, good or bad."""

from __future__ import annotations

import textwrap
from typing import Any

# Further figures of a row, beside its speed.
BESIDE = {
    "p99_ms": "99th percentile, ms",
    "again_ns": "the same keys again, ns",
    "c_ns": "only loads, in C, ns",
    "c_again_ns": "the same loads again, ns",
    "c_large_ns": "again, the index in large pages, ns",
    "objects_ns": "only bare objects, ns",
    "p99_us": "99th percentile, µs",
    "disk_mb_per_100k": "disk, MB for 100,000",
    "redis_memory_mb_per_100k": "Redis's memory, MB for 100,000",
}

HEADING, WIDTH = "## ", 120


def updated(page: str, results: dict[str, Any]) -> str:
    """docs/benchmarks.md with the sections of the cases that a run measured. All other sections stay as they are, and
    so does what a person wrote below the tables. The section of a new case comes last.

    Raises KeyError for a file that is no result of `python -m benchmarks`.
    """
    begin, *sections = f"\n{page}".split(f"\n{HEADING}")
    texts = {name: text for name, _, text in (section.partition("\n") for section in sections)}
    for case in results["cases"]:
        texts[case["name"]] = _section(case, results) + _remark(texts.get(case["name"], ""))
    return (begin + "".join(f"\n{HEADING}{name}\n{text}" for name, text in texts.items()))[1:]


def _section(case: dict[str, Any], results: dict[str, Any]) -> str:
    rounds, machine = results["arguments"]["rounds"], results["machine"]
    busy = "" if machine.get("load") is None else f", load {machine['load']:.0f}"
    cpu = _cpu(machine.get("cpu", ""))
    title = f"{case['title'][0].upper()}{case['title'][1:]}; one operation is a {case['operation']}."
    run = f"{rounds} rounds, commit {machine['commit']}, {results['when'].partition('T')[0]}{busy}{cpu}."
    lines = [
        "",
        *textwrap.wrap(f"{title} {run}", WIDTH, break_on_hyphens=False),
        "",
        f"| | ns a {case['operation']} | a second | spread | cystore / it | goal |",
        "|---|---:|---:|---:|---:|---|",
        *(_line(row) for row in case["rows"]),
        "",
        *_beside(case),
    ]
    return "".join(f"{line}\n" for line in lines)


def _cpu(model: str) -> str:
    words = [word for word in model.replace("(R)", "").replace("(TM)", "").split() if word != "Processor"]
    return f", {' '.join(words)}" if words else ""


def _remark(section: str) -> str:
    """The part of a section below its last table."""
    lines = section.splitlines(keepends=True)
    tables = [at for at, line in enumerate(lines) if line.startswith("|")]
    return "".join(lines[tables[-1] + 2 :]) if tables else ""


def _beside(case: dict[str, Any]) -> list[str]:
    rows = [row for row in case["rows"] if not BESIDE.keys().isdisjoint(row["facts"])]
    names = [name for name in BESIDE if any(name in row["facts"] for row in rows)]
    if not rows:
        return []
    lines = ["| | " + " | ".join(BESIDE[name] for name in names) + " |", "|---|" + "---:|" * len(names)]
    for row in rows:
        figures = [f"{row['facts'][name]:g}" if name in row["facts"] else "" for name in names]
        lines.append("| " + " | ".join([row["label"], *figures]) + " |")
    return [*lines, ""]


def _line(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"| {row['label']} | not measured: {row['error']} | | | | |"
    median, rounds = row["ns_per_op_median"], row["ns_per_op"]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    goal = "" if row["goal"] is None else f"{row['goal']:g}: {'reached' if row['reached'] else 'missed'}"
    spread = (max(rounds) - min(rounds)) / median
    return f"| {row['label']} | {median:,.0f} | {1e9 / median:,.0f} | {spread:.0%} | {ratio} | {goal} |"
