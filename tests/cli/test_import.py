"""Goal: `cystore import` makes a whole store of a DLedger broker's directory, and never half of one. Method: the golden
stores, whole and damaged; kills and errors on the way; a full disk; the commands as a user runs them."""

from __future__ import annotations

import base64
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.errors import (
    CorruptRecordError,
    StoreConfigError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
)
from cystore.operate import ledger_import
from cystore.operate.backup import TargetError
from cystore.operate.ledger_import import Imported, import_ledger
from cystore.system import files
from tests.oracle import ledger
from tests.support.checks import check_chain, everything
from tests.support.cli.command import Command, settings
from tests.support.disks.small_disk import on_small_disk
from tests.support.golden.ledger_stores import SMALL, WITH_BODY, entry, killed, overwrite, switched
from tests.support.golden.stores import Golden
from tests.support.process import ROOT

__all__ = ["killed", "switched"]


@pytest.fixture
def target(tmp_path):
    folder = tmp_path / "made"
    folder.mkdir()
    return folder / "store"


def run(golden: Golden, target: Path, report=None, **more) -> Imported:
    return import_ledger(golden.store, target, StoreConfig.from_mapping(SMALL), report=report, **more)


def content(path: Path, *, whole: bool = True) -> dict:
    with cystore.open(path, read_only=True) as store:
        if whole:
            check_chain(store)
        return {
            queue: [(m.queue_offset, bytes(m.body), m.keys, m.tags) for m in found]
            for queue, found in everything(store).items()
        }


def everything_in(path: Path) -> int:
    """The number of records in the log."""
    with cystore.open(path, read_only=True) as store:
        return len(list(store.scan()))


def nothing_left(target: Path) -> None:
    assert list(target.parent.iterdir()) == []


def test_the_command(switched, target, command: Command):
    done = command.run("import", switched.store, target, "--json", *settings(SMALL))
    assert (done.returncode, done.stderr) == (0, "")
    taken = json.loads(done.stdout)
    assert taken["records"] == len(switched.rows_of("record")) == taken["old_records"] + taken["entries"]
    assert (taken["left_out"], taken["skipped"], taken["path"]) == (0, [], str(target))
    assert taken["queues"] == len(content(target))
    verified = command.run("verify", target)
    assert (verified.returncode, verified.stdout) == (0, "no damage\n")
    again = command.run("import", switched.store, target)
    assert again.returncode == 2
    assert "already exists" in again.stderr


def test_what_is_not_committed_is_named(killed, target, command: Command):
    folder = ledger.ledger_of(killed.store)
    left_out = len(ledger.entries(folder)) - len(ledger.committed(folder))
    assert left_out > 0
    done = command.run("import", folder, target, *settings(SMALL))
    assert done.returncode == 0
    assert f"{left_out} entries behind entry {len(ledger.committed(folder)) - 1}" in done.stderr
    more = command.run("import", killed.store, target.with_name("all"), "--uncommitted", *settings(SMALL))
    assert (more.returncode, more.stderr) == (0, "")
    count = {name: sum(map(len, content(target.with_name(name)).values())) for name in ("store", "all")}
    assert count["all"] - count["store"] > 0


def test_dump_of_the_directory_and_of_the_store_are_alike(switched, target, command: Command):
    run(switched, target)

    def lines(path: Path) -> list[dict]:
        done = command.run("dump", path, "--json")
        assert done.returncode == 0
        found = [json.loads(line) for line in done.stdout.splitlines()]
        return [{name: value for name, value in row.items() if name != "physical_offset"} for row in found]

    there = lines(switched.store)
    assert there == lines(target)
    assert len(there) == len(switched.rows_of("msg"))
    some = command.run(
        "dump", switched.store, "--json", "--topic", "TopicTest", "--queue", 1, "--from", 2, "--count", 3
    )
    assert [json.loads(line)["queue_offset"] for line in some.stdout.splitlines()] == [2, 3, 4]
    assert "is a DLedger" in some.stderr


def test_a_unicode_topic(switched, target, command: Command):
    """RocketMQ's own check lets only ASCII through; keys and properties are anything."""
    done = command.run("dump", switched.store, "--json")
    keys = {key for line in done.stdout.splitlines() for key in json.loads(line)["keys"]}
    assert any(not key.isascii() for key in keys)
    run(switched, target)
    with cystore.open(target, read_only=True) as store:
        for key in (key for key in keys if not key.isascii()):
            assert [m for topic in store.topics() for m in store.query(topic, key)]


