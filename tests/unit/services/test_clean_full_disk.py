"""Goal: a disk that is 100 % full can be cleaned and closed on. Method: stores on small disks of their own, filled to
the last byte."""

from __future__ import annotations

import pytest

from cystore.derived.files.offsets import QueueOffsets, read_queue_offsets, write_queue_offsets
from cystore.system import files
from cystore.system.small_files import SPARE
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk

pytestmark = pytest.mark.unsanitized  # about full disks


FULL = """
import logging, os, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, dispatches, queues = sys.argv[1], sys.argv[2] == "dispatched", int(sys.argv[3])
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0}
def use_up():
    rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(rest, bytes(4096)):
            pass
    except OSError:
        os.close(rest)
store = open_small(path, **settings)
put = {}
def fill():
    try:
        while True:
            queue = store.stats()["put_count"] % queues
            put[queue] = store.put("T", os.urandom(3000), queue_id=queue, keys=("k",)).queue_offset
            if dispatches:
                store.dispatch()
    except cystore.StoreFullError:
        use_up()
for turn in range(4):
    fill()
    done = store.clean()
    assert done.segments > 0, (turn, done)
    os.unlink(os.path.join(root, "rest"))
    use_up()  # somebody else takes what was cleaned: nothing is left for the state files
    done = store.clean()
    os.unlink(os.path.join(root, "rest"))
fill()
store.close()
os.unlink(os.path.join(root, "rest"))
with open_small(path, **settings) as store:
    store.clean()
    for queue, offset in put.items():
        assert store.put("T", b"", queue_id=queue).queue_offset == offset + 1, queue
print("went on")
"""


@pytest.mark.sampled(2)
@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("dispatched", ["dispatched", "nobody dispatches"])
@pytest.mark.parametrize("queues", [3, 100])
def test_a_full_disk_is_cleaned_and_closed_on(tmp_path, dispatched, queues):
    """Seen: clean needed space for a state file and gave up; where the disk was too full to dispatch, nothing could
    ever go."""
    out = on_small_disk("3m", tmp_path, FULL, dispatched, str(queues))
    assert out == "went on\n"


def table(position: int) -> QueueOffsets:
    return QueueOffsets(
        {("T", n): position + n for n in range(100)}, {("T", n): n for n in range(100)}, position
    )


def test_a_table_is_written_into_space_that_it_has(tmp_path, monkeypatch):
    """From the second time on nothing is allocated, and both what was written and the one before can be read."""
    write_queue_offsets(tmp_path, table(1))
    write_queue_offsets(tmp_path, table(2))
    write_queue_offsets(tmp_path, table(3))

    def refuse(fd, begin, end, path=""):
        raise AssertionError("space was asked for")

    monkeypatch.setattr(files, "allocate", refuse)
    for position in range(4, 10):
        write_queue_offsets(tmp_path, table(position))
        assert read_queue_offsets(tmp_path) == table(position)
        path = tmp_path / "config" / "queueOffset.json"
        whole = path.read_bytes()
        path.write_bytes(b"damaged".ljust(len(whole)))
        assert read_queue_offsets(tmp_path) == table(position - 1)
        path.write_bytes(whole)


def test_what_a_kill_left_in_the_spare_is_not_read(tmp_path):
    write_queue_offsets(tmp_path, table(1))
    write_queue_offsets(tmp_path, table(2))
    (tmp_path / "config" / f"queueOffset.json{SPARE}").write_bytes(b"half a table")
    assert read_queue_offsets(tmp_path) == table(2)
    write_queue_offsets(tmp_path, table(3))
    assert read_queue_offsets(tmp_path) == table(3)


COMPACTED = """
import logging, os, sys
import cystore
from cystore.engine.files.compacted_file import numbers
from tests.support.small_stores import open_small
from pathlib import Path
logging.disable()
root = sys.argv[1]
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0, "compacted_topics": "state"}
def use_up():
    rest = os.open(os.path.join(root, "rest"), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    try:
        while os.write(rest, bytes(4096)):
            pass
    except OSError:
        os.close(rest)
with open_small(path, **settings) as store:
    model = {}
    def fill(count, size):
        for number in range(count):
            model[f"k{number % 20}"] = os.urandom(size)
            store.put("state", model[f"k{number % 20}"], keys=[f"k{number % 20}"])
        store.flush()
    def check():
        assert {key: bytes(store.latest("state", key).body) for key in model} == model
    fill(100, 3000)
    store.compact()
    store.clean()
    fill(100, 3000)
    store.dispatch()
    os.unlink(os.path.join(path, "compacted", "reserve"))
    use_up()
    try:
        store.compact()
    except cystore.StoreFullError as error:
        assert error.path is not None
        print("full")
    assert numbers(Path(path)) == [0]
    check()
    done = store.clean()
    assert done.segments > 0
    check()
    os.unlink(os.path.join(root, "rest"))
    assert store.clean().segments + done.segments > 3
    check()
with open_small(path, **settings) as store:
    check()
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_a_full_disk_keeps_the_compacted_file_in_force(tmp_path):
    assert on_small_disk("6m", tmp_path, COMPACTED) == "full\nwent on\n"


COMPACTED_AND_FULL = """
import logging, os, sys
import cystore
from tests.support.small_stores import open_small
logging.disable()
root, dispatches = sys.argv[1], sys.argv[2] == "dispatched"
path = os.path.join(root, "s")
settings = {"mapped_file_size_commit_log_bytes": 1 << 16, "file_reserved_time_h": 0, "compacted_topics": "state"}
store = open_small(path, **settings)
model = {}
def fill():
    number = 0
    try:
        while True:
            key = f"k{number % 15}"
            value = os.urandom(3000)
            store.put("state", value, keys=[key])
            model[key] = value
            number += 1
            if dispatches:
                store.dispatch()
    except cystore.StoreFullError:
        pass
for turn in range(4):
    fill()
    done = store.clean()
    assert done.segments > 0, (turn, done)
    store.dispatch()
    found = {key: store.latest("state", key) for key in model}
    assert {key: one and bytes(one.body) for key, one in found.items()} == model, turn
fill()
store.close()
with open_small(path, **settings) as store:
    assert store.clean().segments > 0
    store.dispatch()
    assert {key: bytes(store.latest("state", key).body) for key in model} == model
print("went on")
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("dispatched", ["dispatched", "nobody dispatches"])
def test_a_full_disk_is_cleaned_while_topics_are_compacted(tmp_path, dispatched):
    """Seen: compaction waited for records that no process could dispatch or flush; cleaning waited for compaction."""
    assert on_small_disk("3m", tmp_path, COMPACTED_AND_FULL, dispatched) == "went on\n"
