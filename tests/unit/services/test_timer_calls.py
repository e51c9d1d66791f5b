"""Goal: a time of its own goes with the other arguments of a put: an expiry, a key that is put once, a transaction.
Method: small stores with a clock that the test turns."""

from __future__ import annotations

import shutil

import pytest

import cystore
from cystore.services.delay import withdraw
from tests.support.checks import check_closed
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small
from tests.unit.services.test_timer import DAY_MS, HOUR_MS, YEAR_MS, bodies, keys


def test_a_message_does_not_expire_while_it_waits(path, late, now):
    """A waiting message could not be cancelled by its key once its `expires_at_ms` was over."""
    with open_small(path) as store:
        for n in range(3):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS, expires_at_ms=now - 1)
        store.put("T", b"3", keys=("k3",), deliver_at_ms=now + HOUR_MS, expires_at_ms=now + 3 * HOUR_MS)
        assert keys(store) == ["k0", "k1", "k2", "k3"]
        assert store.cancel("T", "k0") and store.reschedule("T", "k1", now + 2 * HOUR_MS)
        late(HOUR_MS)
        assert store.deliver() == 2
        assert bodies(store) == [b"3"], "readers leave out what expired before its delivery"
        late(4 * HOUR_MS)
        assert (store.deliver(), bodies(store)) == (1, [b"3"])


def test_what_left_stays_gone_without_the_timers_files(path, now):
    """All had left before the close, so the new files of the timer say nothing of them."""
    with open_small(path) as store:
        for n in range(2):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS)
            assert store.cancel("T", f"k{n}")
    shutil.rmtree(path / "timer")
    with open_small(path) as store:
        assert not store.cancel("T", "k0") and not store.reschedule("T", "k1", now + 2 * HOUR_MS)
        store.put("T", b"2", keys=("k0",), deliver_at_ms=now + HOUR_MS)
        assert store.cancel("T", "k0") and not store.cancel("T", "k0")
        assert keys(store) == [] and store.stats()["delayed"] == {}
    check_closed(path, SETTINGS)


