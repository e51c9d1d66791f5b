"""The floors: copying the very records that cystore wrote, their checksum alone, a free lock (C, benchmarks/native),
and a call from Python that does nothing."""

from __future__ import annotations

import ctypes
import mmap
from array import array
from dataclasses import replace

import crc32c

from benchmarks import native
from benchmarks.peers import cystore_peer
from benchmarks.suite import workload
from benchmarks.suite.workload import RING, TAG, TOPIC, Job, Measure


def _records(job: Job, count: int) -> tuple[bytes, array[int]]:
    """The log of a store with `count` messages, and where each record begins, with the end."""
    small = replace(job, count=count, folder=f"{job.folder}/records")
    with cystore_peer.open_store(small, services=()) as store:
        cystore_peer.fill(store, small)
    log, offsets = cystore_peer.log_file(small).read_bytes(), array("q", [0])
    for _ in range(count):
        at = offsets[-1]
        offsets.append(at + int.from_bytes(log[at : at + 4], "big"))
    return log[: offsets[-1]], offsets


def _address(values: array[int]) -> int:
    return values.buffer_info()[0]


def _copy(job: Job, different: int) -> Measure:
    """memcpy of `count` records, taken in turn from `different` ones, into a file mapping whose every page was
    written before."""
    job.path.joinpath("records").mkdir()
    records, offsets = _records(job, different)
    size = -(-(job.count // different + 1) * len(records) // mmap.PAGESIZE) * mmap.PAGESIZE
    with open(job.path / "log", "w+b") as file:
        file.truncate(size)
        with mmap.mmap(file.fileno(), size) as mapped:
            for at in range(0, size, mmap.PAGESIZE):
                mapped[at] = 1
            target = (ctypes.c_char * size).from_buffer(mapped)
            ns = native.library().copy_records(
                ctypes.addressof(target), size, records, _address(offsets), different, job.count
            )
            del target
    if ns < 0:
        raise RuntimeError("the records do not fit")
    return Measure(job.count, ns / 1e9, {"record_bytes": len(records) // different})


def put(job: Job) -> Measure:
    """Copies the very records of as many puts, one by one, from memory."""
    return _copy(job, job.count)


def put_cached(job: Job) -> Measure:
    """Copies a few of these records again and again, so that they come from the cache."""
    return _copy(job, RING)


put_many = put
put_many_cached = put_cached


def checksum_pieces(job: Job) -> Measure:
    """CRC-32C of each record by itself, over the bytes that `scan` walks."""
    job.path.joinpath("records").mkdir()
    records, offsets = _records(job, job.count)
    total = ctypes.c_uint32()
    ns = native.library().checksum_pieces(records, _address(offsets), job.count, ctypes.addressof(total))
    return Measure(job.count, ns / 1e9, {"bytes": len(records)})


def checksum_whole(job: Job) -> Measure:
    """CRC-32C of all the bytes in one call of the crc32c package."""
    job.path.joinpath("records").mkdir()
    records, _ = _records(job, job.count)
    return workload.timed(job.count, lambda: crc32c.crc32c(records), bytes=len(records))


def lock(job: Job) -> Measure:
    """A free process-shared robust lock, taken and given back."""
    ns = native.library().lock_and_unlock(job.count)
    if ns < 0:
        raise RuntimeError("the lock could not be taken")
    return Measure(job.count, ns / 1e9)


def call(job: Job) -> Measure:
    """The loop of `put`, with a function in C that takes the same arguments and returns at once."""
    topic, tag, body, put = TOPIC, TAG, workload.body(job.body_bytes), native.nothing()
    turn = workload.in_turn(workload.key_ring(job.keys), job.count)

    def work() -> None:
        for keys in turn:
            put(topic, body, keys=keys, tags=tag)

    return workload.timed(job.count, work)
