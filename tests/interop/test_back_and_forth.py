"""Goal: both can go on where the other stopped, cleanly or killed, and neither opens what the other holds or cannot
read. Method: one directory, opened in turn by cystore and by RocketMQ 4.9.3 in its JVM."""

import shutil

import pytest

import cystore
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.cystore_side import dump_of_copy, killed_while_putting, put_all
from tests.support.interop.expect import (
    Stored,
    check_queries,
    check_queues,
    check_records,
    check_times,
    message_of,
    rows_of,
)
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S, Refused


@pytest.fixture
def writer(rng):
    return specs.Writer(rng)


@pytest.mark.parametrize("ext", [False, True], ids=["plain", "ext"])
def test_each_appends_to_what_the_other_wrote(rocketmq, writer, ext, tmp_path):
    config = specs.SMALL | {"enableConsumeQueueExt": ext, "mappedFileSizeConsumeQueueExt": 1024}
    path, spec = tmp_path / "store", {"config": config}
    first = list(writer.many(150))
    written = rocketmq.write({**spec, "messages": first}, path).result(ANSWER_TIMEOUT_S)
    stored = [Stored.by_rocketmq(*pair) for pair in zip(first, written, strict=True)]
    for _ in range(2):
        with cystore.open(path, **cystore_config(spec)) as store:
            stored += put_all(store, list(writer.many(120)))
            assert [m.physical_offset for m in store.scan()] == [one.physical_offset for one in stored]
            check_with_cystore(store, stored)
        items = list(writer.many(100))
        with rocketmq.opened(path, config) as there:
            stored += [Stored.by_rocketmq(*pair) for pair in zip(items, there.put(items), strict=True)]
    with cystore.open(path, read_only=True, **cystore_config(spec)) as store:
        check_with_cystore(store, stored)
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    check_records(rows, stored)
    check_queues(rows, stored, ext=ext)
    check_queries(rows, stored)
    check_times(rows, spec["config"]["mappedFileSizeConsumeQueue"])


def test_rocketmq_finds_the_end_of_a_log_with_files_ahead(rocketmq, writer, tmp_path):
    """It looks for the end from the last file but two on, and would append to an empty one there."""
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    items = list(writer.many(3))
    with cystore.open(path, **cystore_config(spec)) as store:
        stored = put_all(store, items[:2])
        store._parts.allocator.run_once()
        assert len(list((path / "commitlog").glob("0*"))) == 5
        end = store.wrote_position
    with rocketmq.opened(path, specs.SMALL) as there:
        (added,) = there.put(items[2:])
    assert added["physicalOffset"] == end
    stored.append(Stored.by_rocketmq(items[2], added))
    with cystore.open(path, read_only=True, **cystore_config(spec)) as store:
        assert [m.physical_offset for m in store.scan()] == [one.physical_offset for one in stored]


def check_with_cystore(store: cystore.MessageStore, stored: list[Stored]) -> None:
    for one in stored[::7]:
        message = store.read(one.physical_offset)
        assert (message.topic, message.queue_id, message.queue_offset) == (*one.queue, one.queue_offset)
        assert message.body == message_of(one.item).body
        assert message.store_timestamp_ms == one.store_timestamp
        (same,) = store.get(*one.queue, one.queue_offset, 1).messages
        assert same.physical_offset == one.physical_offset
        for key in one.index_keys:
            found = store.query(one.item["topic"], key, 10_000)
            assert one.physical_offset in {m.physical_offset for m in found}


def test_each_recovers_what_the_other_was_killed_over(rocketmq, writer, tmp_path):
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    first = [*writer.many(80), {"action": "waitDispatch"}, {"action": "stopReput"}, *writer.many(15)]
    written = rocketmq.write_and_halt({**spec, "messages": first}, path)
    items = [item for item in first if "action" not in item]
    stored = [Stored.by_rocketmq(*pair) for pair in zip(items, written, strict=True)]
    assert (path / "abort").exists()

    # Killed over a store that RocketMQ was killed over before.
    acknowledged = killed_while_putting(path, {**spec, "messages": list(writer.many(60))}, 90)
    stored += acknowledged

    # RocketMQ continues, is halted again, and cystore has the last word.
    items = [*writer.many(40), {"action": "waitDispatch"}, {"action": "stopReput"}, *writer.many(10)]
    written = rocketmq.write_and_halt({**spec, "messages": items}, path)
    items = [item for item in items if "action" not in item]
    last = [Stored.by_rocketmq(*pair) for pair in zip(items, written, strict=True)]
    with cystore.open(path, **cystore_config(spec)) as store:
        scanned = [m.physical_offset for m in store.scan()]
        # Between them stands what was put but not acknowledged when the process was killed.
        assert scanned[: len(stored)] == [one.physical_offset for one in stored]
        assert scanned[-len(last) :] == [one.physical_offset for one in last]
        check_with_cystore(store, stored + last)
        (put,) = put_all(store, [writer.message("TopicTest", 0)])
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    assert [row["physicalOffset"] for row in rows_of(rows, "record")] == [*scanned, put.physical_offset]
    found = {row["physicalOffset"]: row for row in rows_of(rows, "msg")}
    for one in (*stored, *last, put):
        assert found[one.physical_offset] == one.msg_row()


