"""Goal: a process may be killed anywhere while it delivers (I9): every delayed message reaches its topic once and in
order, never before it is due, whoever goes on. Method: processes of the build with failpoints that deliver, killed at
each place and at random, beside others that live or alone; a checker that knows from DELAY_SOURCE what each delivered
message was."""

from __future__ import annotations

import contextlib
import signal
import time

import pytest

import cystore
from tests.support.aftermath import after_kills
from tests.support.checks import check_closed, everything
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

DELAYED = {**SETTINGS, "message_delay_level": "0s 1s", "flush_delay_offset_interval_ms": 0}
SCHEDULE = "SCHEDULE_TOPIC_XXXX"
COUNT = 300
DELIVER = "while store.stats()['delayed']: store.deliver(max_messages=20)"
# Place: how often it may be passed before. All of them are passed while messages are delivered.
PLACES = {
    "deliver.begun": 10,
    "deliver.appended": 10,
    "deliver.counted": 10,
    "deliver.saved": 10,  # saved with every batch, see DELAYED
    "append.intent": 10,
    "append.bytes_written": 100,
    "append.before_publish": 10,
    "append.published": 10,
    "append.next_set": 100,
    "append.blank_written": 3,
    "append.blank_published": 3,
    "files.backup_gone": 5,
    "files.replaced": 5,
}
# The others are killed at in every run by the tests of appends and small files.
IN_EVERY_RUN = {p for p in PLACES if p.startswith("deliver.")} | {"append.bytes_written", "append.published"}
WORK = """
import random
import cystore
rng = random.Random(seed)
with cystore.open(path, **settings) as store:
    while True:
        if rng.random() < 0.5:
            store.put_many([cystore.Message(topic="T", queue_id=n % 3, body=b"%d" % n, delay_level=1 + n % 2)
                            for n in range(rng.randrange(1, 8))])
        store.deliver(max_messages=rng.randrange(1, 30), timeout_s=5)
"""


def fill(store, count=COUNT, start=0):
    for n in range(start, start + count):
        store.put("T", b"%d" % n, queue_id=n % 3, keys=(f"k{n}",), delay_level=1 + n % 2)


def check_delivered(store, count):
    """Each of `count` messages once, in the order of its level, no earlier than it was due."""
    queues = everything(store)
    waited = {
        (m.queue_id, m.queue_offset): m
        for queue, found in queues.items()
        if queue[0] == SCHEDULE
        for m in found
    }
    assert len(waited) == count
    delivered = sorted(
        (m for queue, found in queues.items() if queue[0] == "T" for m in found),
        key=lambda m: m.physical_offset,
    )
    seen: dict[int, int] = {0: -1, 1: -1}
    for message in delivered:
        level, offset, physical_offset, _ = map(int, message.properties["DELAY_SOURCE"].split(":"))
        source = waited[level, offset]
        assert (source.physical_offset, bytes(source.body)) == (physical_offset, bytes(message.body))
        assert message.queue_id == int(source.properties["REAL_QID"])
        assert message.store_timestamp_ms >= source.store_timestamp_ms + level * 1000
        assert offset == seen[level] + 1, "twice, or not in order"
        seen[level] = offset
    assert len(delivered) == count
    assert store.stats()["delayed"] == {}


def deliver_all(store, count):
    """Delivers until nothing waits: the last messages may not be due yet."""
    until = time.monotonic() + 60
    while store.stats()["delayed"]:
        store.deliver(timeout_s=1)
        assert time.monotonic() < until
    check_delivered(store, count)


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


@pytest.fixture
def victim(build_environment):
    """Starts a process of the build with failpoints, that has the store open and dies at a place."""
    with contextlib.ExitStack() as stack:

        def start(path, place, passes=1):
            environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:{passes}"}
            process = stack.enter_context(Process(environment))
            process.send(
                "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=DELAYED
            )
            return process

        yield start


def kill(process):
    """Lets it deliver until it dies; it may do so while it opens the store."""
    process.send(DELIVER)
    with contextlib.suppress(EOFError):
        process.answer()
    with pytest.raises(EOFError):
        process.answer()
    assert process.wait() == -signal.SIGKILL


