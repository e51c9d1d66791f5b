"""`python -m benchmarks.celery.teams`: the speed of a result backend for a team, as ratios to Redis in one run.

Each round measures both backends in turn, with one prefork worker and the lifecycle log on. It measures whole tasks,
from the first message sent to the last result read; the same beside idle waiters; and a chord of many parts. The
waiters are threads of other processes, each in `.get()` of a task in a queue that no worker consumes. The ratio
compares the two halves of a round; it is the median of the rounds. "Lost" is the part of a backend's rate that the
waiters cost in the same round.

The floor is the same work of the same worker without any backend; the last task tells the sender through a pipe. Its
ratio to Redis is the most that a backend without any cost would reach. A second floor of the chord makes one append
for each part, durable before the part ends, as a part of ours is.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from celery import Celery, chord, group

from benchmarks.celery.fleet import add, append_and_tell, total
from benchmarks.peers.celery_peer import ROOT, WAIT_S, _worker, _workers_of
from benchmarks.suite.workload import Job
from cystore.celery.stores import close_shared
from tools.processes import ends_with_us

OURS, REDIS, NONE = "cystore", "redis", "none"
PROCESSES = 4  # waiting processes
NOBODYS = "nobody"  # a queue without a worker


def _tasks(app: Celery, count: int) -> float:
    """Seconds for a task."""
    begun = time.perf_counter()
    results = group(add.s(number, 1) for number in range(count)).apply_async()
    assert sum(results.join_native(timeout=WAIT_S)) == count * (count + 1) // 2
    return (time.perf_counter() - begun) / count


def _chord(parts: int) -> float:
    """Seconds for a chord."""
    begun = time.perf_counter()
    done = chord((add.s(number, 1) for number in range(parts)), total.s()).apply_async()
    assert done.get(timeout=WAIT_S) == parts * (parts + 1) // 2
    return time.perf_counter() - begun


@contextmanager
def _waiters(app: Celery, count: int) -> Iterator[None]:
    """Keeps `count` calls of `.get()` waiting, spread over processes."""
    command = [sys.executable, "-m", "benchmarks.celery.teams", "--part", "wait"]
    words = [app.conf.broker_url, app.conf.result_backend, str(count // PROCESSES)]
    processes = [
        subprocess.Popen(
            ends_with_us([*command, *words]), cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        for _ in range(PROCESSES)
    ]
    try:
        for process in processes:
            if process.stdout is None or not process.stdout.readline():
                raise RuntimeError("a process that waits ended")
        yield
    finally:
        for process in processes:
            process.kill()
            process.wait()


def wait(broker: str, backend: str, count: int) -> None:
    """Waits in `count` threads, until the process is killed."""
    app = Celery(broker=broker, backend=backend, set_as_current=False)
    app.conf.result_backend_thread_safe = backend.startswith("cystore")  # Redis's is not
    ready = threading.Barrier(count + 1)

    def get() -> None:
        result = app.send_task(add.name, (1, 1), queue=NOBODYS)
        ready.wait()
        result.get(timeout=3600)

    for _ in range(count):
        threading.Thread(target=get, daemon=True).start()
    ready.wait()
    time.sleep(1.0)  # the waits have begun by then
    print("waiting", flush=True)
    sys.stdin.read()


def half(backend: str, options: argparse.Namespace) -> dict[str, float]:
    """Seconds of each of the three, measured in a process of its own: Celery keeps its connections."""
    given = [f"--{name}={getattr(options, name)}" for name in ("tasks", "waiters", "parts", "chords")]
    command = [sys.executable, "-m", "benchmarks.celery.teams", "--part", backend, *given]
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    return found


def floor(options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds without a backend: of a task, of a chord, and of a chord with durable parts."""
    with _workers_of(Job("teams", 0, str(folder), options={"backend": NONE})) as run:
        run(200)

        def seconds(count: int) -> float:
            begun = time.perf_counter()
            group(add.s(number, 1) for number in range(count)).apply_async()
            run(1)
            return time.perf_counter() - begun

        found = {"tasks": seconds(options.tasks) / options.tasks}
        if options.parts:
            found["chord"] = statistics.median(seconds(options.parts) for _ in range(options.chords))
            run(1, append_and_tell)
            begun = time.perf_counter()
            run(options.parts, append_and_tell)
            run(1)
            found["durable"] = time.perf_counter() - begun
        return found


def measure(backend: str, options: argparse.Namespace, folder: Path) -> dict[str, float]:
    """Seconds of each of the three."""
    if backend == NONE:
        return floor(options, folder)
    with _worker(Job("teams", 0, str(folder), options={"backend": backend, "lifecycle": True})) as (app, _):
        _tasks(app, 200)
        found = {"tasks": _tasks(app, options.tasks)}
        with _waiters(app, options.waiters):
            found["beside"] = _tasks(app, options.tasks)
        if options.parts:
            _chord(50)
            found["chord"] = statistics.median(_chord(options.parts) for _ in range(options.chords))
        close_shared()
        return found


def main(arguments: list[str]) -> int:
    if arguments[:2] == ["--part", "wait"]:
        wait(arguments[2], arguments[3], int(arguments[4]))
        return 0
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.teams", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--tasks", type=int, default=2_000, help="of one measurement (%(default)s)")
    parser.add_argument("--waiters", type=int, default=200, help="idle ones (%(default)s)")
    parser.add_argument("--parts", type=int, default=1_000, help="of a chord (%(default)s)")
    parser.add_argument("--chords", type=int, default=3, help="in each half (%(default)s)")
    parser.add_argument("--part", choices=(OURS, REDIS, NONE), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        with tempfile.TemporaryDirectory(prefix="bench-") as folder:
            print(json.dumps(measure(options.part, options, Path(folder))))
        return 0
    rounds: list[dict[str, dict[str, float]]] = []
    for _ in range(options.rounds):
        rounds.append({backend: half(backend, options) for backend in (OURS, REDIS, NONE)})

    def median(what: str, backend: str) -> float:
        return statistics.median(one[backend][what] for one in rounds)

    def ratio(what: str, backend: str = OURS, of: str = "") -> float:
        return statistics.median(one[REDIS][what] / one[backend][of or what] for one in rounds)

    def lost(backend: str) -> float:
        return 100 * (1 - statistics.median(one[backend]["tasks"] / one[backend]["beside"] for one in rounds))

    def row(title: str, shown: str, what: str, floor_of: str, goal: float, per_s: bool) -> None:
        values = [median(what, OURS), median(what, REDIS), median(floor_of, NONE)]
        told = "".join(f"{1 / one if per_s else 1e3 * one:>10{shown}}" for one in values)
        most = ratio(what, NONE, floor_of)
        print(f"{title:<34}{told}{ratio(what):>8.2f}{goal:>8.2f}{most:>12.2f}")

    print(f"{'':<34}{'cystore':>10}{'Redis':>10}{'floor':>10}{'ratio':>8}{'goal':>8}{'floor/Redis':>12}")
    row("tasks/s, lifecycle on", ".0f", "tasks", "tasks", 1.25, per_s=True)
    row(f"tasks/s beside {options.waiters} waiters", ".0f", "beside", "tasks", 2.0, per_s=True)
    print(f"{'lost to the waiters, %':<34}{lost(OURS):>10.1f}{lost(REDIS):>10.1f}{'':>18}{'5':>8}")
    if options.parts:
        row(f"chord of {options.parts}, ms", ".0f", "chord", "chord", 2.0, per_s=False)
        row("the same, floor with durable parts", ".0f", "chord", "durable", 2.0, per_s=False)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
