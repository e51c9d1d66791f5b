"""RocksDB (rocksdict): one key a message, its number. Async writes the WAL to the page cache at each put, sync also
fsyncs it."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from rocksdict import Options, Rdict, WriteBatch, WriteOptions

from benchmarks.suite import workload
from benchmarks.suite.workload import RING, Job, Measure

NUMBER = struct.Struct(">Q")
INDEX = b"k"  # before a message's key, in the key space of the index


def _open(job: Job) -> Rdict:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_write_buffer_size(256 << 20)
    database = Rdict(job.folder, options)
    database.set_write_options(_write_options(job))
    return database


def _write_options(job: Job) -> WriteOptions:
    write = WriteOptions()
    write.sync = job.sync
    return write


def _fill(job: Job) -> Rdict:
    database = _open(job)
    for start in range(0, job.count, 1000):
        batch = WriteBatch(raw_mode=True)
        for number in range(start, min(start + 1000, job.count)):
            batch.put(NUMBER.pack(number), workload.flat(number, job))
            if job.case == "query":
                batch.put(INDEX + workload.keys_of(number, job.keys)[0].encode(), NUMBER.pack(number))
        database.write(batch)
    return database


def put(job: Job) -> Measure:
    database = _open(job)
    turn = workload.in_turn(workload.flat_ring(job), job.count)

    def work() -> None:
        pack = NUMBER.pack
        for number, value in enumerate(turn):
            database[pack(number)] = value

    measure = workload.timed(job.count, work)
    database.close()
    return measure


def put_many(job: Job) -> Measure:
    database, values, options = _open(job), workload.flat_ring(job), _write_options(job)

    def work() -> None:
        pack = NUMBER.pack
        for start in range(0, job.count, job.batch):
            batch = WriteBatch(raw_mode=True)
            for number in range(start, start + job.batch):
                batch.put(pack(number), values[number % RING])
            database.write(batch, options)

    measure = workload.timed(job.count, work)
    database.close()
    return measure


def get(job: Job) -> Measure:
    database = _fill(job)

    def work() -> None:
        assert sum(1 for _ in database.values()) == job.count

    measure = workload.timed(job.count, work)
    database.close()
    return measure


def query(job: Job) -> Measure:
    database = _fill(job)

    def find(keys: Sequence[str]) -> None:
        for key in keys:
            assert database[database[INDEX + key.encode()]]

    measure = workload.timed_queries(job, find)
    database.close()
    return measure
