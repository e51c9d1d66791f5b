"""Goal: a batch (`put_many(..., batch=True)`) lies in one segment, so it is there as a whole or not at all, and looks
like one of RocketMQ's: one queue, one time, one offset after the other. Method: batches at the end of small segments,
killed in between; bad ones."""

from __future__ import annotations

import contextlib
import signal

import pytest

import cystore
from cystore import Message, MessageIllegalError
from tests.support.process import Process

SEGMENT_BYTES = 1 << 16
SMALL = {"mapped_file_size_commit_log_bytes": SEGMENT_BYTES, "services": "none"}


def batch_of(count, size=100, **more):
    return [
        Message(**{"topic": "B", "queue_id": 3, "body": bytes([n % 256]) * size, "keys": (f"k{n}",), **more})
        for n in range(count)
    ]


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store", **SMALL) as opened:
        yield opened


def test_a_batch_follows_itself_in_one_queue_at_one_time(store):
    store.put("B", b"first", queue_id=3)
    results = store.put_many(batch_of(50), batch=True)
    assert [result.queue_offset for result in results] == list(range(1, 51))
    assert len({result.store_timestamp_ms for result in results}) == 1
    ends = [result.physical_offset + result.size_bytes for result in results]
    assert [result.physical_offset for result in results[1:]] == ends[:-1]
    assert [bytes(m.body)[:1] for m in store.get("B", 3, 1, 50).messages] == [bytes([n]) for n in range(32)]


@pytest.mark.parametrize("left", [8, 9, 300, 5_000])
def test_a_batch_that_does_not_fit_goes_to_the_next_segment_as_a_whole(store, left):
    batch = batch_of(30)
    frame = store.put("A", b"").size_bytes  # without keys
    store.put("A", bytes(SEGMENT_BYTES - 2 * frame - left))
    assert store.wrote_position == SEGMENT_BYTES - left
    results = store.put_many(batch, batch=True)
    assert results[0].physical_offset == SEGMENT_BYTES
    assert sum(result.size_bytes for result in results) > left
    assert [m.physical_offset for m in store.scan(SEGMENT_BYTES)] == [r.physical_offset for r in results]
    assert len(list(store.scan())) == 32
    store.flush()


def test_without_batch_it_is_divided(store):
    frame = store.put("A", b"").size_bytes
    store.put("A", bytes(SEGMENT_BYTES - 2 * frame - 5_000))
    results = store.put_many(batch_of(30))
    assert results[0].physical_offset == SEGMENT_BYTES - 5_000 and results[-1].physical_offset > SEGMENT_BYTES


@pytest.mark.parametrize(
    ("messages", "what"),
    [
        ([*batch_of(2), *batch_of(1, topic="C")], r"messages\[2\]: topic: a batch has one topic"),
        ([*batch_of(1), *batch_of(1, queue_id=4)], r"messages\[1\]: queue_id: a batch has one queue, 3, not 4"),
        (batch_of(2, delay_level=2), r"messages\[0\]: delay_level: a batch is not delayed"),
        ([*batch_of(1), *batch_of(1, sys_flag=4)], r"messages\[1\]: sys_flag: .* transaction"),
        (batch_of(60, size=1_000), (r"messages: the records of a batch have \d+ bytes, at most "
                                    "max_message_size_bytes = 50000")),
        ([3], r"messages\[0\]: must be a Message"),
    ],
)  # fmt: skip
def test_a_batch_that_rocketmq_would_refuse_is_refused_whole(tmp_path, messages, what):
    with cystore.open(tmp_path / "store", **SMALL, max_message_size_bytes=50_000) as store:
        before = store.wrote_position
        with pytest.raises(MessageIllegalError, match=what):
            store.put_many(messages, batch=True)
        assert store.wrote_position == before
        assert store.put_many([], batch=True) == []


def test_a_batch_longer_than_a_segment_is_refused(store):
    with pytest.raises(MessageIllegalError, match=r"have \d+ bytes, a whole commit log file 65536"):
        store.put_many(batch_of(80, size=1_000), batch=True)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "place", ["append.blank_published:1", "append.bytes_written:15", "append.before_publish:1"]
)
def test_i1_a_batch_whose_writer_was_killed_is_there_as_a_whole_or_not_at_all(
    tmp_path, build_environment, place
):
    """Between two segments: the blank may stand alone, the batch never in part. Recovery takes it once all of its
    bytes are written."""
    path = tmp_path / "store"
    with cystore.open(path, **SMALL) as store:
        frame = store.put("A", b"").size_bytes
        store.put("A", bytes(SEGMENT_BYTES - 2 * frame - 5_000))
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": place}
    with Process(environment) as victim:
        victim.send(
            "import cystore\nfrom tests.unit.engine.test_batch import batch_of\n"
            "cystore.open(path, **settings).put_many(batch_of(30), batch=True)",
            path=str(path),
            settings=SMALL,
        )
        with contextlib.suppress(EOFError):
            victim.answer()
        assert victim.wait() == -signal.SIGKILL
    with cystore.open(path, **SMALL) as store:
        found = len([message for message in store.scan() if message.topic == "B"])
        assert found == (30 if place.startswith("append.before_publish") else 0)
        assert store.put_many(batch_of(30), batch=True)[0].queue_offset == found
