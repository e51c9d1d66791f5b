"""Goal: the worker of the fault matrix tells a wrong answer from bytes that were hit after the store had checked them
(I8). Method: a message is read, then a byte of it is flipped in the file; and a right message is taken for another."""

from __future__ import annotations

import os

import pytest

from tests.support.processes.worker import Worker, right
from tests.support.small_stores import SETTINGS


@pytest.fixture
def worker(in_memory):
    worker = Worker(str(in_memory / "store"), SETTINGS, 1)
    yield worker
    worker.store.close()


def stored(worker):
    """An acknowledged message, as it was put and as it is read."""
    worker.put()
    topic, queue_id, queue_offset, key, *_ = worker.acknowledged[-1]
    worker.store.dispatch()
    (message,) = worker.store.get(topic, queue_id, queue_offset, 1).messages
    return key, message


def flip(worker, message, part):
    """Flips a bit of a part of the record that is found by its bytes."""
    with (worker.path / "commitlog" / f"{0:020d}").open("r+b") as file:
        record = os.pread(file.fileno(), message.size_bytes, message.physical_offset)
        at = message.physical_offset + record.rindex(part)
        os.pwrite(file.fileno(), bytes([part[0] ^ 8]), at)


@pytest.mark.parametrize("where", ["keys", "body"])
def test_i8_bytes_that_are_hit_behind_the_check_are_no_wrong_answer(worker, where):
    key, message = stored(worker)
    flip(worker, message, key.encode() if where == "keys" else bytes(message.body)[-8:])
    assert not right(message)
    assert worker._right(message, key)


def test_another_message_is_a_wrong_answer(worker):
    (key, message), (other, _) = stored(worker), stored(worker)
    assert worker._right(message, key)
    assert not worker._right(message, other)
