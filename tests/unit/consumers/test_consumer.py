"""Goal: a consumer gives every message until it is acknowledged, sends back what is refused or too late, and gives up
in time. Method: consumers of one process, with delay levels of a second."""

from __future__ import annotations

import os
import threading

import pytest

import cystore
from cystore import clock
from cystore.consumers.in_flight import QueueInFlight
from cystore.consumers.shares import share
from cystore.engine.manifest.manifest import look
from tests.support.process import Process
from tests.support.small_stores import BLANK_BYTES, body_for

pytestmark = pytest.mark.unsanitized  # about groups of processes, above the kernels

LEVELS = {"message_delay_level": "1s 1s 1s 1s"}
WAIT_S = 60.0


def opened(path, count=0, queues=2, **settings):
    store = cystore.open(path, **{**LEVELS, **settings})
    for number in range(count):
        store.put(
            "orders", b"%d" % number, queue_id=number % queues, keys=(f"k{number}",), tags=f"T{number % 2}"
        )
    return store


def taken(consumer, count):
    found = []
    while len(found) < count:
        got = consumer.poll(timeout_s=WAIT_S)
        assert got, f"{len(found)} of {count}"
        found += got
    return found


def test_everything_is_given_once_and_acknowledged(tmp_path):
    with opened(tmp_path / "s", 100, 4) as store:
        with store.consumer("billing", "orders") as consumer:
            messages = taken(consumer, 100)
            assert sorted(int(bytes(one.body)) for one in messages) == list(range(100))
            assert store.groups.lags() == {"billing": 100}
            assert consumer.ack(*messages) == 100
            assert consumer.ack(*messages) == 0
            assert store.groups.lags() == {"billing": 0}
            assert consumer.poll() == []
        with store.consumer("billing", ["orders"]) as consumer:
            assert consumer.poll(timeout_s=0.2) == []


def test_the_offset_is_the_lowest_that_is_not_acknowledged(tmp_path):
    with opened(tmp_path / "s", 6, 1) as store:
        with store.consumer("billing", "orders") as consumer:
            messages = taken(consumer, 6)
            consumer.ack(*messages[3:])
            assert store.groups.offset("billing", "orders", 0) == 0
            consumer.ack(*messages[:2])
            assert store.groups.offset("billing", "orders", 0) == 2
        with store.consumer("billing", "orders") as consumer:
            assert [one.queue_offset for one in taken(consumer, 4)] == [2, 3, 4, 5]


def test_a_refused_message_comes_again_and_becomes_a_dead_letter_as_rocketmq_writes_them(tmp_path):
    with (
        opened(tmp_path / "s") as store,
        store.consumer("billing", "orders", max_reconsume_times=1) as consumer,
    ):
        put = store.put("orders", b"bad", keys=("k",), tags="T", properties={"a": "1"}, flag=7)
        (message,) = taken(consumer, 1)
        assert consumer.retry(message)
        assert not consumer.retry(message)
        assert consumer.ack(message) == 0
        waiting = store.get("SCHEDULE_TOPIC_XXXX", 2, 0).messages[0]
        host = "7F00000100002A9F"
        origin = f"{host}{put.physical_offset:016X}"
        assert dict(waiting.properties) == {
            "KEYS": "k", "TAGS": "T", "a": "1", "WAIT": "false", "DELAY": "3", "RETRY_TOPIC": "orders",
            "ORIGIN_MESSAGE_ID": origin, "REAL_TOPIC": "%RETRY%billing", "REAL_QID": "0",
        }  # fmt: skip
        (again,) = taken(consumer, 1)
        assert (again.topic, again.queue_id, again.reconsume_times) == ("%RETRY%billing", 0, 1)
        assert (bytes(again.body), again.keys, again.tags, again.flag) == (b"bad", ("k",), "T", 7)
        assert again.born_timestamp_ms == message.born_timestamp_ms
        assert consumer.retry(again)
        (dead,) = store.get("%DLQ%billing", 0, 0).messages
        assert (dead.reconsume_times, dead.properties["DELAY"]) == (2, "0")
        assert (dead.properties["RETRY_TOPIC"], dead.properties["ORIGIN_MESSAGE_ID"]) == ("orders", origin)
        assert store.groups.lags() == {"billing": 0}


