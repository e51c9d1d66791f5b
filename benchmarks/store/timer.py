"""`python -m benchmarks timer`: messages that wait until a time of their own, beside RocketMQ's way (a delay level),
APScheduler with SQLite, RedBeat, and Celery's ETAs on Redis.

Of each: the time of an insert and of a cancellation with `--pending` of them waiting, the lateness of `--fires` that
become due at an even rate, and the time in which as many that are due at once have left. Of the stores also the disk,
the private memory of a process and the time of an open. Peers are measured with fewer (`--peers-pending`), because they
are slower; they need the extra `bench`, and Redis.
"""

from __future__ import annotations

import argparse
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import cystore
from tools.redis_server import redis_server

BODY, BATCH = b"x" * 100, 1_000
LATER_MS = 48 * 3_600_000
BEGIN_S = 2.0  # until the first of those that fire
SAMPLES = 2_000
Row = dict[str, float]
# A process that opens the store, looks at the first message that waits, and delivers what is due: the time of that, s,
# and its memory that no file backs, MB.
READY = """
import sys, time
import cystore
began = time.perf_counter()
with cystore.open(sys.argv[1], services="none", message_delay_level="1s 2d") as store:
    next(store.pending("waits"), None)
    store.deliver()
    took = time.perf_counter() - began
    memory = open("/proc/self/smaps_rollup").read().splitlines()
    private = sum(int(line.split()[1]) for line in memory if line.startswith("Anonymous:"))
    print(took, private / 1000)
"""
HEADS = ("insert, µs", "cancel p50, µs", "cancel p99, µs", "late p50, ms", "late p99, ms", "late p99.9, ms",
         "drained, 1/s", "disk, MB", "private, MB", "ready, s")  # fmt: skip


def part(values: Sequence[float], share: float) -> float:
    """The value that a share of them does not exceed."""
    return sorted(values)[min(int(len(values) * share), len(values) - 1)]


def times_of(call: Callable[[int], object], count: int) -> list[float]:
    """The time of each call, in s."""
    found = []
    for number in range(count):
        began = time.perf_counter()
        call(number)
        found.append(time.perf_counter() - began)
    return found


def lateness(row: Row, late_ms: Sequence[float]) -> None:
    """Enters the lateness of what fired; nothing may be early."""
    assert min(late_ms) >= 0, "early"
    for name, share in (("late p50, ms", 0.5), ("late p99, ms", 0.99), ("late p99.9, ms", 0.999)):
        row[name] = part(late_ms, share)


