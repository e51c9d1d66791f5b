"""Goal: a group's registered filter spares reads and never hides a message, whatever changes, is killed or is lost.
Method: reads with and without bitmaps are compared; each way in which a unit could lack a group's bits is made once."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest

import cystore
from cystore import FilterError, StoreConfigError
from cystore._native.filters.bitmap import GroupBits
from cystore.consumers import filters as filters_module
from cystore.derived.dispatch import known_filters
from cystore.engine.manifest.manifest_file import FILE_NAME as MANIFEST
from tests.support.small_stores import open_small

EXTENDED = {
    "enable_consume_queue_ext": True,
    "mapped_file_size_consume_queue_ext_bytes": 4096,
    "mapped_file_size_commit_log_bytes": 1 << 16,
    "mapped_file_size_consume_queue_bytes": 20_000,
    "max_hash_slot_num": 101,
    "max_index_num": 1000,
    "services": "none",
}
MATCH = "a > 6"


def put(store, numbers, topic="T"):
    for number in numbers:
        store.put(topic, b"body", properties={"a": str(number % 10), "b": "xyz"[number % 3]})


def offsets(store, group="g", expression=MATCH, topic="T", **more):
    """Queue offsets of all that a group gets, batch by batch."""
    found, at = [], 0
    while True:
        got = store.get(topic, 0, at, filter=expression, group=group, **more)
        if got.status not in (cystore.GetStatus.FOUND, cystore.GetStatus.NO_MATCHED_MESSAGE):
            return found
        found += [message.queue_offset for message in got.messages]
        at = got.next_offset


def expected(count, begin=0):
    return [number for number in range(begin, count) if number % 10 > 6]


def bitmaps_of(store, topic):
    """The bitmap of each entry's unit in queue 0; None for an entry without a unit."""
    store.dispatch()
    queue = store._attached().queues.find(topic, 0)
    entries = [entry for _, entry in queue.entries(queue.min_offset, queue.max_offset)]
    units = [None if entry is None else queue.ext.get(entry.tags_code) for entry in entries]
    return [None if unit is None else unit.bitmap for unit in units]


def spoil(store, queue_offset, topic="T"):
    """Damages the body of a message: a read of it is an error from now on."""
    message = store.get(topic, 0, queue_offset, 1).messages[0]
    segment = store._attached().commit_log.segment_for(message.physical_offset)
    at = message.physical_offset - segment.base + message.size_bytes - 1
    segment.write(at, bytes([segment.read(at, 1)[0] ^ 1]))


@pytest.fixture
def store(tmp_path):
    with cystore.open(tmp_path / "store", **EXTENDED) as opened:
        yield opened


def born(store, group="g", topic="T"):
    return next(row.born for row in store.filters if (row.group, row.topic) == (group, topic))


def test_messages_that_do_not_match_are_not_read(store):
    row = store.filters.add("g", "T", MATCH)
    assert row == ("g", "T", MATCH, 0) and store.filters.list() == [row]
    put(store, range(50))
    bits = GroupBits(b"g", b"T", 112)
    assert [bits.is_in(one) for one in bitmaps_of(store, "T")] == [number % 10 > 6 for number in range(50)]
    spoil(store, 3)
    assert offsets(store) == expected(50)
    with pytest.raises(cystore.CorruptRecordError):
        offsets(store, group="other")
    spoil(store, 7)
    with pytest.raises(cystore.CorruptRecordError):
        offsets(store)


def test_only_the_registered_expression_of_the_group_goes_by_the_bitmaps(store):
    store.filters.add("g", "T", MATCH)
    put(store, range(30))
    put(store, range(30), "Other")
    assert offsets(store, expression="a < 3") == [n for n in range(30) if n % 10 < 3]
    assert offsets(store, group="h") == expected(30)
    assert offsets(store, topic="Other") == expected(30)
    assert set(bitmaps_of(store, "Other")) == {b""}


def test_messages_from_before_the_registration_are_looked_at(store):
    put(store, range(20))
    store.dispatch()
    put(store, range(20, 25))  # appended, not dispatched
    row = store.filters.add("g", "T", MATCH)
    assert row.born == store.stats()["wrote"]
    put(store, range(25, 40))
    assert offsets(store) == expected(40)


def test_another_expression_is_born_anew(store):
    store.filters.add("g", "T", "a < 2")
    put(store, range(20))
    store.dispatch()
    again = store.filters.add("g", "T", "a < 2")
    assert again.born == 0  # the same: nothing changes
    changed = store.filters.add("g", "T", cystore.SqlFilter(MATCH))
    assert changed.born == store.stats()["wrote"] and store.filters.list() == [changed]
    put(store, range(20, 40))
    assert offsets(store) == expected(40)
    assert offsets(store, expression="a < 2") == [n for n in range(40) if n % 10 < 2]


