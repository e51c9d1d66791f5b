"""The fault matrix: python -m tests.crash [FAULT ...] [--seed N] [--case M] [--minutes N] [--count N] [--json FILE]

Example: python -m tests.crash kill --count 200 --seed 7
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import shutil
import sys
import tempfile
from pathlib import Path

from tests.crash import matrix, page
from tests.crash.faults import FAULTS, PIECES, SHAPED

ROOT = Path(__file__).resolve().parents[2]
ROWS = (*FAULTS, *PIECES, *SHAPED)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.crash",
        description="Runs the fault matrix and prints its table.",
        epilog=__doc__,
    )
    parser.add_argument("faults", nargs="*", help=f"only these rows: {', '.join(f.name for f in ROWS)}")
    parser.add_argument("--seed", type=int, help="repeats a run (default: a new one, printed)")
    parser.add_argument("--case", type=int, help="only the case with this number")
    parser.add_argument("--count", type=int, help="faults of each row (default: the full count)")
    parser.add_argument("--minutes", type=float, help="at most so long for each row")
    parser.add_argument("--json", type=Path, help="writes the results there")
    parser.add_argument(
        "--document",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="writes docs/reliability.md from results but its section Found; runs of a row are added up; runs nothing",
    )
    parser.add_argument(
        "--add",
        type=Path,
        nargs="+",
        metavar="JSON",
        help="as --document, but keeps what the page has; runs nothing",
    )
    options = parser.parse_args(arguments)
    if options.document or options.add:
        document = ROOT / "docs" / "reliability.md"
        head, found, by_hand = document.read_text().partition("\n## Found\n")
        before = page.results_of(head) if options.add else []
        new = [json.loads(path.read_text()) for path in options.add or options.document]
        document.write_text(matrix.document([*before, *new]) + found + by_hand)
        return 0
    unknown = set(options.faults) - {fault.name for fault in ROWS}
    if unknown:
        parser.error(f"no such row: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(2**32) if options.seed is None else options.seed
    print(f"seed: {seed}", flush=True)
    logging.getLogger("cystore").addHandler(logging.NullHandler())  # repairs are what this is about
    shown = sys.stderr.isatty()
    rows = []
    for fault in ROWS:
        if options.faults and fault.name not in options.faults:
            continue
        folder = tempfile.mkdtemp(prefix="cystore-crash-")
        row = matrix.run(
            fault,
            seed=seed,
            count=options.count or fault.full,
            folder=Path(folder),
            minutes=options.minutes,
            only=options.case,
            progress=lambda text: print(f"\r{text}   ", end="", file=sys.stderr) if shown else None,
        )
        if row.good:
            shutil.rmtree(folder, ignore_errors=True)  # else it shows what the failed cases left
        rows.append(row)
        print(matrix.table([row]), flush=True)
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(matrix.as_json(rows))
    print(f"\n{matrix.table(rows)}\nseed: {seed}")
    return 0 if rows and all(row.good for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
