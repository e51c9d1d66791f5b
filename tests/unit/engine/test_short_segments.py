"""Goal: a log of very many short segments is read at the speed of one of few long ones. Method: what asks for their
files is counted, and files that lack something are read both ways."""

from __future__ import annotations

import os

import pytest

import cystore
from cystore._native.system import log_files
from cystore.errors import StoreFormatError, StorePermissionError
from cystore.recovery.walk import log_reader
from cystore.recovery.walk.log_reader import PIECE_BYTES, LogReader
from cystore.system import folders
from cystore.verify import verify
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

SEGMENTS = 40
AT_ONCE = PIECE_BYTES // LOG_BYTES


@pytest.fixture
def root(tmp_path):
    with open_small(tmp_path / "s") as store:
        for _ in range(SEGMENTS):
            store.put("T", body_for(LOG_BYTES - 100))
    return tmp_path / "s"


def path_of(root, number: int):
    return root / "commitlog" / f"{number * LOG_BYTES:020d}"


def test_many_short_segments_are_read_together(root, monkeypatch):
    """Seen: each segment cost an open, a read and a listing in Python, twice: `verify` of 10,000 segments took 2.8
    times as long as that of 10 that hold as much."""
    calls, opened, listed = [], [], []
    read_files, open_file_in, list_files = log_files.read_files, folders.open_file_in, log_files.list_files

    def counted(folder, base, file_bytes, count, buffer):
        calls.append(count)
        return read_files(folder, base, file_bytes, count, buffer)

    monkeypatch.setattr(log_reader.log_files, "read_files", counted)
    monkeypatch.setattr(folders, "open_file_in", lambda *a: (opened.append(a), open_file_in(*a))[1])
    monkeypatch.setattr(log_reader.log_files, "list_files", lambda *a: (listed.append(a), list_files(*a))[1])
    assert list(verify(root, cystore.StoreConfig(**SETTINGS))) == []
    assert len(calls) <= SEGMENTS // AT_ONCE + 2
    assert max(calls) == AT_ONCE
    assert len([name for _, name in opened if name.startswith("0000")]) < SEGMENTS // 2
    assert len(listed) == 1


@pytest.mark.parametrize("lack", ["nothing", "a file", "an end", "all of a file"])
def test_files_read_together_are_what_they_are_one_by_one(root, lack):
    if lack == "a file":
        path_of(root, 7).unlink()
    elif lack != "nothing":
        os.truncate(path_of(root, 7), 0 if lack == "all of a file" else 5_000)
    reader, buffer = LogReader(root, LOG_BYTES), bytearray(b"?" * PIECE_BYTES)
    got = reader.read_files_into(0, buffer)
    assert got == (7 if lack == "a file" else AT_ONCE) * LOG_BYTES
    for base in range(0, got, LOG_BYTES):
        assert buffer[base : base + LOG_BYTES] == reader.read(base, LOG_BYTES)


def test_a_file_that_cannot_be_read_is_told_by_its_name(root):
    """The listing found it; then it is a link."""
    reader, moved = LogReader(root, LOG_BYTES), path_of(root, 3)
    moved.rename(root / "elsewhere")
    moved.symlink_to(root / "elsewhere")
    buffer = bytearray(PIECE_BYTES)
    assert reader.read_files_into(0, buffer) == 3 * LOG_BYTES
    assert reader.read_files_into(3 * LOG_BYTES, buffer) == 0
    with pytest.raises(StorePermissionError, match=moved.name):
        reader.read(3 * LOG_BYTES, 10)


@pytest.mark.parametrize("wrong", [(0, 0, 1), (-1, 10, 1), (0, 10, -1), (0, 10, 11), (0, 1 << 62, 1)])
def test_more_than_the_buffer_holds_is_refused(wrong):
    with pytest.raises(ValueError, match="do not fit"):
        log_files.read_files(0, *wrong, bytearray(100))


@pytest.mark.parametrize(
    "name", ["x", f"{7:019d}", f"{7:019d}x", "9" * 20, f"0{(1 << 63):019d}", f"1{7:019d}"]
)
def test_a_folder_with_another_name_in_it_is_looked_at_by_itself(root, name):
    expected = {
        number * LOG_BYTES: LOG_BYTES for number in range(len(list((root / "commitlog").iterdir())) - 1)
    }
    with folders.open_folder(root / "commitlog") as folder:
        assert log_files.list_files(folder, b"CYSTORE") == expected
        (root / "commitlog" / name).touch()
        assert log_files.list_files(folder, b"CYSTORE") is None
        assert log_files.list_files(folder, name.encode()) is None  # CYSTORE is another name now
    with pytest.raises(StoreFormatError, match=name):
        LogReader(root, LOG_BYTES)


@pytest.mark.parametrize("kind", ["folder", "link"])
def test_a_segment_that_is_no_file_is_refused(root, kind):
    path = path_of(root, SEGMENTS + 10)
    path.mkdir() if kind == "folder" else path.symlink_to(path_of(root, 0))
    with pytest.raises((StoreFormatError, StorePermissionError), match=path.name):
        LogReader(root, LOG_BYTES)


def test_a_link_in_the_place_of_the_marker_is_looked_at_by_itself(root):
    marker = root / "commitlog" / "CYSTORE"
    marker.unlink(missing_ok=True)
    marker.symlink_to(root)
    with folders.open_folder(root / "commitlog") as folder:
        assert log_files.list_files(folder, b"CYSTORE") is None
    with pytest.raises(StorePermissionError, match="symbolic link"):
        LogReader(root, LOG_BYTES)
