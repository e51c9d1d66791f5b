"""The app of the Celery cases: `celery -A benchmarks.celery.fleet worker` finds broker and backend in the environment.

It imports cystore only where a case needs it: a worker that keeps its results in Redis loads no part of it.
"""

from __future__ import annotations

import json
import mmap
import os
import struct
from functools import cache
from typing import TYPE_CHECKING

from celery import Celery

if TYPE_CHECKING:
    import cystore

BROKER_VARIABLE, BACKEND_VARIABLE = "CYSTORE_BENCH_BROKER", "CYSTORE_BENCH_BACKEND"
LIFECYCLE_VARIABLE, PIPE_VARIABLE = "CYSTORE_BENCH_LIFECYCLE", "CYSTORE_BENCH_PIPE"
STORE_VARIABLE, DUTIES_VARIABLE = "CYSTORE_BENCH_STORE", "CYSTORE_BENCH_DUTIES"
COUNT_VARIABLE = "CYSTORE_BENCH_COUNT"  # a file of COUNT_BYTES
ETA_VARIABLE, OPTIONS_VARIABLE = "CYSTORE_BENCH_ETA_AFTER_S", "CYSTORE_BENCH_TRANSPORT"
COUNT_BYTES, COUNTERS = 4096, 512  # numbers of 8 bytes, each written by one process only
RESULT_BYTES = b"r" * 160  # the approximate size of a small result
TEXT = "t" * 200

app = Celery("benchmarks")


def make_app(broker_url: str | None, result_backend: str | None, *, lifecycle: bool) -> Celery:
    """The app with these settings; all others have their defaults."""
    app.conf.update(broker_url=broker_url, result_backend=result_backend, cystore_lifecycle=lifecycle)
    return app


make_app(
    os.environ.get(BROKER_VARIABLE),
    os.environ.get(BACKEND_VARIABLE),
    lifecycle=bool(os.environ.get(LIFECYCLE_VARIABLE)),
)

if os.environ.get(ETA_VARIABLE):
    app.conf.cystore_durable_eta_after_s = float(os.environ[ETA_VARIABLE])
if os.environ.get(OPTIONS_VARIABLE):
    app.conf.broker_transport_options = json.loads(os.environ[OPTIONS_VARIABLE])
if os.environ.get(DUTIES_VARIABLE):
    from cystore.celery.tasks import install

    install(app)


@app.task
def add(a: int, b: int) -> int:
    """A task that does almost nothing."""
    return a + b


@app.task
def text() -> str:
    """Returns a small result, and counts itself in shared memory."""
    counts, place = _counter(os.getpid())
    struct.pack_into("<q", counts, place, struct.unpack_from("<q", counts, place)[0] + 1)
    return TEXT


@cache
def _counter(pid: int) -> tuple[mmap.mmap, int]:
    with open(os.environ[COUNT_VARIABLE], "r+b") as file:
        return mmap.mmap(file.fileno(), COUNT_BYTES), pid % COUNTERS * 8


def counted(counts: mmap.mmap) -> int:
    """The number of tasks that all processes have counted."""
    return sum(struct.unpack(f"<{COUNTERS}q", counts[:COUNT_BYTES]))


@app.task
def total(numbers: list[int]) -> int:
    """The body of a chord."""
    return sum(numbers)


@app.task(ignore_result=True)
def tell() -> None:
    """Reports through a pipe that it has run, without any backend."""
    _tell()


@app.task(ignore_result=True)
def append_and_tell() -> None:
    """One bare append that is durable before the task ends: the least work for a part of a chord."""
    bare_store().put("floor", RESULT_BYTES, flush="sync")
    _tell()


@app.task(ignore_result=True)
def append() -> None:
    """One bare append that wakes the waiters for the log: the least work for the result of a task."""
    bare_store().put("floor", RESULT_BYTES)


def _tell() -> None:
    with open(os.environ[PIPE_VARIABLE], "wb", buffering=0) as pipe:
        pipe.write(b".")


@cache
def bare_store() -> cystore.MessageStore:
    """A store without a backend, opened as a backend would; first used in a pool process, where it stays open."""
    import cystore
    from cystore.celery.stores import DEFAULTS

    return cystore.open(os.environ[STORE_VARIABLE], **DEFAULTS, allow_any_owner=True)