def test_a_level_can_be_chosen_and_a_negative_one_gives_up_at_once(tmp_path):
    with opened(tmp_path / "s", 3, 1) as store, store.consumer("billing", "orders") as consumer:
        first, second, third = taken(consumer, 3)
        assert consumer.retry(first, delay_level=1)
        assert consumer.retry(second, delay_level=99)  # the last one there is
        assert consumer.retry(third, delay_level=-1)
        assert {queue: len(store.get("SCHEDULE_TOPIC_XXXX", queue, 0).messages) for queue in (0, 3)} == {
            0: 1,
            3: 1,
        }
        assert [bytes(one.body) for one in store.get("%DLQ%billing", 0, 0).messages] == [b"2"]


def test_a_message_that_nobody_acknowledges_comes_again_while_the_program_hangs(tmp_path):
    with opened(tmp_path / "s", 1) as store, store.consumer("billing", "orders", invisible_ms=100) as hanging:
        (message,) = taken(hanging, 1)  # and then it does nothing any more
        assert store.wait("%RETRY%billing", 0, 0, WAIT_S)
        assert store.get("%RETRY%billing", 0, 0).messages[0].properties["RETRY_TOPIC"] == "orders"
        assert hanging.ack(message) == 0
        assert store.groups.offset("billing", "orders", 0) == 1


def test_tags_and_filters_step_over_the_others(tmp_path):
    with opened(tmp_path / "s", 10, 1) as store:
        with store.consumer("even", "orders", tags="T0") as consumer:
            consumer.ack(*taken(consumer, 5))
            assert consumer.poll() == []
            assert store.groups.lags()["even"] == 0
        with store.consumer("late", "orders", filter=lambda message: message.queue_offset > 7) as consumer:
            assert [one.queue_offset for one in taken(consumer, 2)] == [8, 9]


def test_a_group_may_begin_at_the_end_or_at_a_time(tmp_path):
    with opened(tmp_path / "s", 10, 2) as store:
        with store.consumer("news", "orders", begin="last") as consumer:
            assert consumer.poll(timeout_s=0.2) == []
            store.put("orders", b"new")
            assert [bytes(one.body) for one in taken(consumer, 1)] == [b"new"]
            store.put(
                "orders", b"another queue", queue_id=9
            )  # made after the group began: nothing of it is left out
            assert [bytes(one.body) for one in taken(consumer, 1)] == [b"another queue"]
        with store.consumer("news", "orders", begin="last") as consumer:  # it began already
            assert len(taken(consumer, 2)) == 2
        with store.consumer("old", "orders", begin=0) as consumer:
            assert len(taken(consumer, 12)) == 12


def test_a_reset_moves_a_consumer_that_runs(tmp_path):
    with opened(tmp_path / "s", 4, 1) as store, store.consumer("billing", "orders") as consumer:
        messages = taken(consumer, 4)
        consumer.ack(*messages[:2])
        store.groups.reset("billing", "orders", "first")
        assert consumer.ack(*messages[2:]) in (0, 2)
        assert store.groups.offset("billing", "orders", 0) == 0
        assert [one.queue_offset for one in taken(consumer, 4)] == [0, 1, 2, 3]


def test_an_offset_that_cleaning_left_behind_goes_on_by_rocketmqs_rule(tmp_path, caplog):
    with opened(tmp_path / "s", 4, 1) as store:
        store.groups.commit("billing", "orders", 0, 1)
        store.delete_topic("orders")
        store.put("orders", b"new")
        with store.consumer("billing", "orders") as consumer:
            assert [bytes(one.body) for one in taken(consumer, 1)] == [b"new"]
        assert "outside of the queue" in caplog.text
        assert store.groups.offset("billing", "orders", 0) == 4


def test_an_offset_beyond_a_restored_queue_goes_on_by_rocketmqs_rule(tmp_path, caplog):
    with opened(tmp_path / "s", 4, 1):
        pass
    (tmp_path / "s/config/consumerOffset.json").write_text('{"offsetTable":{"orders@billing":{0:400}}}')
    with opened(tmp_path / "s") as store, store.consumer("billing", "orders") as consumer:
        rule = store.get("orders", 0, 400)
        assert rule.status is cystore.GetStatus.OFFSET_OVERFLOW_BADLY
        store.put("orders", b"new")
        found = taken(consumer, 1)
        assert found[0].queue_offset == rule.next_offset
        assert "outside of the queue" in caplog.text


