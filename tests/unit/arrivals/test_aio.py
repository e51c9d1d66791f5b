"""Goal: waits and reads of asyncio give what the blocking ones give, block no loop, need one thread, and leave
nothing behind. Method: thousands of waiters, loops that measure their own pauses, cancellations, closed stores,
children, several loops."""

from __future__ import annotations

import asyncio
import threading

import pytest

import cystore
from cystore.arrivals.aio import AsyncStore
from cystore.clock import monotonic_s, now_ms
from cystore.errors import FilterError, StoreClosedError, StoreConfigError
from cystore.results import GetStatus
from tests.support.child import in_child
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # calls of programs: its kernels are those of every store

WAIT_S = 60.0
PAUSE_MAX_S = 1.0  # of a loop, on a machine that others use


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        yield store


def run(work):
    async def limited():
        async with asyncio.timeout(WAIT_S):
            return await work

    return asyncio.run(limited())


def watchers():
    return [thread for thread in threading.enumerate() if thread.name == "cystore-aio"]


def entries(store):
    return len(store._watch("aio"))


async def put_later(store, *arguments, **named):
    await asyncio.sleep(0)
    return await asyncio.get_running_loop().run_in_executor(None, lambda: store.put(*arguments, **named))


def test_a_wait_ends_with_the_message_or_with_its_time(store):
    async def work():
        assert not await store.aio.wait("orders", 0, 0, 0.02)
        assert not await store.aio.wait("orders", 0, 0, 0)
        waiting = asyncio.create_task(store.aio.wait("orders", 0, 1))
        store.put("orders", b"0")
        assert await store.aio.wait("orders", 0, 0)
        await asyncio.sleep(0.02)
        assert not waiting.done()
        store.put("orders", b"1")
        assert await waiting
        assert len(store.get("orders", 0, 0).messages) == 2

    run(work())
    assert entries(store) == 0


@pytest.mark.parametrize("reader", [False, True], ids=["services", "reader"])
def test_an_append_of_another_process_wakes(tmp_path, reader):
    with cystore.open(tmp_path / "s") as store, Process() as other:
        store.put("orders", b"0")
        other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
        with cystore.open(tmp_path / "s", read_only=reader) as waits:

            async def work():
                waiting = asyncio.create_task(waits.aio.wait("orders", 0, 1))
                await asyncio.sleep(0)
                other.send("store.put('orders', b'1')")
                assert await waiting

            run(work())


