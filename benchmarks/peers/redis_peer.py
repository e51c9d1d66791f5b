"""Redis Streams, one XADD a message. Async is appendfsync everysec, sync is appendfsync always; memory holds
everything besides.

The server is started for the measurement and always our own, because its durability is what is compared.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import redis

from benchmarks.suite import workload
from benchmarks.suite.workload import RING, TAG, TOPIC, Job, Measure
from tools.redis_server import redis_server

PAUSE_S = 0.002  # between two wake-ups, for the waiter to fall asleep again


@contextmanager
def _server(job: Job) -> Iterator[str]:
    fsync = "always" if job.sync else "everysec"
    with redis_server("--dir", job.folder, "--appendonly", "yes", "--appendfsync", fsync, own=True) as server:
        yield server.url


def _fields(job: Job) -> list[dict[Any, Any]]:
    body = workload.body(job.body_bytes)
    return [
        {"keys": " ".join(workload.keys_of(number, job.keys)), "tags": TAG, "body": body}
        for number in range(RING)
    ]


def put(job: Job) -> Measure:
    with _server(job) as url, redis.Redis.from_url(url) as client:
        return _put(job, client)


def _put(job: Job, client: redis.Redis) -> Measure:
    fields = _fields(job)
    turn = workload.in_turn(fields, job.count)

    def work() -> None:
        for one in turn:
            client.xadd(TOPIC, one)

    def work_pipelined() -> None:
        for start in range(0, job.count, job.batch):
            pipeline = client.pipeline(transaction=False)
            for number in range(start, start + job.batch):
                pipeline.xadd(TOPIC, fields[number % RING])
            pipeline.execute()

    return workload.timed(job.count, work if job.batch == 1 else work_pipelined)


put_many = put


def get(job: Job) -> Measure:
    """XRANGE from the first message to the last, `batch` at a time."""
    with _server(job) as url, redis.Redis.from_url(url) as client:
        pipeline, fields = client.pipeline(transaction=False), _fields(job)
        for number in range(job.count):
            pipeline.xadd(TOPIC, fields[number % RING], id=f"{number + 1}-0")
            if number % 1000 == 999:
                pipeline.execute()
        pipeline.execute()

        def work() -> None:
            read = 0
            while read < job.count:
                read += len(client.xrange(TOPIC, f"{read + 1}-0", "+", count=job.batch))

        return workload.timed(job.count, work)


def put_processes(job: Job) -> Measure:
    each = job.count // job.processes
    with _server(job) as url:

        def start(_: int) -> Callable[[], Any]:
            client, fields = redis.Redis.from_url(url), _fields(job)
            client.ping()
            turn = workload.in_turn(fields, each)

            def work() -> None:
                for one in turn:
                    client.xadd(TOPIC, one)

            return work

        return workload.in_processes(job, start)


def wake(job: Job) -> Measure:
    """BLPOP in one process, RPUSH in another."""
    with _server(job) as url:
        times_read, times_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                client, seen = redis.Redis.from_url(url), []
                for _ in range(job.count):
                    client.blpop([TOPIC])
                    seen.append(time.perf_counter_ns())
                with open(times_write, "wb") as out:
                    out.write(b"".join(b"%d\n" % at for at in seen))
                code = 0
            finally:
                os._exit(code)
        os.close(times_write)
        client, body, sent = redis.Redis.from_url(url), workload.body(job.body_bytes), []
        time.sleep(0.2)
        for _ in range(job.count):
            time.sleep(PAUSE_S)
            sent.append(time.perf_counter_ns())
            client.rpush(TOPIC, body)
        with open(times_read, "rb") as answers:
            seen = [int(line) for line in answers]
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]):
            raise RuntimeError("the process that waits failed")
    return workload.latencies(sent, seen)