def test_a_removed_filter_leaves_every_message_to_be_looked_at(store):
    store.filters.add("g", "T", MATCH)
    store.filters.add("h", "T", "b = 'x'")
    put(store, range(20))
    assert store.filters.remove("g", "T") and not store.filters.remove("g", "T")
    assert [row.group for row in store.filters] == ["h"]
    put(store, range(20, 40))
    assert offsets(store) == expected(40)
    store.filters.add("g", "T", MATCH)
    assert offsets(store) == expected(40)
    put(store, range(40, 60))
    assert offsets(store) == expected(60)


def test_random_filters_and_messages_read_the_same_with_and_without_bitmaps(store, rng):
    parts = [
        "a > 3",
        "a = b",
        "b IN ('x', 'y')",
        "c IS NULL",
        "NOT (a > 5)",
        "d = 'ü'",
        "b > 1",
        "a BETWEEN 2 AND 4",
    ]
    topics, groups, log = ("T", "U"), ("g1", "g2", "g3", "g4"), {"T": [], "U": []}
    current = {}
    for _ in range(60):
        what = rng.random()
        topic, group = rng.choice(topics), rng.choice(groups)
        if what < 0.25:
            expression = rng.choice((" AND ", " OR ")).join(rng.sample(parts, rng.randrange(1, 3)))
            current[group, topic] = expression
            store.filters.add(group, topic, expression)
        elif what < 0.3 and (group, topic) in current:
            store.filters.remove(group, topic)
        elif what < 0.4:
            store.dispatch()
        for _ in range(rng.randrange(8)):
            properties = {
                name: rng.choice(["1", "4", "6", "x", "ü", "1.5", "٣"])
                for name in "abcd"
                if rng.random() < 0.7
            }
            store.put(topic, b"", properties=properties)
            log[topic].append(properties)
    for (group, topic), expression in current.items():
        matching = [n for n, one in enumerate(log[topic]) if cystore.SqlFilter(expression).matches(one)]
        assert (
            offsets(store, group, expression, topic)
            == matching
            == offsets(store, "nobody", expression, topic)
        )
        assert offsets(store, group, expression, topic, max_count=3) == matching


def test_consumers_and_pulls_go_by_the_bitmaps(store):
    store.filters.add("g", "T", MATCH)
    put(store, range(30))
    spoil(store, 0)
    pulled = store.groups.pull("g", "T", 0, filter=MATCH)
    assert [message.queue_offset for message in pulled.messages] == expected(30)
    with store.consumer("g", "T", filter=MATCH) as consumer:
        assert [message.queue_offset for message in consumer.poll(timeout_s=30)] == expected(30)
    raw = store.get("T", 0, 0, filter=MATCH, group="g", raw=True)
    assert len(raw.record_offsets) == len(expected(30))


CHILD = """
import sys, cystore, json
path, settings = json.loads(sys.argv[1])
with cystore.open(path, **settings) as store:
    for line in sys.stdin:
        store.dispatch()
        print("done", flush=True)
"""


