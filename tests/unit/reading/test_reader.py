"""Goal: a reader gets what RocketMQ's getMessage and queryMessage would give, never anything else. Method: logs made by
hypothesis are read back and compared with the oracle; limits, statuses, filters and damage are set up one by one."""

from __future__ import annotations

import shutil
import tempfile
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore.config import StoreConfig
from cystore.engine.files import cold_pages
from cystore.errors import MessageIllegalError, StoreError
from cystore.results import GetStatus
from tests.oracle import index as oracle_index
from tests.oracle import queue as oracle_queue
from tests.oracle.java import string_hash
from tests.oracle.log import lay_out
from tests.oracle.record import CYSTORE_MAGIC, PREPARED, ROLLBACK, SCHEDULE_TOPIC, Record
from tests.support import parts
from tests.support.property.strategies import WrittenLog, logs

CONFIG = StoreConfig(
    mapped_file_size_commit_log_bytes=8192,
    mapped_file_size_consume_queue_bytes=20 * 64,
    max_hash_slot_num=5,
    max_index_num=40,
)
NOW = 1_700_000_000_000


def record(
    number: int, *, topic: str = "T", keys: str = "", tags: str = "", body: bytes = b"body", **fields
) -> Record:
    pairs = [f"{name}\x01{value}" for name, value in (("KEYS", keys), ("TAGS", tags)) if value]
    return Record(
        topic=topic,
        queue_offset=number,
        body=body,
        store_timestamp_ms=fields.pop("store_timestamp_ms", NOW + 1000 * number),
        raw_properties="\x02".join(pairs).encode(),
        **{"magic": CYSTORE_MAGIC, **fields},
    )


def opened(
    root: Path, records: list[Record], config: StoreConfig = CONFIG, **more
) -> tuple[parts.Parts, WrittenLog]:
    """A store whose log was dispatched when it was opened."""
    written = WrittenLog(*lay_out(records, config.mapped_file_size_commit_log_bytes))
    parts.write_log(root, written.log)
    store = parts.attach(root, config, minimum=0, wrote=written.end, **more)
    store.dispatcher.run_to_end()
    return store, written


def offsets(result) -> list[int]:
    return [message.queue_offset for message in result.messages]


def offsets_of(messages) -> list[int]:
    return [message.queue_offset for message in messages]


# ------------------------------------------------------------------------------------- against the oracle


@given(logs(file_size=8192, max_records=40), st.integers(0, 45), st.integers(1, 40))
def test_a_queue_is_read_as_it_was_written(written, start, max_count):
    with tempfile.TemporaryDirectory() as folder:
        parts.write_log(Path(folder), written.log)
        store = parts.attach(Path(folder), CONFIG, minimum=0, wrote=written.end)
        by_offset = {r.physical_offset: r for r in written.records}
        store.dispatcher.run_to_end()
        for (topic, queue_id), entries in oracle_queue.entries_of(written.records).items():
            at, found = start, []
            while (result := store.reader.get(topic, queue_id, at, max_count)).status is GetStatus.FOUND:
                assert len(result.messages) <= max_count
                raw = store.reader.get(topic, queue_id, at, max_count, raw=True)
                expected = [by_offset[m.physical_offset].raw for m in result.messages]
                assert raw.raw == b"".join(expected)
                assert list(raw.record_offsets) == [sum(map(len, expected[:n])) for n in range(len(expected))]
                assert (raw.messages, raw.next_offset) == ([], result.next_offset)
                found += result.messages
                at = result.next_offset
            assert result.status in (GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.OFFSET_OVERFLOW_BADLY)
            wanted = [(offset, entry) for offset, entry in sorted(entries.items()) if offset >= start]
            assert [(m.queue_offset, m.physical_offset) for m in found] == [
                (o, e.physical_offset) for o, e in wanted
            ]
            for message in found:
                assert bytes(message.body) == by_offset[message.physical_offset].body


@given(logs(file_size=8192, max_records=40), st.data())
def test_a_key_finds_its_records(written, data):
    times = [r.store_timestamp_ms for r in written.records] or [0]
    begin = data.draw(st.sampled_from([0, *times]))
    end = data.draw(st.one_of(st.none(), st.sampled_from(times)))
    max_count = data.draw(st.integers(1, 40))
    with tempfile.TemporaryDirectory() as folder:
        parts.write_log(Path(folder), written.log)
        store = parts.attach(Path(folder), CONFIG, minimum=0, wrote=written.end)
        topics = {r.topic for r in written.records} | {"other"}
        for key in {key for r in written.records for key in r.index_keys} | {"none"}:
            for topic in topics:
                found = store.reader.query(topic, key, max_count, begin_ms=begin, end_ms=end)
                last = oracle_index.FOREVER_MS if end is None else end
                wanted = oracle_index.query(written.records, topic, key, max_count, begin, last)
                assert [m.physical_offset for m in found] == [r.physical_offset for r in wanted]


