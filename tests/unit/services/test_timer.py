"""Goal: a message with a time of its own reaches its topic once, at that time or as soon after it as somebody delivers,
unless it was cancelled (I9), whatever becomes of the timer's files. Method: small stores with a clock that the test
turns; blocks that are lost, damaged, ahead of the log, or full."""

from __future__ import annotations

import os
import shutil
import threading
import time

import pytest

import cystore
from cystore import clock
from cystore.config import StoreConfig
from cystore.engine.manifest import manifest
from cystore.engine.manifest.manifest import look
from cystore.layout import CONSTANTS
from cystore.metrics import metrics
from cystore.operate.backup import take
from tests.support.aftermath import command
from tests.support.checks import check_closed
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TIMER, ENDS = CONSTANTS["TIMER_QUEUE_ID"][0], CONSTANTS["TIMER_ENDS_QUEUE_ID"][0]
BLOCK = CONSTANTS["TIMER_BLOCK_MESSAGES"][0]
LEFT_AT = CONSTANTS["TIMER_LEFT_AT"][0]
DUE_AT = CONSTANTS["TIMER_DUE_AT"][0]
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
YEAR_MS = 366 * DAY_MS
LARGE = {
    "mapped_file_size_commit_log_bytes": 64 << 20,
    "mapped_file_size_consume_queue_bytes": 20 * 300_000,
    "services": "none",
}


def bodies(store, topic="T"):
    """What a topic has, in the order of the log."""
    found = []
    for queue_id in store.topics().get(topic, {}):
        at = 0
        while (got := store.get(topic, queue_id, at, 1024)).messages:
            found += got.messages
            at = got.next_offset
    return [bytes(m.body) for m in sorted(found, key=lambda m: m.physical_offset)]


def keys(store, *args):
    return [message.keys[0] for message in store.pending(*args)]


def blocks(path):
    return sorted((path / "timer").iterdir())


# ------------------------------------------------------------------------------------------------- put


def test_message_waits_in_the_timers_queue_and_is_delivered_as_it_was_put(path, late, now):
    with open_small(path) as store:
        put = store.put("T", b"body", queue_id=7, keys=("k",), tags="A", properties={"a": "b"}, flag=3,
                        deliver_at_ms=now + HOUR_MS)  # fmt: skip
        (waiting,) = store.get(SCHEDULE, TIMER, 0).messages
        assert waiting.physical_offset == put.physical_offset
        assert dict(waiting.properties) == {
            "KEYS": "k", "TAGS": "A", "a": "b", "DELAY_DUE": str(now + HOUR_MS), "REAL_TOPIC": "T", "REAL_QID": "7",
        }  # fmt: skip
        assert waiting.deliver_at_ms == now + HOUR_MS
        assert store._attached().queues.find(SCHEDULE, TIMER).entry(0).tags_code == now + HOUR_MS
        assert store.stats()["delayed"] == {0: 1}
        assert store.deliver() == 0
        late(HOUR_MS)
        assert (store.deliver(), store.deliver()) == (1, 0)
        (message,) = store.get("T", 7, 0).messages
        assert (bytes(message.body), message.keys, message.tags, message.flag) == (b"body", ("k",), "A", 3)
        assert message.born_timestamp_ms == waiting.born_timestamp_ms
        assert message.properties["DELAY_SOURCE"] == f"{TIMER}:0:0:{put.store_timestamp_ms}"
        assert "DELAY_DUE" not in message.properties
        assert message.deliver_at_ms is None
        assert store.stats()["delayed"] == {}
    check_closed(path, SETTINGS)


def test_a_time_that_is_over_delivers_at_once(path, now):
    with open_small(path) as store:
        for n, when in enumerate(({"deliver_at_ms": now}, {"deliver_at_ms": 1}, {"delay_ms": 0})):
            put = store.put("T", b"%d" % n, **when)
            assert put.queue_offset == n
        store.put_many([cystore.Message(topic="T", body=b"3", deliver_at_ms=now - 5)])
        assert bodies(store) == [b"0", b"1", b"2", b"3"]
        assert SCHEDULE not in store.topics()


