"""SQLite in WAL mode: one row a message. Async is synchronous=NORMAL (no fsync at a commit), sync is FULL (one at
each)."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.suite import workload
from benchmarks.suite.workload import RING, TAG, TOPIC, Job, Measure

INSERT = "INSERT INTO log (topic, queue_id, tags, keys, body) VALUES (?, 0, ?, ?, ?)"


def _open(job: Job) -> sqlite3.Connection:
    connection = sqlite3.connect(job.path / "log.db", isolation_level=None, timeout=60)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute(f"PRAGMA synchronous={'FULL' if job.sync else 'NORMAL'}")
    connection.execute(
        "CREATE TABLE IF NOT EXISTS log (id INTEGER PRIMARY KEY, topic TEXT, queue_id INT, tags TEXT, keys "
        "TEXT, body BLOB)"
    )
    return connection


def _row(number: int, job: Job, body: bytes) -> tuple[str, str, str, bytes]:
    return TOPIC, TAG, " ".join(workload.keys_of(number, job.keys)), body


def _rows(job: Job) -> list[tuple[str, str, str, bytes]]:
    body = workload.body(job.body_bytes)
    return [_row(number, job, body) for number in range(RING)]


def _fill(job: Job) -> sqlite3.Connection:
    connection, body = _open(job), workload.body(job.body_bytes)
    connection.execute("BEGIN")
    connection.executemany(INSERT, (_row(number, job, body) for number in range(job.count)))
    connection.execute("COMMIT")
    if job.case == "query":
        connection.execute("CREATE INDEX by_key ON log (topic, keys)")
    return connection


def put(job: Job) -> Measure:
    """One transaction a message, or one for each batch."""
    connection, rows = _open(job), _rows(job)
    turn = workload.in_turn(rows, job.count)

    def work() -> None:
        execute = connection.execute
        for row in turn:
            execute(INSERT, row)

    def work_in_batches() -> None:
        for start in range(0, job.count, job.batch):
            connection.execute("BEGIN")
            connection.executemany(
                INSERT, (rows[number % RING] for number in range(start, start + job.batch))
            )
            connection.execute("COMMIT")

    measure = workload.timed(job.count, work if job.batch == 1 else work_in_batches)
    connection.close()
    return measure


put_many = put


def get(job: Job) -> Measure:
    connection = _fill(job)

    def work() -> None:
        assert sum(1 for _ in connection.execute("SELECT * FROM log ORDER BY id")) == job.count

    measure = workload.timed(job.count, work)
    connection.close()
    return measure


def query(job: Job) -> Measure:
    connection = _fill(job)

    def find(keys: Sequence[str]) -> None:
        execute = connection.execute
        for key in keys:
            found = execute(
                "SELECT * FROM log WHERE topic = ? AND keys = ? ORDER BY id DESC LIMIT 32", (TOPIC, key)
            )
            assert len(found.fetchall()) == 1

    measure = workload.timed_queries(job, find)
    connection.close()
    return measure


def put_processes(job: Job) -> Measure:
    _open(job).close()
    each = job.count // job.processes

    def start(_: int) -> Callable[[], Any]:
        connection = _open(job)
        turn = workload.in_turn(_rows(job), each)

        def work() -> None:
            for row in turn:
                connection.execute(INSERT, row)

        return work

    return workload.in_processes(job, start)
