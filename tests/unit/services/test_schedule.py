"""Goal: delayed messages reach their topic once, never early, never lost (I9), whatever becomes of the progress that
is noted. Method: small stores with a clock that the test turns; progress files removed, damaged, from before, and
from behind a power cut."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace

import pytest

import cystore
from cystore._native.derived.transfer import delivered_copy, leave_source_out
from cystore.layout import CONSTANTS
from tests.oracle.checkpoint import Checkpoint
from tests.oracle.log import lay_out
from tests.support.checks import check_closed, everything
from tests.support.cleaning import fill_disk
from tests.support.property import stores
from tests.support.recovery_stores import make_records
from tests.support.small_stores import SETTINGS, open_small

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
LEVELS = {"message_delay_level": "1s 5s 1m 2h"}
HOUR_MS = 3_600_000


def opened(path, **more):
    return open_small(path, **{**LEVELS, **more})


def sources(store, topic="T"):
    """The DELAY_SOURCE of each message of a topic."""
    found = [m for queue_id in store.topics().get(topic, {}) for m in store.get(topic, queue_id, 0).messages]
    return [message.properties["DELAY_SOURCE"] for message in found]


def write_delayed(path, *properties, file_bytes=256 * 1024):
    """A log of long due messages with these property strings, as another program may have written it; returns its
    settings."""
    bare = [
        replace(record, topic=SCHEDULE, raw_properties=text)
        for record, text in zip(make_records(len(properties), queues=1), properties, strict=True)
    ]
    log, records, _ = lay_out(bare, file_bytes)
    stores.write_log(path, log, records, Checkpoint(), clean=False)
    return stores.config(log) | LEVELS | {"services": "none"}


def fill(store, count=30, level=1):
    return [store.put("T", b"%d" % n, queue_id=n % 2, delay_level=level) for n in range(count)]


def saved(path):
    return json.loads((path / "config" / "delayOffset.json").read_text().replace("{1:", '{"1":'))


# ------------------------------------------------------------------------------------------------- put


def test_delayed_message_waits_in_its_levels_queue(path):
    with opened(path) as store:
        put = store.put("T", b"body", queue_id=7, keys=("k",), tags="A", properties={"a": "b"}, delay_level=3)
        assert store.get("T", 7, 0).status.name == "NO_MATCHED_LOGIC_QUEUE"
        (message,) = store.get(SCHEDULE, 2, 0).messages
        assert (message.physical_offset, message.queue_offset) == (put.physical_offset, 0)
        assert dict(message.properties) == {
            "KEYS": "k", "TAGS": "A", "a": "b", "DELAY": "3", "REAL_TOPIC": "T", "REAL_QID": "7",
        }  # fmt: skip
        assert message.delay_level == 3
        assert store.stats()["delayed"] == {3: 1}
        entry = store._attached().queues.find(SCHEDULE, 2).entry(0)
        assert entry.tags_code == put.store_timestamp_ms + 60_000
    check_closed(path, {**SETTINGS, **LEVELS})


def test_a_level_above_the_last_is_refused(path):
    """Seen: 99 was 18 without a word, so a message came hours too early or too late."""
    with opened(path) as store:
        for level in (5, 99, 0x7FFFFFFF):
            with pytest.raises(cystore.MessageIllegalError, match=f"delay_level: {level}.* 1 to 4 "):
                store.put("T", b"", delay_level=level)
            with pytest.raises(cystore.MessageIllegalError, match=f"delay_level: {level}.* 1 to 4 "):
                store.put_many([cystore.Message(topic="T", body=b"", delay_level=level)])
        assert store.topics() == {} and store.wrote_position == 0
        store.put("T", b"", delay_level=4)
        assert store.topics() == {SCHEDULE: {3: (0, 1)}}


def test_a_level_above_the_last_that_another_program_wrote_is_delivered(path):
    """RocketMQ's own broker takes it for the last one; a store with fewer levels than before has such records too."""
    with opened(path) as store:
        store.put("T", b"late", delay_level=4)
        store.configure(message_delay_level="1s")
    with open_small(path) as store:
        assert [m.delay_level for m in store.get(SCHEDULE, 3, 0).messages] == [4]