def child(path):
    return subprocess.Popen(
        [sys.executable, "-c", CHILD, json.dumps([str(path), EXTENDED])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip


def turn(process):
    process.stdin.write("\n")
    process.stdin.flush()
    assert process.stdout.readline() == "done\n"


def test_a_process_that_knew_earlier_filters_hides_no_message(store):
    """The other process dispatches before and after each change, and was told nothing."""
    store.filters.add("g", "T", "a < 2")
    put(store, range(10))
    other = child(store.path)
    try:
        turn(other)
        put(store, range(10, 20))
        turn(other)
        store.filters.add("g", "T", MATCH)
        store.filters.add("h", "T", "b = 'x'")
        put(store, range(20, 40))
        turn(other)
        assert store.stats()["dispatched"] == store.stats()["wrote"]
        assert offsets(store) == expected(40)
        assert offsets(store, "h", "b = 'x'") == list(range(0, 40, 3))
        bits = GroupBits(b"g", b"T", 112)
        assert [bits.is_in(one) for one in bitmaps_of(store, "T")[20:]] == [n % 10 > 6 for n in range(20, 40)]
    finally:
        other.communicate(timeout=60)


def test_a_reader_with_an_earlier_filter_hides_no_message(store):
    """A second handle has looked at the first filter; units of the second one must not leave out for the first."""
    with cystore.open(store.path, **EXTENDED) as reader:
        store.filters.add("g", "T", MATCH)
        put(store, range(10))
        assert offsets(reader) == expected(10)
        store.filters.add("g", "T", "a < 2")
        put(store, range(10, 20))
        store.dispatch()
        assert offsets(reader) == expected(20)


def test_a_dispatcher_that_cannot_read_the_manifest_writes_no_bitmaps(store, monkeypatch):
    store.filters.add("g", "T", MATCH)
    put(store, range(10))
    store.dispatch()
    known = store._attached().manifest.snapshot()
    manifest = type(store._attached().manifest)
    with cystore.open(store.path, **EXTENDED) as other:
        other.filters.add("g", "T", "a < 2")
        with monkeypatch.context() as patched:
            patched.setattr(manifest, "snapshot", lambda self: known)  # damaged under live processes
            put(store, range(10, 20))
            store.dispatch()
    assert bitmaps_of(store, "T")[10:] == [b""] * 10
    assert offsets(store) == expected(20)
    assert offsets(store, expression="a < 2") == [0, 1, 10, 11]


def test_a_manifest_that_is_lost_under_live_processes_leaves_no_filter_born(store):
    with cystore.open(store.path, **EXTENDED) as other:
        store.filters.add("g", "T", MATCH)
        assert offsets(other) == []
        other.filters.add("g", "T", "a < 2")
        put(store, range(10))
        store.dispatch()
        (store.path / MANIFEST).unlink()
        store._attached().manifest.set_section("anything", 1)  # made anew of what a process knew
        assert [row.born for row in store.filters] == [None]
        assert offsets(store) == expected(10)
        put(store, range(10, 30))
        for handle in (store, other):
            assert offsets(handle) == expected(30)
            assert offsets(handle, expression="a < 2") == [n for n in range(30) if n % 10 < 2]


# ------------------------------------------------------------------------------------------ the next life


def test_a_filter_outlives_its_processes(tmp_path):
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        store.filters.add("g", "T", MATCH)
        put(store, range(20))
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        assert born(store) == 0
        put(store, range(20, 40))
        spoil(store, 0)
        assert offsets(store) == expected(40)


@pytest.mark.parametrize("how", ["not clean", "another program", "a longer log"])
def test_births_are_believed_after_our_own_clean_close_only(tmp_path, how):
    """Units behind the birth may then be of a program that did not know the filter: here their bits are gone."""
    path = tmp_path / "s"
    with cystore.open(path, **EXTENDED) as store:
        store.filters.add("g", "T", MATCH)
        put(store, range(20))
        end = store.stats()["wrote"]
    for file in (path / "consumequeue_ext" / "T" / "0").iterdir():
        units = bytearray(file.read_bytes())
        for number in range(20):
            units[number * 34 + 20 : number * 34 + 34] = bytes(14)
        file.write_bytes(units)
    if how == "not clean":
        (path / "abort").touch()
    elif how == "another program":
        (path / "lock").write_bytes(b"lock")  # RocketMQ does so at its start
    else:
        copy = tmp_path / "copy"
        shutil.copytree(path, copy)
        with cystore.open(copy, **EXTENDED) as longer:
            put(longer, range(20, 21))
        shutil.copytree(copy / "commitlog", path / "commitlog", dirs_exist_ok=True)
        shutil.copyfile(copy / "checkpoint", path / "checkpoint")
        end = None
    with cystore.open(path, **EXTENDED) as store:
        assert born(store) == (end or store.stats()["wrote"])
        assert [n for n in offsets(store) if n < 20] == expected(20)


def test_a_handle_that_reads_alone_looks_at_each_message(tmp_path):
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        store.filters.add("g", "T", MATCH)
        put(store, range(20))
        with cystore.open(tmp_path / "s", read_only=True) as reader:
            spoil(store, 0)
            assert offsets(reader) == expected(20)
            assert reader.filters.list() == store.filters.list()
            with pytest.raises(cystore.StoreNotWritableError):
                reader.filters.add("g", "T", MATCH)
    with cystore.open(tmp_path / "alone", **EXTENDED) as store:
        store.filters.add("g", "T", MATCH)
        put(store, range(20))
    with cystore.open(tmp_path / "alone", read_only=True) as reader:
        assert reader.filters.list()[0].group == "g"
        assert offsets(reader) == expected(20)
        assert reader._attached().filters is None


def test_a_rebuild_computes_the_bitmaps_again(tmp_path):
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        put(store, range(10))
        store.dispatch()
        store.filters.add("g", "T", MATCH)
        put(store, range(10, 20))
        assert [one != b"" for one in bitmaps_of(store, "T")] == [False] * 10 + [True] * 10
    for folder in ("consumequeue", "consumequeue_ext"):
        shutil.rmtree(tmp_path / "s" / folder)
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        assert all(bitmaps_of(store, "T"))
        assert offsets(store) == expected(20)


# --------------------------------------------------------------------------------------------------- damage


@pytest.mark.parametrize("at", [0, 1, 18, 19])
def test_a_unit_with_wrong_lengths_costs_its_advantage_only(store, at):
    store.filters.add("g", "T", MATCH)
    put(store, range(20))
    store.dispatch()
    queue = store._attached().queues.find("T", 0)
    file = queue.ext.files.get(0)
    for number in (7, 8):
        place = number * 34 + at
        file.write(place, bytes([file.read(place, 1)[0] ^ 0x55]))
    assert offsets(store) == expected(20)


def test_units_that_are_gone_cost_their_advantage_only(store):
    store.filters.add("g", "T", MATCH)
    put(store, range(20))
    store.dispatch()
    shutil.rmtree(store.path / "consumequeue_ext")
    with cystore.open(store.path, **EXTENDED) as fresh:
        assert offsets(fresh) == expected(20)


@pytest.mark.parametrize("when", ["open", "closed"])
def test_no_later_unit_takes_the_address_of_one_that_is_gone(tmp_path, when):
    """Seen: the first units after the loss began at the files' start again. The entries of earlier messages led to
    units of later ones, which hid them."""
    path = tmp_path / "store"
    with cystore.open(path, **EXTENDED) as store:
        store.filters.add("g", "T", MATCH)
        put(store, range(7, 10))
        store.dispatch()
    if when == "closed":
        shutil.rmtree(path / "consumequeue_ext")
    with cystore.open(path, **EXTENDED) as store:
        if when == "open":
            shutil.rmtree(path / "consumequeue_ext")
        put(store, range(3))
        store.dispatch()
        assert offsets(store) == [0, 1, 2]


# --------------------------------------------------------------------------------------------------- refused


def test_what_is_refused(store, tmp_path, monkeypatch):
    add = store.filters.add
    with pytest.raises(FilterError) as wrong:
        add("g", "T", "a >")
    assert wrong.value.position == 3
    for group, topic in (("no@group", "T"), ("g", "no topic"), ("", "T")):
        with pytest.raises(StoreConfigError):
            add(group, topic, MATCH)
    with pytest.raises(FilterError):
        add("g", "T", 7)
    assert store.filters.list() == []
    monkeypatch.setattr(known_filters, "FILTERS_MAX", 2)
    add("g", "T", MATCH)
    add("g", "U", MATCH)
    with pytest.raises(StoreConfigError, match="the store has 2 filters, which is the most"):
        add("h", "T", MATCH)
    add("g", "T", "a = 1")
    with (
        open_small(tmp_path / "plain") as plain,
        pytest.raises(StoreConfigError, match="enable_consume_queue_ext=True"),
    ):
        plain.filters.add("g", "T", MATCH)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"bit_map_length_consume_queue_ext": 100}, "100 bits are no whole bytes"),
        (
            {"bit_map_length_consume_queue_ext": 1024, "mapped_file_size_consume_queue_ext_bytes": 128},
            "1024 bits do not fit into a file of mapped_file_size_consume_queue_ext_bytes=128",
        ),
    ],
)
def test_lengths_that_contradict_each_other_are_refused(tmp_path, settings, text):
    with pytest.raises(StoreConfigError, match=text):
        cystore.open(tmp_path / "s", **{**EXTENDED, **settings})