@given(logs(file_size=8192, max_records=40), st.data())
def test_a_time_finds_its_offset(written, data):
    bounds = [r.physical_offset for r in written.records] + [written.end]
    first = data.draw(st.integers(0, len(bounds) - 1))
    hole = bounds[first], data.draw(st.sampled_from(bounds[first:]))
    holes = [hole] if hole[0] < hole[1] else []
    kept = [r for r in written.records if not hole[0] <= r.physical_offset < hole[1]]
    times = {r.physical_offset: r.store_timestamp_ms for r in kept}
    near = st.one_of(st.integers(0, 2**42), *(st.integers(t - 2, t + 2) for t in times.values()))
    with tempfile.TemporaryDirectory() as folder:
        parts.write_log(Path(folder), written.log)
        store = parts.attach(Path(folder), CONFIG, minimum=0, wrote=written.end, holes=holes)
        store.dispatcher.run_to_end()
        for (topic, queue_id), entries in oracle_queue.entries_of(kept).items():
            queue = oracle_queue.queue_of(entries, 0, written.end)
            for wanted in data.draw(st.lists(near, max_size=4)):
                expected = oracle_queue.offset_by_time(queue, times, wanted)
                assert store.reader.offset_by_time(topic, queue_id, wanted) == expected
                for boundary in ("lower", "upper"):
                    expected = oracle_queue.bound_by_time(queue, times, wanted, boundary)
                    found = store.reader.offset_by_time(topic, queue_id, wanted, boundary=boundary)
                    assert found == expected, boundary


# ------------------------------------------------------------------------------- statuses and limits of get


def test_statuses_of_offsets_outside_the_queue(tmp_path):
    store, _ = opened(tmp_path, [record(n) for n in range(100, 110)])
    get = store.reader.get
    unknown = get("other", 0, 5)
    assert (unknown.status, unknown.next_offset) == (GetStatus.NO_MATCHED_LOGIC_QUEUE, 0)

    def outcome(offset: int):
        result = get("T", 0, offset)
        return result.status, result.next_offset, result.min_offset, result.max_offset

    assert outcome(99) == outcome(-1) == (GetStatus.OFFSET_TOO_SMALL, 100, 100, 110)
    assert outcome(100) == (GetStatus.FOUND, 110, 100, 110)
    assert outcome(110) == (GetStatus.OFFSET_OVERFLOW_ONE, 110, 100, 110)
    assert outcome(111) == outcome(2**63) == (GetStatus.OFFSET_OVERFLOW_BADLY, 110, 100, 110)
    store.control.add_queue("empty", 3)
    empty = get("empty", 3, 7)
    assert (empty.status, empty.next_offset, empty.max_offset) == (GetStatus.NO_MESSAGE_IN_QUEUE, 0, 0)
    store.control.add_queue("gone", 0, next=50, dispatched=50, minimum=50)
    assert get("gone", 0, 50).status is GetStatus.OFFSET_OVERFLOW_ONE
    assert get("gone", 0, 49).next_offset == 50


def test_too_far_in_a_queue_from_which_nothing_was_removed_starts_over(tmp_path):
    store, _ = opened(tmp_path, [record(n) for n in range(3)])
    result = store.reader.get("T", 0, 4)
    assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_BADLY, 0)


def test_a_missing_queue_file(tmp_path):
    """Its entries are written again from the log."""
    store, _ = opened(tmp_path, [record(n) for n in range(70)])
    (tmp_path / "consumequeue/T/0" / f"{0:020d}").unlink()
    second = parts.attach(tmp_path, CONFIG, minimum=0, wrote=0, control=store.control)
    result = second.reader.get("T", 0, 5)
    assert result.status is GetStatus.FOUND
    assert result.messages[0].queue_offset == 5
    assert second.reader.counters()["healed_entries"] > 0