def test_consumers_share_the_queues_and_take_over_from_one_that_ends(tmp_path):
    with opened(tmp_path / "s", 40, 4) as store:
        one, two = (store.consumer("billing", "orders") for _ in range(2))
        seen = {}
        while len(seen) < 40:
            for consumer in (one, two):
                for message in consumer.poll(timeout_s=0.2):
                    consumer.ack(message)
                    seen.setdefault((message.queue_id, message.queue_offset), []).append(consumer)
        assert all(len(by) == 1 for by in seen.values())
        while sorted((len(one.queues), len(two.queues))) != [2, 2]:
            assert one.poll(timeout_s=0.2) == two.poll(timeout_s=0.2) == []
        assert not set(one.queues) & set(two.queues)
        two.close()
        for queue_id in range(4):
            store.put("orders", b"late", queue_id=queue_id)
        assert sorted(message.queue_id for message in taken(one, 4)) == [0, 1, 2, 3]
        one.close()


def test_share_gives_each_queue_to_one_member():
    for queues in range(9):
        for members in range(1, 12):
            shares = [share(list(range(queues)), members, number) for number in range(members)]
            assert [number for one in shares for number in one] == list(range(queues))
            assert max(map(len, shares)) - min(map(len, shares)) <= 1


def test_a_queue_that_leaves_keeps_what_was_given_and_drops_what_was_not(tmp_path):
    with opened(tmp_path / "s", 6, 1) as store:
        messages = store.get("orders", 0, 0).messages
    queue = QueueInFlight(("orders", 0), 0, 0, 0)
    queue.fetched(0, messages, 6)
    assert queue.give(1.0, lambda *_: True) is messages[0]
    queue.leave()
    assert queue.give(1.0, lambda *_: True) is None
    assert queue.lowest == 0
    assert queue.settle(0)
    assert queue.lowest == queue.next_offset == 1


def put_with_some_that_expire(store):
    store.put("orders", b"first")
    for number in range(5):
        store.put("orders", b"%d" % number, expires_at_ms=clock.now_ms() + 700)
    store.put("orders", b"last")


def wait_until_they_expired(store):
    while len(store.get("orders", 0, 0).messages) > 2:
        store.wait("nothing", 0, 0, 0.05)


def test_messages_that_expire_while_they_are_read_ahead_are_not_given(tmp_path):
    with opened(tmp_path / "s") as store:
        put_with_some_that_expire(store)
        with store.consumer("billing", "orders") as consumer:
            (first,) = consumer.poll(1, timeout_s=WAIT_S)  # reads the others ahead
            wait_until_they_expired(store)
            (last,) = taken(consumer, 1)
            assert (bytes(first.body), bytes(last.body)) == (b"first", b"last")
            assert consumer.ack(first, last) == 2
            assert store.groups.lags() == {"billing": 0}
        put_with_some_that_expire(store)
        with store.consumer("billing", "orders") as consumer:
            messages = iter(consumer)
            consumer.ack(next(messages))
            store.wait("nothing", 0, 0, 1)
            last = next(messages)
            assert bytes(last.body) == b"last"
            consumer.ack(last)
            assert store.groups.lags() == {"billing": 0}


def test_messages_of_a_topic_that_is_deleted_after_they_were_read_ahead_are_not_given(tmp_path, caplog):
    with opened(tmp_path / "s", 6, 1) as store, store.consumer("billing", "orders") as consumer:
        (first,) = consumer.poll(1, timeout_s=WAIT_S)
        store.delete_topic("orders")
        consumer.ack(first)
        store.put("orders", b"new")
        (new,) = taken(consumer, 1)
        assert (bytes(new.body), new.queue_offset) == (b"new", 6)
        assert "they were removed, the queue begins at 6 now" in caplog.text
        consumer.ack(new)
        assert store.groups.lags() == {"billing": 0}


def test_the_offset_passes_what_was_left_out_although_nothing_else_comes(tmp_path):
    with opened(tmp_path / "s", 6, 1) as store, store.consumer("billing", "orders") as consumer:
        consumer.ack(*consumer.poll(1, timeout_s=WAIT_S))
        store.delete_topic("orders")
        assert consumer.poll() == []
        assert store.groups.offset("billing", "orders", 0) == 6


def test_a_given_message_that_nobody_sees_any_more_is_not_sent_back(tmp_path):
    with opened(tmp_path / "s", 1) as store, store.consumer("billing", "orders") as consumer:
        (message,) = taken(consumer, 1)
        (queue,) = [queue for queue in consumer._queues.values() if queue.given]
        store.delete_topic("orders")
        queue.given[0] = message, 0.0  # its time is over
        consumer._turn()
        assert consumer.ack(message) == 0
        assert store.groups.offset("billing", "orders", 0) == 1
        assert store.next_queue_offset("%RETRY%billing", 0) == 0
        assert store.next_queue_offset("SCHEDULE_TOPIC_XXXX", 2) == 0