def test_only_a_store_with_the_timer_keeps_earlier_versions_out(path, now, monkeypatch):
    """They would take its queue for one of a delay level."""
    with open_small(path) as store:
        store.put("T", b"plain")
        store.put("T", b"level", delay_level=18)
        store.put("T", b"over", deliver_at_ms=now - 1)
        assert look(path).facts.major == 1
        store.put_many([cystore.Message(topic="T", body=b"", deliver_at_ms=now + HOUR_MS)])
        assert look(path).facts.major == 2
        assert store.put("T", b"", delay_ms=HOUR_MS)
        sequence = look(path).facts.sequence
    with open_small(path) as store:
        store.put("T", b"", delay_ms=HOUR_MS)
        assert look(path).facts.sequence == sequence, "it is known"
    (path / "manifest").unlink()
    with open_small(path) as store:
        assert store.stats()["delayed"] == {0: 3, 18: 1}
    assert look(path).facts.major == 2
    monkeypatch.setattr(manifest, "MAJOR", 1)
    with pytest.raises(cystore.StoreFormatError, match="newer version of cystore"):
        open_small(path)


def test_the_longest_wait_is_a_setting(path, late):
    with open_small(path) as store:
        store.put("T", b"a year", delay_ms=YEAR_MS)
        for when in ({"delay_ms": YEAR_MS + 1}, {"deliver_at_ms": clock.now_ms() + YEAR_MS + 60_000}):
            with pytest.raises(
                cystore.MessageIllegalError, match=f"{next(iter(when))}: .*{YEAR_MS}.*timer_max_delay_s"
            ):
                store.put("T", b"", **when)
            with pytest.raises(cystore.MessageIllegalError, match="timer_max_delay_s"):
                store.put_many([cystore.Message(topic="T", body=b"", **when)])
        assert store.stats()["delayed"] == {0: 1}
    with open_small(path, timer_max_delay_s=10) as store:
        with pytest.raises(cystore.MessageIllegalError, match="10000"):
            store.put("T", b"", delay_ms=10_001)
        late(YEAR_MS + 1)
        assert store.deliver() == 1


@pytest.mark.parametrize(
    "given",
    [
        {"deliver_at_ms": 0}, {"deliver_at_ms": -1}, {"deliver_at_ms": 1.5}, {"deliver_at_ms": True},
        {"deliver_at_ms": "1"}, {"delay_ms": -1}, {"delay_ms": 1 << 70}, {"delay_ms": 1, "deliver_at_ms": 1},
        {"delay_ms": 1, "delay_level": 1}, {"deliver_at_ms": 1, "delay_level": 1},
    ],
    ids=str,
)  # fmt: skip
def test_times_that_are_none_are_refused_and_nothing_is_appended(path, given):
    name = next(iter(given))
    with open_small(path) as store:
        with pytest.raises(cystore.MessageIllegalError, match=name if len(given) == 1 else "both"):
            store.put("T", b"", **given)
        with pytest.raises(cystore.MessageIllegalError, match=name if len(given) == 1 else "both"):
            cystore.Message(topic="T", body=b"", **given)
        assert store.wrote_position == 0


def test_due_messages_leave_in_the_order_of_their_times_among_those_of_levels(path, late, now):
    with open_small(path, message_delay_level="1s 10s") as store:
        put = store.put("T", b"level 2", delay_level=2)
        due = put.store_timestamp_ms + 10_000
        store.put("T", b"last", deliver_at_ms=due + 1)
        store.put("T", b"first", deliver_at_ms=due - 9_500)
        store.put("T", b"level 1", delay_level=1)
        store.put("T", b"middle", deliver_at_ms=due - 1)
        assert store.stats()["delayed"] == {0: 3, 1: 1, 2: 1}
        late(60_000)
        assert store.deliver(max_messages=2) == 2
        assert store.deliver() == 3
        assert bodies(store) == [b"first", b"level 1", b"middle", b"level 2", b"last"]


def test_a_message_that_is_put_later_and_due_sooner_is_delivered_first(path, late, now):
    with open_small(path) as store:
        store.put("T", b"late", deliver_at_ms=now + 2 * HOUR_MS)
        assert store.deliver() == 0
        store.put("T", b"soon", deliver_at_ms=now + HOUR_MS)
        late(HOUR_MS)
        assert store.deliver() == 1
        late(2 * HOUR_MS)
        assert store.deliver() == 1
        assert bodies(store) == [b"soon", b"late"]


def test_a_service_thread_delivers_soon_after_the_time(path):
    with open_small(path, services="all") as store:
        began_ms = time.time() * 1000
        store.put("T", b"x", delay_ms=300)
        assert store.wait("T", 0, 0, timeout_s=60)
        (message,) = store.get("T", 0, 0).messages
        assert message.store_timestamp_ms >= began_ms + 300