def test_limits_of_a_batch(tmp_path):
    bodies = [record(n, body=bytes(300)) for n in range(60)]
    size = lay_out(bodies[:1], 8192)[1][0].size

    def count(max_count: int, start: int = 0, **limits) -> int:
        config = replace(CONFIG, **limits)
        store = parts.attach(tmp_path, config, minimum=0, wrote=0, control=base.control)
        return len(store.reader.get("T", 0, start, max_count).messages)

    base, _ = opened(tmp_path, bodies)
    assert count(5) == 5
    assert count(1000) == 32  # max_transfer_count_on_message_in_memory
    assert count(1000, max_transfer_count_on_message_in_memory=50) == 50
    assert count(1000, max_transfer_bytes_on_message_in_memory=4 * size) == 4
    assert count(1000, max_transfer_bytes_on_message_in_memory=4 * size - 1) == 3
    assert count(1000, max_transfer_bytes_on_message_in_memory=1) == 1  # the first one always fits
    on_disk = {"access_message_in_memory_max_ratio": 0}  # all but the log's very end is behind memory then
    assert count(1000, **on_disk) == 8
    assert count(1000, **on_disk, max_transfer_count_on_message_in_disk=3) == 3
    assert count(1000, **on_disk, max_transfer_bytes_on_message_in_disk=2 * size) == 2
    assert count(3, **on_disk) == 3


def test_a_batch_ends_with_the_queue_file(tmp_path):
    store, _ = opened(tmp_path, [record(n) for n in range(80)])
    result = store.reader.get("T", 0, 50, 32)  # 64 entries in a file
    assert offsets(result) == list(range(50, 64))
    assert offsets(store.reader.get("T", 0, result.next_offset, 32)) == list(range(64, 80))


def test_a_batch_over_many_log_files(tmp_path):
    config = replace(CONFIG, mapped_file_size_commit_log_bytes=4096)
    store, _ = opened(tmp_path, [record(n, body=bytes(3000)) for n in range(60)], config)
    assert offsets(store.reader.get("T", 0, 0, 32)) == list(range(32))
    config = replace(
        config, mapped_file_size_consume_queue_bytes=20 * 100, max_transfer_count_on_message_in_memory=100
    )
    store, _ = opened(tmp_path / "wide", [record(n, body=bytes(3000)) for n in range(80)], config)
    assert offsets(store.reader.get("T", 0, 0, 100)) == list(range(80))


# ------------------------------------------------------------------------------------------------- tags


def test_tags(tmp_path):
    tagged = ["a", "b", "", "a", "c", "键", "a || b"]
    store, _ = opened(tmp_path, [record(n, tags=tag) for n, tag in enumerate(tagged)])

    def found(expression: str | None) -> list[int]:
        return offsets(store.reader.get("T", 0, 0, tags=expression))

    assert found(None) == found("*") == found("") == list(range(7))
    assert found("a") == found(" a ") == found("a||a") == [0, 3]
    assert found("b || 键") == [1, 5]
    assert found("a||b||c||nothing") == [0, 1, 3, 4]
    assert found("nothing") == []
    for wrong in ("||", "  ", " || ", "\ud800"):
        with pytest.raises(MessageIllegalError, match="tags"):
            found(wrong)


def test_a_tag_of_the_same_hash_is_not_served(tmp_path):
    assert string_hash("Aa") == string_hash("BB")
    store, _ = opened(tmp_path, [record(n, tags=tag) for n, tag in enumerate(["Aa", "BB", "Aa"])])
    result = store.reader.get("T", 0, 0, tags="BB")
    assert offsets(result) == [1] and result.next_offset == 3


def test_nothing_with_the_tag_is_said_with_an_offset_behind(tmp_path):
    config = replace(
        CONFIG, mapped_file_size_consume_queue_bytes=20 * 2000, mapped_file_size_commit_log_bytes=1 << 20
    )
    store, _ = opened(tmp_path, [record(n, tags="a" if n < 1500 else "b") for n in range(1600)], config)
    result = store.reader.get("T", 0, 0, 32, tags="b")
    assert (result.status, result.next_offset) == (
        GetStatus.NO_MATCHED_MESSAGE,
        800,
    )  # 16,000 bytes of entries
    result = store.reader.get("T", 0, 0, 1000, tags="b")
    assert (result.status, result.next_offset) == (
        GetStatus.NO_MATCHED_MESSAGE,
        1000,
    )  # 20 bytes for each one asked for
    assert offsets(store.reader.get("T", 0, 1499, 3, tags="b")) == [1500, 1501, 1502]


def test_delayed_messages_are_filtered_by_their_tag_though_their_code_is_a_time(tmp_path):
    delayed = [
        replace(record(n, topic=SCHEDULE_TOPIC), raw_properties=f"DELAY\x011\x02TAGS\x01{tag}".encode())
        for n, tag in enumerate("abab")
    ]
    store, _ = opened(tmp_path, delayed)
    assert offsets(store.reader.get(SCHEDULE_TOPIC, 0, 0, tags="b")) == [1, 3]