def test_rocketmq_delivers_what_waited_while_cystore_wrote(rocketmq, writer, tmp_path):
    """cystore leaves the delayed messages and how far their delivery got as they are."""
    levels = "3s 1h"
    path, spec = tmp_path / "store", {"config": specs.SMALL | {"messageDelayLevel": levels}}
    config = cystore_config(spec) | {"message_delay_level": levels}
    delayed = [writer.message("DelayTopic", 0, 40, delayTimeLevel=level) for level in (1, 1, 1, 2)]
    rocketmq.write({**spec, "messages": delayed}, path).result(ANSWER_TIMEOUT_S)
    assert due(rocketmq, path, spec, tmp_path) == ([], 4)
    with cystore.open(path, **config) as store:
        put_all(store, list(writer.many(30)))
    assert due(rocketmq, path, spec, tmp_path) == ([], 4)
    until_due = [{"action": "sleep", "ms": 3500}]
    rocketmq.write({**spec, "messages": until_due}, path).result(ANSWER_TIMEOUT_S)
    assert due(rocketmq, path, spec, tmp_path) == ([item["bodyB64"] for item in delayed[:3]], 4)
    with cystore.open(path, read_only=True, **config) as store:
        bodies = [m.body for m in store.get("DelayTopic", 0, 0).messages]
        assert bodies == [message_of(item).body for item in delayed[:3]]


def due(rocketmq, path, spec, scratch) -> tuple[list[str], int]:
    """The delivered bodies, and how many messages the levels' queues hold."""
    rows = rows_of(dump_of_copy(rocketmq, path, spec, scratch), "msg")
    levels = [row for row in rows if row["topic"] == "SCHEDULE_TOPIC_XXXX"]
    return [row["bodyB64"] for row in rows if row["topic"] == "DelayTopic"], len(levels)


def test_rocketmq_refuses_a_store_with_cystore_records(rocketmq, writer, tmp_path):
    """It would cut the log at the first such record. A file that it cannot take stops its load before that."""
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    rocketmq.write({**spec, "messages": list(writer.many(40))}, path).result(ANSWER_TIMEOUT_S)
    with cystore.open(path, **cystore_config(spec) | {"record_format": "cystore"}) as store:
        put_all(store, list(writer.many(10)))
    assert (path / "commitlog" / "CYSTORE").stat().st_size == 0
    before = files_of(path)
    with (
        pytest.raises(Refused, match=r"load refused .*CYSTORE.*length not matched"),
        rocketmq.opened(path, specs.SMALL),
    ):
        pass
    assert files_of(path) == before
    with cystore.open(path, **cystore_config(spec) | {"record_format": "cystore"}) as store:
        assert [m.record_format for m in store.scan()] == ["rocketmq"] * 40 + ["cystore"] * 10


def files_of(path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def test_what_the_jvm_holds_cystore_does_not_open(rocketmq, writer, tmp_path):
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    with rocketmq.opened(path, specs.SMALL) as there:
        there.put(list(writer.many(20)))
        for config in ({}, {"exclusive": True}):
            with pytest.raises(cystore.StoreLockedError, match="lock"):
                cystore.open(path, **cystore_config(spec), **config)
        # The refused one changed nothing: RocketMQ continues.
        there.put(list(writer.many(20)))
    with cystore.open(path, **cystore_config(spec)) as store:
        assert sum(1 for _ in store.scan()) == 40


def test_what_cystore_holds_the_jvm_does_not_start(rocketmq, writer, tmp_path):
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    with cystore.open(path, **cystore_config(spec)) as store:
        stored = put_all(store, list(writer.many(60)))
        # RocketMQ looks at the lock only after its load, so it gets a copy of the files and the lock itself.
        held = tmp_path / "held"
        shutil.copytree(path, held, ignore=shutil.ignore_patterns("lock"))
        (held / "lock").hardlink_to(path / "lock")
        with (
            pytest.raises(Refused, match=r"start refused: .*Lock failed"),
            rocketmq.opened(held, specs.SMALL),
        ):
            pass
        stored += put_all(store, list(writer.many(60)))
        check_with_cystore(store, stored)
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    check_records(rows, stored)
    check_queues(rows, stored)


def test_rocketmqs_load_on_a_store_that_cystore_holds_loses_nothing_acknowledged(rocketmq, writer, tmp_path):
    """I3. RocketMQ looks at the lock after its load, which cuts what it takes for a dirty tail and removes empty
    segments."""
    path, spec = tmp_path / "store", {"config": specs.SMALL}
    ahead = {"allocate_ahead_bytes": specs.SMALL["mapedFileSizeCommitLog"], "services": ()}
    with cystore.open(path, **cystore_config(spec), **ahead) as store:
        stored = put_all(store, list(writer.many(60)))
        with (
            pytest.raises(Refused, match=r"start refused: .*Lock failed"),
            rocketmq.opened(path, specs.SMALL),
        ):
            pass
        for _ in range(3):
            items = list(writer.many(60))
            try:
                put = put_all(store, items)
                store.flush()
            except cystore.StoreError:
                break
            stored += put
    with cystore.open(path, **cystore_config(spec)) as store:
        check_with_cystore(store, stored)
        kept = {m.physical_offset for m in store.scan()}
        assert kept >= {one.physical_offset for one in stored}
