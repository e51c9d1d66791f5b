"""Goal: processes may come, fork, wait, read and leave at any time while others append (I1, I2, I5). Method: many
short lives at once on files that roll all the time, with nobody who stays; then the files of the closed store are
verified."""

from __future__ import annotations

import pytest

import cystore
from tests.support.checks import check, check_closed
from tests.support.process import Failed, Process, processes
from tests.support.small_stores import SETTINGS, open_small

# A life: attach, put a little, read some of it back, leave. Gives what was acknowledged.
LIVES = """
import random, cystore
def lives(path, settings, who, count, seed):
    rng, acknowledged = random.Random(seed), []
    for life in range(count):
        with cystore.open(path, **settings) as store:
            for n in range(rng.randrange(1, 12)):
                key = f"{who}.{life}.{n}"
                topic, queue_id = rng.choice(["shared", f"own{who}"]), rng.randrange(2)
                if rng.random() < 0.3:
                    batch = [cystore.Message(topic=topic, body=key.encode() * 9, queue_id=queue_id, keys=(key,))] * 3
                    results = store.put_many(batch)
                else:
                    results = [store.put(topic, key.encode() * 9, queue_id=queue_id, keys=(key,))]
                acknowledged.extend([topic, queue_id, r.queue_offset, key] for r in results)
                if rng.random() < 0.3:
                    found = store.get(topic, queue_id, results[0].queue_offset, 1).messages
                    assert bytes(found[0].body) == key.encode() * 9
                if rng.random() < 0.1:
                    store.flush()
    return acknowledged
"""


def test_i1_i2_nobody_stays(in_memory, rng):
    """Attach and detach cross all the time: the first one in builds what the last one out took down."""
    path = in_memory / "store"
    with processes(4) as others:
        for process in others:
            process.do(LIVES)
        for number, process in enumerate(others):
            process.send(
                "lives(path, settings, who, 30, seed)",
                path=str(path),
                settings=SETTINGS,
                who=number,
                seed=rng.randrange(1 << 30),
            )
        acknowledged = [row for process in others for row in process.answer()]
    check_closed(path, SETTINGS)
    with open_small(path) as store:
        assert check(store, acknowledged) == len(list(store.scan()))


def test_i1_i2_exclusive_openers_get_in_alone_or_not_at_all(in_memory):
    path = in_memory / "store"
    source = """
import cystore
def turns(path, settings, who, exclusive):
    alone = shared = refused = 0
    for n in range(25):
        try:
            with cystore.open(path, exclusive=exclusive, **settings) as store:
                before = store.stats()["put_count"]
                for _ in range(5):
                    store.put("T", who.encode())
                if exclusive:
                    assert store.stats()["put_count"] == before + 5, "somebody else was in"
                    alone += 1
                else:
                    shared += 1
        except cystore.StoreLockedError:
            refused += 1
    return alone, shared, refused
"""
    with processes(3) as others:
        for number, process in enumerate(others):
            process.do(source)
            process.send(
                "turns(path, settings, who, exclusive)",
                path=str(path),
                settings=SETTINGS,
                who=str(number),
                exclusive=number == 0,
            )
        answers = [process.answer() for process in others]
    assert all(sum(answer) == 25 for answer in answers)
    check_closed(path, SETTINGS)
    with open_small(path) as store:
        check(store, [])
        assert len(list(store.scan())) == 5 * sum(alone + shared for alone, shared, _ in answers)


def test_i2_queues_that_all_add_at_once_are_added_once(in_memory):
    """The table grows while all use it: each queue has one slot, in whatever order they came."""
    path = in_memory / "store"
    add = "[store.put('T', b'', queue_id=q).queue_offset for q in order]"
    with open_small(path) as store, processes(3) as others:
        for process in others:
            process.do(
                "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS
            )
        orders = [list(range(700)), list(range(700))[::-1], [*range(350, 700), *range(350)]]
        for process, order in zip(others, orders, strict=True):
            process.send(add, order=order)
        answers = [process.answer() for process in others]
        control = store._attached().control
        assert control.queue_count == 700
        assert sorted(control.queue(slot)[:2] for slot in range(700)) == [("T", q) for q in range(700)]
        given: dict[int, list[int]] = {}
        for order, answer in zip(orders, answers, strict=True):
            for queue_id, offset in zip(order, answer, strict=True):
                given.setdefault(queue_id, []).append(offset)
        assert all(sorted(offsets) == [0, 1, 2] for offsets in given.values())


