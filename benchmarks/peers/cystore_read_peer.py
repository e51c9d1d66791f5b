"""cystore in everyday use: reads of new messages, single reads, many keys at once, waits across processes."""

from __future__ import annotations

import contextlib
import os
import random
import time
from array import array
from collections.abc import Sequence
from dataclasses import replace
from itertools import repeat, starmap

import cystore
from benchmarks import native
from benchmarks.peers.cystore_peer import fill, open_store, prepare
from benchmarks.suite import workload
from benchmarks.suite.workload import TAG, TOPIC, Job, Measure
from cystore._native.derived.index import key_hash
from cystore.layout import CONSTANTS

SLOTS_AT, SLOT_BYTES = (CONSTANTS[f"INDEX_{name}_BYTES"][0] for name in ("HEADER", "SLOT"))
LINE_BYTES = 64  # of the processor's caches
PAUSE_S = 0.002  # between two wake-ups, for the waiter to fall asleep again


def get_new(job: Job) -> Measure:
    """Each message is put, then read by its queue offset. Its body is looked at."""
    with open_store(job) as store:
        prepare(store, job)
        body, put, get = workload.body(job.body_bytes), store.put, store.get
        turn = workload.in_turn(workload.key_ring(job.keys), job.count)

        def work() -> None:
            for keys in turn:
                result = put(TOPIC, body, keys=keys, tags=TAG)
                if len(get(TOPIC, 0, result.queue_offset, 1).messages[0].body) != job.body_bytes:
                    raise RuntimeError(f"not found: {result}")

        return workload.timed(job.count, work)


def get_one(job: Job) -> Measure:
    """One message by its queue offset, chosen at random; its body is looked at."""
    with open_store(job) as store:
        fill(store, job)
        store.dispatch()

        def read(numbers: Sequence[int]) -> None:
            get = store.get
            for number in numbers:
                if len(get(TOPIC, 0, number, 1).messages[0].body) != job.body_bytes:
                    raise RuntimeError(f"not found: {number}")

        return workload.timed_reads(job, read)


def read_one(job: Job) -> Measure:
    """One message by its physical offset, chosen at random; its body is looked at."""
    with open_store(job) as store:
        fill(store, job)
        offsets = [message.physical_offset or 0 for message in store.scan()]

        def find(numbers: Sequence[int]) -> None:
            read = store.read
            for number in numbers:
                if len(read(offsets[number]).body) != job.body_bytes:
                    raise RuntimeError(f"not found: {number}")

        return workload.timed_reads(job, find)


def get_bodies(job: Job) -> Measure:
    """From one end of a queue to the other, `batch` messages at a time; the body of each is looked at. With the option
    `reader` a read-only handle reads: "behind" a stopped dispatch, "beside" a writer, or "alone"."""
    how = job.options.get("reader", "")
    with contextlib.ExitStack() as opened:
        store = opened.enter_context(open_store(job, **({"services": "none"} if how else {})))
        fill(store, job)
        if how != "behind":
            store.dispatch()
        store.flush()  # else the flush of the fill would run beside the reads
        if how == "alone":
            store.close()
        if how:
            store = opened.enter_context(cystore.open(store.path, read_only=True))

        def work() -> None:
            offset, get = 0, store.get
            while offset < job.count:
                found = get(TOPIC, 0, offset, job.batch)
                for message in found.messages:
                    if len(message.body) != job.body_bytes:
                        raise RuntimeError(f"another body at {offset}")
                offset = found.next_offset

        return workload.timed(job.count, work)


def bare_views(job: Job) -> Measure:
    """As many memoryviews of bytes as the job has messages, made one by one by the interpreter; each is looked at."""
    source, least = memoryview(bytes(job.body_bytes)), job.body_bytes

    def work() -> None:
        for _ in range(job.count):
            if len(memoryview(source)) != least:
                raise RuntimeError("another view")

    return workload.timed(job.count, work)


def get_filtered(job: Job) -> Measure:
    """From one end of a queue to the other with a SQL92 filter; one operation is a message that the filter looks at.
    With the option `group` that group reads a store with extended units; the group "marked" has registered the
    filter."""
    wanted, group = cystore.SqlFilter(job.options["filter"]), job.options.get("group")
    by_group = {} if group is None else {"group": group}
    with open_store(job, **({} if group is None else {"enable_consume_queue_ext": True})) as store:
        if group == "marked":
            store.filters.add(group, TOPIC, wanted)
        fill(store, job)
        store.dispatch()
        found = 0

        def work() -> None:
            nonlocal found
            offset, found, get = 0, 0, store.get
            while offset < job.count:
                got = get(TOPIC, 0, offset, job.batch, filter=wanted, **by_group)
                found += len(got.messages)
                offset = got.next_offset

        measure = workload.timed(job.count, work)
        expected = sum(wanted.matches(workload.properties_of(number)) for number in range(job.count))
        if found != expected:
            raise RuntimeError(f"found {found} of {expected}")
        return measure


def offset_by_time(job: Job) -> Measure:
    """`batch` messages have the same millisecond. Searches for times chosen at random from the first message's to the
    last one's."""
    with open_store(job) as store:
        for start in range(0, job.count, job.batch):
            fill(store, job, start, start + job.batch)
            filled = time.time_ns() // 1_000_000
            while time.time_ns() // 1_000_000 == filled:
                pass
        store.dispatch()
        ends = [store.get(TOPIC, 0, at, 1).messages[0].store_timestamp_ms for at in (0, job.count - 1)]
        draw, count = random.Random(1), job.options["queries"]
        times = [draw.randint(*ends) for _ in range(2 * count)]

        def search(wanted: Sequence[int]) -> None:
            find = store.offset_by_time
            for time_ms in wanted:
                if not 0 <= find(TOPIC, 0, time_ms) < job.count:
                    raise RuntimeError(f"not found: {time_ms}")

        search(times[:count])
        return workload.timed(count, lambda: search(times[count:]), milliseconds=ends[1] - ends[0] + 1)


