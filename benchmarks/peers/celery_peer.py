"""Celery result backends, side by side: the same app, the same Redis broker, `options["backend"]` says where results
go.

Worker and publisher are separate processes, as in a fleet; memory and disk of 100,000 results are facts of the case
`store`.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import redis
from celery import Celery, Task, chord, group, states

from benchmarks.celery.fleet import (
    BACKEND_VARIABLE,
    BROKER_VARIABLE,
    LIFECYCLE_VARIABLE,
    PIPE_VARIABLE,
    STORE_VARIABLE,
    add,
    append,
    append_and_tell,
    bare_store,
    make_app,
    tell,
    total,
)
from benchmarks.suite import workload
from benchmarks.suite.workload import Job, Measure
from tools.processes import ends_with_us
from tools.redis_server import Redis, redis_server

ROOT = Path(__file__).resolve().parent.parent.parent
RESULT = {"rows": 17, "seconds": 0.25, "file": "orders-2024-11.csv"}
WAIT_S = 120
URLS = {
    "cystore": "cystore://{folder}/store?allow_any_owner=true",
    "redis": "{redis}",
    "sqlite": "db+sqlite:///{folder}/results.sqlite",
    "filesystem": "file://{folder}/results",
    "memory": "cache+memory://",
    "none": "disabled://",
}


@contextmanager
def _app(job: Job) -> Iterator[tuple[Celery, Redis]]:
    (job.path / "results").mkdir()
    with redis_server("--save", "", own=True) as server:
        url = URLS[job.options["backend"]].format(folder=job.folder, redis=server.broker_url)
        yield make_app(server.broker_url, url, lifecycle=job.options.get("lifecycle", False)), server


@contextmanager
def _worker(job: Job) -> Iterator[tuple[Celery, Redis]]:
    """The app, and a prefork worker with one child."""
    with _app(job) as (app, server):
        command = [
            sys.executable,
            "-m",
            "celery",
            "-A",
            "benchmarks.celery.fleet",
            "worker",
            "--pool",
            "prefork",
        ]
        command += ["--concurrency", "1", "--without-gossip", "--without-mingle", "--without-heartbeat"]
        environment = {
            **os.environ,
            BROKER_VARIABLE: app.conf.broker_url,
            BACKEND_VARIABLE: app.conf.result_backend,
            LIFECYCLE_VARIABLE: "1" if job.options.get("lifecycle") else "",
            PIPE_VARIABLE: str(_pipe(job)),
            STORE_VARIABLE: str(_bare(job)),
        }
        with open(job.path / "worker.log", "wb") as log:
            process = subprocess.Popen(
                ends_with_us([*command, "--loglevel", "WARNING"]),
                cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip
        try:
            if job.options["backend"] != "none":
                assert add.delay(1, 2).get(timeout=WAIT_S) == 3
            yield app, server
        finally:
            process.terminate()
            process.wait()


def _pipe(job: Job) -> Path:
    return job.path / "pipe"


def _bare(job: Job) -> Path:
    return job.path / "bare"


@contextmanager
def _workers_of(job: Job) -> Iterator[Callable[..., None]]:
    """Gives a function that sends a number of reporting tasks (`tell` unless another is given) and returns when all
    have run."""
    os.mkfifo(_pipe(job))
    pipe = os.open(_pipe(job), os.O_RDWR)  # a reader alone would wait for a first writer

    def run(count: int, task: Task = tell) -> None:
        for _ in range(count):
            task.delay()
        while count:
            count -= len(os.read(pipe, count))

    try:
        with _worker(job):
            run(1)
            yield run
    finally:
        os.close(pipe)


def _ids(count: int) -> list[str]:
    return [f"{number:08x}-5c1f-4e0a-9d5b-cafe00000000" for number in range(count)]


def store(job: Job) -> Measure:
    """`store_result` of SUCCESS, from one process; what the results take in memory and on disk."""
    with _app(job) as (app, server):
        backend, ids = app.backend, _ids(job.count)
        backend.store_result("first", RESULT, states.SUCCESS)
        before = _used(job, server)

        def work() -> None:
            for task_id in ids:
                backend.store_result(task_id, RESULT, states.SUCCESS)

        measure = workload.timed(job.count, work)
        after = _used(job, server)
        facts = {name: round((after[name] - before[name]) * 100_000 / job.count / 1e6, 1) for name in after}
        return Measure(measure.operations, measure.seconds, {f"{n}_mb_per_100k": v for n, v in facts.items()})


def _used(job: Job, server: Redis) -> dict[str, int]:
    blocks = sum(os.stat(path).st_blocks for path in job.path.rglob("*") if path.is_file())
    with redis.Redis.from_url(server.url) as client:
        return {"disk": blocks * 512, "redis_memory": int(client.info("memory")["used_memory"])}


def get(job: Job) -> Measure:
    """`get_task_meta` of results that are there, each once, in another order than they were stored in."""
    with _app(job) as (app, _):
        backend, ids = app.backend, _ids(job.count)
        for task_id in ids:
            backend.store_result(task_id, RESULT, states.SUCCESS)
        ids = [ids[number * 7919 % len(ids)] for number in range(len(ids))]
        assert backend.get_task_meta(ids[0], cache=False)["result"] == RESULT

        def work() -> None:
            for task_id in ids:
                backend.get_task_meta(task_id, cache=False)

        return workload.timed(job.count, work)


def _each(count: int, work: Callable[[], object]) -> Measure:
    """The median time of `count` calls; the 99th percentile is a fact."""
    seconds = []
    for _ in range(max(count, 2)):
        begin = time.perf_counter()
        work()
        seconds.append(time.perf_counter() - begin)
    cuts = statistics.quantiles(seconds, n=100, method="inclusive")
    return Measure(1, cuts[49], {"p99_ms": round(cuts[98] * 1e3, 2)})


def wait(job: Job) -> Measure:
    """`.delay().get()`, one after the other."""
    with _worker(job):
        return _each(job.count, lambda: add.delay(1, 2).get(timeout=WAIT_S))


def wait_floor(job: Job) -> Measure:
    """From `.delay()` to the task itself: no backend can be faster."""
    with _workers_of(job) as run:
        return _each(job.count, lambda: run(1))


def wait_push_floor(job: Job) -> Measure:
    """From `.delay()` to an append by the task that wakes the waiters for a store's log. No backend that pushes through
    a store can be faster."""
    os.environ[STORE_VARIABLE] = str(_bare(job))
    with bare_store() as store, _worker(job):

        def work() -> None:
            end = store.wrote_position
            append.delay()
            assert store.wait_log(end, WAIT_S)

        work()
        return _each(job.count, work)


def tasks(job: Job) -> Measure:
    """Tasks through one worker process, from the first message sent to the last result read."""
    with _worker(job) as (app, _):
        begin = time.perf_counter()
        results = group(add.s(number, 1) for number in range(job.count)).apply_async()
        join = results.join_native if app.backend.supports_native_join else results.join
        assert sum(join(timeout=WAIT_S, interval=0.01)) == job.count * (job.count + 1) // 2
        return Measure(job.count, time.perf_counter() - begin)


def _chord() -> None:
    done: Any = chord((add.s(number, 1) for number in range(50)), total.s()).apply_async()
    assert done.get(timeout=WAIT_S) == 50 * 51 // 2


def chords(job: Job) -> Measure:
    """Chords of 50, one after the other, from the call to the body's result."""
    with _worker(job):
        return _each(job.count, _chord)


def chords_floor(job: Job) -> Measure:
    """Fifty tasks, and one more when they have run, without a backend or a chord."""
    with _workers_of(job) as run:
        return _each(job.count, lambda: (run(50), run(1)))


def chords_durable_floor(job: Job) -> Measure:
    """The same, but each of the fifty tasks makes one append that is durable before the task ends. No chord in a store
    can be faster if its parts must survive a power cut."""
    with _workers_of(job) as run:
        run(1, append_and_tell)
        return _each(job.count, lambda: (run(50, append_and_tell), run(1)))
