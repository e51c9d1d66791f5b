"""Goal: a wrong queue offset costs its own record's entry and no other; without certainty a jump is believed, so no
intact record is ever called damaged. Row 10: verified before it is believed.
Method: records of RocketMQ's format, whose checksum covers the body alone, get other queue offsets before dispatch."""

from __future__ import annotations

import pytest

import cystore
from cystore.cli.program import main
from cystore.derived.dispatch import jumps
from tests.support.damage.wrong_records import (
    damage,
    flip,
    open_rocketmq,
    read_record,
    served,
    set_light_offset,
    write_record,
)

A = "%LMQ%a"
COUNT, STRUCK = 40, 10


@pytest.mark.parametrize(
    ("expected", "found", "followers", "wrong"),
    [
        (10, 42, [11, 12, 13, 14], True),
        (10, 12, [11, 12, 13, 14], True),
        (10, 42, [11, 43, 13, 14], True),  # one of the next records is wrong, too
        (10, 42, [11, 12, 13], True),
        (10, 42, [11, 12], False),  # too few
        (10, 42, [43, 44, 45, 46], False),  # they continue behind it
        (10, 42, [43, 12, 13, 46], False),
        (10, 42, [13, 12, 11, 10], False),  # they do not rise
        (10, 11, [11, 12, 13, 14], False),  # a record of another queue may be the first of them
        (10, 11, [10, 11, 12, 13], True),  # this record belongs to another queue
        (10, 42, [1, 2, 3, 4], False),  # RocketMQ began to count anew
    ],
)
def test_the_rule(expected, found, followers, wrong):
    assert jumps.contradicted(expected, found, followers) is wrong


def test_the_rule_without_room_for_lost_records():
    assert jumps.contradicted(10, 11, [11, 12, 13, 14], votes=2, slack=0)
    assert not jumps.contradicted(10, 11, [12, 13, 14, 15], votes=2, slack=0)


def test_the_rule_of_a_light_queue():
    assert jumps.continued(10, 42, [11, 12, 13, 14])
    assert not jumps.continued(4, 42, [10, 12, 20, 43])  # copies of older records
    assert not jumps.continued(10, 11, [11, 12, 13, 14])
    assert jumps.continued(10, 11, [11, 12], votes=2, slack=0)


def test_the_rule_of_offsets_that_the_next_records_fill():
    assert jumps.filled(1, 2, [1, 2, 3, 4])
    assert not jumps.filled(1, 2, [1, 3, 4])
    assert not jumps.filled(1, 2, [1])
    assert not jumps.filled(0, 1 << 62, [0, 1, 2, 3])


def test_the_rule_of_an_offset_that_the_next_record_has_too():
    assert jumps.repeated(10, 11, [11, 12, 13, 14])
    assert jumps.repeated(10, 14, [11])
    assert not jumps.repeated(10, 11, [12, 13])
    assert not jumps.repeated(10, 11, [])
    assert jumps.repeated(10, 12, [10, 11], votes=2)
    assert not jumps.repeated(10, 12, [10, 13], votes=2)
    assert not jumps.repeated(10, 12, [12], votes=2)


def written(store: cystore.MessageStore) -> list[cystore.PutResult]:
    """By turns in queue 0 and 1."""
    return [store.put("T", b"%d" % n, queue_id=n % 2) for n in range(COUNT)]