def offsets(job: Job) -> Measure:
    """A group's offset in one queue: committed, then asked for."""
    with open_store(job) as store:
        fill(store, job)
        store.dispatch()
        commit, offset = store.groups.commit, store.groups.offset

        def work() -> None:
            for number in range(job.count):
                commit("bench", TOPIC, 0, number)
                if offset("bench", TOPIC, 0) != number:
                    raise RuntimeError(f"committed {number}")

        return workload.timed(job.count, work)


def query_many(job: Job) -> Measure:
    with open_store(job) as store:
        fill(store, job)
        store.dispatch()

        def find(keys: Sequence[str]) -> None:
            for at in range(0, len(keys), job.batch):
                wanted = keys[at : at + job.batch]
                if not all(store.query_many(TOPIC, wanted).values()):
                    raise RuntimeError(f"not found among {wanted}")

        measure = workload.timed_queries(job, find, **_lookups(store, job))
        _, keys = workload.keys_to_query(job)
        again = workload.timed(len(keys), lambda: find(keys))
        objects = workload.timed(len(keys), lambda: _make_answers(keys, job.batch))
        facts = {"again_ns": round(again.ns_per_operation), **measure.facts}
        return replace(measure, facts={**facts, "objects_ns": round(objects.ns_per_operation)})


def _make_answers(keys: Sequence[str], batch: int) -> None:
    """What `find` of `query_many` does without a store: a dictionary of as many lists, each with one bare object. All
    are made by the interpreter's own C code."""
    for at in range(0, len(keys), batch):
        wanted = keys[at : at + batch]
        objects = starmap(object, repeat((), len(wanted)))
        if not all(dict(zip(wanted, map(list, zip(objects)), strict=True)).values()):
            raise RuntimeError("an empty list")


def _lookups(store: cystore.MessageStore, job: Job) -> dict[str, int]:
    """ns of a lookup of the same keys in bare C, which only loads what a lookup has to, from the store's own files in
    the same pages: a slot and the chain of the key in each index file, and the lines of the record. Then the same
    lookups again, whose pages this process has mapped by then."""
    slots = cystore.StoreConfig().max_hash_slot_num
    indexes = sorted((job.path / "store" / "index").iterdir(), reverse=True)
    segments = sorted((job.path / "store" / "commitlog").glob("0*"))
    lines = round(store.wrote_position / job.count / LINE_BYTES) + 1  # a record seldom begins with a line
    warm_up, hashes = (
        array("i", [key_hash(TOPIC.encode(), key.encode()) for key in keys])
        for keys in workload.keys_to_query(job)
    )
    with native.Joined(segments) as log:

        def look_up(times: int, *, in_large_pages: bool) -> list[int]:
            with contextlib.ExitStack() as mapped:
                begins = [
                    mapped.enter_context(native.Joined([path], in_large_pages=in_large_pages)).begin
                    for path in indexes
                ]
                loads = native.LookupFiles.of(
                    begins, SLOTS_AT, slots, SLOTS_AT + SLOT_BYTES * slots, log.begin, lines
                )
                loads.lookup_ns(warm_up)
                return [round(loads.lookup_ns(hashes)) for _ in range(times)]

        first, again = look_up(2, in_large_pages=False)
        _, large = look_up(2, in_large_pages=True)
    return {"c_ns": first, "c_again_ns": again, "c_large_ns": large}


def find_new(job: Job) -> Measure:
    """Puts `batch` messages one by one, then reads the last one by its queue and by its key. So all of them are
    dispatched first."""
    with open_store(job) as store:
        prepare(store, job)
        body, put, get, query = workload.body(job.body_bytes), store.put, store.get, store.query
        keys = [workload.keys_of(number, job.keys) for number in range(job.count)]

        def work() -> None:
            for start in range(0, job.count, job.batch):
                for some in keys[start : start + job.batch]:
                    result = put(TOPIC, body, keys=some, tags=TAG)
                if not (get(TOPIC, 0, result.queue_offset, 1).messages and query(TOPIC, some[0])):
                    raise RuntimeError(f"not found: {some}")

        return workload.timed(job.count, work)


def wake(job: Job) -> Measure:
    """A process waits for the next message; another one puts it. The time is from before the put to after the wait, p50
    in seconds."""
    with open_store(job) as keeper:
        prepare(keeper, job, warm_up=1)
        first = keeper.next_queue_offset(TOPIC, 0)
        times_read, times_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            _wait_for_all(job, first, times_write)
        body = workload.body(job.body_bytes)
        time.sleep(0.2)
        sent = []
        for _ in range(job.count):
            time.sleep(PAUSE_S)
            sent.append(time.perf_counter_ns())
            keeper.put(TOPIC, body)
        os.close(times_write)
        with open(times_read, "rb") as answers:
            seen = [int(line) for line in answers]
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or len(seen) != job.count:
            raise RuntimeError("the process that waits failed")
    return workload.latencies(sent, seen)


def _wait_for_all(job: Job, first: int, times: int) -> None:
    code = 1
    try:
        with open_store(job, services=()) as store, open(times, "wb") as out:
            seen = []
            for offset in range(first, first + job.count):
                while not store.wait(TOPIC, 0, offset, 10.0):
                    pass
                seen.append(time.perf_counter_ns())
            out.write(b"".join(b"%d\n" % at for at in seen))
        code = 0
    finally:
        os._exit(code)
