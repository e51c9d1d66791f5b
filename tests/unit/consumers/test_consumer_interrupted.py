"""Goal: what breaks off in a consumer's call loses no message: a signal handler's exception anywhere, an error of
another queue, a kill while a group begins. Method: an exception at each place of a call; a filter that fails; a
process that kills or stops itself between two queues."""

from __future__ import annotations

import contextlib
import os
import threading

import pytest

import cystore
from cystore.clock import monotonic_s
from cystore.consumers.in_flight import QueueInFlight
from cystore.errors import StoreTimeoutError
from tests.support.interrupts import Interrupted, happens_at, raise_interrupted
from tests.support.process import Process

LEVELS = {"message_delay_level": "0s 0s 0s 0s"}
WAIT_S = 60.0
BODIES = {b"%d" % number for number in range(6)}
BEGIN_LAST = """
import cystore, signal, threading
from cystore.consumers.groups import Groups
real, calls = Groups.reset, []
def reset(self, *arguments, **options):
    calls.append(1)
    if len(calls) == 2:
        signal.pthread_kill(threading.get_ident(), number)  # the thread itself stops, at once
    return real(self, *arguments, **options)
Groups.reset = reset
store = cystore.open(path)
store.consumer("news", "orders", begin="last")
"""


def opened(path, count, queues=2, **settings):
    store = cystore.open(path, **LEVELS, **settings)
    for number in range(count):
        store.put("orders", b"%d" % number, queue_id=number % queues)
    return store


def drained(consumer, wanted):
    """Takes and acknowledges until all the wanted bodies came."""
    seen, until_s = set(), monotonic_s() + WAIT_S
    while not wanted <= seen:
        assert monotonic_s() < until_s, f"lost: {sorted(wanted - seen)}"
        for message in consumer.poll(timeout_s=1):
            seen.add(bytes(message.body))
            consumer.ack(message)


def broken_off(consumer, place, wanted):
    """Breaks a turn of a program off at a place; then everything wanted must come."""
    got = []

    def turn():
        messages = consumer.poll(2, timeout_s=WAIT_S)
        got.extend(bytes(message.body) for message in messages)
        consumer.ack(*messages)

    with contextlib.suppress(Interrupted):
        happens_at(place, turn, raise_interrupted)
    drained(consumer, wanted - set(got))


def places(call, queue_of):
    """A queue whose call was broken off, for each place of the call."""
    place, more = 0, True
    while more:
        place += 1
        queue = queue_of()
        try:
            more = happens_at(place, lambda queue=queue: call(queue), raise_interrupted)
        except Interrupted:
            more = True
        yield queue


def test_an_exception_inside_of_a_queue_in_flight_hides_no_message(tmp_path):
    """Seen: a message was taken from those at hand and not yet among the given ones, and the group stepped over it."""
    with opened(tmp_path / "s", 3, 1) as store:
        messages = store.get("orders", 0, 0).messages

    def queue_of():
        queue = QueueInFlight(("orders", 0), 0, 0, 0)
        queue.fetched(0, messages, 3)
        queue.give(1.0, lambda *_: True)
        return queue

    for queue in places(lambda queue: queue.give(1.0, lambda *_: True), queue_of):
        assert {*queue.given, *(one.queue_offset for one in queue.ready)} == {0, 1, 2}
        queue.settle(0)
        assert queue.lowest == 1
    for queue in places(lambda queue: queue.move(2), queue_of):
        assert (queue.committed, queue.next_offset, len(queue.given)) == (2, 2, 0) or queue.committed == 0


def test_an_exception_in_poll_and_ack_loses_no_message(tmp_path, rng):
    with opened(tmp_path / "s", 6) as store:
        for number in range(12):
            with store.consumer(f"g{number}", "orders", invisible_ms=50) as consumer:
                broken_off(consumer, rng.randint(1, 3000), BODIES)


def test_an_error_of_one_queue_takes_no_messages_of_the_others_with_it(tmp_path):
    """Seen: they counted as given, came again after the invisible time, and became dead letters unread."""
    wanted = {b"%d" % number for number in range(0, 20, 2)}

    def fails(message):
        if message.queue_id:
            raise ValueError("no such thing")
        return True

    with opened(tmp_path / "s", 20) as store, store.consumer("billing", "orders", filter=fails) as consumer:
        seen, errors = set(), 0
        for _ in range(6):
            try:
                seen |= {bytes(message.body) for message in consumer.poll()}
            except ValueError:
                errors += 1
        assert seen == wanted
        assert errors


@pytest.mark.parametrize("number", ["SIGKILL", "SIGSTOP"])
def test_a_group_that_begins_at_the_end_does_so_in_all_queues_whoever_is_killed(tmp_path, number):
    """Seen: the next consumer read the other queues from their first message, and so did one that came meanwhile."""
    with opened(tmp_path / "s", 9, 3, sync_flush_timeout_ms=50) as store, Process() as other:
        other.send(f"number = signal.{number}".join(["import signal\n", BEGIN_LAST]), path=str(store.path))
        if number == "SIGSTOP":
            other.wait_stopped()
            with pytest.raises(StoreTimeoutError, match="another process has had a lock"):
                store.consumer("news", "orders", begin="last")
            other.kill()
        else:
            with pytest.raises(EOFError):
                other.answer()
        with store.consumer("news", "orders", begin="last") as consumer:
            assert consumer.poll(timeout_s=0.1) == []
            assert store.groups.lags()["news"] == 0
            store.put("orders", b"new", queue_id=2)
            drained(consumer, {b"new"})


def test_acknowledging_what_is_no_message_acknowledges_none(tmp_path):
    with opened(tmp_path / "s", 2, 1) as store, store.consumer("billing", "orders") as consumer:
        messages = consumer.poll(timeout_s=WAIT_S)
        with pytest.raises(cystore.StoreConfigError, match="must be a message"):
            consumer.ack(*messages, None)
        assert consumer.ack(*messages) == 2


@pytest.mark.parametrize("topics", [None, 5, object()])
def test_topics_that_are_no_names_are_a_typed_error(tmp_path, topics):
    with opened(tmp_path / "s", 0) as store, pytest.raises(cystore.StoreConfigError, match="topics: must be"):
        store.consumer("billing", topics)


def test_a_forked_child_can_look_at_the_queues_of_a_consumer_in_use(tmp_path):
    """Seen: the child waited for a lock that a thread of its parent had."""
    with opened(tmp_path / "s", 2) as store, store.consumer("billing", "orders") as consumer:
        assert consumer.poll(timeout_s=WAIT_S)
        held, done = threading.Event(), threading.Event()

        def hold():
            with consumer._lock:
                held.set()
                done.wait(WAIT_S)

        thread = threading.Thread(target=hold)
        thread.start()
        assert held.wait(WAIT_S)
        child = os.fork()
        if child == 0:
            os._exit(len(consumer.queues))
        done.set()
        thread.join()
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert len(consumer.queues) == 2
