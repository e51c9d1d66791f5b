"""Goal: messages that are due leave in runs exactly as they would leave one by one (I9). Method: stores of random
waiting messages, plain and odd, with holes, damage and wrong stamps; two copies of each are delivered in the same
steps, one of them without runs."""

from __future__ import annotations

import logging
import shutil
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import cystore
from cystore.layout import CONSTANTS
from cystore.services.delay import delivery
from cystore.services.delay.waiting import WaitingQueues
from tests.oracle.checkpoint import Checkpoint
from tests.oracle.log import lay_out
from tests.oracle.record import (
    BORN_HOST_V6,
    CYSTORE_MAGIC,
    ROCKETMQ_MAGIC,
    SCHEDULE_TOPIC,
    STORE_HOST_V6,
    Record,
)
from tests.property.test_store import few, scratch
from tests.property.test_transfer import property_strings
from tests.support.clock import stop
from tests.support.property import stores

NOW_MS = 1_700_000_000_000
YEAR_MS = 365 * 86_400_000
FILE_BYTES = 64 * 1024
HOLE_SIZE = CONSTANTS["HOLE_ENTRY_SIZE"][0]
TARGET = b"\x02REAL_TOPIC\x01T\x02REAL_QID\x010"
QUEUES = (0, 1, 2, 256, 257)  # three levels, and a run of carried messages of two of them
LEVELS = {"message_delay_level": "1s 1s 2s"}  # many are due in the same millisecond

plain = st.builds(
    lambda level, topic, due: (
        b"KEYS\x01k\x02DELAY\x01%d\x02REAL_TOPIC\x01%s\x02REAL_QID\x012%s" % (level, topic, due)
    ),
    st.integers(1, 3),
    st.sampled_from([b"T", b"U"]),
    st.sampled_from([b"", b"\x02DELAY_DUE\x01%d" % (NOW_MS + 1500), b"\x02DELAY_DUE\x01%d" % (NOW_MS + 90)]),
)
# More properties than usual, longer ones, other alphabets, and levels that the store has not.
large = st.sampled_from(
    [
        *(b"DELAY\x01%s" % level + TARGET for level in (b"0", b"4", b"-1", b"x", b"2147483648", b"9" * 30)),
        b"KEYS\x01" + b"k" * 20_000 + TARGET,
        b"KEYS\x01" + b" ".join(b"k%d" % n for n in range(500)) + TARGET,
        b"\x02".join(b"p%d\x01%d" % (n, n) for n in range(2_000)) + TARGET,
        "键\x01值\x02\U0001f600\x01é".encode() + TARGET + "\x02é".encode(),
    ]
)
# A waiting message: its queue, the time since the one before it, its properties, and the least length of its body.
waiting = st.tuples(
    st.sampled_from(QUEUES),
    st.sampled_from([*[0, 1, 7, 200] * 6, 1_000, 4_000, YEAR_MS]),
    st.one_of(*[plain] * 6, large, property_strings),
    st.sampled_from([*[0] * 8, 1_000, 20_000]),  # some end a file
)
FORMATS = {
    "cystore": (CYSTORE_MAGIC,),
    "rocketmq": (ROCKETMQ_MAGIC,),
    "both": (CYSTORE_MAGIC, ROCKETMQ_MAGIC),
}
# Number of a message, and what becomes of it when it is dispatched.
HARMS = ["record", "range", "hole", "hole", "due time", "far unit", "size", "place"]
harm = st.tuples(st.integers(0, 29), st.sampled_from(HARMS))
steps = st.lists(
    st.tuples(st.sampled_from([0, 500, 1_100, 3_000]), st.none() | st.integers(1, 9)), max_size=5
)


def written(
    path: Path, messages: list[tuple[int, int, bytes, int]], formats: str = "cystore"
) -> tuple[dict, list[Record], int]:
    """A store whose log has these messages; returns its settings, the records, and the log's end. Some have hosts of
    IPv6."""
    bare, next_offset, stamp_ms = [], dict.fromkeys(QUEUES, 0), NOW_MS
    for number, (queue_id, later_ms, raw, least) in enumerate(messages):
        stamp_ms += later_ms
        sys_flag = (0, 0, 0, BORN_HOST_V6, STORE_HOST_V6 | 1)[number % 5]
        bare.append(
            Record(
                topic=SCHEDULE_TOPIC,
                body=(b"%d" % number).ljust(least),
                magic=FORMATS[formats][number % len(FORMATS[formats])],
                flag=number,
                sys_flag=sys_flag,
                reconsume_times=number % 3,
                born_host=bytes(range(20 if sys_flag & BORN_HOST_V6 else 8)),
                store_host=bytes(range(20 if sys_flag & STORE_HOST_V6 else 8)),
                queue_id=queue_id,
                queue_offset=next_offset[queue_id],
                born_timestamp_ms=NOW_MS,
                store_timestamp_ms=stamp_ms,
                raw_properties=raw,
            )
        )
        next_offset[queue_id] += 1
    log, records, end = lay_out(bare, FILE_BYTES)
    stores.write_log(path, log, records, Checkpoint(), clean=False)
    settings = stores.config(log) | LEVELS | {"services": "none"}
    return settings | {"record_format": "rocketmq" if formats == "rocketmq" else "cystore"}, records, end