def test_every_consumer_sees_every_message_once_and_in_order(in_memory):
    """Consumers sleep until there is more; producers of two processes feed them."""
    path = in_memory / "store"
    consume = """
def consume(total):
    at, seen = 0, []
    while at < total:
        if store.wait("T", 0, at, 30):
            got = store.get("T", 0, at, 32)
            seen += [bytes(m.body).decode() for m in got.messages]
            at = got.next_offset
        else:
            raise TimeoutError(at)
    return seen
"""
    with open_small(path) as store, processes(5) as others:
        for process in others:
            process.do(
                "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS
            )
            process.do(consume)
        *consumers, one, other = others
        for process in consumers:
            process.send("consume(400)")
        for name, process in (("one", one), ("other", other)):
            process.send(
                "[store.put('T', f'{name}.{n}'.encode()).queue_offset for n in range(200)]", name=name
            )
        placed = {offset: f"one.{n}" for n, offset in enumerate(one.answer())}
        placed.update({offset: f"other.{n}" for n, offset in enumerate(other.answer())})
        expected = [placed[offset] for offset in range(400)]
        assert [process.answer() for process in consumers] == [expected] * 3
        assert [bytes(m.body).decode() for m in store.scan()] == expected


def test_i1_i2_forked_children_share_with_their_parent_and_strangers(in_memory):
    """A prefork pool: children use what they inherited while the parent's threads go on, and a stranger appends
    beside them."""
    path = in_memory / "store"
    pool = """
import os, threading, cystore
store = cystore.open(path, **settings)
rows, lock = [], threading.Lock()
def put(who, count):
    keys = [f"{who}.{n}" for n in range(count)]
    mine = [[who, store.put("T", key.encode(), keys=(key,)).queue_offset, key] for key in keys]
    with lock:
        rows.extend(mine)
def pool(children, count):
    threads = [threading.Thread(target=put, args=(f"parent{t}", count)) for t in range(2)]
    for thread in threads: thread.start()
    pids, pipes = [], []
    for child in range(children):
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            code = 1
            try:
                keys = [f"child{child}.{n}" for n in range(count)]
                mine = [store.put("T", key.encode(), keys=(key,)).queue_offset for key in keys]
                os.write(writing, ",".join(map(str, mine)).encode())
                if child % 2:
                    store.close()
                code = 0
            finally:
                os._exit(code)
        os.close(writing)
        pids.append(pid); pipes.append(reading)
    for child, (pid, reading) in enumerate(zip(pids, pipes)):
        text = b"".join(iter(lambda: os.read(reading, 65536), b"")).decode()
        os.close(reading)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
        rows.extend([f"child{child}", int(at), f"child{child}.{n}"] for n, at in enumerate(text.split(",")))
    for thread in threads: thread.join()
    return rows
"""
    with Process() as parent, Process() as stranger:
        parent.do(pool, path=str(path), settings=SETTINGS)
        stranger.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS
        )
        parent.send("pool(5, 80)")
        offsets = stranger.do("[store.put('T', b's', keys=(f's.{n}',)).queue_offset for n in range(80)]")
        rows = [["T", 0, at, key] for _, at, key in parent.answer()]
        rows += [["T", 0, at, f"s.{n}"] for n, at in enumerate(offsets)]
        parent.do("store.close()")
        stranger.do("store.close()")
    check_closed(path, SETTINGS)
    with open_small(path) as store:
        assert check(store, rows) == 8 * 80 == store.topics()["T"][0].max_offset


@pytest.mark.parametrize("services", ["none", "all"])
def test_i5_readers_that_write_nothing_beside_writers(in_memory, services):
    """No torn record, nothing past the wrote position, and what was once there stays as it was."""
    path = in_memory / "store"
    read = """
import cystore
store = cystore.open(path, read_only=True)
def whole(body):
    first = body[: body.index(b"/") + 1]
    return body == first * (len(body) // len(first))
def read_until(count):
    last = rounds = 0
    while last < count:
        store.wait_log(store.wrote_position, 0.05)
        wrote_before = store.wrote_position
        records = 0
        for message in store.scan():
            assert whole(bytes(message.body)), message
            assert message.physical_offset + message.size_bytes <= store.wrote_position
            records += 1
        assert records >= last
        last, rounds = records, rounds + 1
        for queue_id, bounds in store.topics().get("T", {}).items():
            got = store.get("T", queue_id, max(bounds[1] - 5, 0))
            assert [m.queue_offset for m in got.messages] == list(range(max(bounds[1] - 5, 0), got.next_offset))
            assert all(whole(bytes(m.body)) for m in got.messages)
    return rounds
"""
    write = """
import cystore, random
store = cystore.open(path, **settings)
rng = random.Random(seed)
def write(count):
    for n in range(count):
        store.put("T", f"{seed}.{n}/".encode() * rng.randrange(1, 60), queue_id=n % 3, keys=(f"{seed}.{n}",))
        if n % 20 == 0: store.dispatch()
"""
    with processes(2) as writers, processes(2) as readers:
        for number, process in enumerate(writers):
            process.do(write, path=str(path), settings={**SETTINGS, "services": services}, seed=number)
        for process in readers:
            process.do(read, path=str(path))
            with pytest.raises(Failed, match="StoreNotWritableError"):
                process.do("store.put('T', b'')")
            process.send("read_until(800)")
        for process in writers:
            process.send("write(400)")
        for process in writers:
            process.answer()
        assert all(process.answer() > 0 for process in readers)
        for process in (*readers, *writers):
            process.do("store.close()")
    check_closed(path, SETTINGS)
    with cystore.open(path, read_only=True) as store:
        check(store, [])
