"""Goal: delayed messages change hands: what one of both wrote the other delivers, once, and continues counting where
the first stopped. Method: one directory, opened in turn by cystore and by RocketMQ 4.9.3 with its
ScheduleMessageService."""

from __future__ import annotations

import base64
import json
import re
import shutil
import time

import pytest

import cystore
from cystore.layout import CONSTANTS
from tests.support.golden.cystore_config import cystore_config
from tests.support.interop import specs
from tests.support.interop.cystore_side import digests, dump_of_copy
from tests.support.interop.expect import message_of, rows_of
from tests.support.interop.rocketmq import ANSWER_TIMEOUT_S

SCHEDULE = "SCHEDULE_TOPIC_XXXX"
TIMER_QUEUE_ID = CONSTANTS["TIMER_QUEUE_ID"][0]
LEVELS = "3s 1h"
SPEC = {"config": specs.SMALL | {"messageDelayLevel": LEVELS}}
CONFIG = cystore_config(SPEC) | {"message_delay_level": LEVELS, "services": "none"}
UNTIL_DUE = [{"action": "sleep", "ms": 4_000}]


@pytest.fixture
def writer(rng):
    return specs.Writer(rng)


def put(store, item):
    message = message_of(item)
    return store.put(message.topic, message.body, queue_id=message.queue_id, keys=message.keys, tags=message.tags,
                     properties=message.properties, flag=message.flag, delay_level=item["delayTimeLevel"])  # fmt: skip


def bodies(items):
    return sorted(base64.b64decode(item["bodyB64"]) for item in items)


def delivered(store):
    queues = store.topics().get("DelayTopic", {})
    return sorted(bytes(m.body) for queue_id in queues for m in store.get("DelayTopic", queue_id, 0).messages)


def delivered_in(rows):
    return sorted(
        base64.b64decode(row["bodyB64"]) for row in rows_of(rows, "msg") if row["topic"] == "DelayTopic"
    )


def deliver_all(store, count):
    until = time.monotonic() + 60
    while count:
        count -= store.deliver(timeout_s=1)
        assert count >= 0
        assert time.monotonic() < until


def table(path):
    text = (path / "config" / "delayOffset.json").read_text()
    return {int(level): int(offset) for level, offset in re.findall(r"(\d+):(\d+)", text)}


def test_i9_rocketmq_delivers_what_cystore_wrote_and_cystore_knows_it(rocketmq, writer, tmp_path):
    path = tmp_path / "store"
    items = [writer.message("DelayTopic", 0, 40, delayTimeLevel=level) for level in (1, 2, 1, 1)]
    with cystore.open(path, **CONFIG) as store:
        puts = [put(store, item) for item in items]
    rows = rows_of(dump_of_copy(rocketmq, path, SPEC, tmp_path), "msg")
    assert [row["physicalOffset"] for row in rows if row["topic"] == SCHEDULE] == [
        puts[n].physical_offset for n in (0, 2, 3, 1)
    ]
    queues = digests(path, "consumequeue")
    rocketmq.write({**SPEC, "messages": UNTIL_DUE}, path).result(ANSWER_TIMEOUT_S)
    assert {name: queues[name] for name in queues} == {
        name: digest for name, digest in digests(path, "consumequeue").items() if name in queues
    }
    with cystore.open(path, **CONFIG) as store:
        assert delivered(store) == bodies([items[0], *items[2:]])
        assert store.deliver() == 0
        assert store.stats()["delayed"] == {2: 1}
        more = store.put("DelayTopic", b"more", delay_level=1)
        assert more.queue_offset == 3
        deliver_all(store, 1)
    assert table(path) == {1: 4, 2: 0}


