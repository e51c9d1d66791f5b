"""Goal: the checkpoint keeps RocketMQ's bytes and ours. Method: compare with the oracle's own parser and with golden
stores."""

import os
import struct

import pytest

from cystore.engine.files.checkpoint import (
    FILE_BYTES,
    Checkpoint,
    CheckpointFields,
    parse_checkpoint,
    read_checkpoint,
)
from cystore.engine.files.segments import Mode
from cystore.errors import StoreError
from tests.oracle import checkpoint as oracle


def test_each_field_stands_where_the_format_says(tmp_path):
    checkpoint = Checkpoint(tmp_path, Mode.WRITE)
    checkpoint.physic_timestamp, checkpoint.logics_timestamp, checkpoint.index_timestamp = 11, 12, 13
    checkpoint.set_watermark(2**62 + 5, 2**62 + 1, 0xFEDCBA98)
    checkpoint.index_watermark = 77
    checkpoint.sync()
    checkpoint.close()
    data = (tmp_path / "checkpoint").read_bytes()
    assert data == oracle.encode(oracle.Checkpoint(11, 12, 13, 2**62 + 5, 2**62 + 1, 0xFEDCBA98, 77))
    assert len(data) == FILE_BYTES == 4096
    assert read_checkpoint(tmp_path) == CheckpointFields(11, 12, 13, 2**62 + 5, 2**62 + 1, 0xFEDCBA98, 77)


def test_what_rocketmq_wrote_is_kept(tmp_path):
    (tmp_path / "checkpoint").write_bytes(struct.pack(">qqq", 1, 2, 3).ljust(4096, b"\0"))
    checkpoint = Checkpoint(tmp_path, Mode.WRITE)
    assert checkpoint.fields() == CheckpointFields(1, 2, 3)
    checkpoint.set_watermark(91, 0, 5)
    assert checkpoint.fields() == CheckpointFields(1, 2, 3, 91, 0, 5)
    assert (checkpoint.watermark, checkpoint.last_record, checkpoint.last_record_checksum) == (91, 0, 5)


@pytest.mark.parametrize("length", [0, 1, 24, 55, 4095])
def test_a_short_file_counts_as_zero_behind_its_end_and_is_made_whole(tmp_path, length):
    whole = oracle.encode(oracle.Checkpoint(1, 2, 3, 4, 5, 6, 7))
    (tmp_path / "checkpoint").write_bytes(whole[:length])
    expected = parse_checkpoint(whole[:length])
    assert expected == parse_checkpoint(whole[:length].ljust(4096, b"\0"))
    checkpoint = Checkpoint(tmp_path, Mode.WRITE)
    assert checkpoint.fields() == expected
    assert os.path.getsize(tmp_path / "checkpoint") == 4096


def test_another_process_sees_what_is_stored_before_it_is_synced(tmp_path):
    writer, reader = Checkpoint(tmp_path, Mode.WRITE), Checkpoint(tmp_path, Mode.READ)
    writer.set_watermark(1000, 900, 1)
    assert (
        reader.fields()
        == writer.fields()
        == CheckpointFields(watermark=1000, last_record=900, last_record_checksum=1)
    )
    with pytest.raises(StoreError):
        reader.watermark = 1


def test_a_private_checkpoint_leaves_the_file_alone(tmp_path):
    before = oracle.encode(oracle.Checkpoint(1, 2, 3))
    (tmp_path / "checkpoint").write_bytes(before)
    private = Checkpoint(tmp_path, Mode.PRIVATE)
    private.set_watermark(5, 6, 7)
    private.sync()
    assert private.watermark == 5
    private.close()
    assert (tmp_path / "checkpoint").read_bytes() == before


def test_no_checkpoint_is_all_zero_and_private_makes_none(tmp_path):
    assert read_checkpoint(tmp_path) == CheckpointFields()
    assert Checkpoint(tmp_path, Mode.PRIVATE).fields() == CheckpointFields()
    assert list(tmp_path.iterdir()) == []


def test_a_link_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").write_bytes(bytes(4096))
    (tmp_path / "checkpoint").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(StoreError, match="checkpoint"):
        Checkpoint(tmp_path, Mode.WRITE)
