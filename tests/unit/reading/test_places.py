"""Goal: a store tells where messages are as RocketMQ does: their ids, whether memory holds them, whether a slave should
serve them. Method: the share of memory set to nothing and to RocketMQ's, on both ways of `get`; offsets of every
kind."""

from __future__ import annotations

import pickle

import pytest

import cystore
from cystore import GetStatus
from tests.support.small_stores import open_small


def gets(store, *arguments, **options):
    """The kernel's own way of `get`, and the general one."""
    return store.get(*arguments, **options), store._attached().reader.get(*arguments, **options)


@pytest.mark.parametrize(("ratio", "in_disk"), [(0, True), (40, False)])
def test_limits_of_a_get_are_those_of_memory_or_of_the_disk(tmp_path, ratio, in_disk):
    with open_small(
        tmp_path / "s",
        access_message_in_memory_max_ratio=ratio,
        max_transfer_count_on_message_in_memory=6,
        max_transfer_count_on_message_in_disk=3,
        max_transfer_bytes_on_message_in_memory=700,
        max_transfer_bytes_on_message_in_disk=400,
    ) as store:
        for number in range(10):
            store.put("small", b"x", tags="even" if number % 2 == 0 else "odd")
            store.put("large", b"x" * 100)
        for result in gets(store, "small", 0, 0, 32):
            assert len(result.messages) == (3 if in_disk else 6)
            assert result.next_offset == len(result.messages)
            assert result.suggest_pulling_from_slave is in_disk
        sizes = store.get("large", 0, 0, 1).messages[0].size_bytes
        for raw in (False, True):
            for result in gets(store, "large", 0, 0, 32, raw=raw):
                count = len(result.record_offsets) if raw else len(result.messages)
                assert count == (400 if in_disk else 700) // sizes
                assert result.suggest_pulling_from_slave is in_disk
        for result in gets(store, "small", 0, 0, 32, tags="odd"):
            assert [message.queue_offset for message in result.messages] == [1, 3, 5, 7, 9][
                : 3 if in_disk else 6
            ]
            assert result.suggest_pulling_from_slave is in_disk
        for result in gets(store, "small", 0, 0, 32, tags="none"):
            assert result.status is GetStatus.NO_MATCHED_MESSAGE
            assert result.suggest_pulling_from_slave is in_disk
        for result in gets(store, "small", 0, 10, 32):  # nothing was looked at
            assert result.status is GetStatus.OFFSET_OVERFLOW_ONE
            assert result.suggest_pulling_from_slave is False
        assert [store.is_in_disk("small", 0, offset) for offset in (0, 9)] == [in_disk, in_disk]
        for unknown in (("small", 0, 10), ("small", 0, -1), ("small", 1, 0), ("nobody", 0, 0)):
            assert store.is_in_disk(*unknown) is False


def test_one_message_larger_than_the_limit_is_given_alone(tmp_path):
    with open_small(
        tmp_path / "s", access_message_in_memory_max_ratio=0, max_transfer_bytes_on_message_in_disk=1
    ) as store:
        for _ in range(3):
            store.put("T", b"x" * 50)
        for result in gets(store, "T", 0, 0, 32):
            assert (len(result.messages), result.next_offset) == (1, 1)


def test_a_result_keeps_its_suggestion_when_it_is_copied():
    result = cystore.GetResult(GetStatus.FOUND, suggest_pulling_from_slave=True)
    assert pickle.loads(pickle.dumps(result)) == result
    assert result != cystore.GetResult(GetStatus.FOUND)
    assert "suggest_pulling_from_slave=True" in repr(result)


def test_message_ids_of_a_part_of_a_queue(tmp_path):
    with open_small(tmp_path / "s", store_host="10.1.2.3:10911") as store:
        places = [store.put("T", b"x") for _ in range(70)]
        found = store.message_ids("T", 0, 30, 68)
        assert list(found.values()) == list(range(30, 68))
        for text, offset in found.items():
            assert text.startswith("0A01020300002A9F") and len(text) == 32
            message = store.read_by_id(text)
            assert (message.queue_offset, message.physical_offset) == (offset, places[offset].physical_offset)
        assert list(store.message_ids("T", 0, -5, 1000).values()) == list(range(70))
        for begin, end in ((5, 5), (6, 5), (70, 80), (900, 1000)):
            assert store.message_ids("T", 0, begin, end) == {}
        assert store.message_ids("T", 1, 0, 9) == store.message_ids("nobody", 0, 0, 9) == {}


def test_message_ids_begin_where_a_cleaned_queue_begins(tmp_path):
    with open_small(tmp_path / "s", file_reserved_time_h=0) as store:
        for _ in range(60):
            store.put("T", b"x" * 2000)
        store.dispatch()
        assert store.clean().segments > 0
        first = store.topics()["T"][0].min_offset
        assert first > 0
        assert list(store.message_ids("T", 0, 0, first + 3).values()) == [first, first + 1, first + 2]


@pytest.mark.parametrize("physical_offset", [-1, 1, 50, 1 << 40])
def test_no_record_begins_at_another_offset(tmp_path, physical_offset):
    with open_small(tmp_path / "s") as store:
        end = store.put("T", b"x" * 100).size_bytes
        for offset in (physical_offset, end, end - 1):
            with pytest.raises((cystore.OffsetError, cystore.CorruptRecordError)):
                store.read(offset)
