"""LMDB: an append-only table of records, the key their number. Async is MDB_NOSYNC: written to the page cache at each
commit.

With the option `best` it is LMDB at its best: MDB_WRITEMAP, MDB_MAPASYNC and MDB_NOSYNC, so a commit makes no system
call.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any

import lmdb

from benchmarks.suite import workload
from benchmarks.suite.workload import RING, Job, Measure

NUMBER = struct.Struct(">Q")


def _open(job: Job) -> lmdb.Environment:
    map_bytes = max(64 << 20, job.count * (job.body_bytes + 400) * 3)
    best = bool(job.options.get("best"))
    return lmdb.open(
        job.folder,
        map_size=map_bytes,
        max_dbs=2,
        sync=job.sync,
        metasync=job.sync,
        writemap=best,
        map_async=best,
        subdir=True,
    )


def _fill(job: Job) -> lmdb.Environment:
    """All of the job's messages, a thousand in a transaction, with their first key in a table of its own."""
    env = _open(job)
    records, index = env.open_db(b"records"), env.open_db(b"index")
    for start in range(0, job.count, 1000):
        with env.begin(write=True) as transaction:
            for number in range(start, min(start + 1000, job.count)):
                transaction.put(NUMBER.pack(number), workload.flat(number, job), db=records, append=True)
                if job.case in ("query", "query_many", "find_new"):
                    key = workload.keys_of(number, job.keys)[0].encode()
                    transaction.put(key, NUMBER.pack(number), db=index)
    return env


def put(job: Job) -> Measure:
    """One transaction a message, or one for each batch."""
    env = _open(job)
    values = workload.flat_ring(job)

    def work() -> None:
        pack, begin = NUMBER.pack, env.begin
        for start in range(0, job.count, job.batch):
            with begin(write=True) as transaction:
                for number in range(start, start + job.batch):
                    transaction.put(pack(number), values[number % RING], append=True)

    measure = workload.timed(job.count, work)
    env.close()
    return measure


put_many = put


def get(job: Job) -> Measure:
    env = _fill(job)
    records = env.open_db(b"records")

    def work() -> None:
        with env.begin(db=records) as transaction:
            found = sum(1 for _ in transaction.cursor().iternext(keys=False))
            assert found == job.count

    measure = workload.timed(job.count, work)
    env.close()
    return measure


def get_bodies(job: Job) -> Measure:
    """From one end to the other, `batch` records in each transaction; the length of each is looked at."""
    env = _fill(job)
    records = env.open_db(b"records")
    least = job.body_bytes

    def work() -> None:
        pack, begin = NUMBER.pack, env.begin
        for start in range(0, job.count, job.batch):
            with begin(db=records) as transaction:
                cursor = transaction.cursor()
                cursor.set_key(pack(start))
                for value in islice(cursor.iternext(keys=False), job.batch):
                    if len(value) < least:
                        raise RuntimeError(f"another record at {start}")

    measure = workload.timed(job.count, work)
    env.close()
    return measure


def query(job: Job) -> Measure:
    env = _fill(job)
    records, index = env.open_db(b"records"), env.open_db(b"index")

    def find(keys: Sequence[str]) -> None:
        begin = env.begin
        for key in keys:
            with begin() as transaction:
                assert transaction.get(transaction.get(key.encode(), db=index), db=records)

    measure = workload.timed_queries(job, find)
    env.close()
    return measure


def get_new(job: Job) -> Measure:
    """A message a transaction, then a transaction that reads it."""
    env = _open(job)
    values = workload.flat_ring(job)

    def work() -> None:
        pack, begin = NUMBER.pack, env.begin
        for number in range(job.count):
            key = pack(number)
            with begin(write=True) as transaction:
                transaction.put(key, values[number % RING], append=True)
            with begin() as transaction:
                assert transaction.get(key)

    measure = workload.timed(job.count, work)
    env.close()
    return measure


def get_one(job: Job) -> Measure:
    """One transaction a read, of a message chosen at random."""
    env = _fill(job)
    records = env.open_db(b"records")

    def find(numbers: Sequence[int]) -> None:
        begin, pack = env.begin, NUMBER.pack
        for number in numbers:
            with begin(db=records) as transaction:
                assert transaction.get(pack(number))

    measure = workload.timed_reads(job, find)
    env.close()
    return measure


def query_many(job: Job) -> Measure:
    """All keys of a batch in one transaction, each through the index."""
    env = _fill(job)
    records, index = env.open_db(b"records"), env.open_db(b"index")

    def find(keys: Sequence[str]) -> None:
        for at in range(0, len(keys), job.batch):
            with env.begin() as transaction:
                get = transaction.get
                found = {
                    key: get(get(key.encode(), db=index), db=records) for key in keys[at : at + job.batch]
                }
            assert all(found.values())

    measure = workload.timed_queries(job, find)
    env.close()
    return measure


def find_new(job: Job) -> Measure:
    """Messages in transactions of `batch`, each indexed by its keys as it is written; then the last one is read both
    ways."""
    env = _open(job)
    records, index = env.open_db(b"records"), env.open_db(b"index")
    values = workload.flat_ring(job)

    def work() -> None:
        pack, begin = NUMBER.pack, env.begin
        for start in range(0, job.count, job.batch):
            with begin(write=True) as transaction:
                put = transaction.put
                for number in range(start, start + job.batch):
                    packed = pack(number)
                    put(packed, values[number % RING], append=True, db=records)
                    for key in workload.keys_of(number, job.keys):
                        put(key.encode(), packed, db=index)
            with begin() as transaction:
                last = start + job.batch - 1
                assert transaction.get(pack(last), db=records)
                key = workload.keys_of(last, job.keys)[0].encode()
                assert transaction.get(transaction.get(key, db=index), db=records)

    measure = workload.timed(job.count, work)
    env.close()
    return measure


def put_processes(job: Job) -> Measure:
    """Every process appends under numbers of its own, one transaction a message; LMDB lets one write at a time."""
    values = workload.flat_ring(job)
    each = job.count // job.processes

    def start(process: int) -> Callable[[], Any]:
        env = _open(job)
        first = process << 40

        def work() -> None:
            for number in range(each):
                with env.begin(write=True) as transaction:
                    transaction.put(NUMBER.pack(first + number), values[number % RING])

        return work

    return workload.in_processes(job, start)