def test_verify_of_the_directory(switched, command: Command):
    done = command.run("verify", switched.store)
    assert (done.returncode, done.stdout) == (0, "no damage\n")
    assert "is a DLedger" in done.stderr
    bad = entry(switched, WITH_BODY)
    overwrite(switched, bad.physical_offset + 100, b"\xff\xff")
    done = command.run("verify", switched.store, "--json")
    assert done.returncode == 1
    (damage,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (damage["kind"], damage["begin"], damage["end"]) == ("entry", bad.pos, bad.pos + bad.size)


def test_damage_stops_an_import_before_there_is_a_store(switched, target, command: Command):
    bad = entry(switched, WITH_BODY)
    overwrite(switched, bad.physical_offset + 100, b"\xff\xff")
    with pytest.raises(CorruptRecordError, match="--skip-damaged") as caught:
        run(switched, target)
    assert caught.value.offset == bad.pos
    nothing_left(target)
    done = command.run("import", switched.store, target, "--skip-damaged", *settings(SMALL))
    assert done.returncode == 1
    assert f"bytes {bad.pos}..{bad.pos + bad.size}" in done.stderr
    left = {(row["topic"], row["queueId"], row["queueOffset"]): row for row in switched.rows_of("msg")}
    lost = next(key for key, row in left.items() if row["physicalOffset"] == bad.physical_offset)
    found = {
        (*queue, offset): body
        for queue, all_ in content(target, whole=False).items()
        for offset, body, *_ in all_
    }
    assert {key: base64.b64decode(row["bodyB64"]) for key, row in left.items() if key != lost} == found


def test_damage_at_the_end_of_what_is_committed(switched, target):
    last = len(ledger.entries(ledger.ledger_of(switched.store))) - 1
    bad = entry(switched, last)
    overwrite(switched, bad.pos, bytes(bad.size))
    with pytest.raises(CorruptRecordError):
        run(switched, target)
    done = run(switched, target, skip_damaged=True)
    assert done.last_index == last - 1
    assert done.skipped[0][0] == bad.pos


def test_a_data_file_that_is_missing(switched, target):
    """Many messages of one queue in a row."""
    folder = ledger.ledger_of(switched.store) / "data"
    gone = sorted(folder.iterdir())[1]
    gone.unlink()
    done = run(switched, target, skip_damaged=True)
    ((begin, end),) = done.skipped
    assert (begin, end) == (int(gone.name), int(gone.name) + 16384)
    kept = [row for row in switched.rows_of("msg") if not begin <= row["physicalOffset"] < end]
    found = {(*queue, offset) for queue, all_ in content(target, whole=False).items() for offset, *_ in all_}
    assert found == {(row["topic"], row["queueId"], row["queueOffset"]) for row in kept}


def test_a_file_far_behind_the_others(switched, target):
    """A gap of so many bytes would fill any disk."""
    folder = ledger.ledger_of(switched.store) / "data"
    base = 16384 << 40
    last = ledger.entries(ledger.ledger_of(switched.store))[-1]
    raw = bytearray(
        ledger.HEAD.pack(1, last.size, last.index + 1, 0, base, 0, 0, 0, len(last.body)) + last.body
    )
    raw[48 + 28 : 48 + 36] = (base + 48).to_bytes(8, "big")
    (folder / f"{base:020}").write_bytes(bytes(raw).ljust(16384, b"\0"))
    with pytest.raises(StoreFormatError, match="move it away"):
        run(switched, target, skip_damaged=True)
    nothing_left(target)


def test_a_log_whose_first_files_were_removed(switched, target):
    """Queues begin above 0, at the same offsets as RocketMQ's."""
    shutil.rmtree(switched.store / "commitlog")
    first = sorted((ledger.ledger_of(switched.store) / "data").iterdir())[0]
    first.unlink()
    run(switched, target)
    kept = [row for row in switched.rows_of("msg") if row["physicalOffset"] >= int(first.name) + 16384]
    found = {(*queue, offset) for queue, all_ in content(target).items() for offset, *_ in all_}
    assert found == {(row["topic"], row["queueId"], row["queueOffset"]) for row in kept}


def test_a_store_goes_on_behind_an_import(switched, target):
    run(switched, target)
    before = content(target)
    with cystore.open(target) as store:
        put = store.put("TopicTest", b"new", queue_id=0)
    assert put.queue_offset == before["TopicTest", 0][-1][0] + 1


def test_a_ledger_without_an_entry(switched, target):
    shutil.rmtree(switched.store / "commitlog")
    folder = ledger.ledger_of(switched.store)
    for file in (folder / "data").iterdir():
        file.unlink()
    (folder / "checkpoint").unlink()
    (folder / "checkpoint.bak").unlink()
    done = run(switched, target)
    assert (done.records, done.queues) == (0, 0)
    assert content(target) == {}


def test_refusals(switched, target, tmp_path, monkeypatch, command: Command):
    with pytest.raises(TargetError, match="inside"):
        run(switched, switched.store / "store")
    with pytest.raises(TargetError, match="parent"):
        run(switched, tmp_path / "no" / "store")
    monkeypatch.setattr(ledger_import, "BLANK_SIZE_MIN", 15_000)
    with pytest.raises(StoreConfigError, match="does not fit"):
        run(switched, target)
    monkeypatch.undo()
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    for path in (foreign, tmp_path / "nowhere", switched.path / "dump.jsonl"):
        done = command.run("import", path, target)
        assert (done.returncode, done.stdout) == (2, "")
        assert "no DLedger" in done.stderr
    (ledger.ledger_of(switched.store) / "checkpoint").unlink()
    (ledger.ledger_of(switched.store) / "checkpoint.bak").unlink()
    with pytest.raises(StoreFormatError, match="--uncommitted"):
        run(switched, target)
    nothing_left(target)


def test_a_running_broker_is_not_imported(switched, target):
    lock = "file = open(sys.argv[1], 'r+'); fcntl.lockf(file, fcntl.LOCK_EX, 1); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-c", f"import fcntl, sys; {lock}", str(switched.store / "lock")]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as broker:
        broker.stdout.readline()
        with pytest.raises(StoreLockedError):
            run(switched, target)
        broker.stdin.close()
    nothing_left(target)


