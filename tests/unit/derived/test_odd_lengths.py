"""Goal: an index file, or a file of extended entries, that a hand made shorter or longer under live processes stops
nobody. Method: files of a live store are cut and lengthened; processes that come later query, read and put on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import cystore
from tests.support.process import Process
from tests.unit.derived.test_online_damage import open_store

COUNT = 300
TAGGED = """
found, offset = [], 0
while (result := store.get('T', 0, offset, tags='t1')).status is cystore.GetStatus.FOUND:
    found += [bytes(m.body).decode() for m in result.messages]
    offset = result.next_offset
found
"""
JOIN = "import cystore; store = cystore.open(path, services=(), **settings)"


def filled(store: cystore.MessageStore) -> None:
    for n in range(COUNT):
        store.put("T", b"%d" % n, keys=(f"k{n}",), tags=f"t{n % 3}")
    store.dispatch()
    store.flush()


def resize(folder: Path, change: int) -> None:
    """Adds so many bytes to the newest file; less than 0: leaves so much of it away."""
    newest = sorted(path for path in folder.rglob("*") if path.is_file())[-1]
    os.truncate(newest, max(newest.stat().st_size + change, 0))


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [-1, -30, -77_777, -(1 << 40), 1, 5000])
def test_queries_go_on_beside_an_index_file_of_another_length(tmp_path, change):
    """Seen: StoreFormatError in each process that came to the file, until all had left the store."""
    with open_store(tmp_path) as store, Process() as other, Process() as reader:
        filled(store)
        resize(tmp_path / "index", change)
        for process, settings in ((reader, {"read_only": True}), (other, {})):
            process.do(JOIN, path=str(tmp_path), settings=settings)
            assert process.do("[bytes(m.body).decode() for m in store.query('T', 'k7')]") in (["7"], [])
        if change > -77_777:
            assert other.do("[bytes(m.body).decode() for m in store.query('T', 'k7')]") == ["7"]
            assert reader.do("[bytes(m.body).decode() for m in store.query('T', 'k7')]") == ["7"]
        other.do("[store.put('T', b'new', keys=(f'n{n}',)) for n in range(50)] and store.dispatch() and None")
        assert other.do("[bytes(m.body).decode() for m in store.query('T', 'n49')]") == ["new"]
        assert reader.do("[bytes(m.body).decode() for m in store.query('T', 'n49')]") == ["new"]
        for process in (other, reader):
            process.do("store.close()")
        assert [bytes(m.body) for m in store.query("T", "n0")] == [b"new"]
    with open_store(tmp_path) as store:
        assert [bytes(m.body) for m in store.scan()][:COUNT] == [b"%d" % n for n in range(COUNT)]
        assert [bytes(m.body) for m in store.query("T", "k7")] == [b"7"]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", [-1, -4096, -(1 << 40), 1, 5000])
def test_reads_go_on_beside_an_extended_file_of_another_length(tmp_path, change):
    with (
        open_store(tmp_path, enable_consume_queue_ext=True) as store,
        Process() as other,
        Process() as reader,
    ):
        filled(store)
        resize(tmp_path / "consumequeue_ext", change)
        expected = [str(n) for n in range(1, COUNT, 3)]
        for process, settings in ((reader, {"read_only": True}), (other, {})):
            settings["enable_consume_queue_ext"] = True
            process.do(JOIN, path=str(tmp_path), settings=settings)
            found = process.do(TAGGED)
            assert found == expected
        other.do("[store.put('T', b'new', tags='t1') for n in range(50)] and store.dispatch() and None")
        for process in (reader, other):
            found = process.do(TAGGED)
            assert found == expected + ["new"] * 50
            process.do("store.close()")
