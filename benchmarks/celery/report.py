"""`python -m benchmarks.celery.report`: how long `cystore report` takes for a lifecycle log, as a user runs it: with
the start of the process, the reading, the tables and the page.

It writes a log of 1 million events (four for each task, of 40 tasks; one run of ten fails with a traceback), then runs
the command in a process of its own and prints its seconds, processor time and peak memory."""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import cystore
from tests.support.celery.logs import runs

ROOT = Path(__file__).resolve().parents[2]
EVENTS_OF_A_RUN, STEP, NAMES = 4, 25_000, 40


def write(path: Path, events: int) -> None:
    """A store with the events of so many runs."""
    count = events // EVENTS_OF_A_RUN
    with cystore.open(path) as store:
        for first in range(0, count, STEP):
            messages = runs(min(STEP, count - first), names=NAMES, first=first)
            for begin in range(0, len(messages), 1000):
                store.put_many(messages[begin : begin + 1000])
        store.dispatch()


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.report", description=__doc__)
    parser.add_argument("--events", type=int, default=1_000_000, help="(%(default)s)")
    parser.add_argument("--format", nargs="+", default=["html", "json", "md"], help="(%(default)s)")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        store = Path(folder, "store")
        write(store, options.events)
        print(f"report of {options.events:,} events")
        for name in options.format:
            out = Path(folder, name)
            command = [sys.executable, "-m", "cystore", "report", store, "--format", name, "--out", out]
            before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
            subprocess.run(list(map(str, command)), cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
            seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
            cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            size = Path(out, f"report.{name}").stat().st_size
            print(
                f"{name:<5} {seconds:6.2f} s, {cpu_s:6.2f} s of processor time, "
                f"at most {after.ru_maxrss / 1024:.0f} MiB, a page of {size:,} bytes"
            )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
