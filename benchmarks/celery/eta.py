"""`python -m benchmarks.celery.eta`: tasks with an ETA in a worker's memory, and in the store.

Celery alone gives a worker all tasks of the next hour at once; with `cystore_durable_eta_after_s` they wait in the
store. Two measurements of each. Many tasks that are due in an hour: the time of a send, and the private memory of the
worker's main process when it grows no more. A few tasks that are due after five visibility timeouts of the broker: how
often each of them ran.
"""

from __future__ import annotations

import argparse
import json
import mmap
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from celery import Celery

from benchmarks.celery import fleet
from benchmarks.celery.drain import MOST_S, worker
from tools.redis_server import redis_server

CELERY, STORE = "Celery, results in Redis", "cystore"
VISIBILITY_S, DUE_S, FEW, HOUR_S = 5, 25, 10, 3600
# kombu looks for messages beyond the timeout this often, instead of each few minutes.
AT_ONCE = {"unacked_restore_interval": 1, "unacked_restore_throttle": 1, "unacked_mutex_expire": VISIBILITY_S}
SETTLED_S, STEP_BYTES = 10.0, 1 << 20  # without growth


class Waiting(NamedTuple):
    """The time of a send, the worker's main process, and the counters of runs."""

    send_us: float
    pid: int
    counts: mmap.mmap


def private_bytes(pid: int) -> int:
    """The private memory of a process."""
    rollup = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return sum(int(line.split()[1]) * 1024 for line in rollup if line.startswith("Private_"))


@contextmanager
def waiting(backend: str, folder: Path, tasks: int, due_s: float, **transport: object) -> Iterator[Waiting]:
    """A worker, and tasks that were sent before it was started and are due in so many seconds."""
    with redis_server(own=True) as redis:
        count = folder / "count"
        count.write_bytes(bytes(fleet.COUNT_BYTES))
        url = redis.broker_url if backend == CELERY else f"cystore://{folder}/store"
        after_s = None if backend == CELERY else due_s / 2
        environment = {
            fleet.BROKER_VARIABLE: redis.broker_url, fleet.BACKEND_VARIABLE: url, fleet.LIFECYCLE_VARIABLE: "1",
            fleet.COUNT_VARIABLE: str(count), fleet.ETA_VARIABLE: str(after_s or ""),
            fleet.OPTIONS_VARIABLE: json.dumps(transport),
        }  # fmt: skip
        app = Celery(broker=redis.broker_url, backend=url, set_as_current=False)
        app.conf.update(broker_transport_options=transport, cystore_durable_eta_after_s=after_s)
        began = time.monotonic()
        for _ in range(tasks):
            app.send_task(fleet.text.name, countdown=due_s)
        send_us = (time.monotonic() - began) / tasks * 1e6
        with (
            open(count, "r+b") as file,
            mmap.mmap(file.fileno(), fleet.COUNT_BYTES) as counts,
            worker(environment, 1, folder / "worker.log") as process,
        ):
            yield Waiting(send_us, process.pid, counts)
            process.kill()  # a warm shutdown gives all that it holds back to the broker
        app.close()


def settled(look: Callable[[], int], step: int, least: int = 0) -> int:
    """The value of `look` when it has not grown by `step` for a while. Raises TimeoutError."""
    end, seen, since = time.monotonic() + MOST_S, -step, time.monotonic()
    while seen < least or time.monotonic() - since < SETTLED_S:
        if time.monotonic() > end:
            raise TimeoutError(f"{seen} after {MOST_S:.0f} s")
        now = look()
        if now >= seen + step:
            seen, since = now, time.monotonic()
        time.sleep(0.1)
    return seen


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.eta", description=__doc__)
    parser.add_argument("--tasks", type=int, default=20_000, help="that wait for an hour (%(default)s)")
    options = parser.parse_args(arguments)
    print(
        f"{options.tasks} tasks wait for an hour; {FEW} tasks for {DUE_S} s, visibility timeout {VISIBILITY_S} s\n"
    )
    print("| ETAs | a send, µs | worker's private memory, MB | runs of a task |")
    print("|---|---:|---:|---:|")
    for backend in (CELERY, STORE):
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as name,
            waiting(backend, Path(name), options.tasks, HOUR_S) as many,
        ):
            memory = settled(lambda: private_bytes(many.pid), STEP_BYTES)
        with (
            tempfile.TemporaryDirectory(prefix="bench-") as name,
            waiting(backend, Path(name), FEW, DUE_S, visibility_timeout=VISIBILITY_S, **AT_ONCE) as few,
        ):
            runs = settled(lambda: fleet.counted(few.counts), 1, FEW)
        print(f"| {backend} | {many.send_us:.0f} | {memory / 1e6:.0f} | {runs / FEW:.1f} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