def others(struck: int, queue_id: int = 0) -> dict[int, bytes]:
    """What a queue must serve."""
    return {n // 2: b"%d" % n for n in range(queue_id, COUNT, 2) if n != struck}


def test_a_jump_by_one_between_records_of_other_queues_takes_no_place(tmp_path):
    """Seen: the record was entered at the next record's offset, and that one was not served."""
    struck = 20  # queue offset 10; says 11 then
    with open_rocketmq(tmp_path / "s") as store:
        puts = written(store)
        flip(tmp_path / "s", puts[struck], "queue_offset", 0)
        assert served(store, "T") == others(struck) and served(store, "T", 1) == others(struck, 1)
        assert not store.stats()["holes"]  # perhaps the other record is wrong
        assert store.read(puts[struck].physical_offset).body == b"20"
    (found,) = (each for each in damage(tmp_path / "s") if each.kind == "record")
    assert found.begin == puts[struck].physical_offset
    with open_rocketmq(tmp_path / "s") as store:
        assert served(store, "T") == others(struck) and served(store, "T", 1) == others(struck, 1)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("bit", [0, 2, 4, 20, 40])
@pytest.mark.parametrize("struck", [0, 20, COUNT - 6])
def test_a_queue_is_healed_of_all_but_the_wrong_record(tmp_path, struck, bit):
    """Seen: healing made hole entries up to the wrong queue offset."""
    with open_rocketmq(tmp_path / "s") as store:
        puts = written(store)
        store.dispatch()
        flip(tmp_path / "s", puts[struck], "queue_offset", bit)
        (tmp_path / "s" / "consumequeue" / "T" / "0" / f"{0:020d}").unlink()
        with open_rocketmq(tmp_path / "s") as other:
            assert served(other, "T") == others(struck)


@pytest.mark.sampled(6)
@pytest.mark.parametrize("bit", [0, 2, 4, 20, 40, 63])
@pytest.mark.parametrize("struck", [0, 20, COUNT - 6])
def test_a_reader_that_may_not_dispatch_is_served_all_but_the_wrong_record(tmp_path, struck, bit):
    """Seen: it was sent behind the wrong queue offset; one below zero, in the first record, hid all others."""
    with open_rocketmq(tmp_path / "s") as store:
        puts = written(store)
        flip(tmp_path / "s", puts[struck], "queue_offset", bit)
        with open_rocketmq(tmp_path / "s", read_only=True) as reader:
            assert served(reader, "T") == others(struck)
            got = reader.get("T", 0, 0, COUNT)
            assert [bytes(message.body) for message in got.messages] == list(others(struck).values())


@pytest.mark.parametrize("bit", [0, 4])
def test_a_rebuilt_queue_has_all_but_the_wrong_record(tmp_path, bit):
    struck = 20
    with open_rocketmq(tmp_path / "s") as store:
        puts = written(store)
    flip(tmp_path / "s", puts[struck], "queue_offset", bit)
    main(["rebuild", str(tmp_path / "s")])
    with open_rocketmq(tmp_path / "s") as store:
        assert served(store, "T") == others(struck) and served(store, "T", 1) == others(struck, 1)


def test_damage_explains_no_jump_that_two_records_speak_against(tmp_path):
    """Seen: damage had taken a record of another queue, so the jump was believed, and the next records were not
    served."""
    path = tmp_path / "s"
    with open_rocketmq(path) as store:
        lost = store.put("U", b"u" * 300)
        puts = [store.put("T", b"%d" % n, queue_id=n // 2) for n in range(4)]
        record = read_record(path, lost)
        record[90] ^= 1  # its body
        write_record(path, lost, record)
        flip(path, puts[1], "queue_id", 0)  # claims queue offset 1 of queue 1
        assert served(store, "T", 1)[0] == b"2"
    main(["rebuild", str(path)])
    with open_rocketmq(path) as store:
        assert served(store, "T", 1)[0] == b"2"


def test_an_offset_in_a_light_queue_that_the_next_record_has_too_is_left_out(tmp_path):
    """Seen: three of the next records had to speak against it, and a queue with fewer lost them."""
    path = tmp_path / "s"
    with open_rocketmq(path) as store:
        puts = []
        for n in range(4):
            puts.append(store.put("T", b"%d" % n, properties={"INNER_MULTI_DISPATCH": A}))
            store.put("U", b"u")
        set_light_offset(path, puts[1], b"2")
        assert served(store, A) == {0: b"0", 2: b"2", 3: b"3"}
        assert served(store, "T") == {n: b"%d" % n for n in range(4)}


@pytest.mark.parametrize("struck", [COUNT - 4, 20])
def test_a_rebuild_calls_no_record_damaged_whose_place_another_one_took(tmp_path, struck):
    """Seen: the last record of each of the two queues was called damaged."""
    with open_rocketmq(tmp_path / "s") as store:
        puts = written(store)
    flip(tmp_path / "s", puts[struck], "queue_id", 0)  # takes the place of the record behind it
    main(["rebuild", str(tmp_path / "s")])
    with open_rocketmq(tmp_path / "s") as store:
        assert not store.stats()["holes"]
        assert served(store, "T") == others(struck)
        found = served(store, "T", 1)
        assert {n: found[n] for n in others(struck + 1, 1)} == others(struck + 1, 1)
        assert store.read(puts[struck + 1].physical_offset).body == b"%d" % (struck + 1)


@pytest.mark.parametrize("bit", [0, 4, 20, 40, 62])
def test_one_record_makes_no_hole_entries_without_end(tmp_path, bit):
    """Seen: the only record of a new queue had a flipped bit, and dispatch wrote hole entries up to its queue
    offset."""
    with open_rocketmq(tmp_path / "s") as store:
        for _ in range(50):  # the log has room for some lost records
            store.put("U", b"u")
        put = store.put("T", b"0")
        flip(tmp_path / "s", put, "queue_offset", bit)
        store.dispatch()
        assert store.next_queue_offset("T", 0) == 1 and served(store, "T") == {}
        store.put("T", b"1")
        assert served(store, "T") == {1: b"1"}
    with open_rocketmq(tmp_path / "s") as store:
        assert served(store, "T") == {1: b"1"}


@pytest.mark.sampled(4)
@pytest.mark.parametrize("bit", [0, 2, 4, 5, 30])
@pytest.mark.parametrize("first", [STRUCK, 0])
def test_intact_records_behind_a_wrong_offset_are_served(tmp_path, first, bit):
    with open_rocketmq(tmp_path / "s") as store:
        puts = [store.put("T", b"%d" % n) for n in range(COUNT)]
        flip(tmp_path / "s", puts[first], "queue_offset", bit)
        assert served(store, "T") == {n: b"%d" % n for n in range(COUNT) if n != first}
        (hole,) = store._attached().commit_log.damaged_ranges
        assert hole.begin == puts[first].physical_offset
    with open_rocketmq(tmp_path / "s") as store:
        assert served(store, "T") == {n: b"%d" % n for n in range(COUNT) if n != first}


def test_a_jump_over_lost_records_is_believed(tmp_path):
    """Undecidable: the damage before the record has room for the missing ones."""
    with open_rocketmq(tmp_path / "s") as store:
        puts = [store.put("T", b"%d" % n) for n in range(COUNT)]
        for n in range(5, STRUCK):
            record = read_record(tmp_path / "s", puts[n])
            record[88] ^= 1  # its body
            write_record(tmp_path / "s", puts[n], record)
        flip(tmp_path / "s", puts[STRUCK], "queue_offset", 1)  # 8: still above the expected 5
        found = served(store, "T")
        assert {n: found[n] for n in range(11, COUNT)} == {n: b"%d" % n for n in range(11, COUNT)}


@pytest.mark.parametrize("text", [b"00", b"18"])
def test_a_wrong_offset_between_others_costs_only_that_light_queue(tmp_path, text):
    with open_rocketmq(tmp_path / "s") as store:
        puts = [store.put("T", b"%d" % n, properties={"INNER_MULTI_DISPATCH": A}) for n in range(20)]
        set_light_offset(tmp_path / "s", puts[STRUCK], text)
        assert served(store, "T") == {n: b"%d" % n for n in range(20)}
        assert served(store, A) == {n: b"%d" % n for n in range(20) if n != STRUCK}


def test_a_wrong_offset_in_a_light_queue_costs_only_that_queue(tmp_path):
    with open_rocketmq(tmp_path / "s") as store:
        puts = [store.put("T", b"%d" % n, properties={"INNER_MULTI_DISPATCH": A}) for n in range(20)]
        set_light_offset(tmp_path / "s", puts[19], b"39")  # the queue gave 0 to 19
        assert served(store, "T") == {n: b"%d" % n for n in range(20)}
        assert served(store, A) == {n: b"%d" % n for n in range(19)}
        store.put("T", b"20", properties={"INNER_MULTI_DISPATCH": A})
        assert served(store, A) == {n: b"%d" % n for n in range(21) if n != 19}


def test_a_put_into_a_topic_that_a_flipped_bit_made_is_served(tmp_path):
    """Seen: dispatch entered the unknown topic in the table with the record's own queue offset as the next one. The
    first put got that offset again and was never served."""
    with open_rocketmq(tmp_path / "s") as store:
        puts = [store.put("T", b"%d" % n) for n in range(3)]
        record = read_record(tmp_path / "s", puts[2])
        assert record[-3:-2] == b"T"  # the topic, and the length of the properties
        record[-3:-2] = b"U"
        write_record(tmp_path / "s", puts[2], record)
        store.dispatch()
        assert store.put("U", b"new").queue_offset == 3
        assert served(store, "U")[3] == b"new"
