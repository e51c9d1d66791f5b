"""Goal: a delayed message does not keep the log from being cleaned: it is carried forward when its segment expires,
and is delivered once, at its time (I7, I9). Method: small stores with a clock that the test turns, cleaned while
messages wait."""

from __future__ import annotations

import json
import os
import re
import shutil

import pytest

import cystore
from cystore._native.derived.transfer import delivered_copy, leave_source_out
from cystore._native.record.message import due_message
from cystore.layout import FLAGS
from tests.support.checks import check_closed, everything
from tests.support.clock import turn
from tests.support.process import Process
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # its kernels are those of test_schedule.py

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
DAY_MS = 86_400_000
LEVELS = {"message_delay_level": "1s 1h 2d 30d", "file_reserved_time_h": 72}
HOUR, TWO_DAYS, MONTH = 2, 3, 4
POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
RUN = 256  # between the queue ids of a level


@pytest.fixture
def late(monkeypatch):
    """Turns the clock by which stores are cleaned and deliver: `late(days)` from now. Puts have the real one."""
    return lambda days: turn(monkeypatch, int(days * DAY_MS))


def opened(path, **more):
    return open_small(path, **{**LEVELS, **more})


def grow(store, segments=3):
    """Fills so many segments with messages of another topic."""
    until = (store.stats()["appended"] // LOG_BYTES + segments) * LOG_BYTES
    while store.stats()["appended"] <= until:
        store.put("other", bytes(1_000))


def clean(store):
    store.dispatch()
    store.flush()
    return store.clean()


def delivered(store, topic="T"):
    return [
        m for queue_id in store.topics().get(topic, {}) for m in store.get(topic, queue_id, 0, 32).messages
    ]


def waiting(store):
    """Queue ids of delayed messages with what waits there."""
    progress = store._attached().delivered
    return {
        queue_id: count
        for queue_id, slot in progress.slots().items()
        if (count := store._attached().control.queue_next(slot) - progress.offset(slot))
    }


def test_one_message_delayed_by_a_month_does_not_pin_the_log(path, late):
    """Seen: the log kept every segment from the message's own on, for a month."""
    with opened(path) as store:
        put = store.put("T", b"body", queue_id=7, keys=("k1", "k2"), tags="A", properties={"a": "b"}, flag=3,
                        delay_level=MONTH)  # fmt: skip
        grow(store, 5)
        born_ms = store.read(put.physical_offset).born_timestamp_ms
        late(4)
        done = clean(store)
        assert done.segments == 5
        assert done.min_physical_offset == 5 * LOG_BYTES > put.physical_offset
        assert store.stats()["delayed"] == {MONTH: 1}
        late(29.99)
        assert store.deliver() == 0
        late(30)
        assert (store.deliver(), store.deliver()) == (1, 0)
        assert store.stats()["delayed"] == {}
        (message,) = delivered(store)
        assert (bytes(message.body), message.queue_id, message.flag) == (b"body", 7, 3)
        assert (message.keys, message.tags, message.born_timestamp_ms) == (("k1", "k2"), "A", born_ms)
        assert {k: v for k, v in message.properties.items() if k != "DELAY_SOURCE"} == {
            "KEYS": "k1 k2", "TAGS": "A", "a": "b", "DELAY": "4", "REAL_TOPIC": "T", "REAL_QID": "7",
        }  # fmt: skip
    check_closed(path, {**SETTINGS, **LEVELS})


def test_a_carried_message_keeps_its_due_time(path, late):
    """It stands in the record, so that a rebuilt queue has it too."""
    with opened(path) as store:
        put = store.put("T", b"", delay_level=MONTH)
        grow(store)
        late(4)
        clean(store)
        due_ms = put.store_timestamp_ms + 30 * DAY_MS
        store.dispatch()
        assert store._attached().scheduler.next_due_ms() == due_ms
        (carried,) = store.get(SCHEDULE, RUN + MONTH - 1, 0).messages
        assert carried.properties["DELAY_DUE"] == str(due_ms)
        assert carried.properties["DELAY_SOURCE"] == f"3:0:{put.physical_offset}:{put.store_timestamp_ms}"
        assert store._attached().queues.find(SCHEDULE, RUN + MONTH - 1).entry(0).tags_code == due_ms
    shutil.rmtree(path / "consumequeue")
    with opened(path) as store:
        store.dispatch()
        assert store._attached().scheduler.next_due_ms() == due_ms
        late(30)
        assert store.deliver() == 1
    check_closed(path, {**SETTINGS, **LEVELS})


@pytest.mark.parametrize("more", [{}, POOL], ids=["", "pool"])
@pytest.mark.parametrize("dispatches", [True, False])
def test_a_carried_message_is_not_overtaken_before_it_is_dispatched(
    path, late, monkeypatch, dispatches, more
):
    """Seen: another process carried an overdue message before this one got the lock to deliver, and this one delivered
    the next message of its level. With a pool the carried message may not even be committed."""
    with opened(path, **more) as store:
        store.put("T", b"first", delay_level=TWO_DAYS)
        grow(store)
        store.put("T", b"second", delay_level=TWO_DAYS)
        late(4)
        store.flush()
        store.dispatch()
        store._attached().delivered.save()
        scheduler, carrier = store._attached().scheduler, store._attached().cleaner._carrier
        helps, carried = scheduler._dispatch_help.run, []

        def help_dispatch(**how):
            if dispatches or not carried:
                helps(**how)
            carried.append(carrier.run(LOG_BYTES))

        with monkeypatch.context() as patch:
            patch.setattr(scheduler._dispatch_help, "run", help_dispatch)
            assert store.deliver() == (2 if dispatches else 0)
            assert carried == [1, 0]
        assert store.deliver() == (0 if dispatches else 2)
        store.flush()
        assert [bytes(message.body) for message in delivered(store)] == [b"first", b"second"]


@pytest.mark.parametrize("more", [{}, POOL], ids=["", "pool"])
def test_all_that_waits_is_carried_in_one_clean(path, late, more):
    """Seen: with a pool a clean ended with its first batch, because no dispatcher sees what is not committed."""
    with opened(path, **more) as store:
        for _ in range(4):
            store.put_many([cystore.Message(topic="T", body=b"", delay_level=MONTH)] * 200)
            grow(store, 1)
        grow(store)
        late(4)
        assert clean(store).segments > 3
        assert waiting(store) == {RUN + MONTH - 1: 800}
        late(30)
        store.dispatch()
        assert store.deliver() == 800
    check_closed(path, {**SETTINGS, **LEVELS})


@pytest.mark.unsanitized  # preloads a library of its own
def test_what_waits_leaves_in_the_order_of_due_times_however_often_it_was_carried(tmp_path):
    """Twenty days of puts, cleaned every day; the log never holds more than its retention and what waits. A queue is
    delivered in its order: what is carried later and due earlier goes to another queue of its level."""
    clock = ShiftedClock(tmp_path)
    with Process(clock.environment({**os.environ})) as process:
        process.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(tmp_path / "s"),
            settings={**SETTINGS, **LEVELS, "message_delay_level": "1s 5d 12d", "max_clock_jump_s": 60},
        )
        process.do("segments, runs, early = [], set(), []")
        for day in range(36):
            if day < 20:
                process.do(
                    "for level in (2, 3):\n"
                    "    store.put('T', b'%d' % (day + (5 if level == 2 else 12)), delay_level=level)",
                    day=day,
                )
            process.do(
                "for n in range(40): store.put('other', bytes(1000))\n"
                "store.dispatch(); store.flush(); store.deliver(); store.clean()\n"
                "s = store.stats(); segments.append((s['wrote'] - s['min_physical_offset']) // 16384)\n"
                "runs |= set(store.topics().get('SCHEDULE_TOPIC_XXXX', ()))"
            )
            clock.passed_ms += DAY_MS
        assert max(process.do("segments")) <= 4 * 3 + 3
        runs = process.do("sorted(runs)")
        assert {queue_id % RUN for queue_id in runs} == {1, 2}
        assert 4 <= len(runs) <= 2 + 2 + 5
        process.do(
            "found = [m for m in store.scan(store.get('T', 0, 0).min_offset and None) if m.topic == 'T']"
        )
        assert process.do("store.stats()['delayed']") == {}
        assert process.do("store.next_queue_offset('T', 0)") == 40
        process.do("store.close(); report = cystore.open(path, **settings).recovery")
        assert process.do("report.clean")


