"""Goal: a directory that is no store is refused, and nothing in it changes, whatever names it holds. Method: folders
that other programs make, with names that a store has, too; every command and every kind of open is tried on each."""

from __future__ import annotations

import contextlib
import io
import os
import shutil

import pytest

import cystore
from cystore.cli.program import main
from tests.support.small_stores import open_small

SEGMENT = "0" * 20
FOREIGN = {
    "a git checkout": {"index/page.html": b"x", ".git/index": b"DIRC", "config/app.json": b"{}"},
    "only an index": {"index/" + "2" * 17: b"x"},
    "queues without a log": {"consumequeue/T/0/" + SEGMENT: bytes(2000), "index/" + "2" * 17: b"x"},
    "a database": {"checkpoint": b"0/16B3748", "base/1": b"", "tmp/work": b"y", "lock": b"17"},
    "a checkpoint that is a folder": {"checkpoint/0": b"", "index/" + "2" * 17: b"x"},
    "a log of changes": {"commitlog/CHANGES": b"x", "commitlog/2024-01-01": b"y"},
    "a log of times": {"commitlog/20260101120000123456": b"x"},
    "a folder with the name of a segment": {f"commitlog/{SEGMENT}/file": b"x"},
    "a log that is a file": {"commitlog": b"x", "manifest": b"<manifest>"},
    "a foreign manifest": {"manifest": b"<manifest package='x'/>" * 100, "tmp/" + "a" * 32: b"x"},
    "names of a new store": {"lock": b"", "tmp/notes": b"mine", "config/app.json": b"{}"},
    "a lock and other files": {"lock": b"lock", "tmp/" + "a" * 32: b"x", "notes.txt": b"mine"},
}
COMMANDS = (
    ["rebuild"],
    ["clean"],
    ["topics"],
    ["topics", "delete", "T"],
    ["topics", "clean"],
    ["info"],
    ["verify"],
    ["recover"],
    ["recover", "--dry-run"],
    ["dump"],
    ["put", "T"],
    ["query", "T", "k"],
    ["tail", "T"],
    ["config"],
    ["config", "--set", "file_reserved_time_h=1"],
    ["quarantine", "list"],
    ["quarantine", "restore", "x"],
    ["clock"],
    ["clock", "--believe"],
)


def arguments(command, path):
    """The command line, with the path behind the command's name."""
    words = (
        2
        if command[0] in ("quarantine",) or command[:2] in (["topics", "delete"], ["topics", "clean"])
        else 1
    )
    return [*command[:words], str(path), *command[words:]]


def content(root):
    return {
        str(path.relative_to(root)): path.read_bytes() if path.is_file() else None
        for path in sorted(root.rglob("*"))
    }


def make(root, files):
    for name, data in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(data)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("kind", FOREIGN)
def test_every_command_refuses_a_foreign_folder(tmp_path, kind, capsys, monkeypatch):
    """Seen: `cystore rebuild DIR` took any folder with an `index/` for a store, and later any with a file
    `checkpoint`, or with the names `lock`, `tmp` and `config` alone; an open deleted all that was in `tmp/`."""
    make(tmp_path, FOREIGN[kind])
    before = content(tmp_path)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"body")))
    for command in COMMANDS:
        code = 2
        with contextlib.suppress(SystemExit):  # of the parser
            code = main(arguments(command, tmp_path))
        told = capsys.readouterr().err
        assert code == 2, command
        assert "no store" in told or "not a store" in told, (command, told)
        assert content(tmp_path) == before, command


@pytest.mark.sampled(12)
@pytest.mark.parametrize("kind", FOREIGN)
@pytest.mark.parametrize("how", [{}, {"read_only": True}, {"exclusive": True}, {"create": False}], ids=str)
def test_every_open_refuses_a_foreign_folder(tmp_path, kind, how):
    make(tmp_path, FOREIGN[kind])
    before = content(tmp_path)
    with pytest.raises(cystore.StoreFormatError, match=r"no store|not a store"):
        open_small(tmp_path, **how)
    assert content(tmp_path) == before


def test_links_and_other_kinds_of_files_tell_no_store(tmp_path):
    """A link to another store's checkpoint, a FIFO or a folder is no mark of a store."""
    with open_small(tmp_path / "s"):
        pass
    root = tmp_path / "foreign"
    root.mkdir()
    (root / "checkpoint").symlink_to(tmp_path / "s" / "checkpoint")
    (root / "commitlog").symlink_to(tmp_path / "s" / "commitlog")
    os.mkfifo(root / "manifest")
    for how in ({}, {"read_only": True}):
        with pytest.raises(cystore.StoreFormatError, match=r"no store|not a store"):
            open_small(root, **how)
    assert main(["rebuild", str(root)]) == 2


@pytest.mark.parametrize("left", ["checkpoint", "manifest", "commitlog", "lock"])
def test_one_mark_is_enough(tmp_path, left):
    """A store that lost nearly all of its files is a store all the same. RocketMQ's has a checkpoint before it has a
    log."""
    with open_small(tmp_path) as store:
        store.put("T", b"1")
    for path in tmp_path.iterdir():
        if path.name != left:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
    with open_small(tmp_path) as store:
        store.put("T", b"2", flush="sync")


@pytest.mark.parametrize("left", [{}, {"abort": b""}, {"tmp/" + "a" * 32: b"x"}, {"control": bytes(4096)}])
def test_what_a_kill_leaves_of_a_new_store_is_opened(tmp_path, left):
    make(tmp_path, {"lock": b"lock", **left})
    with open_small(tmp_path) as store:
        store.put("T", b"1", flush="sync")


@pytest.mark.parametrize("text", [b"", bytes(4)], ids=["empty", "zeros"])
def test_a_lock_whose_text_a_power_cut_took_begins_a_new_store(tmp_path, text):
    """Its length may be durable before its text."""
    make(tmp_path, {"lock": text})
    with open_small(tmp_path) as store:
        store.put("T", b"1", flush="sync")
    assert (tmp_path / "lock").read_bytes() == b"lock"


def test_names_in_tmp_that_are_not_ours_stay(tmp_path):
    """A kill leaves files with names of 32 hexadecimal digits there."""
    root = tmp_path / "s"
    with open_small(root):
        pass
    make(root / "tmp", {"notes": b"mine", "a" * 32: b"a kill left it", "b" * 32 + "/file": b"mine"})
    os.mkfifo(root / "tmp" / "fifo")
    with open_small(root) as store:
        store.put("T", b"1", flush="sync")
    assert sorted(path.name for path in (root / "tmp").iterdir()) == ["b" * 32, "fifo", "notes"]
