"""Whether a run is as good as the committed one: its ratios beside those in benchmarks/ratios.json.

Ratios are compared, not times: the peers of the same run stand for the machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

COMMITTED = Path(__file__).resolve().parents[1] / "ratios.json"
MARGIN = 0.35  # a ratio of two short runs on a machine with other work varies by about a third


def ratios(results: dict[str, Any]) -> dict[str, dict[str, float]]:
    """Our speed divided by each peer's, by case and label, of a result file. Our own rows are not peers, because they
    get faster too."""
    return {
        case["name"]: {
            row["label"]: round(row["ratio"], 3)
            for row in case["rows"]
            if row["ratio"] and not row["label"].startswith("cystore")
        }
        for case in results["cases"]
    }


def fallen(results: dict[str, Any], committed: dict[str, dict[str, float]], margin: float) -> list[str]:
    """A line for each ratio that is lower than the committed one by more than the margin, or that was not measured."""
    measured, lines = ratios(results), []
    for case in results["cases"]:
        name = case["name"]
        for label, before in committed.get(name, {}).items():
            now = measured[name].get(label)
            if now is None:
                lines.append(f"{name} / {label}: not measured, {before:.2f} before")
            elif now < before * (1 - margin):
                lines.append(f"{name} / {label}: {now:.2f}, {before:.2f} before")
    return lines


def compare(results: dict[str, Any], path: Path = COMMITTED, margin: float = MARGIN) -> int:
    """Prints the ratios that fell; 1 when a ratio fell, or when none could be compared."""
    committed = json.loads(path.read_text())
    known = [case["name"] for case in results["cases"] if case["name"] in committed]
    lines = fallen(results, committed, margin)
    for line in lines:
        print(f"FELL by more than {margin:.0%}: {line}")
    if not known:
        print(f"none of these cases has committed ratios in {path}")
        return 1
    if not lines:
        print(f"no ratio of {', '.join(known)} fell by more than {margin:.0%}")
    return 1 if lines else 0


def keep(results: dict[str, Any], path: Path = COMMITTED) -> None:
    """Writes the ratios of these cases as the committed ones."""
    committed = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**committed, **ratios(results)}, indent=1, sort_keys=True) + "\n")