def test_the_last_days_of_a_run_are_delivered_in_order(path, late):
    """Three generations wait in three queues of one level; all are due at once."""
    with opened(path) as store:
        for n in range(9):
            store.put("T", b"%d" % n, delay_level=MONTH)
            if n % 3 == 2:
                grow(store)
                late(4)
                clean(store)
        assert waiting(store) == {RUN + MONTH - 1: 9} or len(waiting(store)) > 1
        late(31)
        store.dispatch()
        assert store.deliver() == 9
        assert [int(bytes(m.body)) for m in delivered(store)] == list(range(9))


def test_levels_keep_their_own_runs(path, late):
    with opened(path) as store:
        for level in (TWO_DAYS, MONTH, TWO_DAYS, MONTH, HOUR):
            store.put("T", b"%d" % level, delay_level=level)
        grow(store)
        store.deliver()
        late(1)
        store.configure(file_reserved_time_h=1)
        assert clean(store).segments == 3
        assert waiting(store) == {RUN + HOUR - 1: 1, RUN + TWO_DAYS - 1: 2, RUN + MONTH - 1: 2}
        assert store.stats()["delayed"] == {HOUR: 1, TWO_DAYS: 2, MONTH: 2}
        assert store.deliver() == 1
        late(2.1)
        assert store.deliver() == 2
        late(30.1)
        assert store.deliver() == 2
        assert [int(bytes(m.body)) for m in delivered(store)] == [HOUR, TWO_DAYS, TWO_DAYS, MONTH, MONTH]


