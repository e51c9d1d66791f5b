"""`python -m benchmarks.celery.lifecycle`: the cost of the lifecycle log for a task, with the log off and on in turn.
With `--light KINDS` (`worker`, or `worker,workflow`) the log is on in both, and these light queues are off and on. With
`--messages` the log is on in both, and keeps the message of each task or not (`cystore_lifecycle_payload`).

Each round starts a worker with two pool processes on an empty store and stops its consuming. The benchmark times the
sending of the messages. Then the worker consumes again, until the last of them has run, which is timed too. Tasks only
count themselves in Redis; their results are stored. Ratios compare the two halves of a round; the median of them is
printed. The table also shows the processor time of the sender, and of the worker with its children. The least of all
rounds depends least on other work of the machine.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import redis
from celery import Celery, Task, shared_task

from cystore.celery.base import events
from cystore.celery.lifecycle import light_queues, payload
from cystore.celery.stores import close_shared
from tools.processes import ends_with_us
from tools.redis_server import redis_server

ROOT = Path(__file__).resolve().parents[2]
BROKER, STORE, LOGGED, COUNTER = "BENCH_BROKER", "BENCH_STORE", "BENCH_LIFECYCLE", "BENCH_COUNTER"
LIGHT, MESSAGES = "BENCH_LIGHT", "BENCH_MESSAGES"
QUEUE, DONE = "bench", "bench-done"
WARM_UP = 200
TIMEOUT_S = 600


def make_app(environment: dict[str, str]) -> Celery:
    """The app of one half of a round; the two differ in one setting."""
    app = Celery("bench", broker=environment[BROKER], backend=f"cystore://{environment[STORE]}")
    app.conf.update(
        task_default_queue=QUEUE,
        cystore_lifecycle=environment[LOGGED] == "on",
        cystore_lifecycle_light_queues=environment[LIGHT],
        cystore_lifecycle_payload=environment[MESSAGES] or None,
        broker_connection_retry_on_startup=True,
    )
    return app


@shared_task(bind=True, name="bench.count")  # this module has two names
def count(self: Task, until: int) -> int:
    """Counts itself, and signals when it is the last one."""
    client = _client()
    number = int(client.incr("bench-count"))
    if number == until:
        client.rpush(DONE, number)
    return number


_clients: dict[int, redis.Redis] = {}


def _client() -> redis.Redis:
    pid = os.getpid()
    if pid not in _clients:
        _clients[pid] = redis.Redis.from_url(os.environ[COUNTER])
    return _clients[pid]


@dataclass(frozen=True)
class Half:
    """µs a task, for the sender and for the worker, elapsed and of processor time; events in the store, and bytes of
    the log a task."""

    send_us: float
    send_cpu_us: float
    work_us: float
    work_cpu_us: float
    events: int
    log_bytes: float


def _cpu_s(group: int) -> float:
    """Processor time of all processes of a process group."""
    ticks = 0
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue  # the process ended meanwhile
        if int(fields[2]) == group:
            ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


@contextmanager
def _worker(environment: dict[str, str], log: Path) -> Iterator[int]:
    command = [
        sys.executable,
        "-m",
        "celery",
        "-A",
        "benchmarks.celery.lifecycle",
        "worker",
        "--concurrency=2",
    ]
    command += [
        "-Q",
        QUEUE,
        "--loglevel",
        "WARNING",
        "--without-gossip",
        "--without-mingle",
        "-n",
        "bench@local",
    ]
    with open(log, "wb") as output:
        process = subprocess.Popen(
            ends_with_us(command), cwd=ROOT, env={**os.environ, **environment}, stdin=subprocess.DEVNULL,
            stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
    try:
        yield process.pid
    finally:
        process.terminate()
        process.wait()


def half(logged: str, light: str, messages: str, tasks: int, folder: Path) -> Half:
    """One worker, `tasks` messages. Raises TimeoutError when they are not done."""
    with (
        redis_server(own=True) as server,
        redis.Redis.from_url(server.url, socket_timeout=2 * TIMEOUT_S) as client,
    ):
        environment = {
            BROKER: server.broker_url,
            STORE: str(folder / "store"),
            LOGGED: logged,
            LIGHT: light,
            MESSAGES: messages,
            COUNTER: server.url,
        }
        os.environ.update(environment)
        app = make_app(environment)
        task = app.tasks[count.name]
        with _worker(environment, folder / "worker.log") as group:

            def send(number: int) -> float:
                client.delete("bench-count")
                begin = time.perf_counter()
                for _ in range(number):
                    task.delay(number)
                return time.perf_counter() - begin

            def until_done() -> None:
                if client.blpop([DONE], TIMEOUT_S) is None:
                    raise TimeoutError(f"not done after {TIMEOUT_S} s: {folder / 'worker.log'}")

            send(WARM_UP)
            until_done()
            app.control.cancel_consumer(QUEUE, reply=True)
            log_begin = app.backend.store.wrote_position
            begin_cpu = time.process_time()
            sent_s = send(tasks)
            sent_cpu_s = time.process_time() - begin_cpu
            begin, begin_cpu = time.perf_counter(), _cpu_s(group)
            app.control.add_consumer(QUEUE)
            until_done()
            worked_s, worked_cpu_s = time.perf_counter() - begin, _cpu_s(group) - begin_cpu
        queues = app.backend.store.topics().get(events.EVENTS, {})
        found = sum(high - low for low, high in queues.values())
        log_bytes = (app.backend.store.wrote_position - log_begin) / tasks
        close_shared()
        times_us = (seconds / tasks * 1e6 for seconds in (sent_s, sent_cpu_s, worked_s, worked_cpu_s))
        return Half(*times_us, events=found, log_bytes=log_bytes)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.celery.lifecycle", description=__doc__)
    parser.add_argument(
        "--tasks", type=int, default=5000, help="messages of one half of a round (%(default)s)"
    )
    parser.add_argument("--rounds", type=int, default=5, help="(%(default)s)")
    parser.add_argument(
        "--light", metavar="KINDS", help="compare the log with and without these light queues"
    )
    parser.add_argument("--messages", action="store_true", help="compare the log with and without messages")
    options = parser.parse_args(arguments)
    if options.messages:
        halves = [("on", light_queues.DEFAULT, ""), ("on", light_queues.DEFAULT, payload.MESSAGE)]
    elif options.light is None:
        halves = [("off", light_queues.DEFAULT, ""), ("on", light_queues.DEFAULT, "")]
    else:
        halves = [("on", light_queues.OFF, ""), ("on", options.light, "")]
    rounds: list[tuple[Half, Half]] = []
    for _ in range(options.rounds):
        pair = []
        for logged, light, messages in halves:
            with tempfile.TemporaryDirectory(prefix="bench-") as folder:
                pair.append(half(logged, light, messages, options.tasks, Path(folder)))
        off, on = pair
        if (off.events and halves[0][0] == "off") or on.events < 4 * options.tasks:
            raise RuntimeError(
                f"{off.events} and {on.events} events: one half has events, the other must have none"
            )
        rounds.append((off, on))
    what = "messages" if options.messages else "log" if options.light is None else "light"
    print(f"µs a task, {len(rounds)} rounds of {options.tasks} tasks")
    print(
        f"{'':<10} {what + ' off':>10} {what + ' on':>10} {'on/off':>8} {'least off':>10} {'least on':>10} {'cost':>6}"
    )
    for name in ("send_us", "send_cpu_us", "work_us", "work_cpu_us"):
        off_us = [getattr(off, name) for off, _ in rounds]
        on_us = [getattr(on, name) for _, on in rounds]
        ratio = statistics.median(on / off for off, on in zip(off_us, on_us, strict=True))
        least_off, least_on = min(off_us), min(on_us)
        print(
            f"{name.removesuffix('_us').replace('_', ' '):<10} {statistics.median(off_us):>10.0f} "
            f"{statistics.median(on_us):>10.0f} {ratio:>8.2f} {least_off:>10.0f} {least_on:>10.0f} "
            f"{least_on - least_off:>6.0f}"
        )
    off_bytes, on_bytes = (statistics.median(pair[at].log_bytes for pair in rounds) for at in (0, 1))
    print(f"bytes of the log a task: {off_bytes:.0f} and {on_bytes:.0f}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
elif BROKER in os.environ:
    app = make_app(dict(os.environ))
