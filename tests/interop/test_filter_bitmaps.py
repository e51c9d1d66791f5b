"""Goal: our filter bitmaps are RocketMQ's, and its broker reads units that we wrote. Method: its own Bloom filter and
dispatcher compute the bits of the same groups and messages; its own message filter reads our store."""

from __future__ import annotations

import cystore
from cystore._native.filters.bitmap import GroupBits
from tests.oracle import bitmap as oracle
from tests.unit.consumers.test_registered_filters import EXTENDED, bitmaps_of

FILTERS = [
    ["T", "even", "b = 'x'"],
    ["T", "large", "a > 95"],
    ["T", "none", "missing = 'x'"],
    ["T", "all", "TRUE"],
    ["T", "error", "b > 3"],
    ["Other", "even", "a = 1"],
]
MESSAGES = [{"a": str(number), "b": "xyz"[number % 3], "c": "ü" * (number % 2)} for number in range(100)]
SETTINGS = {
    "mapedFileSizeCommitLog": EXTENDED["mapped_file_size_commit_log_bytes"],
    "mappedFileSizeConsumeQueue": EXTENDED["mapped_file_size_consume_queue_bytes"],
    "enableConsumeQueueExt": True,
    "mappedFileSizeConsumeQueueExt": EXTENDED["mapped_file_size_consume_queue_ext_bytes"],
    "bitMapLengthConsumeQueueExt": 112,
    "maxHashSlotNum": EXTENDED["max_hash_slot_num"],
    "maxIndexNum": EXTENDED["max_index_num"],
}
EXPECTED = [{name: value for name, value in one.items() if value} for one in MESSAGES]


def test_the_bits_of_a_group_are_rocketmqs(rocketmq, rng):
    letters = "abcXYZ019%|_-"
    names = [
        "a#b",
        "CID_abc_efg#T",
        *("".join(rng.choices(letters, k=n)) + "#" + "t" * (n % 19) for n in range(1, 120)),
    ]
    for consumers in (1, 32, 100, 1000):
        theirs = rocketmq.bit_positions(names, consumers)
        for name, positions in zip(names, theirs["positions"], strict=True):
            group, _, topic = name.encode().partition(b"#")
            assert list(GroupBits(group, topic, theirs["bits"]).positions) == positions
            assert oracle.positions(group + b"#" + topic, theirs["bits"]) == positions
    assert rocketmq.bit_positions([])["bits"] == cystore.StoreConfig().bit_map_length_consume_queue_ext == 112


def test_the_bitmaps_of_units_are_rocketmqs(rocketmq, tmp_path):
    with cystore.open(tmp_path / "s", **EXTENDED) as store:
        for topic, group, expression in FILTERS:
            store.filters.add(group, topic, expression)
        for properties in EXPECTED:
            store.put("T", b"body", properties=properties)
            store.put("Unfiltered", b"body", properties=properties)
        ours = bitmaps_of(store, "T")
        assert set(bitmaps_of(store, "Unfiltered")) == {b""}
    assert [one.hex() for one in ours] == rocketmq.bitmaps("T", FILTERS, EXPECTED)
    assert len(set(ours)) > 3


def test_rocketmq_reads_by_our_bitmaps(rocketmq, tmp_path):
    path = tmp_path / "s"
    with cystore.open(path, **EXTENDED, record_format="rocketmq") as store:
        for topic, group, expression in FILTERS:
            store.filters.add(group, topic, expression)
        for properties in EXPECTED:
            store.put("T", b"body", properties=properties)
        wanted = {row[1]: store.get("T", 0, 0, 200, filter=row[2]) for row in FILTERS[:2]}
    with rocketmq.opened(path, SETTINGS) as theirs:
        for group, expected in (("even", [n for n in range(100) if n % 3 == 0]), ("large", [96, 97, 98, 99])):
            found = theirs.read_by_bitmaps("T", group, FILTERS)
            assert found["offsets"] == expected
            assert len(expected) <= found["records"] < 100
            assert [one.queue_offset for one in wanted[group].messages] == expected[:32]