@pytest.mark.parametrize("level", [-1, True, 1.0, "1", None, 1 << 31, 1 << 70])
def test_delay_level_that_is_none_is_refused_and_nothing_is_appended(path, level):
    with opened(path) as store:
        with pytest.raises(cystore.MessageIllegalError, match="delay_level"):
            store.put("T", b"", delay_level=level)
        with pytest.raises(cystore.MessageIllegalError, match="delay_level"):
            cystore.Message(topic="T", body=b"", delay_level=level)
        assert store.wrote_position == 0


def test_put_many_mixes_levels_and_topics(path, late):
    levels = [0, 2, 1, 0, 2, 4]
    with opened(path) as store:
        puts = store.put_many(
            [cystore.Message(topic=f"T{n % 2}", body=b"%d" % n, queue_id=n, delay_level=level)
             for n, level in enumerate(levels)]
        )  # fmt: skip
        assert [p.queue_offset for p in puts] == [0, 0, 0, 0, 1, 0]
        assert store.stats()["delayed"] == {1: 1, 2: 2, 4: 1}
        late(6_000)
        assert store.deliver() == 3
        assert {t: q for t, q in store.topics().items() if t != SCHEDULE} == {
            "T0": {0: (0, 1), 2: (0, 1), 4: (0, 1)},
            "T1": {1: (0, 1), 3: (0, 1)},
        }


def test_topic_of_waiting_messages_is_nobodys_own(path):
    with opened(path) as store:
        for put in (
            lambda: store.put(SCHEDULE, b""),
            lambda: store.put(SCHEDULE, b"", delay_level=1),
            lambda: store.put_many([cystore.Message(topic=SCHEDULE, body=b"")]),
        ):
            with pytest.raises(cystore.MessageIllegalError, match=r"use|delay_level"):
                put()
        for name in ("DELAY", "REAL_TOPIC", "REAL_QID", "DELAY_SOURCE"):
            with pytest.raises(cystore.MessageIllegalError, match="reserved"):
                store.put("T", b"", properties={name: "1"})


def test_prepared_message_with_a_level_is_not_delayed_before_its_commit(path):
    with opened(path) as store:
        store.put_many([cystore.Message(topic="T", body=b"", sys_flag=4, delay_level=2)])
        (message,) = store.scan()
        assert (message.topic, dict(message.properties)) == ("T", {"DELAY": "2"})


def test_what_cannot_be_delivered_for_its_size_is_refused_when_it_is_put(path):
    room = CONSTANTS["DELAY_PROPERTY_ROOM"][0]
    with opened(path, mapped_file_size_commit_log_bytes=64 * 1024) as store:
        with pytest.raises(cystore.MessageIllegalError, match=r"properties: \d+ bytes, at most 32655"):
            store.put("T", b"", properties={"a": "x" * (32_767 - room)}, delay_level=1)
        with pytest.raises(cystore.MessageIllegalError, match="delivered, the record has"):
            store.put("T" * 127, bytes(64 * 1024 - 340), delay_level=1)
        assert store.wrote_position == 0


# --------------------------------------------------------------------------------------------- delivery


def test_delivered_message_is_the_one_that_was_put(path, late):
    with opened(path) as store:
        given = cystore.Message(
            topic="T", body=b"body", queue_id=3, keys=("k1", "k2"), tags="A", properties={"a": "b"}, flag=-7,
            sys_flag=1, born_timestamp_ms=12345, born_host="[2001:db8::1]:99", store_host="10.1.2.3:4",
            reconsume_times=5, unique_key="u", delay_level=1,
        )  # fmt: skip
        (put,) = store.put_many([given])
        late(1_000)
        assert store.deliver() == 1
        (message,) = store.get("T", 3, 0, tags="A").messages
        assert (message.body, message.keys, message.tags, message.flag) == (b"body", ("k1", "k2"), "A", -7)
        assert (message.born_timestamp_ms, message.born_host) == (12345, "[2001:db8:0:0:0:0:0:1]:99")
        assert (message.store_host, message.reconsume_times) == ("10.1.2.3:4", 5)
        assert (message.sys_flag & 1, message.unique_key, message.delay_level) == (1, "u", 1)
        assert dict(message.properties) == {
            "KEYS": "k1 k2", "TAGS": "A", "UNIQ_KEY": "u", "a": "b", "DELAY": "1", "REAL_TOPIC": "T", "REAL_QID": "3",
            "DELAY_SOURCE": f"0:0:{put.physical_offset}:{put.store_timestamp_ms}",
        }  # fmt: skip
        for key in ("k1", "k2", "u"):
            assert [m.physical_offset for m in store.query("T", key)] == [message.physical_offset]


