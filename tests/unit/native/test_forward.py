"""Goal: no step of the log ever moves back, whatever the length of a segment, and no segment is longer than
RocketMQ's int (I1). Method: segments of more than 2 GiB, which take no space until they are written to, and every
setter of a position."""

from __future__ import annotations

import pytest

import cystore
from cystore._native.append.append import end_segment
from cystore._native.memory.mapping import MappedFile
from cystore.config import INT_MAX, StoreConfig
from cystore.errors import StoreConfigError, StoreFormatError
from tests.support.parts import control_block
from tests.support.small_stores import LOG_BYTES, open_small

GIB = 1 << 30


@pytest.mark.parametrize("length", [INT_MAX + 1, 3 * GIB, 5 * GIB])
def test_a_segment_of_more_than_an_int_is_refused(tmp_path, length):
    """Seen: 3 GiB were accepted; the blank at a roll by time had a negative length, and the log continued from
    position 0."""
    with pytest.raises(StoreConfigError, match=f"must be 4096 to {INT_MAX}"):
        cystore.open(tmp_path / "s", mapped_file_size_commit_log_bytes=length)
    assert not (tmp_path / "s").exists()


def test_a_store_that_has_such_segments_is_read_and_not_written_to(tmp_path):
    """A version of before made it."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"body")
    (path / "commitlog" / f"{LOG_BYTES:020d}").unlink(
        missing_ok=True
    )  # perhaps made ahead of need, and empty
    with open(path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.truncate(3 * GIB)
    with pytest.raises(StoreFormatError, match=f"{3 * GIB} bytes; files above {INT_MAX} cannot be written"):
        open_small(path)
    with open_small(path, read_only=True) as store:
        assert [bytes(message.body) for message in store.scan()] == [b"body"]


@pytest.mark.parametrize("length", [INT_MAX + 9, 3 * GIB, 4 * GIB + 100])
def test_the_kernel_ends_no_segment_whose_room_is_more_than_an_int(length):
    """Seen: 3 GiB - 1 of room became a negative number, and the wrote position followed it."""
    control = control_block(StoreConfig())
    segment = MappedFile.anonymous(0, length)
    control.allocated = 2 * length
    control.wrote = 1
    assert end_segment(control, segment) is False
    assert control.wrote == 1
    assert control.intent is None
    assert segment.read(0, 16) == bytes(16)


def test_the_kernel_ends_a_segment_as_long_as_an_int():
    control = control_block(StoreConfig())
    segment = MappedFile.anonymous(0, INT_MAX)
    control.allocated = 2 * INT_MAX
    control.wrote = 1
    assert end_segment(control, segment) is True
    assert control.wrote == INT_MAX
    assert segment.read(1, 4) == (INT_MAX - 1).to_bytes(4, "big")


@pytest.mark.parametrize("position", ["wrote", "flushed", "allocated", "min_physical_offset"])
def test_no_position_is_set_back(position):
    """By no process, for no reason: what is below it would be written, synced or removed a second time."""
    control = control_block(StoreConfig())
    setattr(control, position, 8192)
    setattr(control, position, 8192)
    with pytest.raises(StoreFormatError, match="stands at 8192 and cannot go back to 8191"):
        setattr(control, position, 8191)
    assert getattr(control, position) == 8192