# --------------------------------------------------------------------------------- cancel, reschedule, pending


def test_what_is_cancelled_is_never_delivered(path, late, now):
    with open_small(path) as store:
        for n in range(6):
            store.put("T", b"%d" % n, keys=(f"k{n % 3}", "all"), deliver_at_ms=now + HOUR_MS + n)
        other = store.put("U", b"other", keys=("k0",), deliver_at_ms=now + HOUR_MS)
        assert store.cancel("T", "k0")
        assert not store.cancel("T", "k0")
        assert not store.cancel("T", "none") and not store.cancel("V", "k1")
        assert keys(store, "T") == ["k1", "k2", "k1", "k2"]
        assert store.cancel(physical_offset=other.physical_offset)
        assert not store.cancel(physical_offset=other.physical_offset)
        late(2 * HOUR_MS)
        assert store.deliver() == 4
        assert bodies(store) == [b"1", b"2", b"4", b"5"] and bodies(store, "U") == []
        assert not store.cancel("T", "k1"), "it is delivered"
        assert store.stats()["delayed"] == {}
    with open_small(path) as store:
        assert store.deliver() == 0 and keys(store) == []
    check_closed(path, SETTINGS)


def test_another_time_takes_the_place_of_the_first(path, late, now):
    with open_small(path) as store:
        store.put("T", b"a", queue_id=2, keys=("a",), tags="X", deliver_at_ms=now + HOUR_MS)
        store.put("T", b"b", keys=("b",), deliver_at_ms=now + 2 * HOUR_MS)
        assert store.reschedule("T", "a", now + 3 * HOUR_MS)
        assert [(m.keys, m.deliver_at_ms - now) for m in store.pending()] == [
            (("b",), 2 * HOUR_MS),
            (("a",), 3 * HOUR_MS),
        ]
        assert not store.reschedule("T", "none", now + HOUR_MS)
        with pytest.raises(cystore.MessageIllegalError, match="timer_max_delay_s"):
            store.reschedule("T", "a", now + 2 * YEAR_MS)
        late(2 * HOUR_MS)
        assert store.deliver() == 1
        assert store.reschedule("T", "a", 1)  # now
        assert store.deliver() == 1
        (message,) = store.get("T", 2, 0).messages
        assert (bytes(message.body), message.keys, message.tags) == (b"a", ("a",), "X")
        assert not store.reschedule("T", "a", now + HOUR_MS), "it is delivered"


def test_pending_gives_a_part_in_order(path, now):
    with open_small(path) as store:
        for n in (5, 1, 3, 2, 4):
            store.put(
                "T" if n % 2 else "U", b"%d" % n, queue_id=n, keys=(f"k{n}",), deliver_at_ms=now + n * HOUR_MS
            )
        assert keys(store) == ["k1", "k2", "k3", "k4", "k5"]
        assert keys(store, "T") == ["k1", "k3", "k5"]
        assert keys(store, None, now + 2 * HOUR_MS, now + 4 * HOUR_MS) == ["k2", "k3"]
        first = next(store.pending("U"))
        assert (first.topic, first.queue_id, bytes(first.body)) == ("U", 2, b"2")
        assert first.message.physical_offset == first.physical_offset
    with open_small(path, read_only=True) as store:
        assert keys(store, "T") == ["k1", "k3", "k5"]
        with pytest.raises(cystore.StoreNotWritableError):
            store.cancel("T", "k1")


def test_pending_in_another_process_sees_what_this_one_did(path, late, now):
    with open_small(path) as store:
        for n in range(4):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + (n + 1) * HOUR_MS)
        with open_small(path, read_only=True) as reader, open_small(path) as second:
            assert keys(reader) == keys(second) == ["k0", "k1", "k2", "k3"]
            late(HOUR_MS)
            assert store.deliver() == 1
            assert second.cancel("T", "k2")
            assert keys(reader) == keys(second) == keys(store) == ["k1", "k3"]


