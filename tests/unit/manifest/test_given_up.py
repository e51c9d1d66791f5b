"""Goal: a queue offset that was handed out is never handed out again, and what is lost keeps no store from opening.
Method: stores lose records, entries and saved offsets; they are opened, written to, rebuilt and opened again through
the public API."""

from __future__ import annotations

import shutil

import pytest

from cystore.cli.program import main
from cystore.engine.manifest.given_up_offsets import GivenUp, GivenUpRange
from cystore.engine.manifest.manifest import Facts, parse, render
from cystore.errors import CorruptRecordError
from tests.support.small_stores import LOG_BYTES, open_small

ENTRY = 20


def overwrite(path, position, data):
    with path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def segment_of(root, physical_offset):
    return root / "commitlog" / f"{physical_offset - physical_offset % LOG_BYTES:020d}"


def damage(root, put):
    """Damages the body of a record in the log."""
    overwrite(segment_of(root, put.physical_offset), put.physical_offset % LOG_BYTES + 95, b"\xff" * 8)


def bodies(store, topic="T", queue_id=0):
    at, found = 0, {}
    while at < store.topics()[topic][queue_id].max_offset:
        got = store.get(topic, queue_id, at)
        found.update((message.queue_offset, bytes(message.body)) for message in got.messages)
        at = max(got.next_offset, at + 1)
    return found


def kill(store):
    """The state after a kill: no process detaches."""
    store._parts.forget()


def with_lost_tail(root, count=30, lost=3, **settings):
    """A store whose last acknowledged records are damaged, and what it still has."""
    with open_small(root, **settings) as store:
        puts = [store.put("T", b"%d" % n * 50, keys=("k",), flush="sync") for n in range(count)]
        store.put("other", b"first", flush="sync")
        store.dispatch()
    with open_small(root, **settings) as store:
        assert store.recovery.clean
    for put in puts[-lost:]:
        damage(root, put)
    last = puts[-1]
    behind = last.physical_offset % LOG_BYTES + last.size_bytes
    overwrite(segment_of(root, last.physical_offset), behind, bytes(200))
    return {n: b"%d" % n * 50 for n in range(count - lost)}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("record_format", ["cystore", "rocketmq"])
@pytest.mark.parametrize("flush", ["sync", "async"])
@pytest.mark.parametrize("gone", [[], ["consumequeue", "index"], ["consumequeue", "config"]])
def test_lost_tail_and_a_put_behind_it_can_be_rebuilt_and_opened(tmp_path, record_format, flush, gone):
    """Seen: three damaged records at the end of a durable log were cut, the next put got the queue offset behind
    them, and from then on `cystore rebuild` and every open raised CorruptRecordError: the gap "leaves no room in the
    log"."""
    root = tmp_path / "s"
    expected = with_lost_tail(root, record_format=record_format)
    with open_small(root, record_format=record_format) as store:
        assert store.recovery.lost is not None
        expected[30] = b"new"
        assert store.put("T", b"new", flush=flush).queue_offset == 30
        store.dispatch()
        assert bodies(store) == expected
    for name in gone:
        shutil.rmtree(root / name)
    assert main(["rebuild", str(root)]) == 0
    for turn in range(2):
        with open_small(root, record_format=record_format) as store:
            assert bodies(store) == expected
            expected[31 + turn] = b"later"
            assert store.put("T", b"later", flush="sync").queue_offset == 31 + turn
    assert main(["verify", str(root)]) == 0


@pytest.mark.parametrize("gone", [[], ["consumequeue", "index"]])
def test_put_behind_a_lost_tail_survives_a_kill(tmp_path, gone):
    """It is above the watermark, where a queue offset that nothing explains ends the log."""
    root = tmp_path / "s"
    expected = with_lost_tail(root)
    store = open_small(root)
    store.put("T", b"new")
    kill(store)
    for name in gone:
        shutil.rmtree(root / name)
    with open_small(root) as store:
        assert bodies(store) == {**expected, 30: b"new"}


def test_lost_records_that_were_not_dispatched_are_counted_too(tmp_path):
    """Only queueOffset.json knows of them: no entry was on disk."""
    root = tmp_path / "s"
    with_lost_tail(root)
    shutil.rmtree(root / "consumequeue")
    with open_small(root) as store:
        assert store.put("T", b"new").queue_offset == 30
        assert sorted(bodies(store)) == [*range(27), 30]


