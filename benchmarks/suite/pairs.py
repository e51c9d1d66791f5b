"""`python -m benchmarks pairs CHECKOUT [CASE ...]`: this code and that of another checkout in turns, ratio by ratio.

The other checkout has a built `.venv` and this command line of an earlier or later commit. Each turn runs each case
once with each of the two, and the first one of a turn changes. The peers of each run stand for the machine, so what
counts is the ratio beside a peer; the nanoseconds of our own rows are printed, too.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.suite.cases import CASES, OURS

HERE = Path(__file__).resolve().parents[2]
NOISE = 0.10  # two runs of the same code differ by less in most cases on a machine without other work

# (case, label) -> the value of each turn: nanoseconds in our own rows, and else our speed divided by the peer's.
Figures = dict[tuple[str, str], list[float]]


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks pairs",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="example: python -m benchmarks pairs ../before get query --peers memory,lmdb",
    )
    parser.add_argument("checkout", type=Path, help="the folder of the other checkout")
    parser.add_argument("cases", nargs="*", metavar="CASE", help="only cases whose names begin so")
    parser.add_argument("--turns", type=int, default=3, help="how often each case runs in each (%(default)s)")
    parser.add_argument("--peers", help="measure only these peers, with commas (memory,rocketmq,lmdb,...)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes; the figures mean nothing")
    options = parser.parse_args(arguments)
    other = options.checkout.resolve()
    if not python_of(other).exists():
        parser.error(f"{python_of(other)}: no such file; run `make build` there first")
    chosen = [case.name for case in CASES if not options.cases or case.name.startswith(tuple(options.cases))]
    before: Figures = defaultdict(list)
    after: Figures = defaultdict(list)
    passed = [*(["--peers", options.peers] if options.peers else []), *(["--quick"] if options.quick else [])]
    for name in chosen:
        for turn in range(options.turns):
            runs = [(other, before), (HERE, after)]
            for checkout, figures in runs if turn % 2 == 0 else reversed(runs):
                collect(run(checkout, name, passed), figures)
        print("\n".join(lines(name, before, after)), flush=True)
    return 0


def python_of(checkout: Path) -> Path:
    """The interpreter for which a checkout is built."""
    return checkout / ".venv" / "bin" / "python"


def run(checkout: Path, case: str, arguments: list[str]) -> dict[str, Any]:
    """The result file of one round of a case; no case when the checkout does not have it."""
    with tempfile.NamedTemporaryFile(suffix=".json") as written:
        command = [
            str(python_of(checkout)),
            "-m",
            "benchmarks",
            case,
            "--rounds",
            "1",
            "--json",
            written.name,
        ]
        environment = {**os.environ, "PYTHONPATH": str(checkout)}
        done = subprocess.run(
            [*command, *arguments], cwd=checkout, env=environment, text=True, capture_output=True, check=False
        )
        text = Path(written.name).read_text()
    if not text:
        print(f"{case} in {checkout}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return {"cases": []}
    results: dict[str, Any] = json.loads(text)
    results["cases"] = [found for found in results["cases"] if found["name"] == case]
    return results


def collect(results: dict[str, Any], figures: Figures) -> None:
    """Adds each row of a result file to the figures."""
    for case in results["cases"]:
        for row in case["rows"]:
            value = row["ns_per_op_median"] if row["label"].startswith(OURS) else row["ratio"]
            if value:
                figures[case["name"], row["label"]].append(value)


def lines(case: str, before: Figures, after: Figures) -> list[str]:
    """The table of a case. `now/then` is above 1 when this code is faster; the mark is for more than the noise."""
    shown = [f"{case:<42} {'then':>10} {'now':>10} {'now/then':>9} {'spread':>7}"]
    for (name, label), values in after.items():
        if name != case:
            continue
        earlier = before.get((name, label))
        if not earlier:
            shown.append(f"  {label:<40} {'-':>10} {median(values):>10.4g}")
            continue
        change = median(values) / median(earlier)
        faster = 1 / change if label.startswith(OURS) else change
        spread = max(max(each) / min(each) - 1 for each in (values, earlier))
        mark = "  SLOWER" if faster < 1 - max(NOISE, spread) else ""
        shown.append(
            f"  {label:<40} {median(earlier):>10.4g} {median(values):>10.4g} {faster:>9.2f} {spread:>7.0%}{mark}"
        )
    return shown