def test_i9_nothing_is_delivered_before_it_is_due(path, late):
    with opened(path) as store:
        put = store.put("T", b"", delay_level=3)
        for ms in (0, 1_000, 40_000):
            late(ms)
            assert store.deliver() == 0
        assert store._attached().scheduler.next_due_ms() == put.store_timestamp_ms + 60_000
        late(60_000)
        assert (store.deliver(), store.deliver()) == (1, 0)


def test_order_is_that_of_due_times_and_within_a_level_that_of_the_puts(path, late):
    with opened(path, message_delay_level="5s 1s") as store:
        for n in range(20):
            store.put("T", b"%d" % n, delay_level=1 + n % 2)
        late(6_000)
        assert store.deliver() == 20
        bodies = [int(bytes(m.body)) for m in store.get("T", 0, 0).messages]
        assert bodies == [*range(1, 20, 2), *range(0, 20, 2)]


def test_bounds_of_one_call(path, late):
    with opened(path) as store:
        fill(store, 30)
        late(1_000)
        assert (store.deliver(max_messages=7), store.deliver(max_messages=7)) == (7, 7)
        assert store.deliver(timeout_s=float("inf"), max_messages=10) == 10
        assert store.stats()["delayed"] == {1: 6}
        assert (store.deliver(timeout_s=0), store.deliver()) == (6, 0)
        for wrong in ({"max_messages": 0}, {"max_messages": True}, {"max_messages": "1"}, {"timeout_s": -1},
                      {"timeout_s": "1"}, {"timeout_s": float("nan")}):  # fmt: skip
            with pytest.raises(cystore.StoreConfigError, match=r"max_messages|timeout_s"):
                store.deliver(**wrong)
    with pytest.raises(cystore.StoreClosedError):
        store.deliver()
    with opened(path, read_only=True) as store, pytest.raises(cystore.StoreNotWritableError):
        store.deliver()


def test_delivery_crosses_segments_and_makes_room_for_itself(path, late):
    with opened(path) as store:
        for n in range(60):
            store.put("T", bytes(2_000), keys=(f"k{n}",), delay_level=1)
        late(1_000)
        assert store.deliver() == 60
        assert [m.keys[0] for m in everything(store)["T", 0]] == [f"k{n}" for n in range(60)]
    check_closed(path, {**SETTINGS, **LEVELS})


def test_who_waits_for_the_topic_is_woken_by_the_service(path):
    with opened(path, message_delay_level="0s 1s", services="schedule") as store:
        put = store.put("T", b"", delay_level=2)
        assert store.wait("T", 0, 0, timeout_s=30)
        (message,) = store.get("T", 0, 0).messages
        assert message.store_timestamp_ms >= put.store_timestamp_ms + 1_000


def test_while_another_one_delivers_a_call_waits_for_its_time_only(path, late):
    with opened(path) as store, opened(path) as other:
        fill(store, 3)
        late(1_000)
        with other._attached().control.held("deliver"):
            assert store.deliver(timeout_s=0.01) == 0
            assert store._attached().scheduler.run_once().done == 0
        assert store.deliver(timeout_s=10) == 3


def test_delivery_in_a_store_of_sync_flush_is_durable(path, late):
    with opened(path, flush_disk_type="sync") as store:
        fill(store, 3)
        late(1_000)
        assert store.deliver() == 3
        assert store.stats()["flushed"] == store.stats()["wrote"]


def test_levels_are_those_of_the_first_process(path):
    with opened(path) as store:
        with pytest.raises(cystore.StoreConfigError, match=r"message_delay_level.*1s 5s 1m 2h.*7s"):
            opened(path, message_delay_level="7s")
        opened(path, message_delay_level="1s 5s 60s 120m").close()
        put = store.put("T", b"", delay_level=3)
        store.dispatch()
        assert store._attached().scheduler.next_due_ms() == put.store_timestamp_ms + 60_000


# ------------------------------------------------------------------------- exactly once, over attachments