def test_every_place_of_the_delivery_is_killed_at():
    named = {name for name in in_sources() if name.startswith("deliver.")}
    assert named == {place for place in PLACES if place.startswith("deliver.")} | {"deliver.looked"}


@pytest.mark.sampled(3)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=() if p in IN_EVERY_RUN else pytest.mark.slow) for p in PLACES]
)
def test_i9_a_kill_while_delivering(path, rng, victim, place, survivors):
    store = cystore.open(path, **DELAYED)
    with store:
        fill(store)
        store.flush()
    if survivors:
        store = cystore.open(path, **DELAYED)
    kill(victim(path, place, rng.randrange(1, PLACES[place] + 1)))
    if not survivors:
        store = cystore.open(path, **DELAYED)
    with store:
        fill(store, 10, COUNT)
        deliver_all(store, COUNT + 10)
    with cystore.open(path, **DELAYED) as store:
        assert store.deliver() == 0
        check_delivered(store, COUNT + 10)
    check_closed(path, DELAYED)
    after_kills(path, DELAYED)


@pytest.mark.parametrize(
    ("first", "survivors"),
    [
        ("deliver.begun", True),
        ("deliver.appended", True),
        ("deliver.appended", False),
        ("append.published", False),
    ],
)
def test_i9_who_counts_what_a_killed_one_delivered_may_be_killed_too(path, victim, first, survivors):
    with cystore.open(path, **DELAYED) as store:
        fill(store)
    store = cystore.open(path, **DELAYED) if survivors else None
    kill(victim(path, first, 3))
    kill(victim(path, "deliver.looked"))
    with store or cystore.open(path, **DELAYED) as store:
        deliver_all(store, COUNT)
    check_closed(path, DELAYED)
    after_kills(path, DELAYED)


def test_i9_no_table_is_left_and_everybody_died(path, victim):
    with cystore.open(path, **DELAYED) as store:
        fill(store)
    kill(victim(path, "deliver.appended", 8))
    for file in (path / "config").glob("delayOffset*"):
        file.unlink()
    with cystore.open(path, **DELAYED) as store:
        deliver_all(store, COUNT)
    after_kills(path, DELAYED)


def test_i9_a_stopped_deliverer_is_waited_for_and_its_batch_counts(path, build_environment):
    with cystore.open(path, **DELAYED) as store:
        fill(store, 40)
        environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": "deliver.appended:1:stop"}
        with Process(environment) as stopped:
            stopped.do(
                "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=DELAYED
            )
            stopped.send("store.deliver(max_messages=20)")
            stopped.wait_stopped()
            assert store.deliver(timeout_s=0.3) == 0
            store.put("other", b"", flush="sync")
            stopped.go_on()
            assert stopped.answer() == 20
            deliver_all(store, 40)
            stopped.do("store.close()")


@pytest.mark.parametrize("rounds", [6, pytest.param(60, marks=pytest.mark.slow)])
def test_i9_several_deliver_at_once_and_are_killed_at_random(path, rng, rounds):
    """All of them put and deliver; in each round one dies, sometimes all."""
    writer_group: list[Process] = []
    with contextlib.ExitStack() as stack:
        watch = cystore.open(path, **DELAYED)
        for _ in range(rounds):
            while len(writer_group) < 3:
                process = stack.enter_context(Process())
                writer_group.append(process)
                process.send(WORK, path=str(path), settings=DELAYED, seed=rng.randrange(1 << 30))
            assert watch.wait_log(watch.wrote_position + rng.randrange(1, 60_000), timeout_s=60)
            everybody = rng.random() < 0.3
            if everybody:
                watch.close()
            for process in list(writer_group) if everybody else [rng.choice(writer_group)]:
                process.kill()
                writer_group.remove(process)
            if everybody:
                watch = cystore.open(path, **DELAYED)
        for process in writer_group:
            process.kill()
        with watch:
            count = sum(len(found) for queue, found in everything(watch).items() if queue[0] == SCHEDULE)
            assert count
            deliver_all(watch, count)
    check_closed(path, DELAYED)
    after_kills(path, DELAYED)
