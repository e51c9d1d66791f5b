"""Goal: a message that comes again is delivered at each of its times, once, until its end or its cancellation, and by
its rule at times that were missed (I9). Method: small stores with a clock that the test turns; kills are in
tests/crash."""

from __future__ import annotations

import pytest

import cystore
from cystore.services.delay.recurring import Every
from tests.support.checks import check_closed
from tests.support.cleaning import filled
from tests.support.small_stores import SETTINGS, open_small
from tests.unit.services.test_timer import DAY_MS, HOUR_MS, bodies, keys

MINUTE_MS = 60_000


def times(store, begin_ms):
    """When the delivered messages were due, in minutes."""
    found = [message for message in store.scan() if message.topic == "T"]
    return [(int(message.properties["DELAY_AT"]) - begin_ms) // MINUTE_MS for message in found]


def deliver(store):
    """Delivers what is due, and what becomes due by that."""
    done = 0
    while more := store.deliver():
        done += more
    return done


@pytest.mark.parametrize(
    ("every", "late_min", "delivered", "following"),
    [
        (Every(MINUTE_MS, "once", 0), 0, [0], 1),
        (Every(MINUTE_MS, "once", 0), 5, [5], 6),
        (Every(MINUTE_MS, "all", 0), 5, [0, 1, 2], 3),  # at most three at once
        (Every(MINUTE_MS, "all", 0), 1, [0, 1], 2),
        (Every(MINUTE_MS, "skip", 0), 5, [5], 6),  # the last one is not late
        (Every(60 * MINUTE_MS, "skip", 0), 125, [], 180),
        (Every(60 * MINUTE_MS, "skip", 0), 121, [120], 180),
        (Every(MINUTE_MS, "once", 3 * MINUTE_MS), 2, [2], 3),
        (Every(MINUTE_MS, "once", 3 * MINUTE_MS), 9, [3], None),
        (Every(MINUTE_MS, "all", MINUTE_MS), 9, [0, 1], None),
        (Every(MINUTE_MS, "skip", 3 * MINUTE_MS), 9, [], None),
        (Every(MINUTE_MS, "once", 1), 0, [0], None),
    ],
)
def test_the_times_of_a_delivery(every, late_min, delivered, following):
    begin_ms = 1_000_000_000
    until_ms = every.until_ms and begin_ms + every.until_ms
    found, next_ms = every._replace(until_ms=until_ms).plan(begin_ms, begin_ms + late_min * MINUTE_MS, 3)
    assert [(one - begin_ms) // MINUTE_MS for one in found] == delivered
    assert next_ms == (None if following is None else begin_ms + following * MINUTE_MS)


def test_it_comes_again_until_its_end(path, late, now):
    first = now + HOUR_MS
    with open_small(path) as store:
        put = store.put("T", b"body", keys=("k",), tags="A", properties={"p": "v"}, queue_id=3, flag=7,
                        deliver_at_ms=first, every_ms=MINUTE_MS, until_ms=first + 2 * MINUTE_MS)  # fmt: skip
        (waiting,) = store.pending("T")
        assert (waiting.deliver_at_ms, waiting.every_ms) == (first, MINUTE_MS)
        assert waiting.physical_offset == put.physical_offset
        assert store.deliver() == 0
        for number in range(3):
            late(HOUR_MS + number * MINUTE_MS)
            assert (store.deliver(), store.deliver()) == (1, 0)
            assert len(keys(store)) == (number < 2)
        late(DAY_MS)
        assert store.deliver() == 0 and store.stats()["delayed"] == {}
        messages = store.get("T", 3, 0).messages
        assert [int(m.properties["DELAY_AT"]) - first for m in messages] == [0, MINUTE_MS, 2 * MINUTE_MS]
        for message in messages:
            assert (bytes(message.body), message.keys, message.tags, message.flag) == (
                b"body",
                ("k",),
                "A",
                7,
            )
            assert message.properties["p"] == "v" and "DELAY_EVERY" not in message.properties
    check_closed(path, SETTINGS)


@pytest.mark.parametrize(
    ("missed", "delivered"), [("once", [100]), ("all", list(range(101))), ("skip", [100])]
)
def test_missed_times_by_their_rule(path, late, now, missed, delivered):
    with open_small(path) as store:
        store.put("T", b"1", deliver_at_ms=now + HOUR_MS, every_ms=MINUTE_MS, missed=missed)
        store.put("T", b"2", deliver_at_ms=now + 5 * HOUR_MS)
    late(HOUR_MS + 100 * MINUTE_MS)
    with open_small(path) as store:
        assert deliver(store) == len(delivered)
        assert times(store, now + HOUR_MS) == delivered
        assert next(store.pending()).deliver_at_ms - now == HOUR_MS + 101 * MINUTE_MS
    check_closed(path, SETTINGS)


def test_it_is_cancelled_and_moved_like_any_other(path, late, now):
    with open_small(path) as store:
        for key in ("a", "b"):
            store.put("T", key.encode(), keys=(key,), every_ms=HOUR_MS)
        assert store.reschedule("T", "b", now + 30 * MINUTE_MS)
        late(31 * MINUTE_MS)
        assert deliver(store) == 1 and bodies(store) == [b"b"]
        assert store.cancel("T", "b") and not store.cancel("T", "b")
        late(3 * HOUR_MS)
        assert deliver(store) == 1 and keys(store) == ["a"], "once for all that were missed"
    with open_small(path) as store:
        assert store.cancel("T", "a")
        late(DAY_MS)
        assert store.deliver() == 0 and keys(store) == []


def test_at_most_so_many_are_delivered(path, late, now):
    with open_small(path) as store:
        for body in (b"1", b"2"):
            store.put("T", body, delay_ms=1, every_ms=MINUTE_MS, missed="all")
        late(10 * MINUTE_MS)
        assert [store.deliver(max_messages=most) for most in (1, 3, 5)] == [1, 3, 5]


def test_a_queue_that_cannot_be_made_ends_no_series(path, late, now):
    with open_small(path, max_queues=3) as store:
        store.put("T", b"1", delay_ms=1, every_ms=HOUR_MS)  # its queue is not there
        store.put("U", b"", queue_id=0)
        store.put("V", b"", queue_id=0)
        late(MINUTE_MS)
        assert deliver(store) == 0
        (waiting,) = store.pending("T")
        assert waiting.every_ms == HOUR_MS


def test_carried_forward_it_still_comes_again(path, late, now):
    with open_small(path, file_reserved_time_h=0) as store:
        store.put("T", b"1", keys=("k",), delay_ms=HOUR_MS, every_ms=HOUR_MS)
        filled(store)
        assert store.clean().segments > 0
        late(HOUR_MS + 1000)
        assert deliver(store) == 1
        assert [one.every_ms for one in store.pending("T")] == [HOUR_MS]


@pytest.mark.parametrize(
    "given",
    [
        {"every_ms": 0},
        {"every_ms": 999},
        {"every_ms": "1h"},
        {"every_ms": 1 << 60},
        {"every_ms": 1000, "missed": "never"},
        {"every_ms": 1000, "until_ms": 1},
        {"every_ms": 1000, "delay_level": 1},
        {"every_ms": 1000, "dedup_key": "k"},
        {"every_ms": 1000, "expires_at_ms": 1 << 45},
        {"every_ms": 1000, "deliver_at_ms": 1, "delay_ms": 1},
        {"every_ms": 1000, "delay_ms": -1},
        {"until_ms": 1 << 45},
        {"properties": {"DELAY_EVERY": "1000 once 0"}},
    ],
)
def test_what_makes_no_sense_is_refused_and_nothing_is_appended(path, given):
    with open_small(path) as store:
        with pytest.raises(cystore.MessageIllegalError):
            store.put("T", b"", **given)
        with pytest.raises(cystore.MessageIllegalError):
            store.put("SCHEDULE_TOPIC_XXXX", b"", every_ms=1000)
        assert store.wrote_position == 0