def test_i9_closed_store_goes_on_where_it_was(path, late):
    with opened(path) as store:
        fill(store)
        late(1_000)
        assert store.deliver(max_messages=11) == 11
    table = saved(path)
    assert table["offsetTable"] == {"1": 11}
    with opened(path) as store:
        delivered = store._attached().delivered.shared
        assert (delivered.position, delivered.unfinished) == (table["physicalOffset"], False)
        assert store.deliver() == 19
        assert len(set(sources(store))) == len(sources(store)) == 30


@pytest.mark.parametrize(
    "what", ["removed", "damaged", "flipped", "older", "nonsense", "RocketMQ's", "copy only"]
)
def test_i9_progress_that_is_lost_or_damaged_is_found_in_the_log(path, late, what):
    with opened(path) as store:
        fill(store)
        late(1_000)
        assert store.deliver(max_messages=4) == 4
    file = path / "config" / "delayOffset.json"
    older = file.read_bytes()
    with opened(path) as store:
        assert store.deliver(max_messages=9) == 9
    copy = file.with_name("delayOffset.json.bak")
    if what != "copy only":
        copy.unlink()
    if what == "removed":
        file.unlink()
    elif what in ("damaged", "copy only"):
        file.write_bytes(file.read_bytes()[:20])
    elif what == "flipped":
        file.write_bytes(file.read_bytes().replace(b"{1:13", b"{1:29"))
    elif what == "older":
        file.write_bytes(older)
    elif what == "nonsense":
        file.write_text('{"offsetTable":{1:30000}}')
    else:
        file.write_text('{\n\t"offsetTable":{1:2\n\t}\n}')
    with opened(path) as store:
        assert store.deliver() == 17
        assert len(set(sources(store))) == len(sources(store)) == 30
        assert store.stats()["delayed"] == {}
    assert saved(path)["offsetTable"] == {"1": 30}


def test_i9_table_that_counts_what_a_power_cut_took_back_is_not_believed(path, late):
    """The table is durable at once, the delivered messages are when they are flushed."""
    with opened(path) as store:
        fill(store)
        store.flush()
        wrote = store.wrote_position
    kept = path.with_name("kept")
    shutil.copytree(path, kept)
    with opened(path) as store:
        late(1_000)
        assert store.deliver() == 30
    for name in ("delayOffset.json", "delayOffset.json.bak"):
        shutil.copy(path / "config" / "delayOffset.json", kept / "config" / name)
    with opened(kept) as store:
        assert store.wrote_position == wrote
        # Nor is it when the log is long enough again, and everybody was killed meanwhile.
        fill(store, 200, level=4)
        shutil.copytree(kept, path.with_name("killed"))
    (path.with_name("killed") / "config" / "delayOffset.json").unlink()  # nor is a copy of it
    (path.with_name("killed") / "abort").touch()
    for one in (kept, path.with_name("killed")):
        with opened(one) as store:
            assert store.deliver() == 30
            assert len(set(sources(store))) == 30


def test_i9_copies_of_delivered_messages_from_another_store_count_for_nothing(path, late, tmp_path):
    with opened(tmp_path / "other") as other, opened(path) as store:
        fill(other, 20)
        fill(store, 10)
        late(1_000)
        other.deliver()
        store.put_many(everything(other)["T", 0])
        store._attached().delivered.shared.unfinished = True
        store._attached().delivered.shared.position = 0
        assert store.deliver() == 10


def test_i9_a_source_that_came_to_harm_is_still_the_one_that_was_delivered(path, late):
    with opened(path) as store:
        puts = fill(store, 10)
        late(1_000)
        assert store.deliver() == 10
    (path / "config" / "delayOffset.json").unlink()
    log = path / "commitlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[puts[-1].physical_offset + 60] ^= 1
    log.write_bytes(data)
    with opened(path) as store:
        assert store._attached().commit_log.damaged_ranges.ranges()
        assert store.deliver() == 0


