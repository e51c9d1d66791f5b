"""Goal: a manifest that is gone, or in whose place something else stands, keeps nobody out, and what a live process
knows comes back. Method: the file removed or replaced by a folder, with nobody attached and under live processes."""

from __future__ import annotations

import os

import pytest

import cystore
from cystore.engine.manifest.manifest import FILE_NAME, look
from tests.support.process import Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about one file


def take_away(path, how):
    """Removes the manifest, or puts something else in its place."""
    manifest = path / FILE_NAME
    if how == "damaged":
        manifest.write_bytes(b"x" * manifest.stat().st_size)
        return
    manifest.unlink()
    if how == "folder":
        manifest.mkdir()
        (manifest / "inside").write_text("somebody's")
    if how == "fifo":
        os.mkfifo(manifest)


@pytest.mark.parametrize("how", ["removed", "folder", "fifo", "damaged"])
@pytest.mark.parametrize("crashed", [False, True])
def test_a_closed_store_opens_without_it(tmp_path, caplog, how, crashed):
    """Seen: a folder there was "Is a directory" for every open."""
    with open_small(tmp_path) as store:
        store.put("T", b"0")
    if crashed:
        (tmp_path / "abort").touch()
    take_away(tmp_path, how)
    with open_small(tmp_path, read_only=True) as store:
        assert len(store.get("T", 0, 0).messages) == 1
    assert not (tmp_path / FILE_NAME).is_file() or how == "damaged"
    with open_small(tmp_path) as store:
        assert len(store.get("T", 0, 0).messages) == 1
        assert store.put("T", b"1").queue_offset == 1
    assert look(tmp_path).facts is not None
    if how == "folder":
        (moved,) = (tmp_path / "quarantine").glob("manifest.*/inside")
        assert moved.read_text() == "somebody's"
    if how != "removed":
        assert "making it anew" in caplog.text


@pytest.mark.parametrize("how", ["removed", "folder", "damaged"])
def test_under_live_processes_everybody_may_come_and_what_they_know_comes_back(tmp_path, caplog, how):
    """Seen: no process could join, until one of the others happened to enter something."""
    with open_small(tmp_path, message_index_enable=False) as store:
        parts = store._attached()
        parts.manifest.add_damage(8_000, 8_100, "bad checksum", "")
        parts.manifest.give_up("T", 0, 5, 9)
        store.configure(min_free_bytes=7)
        known = parts.manifest.snapshot()
        take_away(tmp_path, how)
        with Process() as other:
            other.do(
                "from tests.support.small_stores import open_small; store = open_small(path, "
                "message_index_enable=False)",
                path=str(tmp_path),
            )
            assert other.do("store.put('T', b'x').queue_offset") == 0
            now = parts.manifest.snapshot()
            assert now.rebuilt and (now.damaged_ranges, now.given_up, now.settings, now.store_id) == (
                known.damaged_ranges, known.given_up, known.settings, known.store_id,
            )  # fmt: skip
            assert look(tmp_path).facts.damaged_ranges == known.damaged_ranges
            assert other.do("store.stats()['holes']") == [[8_000, 8_100]]
            other.do("store.close()")
        with pytest.raises(cystore.StoreConfigError, match="message_index_enable"):
            open_small(tmp_path, message_index_enable=True)


def test_a_reader_comes_too_and_writes_nothing(tmp_path, caplog):
    with open_small(tmp_path) as store:
        store.put("T", b"x")
        take_away(tmp_path, "removed")
        with open_small(tmp_path, read_only=True) as reader:
            assert len(reader.get("T", 0, 0).messages) == 1
        assert not (tmp_path / FILE_NAME).exists()
        assert "removed under live processes" in caplog.text
        store.configure(min_free_bytes=7)
        assert look(tmp_path).facts.settings["min_free_bytes"] == 7


def test_two_that_know_different_things_both_add_them(tmp_path):
    with open_small(tmp_path) as store, open_small(tmp_path) as later:
        first, second = store._attached().manifest, later._attached().manifest
        first.add_damage(8_000, 8_100, "bad checksum", "")  # the second has not looked since
        take_away(tmp_path, "removed")
        with open_small(tmp_path):
            second.snapshot()
            first.snapshot()
            assert (
                look(tmp_path).facts.damaged_ranges.ranges()
                == [(8_000, 8_100)]
                == second.snapshot().damaged_ranges.ranges()
            )