def test_extended_entries_are_filtered_by_their_tag(tmp_path):
    config = replace(CONFIG, enable_consume_queue_ext=True, mapped_file_size_consume_queue_ext_bytes=256)
    store, _ = opened(tmp_path, [record(n, tags=tag) for n, tag in enumerate("abab")], config)
    assert offsets(store.reader.get("T", 0, 0, tags="b")) == [1, 3]


# ------------------------------------------------------------------------------------------------ query


def test_rollbacks_are_not_found_and_prepared_messages_are(tmp_path):
    half = record(0, keys="k", sys_flag=PREPARED)
    store, written = opened(tmp_path, [half, replace(half, sys_flag=ROLLBACK), record(0, keys="k")])
    found = store.reader.query("T", "k")
    assert [m.physical_offset for m in found] == [written.records[n].physical_offset for n in (2, 0)]


def test_the_newest_are_those_that_hold_the_key_and_no_other_of_its_hash(tmp_path):
    records = [record(n, keys="Aa" if n % 2 else "BB") for n in range(60)]
    store, _ = opened(tmp_path, records)
    assert offsets_of(store.reader.query("T", "Aa", 32)) == list(range(59, 0, -2))
    assert offsets_of(store.reader.query("T", "Aa", 3)) == [59, 57, 55]


def test_a_key_twice_in_a_record_finds_it_once(tmp_path):
    store, _ = opened(tmp_path, [record(n, keys="a b a") for n in range(3)])
    assert offsets_of(store.reader.query("T", "a")) == [2, 1, 0]


def test_records_that_rocketmq_entered_twice_are_found_once(tmp_path):
    records = [record(n, keys="a") for n in range(30)]
    _, written = opened(tmp_path, records)
    files: list[oracle_index.IndexFile] = []
    oracle_index.build(files, written.records, 5, 40, repeat_last=True)
    again = [written.records[-1], *written.records[5:10]]
    for r in again:  # the last record again, and some old ones as entries from before a cut would be
        files[-1].put("T#a", r.physical_offset, r.store_timestamp_ms)
    shutil.rmtree(tmp_path / "index")
    (tmp_path / "index").mkdir()
    for n, file in enumerate(files):
        (tmp_path / "index" / f"{20260101000000000 + n}").write_bytes(file.data)
    second = parts.attach(tmp_path, CONFIG, minimum=0, wrote=written.end, dispatched=written.end)
    assert offsets_of(second.reader.query("T", "a", 100)) == list(range(29, -1, -1))


def test_entries_past_the_log_are_refused(tmp_path):
    """A second index over the same log: it leads to records behind the end that this control block knows."""
    store, written = opened(tmp_path, [record(n, keys="a") for n in range(10)])
    end = written.records[6].physical_offset
    store = parts.attach(tmp_path, CONFIG, minimum=0, wrote=end, dispatched=end)
    assert offsets_of(store.reader.query("T", "a")) == [5, 4, 3, 2, 1, 0]


def test_keys_that_are_no_text_are_found_as_they_read(tmp_path):
    bad = replace(record(0), raw_properties=b"KEYS\x01\xff\xe4\xb8 other")
    store, _ = opened(tmp_path, [bad, record(1, keys="��")])
    assert offsets_of(store.reader.query("T", "��", 5)) == [1, 0]
    assert offsets_of(store.reader.query("T", "��", 1)) == [1]
    assert offsets_of(store.reader.query("T", "other")) == [0]


# ---------------------------------------------------------------------------------- what is not dispatched yet


def test_a_reader_sees_what_was_written_before_it_asked(tmp_path):
    records = [record(n, keys="k", tags="a") for n in range(10)]
    written = WrittenLog(*lay_out(records, 8192))
    parts.write_log(tmp_path, written.log)
    for read, expected in (
        (lambda r: offsets(r.get("T", 0, 0)), list(range(10))),
        (lambda r: offsets_of(r.query("T", "k")), list(range(9, -1, -1))),
        (lambda r: r.offset_by_time("T", 0, NOW + 4000), 4),
    ):
        store = parts.attach(tmp_path, CONFIG, minimum=0, wrote=written.end)
        store.control.add_queue("T", 0, next=10)  # as the appends that wrote them did
        assert read(store.reader) == expected
        assert store.control.dispatched == written.end


