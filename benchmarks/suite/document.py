"""docs/benchmarks.md from the JSON of a run: every row that was measured, good or bad."""

from __future__ import annotations

from typing import Any

# Further figures of a row, beside its speed.
BESIDE = {
    "p99_ms": "99th percentile, ms",
    "disk_mb_per_100k": "disk, MB for 100,000",
    "redis_memory_mb_per_100k": "Redis's memory, MB for 100,000",
}

HEAD = """# Benchmarks

`make bench` makes this page: `python -m benchmarks --document FILE` writes it from the result file that a run names
at its end. In each case every contestant runs in a process of its own with an empty folder. They take turns for
{rounds} rounds. Figures are medians. The column "cystore / it" is the speed of cystore divided by the row's, round by
round, and of these the median. "Spread" is the distance between the fastest and the slowest round.

This page: {cpu}, {cores} cores, {memory_mib} MiB, Linux {release}, Python {python}, {file_system}. Compare ratios, not
times: another machine has other times.
"""


def document(results: dict[str, Any]) -> str:
    """The page; raises KeyError for a file that is no result of `python -m benchmarks`."""
    machine = results["machine"]
    release = machine["kernel"].partition("-")[0]
    lines = [HEAD.format(rounds=results["arguments"]["rounds"], release=release, **machine)]
    for case in results["cases"]:
        lines += [
            f"## {case['name']}",
            "",
            f"{case['title'][0].upper()}{case['title'][1:]}; one operation is a {case['operation']}.",
            "",
        ]
        lines += [
            f"| | ns a {case['operation']} | a second | spread | cystore / it | goal |",
            "|---|---:|---:|---:|---:|---|",
        ]
        lines += [_line(row) for row in case["rows"]]
        lines += ["", *_beside(case)]
    return "\n".join(lines)


def _beside(case: dict[str, Any]) -> list[str]:
    rows = [row for row in case["rows"] if not BESIDE.keys().isdisjoint(row["facts"])]
    names = [name for name in BESIDE if any(name in row["facts"] for row in rows)]
    if not rows:
        return []
    lines = ["| | " + " | ".join(BESIDE[name] for name in names) + " |", "|---|" + "---:|" * len(names)]
    for row in rows:
        lines.append("| " + " | ".join([row["label"], *(f"{row['facts'][name]:g}" for name in names)]) + " |")
    return [*lines, ""]


def _line(row: dict[str, Any]) -> str:
    if row["error"]:
        return f"| {row['label']} | not measured: {row['error']} | | | | |"
    median, rounds = row["ns_per_op_median"], row["ns_per_op"]
    ratio = "" if row["ratio"] is None else f"{row['ratio']:.2f}"
    goal = "" if row["goal"] is None else f"{row['goal']:g}: {'reached' if row['reached'] else 'missed'}"
    spread = (max(rounds) - min(rounds)) / median
    return f"| {row['label']} | {median:,.0f} | {1e9 / median:,.0f} | {spread:.0%} | {ratio} | {goal} |"
