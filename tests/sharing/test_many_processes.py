"""Goal: I1, I2 and I5 with many processes at once: no gap, no repeat, no torn read, while all of them append, read,
query and dispatch. Method: 8 processes of 4 threads on files so short that they roll all the time; a ninth reads
everything back."""

from __future__ import annotations

import pytest

import cystore
from tests.support.checks import check, check_closed
from tests.support.process import Process, processes

PROCESSES, THREADS = 8, 4
SETTINGS = {
    "mapped_file_size_commit_log_bytes": 64 * 1024,
    "mapped_file_size_consume_queue_bytes": 500 * 20,
    "max_hash_slot_num": 1009,
    "max_index_num": 4000,
}

# Every body tells who wrote it and repeats itself, so that a torn or strange one shows. Returns what was acknowledged.
WRITER = """
import random, threading, cystore
def write(store, process, thread, count, seed):
    rng = random.Random(seed)
    for n in range(count):
        topic = rng.choice(["shared", f"own{process}"])
        text = f"{process}.{thread}.{n}/".encode()
        body = text * rng.randrange(1, 40)
        key = f"{process}.{thread}.{n}"
        if n % 5 == 0:
            batch = [cystore.Message(topic=topic, body=body, queue_id=q % 3, keys=(key,)) for q in range(4)]
            acknowledged.extend([topic, q % 3, r.queue_offset, key] for q, r in enumerate(store.put_many(batch)))
            copies = 4
        else:
            queue_id = rng.randrange(3)
            r = store.put(topic, body, queue_id=queue_id, keys=(key,))
            acknowledged.append([topic, queue_id, r.queue_offset, key])
            copies = 1
        if n % 7 == 0:  # a read sees what was written before it
            found = store.query(topic, key)
            assert len(found) == copies and all(bytes(m.body) == body for m in found), (key, len(found))
        if n % 11 == 0:
            for m in store.get("shared", 0, rng.randrange(n + 1)).messages:
                whole = bytes(m.body)
                first = whole[: whole.index(b"/") + 1]
                assert whole == first * (len(whole) // len(first)), whole
def work(path, settings, process, threads, count, seed):
    global acknowledged
    acknowledged, failures = [], []
    def guarded(thread):
        try:
            write(store, process, thread, count, seed + thread)
        except BaseException as error:
            failures.append(repr(error))
    with cystore.open(path, **settings) as store:
        running = [threading.Thread(target=guarded, args=(t,)) for t in range(threads)]
        for thread in running: thread.start()
        for thread in running: thread.join()
    if failures: raise RuntimeError(failures[0])
    return acknowledged
"""


def put_everything(path, others: list[Process], count: int, rng, first: int = 0) -> list[list]:
    for number, process in enumerate(others, first):
        process.do(WRITER)
        process.send(
            "work(path, settings, number, threads, count, seed)",
            path=str(path),
            settings=SETTINGS,
            number=number,
            threads=THREADS,
            count=count,
            seed=rng.randrange(1 << 30),
        )
    return [row for process in others for row in process.answer()]


@pytest.mark.parametrize("record_format", ["cystore", "rocketmq"])
def test_i1_i2_i5_eight_processes_of_four_threads(tmp_path, rng, record_format):
    path = tmp_path / "store"
    settings = {**SETTINGS, "record_format": record_format}
    with cystore.open(path, **settings) as store, processes(PROCESSES) as others:
        acknowledged = put_everything(path, others, 60, rng)
        assert store.stats()["put_count"] == len(acknowledged)
        check(store, acknowledged)
    check_closed(path, settings)
    with cystore.open(path, read_only=True) as store:
        check(store, acknowledged)


def test_i2_queues_go_on_when_everybody_leaves_and_comes_back(tmp_path, rng):
    """First in and last out change all the time: the store is recovered and shut down again and again."""
    path = tmp_path / "store"
    acknowledged = []
    for turn in range(4):
        with processes(3) as others:
            acknowledged += put_everything(path, others, 12, rng, first=10 * turn)
    with cystore.open(path, **SETTINGS) as store:
        check(store, acknowledged)


def test_a_waiter_is_woken_by_an_append_of_another_process(tmp_path):
    path = tmp_path / "store"
    with cystore.open(path, **SETTINGS) as store, Process() as other:
        other.do("import cystore; store = cystore.open(path)", path=str(path))
        other.send("store.wait('T', 0, 0, 60) and bytes(store.get('T', 0, 0).messages[0].body)")
        store.put("T", b"wake up")
        assert other.answer() == "wake up"
        assert other.do("store.wait('T', 0, 1, 0.05)") is False


def test_a_live_reader_sees_what_is_dispatched_and_writes_nothing(tmp_path):
    path = tmp_path / "store"
    with cystore.open(path, **SETTINGS) as store, Process() as other:
        store.put("T", b"one", keys=("k",))
        store.dispatch()
        other.do("import cystore; store = cystore.open(path, read_only=True)", path=str(path))
        assert other.do("bytes(store.get('T', 0, 0).messages[0].body), len(store.query('T', 'k'))") == [
            "one",
            1,
        ]
        store.put("T", b"two")
        store.dispatch()
        assert other.do("bytes(store.get('T', 0, 1).messages[0].body)") == "two"
        assert other.do("store.stats()['wrote']") == store.stats()["wrote"]


def test_i3_sync_puts_of_many_processes_share_fsyncs(tmp_path):
    """Group commit: each put returns only when the flushed position covers it, and one leader works for many."""
    path = tmp_path / "store"
    source = """
import cystore, threading
store = cystore.open(path, services="none")
covered = []
def put():
    for _ in range(each):
        r = store.put("T", b"x" * 100, flush="sync")
        covered.append(store.stats()["flushed"] >= r.physical_offset + r.size_bytes)
"""
    run = """
running = [threading.Thread(target=put) for _ in range(4)]
for thread in running: thread.start()
for thread in running: thread.join()
len(covered), all(covered)
"""
    each = 25
    with cystore.open(path, services="none") as store, processes(4) as others:
        for process in others:
            process.do(source, path=str(path), each=each)
        for process in others:
            process.send(run)
        assert [process.answer() for process in others] == [[4 * each, True]] * 4
        flushes = store._attached().control.flush_seq
        assert store.stats()["put_count"] == 16 * each
        assert 0 < flushes < 16 * each * 2 / 3