def test_i9_deliveries_are_counted_behind_damage_too(path, late, caplog):
    with opened(path) as store:
        fill(store, 60)
        late(1_000)
        assert store.deliver() == 60
        delivered = [m for m in store.scan() if m.topic == "T"]
        for file in (path / "config").glob("delayOffset*"):
            file.unlink()
        victim = delivered[20].physical_offset
        file_bytes = SETTINGS["mapped_file_size_commit_log_bytes"]
        with open(path / "commitlog" / f"{victim - victim % file_bytes:020d}", "r+b") as log:
            log.seek(victim % file_bytes + 60)
            log.write(b"\xff\xff")
        shared = store._attached().delivered.shared
        shared.set_offset(store._attached().control.find_queue(SCHEDULE, 0), 0)
        shared.position, shared.unfinished = 0, True
        assert store.deliver() == 0
        assert "behind" in caplog.text


def test_message_that_cannot_be_read_is_stepped_over_and_the_others_are_delivered(path, late, caplog):
    with opened(path) as store:
        puts = fill(store, 5)
        store.flush()
    log = path / "commitlog" / "0".zfill(20)
    data = bytearray(log.read_bytes())
    data[puts[2].physical_offset + 60] ^= 1
    with opened(path) as store:
        store.dispatch()
        log.write_bytes(data)
        late(1_000)
        assert store.deliver() == 4
        assert "cannot be read" in caplog.text
        assert sorted(int(s.split(":")[1]) for s in sources(store)) == [0, 1, 3, 4]


def test_damaged_due_time_is_neither_early_nor_late(path, late):
    """An entry of the queue has no checksum of its own, but every due time is whole seconds behind the store
    timestamp."""
    with opened(path, services="none") as store:
        fill(store, 3, level=3)
        store.dispatch()
        slot = store._attached().control.find_queue(SCHEDULE, 2)
        file = path / "consumequeue" / SCHEDULE / "2" / "0".zfill(20)
        whole = file.read_bytes()[:20]
        due_ms = int.from_bytes(whole[12:], "big")
        for noted in (due_ms - 30_001, due_ms ^ 1, due_ms ^ 1 << 15, due_ms ^ 1 << 61):
            with open(file, "r+b") as out:
                out.write(whole[:12] + noted.to_bytes(8, "big"))
            store._attached().delivered.shared.set_offset(slot, 0)
            late(40_000)
            assert store.deliver() == 0
            late(60_500)
            assert store.deliver(max_messages=1) == 1


@pytest.mark.parametrize(
    "given",
    [b"DELAY\x011", b"DELAY\x011\x02REAL_TOPIC\x01T", b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x01-1",
     b"DELAY\x011\x02REAL_TOPIC\x01a/b\x02REAL_QID\x010",
     b"DELAY\x011\x02REAL_TOPIC\x01SCHEDULE_TOPIC_XXXX\x02REAL_QID\x010",
     b"DELAY\x011\x02REAL_TOPIC\x01RMQ_SYS_TRANS_HALF_TOPIC\x02REAL_QID\x010", b""],
)  # fmt: skip
def test_message_that_cannot_be_delivered_is_stepped_over(path, caplog, given):
    """A record of another program; RocketMQ would try it for ever."""
    good = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x015\x02"
    config = write_delayed(path, good, given, good)
    with cystore.open(path, **config) as store:
        assert store.deliver() == 2
        assert "cannot be delivered" in caplog.text
        assert store.stats()["delayed"] == {}
        assert [s.split(":")[1] for s in sources(store)] == ["0", "2"]


def test_i9_message_that_fills_its_file_is_delivered_once_all_the_same(path):
    where = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
    config = write_delayed(
        path, where, where + b"\x02a\x01" + b"x" * (4088 - 170 - len(where) - 3), where, file_bytes=4096
    )
    with cystore.open(path, **config) as store:
        assert store.get(SCHEDULE, 0, 1).messages[0].size_bytes == 4088
        assert store.deliver() == 3
        assert ["DELAY_SOURCE" in m.properties for m in everything(store)["T", 0]] == [True, False, True]
        for file in (path / "config").glob("delayOffset*"):
            file.unlink()
    with cystore.open(path, **config) as store:
        assert store.deliver() == 0


@pytest.mark.parametrize("size", [32_767 - 20, 32_767 - 32, 32_000])
def test_i9_message_without_room_for_its_source_is_delivered_once_all_the_same(path, size):
    """RocketMQ may have written one; ours are refused before."""
    where = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
    config = write_delayed(path, where + b"\x02a\x01" + b"x" * (size - len(where) - 3), where)
    with cystore.open(path, **config) as store:
        assert store.deliver() == 2
        assert ["DELAY_SOURCE" in m.properties for m in store.get("T", 0, 0).messages] == [
            size == 32_000,
            True,
        ]
    for file in (path / "config").glob("delayOffset*"):
        file.unlink()
    with cystore.open(path, **config) as store:
        assert store.deliver() == 0