def test_one_turn_of_the_service_carries_too(path, late):
    with opened(path, delete_when=";".join(f"{hour:02d}" for hour in range(24))) as store:
        store.put("T", b"", delay_level=MONTH)
        grow(store, 4)
        store.flush()
        late(4)
        assert store.clean_due().done >= 4
        assert store.stats()["min_physical_offset"] >= 4 * LOG_BYTES
        assert store.stats()["delayed"] == {MONTH: 1}


def test_i7_a_carried_message_is_durable_before_its_segment_goes(path, late, monkeypatch):
    def stands_still(self, position, timeout_ms=None):
        raise cystore.StoreTimeoutError("not flushed")

    with opened(path) as store:
        store.put("T", b"", delay_level=MONTH)
        grow(store)
        store.dispatch()
        store.flush()
        late(4)
        with monkeypatch.context() as stopped:
            stopped.setattr(type(store._attached().flusher), "flush_to", stands_still)
            with pytest.raises(cystore.StoreTimeoutError):
                store.clean()
            assert store.stats()["min_physical_offset"] == 0
        wrote = store.wrote_position
        assert store.clean().segments == 3
        assert store.wrote_position == wrote, "it is carried once"


def test_i9_a_copy_that_came_after_the_flush_keeps_its_source(path, late, monkeypatch):
    """Another process delivers, or carries, between the flush of a clean and its look at what waits: a power cut
    could have taken the copy back after its source was removed."""
    with opened(path) as store, opened(path) as other:
        store.put("T", b"", delay_level=HOUR)
        grow(store)
        store.dispatch()
        store.flush()
        late(4)
        carrier = store._attached().cleaner._carrier
        monkeypatch.setattr(type(carrier), "run", lambda self, end, until_s=None: 0)
        flusher = store._attached().derived_flusher
        flush_log = type(flusher).flush_log

        def flushed(self):
            flush_log(self)
            assert other.deliver() == 1

        monkeypatch.setattr(type(flusher), "flush_log", flushed)
        assert store.clean().segments == 0
        monkeypatch.setattr(type(flusher), "flush_log", flush_log)
        assert store.clean().segments == 3


def test_a_full_disk_forbids_no_carrying(path, late):
    """It is what makes space."""
    with opened(path) as store:
        store.put("T", b"", delay_level=MONTH)
        grow(store)
        store.dispatch()
        store.flush()
        late(4)
        control = store._attached().control
        control.set_flag(FLAGS["FLAG_DISK_FULL"][0])
        assert store.clean().segments == 3
        assert store.stats()["delayed"] == {MONTH: 1}


def test_what_waits_nearly_everywhere_is_not_moved_about(path, late):
    """To carry it would free next to nothing."""
    with opened(path) as store:
        for n in range(60):
            store.put("T", bytes(1_000), keys=f"k{n}", delay_level=MONTH)
        store.dispatch()
        store.flush()
        wrote = store.wrote_position
        late(4)
        assert store.clean().segments == 0
        assert store.wrote_position == wrote
        late(31)
        assert store.deliver() == 60
        assert clean(store).segments >= 4