@pytest.mark.parametrize(
    "given",
    [{}, {"topic": "T"}, {"key": "k"}, {"topic": "T", "key": ""}, {"topic": "T", "key": 5},
     {"topic": "T", "key": "k", "physical_offset": 0}, {"physical_offset": -1}],
    ids=str,
)  # fmt: skip
def test_a_call_that_names_no_message_is_refused(path, given):
    with open_small(path) as store:
        with pytest.raises(cystore.MessageIllegalError):
            store.cancel(**given)
        with pytest.raises(cystore.MessageIllegalError):
            store.reschedule(**given, deliver_at_ms=1)
        with pytest.raises(cystore.MessageIllegalError, match="deliver_at_ms"):
            store.reschedule("T", "k")


def test_of_a_delivery_and_a_cancellation_exactly_one_happens(path, late, now):
    count = 400
    with open_small(path) as store:
        for n in range(count):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + 5_000)
        late(10_000)
        cancelled = []

        def cancel(begin):
            with open_small(path) as other:
                cancelled.extend(n for n in range(begin, count, 2) if other.cancel("T", f"k{n}"))

        threads = [threading.Thread(target=cancel, args=(n,)) for n in range(2)]
        for thread in threads:
            thread.start()
        while store.stats()["delayed"]:
            store.deliver(max_messages=7)
        for thread in threads:
            thread.join()
        found = sorted(int(body) for body in bodies(store))
        assert sorted([*found, *cancelled]) == list(range(count))


# ------------------------------------------------------------------------------------------------- files


def test_full_blocks_are_delivered_in_order(path, late, now, rng):
    """Their order is in their files; the last block's is in memory."""
    count = 2 * BLOCK + 1000
    dues = [rng.randrange(1_000_000) for _ in range(count)]
    with cystore.open(path, **LARGE) as store:
        for begin in range(0, count, 10_000):
            store.put_many(
                [cystore.Message(topic="T", body=b"%d" % n, deliver_at_ms=now + HOUR_MS + dues[n])
                 for n in range(begin, min(begin + 10_000, count))]
            )  # fmt: skip
        assert store.deliver() == 0
        assert len(blocks(path)) == 3
        assert store.stats()["delayed"] == {0: count}
        some = list(store.pending("T", now + HOUR_MS + 500_000, now + HOUR_MS + 501_000))
        assert [m.deliver_at_ms for m in some] == sorted(
            now + HOUR_MS + due for due in dues if 500_000 <= due < 501_000
        )
        late(HOUR_MS + 400_000)
        done = store.deliver()
        until_ms = clock.now_ms() - now - HOUR_MS  # it went on while messages were delivered
        assert sum(due <= 400_000 for due in dues) <= done <= sum(due <= until_ms for due in dues)
    with cystore.open(path, **LARGE) as store:
        late(HOUR_MS + 1_000_000)
        done += store.deliver()
        assert done == count
        delivered = [dues[int(body)] for body in bodies(store)]
        assert len(delivered) == count and delivered == sorted(delivered)
        assert store.stats()["delayed"] == {}


@pytest.mark.parametrize("harm", ["lost", "empty", "short", "zeros", "notes"])
def test_a_block_that_is_lost_or_damaged_is_read_again_from_the_log(path, late, now, harm, caplog, rng):
    with open_small(path) as store:
        for n in range(60):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS + n)
        assert store.cancel("T", "k59") and store.reschedule("T", "k1", now + 2 * HOUR_MS)
        late(HOUR_MS + 20)
        store.deliver()
        done = bodies(store)
        left = keys(store)
    (block,) = blocks(path)
    if harm == "lost":
        block.unlink()
    elif harm in ("empty", "short"):
        os.truncate(block, 0 if harm == "empty" else 4096)
    elif harm == "zeros":
        block.write_bytes(bytes(block.stat().st_size))
    else:
        with block.open("r+b") as file:
            for place in rng.sample(range(20), 5):
                file.seek(LEFT_AT + 8 * place)
                file.write(bytes([255] * 8))
    with open_small(path) as store:
        assert "timer were lost or damaged" in caplog.text
        assert keys(store) == left
        late(3 * HOUR_MS)
        store.deliver()
        assert sorted(bodies(store)) == sorted(b"%d" % n for n in range(59))
        assert bodies(store)[: len(done)] == done
    check_closed(path, SETTINGS)


def test_a_snapshot_has_the_timer_too(path, late, now, caplog):
    """Its files are made from the log, and nobody is warned of that."""
    with open_small(path) as store:
        for n in range(20):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + (n + 1) * HOUR_MS)
        late(10 * HOUR_MS)
        assert store.deliver() == 10
        assert store.cancel("T", "k19")
        left = keys(store)
        copy = path.with_name("copy")
        take(path, copy, StoreConfig(**SETTINGS))
    with open_small(copy) as store:
        assert keys(store) == left
        late(30 * HOUR_MS)
        assert store.deliver() == len(left)
        assert bodies(store) == [b"%d" % n for n in range(19)]
    assert not caplog.records, caplog.text
    check_closed(copy, SETTINGS)