def test_bad_arguments_are_refused(tmp_path):
    with opened(tmp_path / "s", 1) as store:
        wrong = (
            {"topics": []}, {"topics": "a b"}, {"group": "a@b"}, {"invisible_ms": 0}, {"max_in_flight": 0},
            {"begin": "middle"},
            {"max_reconsume_times": -1}, {"topics": 7}, {"filter": 7}, {"tags": 7},
        )  # fmt: skip
        for given in wrong:
            with pytest.raises((cystore.StoreError, TypeError)):
                store.consumer(**{"group": "billing", "topics": "orders", **given})
        with store.consumer("billing", "orders") as consumer:
            with pytest.raises(cystore.StoreConfigError, match="message"):
                consumer.ack("no message")
            with pytest.raises(cystore.StoreConfigError, match="message"):
                consumer.ack(cystore.Message(topic="orders", body=b""))
        with pytest.raises(cystore.StoreClosedError):
            consumer.poll()
        assert list(consumer) == []
        consumer.close()
        left = store.consumer("billing", "orders")
    with pytest.raises(cystore.StoreClosedError):
        left.poll()
    assert list(left) == []
    left.close()
    with cystore.open(tmp_path / "s", read_only=True) as store, pytest.raises(cystore.StoreNotWritableError):
        store.consumer("billing", "orders")


def test_a_forked_child_has_no_consumer_and_does_not_keep_the_parents_queues(tmp_path):
    with opened(tmp_path / "s", 2, 1), Process() as parent, Process() as other:
        for process in (parent, other):
            process.do("import cystore, os; store = cystore.open(path)", path=str(tmp_path / "s"))
        child = parent.do(
            """
consumer = store.consumer("billing", "orders")
given = consumer.poll(timeout_s=60)
begun, told = os.pipe()
held, release = os.pipe()
child = os.fork()
if child == 0:
    os.close(release)
    try:
        consumer.poll()
        os.write(told, b"it polled")
    except cystore.StoreClosedError as error:
        os.write(told, str(error).encode())
    os.read(held, 1)
    os._exit(0)
said = os.read(begun, 1000).decode()
[child, said, len(given)]
"""
        )
        assert child[2] == 2
        assert "make another one here" in child[1]
        os.kill(parent.pid, 9)  # the child lives on, until its pipe ends with the parent
        assert (
            other.do("consumer = store.consumer('billing', 'orders'); len(consumer.poll(timeout_s=60))") == 2
        )


# ---------------------------------------------------------------------------------- messages that cannot be sent back


def dead_letters(store, group="billing"):
    return [bytes(one.body) for one in store.get(f"%DLQ%{group}", 0, 0).messages]


@pytest.mark.parametrize("room", [0, 1, 60, 200])
def test_a_message_without_room_for_a_retry_becomes_a_dead_letter(tmp_path, room):
    """Seen: `retry` raised each time, the message came again and again, and its group's offset stayed."""
    with opened(tmp_path / "s") as store:
        store.put("orders", b"full", properties={"p": "x" * (32_765 - room)})
        store.put("orders", b"next")
        with store.consumer("billing", "orders", max_reconsume_times=1) as consumer:
            full, following = taken(consumer, 2)
            assert consumer.retry(full)
            assert consumer.ack(following) == 1
            assert store.groups.offset("billing", "orders", 0) == 2
        assert dead_letters(store) == [b"full"]
        (dead,) = store.get("%DLQ%billing", 0, 0).messages
        assert dead.properties["p"] == "x" * (32_765 - room)
        assert ("ORIGIN_MESSAGE_ID" in dead.properties) == (room >= 100)


def test_a_message_with_room_for_a_retry_comes_again(tmp_path):
    with opened(tmp_path / "s") as store:
        store.put("orders", b"nearly", properties={"p": "x" * 32_000})
        with store.consumer("billing", "orders", max_reconsume_times=1) as consumer:
            assert consumer.retry(taken(consumer, 1)[0])
            (again,) = taken(consumer, 1)
            assert (again.topic, again.reconsume_times) == ("%RETRY%billing", 1)
            assert "DELAY_SOURCE" in again.properties
            assert consumer.retry(again)
        assert dead_letters(store) == [b"nearly"]