def damage(store: cystore.MessageStore, path: Path, record: Record, what: str) -> None:
    """Damages the record or its entry, after it was dispatched."""
    log = path / "commitlog" / f"{record.physical_offset - record.physical_offset % FILE_BYTES:020d}"
    parts = store._attached()
    if what == "range":
        parts.commit_log.damage.add(record.physical_offset, record.end, "test", "")
        return
    if what == "record":
        with log.open("r+b") as file:
            file.seek(record.physical_offset % FILE_BYTES + 90)
            file.write(b"\xfe")
        return
    slot = parts.control.find_queue(SCHEDULE_TOPIC, record.queue_id)
    entries = parts.queues.get(slot).file_of(record.queue_offset)
    at = record.queue_offset * 20 - entries.base
    with Path(entries.path).open("r+b") as file:
        file.seek(at)
        entry = bytearray(file.read(20))
        place, due = int.from_bytes(entry[:8], "big"), int.from_bytes(entry[12:], "big", signed=True)
        if what == "due time":
            entry[12:] = (due ^ 1 << 4).to_bytes(8, "big", signed=True)
        elif what == "far unit":
            entry[12:] = (-(1 << 63) + 4096).to_bytes(8, "big", signed=True)
        elif what == "hole":
            entry[:] = bytes(8) + HOLE_SIZE.to_bytes(4, "big") + bytes(8)
        elif what == "size":
            entry[8:12] = (record.size + 1).to_bytes(4, "big")
        else:
            entry[:8] = (place ^ 1 << 40).to_bytes(8, "big")
        file.seek(at)
        file.write(entry)


@contextmanager
def heard():
    """What is logged, without places in memory."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("cystore")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


def content_of(m: cystore.Message) -> tuple:
    """All of a delivered message but the time of its delivery."""
    place = m.topic, m.queue_id, m.queue_offset, m.physical_offset, m.size_bytes, m.record_format
    hosts = m.born_timestamp_ms, m.born_host, m.store_host
    numbers = m.flag, m.sys_flag, m.reconsume_times, m.prepared_transaction_offset
    return place, hosts, numbers, bytes(m.body), m.properties_bytes


def delivered(path: Path, config: dict, records: list[Record], end: int, harms, moves):
    """Delivers the store step by step: what each step delivered, what was logged, and where each queue stands."""
    found: list = []
    with pytest.MonkeyPatch.context() as patch, heard() as lines, cystore.open(path, **config) as store:
        store.dispatch()
        for number, what in harms:
            if number < len(records):
                damage(store, path, records[number], what)
        lines.clear()
        now_ms = NOW_MS + 60
        for passed_ms, limit in (*moves, (7_000, None), (2 * YEAR_MS, None)):
            now_ms += passed_ms
            stop(patch, now_ms)
            found.append(store.deliver(max_messages=limit))
        progress = store._attached().delivered
        found.append({queue_id: progress.offset(slot) for queue_id, slot in progress.slots().items()})
        found += [content_of(message) for message in store.scan(end)]
        return found, [line.replace(str(path), "") for line in lines]


@few
@given(
    st.lists(waiting, min_size=1, max_size=30),
    st.lists(harm, max_size=4),
    steps,
    st.sampled_from(["mapping", "pread"]),
    st.sampled_from([1, 3, 256]),
    st.sampled_from([500, 1 << 20]),
    st.sampled_from(list(FORMATS)),
)
def test_i9_runs_deliver_as_steps_do(messages, harms, moves, through, batch, batch_bytes, formats):
    with scratch() as path, pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "BATCH_MESSAGES", batch)
        patch.setattr(delivery, "BATCH_BYTES", batch_bytes)
        config, records, end = written(path, messages, formats)
        config["read_through"] = through
        other = path.with_name("other")
        shutil.copytree(path, other)
        in_runs = delivered(path, config, records, end, harms, moves)
        patch.setattr(WaitingQueues, "run", lambda self, runs, queue, begin, *_: ([], 0, begin, None))
        assert in_runs == delivered(other, config, records, end, harms, moves)


def test_plain_messages_leave_in_runs(tmp_path, monkeypatch):
    """Else the comparison above would compare steps with steps."""
    config, _, _ = written(tmp_path / "store", [(0, 0, b"DELAY\x011" + TARGET, 0)] * 200)
    config["mapped_file_size_consume_queue_bytes"] = 200 * 20  # a run ends with its file
    taken = []
    run = WaitingQueues.run
    monkeypatch.setattr(WaitingQueues, "run", lambda *of: taken.append(run(*of)) or taken[-1])
    with cystore.open(tmp_path / "store", **config) as store:
        assert store.deliver() == 200
    assert {at for found, *_ in taken for _, at, _ in found} == set(range(200))