def test_a_message_without_room_for_its_due_time_keeps_its_segment(path, late, caplog):
    """RocketMQ may have written one; ours are refused when they are put."""
    where = b"DELAY\x014\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
    with opened(path, mapped_file_size_commit_log_bytes=64 * 1024) as store:
        store.put("T", b"first", delay_level=MONTH)
        source = store.get(SCHEDULE, MONTH - 1, 0).messages[0]
        large = due_message(source, SCHEDULE, MONTH - 1, where + b"\x02a\x01" + b"x" * 32_700)
        store._attached().appender.put_with(store._attached().appender.policy, [large])
        for _ in range(200):
            store.put("other", bytes(1_000))
        late(4)
        assert (clean(store).segments, clean(store).segments) == (0, 0)
        assert caplog.text.count("no room for its due time") == 1
        late(31)
        assert store.deliver() == 2
        assert clean(store).segments == 4


def test_a_property_of_a_user_is_no_due_time(path, late):
    """In a message that RocketMQ stored in a queue of its own; `put` refuses the name."""
    with opened(path) as store:
        with pytest.raises(cystore.MessageIllegalError, match="reserved"):
            store.put("T", b"", properties={"DELAY_DUE": "1"})
        store.put("T", b"", delay_level=MONTH)
        source = store.get(SCHEDULE, MONTH - 1, 0).messages[0]
        text = b"DELAY\x014\x02REAL_TOPIC\x01T\x02REAL_QID\x010\x02DELAY_DUE\x011"
        store._attached().appender.put_with(
            store._attached().appender.policy, [due_message(source, SCHEDULE, MONTH - 1, text)]
        )
        assert store.deliver() == 0
        grow(store)
        late(4)
        assert clean(store).segments == 3
        assert store.deliver() == 0
        late(31)
        assert store.deliver() == 2


def test_i9_what_rocketmq_delivered_of_a_carried_message_counts(path, late):
    """It knows nothing of carrying: with a table from before it delivers the first copy, without naming it."""
    with opened(path) as store:
        for n in range(3):
            store.put("T", b"%d" % n, delay_level=HOUR)
        first = store.get(SCHEDULE, HOUR - 1, 0).messages
        grow(store)
        late(4)
        assert clean(store).segments == 3
        parts = store._attached()
        parts.delivered.begin()
        copies = [delivered_copy(message) for message in first[:2]]
        for copy in copies:
            leave_source_out(copy)
        store.put_many(copies)
        assert store.deliver() == 1
        assert sorted(bytes(m.body) for m in delivered(store)) == [b"0", b"1", b"2"]
        assert store.stats()["delayed"] == {}


@pytest.mark.parametrize("what", ["removed", "RocketMQ's", "older"])
def test_i9_progress_that_is_lost_is_found_in_the_log(path, late, what):
    with opened(path) as store:
        for n in range(4):
            store.put("T", b"%d" % n, delay_level=MONTH)
    file = path / "config" / "delayOffset.json"
    older = file.read_bytes()
    with opened(path) as store:
        grow(store)
        late(4)
        assert store._attached().cleaner._carrier.run(LOG_BYTES) == 4
        late(31)
        store.dispatch()
        assert store.deliver(max_messages=2) == 2
    table = re.sub(r"(\d+):", r'"\1":', file.read_text())
    assert json.loads(re.sub(r'""|"\s*"', '"', table).replace('""', '"'))["offsetTable"] == {
        str(MONTH): 4, str(RUN + MONTH): 2,
    }  # fmt: skip
    for copy in (path / "config").glob("delayOffset*"):
        copy.unlink()
    if what == "older":
        file.write_bytes(older)
    elif what == "RocketMQ's":
        file.write_text('{\n\t"offsetTable":{4:1\n\t}\n}')
    with opened(path) as store:
        assert store.deliver() == 2
        assert sorted(bytes(m.body) for m in delivered(store)) == [b"0", b"1", b"2", b"3"]


def test_info_says_what_keeps_the_log(path, late, capsys):
    with opened(path) as store:
        store.put("T", b"", delay_level=MONTH)
        grow(store)
        late(4)
        clean(store)
        assert everything(store)[SCHEDULE, RUN + MONTH - 1]
        needs = {need.owner: need.position for need in store._attached().cleaner.needs()}
        assert needs["a delayed message"] >= store.stats()["min_physical_offset"]