def test_a_store_with_bitmaps_longer_than_its_files_still_opens(tmp_path, monkeypatch):
    """An earlier version took such settings, which did nothing."""
    settings = {"bit_map_length_consume_queue_ext": 2000, "mapped_file_size_consume_queue_ext_bytes": 128}
    with monkeypatch.context() as patched:
        patched.setattr("cystore.engine.manifest.store_settings.has_room_for_bitmaps", lambda *lengths: True)
        cystore.open(tmp_path / "s", **{**EXTENDED, **settings}).close()
    with cystore.open(tmp_path / "s", services="none") as store:
        with pytest.raises(StoreConfigError, match="2000 bits do not fit"):
            store.filters.add("g", "T", MATCH)
        monkeypatch.setattr(filters_module, "has_room_for_bitmaps", lambda *lengths: True)
        store.filters.add("g", "T", MATCH)
        put(store, range(20))
        assert offsets(store) == expected(20)
        assert set(bitmaps_of(store, "T")) == {b""}


@pytest.mark.parametrize("bits", [8, 64, 112, 8 * 32_000])
def test_bitmaps_of_any_length(tmp_path, bits):
    settings = {**EXTENDED, "bit_map_length_consume_queue_ext": bits}
    if bits > 10_000:
        settings["mapped_file_size_consume_queue_ext_bytes"] = 100_000
    with cystore.open(tmp_path / "s", **settings) as store:
        for group in "ghij":
            store.filters.add(group, "T", MATCH if group == "g" else "b = 'x'")
        put(store, range(20))
        assert {len(one) for one in bitmaps_of(store, "T")} == {bits // 8}
        assert offsets(store) == expected(20)
