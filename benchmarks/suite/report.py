"""The printed tables and the JSON file."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from benchmarks.suite.runner import ROOT, Result, Row

FACTS_SHOWN = 100  # characters
LATENCIES = ("p50_us", "p99_us", "p99_ms")  # facts that every row shows


def table(result: Result) -> str:
    head = f"{'':<34} {'ns/op':>12} {'op/s':>12} {'spread':>7} {'cystore/it':>11}  goal"
    lines = [f"{result.case.name}: {result.case.title}; op = {result.case.what}", head]
    lines += [_line(result, row) for row in result.rows]
    return "\n".join(lines)


def _line(result: Result, row: Row) -> str:
    label = f"  {row.contestant.label:<32}"
    reached = result.goal(row)
    verdict = f"  >= {reached[0].ratio:g}: {'pass' if reached[1] else 'MISS'}" if reached else ""
    if row.median_ns is None or row.spread is None:
        return f"{label} not measured: {row.error}{verdict}"
    ratio = result.ratio(row)
    shown = "" if row is result.rows[0] or ratio is None else f"{ratio:.2f}"
    line = f"{label} {row.median_ns:>12,.0f} {1e9 / row.median_ns:>12,.0f} {row.spread:>6.0%} {shown:>11}{verdict}"
    shown_facts = (
        row.facts if row is result.rows[0] else {n: v for n, v in row.facts.items() if n in LATENCIES}
    )
    facts = ", ".join(f"{name} {value}" for name, value in shown_facts.items())
    return f"{line}\n      {facts[:FACTS_SHOWN]}" if facts else line


def summary(results: list[Result]) -> str:
    goals = [
        (result, row, reached)
        for result in results
        for row in result.rows
        if (reached := result.goal(row)) is not None
    ]
    lines = ["goals: our speed divided by the peer's"]
    for result, row, (goal, good) in goals:
        ratio = result.ratio(row)
        value = f"{ratio:6.2f}" if ratio is not None else "     -"
        lines.append(
            f"  {result.case.name:<14} / {row.contestant.label:<34} {value}  >= {goal.ratio:<5g} "
            f"{'pass' if good else 'MISS'}"
        )
    return "\n".join(lines)


def as_json(results: list[Result], arguments: dict[str, Any], folder: Path, load: float) -> dict[str, Any]:
    """The result file's content; `load` is that of the minute before the run."""
    return {
        "when": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": {**machine(folder), "load": round(load, 1)},
        "arguments": arguments,
        "cases": [
            {
                "name": result.case.name,
                "title": result.case.title,
                "operation": result.case.what,
                "rows": [_row(result, row) for row in result.rows],
            }
            for result in results
        ],
    }


def _row(result: Result, row: Row) -> dict[str, Any]:
    reached = result.goal(row)
    return {
        "label": row.contestant.label,
        "count": row.job.count if row.job else None,
        "ns_per_op": row.ns,
        "ns_per_op_median": row.median_ns,
        "ratio": None if row is result.rows[0] else result.ratio(row),
        "goal": reached[0].ratio if reached else None,
        "reached": reached[1] if reached else None,
        "facts": row.facts,
        "error": row.error or None,
    }


def machine(folder: Path) -> dict[str, Any]:
    """Facts about the machine that made the figures."""
    cpu = next(
        (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")),
        "",
    )
    memory = next((line.split()[1] for line in _lines("/proc/meminfo") if line.startswith("MemTotal")), "0")
    packages = {name: _version(name) for name in ("cystore", "lmdb", "rocksdict", "redis", "crc32c")}
    return {
        "cpu": cpu or platform.processor(),
        "cores": os.cpu_count(),
        "memory_mib": int(memory) // 1024,
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "file_system": _file_system(folder),
        "commit": _commit(),
        "packages": packages,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _file_system(folder: Path) -> str:
    """The file system of the folder, which is that of the longest mount point above it."""
    mounts = [line.split()[1:3] for line in _lines("/proc/self/mounts")]
    leading = [(point, kind) for point, kind in mounts if folder.resolve().is_relative_to(point)]
    return max(leading, key=lambda mount: len(mount[0]))[1] if leading else ""


def _commit() -> str | None:
    done = subprocess.run(
        ["git", "describe", "--always", "--dirty"], cwd=ROOT, text=True, capture_output=True, check=False
    )
    return done.stdout.strip() or None


def write(document: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