def test_thousands_of_waiters_share_one_thread_and_the_loop_is_not_blocked(store):
    count, queues = 3000, 50

    async def work():
        pauses, begun = [], threading.active_count()

        async def beat():
            while True:
                before = monotonic_s()
                await asyncio.sleep(0.001)
                pauses.append(monotonic_s() - before)

        waiting = [
            asyncio.create_task(store.aio.wait("orders", number % queues, number // queues))
            for number in range(count)
        ]
        await asyncio.sleep(0)
        beating = asyncio.create_task(beat())
        assert entries(store) == count
        assert threading.active_count() <= begun + 1
        for number in range(count):
            store.put("orders", b"", queue_id=number % queues)
            if number % 100 == 0:
                await asyncio.sleep(0)
        assert all(await asyncio.gather(*waiting))
        beating.cancel()
        assert max(pauses) < PAUSE_MAX_S

    run(work())
    assert entries(store) == 0
    assert len(watchers()) <= 1


def test_get_waits_and_reads_as_the_blocking_one(store):
    async def work():
        assert (await store.aio.get("orders", 0, 0)).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        later = asyncio.create_task(put_later(store, "orders", b"0", tags="A"))
        result = await store.aio.get("orders", 0, 0, timeout_s=None)
        assert [bytes(one.body) for one in result.messages] == [b"0"]
        await later
        assert (await store.aio.get("orders", 0, 0, tags="B")).next_offset == 1
        assert (await store.aio.get("orders", 0, 1, timeout_s=0.02)).status is GetStatus.OFFSET_OVERFLOW_ONE
        assert (await store.aio.get("orders", 0, 0, raw=True, group="team")).raw
        with pytest.raises(FilterError):
            await store.aio.get("orders", 0, 0, filter="a >")
        with pytest.raises(StoreConfigError):
            await store.aio.get("orders", 0, 0, timeout_s="1")

    run(work())
    assert store.groups.reads("team")


async def taken(messages, count):
    found = []
    async for message in messages:
        found.append((message.queue_id, bytes(message.body)))
        if len(found) == count:
            return found
    raise AssertionError("a tail ended")


def test_tail_gives_every_message_in_the_order_of_its_queue(store, monkeypatch):
    ends, known = AsyncStore._ends, threading.Event()
    monkeypatch.setattr(AsyncStore, "_ends", lambda *given: (ends(*given), known.set())[0])
    for number in range(100):
        store.put("orders", b"%03d" % number, queue_id=number % 3)

    async def work():
        last = asyncio.create_task(taken(store.aio.tail("orders"), 40))
        one = asyncio.create_task(taken(store.aio.tail("orders", 1, begin=30), 10))
        first = asyncio.create_task(taken(store.aio.tail("orders", begin="first"), 140))
        await asyncio.to_thread(known.wait, WAIT_S)
        for number in range(100, 140):
            await put_later(store, "orders", b"%03d" % number, queue_id=number % 4)
        found = await last
        assert sorted(body for _, body in found) == [b"%03d" % number for number in range(100, 140)]
        everything = await first
        assert sorted(body for _, body in everything) == [b"%03d" % number for number in range(140)]
        for queue_id in range(4):
            bodies = [body for of, body in everything if of == queue_id]
            assert bodies == sorted(bodies)
        assert (await one)[0] == (1, b"091")

    run(work())
    assert entries(store) == 0


def test_tail_of_tags_and_of_damage(store, caplog):
    for number in range(10):
        store.put("orders", b"%d" % number, tags="A" if number % 2 else "B")
    bad = store.get("orders", 0, 3, 1).messages[0]
    with open(next((store.path / "commitlog").glob("0*")), "r+b") as file:
        file.seek(bad.physical_offset + 95)
        file.write(b"\xff\xff\xff")

    async def work():
        found = await taken(store.aio.tail("orders", begin="first", tags="A"), 4)
        assert [body for _, body in found] == [b"1", b"5", b"7", b"9"]
        for wrong in ({"begin": 3}, {"begin": "middle"}, {"queue_id": -1}, {"queue_id": 0, "begin": -1}):
            with pytest.raises(cystore.StoreError):
                await anext(store.aio.tail("orders", **wrong))

    run(work())
    assert "the damaged message 3 of orders/0 is stepped over" in caplog.text


def test_tail_judges_a_message_when_it_gives_it(store):
    for number in range(5):
        store.put("orders", b"%d" % number)
    store.put("offers", b"first")
    for number in range(5):
        store.put("offers", b"%d" % number, expires_at_ms=now_ms() + 700)
    store.put("offers", b"last")

    async def work():
        orders, offers = (store.aio.tail(topic, begin="first") for topic in ("orders", "offers"))
        assert bytes((await anext(orders)).body) == b"0"  # reads the others ahead
        store.delete_topic("orders")
        store.put("orders", b"new")
        assert bytes((await anext(orders)).body) == b"new"
        assert bytes((await anext(offers)).body) == b"first"
        while len(store.get("offers", 0, 0).messages) > 2:
            await asyncio.sleep(0.05)
        assert bytes((await anext(offers)).body) == b"last"

    run(work())


def test_get_judges_messages_when_the_task_continues(store):
    store.put("orders", b"1")

    async def work():
        reading = asyncio.create_task(store.aio.get("orders", 0, 0))
        await asyncio.sleep(0)  # another thread reads
        store.delete_topic("orders")  # before the task can continue
        return await reading

    found = run(work())
    assert found.status is not GetStatus.FOUND
    assert not found.messages


def test_a_cancelled_task_leaves_nothing_behind(store):
    async def work():
        async def follow():
            async for _ in store.aio.tail("orders"):
                pass

        tasks = [asyncio.create_task(store.aio.wait("orders", number, 0)) for number in range(100)]
        tasks += [
            asyncio.create_task(store.aio.get("orders", 0, 0, timeout_s=None)),
            asyncio.create_task(follow()),
        ]
        await asyncio.sleep(0.05)
        assert entries(store) == 102
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert all(isinstance(end, asyncio.CancelledError) for end in ends)
        assert entries(store) == 0
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(store.aio.wait("orders", 0, 0), 0.02)
        assert entries(store) == 0

    run(work())


def test_a_loop_that_was_closed_is_forgotten(store):
    loop = asyncio.new_event_loop()
    task = loop.create_task(store.aio.wait("orders", 0, 0))
    loop.run_until_complete(asyncio.sleep(0))
    task._log_destroy_pending = False
    loop.close()
    store.put("orders", b"")
    run(store.aio.wait("orders", 0, 0))


@pytest.mark.parametrize("read_only", [False, True])
def test_close_wakes_every_waiter(tmp_path, read_only):
    cystore.open(tmp_path / "s").close()
    store = cystore.open(tmp_path / "s", read_only=read_only)

    async def work():
        tasks = [asyncio.create_task(store.aio.wait("orders", number, 0)) for number in range(100)]
        tasks.append(asyncio.create_task(anext(store.aio.tail("orders"))))
        await asyncio.sleep(0.05)
        store.close()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
        assert {type(end) for end in ends} == {StoreClosedError}
        with pytest.raises(StoreClosedError):
            store.aio  # noqa: B018

    run(work())


def test_a_forked_child_waits_with_a_thread_of_its_own(store):
    async def one():
        waiting = asyncio.create_task(store.aio.wait("orders", 0, 0))
        await asyncio.sleep(0.02)
        store.put("orders", b"")
        assert await waiting

    def child():
        store.delete_topic("orders")
        run(store.aio.wait("bills", 0, 0, 0.02))

        async def mine():
            waiting = asyncio.create_task(store.aio.wait("bills", 0, 0))
            await asyncio.sleep(0.02)
            store.put("bills", b"")
            assert await waiting

        run(mine())

    run(one())
    assert in_child(child) == 0
    assert run(store.aio.wait("bills", 0, 0))


def test_loops_of_several_threads_wait_at_once(store):
    done = []

    def loop_of(number):
        run(store.aio.wait("orders", number, 9))
        done.append(number)

    threads = [threading.Thread(target=loop_of, args=(number,)) for number in range(5)]
    for thread in threads:
        thread.start()
    for number in range(50):
        store.put("orders", b"", queue_id=number % 5)
    for thread in threads:
        thread.join(WAIT_S)
    assert sorted(done) == list(range(5))


def test_the_thread_ends_when_nobody_waits(store, monkeypatch):
    monkeypatch.setattr("cystore.arrivals.queue_watch.IDLE_S", 0.05)
    run(store.aio.wait("orders", 0, 0, 0.02))
    (thread,) = watchers() or [None]
    if thread is not None:
        thread.join(WAIT_S)
    assert watchers() == []
    store.put("orders", b"")
    assert run(store.aio.wait("orders", 0, 0))


def test_waits_of_a_loop_that_was_closed_early_end_with_the_next_message(store):
    """Seen: they were watched for ever, and kept their tasks."""

    async def begins():
        waiting = [asyncio.ensure_future(store.aio.wait("later", 0, 0)) for _ in range(5)]
        await asyncio.sleep(0)
        return waiting

    loop = asyncio.new_event_loop()
    waiting = loop.run_until_complete(begins())
    loop.close()
    watch = store._watch("aio")
    assert len(watch) == 5
    store.put("later", b"one")
    assert asyncio.run(store.aio.wait("later", 0, 0, 60))
    until_s = monotonic_s() + 60
    while len(watch) and monotonic_s() < until_s:
        store.wait("later", 0, 1, 0.01)
    assert len(watch) == 0
    for task in waiting:
        task._log_destroy_pending = False
