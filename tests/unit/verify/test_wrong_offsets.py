"""Goal: after one wrong number in a record of RocketMQ's format, which no checksum covers, verify names that record,
and all other messages keep their places.
Method: records of a closed store get another queue id, queue offset or offset in a light queue; then the store is
verified in one walk and in parts, opened, healed and scrubbed."""

from __future__ import annotations

from pathlib import Path

import pytest

import cystore
from cystore.verify.parallel import verify_at_rest
from tests.support.damage.wrong_records import (
    CONFIG,
    damage,
    flip,
    open_rocketmq,
    served,
    set_light_offset,
)

A = "%LMQ%a"
COUNT = 40  # messages: by turns in queue 0 and 1 of T, every second one of a queue also in A


def written(path: Path) -> list[cystore.PutResult]:
    with open_rocketmq(path) as store:
        return [
            store.put(
                "T",
                b"%d" % n,
                queue_id=n % 2,
                properties={"INNER_MULTI_DISPATCH": A} if n % 4 < 2 else None,
            )
            for n in range(COUNT)
        ]


def places(path: Path) -> set[tuple[str, int]]:
    return {(each.kind, each.begin) for each in damage(path)}


def in_parts(path: Path) -> set[tuple[str, int, str]]:
    found = verify_at_rest(
        path, CONFIG, lambda _: 1000, lambda _, parts, work: [work(part) for part in parts], abnormal=False
    )[1]
    return {(each.kind, each.begin, each.reason) for each in found}


def assert_others_are_served(store: cystore.MessageStore, wrong: int) -> None:
    for queue_id in (0, 1):
        found = served(store, "T", queue_id)
        expected = {n // 2: b"%d" % n for n in range(COUNT) if n % 2 == queue_id and n != wrong}
        assert {number: found.get(number) for number in expected} == expected


def assert_all_of_it(path: Path, puts: list[cystore.PutResult], wrong: int) -> None:
    """Reads, heals and scrubs the store."""
    for _ in range(2):
        with open_rocketmq(path) as store:
            assert_others_are_served(store, wrong)
            while store.scrub(1 << 20).more:
                pass
            assert_others_are_served(store, wrong)
            others = [put for n, put in enumerate(puts) if n != wrong]
            assert all(len(store.read(put.physical_offset).body) for put in others)


@pytest.mark.sampled(2)
@pytest.mark.parametrize("wrong", [10, 11, COUNT - 2])
def test_two_records_that_claim_one_queue_offset_are_both_named(tmp_path, wrong):
    """Seen: the record whose queue id changed took the place of an intact message of the other queue, at the next
    ordinary open."""
    path = tmp_path / "s"
    puts = written(path)
    flip(path, puts[wrong], "queue_id", 0)
    other = puts[wrong ^ 1].physical_offset
    found = damage(path)
    assert ("record", puts[wrong].physical_offset) in {(each.kind, each.begin) for each in found}
    assert any(f"which the record at {other} has, too" in each.reason for each in found)
    assert {each.begin for each in found if each.kind == "record"} == {puts[wrong].physical_offset}
    assert in_parts(path) == {(each.kind, each.begin, each.reason) for each in found}
    assert_all_of_it(path, puts, wrong)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("wrong", [0, 10, COUNT - 2])
@pytest.mark.parametrize("killed", [False, True])
def test_entry_of_the_first_queue_tells_when_the_other_queues_file_is_gone(tmp_path, wrong, killed):
    """Seen: the record whose queue id changed took the place of an intact message, because it came first."""
    path = tmp_path / "s"
    puts = written(path)
    flip(path, puts[wrong], "queue_id", 0)
    for file in (path / "consumequeue" / "T" / "1").iterdir():
        file.unlink()
    if killed:
        (path / "abort").touch()
    assert_all_of_it(path, puts, wrong)
    found = {each.begin for each in damage(path) if each.kind in ("record", "hole")}
    assert found == {puts[wrong].physical_offset}


def test_a_record_that_claims_a_place_in_a_later_queue_is_named_alone(tmp_path):
    """Seen: verify named every record of the other queue, up to that place."""
    path = tmp_path / "s"
    with open_rocketmq(path) as store:
        puts = [store.put("T", b"%d" % n, queue_id=n // 10) for n in range(20)]
    flip(path, puts[5], "queue_id", 0)
    assert {begin for kind, begin in places(path) if kind == "record"} == {puts[5].physical_offset}
    flip(path, puts[5], "queue_id", 0)
    flip(path, puts[5], "queue_id", 1)  # a queue without records
    with open_rocketmq(path) as store:
        assert served(store, "T", 1) == {n: b"%d" % (10 + n) for n in range(10)}
        found = served(store, "T", 0)
        assert [found[n] for n in range(10) if n != 5] == [b"%d" % n for n in range(10) if n != 5]


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bit", [0, 1, 3, 4, 40])
@pytest.mark.parametrize("wrong", [0, 20, COUNT - 2])
def test_a_wrong_queue_offset_is_named_and_no_record_behind_it(tmp_path, wrong, bit):
    """Seen: verify named every record up to the wrong offset, and healing made holes of them."""
    path = tmp_path / "s"
    puts = written(path)
    flip(path, puts[wrong], "queue_offset", bit)
    assert {begin for kind, begin in places(path) if kind == "record"} == {puts[wrong].physical_offset}
    assert_all_of_it(path, puts, wrong)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("text", [b"x", b"00", b"19", b"0"])
@pytest.mark.parametrize("wrong", [24, 25])  # 12 and 13 in the light queue
def test_a_wrong_offset_in_a_light_queue_is_named(tmp_path, wrong, text):
    """Seen: verify named the next record. After an ordinary open it said nothing: the entry was a hole entry by
    then."""
    path = tmp_path / "s"
    puts = written(path)
    set_light_offset(path, puts[wrong], text)
    assert {begin for kind, begin in places(path) if kind == "record"} == {puts[wrong].physical_offset}
    with open_rocketmq(path) as store:
        number = wrong // 4 * 2 + wrong % 2
        assert_others_are_served(store, -1)
        assert [n for n in served(store, A) if n != number] == [n for n in range(COUNT // 2) if n != number]
    assert places(path)
