"""Goal: nothing that is read from a store is trusted. Method: stores with names, numbers and kinds of files that no
program of ours makes; each gives a typed error or is mended, and nothing outside of the store changes."""

from __future__ import annotations

import contextlib
import json
import os

import pytest

import cystore
from cystore.engine.manifest import manifest_file
from cystore.recovery.apply import drop_derived
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about names and kinds of files


@pytest.fixture
def path(tmp_path):
    """A closed store."""
    path = tmp_path / "s"
    with open_small(path) as store:
        store.put("T", b"1", keys=("k",))
    return path


def change_manifest(path, change):
    """Other facts in both slots, with right checksums."""
    (newest, *_) = manifest_file.read_slots(path / "manifest")
    facts = json.loads(newest.payload)
    change(facts)
    slot = manifest_file.render_slot(newest.sequence, json.dumps(facts).encode(), newest.slot_bytes)
    (path / "manifest").write_bytes(slot.ljust(newest.slot_bytes, b"\0") * 2)


@pytest.mark.parametrize(
    "table",
    [
        {"../../x": {"0": 1}},
        {"/abs": {"0": 1}},
        {"\ud800": {"0": 1}},
        {"T": {"99999999999999999999": 1}},
        {"T": {"-1": 1}},
        {"T": {"0": 1 << 70}},
        {"T": {"0" * 5000: 1}},
    ],
)
def test_names_in_the_table_of_offsets_are_checked_as_topics(path, table):
    """Seen: a topic `../../x` led out of the store, and `clean` unlinked four files of another folder."""
    victim = path.parent / "x" / "0"
    victim.mkdir(parents=True)
    (victim / ("0" * 20)).write_bytes(b"not ours")
    (path / "config").mkdir(exist_ok=True)
    for name in ("queueOffset.json", "queueOffset.json.bak"):
        (path / "config" / name).write_text(json.dumps({"offsetTable": table}))
    with open_small(path, file_reserved_time_h=0) as store:
        assert set(store.topics()) == {"T"}
        store.put("T", b"2", flush="sync")
        store.clean()
    assert (victim / ("0" * 20)).read_bytes() == b"not ours"


@pytest.mark.parametrize(
    "place",
    [
        "checkpoint",
        "config/queueOffset.json",
        "control",
        "abort",
        "headroom",
        "manifest",
        "commitlog/" + "0" * 20,
    ],
)
def test_a_fifo_in_the_place_of_a_file_does_not_hang(path, place):
    """Seen: `open` waited for ever."""
    (path / place).unlink(missing_ok=True)
    (path / place).parent.mkdir(exist_ok=True)
    os.mkfifo(path / place)
    with contextlib.suppress(cystore.StoreError):
        open_small(path).close()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("begin", ["the end", 1 << 40, 1 << 62])
@pytest.mark.parametrize("crashed", [True, False])
def test_a_hole_behind_the_end_of_the_log(path, begin, crashed):
    """Seen: with a damaged range there, `flush` never came back. The process dies of an alarm if it hangs."""
    with open_small(path) as store:
        begin = store.wrote_position if begin == "the end" else begin
    change_manifest(
        path, lambda facts: facts["damaged"].append({"begin": begin, "end": begin + 500, "reason": "x"})
    )
    if crashed:
        (path / "abort").touch()
    with Process() as process:
        process.do(
            "from tests.support.property import crafted; told = crafted.use(root, given)",
            root=str(path),
            given=SETTINGS,
        )
        assert (
            process.do(
                "[one for one in told if one[1] and one[0].startswith(('open', 'put', 'flush', 'close'))]"
            )
            == []
        )


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "name", ["checkpoint", "manifest", "abort", "lock", "config/queueOffset.json", "quarantine/holes.json"]
)
def test_a_file_of_a_terabyte(path, name):
    """Seen: the whole file was read into memory, until MemoryError or the end of the host's memory."""
    (path / name).parent.mkdir(exist_ok=True)
    (path / name).touch()
    os.truncate(path / name, 1 << 40)
    if name == "quarantine/holes.json":
        (path / "manifest").unlink()
    with Process() as process:
        told = process.do(
            "from tests.support.property import crafted; crafted.use(root, given)",
            root=str(path),
            given=SETTINGS,
        )
    assert len(told) > 5
    if name in ("checkpoint", "manifest", "abort", "lock"):
        assert [one for one in told if one[1] and one[0].startswith("open")] == []


def test_a_checkpoint_that_is_too_long_is_cut(path):
    os.truncate(path / "checkpoint", 10_000)
    with open_small(path) as store:
        store.put("T", b"2", flush="sync")
    assert (path / "checkpoint").stat().st_size == 4096


def test_a_folder_in_tmp_does_not_prevent_opening(path):
    (path / "tmp" / "folder" / "more").mkdir(parents=True)
    with open_small(path) as store:
        assert len(store.get("T", 0, 0).messages) == 1


def test_a_folder_called_index_is_no_store(tmp_path):
    """Seen: `cystore rebuild DIR` took any folder with an `index/` for a store and deleted it."""
    (tmp_path / "web" / "index").mkdir(parents=True)
    (tmp_path / "web" / "index" / "page").write_bytes(b"")
    with pytest.raises(cystore.StoreFormatError, match=r"no store|not a store"):
        open_small(tmp_path / "web")


def test_only_names_that_we_made_are_removed(path):
    (path / "index" / "page").write_bytes(b"not ours")
    (path / "consumequeue" / "T" / "notes").mkdir()
    drop_derived(path)
    assert (path / "index" / "page").exists()
    assert (path / "consumequeue" / "T" / "notes").exists()
    assert not (path / "consumequeue" / "T" / "0").exists()
    assert [p.name for p in (path / "index").iterdir()] == ["page"]
