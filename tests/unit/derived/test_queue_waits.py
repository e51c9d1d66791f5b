"""Goal: who waits for one queue is woken by appends to it, and by no other. Method: waiters in other processes; the
words that they sleep on are read from the control block."""

from __future__ import annotations

import pytest

import cystore
from cystore.layout import CONTROL_QUEUES_AT, QUEUE_SLOT_BYTES, QUEUE_SLOT_FIELDS
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

SLEEPERS_AT = next(at for field, at in QUEUE_SLOT_FIELDS if field.name == "sleepers")
OPEN = "import cystore; store = cystore.open(path, **settings)"


@pytest.fixture
def store(tmp_path):
    with open_small(tmp_path / "s") as store:
        for topic in "TUV":
            store.put(topic, b"first")
        yield store


@pytest.fixture
def waiter(store):
    with Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        yield other


def sleeps(store: cystore.MessageStore, topic: str) -> bool:
    """Whether somebody may sleep until the next append to queue 0 of a topic."""
    control = store._parts.control
    at = CONTROL_QUEUES_AT + QUEUE_SLOT_BYTES * control.find_queue(topic, 0) + SLEEPERS_AT
    return control.file.read(at, 4) != bytes(4)


def wait_until_asleep(store: cystore.MessageStore, topic: str) -> None:
    while not sleeps(store, topic):
        pass


def test_appends_to_other_queues_wake_nobody(store, waiter):
    """Seen: with 100 waiters on other topics a put took 432 to 857 ns instead of 92: each made a system call and woke
    all."""
    waiter.send("store.wait('T', 0, 1, 60.0)")
    wait_until_asleep(store, "T")
    for _ in range(100):
        store.put("U", b"x")
        assert store._parts.control.append_sleepers == 0
    assert sleeps(store, "T")
    store.put("T", b"second")
    assert waiter.answer() is True


def test_a_waiter_does_not_dispatch_the_messages_of_other_topics(store, waiter):
    """Seen: 100 waiters dispatched all that was put to another topic, and a put beside them took 370 ns instead of
    87."""
    store.dispatch()
    store.put_many([cystore.Message(topic="U", body=b"x")] * 100)
    behind = store.stats()["dispatch_behind_bytes"]
    waiter.send("store.wait('T', 0, 1, 60.0)")
    wait_until_asleep(store, "T")
    assert 0 < behind == store.stats()["dispatch_behind_bytes"]
    store.put("T", b"second")
    assert waiter.answer() is True
    assert store.stats()["dispatch_behind_bytes"] == 0


def test_a_batch_wakes_the_waiters_of_all_its_queues(store, waiter):
    waiter.do("import threading; found = []")
    for topic in "TV":
        waiter.do(
            f"thread{topic} = threading.Thread(target=lambda: found.append(store.wait('{topic}', 0, 1, 60.0)))"
            f"; thread{topic}.start()"
        )
        wait_until_asleep(store, topic)
    store.put_many([cystore.Message(topic=topic, body=b"x") for topic in "UTUV"])
    assert waiter.do("threadT.join(); threadV.join()\nfound") == [True, True]


def test_a_waiter_for_a_queue_that_is_not_there_yet_is_woken(store, waiter):
    waiter.send("store.wait('W', 0, 0, 60.0)")
    while store._parts.control.append_sleepers == 0:
        pass
    store.put("W", b"x")
    assert waiter.answer() is True


def test_a_killed_waiter_costs_one_wake_up(store, waiter):
    waiter.send("store.wait('T', 0, 1, 60.0)")
    wait_until_asleep(store, "T")
    waiter.kill()
    store.put("T", b"x")
    assert not sleeps(store, "T")