def test_i9_cystore_delivers_what_rocketmq_wrote_and_rocketmq_knows_it(rocketmq, writer, tmp_path):
    path = tmp_path / "store"
    items = [
        writer.message("DelayTopic", n % 2, 40, delayTimeLevel=level) for n, level in enumerate((1, 1, 2, 1))
    ]
    rocketmq.write_and_halt({**SPEC, "messages": items}, path)
    with cystore.open(path, **CONFIG) as store:
        assert delivered(store) == []
        deliver_all(store, 3)
        assert delivered(store) == bodies([*items[:2], items[3]])
        for message in store.get("DelayTopic", 0, 0).messages:
            source = next(
                m for m in store.get(SCHEDULE, 0, 0).messages if m.physical_offset
                == int(message.properties["DELAY_SOURCE"].split(":")[2])
            )  # fmt: skip
            fields = (
                "body",
                "keys",
                "tags",
                "flag",
                "sys_flag",
                "born_timestamp_ms",
                "born_host",
                "store_host",
            )
            assert [getattr(message, name) for name in fields] == [getattr(source, name) for name in fields]
    assert table(path) == {1: 3, 2: 0}
    # RocketMQ continues behind our table, and delivers nothing twice.
    rocketmq.write({**SPEC, "messages": UNTIL_DUE}, path).result(ANSWER_TIMEOUT_S)
    rows = dump_of_copy(rocketmq, path, SPEC, tmp_path)
    assert delivered_in(rows) == bodies([*items[:2], items[3]])
    assert json.dumps(table(path)) == '{"1": 3, "2": 0}'


def test_queues_of_delayed_messages_are_byte_for_byte_those_of_rocketmq(rocketmq, writer, tmp_path):
    path = tmp_path / "store"
    levels = "1h 2h 7h 3d"
    spec = {"config": specs.SMALL | {"messageDelayLevel": levels}}
    items = [writer.message("DelayTopic", 0, 40, delayTimeLevel=1 + n % 5) for n in range(40)]
    rocketmq.write({**spec, "messages": items}, path).result(ANSWER_TIMEOUT_S)
    theirs = {name: digest for name, digest in digests(path, "consumequeue").items() if SCHEDULE in name}
    assert len(theirs) == 4
    shutil.rmtree(path / "consumequeue")
    (path / "abort").touch()
    settings = cystore_config(spec) | {"message_delay_level": levels}
    with cystore.open(path, **settings) as store:
        assert store.stats()["delayed"] == {1: 8, 2: 8, 3: 8, 4: 16}
    assert digests(path, "consumequeue") == theirs


@pytest.mark.parametrize("rebuilds", [False, True], ids=["opens", "rebuilds"])
def test_i9_messages_with_a_time_wait_while_rocketmq_has_the_store(rocketmq, writer, tmp_path, rebuilds):
    """It delivers from no queue but those of its levels, loses nothing of its own, and cystore goes on with the timer,
    also where RocketMQ made the timer's queue anew."""
    path, hour_ms = tmp_path / "store", 3_600_000
    with cystore.open(path, **CONFIG) as store:
        put(store, writer.message("DelayTopic", 0, 40, delayTimeLevel=1))
        for key, delay_ms in (("soon", 3_000), ("later", hour_ms), ("cancelled", 3_000), ("moved", 3_000)):
            store.put("DelayTopic", key.encode(), keys=(key,), tags="A", delay_ms=delay_ms)
        assert store.cancel("DelayTopic", "cancelled")
        assert store.reschedule("DelayTopic", "moved", int(time.time() * 1000) + 2 * hour_ms)
        level_body = bytes(store.get(SCHEDULE, 0, 0).messages[0].body)
        dues = {m.keys[0]: m.deliver_at_ms for m in store.pending("DelayTopic")}
    if rebuilds:
        shutil.rmtree(path / "consumequeue")
    own = [writer.message("DelayTopic", 1, 40), writer.message("DelayTopic", 0, 40, delayTimeLevel=2)]
    rocketmq.write({**SPEC, "messages": [*own, *UNTIL_DUE]}, path).result(ANSWER_TIMEOUT_S)
    rows = dump_of_copy(rocketmq, path, SPEC, tmp_path)
    assert delivered_in(rows) == sorted([level_body, *bodies(own[:1])])
    assert table(path)[TIMER_QUEUE_ID + 1] == 0
    with cystore.open(path, **CONFIG) as store:
        assert {m.keys[0]: m.deliver_at_ms for m in store.pending("DelayTopic")} == dues
        assert store.stats()["delayed"] == {0: 3, 2: 1}
        deliver_all(store, 1)
        assert delivered(store) == sorted([level_body, b"soon", *bodies(own[:1])])
        assert [m.keys for m in store.pending("DelayTopic")] == [("later",), ("moved",)]
        assert store.cancel("DelayTopic", "later") and not store.cancel("DelayTopic", "cancelled")
