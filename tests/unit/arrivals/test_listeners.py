"""Goal: a listener is told of messages that can be read, and harms nobody. Method: listeners that note, fail and
hang; appends of other processes; a store that is closed."""

from __future__ import annotations

import asyncio
import os
import sys
import threading

import pytest

import cystore
from cystore.errors import StoreConfigError
from tests.support.child import in_child
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # calls of programs: its kernels are those of every store

WAIT_S = 60.0
QUEUES = 12


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        yield store


class Heard:
    """A listener that notes the end of each queue, and whether `get` found all messages below it."""

    def __init__(self, store):
        self.ends, self.readable, self._store, self._more = {}, True, store, threading.Condition()

    def __call__(self, topic, queue_id, end):
        found = self._store.get(topic, queue_id, end - 1).messages
        with self._more:
            self.readable &= bool(found)
            assert end > self.ends.get((topic, queue_id), 0)
            self.ends[topic, queue_id] = end
            self._more.notify_all()

    def have(self, ends):
        with self._more:
            return self._more.wait_for(lambda: self.ends == ends, WAIT_S)


def test_a_listener_hears_of_its_queue_or_of_all_queues_of_its_topic(store):
    store.put("orders", b"before")
    store.dispatch()
    one, all_of_them = Heard(store), Heard(store)
    with store.listen("orders", one, queue_id=1), store.listen("orders", all_of_them):
        for number in range(100):
            store.put("orders", b"%d" % number, queue_id=number % 3)
            store.put("bills", b"")
        assert one.have({("orders", 1): 33})
        assert all_of_them.have({("orders", 0): 35, ("orders", 1): 33, ("orders", 2): 33})
    assert one.readable and all_of_them.readable
    store.put("orders", b"unheard", queue_id=1)
    store.dispatch()
    with store.listen("orders", all_of_them):
        store.put("orders", b"", queue_id=2)
        assert all_of_them.have({("orders", 0): 35, ("orders", 1): 33, ("orders", 2): 34})
    assert one.ends == {("orders", 1): 33}


@pytest.mark.parametrize("services", ["reput", "none"])
def test_appends_of_other_processes_are_heard_also_by_a_reader(tmp_path, services):
    with cystore.open(tmp_path / "s") as store, Process() as other:
        store.put("orders", b"")
        with cystore.open(tmp_path / "s", services=services, read_only=services == "none") as listening:
            heard = Heard(listening)
            listening.listen("orders", heard)
            other.do("import cystore; store = cystore.open(path)", path=str(tmp_path / "s"))
            other.do("for _ in range(9): store.put('orders', b'')")
            assert heard.have({("orders", 0): 10})


def test_a_listener_that_fails_is_told_in_the_log_and_called_again(store, caplog):
    heard, calls = Heard(store), []

    def fail(topic, queue_id, end):
        calls.append(end)
        raise ValueError("not mine")

    store.listen("orders", fail)
    store.listen("orders", heard)
    for end in (1, 2):
        store.put("orders", b"")
        assert heard.have({("orders", 0): end})
    assert calls == [1, 2]
    assert "a listener of orders/0 failed at 1: not mine" in caplog.text


def test_a_listener_that_ends_its_thread_harms_no_other_one(store, caplog):
    heard = Heard(store)
    store.listen("orders", lambda *_: sys.exit(3))
    store.listen("orders", lambda *_: asyncio.sleep(0))
    store.listen("orders", heard)
    for end in (1, 2):
        store.put("orders", b"")
        assert heard.have({("orders", 0): end})
    assert "a listener of orders/0 failed at 1: 3" in caplog.text
    assert "gave a coroutine" in caplog.text


@pytest.mark.parametrize("at_once", [False, True], ids=["one by one", "at once"])
def test_no_queue_is_passed_over(store, at_once):
    """Each queue gets one message and no other, so one that the watcher skips is never heard of."""
    every, single = Heard(store), Heard(store)
    store.listen("orders", every)
    for number in range(QUEUES):
        store.listen("orders", single, queue_id=number)
    messages = [cystore.Message(topic="orders", queue_id=number, body=b"") for number in range(QUEUES)]
    ends = {("orders", number): 1 for number in range(QUEUES)}
    if at_once:
        store.put_many(messages)
    else:
        for number in range(QUEUES):
            store.put_many(messages[number : number + 1])
            assert every.have({("orders", known): 1 for known in range(number + 1)})
    assert every.have(ends)
    assert single.have(ends)
    assert every.readable and single.readable


def test_a_listener_that_hangs_holds_up_neither_the_store_nor_waits_of_asyncio(tmp_path):
    inside, leave = threading.Event(), threading.Event()

    def hang(topic, queue_id, end):
        inside.set()
        assert leave.wait(WAIT_S)

    store = cystore.open(tmp_path / "s")
    store.listen("orders", hang)
    store.put("orders", b"")
    assert inside.wait(WAIT_S)
    store.put("orders", b"")
    assert len(store.get("orders", 0, 0).messages) == 2
    store.close()
    leave.set()


def test_a_listener_may_close_itself_and_put(store):
    done = threading.Event()

    def once(topic, queue_id, end):
        listener.close()
        store.put("copies", b"")
        done.set()

    listener = store.listen("orders", once)
    store.put("orders", b"")
    assert done.wait(WAIT_S)
    assert store.get("copies", 0, 0).messages


def test_a_forked_child_listens_anew(store):
    heard = Heard(store)
    store.listen("orders", heard)

    def child():
        mine = Heard(store)
        store.listen("orders", mine)
        store.put("orders", b"of %d" % os.getpid())
        assert mine.have({("orders", 0): 1})

    assert in_child(child) == 0
    assert heard.have({("orders", 0): 1})


@pytest.mark.parametrize(
    "wrong", [("T", None), (3, len), ("T", len, "0"), ("T", len, -1), ("T", asyncio.sleep)]
)
def test_wrong_arguments(store, wrong):
    topic, function, *queue = wrong
    with pytest.raises(StoreConfigError):
        store.listen(topic, function, **({"queue_id": queue[0]} if queue else {}))
