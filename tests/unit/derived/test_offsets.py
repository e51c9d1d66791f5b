"""Goal: offset tables are read as fastjson writes them, written as it reads them, and never half. Method: golden
files, the oracle's parser, hypothesis, damaged bytes."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cystore._native.record.checksum import crc32c
from cystore.derived.files.offsets import (
    DELAY_OFFSETS,
    QueueOffsets,
    parse_offsets,
    read_offsets,
    read_queue_offsets,
    render_offsets,
    saved_position,
    write_offsets,
    write_queue_offsets,
)
from cystore.errors import StoreFormatError
from tests.oracle.checkpoint import parse_offsets as oracle_parse

ROCKETMQ = '{\n\t"offsetTable":{1:6,2:5\n\t}\n}'
numbers = st.integers(0, 2**63 - 1)
names = st.text(min_size=1, max_size=20)
flat = st.dictionaries(st.integers(0, 2**31 - 1), numbers, max_size=5)
tables = st.one_of(flat, st.dictionaries(names, flat, max_size=4))


def as_text(table):
    return {str(k): as_text(v) if isinstance(v, dict) else v for k, v in table.items()}


def test_rocketmqs_own_text():
    assert parse_offsets(ROCKETMQ).table == {"1": 6, "2": 5}
    assert parse_offsets('{"offsetTable":{}}').table == {}
    assert parse_offsets('{"dataVersion":{"counter":1},"offsetTable":{"t@g":{0:17,1:3}}}').table == {
        "t@g": {"0": 17, "1": 3}
    }
    assert render_offsets({1: 6, 2: 5}) == ROCKETMQ


@given(tables)
def test_what_is_written_is_read_back_by_us_and_by_the_oracle(table):
    text = render_offsets(table)
    assert parse_offsets(text).table == as_text(table)
    if all(isinstance(key, int) for key in table):
        assert oracle_parse(text) == table


@given(st.dictionaries(names, numbers, max_size=4))
def test_names_that_look_like_keys_stay_text(table):
    """A brace, comma or colon inside a string is no structure."""
    odd = {"{1:2," + name + '":3': value for name, value in table.items()}
    assert parse_offsets(json.dumps({"offsetTable": odd})).table == odd


@given(st.text(max_size=60))
def test_arbitrary_text_is_a_table_or_a_value_error(text):
    for candidate in (text, '{"offsetTable":' + text + "}", '{"offsetTable":{' + text + "}}"):
        try:
            table = parse_offsets(candidate).table
        except ValueError:
            continue
        for value in table.values():
            assert all(v >= 0 for v in (value.values() if isinstance(value, dict) else [value]))


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{1:-1}}',
        '{"offsetTable":{1:1.5}}',
        '{"offsetTable":{1:true}}',
        '{"offsetTable":{1:NaN}}',
        "[" * 100_000,
        '{"offsetTable":{1:9223372036854775808}}',
        '{"offsetTable":[1]}',
        "",
        "{",
        '{"offsetTable":{1:{2:{3:4}}}}',
    ],
)
def test_what_is_no_offset_is_refused(text):
    with pytest.raises(ValueError):
        parse_offsets(text)


def test_a_damaged_file_is_replaced_by_its_last_good_copy(tmp_path):
    write_offsets(tmp_path, DELAY_OFFSETS, {1: 6})
    write_offsets(tmp_path, DELAY_OFFSETS, {1: 7})
    path = tmp_path / "config" / DELAY_OFFSETS
    assert read_offsets(tmp_path, DELAY_OFFSETS).table == {"1": 7}
    path.write_bytes(b"\0" * 30)
    assert read_offsets(tmp_path, DELAY_OFFSETS).table == {"1": 6}
    path.with_name(path.name + ".bak").write_bytes(b"\xff")
    with pytest.raises(StoreFormatError, match="delayOffset"):
        read_offsets(tmp_path, DELAY_OFFSETS)
    path.unlink()
    path.with_name(path.name + ".bak").unlink()
    assert read_offsets(tmp_path, DELAY_OFFSETS).table == {}


def test_queue_offsets_keep_topic_queue_and_position(tmp_path):
    assert read_queue_offsets(tmp_path) == QueueOffsets()
    offsets = QueueOffsets(
        {("%RETRY%g|a", 0): 5, ("T", 1): 2**62, ("T", 0): 0}, {("T", 0): 0, ("T", 1): 7}, 4096
    )
    write_queue_offsets(tmp_path, offsets)
    assert read_queue_offsets(tmp_path) == offsets
    rows = [("T", 0, 9, 8, 3), ("U", 5, 1, 1, 1)]
    assert QueueOffsets.of(rows, 12) == QueueOffsets(
        {("T", 0): 9, ("U", 5): 1}, {("T", 0): 3, ("U", 5): 1}, 12
    )


@pytest.mark.parametrize(
    "text",
    [
        '{"offsetTable":{"T":5}}',
        '{"offsetTable":{"T":{x:5}}}',
        '{"offsetTable":{},"physicalOffset":-1}',
        '{"offsetTable":{},"minimumTable":{"T":{0:-1}}}',
        '{"offsetTable":{},"minimumTable":[]}',
    ],
)
def test_strange_queue_offsets_are_refused_by_name(tmp_path, text):
    (tmp_path / "config").mkdir()
    (tmp_path / "config" / "queueOffset.json").write_text(text)
    with pytest.raises(StoreFormatError, match="queueOffset"):
        read_queue_offsets(tmp_path)


@pytest.mark.unsanitized  # ninety seconds there, and no kernel but the checksum takes part
@pytest.mark.sampled(1)
@pytest.mark.parametrize("bit", range(8))
def test_every_flipped_bit_of_queue_offsets_is_found_out(tmp_path, bit):
    offsets = QueueOffsets({("T", 0): 1234, ("T", 10): 7}, {("T", 0): 12, ("T", 10): 7}, 4096)
    write_queue_offsets(tmp_path, offsets)
    write_queue_offsets(tmp_path, offsets)
    path = tmp_path / "config" / "queueOffset.json"
    data = bytearray(path.read_bytes())
    for at in range(len(data)):
        data[at] ^= 1 << bit
        path.write_bytes(data)
        assert read_queue_offsets(tmp_path) == offsets
        data[at] ^= 1 << bit


@pytest.mark.parametrize("count", [0, 1, 2048, 2049, 9000])
def test_a_table_of_many_queues_is_the_same_whatever_pieces_it_is_made_in(tmp_path, count):
    """Sorted, and given its checksum, piece by piece: at 65,536 queues one piece held up every other thread for a
    tenth of a second."""
    queues = {(f"T{number % 7}", number): number for number in range(count)}
    offsets = QueueOffsets(queues, dict.fromkeys(queues, 0), 77)
    write_queue_offsets(tmp_path, offsets)
    assert read_queue_offsets(tmp_path) == offsets
    told = json.loads(_quoted((tmp_path / "config" / "queueOffset.json").read_text()))
    whole = repr([sorted(offsets.next.items()), sorted(offsets.minimum.items()), 77])
    assert told["checksum"] == crc32c(whole.encode())
    assert list(told["offsetTable"]) == sorted({topic for topic, _ in queues})
    assert saved_position(tmp_path) == 77


def _quoted(text: str) -> str:
    return re.sub(r"([{,])(\d+):", r'\1"\2":', text)