def test_an_order_that_is_damaged_is_made_again(path, late, now):
    with cystore.open(path, **LARGE) as store:
        for begin in range(0, BLOCK, 8192):
            store.put_many(
                [cystore.Message(topic="T", body=b"", deliver_at_ms=now + HOUR_MS + n % 977)
                 for n in range(begin, begin + 8192)]
            )  # fmt: skip
        assert store.deliver() == 0
    (block,) = blocks(path)
    with block.open("r+b") as file:
        file.seek(DUE_AT)
        file.write((now + YEAR_MS).to_bytes(8, "big"))
    with cystore.open(path, **LARGE) as store:
        late(2 * HOUR_MS)
        assert store.deliver() == BLOCK


def test_notes_ahead_of_the_log_are_taken_back(path, late, now):
    """A power cut removed the delivered messages, but not the notes that they were."""
    with open_small(path) as store:
        for n in range(20):
            store.put("T", b"%d" % n, deliver_at_ms=now + HOUR_MS + n)
        store.deliver()
        store.flush()
    shutil.copytree(path, path.with_name("before"))
    with open_small(path) as store:
        late(2 * HOUR_MS)
        assert store.deliver() == 20
    (block,) = blocks(path)
    notes = block.read_bytes()
    shutil.rmtree(path)
    path.with_name("before").rename(path)
    blocks(path)[0].write_bytes(notes)
    with open_small(path) as store:
        assert store.stats()["delayed"] == {0: 20}
        assert store.deliver() == 20
        assert bodies(store) == [b"%d" % n for n in range(20)]


def test_table_of_progress_that_is_lost_is_found_in_the_log(path, late, now):
    with open_small(path) as store:
        for n in range(20):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS + n)
        late(HOUR_MS + 9)
        store.deliver()
        left = keys(store)
    for file in (path / "config").glob("delayOffset*"):
        file.unlink()
    with open_small(path) as store:
        assert keys(store) == left
        late(2 * HOUR_MS)
        store.deliver()
        assert len(bodies(store)) == 20


def test_waiting_messages_are_carried_forward_and_keep_their_time(path, late, now):
    with open_small(path, file_reserved_time_h=72) as store:
        store.put("T", b"wait", queue_id=3, keys=("k",), deliver_at_ms=now + 30 * DAY_MS)
        for n in range(5):
            store.put("T", b"%d" % n, keys=("gone",), deliver_at_ms=now + HOUR_MS)
        store.put("T", b"cancelled", keys=("c",), deliver_at_ms=now + 30 * DAY_MS)
        assert store.cancel("T", "c")
        while store.wrote_position < 4 * LOG_BYTES:
            store.put("other", bytes(1000))
        late(2 * HOUR_MS)
        assert store.deliver() == 5
        late(4 * DAY_MS)
        store.dispatch()
        store.flush()
        assert store.clean().segments >= 3
        assert store.stats()["delayed"] == {0: 1} and keys(store) == ["k"]
        late(30 * DAY_MS - HOUR_MS)
        assert store.deliver() == 0
    with open_small(path, file_reserved_time_h=72) as store:
        assert keys(store) == ["k"]
        late(30 * DAY_MS)
        assert (store.deliver(), store.deliver()) == (1, 0)
        (message,) = store.get("T", 3, 0).messages
        assert bytes(message.body) == b"wait"


def test_a_carried_message_is_cancelled_and_moved_like_any_other(path, late, now):
    with open_small(path, file_reserved_time_h=72) as store:
        for key in "ab":
            store.put("T", key.encode(), keys=(key,), deliver_at_ms=now + 30 * DAY_MS)
        while store.wrote_position < 3 * LOG_BYTES:
            store.put("other", bytes(1000))
        late(4 * DAY_MS)
        store.dispatch()
        store.flush()
        assert store.clean().segments >= 2
        assert store.cancel("T", "a") and store.reschedule("T", "b", now + 31 * DAY_MS)
        assert not store.cancel("T", "a")
        late(30 * DAY_MS)
        assert store.deliver() == 0
        late(31 * DAY_MS)
        assert store.deliver() == 1
        assert bodies(store) == [b"b"]


