"""`python -m benchmarks [CASE ...]`: measures cystore beside its peers and prints every ratio, reached or not."""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import tempfile
from dataclasses import replace
from datetime import datetime
from pathlib import Path

from benchmarks.scale import command as scale
from benchmarks.scale import growth
from benchmarks.store import compact, groups, importing, memory, replicas, replication, timer, writes
from benchmarks.suite import check, interpreters, pairs, report, runner
from benchmarks.suite.cases import CASES
from benchmarks.suite.document import updated

HERE = Path(__file__).resolve().parent
RESULTS, PAGE = HERE / "results", HERE.parent / "docs" / "benchmarks.md"
INTERRUPTED = 128 + signal.SIGINT  # an exit code


def _spark(arguments: list[str]) -> int:
    from benchmarks.spark import questions  # this module needs PySpark

    return questions.main(arguments)


COMMANDS = {
    "compact": compact.main,
    "groups": lambda _: groups.main(),
    "growth": growth.main,
    "import": lambda _: importing.main(),
    "interpreters": interpreters.main,
    "memory": memory.main,
    "pairs": pairs.main,
    "replicas": replicas.main,
    "replication": replication.main,
    "scale": scale.main,
    "spark": _spark,
    "timer": timer.main,
    "writes": writes.main,
}


def main(arguments: list[str]) -> int:
    if arguments and arguments[0] in COMMANDS:
        return COMMANDS[arguments[0]](arguments[1:])
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument(
        "cases",
        nargs="*",
        metavar="CASE",
        help="run only these cases, or all whose names begin so (default: all but the long ones)",
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="a tenth of the sizes, 2 rounds: tests that everything runs; the figures mean nothing",
    )
    parser.add_argument("--rounds", type=int, help="how often each case is measured (5, quick: 2)")
    parser.add_argument(
        "--peers",
        help="measure only these rows beside ours: peer names with commas (memory,rocketmq,lmdb,...)",
    )
    parser.add_argument(
        "--folder",
        type=Path,
        default=Path(tempfile.gettempdir()),
        help="the folder in which stores are made (%(default)s)",
    )
    parser.add_argument("--json", type=Path, help="the result file (benchmarks/results/TIME.json)")
    parser.add_argument(
        "--document",
        type=Path,
        metavar="FILE",
        help="write the cases of a result file into docs/benchmarks.md; measure nothing",
    )
    parser.add_argument(
        "--check",
        action="store_true",
        help="fail when a ratio is lower than in benchmarks/ratios.json by more than --margin",
    )
    parser.add_argument("--margin", type=float, default=check.MARGIN, help="as a part (%(default)s)")
    parser.add_argument(
        "--keep", action="store_true", help="write this run's ratios to benchmarks/ratios.json"
    )
    parser.add_argument("--list", action="store_true", help="name the cases and end")
    options = parser.parse_args(arguments)
    if options.document:
        PAGE.write_text(updated(PAGE.read_text(), json.loads(options.document.read_text())))
        return 0
    if options.list:
        print("\n".join(f"{case.name:<20} {case.title}{' (long)' * case.long}" for case in CASES))
        return 0
    chosen = [case for case in CASES if case.chosen_by(options.cases)]
    if not chosen:
        parser.error(f"no such case; the cases are {', '.join(case.name for case in CASES)}")
    rounds = options.rounds or (2 if options.quick else 5)
    peers = set(options.peers.split(",")) | {"cystore"} if options.peers else None
    results, load = [], os.getloadavg()[0]
    for case in chosen:
        kept = tuple(row for row in case.contestants if not peers or row.peer in peers)
        case_here = replace(case, contestants=kept)
        result = runner.run(
            case_here, rounds=rounds, quick=options.quick, folder=options.folder, progress=_progress
        )
        _progress("")
        print(report.table(result), end="\n\n", flush=True)
        results.append(result)
    print(report.summary(results))
    if options.quick:
        print("quick sizes: everything runs, and the figures mean nothing")
    path = options.json or RESULTS / f"{datetime.now():%Y%m%d-%H%M%S}.json"
    shown = {
        "quick": options.quick,
        "rounds": rounds,
        "cases": [case.name for case in chosen],
        "peers": options.peers,
    }
    written = report.as_json(results, shown, options.folder, load)
    report.write(written, path)
    print(f"written: {path}")
    if options.keep:
        check.keep(written)
    if options.check:
        return check.compare(written, margin=options.margin)
    return 0 if all(row.ns for result in results for row in result.rows[:1]) else 1


def _progress(text: str) -> None:
    """One line that the next call overwrites; only at a terminal."""
    if sys.stderr.isatty():
        sys.stderr.write(f"\r\033[K{text}")
        sys.stderr.flush()


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
