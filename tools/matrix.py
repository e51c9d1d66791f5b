"""`make matrix`: tries the library with each pair of versions that pip can resolve: Celery and redis-py, PySpark.

    .venv/bin/python -m tools.matrix [--only WORD ...] [--no-docs]

Each pair gets an environment of its own in build/matrix, with the kernels of this clone, and runs a slice of the tests:
the one of Redis with each pair, the one of Celery with the newest redis-py that a Celery allows. The table in
docs/releases.md is written anew; a pair that was not tried keeps its row. Exit code not 0 if a slice failed.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tools import setup_env
from tools.processes import ends_with_us
from tools.setup_env import ROOT, SetupError

PAGE = ROOT / "docs" / "releases.md"
BEGIN, END = "<!-- written by make matrix: begin -->", "<!-- written by make matrix: end -->"
LIMIT_S = 1800  # of one file of tests
PYTEST = (
    *(
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "-o",
        "addopts=--import-mode=importlib",
        "-m",
        "not slow",
    ),
)
# Files, and the tests in them. Without what only 5.7 has: `AsyncResult.exists`, several result objects that wait for
# one task, delivery without a `sleep(0)`, and what only 5.6 has: a hook before each retry. An older kombu looks for a
# killed worker's tasks every 100 s: too late for the test.
OF_CELERY = {
    "tests/celery/duties/test_workers.py": "not a_saved_group and not test_forget and not killed_loses_nothing",
    "tests/celery/lifecycle/test_events.py": "",
    "tests/celery/results/test_backend.py": (
        "not told_apart_from_never_heard_of and not tried_again_where_the_app"
    ),
    "tests/celery/lifecycle/test_lifecycle.py": "",
    "tests/celery/results/test_waiting.py": "not without_a_pause and not parent_that_fails",
}
OF_REDIS = {"tests/celery/routing/test_remote.py": "", "tests/celery/routing/test_redis_urls.py": ""}
OF_SPARK = {"tests/spark/test_batch.py": "", "tests/spark/test_stream.py": ""}
CELERY = {**setup_env.OLDER_CELERY, "5.7": ("celery[redis]~=5.7.0",)}
REDIS = ("5", "6", "7", "8")
SPARK = ("4.0", "4.1", "4.2", "4.3")
BESIDE = (*setup_env.BESIDE_CELERY, "pandas>=2.2,<3")
SHOWN = ("celery", "kombu", "redis", "pyspark", "pyarrow")


@dataclass
class Pair:
    """Versions that are tried together. `found` are the exact ones; empty if pip finds none."""

    names: tuple[str, str]
    wanted: tuple[str, ...]
    slices: dict[str, str]
    found: dict[str, str] = field(default_factory=dict)
    result: str = "pip finds no such pair"

    @property
    def row(self) -> str:
        """The row of the table."""
        versions = ", ".join(f"{name} {self.found[name]}" for name in SHOWN if name in self.found)
        return f"| {self.names[0]} | {self.names[1]} | {versions} | {self.result} |"


def pairs() -> Iterator[Pair]:
    """All of them."""
    for celery, packages in CELERY.items():
        for redis in REDIS:
            wanted = (*packages, f"redis~={redis}.0")
            yield Pair((f"Celery {celery}", f"redis-py {redis}"), wanted, OF_REDIS)
    for spark in SPARK:
        yield Pair((f"PySpark {spark}", "pyarrow"), (f"pyspark~={spark}.0", "pyarrow>=17"), OF_SPARK)


def resolved(wanted: tuple[str, ...]) -> dict[str, str]:
    """The versions that pip would install; empty if there are none."""
    options = ("--dry-run", "--ignore-installed", "--only-binary=:all:", "-q", "--report", "-")
    command = [sys.executable, "-m", "pip", "install", *options, *wanted]
    done = subprocess.run(command, text=True, capture_output=True, timeout=LIMIT_S, check=False)
    if done.returncode:
        return {}
    metadata = [one["metadata"] for one in json.loads(done.stdout)["install"]]
    return {one["name"].lower(): one["version"] for one in metadata}


def run(python: Path, slices: dict[str, str]) -> tuple[int, list[str]]:
    """Runs slices of the tests with an interpreter: how many passed, and the ends of those that failed."""
    passed, failed = 0, []
    for path, chosen in slices.items():
        done = subprocess.run(
            ends_with_us([str(python), *PYTEST, "-k", chosen, path]), cwd=ROOT, text=True, capture_output=True,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=LIMIT_S, check=False,
        )  # fmt: skip
        count = re.search(r"(\d+) passed", done.stdout)
        passed += int(count[1]) if count else 0
        if done.returncode:
            failed.append(f"{path}:\n{done.stdout[-6000:]}{done.stderr[-2000:]}")
    return passed, failed


def newest_first(known: list[Pair]) -> None:
    """The newest redis-py of each Celery gets the slice of Celery, too."""
    newest = {pair.names[0]: pair for pair in known if pair.found and pair.slices is OF_REDIS}
    for pair in newest.values():
        pair.slices = {**OF_CELERY, **OF_REDIS}


def write(known: list[Pair]) -> None:
    """Puts the rows into the page; the others stay."""
    text = PAGE.read_text()
    before, _, rest = text.partition(BEGIN)
    shown, _, after = rest.partition(END)
    cells = (tuple(cell.strip() for cell in row.split("|")[1:3]) for row in shown.splitlines())
    rows = dict(zip(cells, shown.splitlines(), strict=True))
    rows |= {pair.names: pair.row for pair in known}
    order = [pair.names for pair in pairs() if pair.names in rows]
    table = "\n".join(
        ("| | with | versions | result |", "|---|---|---|---|", *(rows[names] for names in order))
    )
    PAGE.write_text(f"{before}{BEGIN}\n{table}\n{END}{after}")


def main(arguments: list[str]) -> int:
    """Tries the pairs, writes the table, names what failed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[""], help='pairs with one of these texts: "Celery 5.4"')
    parser.add_argument("--no-docs", action="store_true", help="leave docs/releases.md as it is")
    args = parser.parse_args(arguments)
    chosen = [pair for pair in pairs() if any(word in " + ".join(pair.names) for word in args.only)]
    for pair in chosen:
        pair.found = resolved(pair.wanted)
    newest_first(chosen)
    bad = 0
    for pair in chosen:
        name, begin = " + ".join(pair.names), time.monotonic()
        beside = BESIDE if pair.slices is OF_SPARK else setup_env.BESIDE_CELERY
        if pair.found:
            try:
                exact = (f"{package}=={version}" for package, version in sorted(pair.found.items()))
                python = setup_env.environment(name.replace(" + ", "-").replace(" ", "-"), (*exact, *beside))
                passed, failed = run(python, pair.slices)
            except (SetupError, subprocess.TimeoutExpired) as error:
                passed, failed = 0, [str(error)]
            pair.result = f"{passed} tests passed" + (f", failed in {len(failed)} files" if failed else "")
            bad += bool(failed)
            for text in failed:
                print(text)
        print(f"matrix: {name}: {pair.result} ({time.monotonic() - begin:.0f} s)", flush=True)
        if not args.no_docs:
            write([pair])
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