def test_a_queue_that_cannot_be_made_holds_up_nobody(path, late, now):
    with open_small(path, max_queues=4) as store:
        store.put("A", b"a")
        store.put("T", b"no queue", deliver_at_ms=now + HOUR_MS)
        store.put("B", b"b")
        store.put("C", b"c")
        store.put("A", b"queue", deliver_at_ms=now + HOUR_MS + 1)
        late(2 * HOUR_MS)
        assert store.deliver() == 1
        assert bodies(store, "A") == [b"a", b"queue"]
        assert [bytes(m.body) for m in store.pending("T")] == [b"no queue"]


def test_clock_that_was_set_back_delivers_nothing_early(path, late, now):
    with open_small(path) as store:
        store.put("T", b"x", deliver_at_ms=now + HOUR_MS)
        late(-DAY_MS)
        assert store.deliver() == 0
        late(HOUR_MS)
        assert store.deliver() == 1


def test_a_rebuilt_queue_has_the_same_times(path, late, now):
    with open_small(path) as store:
        for n in range(10):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS + n)
        late(HOUR_MS + 4)
        store.deliver()
        left = keys(store)
    shutil.rmtree(path / "consumequeue")
    shutil.rmtree(path / "index")
    with open_small(path) as store:
        assert keys(store) == left
        late(2 * HOUR_MS)
        store.deliver()
        assert bodies(store) == [b"%d" % n for n in range(10)]


def test_entries_without_a_time_are_delivered_at_the_records_time(path, late, now):
    """RocketMQ rebuilds the timer's queue with hashes of tags in the place of due times."""
    with open_small(path) as store:
        for n in range(4):
            store.put("T", b"%d" % n, tags="A", deliver_at_ms=now + HOUR_MS - n)
        store.dispatch()
    (queue,) = (path / "consumequeue" / SCHEDULE / str(TIMER)).iterdir()
    with queue.open("r+b") as file:
        for n in range(4):
            file.seek(20 * n + 12)
            file.write((65 if n % 2 else 0).to_bytes(8, "big"))
    with open_small(path) as store:
        assert store.deliver() == 0
        late(HOUR_MS)
        assert store.deliver() == 4
        assert bodies(store) == [b"3", b"2", b"1", b"0"]


def test_topics_of_the_timer_are_closed_to_programs(path, now):
    with open_small(path) as store:
        for queue_id in (TIMER, ENDS):
            with pytest.raises(cystore.MessageIllegalError, match="reserved"):
                store.put(SCHEDULE, b"", queue_id=queue_id, properties={"REAL": "T"})
        for name in ("DELAY_DUE", "DELAY_SOURCE"):
            with pytest.raises(cystore.MessageIllegalError, match="reserved"):
                store.put("T", b"", properties={name: "1"})
        store.put("T", b"", deliver_at_ms=now + HOUR_MS)
        with pytest.raises(cystore.StoreError):
            store.delete_topic(SCHEDULE)


def test_a_store_whose_messages_nobody_delivers_says_so(path, late, now, caplog):
    with open_small(path) as store:
        assert store.stats()["delayed_overdue_ms"] == 0
        store.put("T", b"", deliver_at_ms=now + HOUR_MS)
        store.dispatch()
        assert store.stats()["delayed_overdue_ms"] == 0
        late(HOUR_MS + 60_000)
        assert 60_000 <= store.stats()["delayed_overdue_ms"] < 120_000
        assert store.maintenance.delayed
        found = {metric.name: metric.samples for metric in metrics(store)}
        assert found["cystore_delayed_overdue_seconds"][0][1] >= 60
        assert command("info", path, SETTINGS)[1].count("NOBODY DELIVERS") == 1
        assert "NOBODY" not in caplog.text, "nobody was late when this handle looked"
        for services, times in (("none", 1), ("schedule", 0)):
            caplog.clear()
            with open_small(path, services=services) as other:
                for _ in range(3):
                    other.put("T", b"", delay_ms=HOUR_MS)
                other.put_many([cystore.Message(topic="T", body=b"", delay_ms=HOUR_MS)])
                assert caplog.text.count("NOBODY DELIVERS") == times
        store.deliver()
        assert store.stats()["delayed_overdue_ms"] == 0
        assert "NOBODY DELIVERS" not in command("info", path, SETTINGS)[1]
