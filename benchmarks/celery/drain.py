"""`python -m benchmarks.celery.drain`: what a task costs the worker. The tasks are sent before the worker starts, so no
client takes part: how fast does the worker drain its queue, and which process needs how much processor time?

Each round measures all backends in turn, each with a Redis of its own as the broker and one prefork worker; "no server"
is a worker whose broker is the store of its results. A task
returns a text of 200 bytes. It counts itself in shared memory, so the count costs the same with every backend. The
first tasks warm up the worker. From then on until the last one, the time elapsed is taken, and the processor time of
the worker's main process, of its pool processes and of the Redis server, as the operating system counts it. "None" is
the same worker without any backend: the least that Celery and the broker need. The ratio compares the rate with that of
Redis in the same round; "over none" is the processor time beyond that of "none" in the same round. Both are medians of
the rounds.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from celery import Celery

from benchmarks.celery import fleet
from tools.processes import ends_with_us
from tools.redis_server import Redis, redis_server

ROOT = Path(__file__).resolve().parents[2]
NONE, REDIS, LOG_ON, LOG_OFF = "none", "Redis", "cystore, log on", "cystore, log off"
NO_SERVER, NO_SERVER_LOG_OFF = "no server, log on", "no server, log off"  # the store is the broker, too
BACKENDS = (NONE, REDIS, LOG_ON, LOG_OFF, NO_SERVER, NO_SERVER_LOG_OFF)
LOOK_S = 0.002
MOST_S = 600.0
TICK_S = 1 / os.sysconf("SC_CLK_TCK")


class Drained(NamedTuple):
    """Tasks a second, and µs of processor time a task: of the main process, the pool and the Redis server."""

    per_s: float
    main_us: float
    pool_us: float
    redis_us: float

    @property
    def cpu_us(self) -> float:
        """The processor time of all of them."""
        return self.main_us + self.pool_us + self.redis_us


def cpu_s(pid: int) -> float:
    """The processor time of a process with all its threads."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) * TICK_S


def pool_of(pid: int) -> list[int]:
    """The pool processes of a worker."""
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@contextmanager
def worker(environment: dict[str, str], processes: int, log: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A worker that has just been started."""
    command = [sys.executable, "-m", "celery", "-A", "benchmarks.celery.fleet", "worker"]
    command += [f"--concurrency={processes}", "--loglevel=WARNING", "--without-gossip", "--without-mingle"]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ends_with_us(command), cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT,
        )  # fmt: skip
    try:
        yield process
    finally:
        process.terminate()
        process.wait()


def drain(backend: str, options: argparse.Namespace, folder: Path) -> Drained:
    """One worker that drains its queue. Raises TimeoutError."""
    with redis_server(own=True) as redis:
        count = folder / "count"
        count.write_bytes(bytes(fleet.COUNT_BYTES))
        environment = {
            fleet.BROKER_VARIABLE: (broker_url := broker_of(backend, redis, folder)),
            fleet.BACKEND_VARIABLE: url_of(backend, redis, folder),
            fleet.LIFECYCLE_VARIABLE: "1" if backend in (LOG_ON, NO_SERVER) else "",
            fleet.COUNT_VARIABLE: str(count),
        }
        send(broker_url, options.tasks + options.warm_up)
        with (
            open(count, "r+b") as file,
            mmap.mmap(file.fileno(), fleet.COUNT_BYTES) as counts,
            worker(environment, options.processes, folder / "worker.log") as process,
        ):
            pids = {"redis": [redis.pid or 0], "main": [process.pid], "pool": []}

            def until(tasks: int) -> tuple[float, dict[str, float]]:
                end = time.monotonic() + MOST_S
                while fleet.counted(counts) < tasks:
                    if time.monotonic() > end or process.poll() is not None:
                        raise TimeoutError(
                            f"{fleet.counted(counts)} of {tasks} tasks: {folder / 'worker.log'}"
                        )
                    time.sleep(LOOK_S)
                pids["pool"] = pids["pool"] or pool_of(process.pid)
                return time.monotonic(), {who: sum(map(cpu_s, those)) for who, those in pids.items()}

            began, before = until(options.warm_up)
            first = fleet.counted(counts)
            ended, after = until(options.tasks + options.warm_up)
            tasks = options.tasks + options.warm_up - first
            used = {who: (after[who] - before[who]) / tasks * 1e6 for who in pids}
            return Drained(tasks / (ended - began), used["main"], used["pool"], used["redis"])


def url_of(backend: str, redis: Redis, folder: Path) -> str:
    """The result backend's URL."""
    if backend == NONE:
        return "disabled://"
    return redis.broker_url if backend == REDIS else f"cystore://{folder}/store"


def broker_of(backend: str, redis: Redis, folder: Path) -> str:
    """The broker's URL: the store itself, or Redis."""
    return f"cystore://{folder}/store" if backend in (NO_SERVER, NO_SERVER_LOG_OFF) else redis.broker_url


def send(broker_url: str, count: int) -> None:
    """Sends the tasks from here, without any backend."""
    app = Celery(broker=broker_url, backend="disabled://", set_as_current=False)
    with app.connection_for_write() as connection, app.amqp.Producer(connection) as producer:
        for _ in range(count):
            app.send_task(fleet.text.name, producer=producer)
    if broker_url.startswith("cystore"):
        from cystore.celery.stores import close_shared

        close_shared()  # before the folder goes


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.drain", description=__doc__)
    parser.add_argument("--tasks", type=int, default=5_000, help="of one measurement (%(default)s)")
    parser.add_argument("--warm-up", type=int, default=500, help="tasks before it (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3, help="(%(default)s)")
    parser.add_argument("--processes", type=int, default=2, help="of the pool (%(default)s)")
    parser.add_argument("--json", action="store_true", help="print all rounds as JSON")
    options = parser.parse_args(arguments)
    rounds: list[dict[str, Drained]] = []
    for number in range(options.rounds):
        found = {}
        for backend in BACKENDS if number % 2 == 0 else reversed(BACKENDS):
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                found[backend] = drain(backend, options, Path(folder))
        rounds.append(found)
    if options.json:
        print(json.dumps([{backend: one._asdict() for backend, one in found.items()} for found in rounds]))
        return 0
    print(f"{options.rounds} rounds of {options.tasks} tasks, {options.processes} pool processes\n")
    print("| results | tasks/s | beside Redis | main, µs | pool, µs | Redis, µs | over none, µs |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    for backend in BACKENDS:
        values = [statistics.median(column) for column in zip(*(one[backend] for one in rounds), strict=True)]
        ratio = statistics.median(one[backend].per_s / one[REDIS].per_s for one in rounds)
        over = statistics.median(one[backend].cpu_us - one[NONE].cpu_us for one in rounds)
        told = " | ".join(f"{value:.0f}" for value in values[1:])
        print(f"| {backend} | {values[0]:.0f} | {ratio:.2f} | {told} | {over:.0f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