def test_behind_a_dispatcher_that_stands_still_there_is_what_there_is(tmp_path, monkeypatch):
    monkeypatch.setattr("cystore.derived.reading.dispatch_help.HELP_WAIT_MS", 30)
    rolled_back = replace(record(10, keys="k"), sys_flag=12, queue_offset=0)
    written = WrittenLog(*lay_out([*(record(n, keys="k") for n in range(10)), rolled_back], 8192))
    parts.write_log(tmp_path, written.log)
    store = parts.attach(tmp_path, CONFIG, minimum=0, wrote=written.end)
    store.control.add_queue("T", 0, next=10)
    store.dispatcher.run_once(500)
    done = store.control.queue_dispatched(0)
    assert 0 < done < 10
    held, release = threading.Event(), threading.Event()

    def stand_still() -> None:
        with store.control.held("dispatch"):
            held.set()
            release.wait()

    thread = threading.Thread(target=stand_still)
    thread.start()
    held.wait()
    try:
        result = store.reader.get("T", 0, 0)
        assert (offsets(result), result.max_offset) == (list(range(done)), done)
        assert store.reader.get("T", 0, done).status is GetStatus.OFFSET_OVERFLOW_ONE
        # Keys are looked for in the log from there.
        assert offsets_of(store.reader.query("T", "k")) == list(range(9, -1, -1))
        assert offsets_of(store.reader.query("T", "k", 3)) == [9, 8, 7]
        begin, end = NOW + 1000 * (done - 1), NOW + 1000 * 8
        assert offsets_of(store.reader.query("T", "k", begin_ms=begin, end_ms=end)) == list(
            range(8, done - 2, -1)
        )
        assert store.reader.query("T", "other") == store.reader.query("U", "k") == []
    finally:
        release.set()
        thread.join()
    assert offsets(store.reader.get("T", 0, done)) == list(range(done, 10))


def test_many_threads_read_at_once(tmp_path):
    store, _ = opened(tmp_path, [record(n, keys=f"k{n % 7} all", tags="ab"[n % 2]) for n in range(300)])
    failures = []

    def work(seed: int) -> None:
        try:
            for n in range(150):
                start = (seed * 37 + n) % 300
                result = store.reader.get("T", 0, start, 5, tags="a" if seed % 2 else None)
                assert all(m.queue_offset >= start for m in result.messages) and result.next_offset > start
                assert (
                    offsets_of(store.reader.query("T", f"k{n % 7}", 3))
                    == sorted((o for o in range(300) if o % 7 == n % 7), reverse=True)[:3]
                )
                assert store.reader.offset_by_time("T", 0, NOW + 1000 * start) == start
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures


# ----------------------------------------------------------------------------------------- bad arguments


@pytest.mark.parametrize(
    "arguments",
    [
        (1, 0, 0), (None, 0, 0), (b"T", 0, 0), ("T", "0", 0), ("T", True, 0), ("T", -1, 0), ("T", 2**31, 0),
        ("T", 0, "0"),
        ("T", 0, 1.5), ("T", 0, 0, 0), ("T", 0, 0, -1), ("T", 0, 0, 2**31), ("T", 0, 0, None),
    ],
)  # fmt: skip
def test_wrong_arguments_of_get(tmp_path, arguments):
    store, _ = opened(tmp_path, [record(0)])
    with pytest.raises(MessageIllegalError):
        store.reader.get(*arguments)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ((1, "k"), {}), (("T", b"k"), {}), (("T", "\ud800"), {}), (("T", "k", 0), {}), (("T", "k", True), {}),
        (("T", "k"), {"begin_ms": "0"}), (("T", "k"), {"end_ms": 2**63}),
    ],
)  # fmt: skip
def test_wrong_arguments_of_query(tmp_path, arguments, named):
    store, _ = opened(tmp_path, [record(0)])
    with pytest.raises(StoreError):
        store.reader.query(*arguments, **named)


def test_topics_that_cannot_be_have_no_messages(tmp_path):
    store, _ = opened(tmp_path, [record(0, keys="k")])
    for topic in ("", "x" * 128, "a/b", "\ud800", "键"):
        assert store.reader.get(topic, 0, 0).status is GetStatus.NO_MATCHED_LOGIC_QUEUE
        assert store.reader.query(topic, "k") == []
        assert store.reader.offset_by_time(topic, 0, 0) == 0


def test_what_was_read_is_counted(tmp_path):
    store, _ = opened(tmp_path, [record(n, keys="k") for n in range(5)])
    store.reader.get("other", 0, 0)
    store.reader.get("T", 0, 0, 3)
    store.reader.get("T", 0, 3, raw=True)
    store.reader.get("T", 0, 9)
    store.reader.query("T", "k")
    assert store.reader.counters() == {
        "get_found": 2,
        "get_missed": 2,
        "get_messages": 5,
        "queries": 1,
        "healed_entries": 0,
    }


def test_the_memory_of_this_host():
    assert cold_pages.total_memory_bytes() > 1 << 28
