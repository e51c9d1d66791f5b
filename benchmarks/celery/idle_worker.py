"""`python -m benchmarks.celery.idle_worker [--seconds N] [--starts N]`: the cost of an idle worker with a store.

Workers of two pool processes run beside each other, with a Redis each. The first two store results in Redis: the
worker `without` where cystore is not installed, the worker `redis` where it is. The third stores results in a store,
the fourth in a store with installed duties and beat. Each runs some tasks, so that every process has
loaded its parts. Then they are idle for a while. The benchmark counts, over all processes of each worker, processor
time, wake-ups of threads, and the commands of its Redis (also those inside scripts). Then it starts each worker some
times, in turn, and measures the time from the command to "ready".
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from celery import Celery
from redis import Redis as Client

from benchmarks.celery.fleet import BACKEND_VARIABLE, BROKER_VARIABLE, DUTIES_VARIABLE, LIFECYCLE_VARIABLE
from benchmarks.scale.idle import switches
from tools.processes import ends_with_us
from tools.redis_server import Redis, redis_server

ROOT = Path(__file__).resolve().parents[2]
TASKS = 100  # before the measurement
SETTLE_S = 45.0  # after the start: for a checkpoint, and all other work that is done once
READY = " ready."
ALONE = "without"  # the kind that the others are compared with
KINDS = (ALONE, "redis", "store", "duties")
TICKS_A_SECOND = os.sysconf("SC_CLK_TCK")


@dataclass
class Cost:
    """The counts of all processes of one worker since they started."""

    cpu_s: float
    wakes: int
    commands: int


class Worker:
    """A worker, and for `duties` its beat."""

    def __init__(self, kind: str, redis: Redis, folder: Path) -> None:
        self.redis, self.log = redis, folder / f"{time.monotonic_ns()}.log"
        stored = kind in ("store", "duties")
        backend = f"cystore://{folder}/store?allow_any_owner=true" if stored else redis.broker_url
        environment = {
            **os.environ,
            BROKER_VARIABLE: redis.broker_url,
            BACKEND_VARIABLE: backend,
            DUTIES_VARIABLE: "1" if kind == "duties" else "",
            LIFECYCLE_VARIABLE: "1",
        }
        self._environment, self._processes = environment, list[subprocess.Popen[bytes]]()
        self._celery = "benchmarks.celery.without_plugin" if kind == ALONE else "celery"
        begun = time.perf_counter()
        self._start("worker", "--concurrency", "2", "--pool", "prefork", "--loglevel", "INFO")
        while READY not in self.log.read_text():
            if self._processes[0].poll() is not None:
                raise RuntimeError(self.log.read_text())
            time.sleep(0.005)
        self.start_s = time.perf_counter() - begun
        if kind == "duties":
            self._start("beat", "--schedule", str(folder / "schedule"), "--pidfile", "")

    def _start(self, *words: str) -> None:
        command = [sys.executable, "-m", self._celery, "-A", "benchmarks.celery.fleet", *words]
        with open(self.log, "ab") as output:
            self._processes.append(
                subprocess.Popen(
                    ends_with_us(command),
                    cwd=ROOT,
                    env=self._environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    def run_tasks(self) -> None:
        """Runs tasks, some in every pool process."""
        with Celery(broker=self._environment[BROKER_VARIABLE], set_as_current=False) as app:
            for number in range(TASKS):
                app.send_task("benchmarks.celery.fleet.add", (number, 1))

    def cost(self) -> Cost:
        """The counts of the worker. Of beat only the commands count."""
        main = self._processes[0].pid
        children = Path(f"/proc/{main}/task/{main}/children").read_text().split()
        pids = [main, *map(int, children)]
        stats = [Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split() for pid in pids]
        cpu_s = sum(int(one[11]) + int(one[12]) for one in stats) / TICKS_A_SECOND
        with Client.from_url(self.redis.url) as client:
            commands = sum(one["calls"] for one in client.info("commandstats").values())
        return Cost(cpu_s, sum(map(switches, pids)), commands)

    def stop(self) -> None:
        """Sends SIGTERM, and waits for the end."""
        for process in self._processes:
            process.send_signal(signal.SIGTERM)
        for process in self._processes:
            process.wait(120)


@contextmanager
def working(kind: str, redis: Redis, folder: Path) -> Iterator[Worker]:
    """A worker for the length of a with block."""
    folder.mkdir(exist_ok=True)
    worker = Worker(kind, redis, folder)
    try:
        yield worker
    finally:
        worker.stop()


def idle(root: Path, seconds: float, settle_s: float) -> dict[str, dict[str, float]]:
    """By kind: percent of a core, wake-ups and commands a second."""
    with ExitStack() as stack:
        workers = {}
        for kind in KINDS:
            redis = stack.enter_context(redis_server(own=True))
            workers[kind] = stack.enter_context(working(kind, redis, root / kind))
            workers[kind].run_tasks()
        time.sleep(settle_s)
        before, begun = {kind: worker.cost() for kind, worker in workers.items()}, time.perf_counter()
        time.sleep(seconds)
        after, took_s = {kind: worker.cost() for kind, worker in workers.items()}, time.perf_counter() - begun
    return {
        kind: {
            "core_percent": 100 * (after[kind].cpu_s - before[kind].cpu_s) / took_s,
            "wakes_per_s": (after[kind].wakes - before[kind].wakes) / took_s,
            "redis_commands_per_s": (after[kind].commands - before[kind].commands) / took_s,
        }
        for kind in KINDS
    }


def starts(root: Path, count: int) -> dict[str, float]:
    """By kind: the median time of a start on an existing store."""
    took: dict[str, list[float]] = {kind: [] for kind in KINDS}
    with redis_server(own=True) as redis:
        for _ in range(count + 1):
            for kind in KINDS:
                with working(kind, redis, root / f"start-{kind}") as worker:
                    took[kind].append(worker.start_s)
    return {kind: statistics.median(times[1:]) for kind, times in took.items()}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.idle_worker", description=__doc__)
    parser.add_argument(
        "--seconds", type=float, default=120.0, help="how long the workers are idle (%(default)s)"
    )
    parser.add_argument(
        "--settle", type=float, default=SETTLE_S, help="pause before the measurement, in s (%(default)s)"
    )
    parser.add_argument("--starts", type=int, default=9, help="number of starts of each kind (%(default)s)")
    parser.add_argument("--json", action="store_true", help="as one object")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        found = idle(Path(folder), options.seconds, options.settle)
        started = starts(Path(folder), options.starts) if options.starts else {}
    if options.json:
        print(json.dumps({"idle": found, "start_s": started}))
        return 0
    alone = found[ALONE]
    print(f"{'worker':<8}{'% of a core':>12}{'wake-ups/s':>12}{'commands/s':>12}{'start, s':>10}")
    for kind, one in found.items():
        start = f"{started[kind]:.3f}" if started else "-"
        print(
            f"{kind:<8}{one['core_percent']:>12.2f}{one['wakes_per_s']:>12.1f}"
            f"{one['redis_commands_per_s']:>12.2f}{start:>10}"
        )
    for kind in KINDS[1:]:
        more = {name: found[kind][name] - alone[name] for name in alone}
        ratio = f", start {100 * (started[kind] / started[ALONE] - 1):+.1f} %" if started else ""
        print(
            f"{kind}: {more['core_percent']:+.2f} % of a core, {more['wakes_per_s']:+.1f} wake-ups/s, "
            f"{more['redis_commands_per_s']:+.2f} commands/s{ratio}"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
