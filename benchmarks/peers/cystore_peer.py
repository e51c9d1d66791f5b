"""cystore itself. Segments are prepared ahead (RocketMQ's are too, see its README), as large as the case needs."""

from __future__ import annotations

import mmap
import os
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import cystore
from benchmarks.suite import workload
from benchmarks.suite.workload import TAG, TOPIC, Job, Measure
from cystore._native.scan.log_walk import BLANK, LIMIT, LogWalker

WARM_UP = 20_000
AROUND_BODY_BYTES = 91 + 10 + 64
BATCH = 1000
DELAY_S = 1.1  # the first delay level, and a little
AROUND_LIGHT_BYTES, LIGHT_BYTES = 48, 24  # of a record: for its light queues, and for each of them
POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 2}


def log_bytes(job: Job) -> int:
    """Room for the job's records and the warm-up, in whole MiB."""
    around = AROUND_BODY_BYTES + 20 * (job.keys - 1)
    if "light_queues" in job.options:
        around += AROUND_LIGHT_BYTES + job.options["light_queues"] * LIGHT_BYTES
    size = (job.count + WARM_UP) * (job.body_bytes + around)
    return max(64 << 20, -(-size // (1 << 20)) << 20)


def open_store(job: Job, **settings: Any) -> cystore.MessageStore:
    if job.options.get("settings") == "default":
        return cystore.open(job.path / "store")
    size = int(job.options.get("segment_bytes") or log_bytes(job))
    ahead = {"allocate_ahead_bytes": size, "populate_ahead_bytes": size}
    flush = "sync" if job.sync else "async"
    if "light_queues" in job.options:
        ahead.update(enable_lmq=True, enable_multi_dispatch=True)
    return cystore.open(
        job.path / "store",
        mapped_file_size_commit_log_bytes=size,
        flush_disk_type=flush,
        **{**ahead, **settings},
    )


def prepare(store: cystore.MessageStore, job: Job, warm_up: int = WARM_UP) -> None:
    """Puts some messages, then has the segment allocated and faulted in up to its end."""
    body, keys = workload.body(job.body_bytes), workload.key_ring(job.keys)
    for some in workload.in_turn(keys, warm_up):
        store.put(TOPIC, body, keys=some, tags=TAG, flush="async")
    allocator = store._attached().allocator
    while allocator.run_once().done:
        pass


def properties_of(number: int, job: Job) -> dict[str, str] | None:
    if "light_queues" in job.options:
        return {"INNER_MULTI_DISPATCH": ",".join(workload.light_queues(job.options["light_queues"]))}
    return workload.properties_of(number) if "filter" in job.options else None


def messages(job: Job, first: int, count: int) -> list[cystore.Message]:
    body = workload.body(job.body_bytes)
    return [
        cystore.Message(
            topic=TOPIC,
            body=body,
            keys=workload.keys_of(number, job.keys),
            tags=TAG,
            properties=properties_of(number, job),
        )
        for number in range(first, first + count)
    ]


def fill(store: cystore.MessageStore, job: Job, first: int = 0, end: int | None = None) -> None:
    end = job.count if end is None else end
    for start in range(first, end, BATCH):
        store.put_many(messages(job, start, min(BATCH, end - start)), flush="async")


def put(job: Job) -> Measure:
    settings = {name: job.options[name] for name in ("services",) if name in job.options}
    with open_store(job, **(POOL if job.options.get("pool") else settings)) as store:
        prepare(store, job)
        topic, tag, body, put = TOPIC, TAG, workload.body(job.body_bytes), store.put
        turn = workload.in_turn(workload.key_ring(job.keys), job.count)

        def work() -> None:
            for keys in turn:
                put(topic, body, keys=keys, tags=tag)

        return workload.timed(job.count, work)


def put_light(job: Job) -> Measure:
    """`put` of messages that are in light queues beside their own one."""
    with open_store(job, services=()) as store:
        prepare(store, job)
        topic, tag, body, put = TOPIC, TAG, workload.body(job.body_bytes), store.put
        turn, properties = workload.in_turn(workload.key_ring(job.keys), job.count), properties_of(0, job)

        def work() -> None:
            for keys in turn:
                put(topic, body, keys=keys, tags=tag, properties=properties)

        return workload.timed(job.count, work)


def put_many(job: Job) -> Measure:
    with open_store(job) as store:
        prepare(store, job)
        batch = messages(job, 0, job.batch)

        def work() -> None:
            put_many = store.put_many
            for _ in range(job.count // job.batch):
                put_many(batch)

        return workload.timed(job.count, work)


def put_batch(job: Job) -> Measure:
    """`put_many` of a batch as RocketMQ has it: one queue, one segment."""
    with open_store(job, services=()) as store:
        prepare(store, job)
        batch = messages(job, 0, job.batch)

        def work() -> None:
            put_many = store.put_many
            for _ in range(job.count // job.batch):
                put_many(batch, batch=True)

        return workload.timed(job.count, work)


def put_processes(job: Job, **settings: Any) -> Measure:
    """Half of the processes share a queue, the others have one each."""
    each = job.count // job.processes
    with open_store(job, **settings) as keeper:  # stays attached, so that no process is ever the only one
        prepare(keeper, job)

        def start(process: int) -> Callable[[], Any]:
            store = open_store(job, **settings)
            prepare(store, job, warm_up=1)
            body = workload.body(job.body_bytes)
            queue_id = max(0, process - job.processes // 2)
            turn = workload.in_turn(workload.key_ring(job.keys), each)

            def work() -> None:
                put = store.put
                for keys in turn:
                    put(TOPIC, body, queue_id=queue_id, keys=keys, tags=TAG)

            return work

        return workload.in_processes(job, start)


def log_file(job: Job) -> Path:
    """The segment with all of the job's messages; a successor may stand ready beside it."""
    return job.path / "store" / "commitlog" / f"{0:020}"


def scan(job: Job) -> Measure:
    """Walks mapped bytes with the kernel of recovery and verify. It compares nothing but each checksum."""
    with open_store(job) as store:
        fill(store, job)
    with open(log_file(job), "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        view = memoryview(mapped)
        end = store_end(view, job)
        sum(view[:: mmap.PAGESIZE])  # faults every page in

        def work() -> None:
            scanner = LogWalker(check_checksum=True, follow_queues=False)
            scanner.limit = end
            scanner.move(0, len(view))
            if scanner.run(view, end, 0) not in (LIMIT, BLANK) or scanner.record_count != job.count:
                raise RuntimeError(f"stopped at {scanner.position} after {scanner.record_count} records")

        measure = workload.timed(job.count, work, bytes=end)
        view.release()
    return measure


def store_end(view: memoryview, job: Job) -> int:
    """The end of the job's last record, by the sizes in the log."""
    at = 0
    for _ in range(job.count):
        at += int.from_bytes(view[at : at + 4], "big")
    return at


def _get(job: Job, *, raw: bool) -> Measure:
    with open_store(job) as store:
        fill(store, job)
        store.dispatch()

        def work() -> None:
            offset, get = 0, store.get
            while offset < job.count:
                found = get(TOPIC, 0, offset, job.batch, raw=raw)
                if found.next_offset <= offset:
                    raise RuntimeError(f"stopped at {offset}: {found.status}")
                offset = found.next_offset

        return workload.timed(job.count, work)


def get(job: Job) -> Measure:
    return _get(job, raw=False)


def get_raw(job: Job) -> Measure:
    return _get(job, raw=True)


def query(job: Job) -> Measure:
    with open_store(job) as store:
        fill(store, job)
        store.dispatch()

        def find(keys: Sequence[str]) -> None:
            query = store.query
            for key in keys:
                if len(query(TOPIC, key)) != 1:
                    raise RuntimeError(f"not found: {key}")

        return workload.timed_queries(job, find)


def dispatch(job: Job) -> Measure:
    with open_store(job, services=()) as store:
        fill(store, job)
        store.flush()  # RocketMQ was closed before it dispatches, so its log is on the disk, too
        measure = workload.timed(job.count, store.dispatch)
        if store.stats()["dispatch_behind_bytes"]:
            raise RuntimeError("dispatch did not reach the end of the log")
        for name in workload.light_queues(job.options.get("light_queues", 0)):
            if store.next_queue_offset(name, 0) != job.count:
                raise RuntimeError(f"not all messages are in {name}")
        return measure


def deliver(job: Job) -> Measure:
    """Messages of one delay level, all of them due: until they are dispatched again."""
    with open_store(replace(job, options={"segment_bytes": 3 * log_bytes(job)}), services=()) as store:
        body = workload.body(job.body_bytes)
        for keys in workload.in_turn(workload.key_ring(job.keys), job.count):
            store.put(TOPIC, body, keys=keys, tags=TAG, delay_level=1)
        store.dispatch()
        time.sleep(DELAY_S)

        def work() -> None:
            store.deliver()
            store.dispatch()

        measure = workload.timed(job.count, work)
        if store.next_queue_offset(TOPIC, 0) != job.count:
            raise RuntimeError("not all messages were delivered")
        return measure


def recover(job: Job) -> Measure:
    """A process fills the store, dispatches and kills itself; the next one opens it. `flushed` is the part of the
    messages that was durable then. Like RocketMQ, the recovery begins at the newest segment that is 3 s older than the
    checkpoint."""
    pid = os.fork()
    if pid == 0:
        _fill_and_die(job)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
        raise RuntimeError("the process that fills the store failed")
    with cystore.open(job.path / "another", services=()):
        pass  # the first `open` of a process imports the store's parts
    stores: list[cystore.MessageStore] = []
    measure = workload.timed(job.count, lambda: stores.append(open_store(job, services=())))
    with stores[0] as store:
        recovered = store.topics()[TOPIC][0]
        if recovered.max_offset != job.count:
            raise RuntimeError(f"{recovered.max_offset} of {job.count} messages recovered")
        report = store.recovery
        facts = {"read_from": report.start, "log_bytes": report.end, "records_read": report.records}
    return Measure(measure.operations, measure.seconds, facts)


def recover_from_checkpoint(job: Job) -> Measure:
    """Most of the messages are older than the checkpoint by more than the 3 s: they must not be read again."""
    measure = recover(replace(job, options={**job.options, "pause_s": 4}))
    if measure.facts["read_from"] < measure.facts["log_bytes"] * job.options["flushed"] * 0.5:
        raise RuntimeError(f"recovery began at {measure.facts['read_from']}, not near the checkpoint")
    return measure


def _fill_and_die(job: Job) -> None:
    try:
        store, durable = open_store(job, services=()), int(job.count * job.options["flushed"])
        fill(store, job, 0, durable)
        time.sleep(job.options.get("pause_s", 0))
        fill(store, job, durable, durable + 1)
        store.dispatch()
        store.flush()
        fill(store, job, durable + 1)
        store.dispatch()
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)