def test_i9_what_rocketmq_delivered_is_recognised_by_what_it_holds(path):
    """Its deliveries name no source, and its table is behind them. Of messages that are the same, so many count as
    there are."""
    where = b"DELAY\x011\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
    config = write_delayed(path, *[where + b"\x02n\x01%d" % n for n in (0, 1, 1, 2, 3)])
    with cystore.open(path, **config) as store:
        copies = [delivered_copy(message) for message in store.get(SCHEDULE, 0, 0).messages[:3]]
        for copy in copies:
            leave_source_out(copy)
        store.put_many(copies)
        assert store.deliver() == 2
        assert [m.properties["n"] for m in store.get("T", 0, 0).messages] == ["0", "1", "1", "2", "3"]


# --------------------------------------------------------------------------------------- other levels later


def test_other_levels_later_are_no_damage_and_move_nothing_that_waits(path, late):
    with opened(path) as store:
        fill(store, 5, level=3)
        store.configure(message_delay_level="7s 8s")
    other = {"message_delay_level": "7s 8s"}
    check_closed(path, {**SETTINGS, **other})
    with opened(path, **other) as store:
        assert store.recovery.clean
        late(40_000)
        assert store.deliver() == 0
        late(60_500)
        assert store.deliver() == 5


# ------------------------------------------------------------------------------------------------- clean


def test_i7_message_that_waits_is_not_cleaned(path, late):
    """It is carried forward (test_carry.py)."""
    with opened(path, file_reserved_time_h=0) as store:
        store.put("T", b"waits", delay_level=4)
        for _ in range(100):
            store.put("other", bytes(1_000))
        store.dispatch()
        store.flush()
        assert store.clean().segments > 0
        assert store.stats()["delayed"] == {4: 1}
        late(2 * HOUR_MS)
        assert store.deliver() == 1
        store.flush()
        store.clean()
        assert store.deliver() == 0
    with opened(path, file_reserved_time_h=0) as store:
        assert store.deliver() == 0


def test_i7_forced_clean_loses_none_either(path, monkeypatch):
    with opened(path, clean_file_forcibly_enable=True) as store:
        put = store.put("T", b"waits", delay_level=4)
        for _ in range(100):
            store.put("other", bytes(1_000))
        store.dispatch()
        store.flush()
        cleaner = store._attached().cleaner
        fill_disk(monkeypatch, 86)
        assert cleaner.run_once().done >= 1
        assert store.stats()["delayed"] == {4: 1}
        assert cleaner.run_once().done >= 1
        store.dispatch()
        assert store._attached().scheduler.next_due_ms() == put.store_timestamp_ms + 2 * HOUR_MS


def test_clean_counts_deliveries_that_nobody_counted(path, late):
    """Else a store whose table is lost, and in which nobody delivers, would keep everything."""
    with opened(path, file_reserved_time_h=0) as store:
        fill(store, 5)
        late(1_000)
        store.deliver()
        for _ in range(100):
            store.put("other", bytes(1_000))
    for file in (path / "config").glob("delayOffset*"):
        file.unlink()
    with opened(path, file_reserved_time_h=0) as store:
        assert store.stats()["delayed"] == {1: 5}
        assert store.clean().segments > 0
        assert store.stats()["delayed"] == {}


def test_ten_thousand_that_are_due_at_once_leave_once_and_in_order(path, late):
    with cystore.open(path, services="none", **LEVELS) as store:
        for begin in range(0, 10_000, 500):
            store.put_many(
                [cystore.Message(topic="T", body=b"%d" % n, delay_level=1) for n in range(begin, begin + 500)]
            )
        late(1_000)
        assert store.deliver(timeout_s=0) < 10_000, "a call ends when its time is over"
        while store.deliver(timeout_s=1):
            pass
        assert store.stats()["delayed"] == {}
        found, offset = [], 0
        while (got := store.get("T", 0, offset, 1_000)).messages:
            found += [int(bytes(message.body)) for message in got.messages]
            offset = got.next_offset
        assert found == list(range(10_000))