KILLED = """
import os, signal, sys
from pathlib import Path
from cystore.config import StoreConfig
from cystore.operate.ledger_import import import_ledger
from cystore.system import files
from cystore.system.ranges import file_ranges
place, at = sys.argv[3], int(sys.argv[4])
room = file_ranges if place == "write_at" else files
real, calls = getattr(room, place), 0
def counted(*words, **named):
    global calls
    calls += 1
    if calls == at:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*words, **named)
setattr(room, place, counted)
import_ledger(Path(sys.argv[1]), Path(sys.argv[2]), StoreConfig.from_mapping(eval(sys.argv[5])))
"""


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("create_sized", 2),
        ("write_at", 1),
        ("write_at", 3),
        ("write_whole", 1),
        ("write_whole", 3),
        ("move", 1),
    ],
)
def test_a_killed_import_is_begun_anew(switched, target, place, at):
    words = [sys.executable, "-c", KILLED, switched.store, target, place, at, SMALL]
    done = subprocess.run([*map(str, words)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert not target.exists()
    draft = target.with_name("store.incomplete")
    with pytest.raises(StoreFormatError):
        cystore.open(draft)
    run(switched, target)
    assert [path.name for path in target.parent.iterdir()] == ["store"]
    assert sum(map(len, content(target).values())) == len(switched.rows_of("msg"))


def test_nothing_of_a_killed_import_comes_into_the_next(switched, killed, target):
    words = [sys.executable, "-c", KILLED, switched.store, target, "move", 1, SMALL]
    done = subprocess.run([*map(str, words)], cwd=ROOT, check=False)
    assert done.returncode == -signal.SIGKILL
    assert run(killed, target).records == len(killed.rows_of("record"))
    assert everything_in(target) == len(killed.rows_of("record"))
    committed = {row["physicalOffset"] for row in killed.rows_of("record")}
    rows = [row for row in killed.rows_of("msg") if row["physicalOffset"] in committed]
    assert set(content(target)) == {(row["topic"], row["queueId"]) for row in rows}


def test_a_kill_behind_the_rename_leaves_the_whole_store(switched, target):
    words = [sys.executable, "-c", KILLED, switched.store, target, "remove_tree", 2, SMALL]
    subprocess.run([*map(str, words)], cwd=ROOT, check=False)
    assert sum(map(len, content(target).values())) == len(switched.rows_of("msg"))
    with pytest.raises(TargetError, match="already exists"):
        run(switched, target)


def test_two_imports_of_the_same_store(switched, target):
    def second(what: str, done: int, total: int) -> None:
        with pytest.raises(TargetError, match="another process"):
            run(switched, target)

    run(switched, target, report=second)
    assert content(target)


def test_a_foreign_folder_in_the_drafts_place(switched, target):
    draft = target.with_name("store.incomplete")
    draft.mkdir()
    (draft / "mine").write_text("keep")
    with pytest.raises(TargetError, match="interrupted import"):
        run(switched, target)
    assert (draft / "mine").read_text() == "keep"


@pytest.mark.parametrize("place", ["create_sized", "write_whole", "move"])
def test_an_error_leaves_nothing_behind(switched, target, place, monkeypatch):
    def fail(*words, **named):
        raise StoreFullError("no space")

    monkeypatch.setattr(files, place, fail)
    with pytest.raises(StoreFullError):
        run(switched, target)
    monkeypatch.undo()
    nothing_left(target)


def test_a_full_disk(switched, tmp_path):
    script = (
        "import sys; from pathlib import Path\n"
        "from cystore.config import StoreConfig\nfrom cystore.errors import StoreFullError\n"
        "from cystore.operate.ledger_import import import_ledger\n"
        "disk = Path(sys.argv[1])\n"
        "config = StoreConfig.from_mapping({**eval(sys.argv[3]), 'allow_any_file_system': True})\n"
        "try:\n    import_ledger(Path(sys.argv[2]), disk / 'store', config)\n"
        "except StoreFullError as error:\n    print('full', [path.name for path in disk.iterdir()])\n"
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    assert on_small_disk("48k", disk, script, str(switched.store), str(SMALL)) == "full []\n"
