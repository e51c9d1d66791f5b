"""Goal: a golden store that cystore opened for writing is still RocketMQ's, to the byte, and continues where it
stopped; one opened for reading is not touched. Method: the files before and after, against RocketMQ's hashes
and the oracle."""

import hashlib

import pytest

import cystore
from tests.oracle import store as oracle
from tests.support.golden.answers import queue_messages, topics_and_queues
from tests.support.golden.cystore_config import cystore_config


@pytest.fixture
def view(golden) -> oracle.View:
    """The oracle's view before cystore touches the directory."""
    return oracle.recover(oracle.read_directory(golden.store), "truncate")


def test_a_writable_open_leaves_rocketmqs_files(golden, view):
    """After recovery and a clean close commit log and consume queues are RocketMQ's to the byte. Where
    RocketMQ cuts it leaves old bytes; cystore zeroes them, and so a cut queue is what its log says."""
    directory = oracle.read_directory(golden.store)
    with cystore.open(golden.store, damaged_range="truncate", **cystore_config(golden.spec)):
        pass
    assert not (golden.store / "abort").exists()
    after = oracle.read_directory(golden.store)
    expected_log = directory.log.zeroed_from(view.outcome.end)
    for base, data in after.log.files.items():
        assert data == expected_log.get(base, bytes(len(data))), base
    assert set(expected_log) <= set(after.log.files)
    cut = "badRecord" in golden.spec
    for path, (size, digest) in golden.after.items():
        if digest == "-" or (cut and path.startswith("commitlog/")):
            continue
        data = (golden.store / path).read_bytes()
        assert len(data) == size
        if cut:
            entries = oracle.queue.read_entries({0: data})
            assert data == oracle.queue.queue_files(entries, size)[0]
            assert set(entries) == set(view.queues[_queue_of(path)].entries)
        else:
            assert hashlib.sha256(data).hexdigest() == digest, path


def _queue_of(path: str) -> tuple[str, int]:
    _, topic, queue_id, _ = path.split("/")
    return topic, int(queue_id)


def test_read_only_changes_no_file(golden):
    before = files_of(golden.store)
    with cystore.open(golden.store, read_only=True, **cystore_config(golden.spec)) as store:
        assert sum(1 for _ in store.scan()) > 0
        for topic, queue_id in topics_and_queues(store):
            assert list(queue_messages(store, topic, queue_id))
    assert files_of(golden.store) == before


def files_of(directory) -> dict[str, bytes]:
    return {
        str(path.relative_to(directory)): path.read_bytes()
        for path in sorted(directory.rglob("*"))
        if path.is_file()
    }


def test_opened_twice_it_is_the_same_store(golden, view):
    """The first open left a clean store with the same answers."""
    config = cystore_config(golden.spec)
    with cystore.open(golden.store, damaged_range="truncate", **config):
        pass
    after = oracle.recover(oracle.read_directory(golden.store), "truncate")
    assert [r.raw for r in after.records] == [r.raw for r in view.records]
    assert {key: live.maximum for key, live in after.queues.items()} == {
        key: live.maximum for key, live in view.queues.items()
    }
    assert all(after.queue_messages(key) == view.queue_messages(key) for key in view.queues)
    with cystore.open(golden.store, damaged_range="truncate", **config) as store:
        assert [m.physical_offset for m in store.scan()] == [r.physical_offset for r in view.records]


def test_the_next_message_gets_the_next_offsets(golden, view):
    """Puts go on where RocketMQ stopped, in every queue, and both find the new message by key."""
    with cystore.open(golden.store, damaged_range="truncate", **cystore_config(golden.spec)) as store:
        for topic, queue_id in sorted(view.queues):
            if topic.startswith("SCHEDULE_TOPIC"):
                continue
            put = store.put(topic, b"next", queue_id=queue_id, keys=("a-new-key",))
            assert put.queue_offset == view.queues[topic, queue_id].maximum
            assert put.physical_offset >= view.outcome.end
            assert [m.physical_offset for m in store.query(topic, "a-new-key", 1)] == [put.physical_offset]
    after = oracle.recover(oracle.read_directory(golden.store), "truncate")
    assert [r.raw for r in after.records[: len(view.records)]] == [r.raw for r in view.records]
    assert all(r.body == b"next" for r in after.records[len(view.records) :])