def test_store_opens_when_its_tail_cannot_be_dispatched(tmp_path, monkeypatch):
    """Opening depends on the log alone. Queues count on behind what is not dispatched, and dispatch catches up."""
    root = tmp_path / "s"
    with open_small(root) as store:
        for n in range(6):
            store.put(f"T{n % 3}", b"%d" % n, flush="sync")
    shutil.rmtree(root / "consumequeue")

    def refuse(dispatcher):
        raise CorruptRecordError("not to be dispatched")

    with monkeypatch.context() as broken:
        broken.setattr("cystore.derived.dispatch.dispatcher.FETCH", dict.fromkeys(range(1, 30), refuse))
        store = open_small(root)
        assert [store.put(f"T{n}", b"new").queue_offset for n in range(4)] == [2, 2, 2, 0]
    with store:
        store.dispatch()
        assert [bodies(store, f"T{n}") for n in range(4)] == [
            {0: b"0", 1: b"3", 2: b"new"},
            {0: b"1", 1: b"4", 2: b"new"},
            {0: b"2", 1: b"5", 2: b"new"},
            {0: b"new"},
        ]


def queue_without_messages(root, count=40):
    """A closed store of whose queue T/0 every message expired; the file that holds its entries."""
    with open_small(root) as store:
        for n in range(count):
            store.put("T", b"%d" % n, flush="sync")
        while store.stats()["wrote"] < 2 * LOG_BYTES + 100:
            store.put("other", bytes(1000), flush="sync")
        store.dispatch()
    (root / "commitlog" / f"{0:020d}").unlink()
    with open_small(root) as store:
        assert store.topics()["T"][0] == (count, count)
    return root / "consumequeue/T/0" / f"{0:020d}"


@pytest.mark.sampled(2)
@pytest.mark.parametrize("crashed", [True, False])
@pytest.mark.parametrize(
    "rot", [bytes(ENTRY), b"\xff" * ENTRY, b"\0\0\0\0\7\0\0\0", b"\x7f", bytes(8) + b"\xff\xff"], ids=str
)
@pytest.mark.parametrize("gone", [1, 40])
def test_queue_without_messages_counts_on_whatever_its_entries_say(tmp_path, rot, gone, crashed):
    """Seen: all messages of a queue cleaned, its last entry rotten; recovery believed the queue and not
    queueOffset.json, and gave its last offset out a second time (I2)."""
    root = tmp_path / "s"
    file = queue_without_messages(root)
    for number in range(40 - gone, 40):
        overwrite(file, number * ENTRY, rot)
    if crashed:
        (root / "abort").touch()
    with open_small(root) as store:
        assert store.put("T", b"next", flush="sync").queue_offset == 40
        store.dispatch()
        assert store.topics()["T"][0].max_offset == 41
        assert bodies(store) == {40: b"next"}
    for _ in range(2):
        with open_small(root) as store:
            assert bodies(store) == {40: b"next"}
    assert main(["rebuild", str(root)]) == 0
    assert main(["verify", str(root)]) == 0
    with open_small(root) as store:
        assert bodies(store) == {40: b"next"}


def test_damaged_saved_offsets_leave_the_entries_as_witness(tmp_path):
    root = tmp_path / "s"
    queue_without_messages(root)
    for path in (root / "config").iterdir():
        path.write_bytes(b"{")
    with open_small(root) as store:
        assert store.put("T", b"next").queue_offset == 40


def test_list_keeps_its_ranges():
    given_up = GivenUp([GivenUpRange("T", 0, 5, 9), GivenUpRange("T", 0, 9, 12), GivenUpRange("U", 3, 1, 2)])
    assert list(given_up) == [("T", 0, 5, 12), ("U", 3, 1, 2)]
    assert parse(render(Facts(given_up=given_up))).given_up == given_up
    assert given_up.explains(("T", 0), 5, 12) and not given_up.explains(("T", 0), 4, 6)
    assert given_up.end(("T", 0)) == 12 and given_up.end(("T", 1)) == 0
    assert list(given_up.without_expired({("T", 0): 13})) == [("U", 3, 1, 2)]