def test_a_key_counts_while_its_message_waits_whatever_the_window(path, late, now):
    with open_small(path) as store:

        def once(body, window_ms=60_000, **more):
            return store.put_once("T", body, dedup_key="k", window_ms=window_ms, **more)

        first = once(b"1", deliver_at_ms=now + HOUR_MS, keys=("a",))
        assert first.is_new
        assert once(b"2", delay_ms=5) == (first.place, False)
        assert store.put("T", b"2", dedup_key="k", deliver_at_ms=now + 2 * HOUR_MS) == first.place
        assert store.put_once("U", b"2", dedup_key="k", window_ms=60_000, delay_ms=DAY_MS).is_new
        late(HOUR_MS // 2)
        assert not once(b"2").is_new, "it still waits"
        assert store.reschedule("T", "a", now + 2 * HOUR_MS)
        moved = next(store.pending("T"))
        again = once(b"2")
        assert (again.place.physical_offset, again.is_new) == (moved.physical_offset, False)
        late(2 * HOUR_MS)
        assert store.deliver() == 1
        assert not once(b"2", 3 * HOUR_MS, delay_ms=5).is_new, "it was delivered within the window"
        late(4 * HOUR_MS)
        second = once(b"2", delay_ms=HOUR_MS, keys=("b",))
        assert second.is_new and store.cancel("T", "b")
        assert once(b"3", delay_ms=HOUR_MS).is_new, "it was cancelled"
        assert not once(b"4").is_new
        late(6 * HOUR_MS)
        assert store.deliver() == 1 and bodies(store) == [b"1", b"3"]
    check_closed(path, SETTINGS)


def test_a_committed_message_waits_for_its_time(path, late, now):
    with open_small(path) as store:
        half = store.begin("T", b"a", queue_id=3, keys=("a",), tags="X", deliver_at_ms=now + HOUR_MS)
        over = store.begin("T", b"b", deliver_at_ms=now + 60_000)
        never = store.begin("T", b"c", delay_ms=HOUR_MS)
        assert keys(store) == [] and store.stats()["delayed"] == {}
        late(120_000)
        place = store.commit(over)
        store.rollback(never)
        assert bodies(store) == [b"b"] and place.queue_offset == 0
        put = store.commit(half, flush="sync")
        (waiting,) = store.pending("T")
        assert (waiting.physical_offset, waiting.queue_id, waiting.deliver_at_ms) == (
            put.physical_offset, 3, now + HOUR_MS,
        )  # fmt: skip
        with pytest.raises(cystore.TransactionError, match="it was committed"):
            store.commit(half)
        assert store.deliver() == 0
        late(HOUR_MS)
        assert (store.deliver(), store.deliver()) == (1, 0)
        (message,) = store.get("T", 3, 0).messages
        assert (bytes(message.body), message.keys, message.tags) == (b"a", ("a",), "X")
        assert "TRAN_MSG" not in message.properties and message.deliver_at_ms is None
        cancelled = store.begin("T", b"d", keys=("d",), delay_ms=DAY_MS)
        store.commit(cancelled)
        assert store.cancel("T", "d") and store.open_transactions() == []
    check_closed(path, SETTINGS)


@pytest.mark.parametrize(
    "given",
    [{"delay_ms": -1}, {"delay_ms": 2 * YEAR_MS}, {"deliver_at_ms": 1, "delay_ms": 1}, {"body": 4000}],
)
def test_a_transaction_that_cannot_wait_is_not_begun(path, given):
    size = given.pop("body", 0)
    with open_small(path) as store:
        body = bytes(LOG_BYTES - size) if size else b""
        with pytest.raises(cystore.MessageIllegalError):
            store.begin("T" * 127, body, properties={"p": "v" * size}, **{"delay_ms": HOUR_MS, **given})
        assert store.wrote_position == 0


def test_put_and_put_many_write_the_same_record(path, now):
    """`put` has a shorter way for messages that are like nearly all, from the second one on."""
    kinds = [
        {},
        {"keys": "k"},
        {"keys": ("k",), "tags": "t"},
        {"tags": "t", "queue_id": 7},
        {"keys": ("a", "b")},
        {"keys": "ключ"},
        {"keys": "k" * 300},
        {"properties": {"p": "v"}},
        {"flag": 3, "queue_id": 0x7FFFFFFF},
    ]
    with open_small(path) as store:
        for topic in ("T", "T" * 127):
            for kind in [*kinds, *kinds]:
                due_ms = now + HOUR_MS
                one = store.put(topic, b"body", deliver_at_ms=due_ms, **kind)
                (many,) = store.put_many(
                    [cystore.Message(topic=topic, body=b"body", deliver_at_ms=due_ms, **kind)]
                )
                first, second = store.read(one.physical_offset), store.read(many.physical_offset)
                assert first.properties_bytes == second.properties_bytes, kind
                assert (first.topic, first.queue_id, first.flag, first.size_bytes) == (
                    second.topic, second.queue_id, second.flag, second.size_bytes,
                )  # fmt: skip
                assert one.queue_offset + 1 == many.queue_offset
        for given in ({"delay_ms": -1}, {"delay_ms": 2 * YEAR_MS}, {"deliver_at_ms": 1, "delay_ms": 1}):
            with pytest.raises(cystore.MessageIllegalError):
                store.put("T", b"body", keys="k", **given)
        with pytest.raises(cystore.MessageIllegalError, match="reserved"):
            store.put("SCHEDULE_TOPIC_XXXX", b"body", queue_id=255, deliver_at_ms=now + HOUR_MS)
        assert store.put("T", b"now", keys="k", deliver_at_ms=now - 1).queue_offset == 0
        assert store.stats()["delayed"] == {0: 8 * len(kinds)}


def test_a_cancellation_needs_no_thread_of_its_own(path, now, monkeypatch):
    """A signal handler cannot meet the lock of its own thread: no bytecode runs under it. Seen: a millisecond each."""
    with open_small(path) as store:
        for n in range(100):
            store.put("T", b"%d" % n, keys=(f"k{n}",), deliver_at_ms=now + HOUR_MS)
        store.dispatch()
        slow = []
        monkeypatch.setattr(withdraw, "undisturbed", lambda call: (slow.append(1), call())[1])
        begun = store.wrote_position
        for n in range(0, 100, 2):
            assert store.cancel("T", f"k{n}")
            assert store.reschedule("T", f"k{n + 1}", now + 2 * HOUR_MS)
        segments = (store.wrote_position - begun) // LOG_BYTES
        assert len(slow) <= segments + 1, "only where a segment ends"
        assert not store.cancel("T", "k0")
        assert keys(store) == [f"k{n}" for n in range(1, 100, 2)]
    check_closed(path, SETTINGS)