def test_a_message_comes_again_after_a_time_of_its_own(tmp_path):
    with opened(tmp_path / "s") as store:
        store.put("orders", b"later", keys=("k",))
        with store.consumer("billing", "orders", max_reconsume_times=1) as consumer:
            (message,) = taken(consumer, 1)
            for wrong in ({"delay_ms": -1}, {"delay_ms": 1 << 50}, {"delay_ms": 5, "delay_level": 1}):
                with pytest.raises(cystore.StoreConfigError, match="delay_ms"):
                    consumer.retry(message, **wrong)
            assert consumer.retry(message, delay_ms=50)
            (waiting,) = store.pending("%RETRY%billing")
            assert look(tmp_path / "s").facts.major == 2, "earlier versions are kept out"
            (again,) = taken(consumer, 1)
            assert again.store_timestamp_ms >= waiting.deliver_at_ms >= message.store_timestamp_ms + 50
            assert (again.topic, again.reconsume_times, again.keys) == ("%RETRY%billing", 1, ("k",))
            assert consumer.retry(again, delay_ms=50)
        assert dead_letters(store) == [b"later"]


@pytest.mark.parametrize("spare", [0, 5, 6, 100])
def test_a_message_that_fills_a_log_file_stops_no_group(tmp_path, spare):
    """Its dead letter needs a longer record, so it may have no room at all: then the group continues behind it."""
    with opened(tmp_path / "s", mapped_file_size_commit_log_bytes=4096) as store:
        store.put("orders", body_for(4096 - BLANK_BYTES - spare, "orders"))
        store.put("orders", b"next")
        with store.consumer("billing", "orders") as consumer:
            full, following = taken(consumer, 2)
            assert consumer.retry(full)
            consumer.ack(following)
            assert store.groups.offset("billing", "orders", 0) == 2
        dead = store.topics().get("%DLQ%billing", {})
        assert bool(dead) == (spare >= len("%DLQ%billing") - len("orders"))
        assert "SCHEDULE_TOPIC_XXXX" not in store.topics()


def test_a_message_whose_dead_letter_has_no_queue_stops_no_other(tmp_path):
    """Seen: the consumer's thread ended each turn at the first such message; the others stayed where they were."""
    with opened(tmp_path / "s", max_queues=12) as store:
        store.put("orders", b"stuck")
        store.put("orders", b"late", queue_id=1)
        store.put("x", b"x", delay_level=3)
        with store.consumer("billing", "orders", max_reconsume_times=0, invisible_ms=100) as consumer:
            try:
                for number in range(100):
                    store.put(f"filler-{number}", b"x")
            except cystore.QueuesFullError:
                pass
            stuck = taken(consumer, 2)
            with pytest.raises(cystore.QueuesFullError):
                consumer.retry(stuck[0])
            turned, turn = threading.Event(), consumer._leases.keep
            seen = []

            def keep(rows):
                seen.append(1)
                if len(seen) > 2:
                    turned.set()
                return turn(rows)

            consumer._leases.keep = keep
            assert turned.wait(WAIT_S)  # the thread goes on
            assert store.groups.offset("billing", "orders", 0) == 0
            assert consumer.ack(*stuck) == 2
            assert store.groups.offset("billing", "orders", 0) == 1


def test_a_second_group_retries_the_dead_letters_of_the_first(tmp_path):
    """Seen: the first group's count was kept, so the message became a dead letter of the second at once."""
    with opened(tmp_path / "s") as store:
        store.put("orders", b"bad")
        with store.consumer("billing", "orders", max_reconsume_times=1) as consumer:
            assert consumer.retry(taken(consumer, 1)[0])
            assert consumer.retry(taken(consumer, 1)[0])
        assert dead_letters(store) == [b"bad"]
        for topic in ("%DLQ%billing", "%RETRY%billing"):
            group = f"second-{topic[1:4]}"
            with store.consumer(group, topic, max_reconsume_times=2) as consumer:
                for times in (1, 2):
                    assert consumer.retry(taken(consumer, 1)[0])
                    assert dead_letters(store, group) == []
                    assert store.wait(f"%RETRY%{group}", 0, times - 1, WAIT_S)
                    assert store.get(f"%RETRY%{group}", 0, times - 1).messages[0].reconsume_times == times
                assert consumer.retry(taken(consumer, 1)[0])
                assert dead_letters(store, group) == [b"bad"]
