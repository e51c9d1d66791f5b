"""Goal: what a DLedger broker wrote is read as RocketMQ reads it, and is a store after an import. Method: the golden
stores; RocketMQ's own view of each, row by row."""

from __future__ import annotations

from pathlib import Path

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.dledger.entries import Entry
from cystore.dledger.messages import messages
from cystore.dledger.place import find
from cystore.dledger.source import Source
from cystore.dledger.verify import verify
from cystore.layout import takes_queue_offset
from cystore.operate.ledger_import import Imported, import_ledger
from tests.oracle import ledger
from tests.support.checks import check_chain
from tests.support.golden.answers import as_row, queue_messages, topics_and_queues
from tests.support.golden.ledger_stores import NAMES, SMALL, unpack, without_place
from tests.support.golden.stores import Golden

FILE_BYTES = SMALL["mapped_file_size_commit_log_bytes"]


@pytest.fixture(params=NAMES)
def golden(request: pytest.FixtureRequest, tmp_path: Path) -> Golden:
    return unpack(request.param, tmp_path)


@pytest.fixture
def source(golden):
    opened = Source(find(golden.store), 1 << 30)
    yield opened
    opened.close()


def imported(golden: Golden, target: Path, **more: bool) -> Imported:
    return import_ledger(golden.store, target, StoreConfig.from_mapping(SMALL), **more)


def record_at(path: Path, message: cystore.Message) -> bytes:
    at = message.physical_offset % FILE_BYTES
    segment = path / "commitlog" / f"{message.physical_offset - at:020}"
    return segment.read_bytes()[at : at + message.size_bytes]


def without_its_place(record: bytes) -> bytes:
    return record[:28] + record[36:]


def test_entries_and_records(golden, source):
    entries, records = [], []
    for found in source.records(uncommitted=False):
        fields = found.fields
        records.append(
            {
                "type": "record",
                "physicalOffset": found.physical_offset,
                "size": len(found.body),
                "topic": fields["topic"].decode(),
                "queueId": fields["queue_id"],
                "queueOffset": fields["queue_offset"],
                "sysFlag": fields["sys_flag"],
                "storeTimestamp": fields["store_timestamp"],
            }
        )
        if isinstance(found, Entry):
            entries.append((found.index, found.term, found.pos, found.size))
    rows = golden.rows_of("entry")
    assert entries == [(row["index"], row["term"], row["pos"], row["size"]) for row in rows]
    assert all(
        (row["magic"], row["channel"], row["chainCrc"], row["bodyCrc"]) == (1, 0, 0, 0) for row in rows
    )
    without_crc = [
        {name: value for name, value in row.items() if name != "crc32OfRecord"}
        for row in golden.rows_of("record")
    ]
    assert records == without_crc
    (row,) = golden.rows_of("ledger")
    assert source.committed == row["committedIndex"]
    assert source.walk.last == len(ledger.entries(ledger.ledger_of(golden.store))) - 1


def test_nothing_is_damaged(source):
    assert list(verify(source)) == []


def test_messages_are_those_that_rocketmq_reads(golden, source):
    hidden = {"cqPhysicalOffset", "cqSize", "cqTagsCode", "propertiesRawB64"}
    found = [as_row(message) for message in messages(source, lambda queue: True, 0, pytest.fail)]
    # Only what is committed is told; RocketMQ's queues of a killed broker may go on behind that.
    committed = {row["physicalOffset"] for row in golden.rows_of("record")}
    assert found == [
        {name: value for name, value in row.items() if name not in hidden}
        for row in golden.rows_of("msg")
        if row["physicalOffset"] in committed
    ]


@pytest.mark.parametrize("uncommitted", [False, True])
def test_an_import_has_the_same_queues(golden, tmp_path, uncommitted):
    done = imported(golden, tmp_path / "out", uncommitted=uncommitted)
    entries = ledger.entries(ledger.ledger_of(golden.store))
    old = [row for row in golden.rows_of("record") if row["physicalOffset"] < entries[0].pos]
    taken = entries if uncommitted else ledger.committed(ledger.ledger_of(golden.store))
    assert (done.old_records, done.entries, done.left_out) == (
        len(old),
        len(taken),
        len(entries) - len(taken),
    )
    assert (done.records, done.last_index, done.skipped) == (len(old) + len(taken), taken[-1].index, ())
    with cystore.open(tmp_path / "out", read_only=True) as store:
        check_chain(store)
        found = [as_row(m) for queue in topics_and_queues(store) for m in queue_messages(store, *queue)]
        records = list(store.scan())
    expected = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in golden.rows_of("msg")}
    committed = {row["physicalOffset"] for row in golden.rows_of("record")}
    compared = 0
    for row in found:
        wanted = expected.pop((row["topic"], row["queueId"], row["queueOffset"]), None)
        if wanted is None:
            assert uncommitted
            continue
        assert without_place(row) == without_place(wanted)
        compared += 1
    assert not [row for row in expected.values() if row["physicalOffset"] in committed]
    assert compared >= len([row for row in golden.rows_of("msg") if row["physicalOffset"] in committed])
    # Every record of the log, prepared and rolled back ones too, in the broker's order.
    there = [without_its_place(record_at(tmp_path / "out", message)) for message in records]
    assert there[len(old) :] == [without_its_place(entry.body) for entry in taken]


def test_keys_find_the_same_messages(golden, tmp_path):
    imported(golden, tmp_path / "out")
    records = golden.rows_of("record")
    places = {row["physicalOffset"]: (row["topic"], row["queueId"], row["queueOffset"]) for row in records}
    with cystore.open(tmp_path / "out", read_only=True) as store:
        for row in golden.rows_of("query"):
            topic, key = row["topic"], row["key"]
            in_queue = [m for m in store.query(topic, key, 64) if takes_queue_offset(m.sys_flag)]
            wanted = {
                places[one["physicalOffset"]]
                for one in golden.rows_of("msg")
                if one["topic"] == topic
                and one["physicalOffset"] in places
                and key in (*(one["keys"] or "").split(" "), one["properties"].get("UNIQ_KEY"))
            }
            assert {(m.topic, m.queue_id, m.queue_offset) for m in in_queue} == wanted
            # RocketMQ lost the index of the killed broker; it also answers with keys of the same hash.
            if golden.name == "switched":
                assert wanted <= {places[offset] for offset in row["physicalOffsets"]}


def test_delay_levels_go_on_where_they_were(tmp_path):
    golden = unpack("switched", tmp_path)
    imported(golden, tmp_path / "out")
    (row,) = golden.rows_of("delayOffset")
    assert row["offsetTable"]
    text = (tmp_path / "out" / "config" / "delayOffset.json").read_text()
    assert all(f"{level}:{offset}" in text for level, offset in row["offsetTable"].items())
