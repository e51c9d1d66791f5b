"""`python -m benchmarks interpreters CHECKOUT ...`: the same code with several interpreters, in turns.

Each checkout has a `.venv` of another Python, and kernels that are built for it: `python -m venv .venv`,
`.venv/bin/pip install cython crc32c setuptools lmdb pyarrow pytest`, `.venv/bin/python tools/build.py inplace`. The
table has ns an operation, and behind it the time of the first checkout divided by this one's: above 1 this interpreter
is faster.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import median

from benchmarks.suite import pairs
from benchmarks.suite.cases import CASES, OURS

SHOWN = ("put-100", "put-many-1k", "get", "get-one", "query", "query-many")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks interpreters",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("checkouts", nargs="+", type=Path, metavar="CHECKOUT", help="folders of checkouts")
    parser.add_argument("--cases", default=",".join(SHOWN), help="with commas (%(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="how often each case runs in each (%(default)s)")
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes; the figures mean nothing")
    options = parser.parse_args(arguments)
    checkouts = [checkout.resolve() for checkout in options.checkouts]
    for checkout in checkouts:
        if not pairs.python_of(checkout).exists():
            parser.error(f"{pairs.python_of(checkout)}: no such file")
    chosen = options.cases.split(",")
    if unknown := set(chosen) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    passed = ["--peers", "cystore_read", *(["--quick"] if options.quick else [])]
    for number, name in enumerate(chosen):
        figures: list[pairs.Figures] = [defaultdict(list) for _ in checkouts]
        names = ["not measured" for _ in checkouts]
        for turn in range(options.turns):
            order = range(len(checkouts)) if turn % 2 == 0 else reversed(range(len(checkouts)))
            for at in order:
                results = pairs.run(checkouts[at], name, passed)
                if "machine" in results:
                    names[at] = f"Python {results['machine']['python']}"
                pairs.collect(results, figures[at])
        if number == 0:
            print(f"| case | {' | '.join(names)} |\n|---|{'---:|' * len(names)}")
        print("\n".join(lines(name, figures)), flush=True)
    return 0


def lines(case: str, figures: list[pairs.Figures]) -> list[str]:
    """The rows of a case: one for each of our own contestants."""
    shown = []
    for (name, label), values in figures[0].items():
        if name != case or not label.startswith(OURS):
            continue
        first, cells = median(values), [f"{median(values):,.0f}"]
        for other in figures[1:]:
            taken = other.get((name, label))
            cells.append(f"{median(taken):,.0f} ({first / median(taken):.2f} ×)" if taken else "not measured")
        shown.append(f"| {case}{label.removeprefix(OURS)} | {' | '.join(cells)} |")
    return shown