def bytes_in(folder: Path) -> int:
    """The space of a folder's files."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


# -------------------------------------------------------------------------------------------------- our store


def ours(folder: Path, pending: int, fires: int, rate: int, *, levels: bool) -> Row:
    """A store whose service delivers; with `levels` messages wait for a delay level, as RocketMQ has them."""
    row: Row = {}
    level = {"message_delay_level": "1s 2d"}
    with cystore.open(folder / "store", services=("flush", "allocate"), **level) as store:
        began, now_ms = time.perf_counter(), int(time.time() * 1000)
        for number in range(pending):
            if levels:
                store.put("waits", BODY, keys=f"k{number}", delay_level=2)
            else:
                store.put(
                    "waits",
                    BODY,
                    keys=f"k{number}",
                    deliver_at_ms=now_ms + LATER_MS + number * 7919 % LATER_MS,
                )
        row["insert, µs"] = (time.perf_counter() - began) / max(pending, 1) * 1e6
        store.dispatch()
        if not levels:
            chosen = random.Random(1).sample(range(pending), min(SAMPLES, pending))
            took = times_of(lambda number: store.cancel("waits", f"k{chosen[number]}"), len(chosen))
            row["cancel p50, µs"], row["cancel p99, µs"] = part(took, 0.5) * 1e6, part(took, 0.99) * 1e6
        store.flush()
    row["disk, MB"] = bytes_in(folder) / 1e6
    done = subprocess.run(
        [sys.executable, "-c", READY, str(folder / "store")], capture_output=True, check=True
    )
    row["ready, s"], row["private, MB"] = map(float, done.stdout.split())
    with cystore.open(folder / "store", services="none", **level) as store:
        _drain(store, row, fires, levels=levels)
    with cystore.open(folder / "store", services="all", **level) as store:
        due_ms = _fire(store, fires, rate, levels=levels)
        late_ms = [
            message.store_timestamp_ms - due_ms[bytes(message.body)]
            for message in _all(store, "fires", fires)
        ]
        lateness(row, late_ms)
    return row


def _drain(store: cystore.MessageStore, row: Row, fires: int, *, levels: bool) -> None:
    """Delivers as many that are due in one second."""
    due_ms = int(time.time() * 1000) + 3_000 + fires // 50
    for begin in range(0, fires, BATCH):
        store.put_many([
            cystore.Message(topic="drained", body=BODY, **({"delay_level": 1} if levels else
                            {"deliver_at_ms": due_ms + number * 7919 % 1000}))
            for number in range(begin, min(begin + BATCH, fires))
        ])  # fmt: skip
    store.dispatch()
    time.sleep(1.1 if levels else max(due_ms + 1_001 - time.time() * 1000, 0) / 1000)
    began, left = time.perf_counter(), fires
    while left > 0:
        left -= store.deliver()
    row["drained, 1/s"] = fires / (time.perf_counter() - began)


def _fire(store: cystore.MessageStore, fires: int, rate: int, *, levels: bool) -> dict[bytes, int]:
    """Puts what becomes due at an even rate, and returns the due times by body."""
    due, begin_ms = {}, int((time.time() + BEGIN_S) * 1000)
    for number in range(fires):
        body = b"%d" % number
        if levels:
            left_s = number / rate - (time.time() - begin_ms / 1000 + BEGIN_S)
            if left_s > 0:
                time.sleep(left_s)
            due[body] = store.put("fires", body, delay_level=1).store_timestamp_ms + 1_000
        else:
            due[body] = begin_ms + number * 1000 // rate
            store.put("fires", body, deliver_at_ms=due[body])
    return due


def _all(store: cystore.MessageStore, topic: str, count: int) -> Iterator[cystore.Message]:
    at = 0
    while at < count:
        store.wait(topic, 0, at, 10)
        for message in store.get(topic, 0, at, 32).messages:
            at += 1
            yield message


# ------------------------------------------------------------------------------------------------------- peers

fired: list[float] = []


def fire(due_s: float) -> None:
    """The function that APScheduler runs."""
    fired.append((time.time() - due_s) * 1000)


def apscheduler(folder: Path, pending: int, fires: int, rate: int) -> Row:
    """APScheduler with a job store in SQLite: each job is a row, and runs in a thread."""
    from datetime import UTC, datetime, timedelta

    from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
    from apscheduler.schedulers.background import BackgroundScheduler

    row: Row = {}
    url = f"sqlite:///{folder}/jobs.sqlite"
    scheduler = BackgroundScheduler(jobstores={"default": SQLAlchemyJobStore(url=url)}, timezone=UTC)
    scheduler.start()
    far = datetime.now(UTC) + timedelta(days=2)
    name = "benchmarks.store.timer:fire"
    took = times_of(
        lambda number: scheduler.add_job(
            name, "date", [0.0], run_date=far + timedelta(seconds=number), id=f"k{number}"
        ),
        pending,
    )
    row["insert, µs"] = sum(took) / pending * 1e6
    took = times_of(lambda number: scheduler.remove_job(f"k{number}"), min(SAMPLES, pending) // 2)
    row["cancel p50, µs"], row["cancel p99, µs"] = part(took, 0.5) * 1e6, part(took, 0.99) * 1e6
    row["disk, MB"] = bytes_in(folder) / 1e6
    for what in ("late", "drain"):
        fired.clear()
        begin_s = time.time() + BEGIN_S + fires * took[0] * 5
        for number in range(fires):
            due_s = begin_s + (number / rate if what == "late" else 0)
            run_date = datetime.fromtimestamp(due_s, UTC)
            scheduler.add_job(name, "date", [due_s], run_date=run_date, misfire_grace_time=None)
        while len(fired) < fires:
            time.sleep(0.01)
        if what == "late":
            lateness(row, fired)
        else:
            row["drained, 1/s"] = fires / (time.time() - begin_s)
    scheduler.shutdown()
    return row


@contextmanager
def celery_app(url: str, redis_url: str) -> Iterator[Any]:
    """An app on a Redis."""
    from celery import Celery

    app = Celery("timers", broker=url, set_as_current=False)
    app.conf.update(redbeat_redis_url=redis_url, broker_connection_retry_on_startup=True)
    yield app
    app.close()


def redbeat(pending: int, fires: int, rate: int) -> Row:
    """RedBeat: each schedule is a hash in Redis, and the beat sends what is due."""
    from celery.schedules import schedule
    from redbeat import RedBeatScheduler, RedBeatSchedulerEntry

    row: Row = {}
    with redis_server(own=True) as redis, celery_app(redis.broker_url, redis.url) as app:

        def entry(number: int, seconds: float) -> Any:
            return RedBeatSchedulerEntry(f"k{number}", "fire", schedule(seconds, app=app), app=app)

        row["insert, µs"] = sum(times_of(lambda number: entry(number, 1e6).save(), pending)) / pending * 1e6
        known = [entry(number, 1e6) for number in range(min(SAMPLES, pending) // 2)]
        took = times_of(lambda number: known[number].delete(), len(known))
        row["cancel p50, µs"], row["cancel p99, µs"] = part(took, 0.5) * 1e6, part(took, 0.99) * 1e6
        for number in range(fires):
            entry(pending + number, 1.0).save()
        beat = RedBeatScheduler(app=app, lazy=True)
        beat.lock_key = None
        time.sleep(1.1)
        began, sent = time.perf_counter(), 0
        send = beat.apply_async

        def counted(*args: Any, **options: Any) -> Any:
            nonlocal sent
            sent += 1
            return send(*args, **options)

        beat.apply_async = counted
        while sent < fires:
            beat.tick()
        row["drained, 1/s"] = fires / (time.perf_counter() - began)
    return row


def native(pending: int) -> Row:
    """Celery on Redis: a worker has all ETAs in memory (`benchmarks.celery.eta` measures that worker)."""
    with redis_server(own=True) as redis, celery_app(redis.broker_url, redis.url) as app:
        began = time.perf_counter()
        for _ in range(pending):
            app.send_task("fire", countdown=LATER_MS / 1000)
        return {"insert, µs": (time.perf_counter() - began) / pending * 1e6}


def shown(name: str, count: int, row: Row) -> str:
    """A line of the table."""
    cells = [f"{row[head]:,.{1 if row[head] < 100 else 0}f}" if head in row else "" for head in HEADS]
    return f"| {name} | {count:,} | {' | '.join(cells)} |"


def main(arguments: list[str]) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks timer", description=__doc__)
    parser.add_argument("--pending", type=int, default=1_000_000, help="that wait (%(default)s)")
    parser.add_argument("--fires", type=int, default=100_000, help="that become due (%(default)s)")
    parser.add_argument("--rate", type=int, default=10_000, help="of them in a second (%(default)s)")
    parser.add_argument("--peers-pending", type=int, default=2_000, help="0: no peers (%(default)s)")
    parser.add_argument(
        "--folder", type=Path, default=Path(tempfile.gettempdir()), help="for the stores (%(default)s)"
    )
    options = parser.parse_args(arguments)
    print(f"| who | waiting | {' | '.join(HEADS)} |\n|---|---:|{'---:|' * len(HEADS)}")
    few, peers_rate = max(options.peers_pending // 4, 1), 100
    runs: list[tuple[str, int, Callable[[Path], Row]]] = [
        ("cystore, a time of its own", options.pending,
         lambda folder: ours(folder, options.pending, options.fires, options.rate, levels=False)),
        ("cystore, a delay level, as in RocketMQ", options.pending,
         lambda folder: ours(folder, options.pending, options.fires, options.rate, levels=True)),
    ]  # fmt: skip
    if options.peers_pending:
        runs += [
            ("APScheduler, SQLite", options.peers_pending,
             lambda folder: apscheduler(folder, options.peers_pending, few, peers_rate)),
            ("RedBeat", options.peers_pending, lambda folder: redbeat(options.peers_pending, few, peers_rate)),
            ("Celery's ETA, Redis", options.peers_pending, lambda folder: native(options.peers_pending)),
        ]  # fmt: skip
    for name, count, run in runs:
        folder = Path(tempfile.mkdtemp(prefix="bench-timer-", dir=options.folder))
        try:
            print(shown(name, count, run(folder)), flush=True)
        finally:
            shutil.rmtree(folder)
    return 0
