"""Goal: `cystore snapshot` makes of a live store a store that is whole, and never half of one. Method: copies beside
writers and the cleaner, of damaged and odd stores; kills and errors at each report of progress; a full disk; the
command itself."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

import cystore
from cystore.config import StoreConfig
from cystore.errors import StoreFormatError, StorePermissionError
from cystore.operate import backup, facts
from cystore.operate.backup import TargetError
from tests.support.checks import check_chain
from tests.support.cleaning import check_cleaned, fill, filled
from tests.support.cli.command import Command
from tests.support.cli.packs import content
from tests.support.cli.stores import write, write_and_crash
from tests.support.clock import turn
from tests.support.disks.small_disk import on_small_disk
from tests.support.process import ROOT, Process
from tests.support.small_stores import LOG_BYTES, open_small

DAY_MS = 86_400_000


@pytest.fixture
def target(tmp_path):
    return tmp_path / "copies" / "one"


@pytest.fixture(autouse=True)
def _folder(target):
    target.parent.mkdir()


def take(path, target, report=None, **settings):
    return backup.take(path, target, StoreConfig.from_mapping(settings), report)


def nothing_left(target):
    assert list(target.parent.iterdir()) == []


def test_a_copy_beside_writers(store_path, target):
    """Two other processes put all the time. What was there before is in the copy; of theirs a beginning, without a
    gap."""
    with open_small(store_path, flush_disk_type="async") as store:
        before = fill(store, 300)
        with Process() as one, Process() as two:
            for writer in (one, two):
                writer.do(
                    "import cystore, threading; store = cystore.open(path, services='none')\n"
                    "ended = threading.Event(); ready = threading.Event()\n"
                    "def run():\n    n = 0\n    while not ended.wait(0.001):\n"
                    "        store.put('live', b'%d' % n, queue_id=number); n += 1; ready.set()\n"
                    "thread = threading.Thread(target=run); thread.start(); ready.wait(60)",
                    path=str(store_path), number=1 if writer is one else 2,
                )  # fmt: skip
            taken = take(store_path, target)
            for writer in (one, two):
                writer.do("ended.set(); thread.join(); store.close()")
        copied = content(target)
        assert [place for n in (0, 1) for place, *_ in copied["T", n]] == [
            one.physical_offset for n in (0, 1) for one in before[n::2]
        ]
        for number in (1, 2):
            bodies = [body for _, _, body, *_ in copied["live", number]]
            assert bodies == [b"%d" % n for n in range(len(bodies))] and bodies
        whole = content(store_path)
        assert all(messages == whole[queue][: len(messages)] for queue, messages in copied.items())
        assert len(store.query("T", "k7")) == 1
    assert taken.path == str(target) and taken.damaged == () and taken.records >= 300
    assert facts.state(target).name == "closed"


def test_a_copy_is_a_whole_store(store_path, target):
    """It continues where the store was: offsets, settings, the id; and a copy of the copy is the way back."""
    settings = {"enable_consume_queue_ext": True, "message_delay_level": "1s 1h"}
    with open_small(store_path, file_reserved_time_h=24, **settings) as store:
        fill(store, 100)
        store.put("later", b"x", delay_level=2)
        store.dispatch()
        (store_path / "config" / "storeId").write_text("6c5ab5a3-7a8c-4c8e-9d0f-3b1f6a1f8f44")
        take(store_path, target)
        store.put("T", b"behind")
    before = content(store_path, **settings)
    restored = target.with_name("two")
    shutil.rmtree(store_path)
    take(target, restored)
    assert (
        {**before, ("T", 0): before["T", 0][:-1]}
        == content(restored, **settings)
        == content(target, **settings)
    )
    assert (restored / "config" / "storeId").read_text() == "6c5ab5a3-7a8c-4c8e-9d0f-3b1f6a1f8f44"
    with cystore.open(restored) as store:
        assert store.stats()["delayed"] == {2: 1}
        assert store.put("T", b"next").queue_offset == 50
        assert store._attached().manifest.snapshot().settings["file_reserved_time_h"] == 24


def test_the_cleaner_beside_a_copy(store_path, target, monkeypatch):
    """It removes segments while they are copied. The copy begins behind them, and has the delayed message that was
    carried forward."""
    with open_small(store_path, message_delay_level="30d", file_reserved_time_h=72) as store:
        store.put("later", b"waits", delay_level=1)
        put = filled(store, 400)
        turn(monkeypatch, 4 * DAY_MS)
        steps = []

        def report(what, done, total):
            if what != "copying the log":
                return
            steps.append(done)
            if len(steps) == 3:
                assert store.clean().segments > 3

        taken = take(store_path, target, report)
        assert taken.begin > 0
        assert len(steps) < store.wrote_position // LOG_BYTES
    with cystore.open(target) as store:
        assert store.stats()["delayed"] == {1: 1}
        check_cleaned(store, put)


@pytest.mark.parametrize("compacted", ["", "T"], ids=["plain", "compacted"])
def test_a_fast_cleaner_beside_each_pass_of_a_copy(store_path, target, compacted):
    """Before a segment is copied, others put so many messages that its successors are full, and the cleaner removes
    all of them. The copy is a whole store with the delayed message; it ends when the others pause."""
    with open_small(
        store_path, message_delay_level="30d", file_reserved_time_h=0, compacted_topics=compacted
    ) as store:
        store.put("later", b"waits", delay_level=1)
        filled(store, 200)
        segments, steps, begins = LOG_BYTES, [], []

        def report(what, done, total):
            if what == "copying the log" and len(steps) < 12:
                steps.append(done)
                if done == 0 or len(steps) % 4 == 3:  # the newest segment of a pass, and an older one
                    filled(store, 3 * segments // 1000)
                    store.flush()
                    store.clean()
                    begins.append(store.stats()["min_physical_offset"])

        taken = take(store_path, target, report)
        assert len(set(begins)) >= 4 and taken.begin >= begins[-2]
        end = store.wrote_position
    with cystore.open(target) as copy:
        check_chain(copy)
        assert copy.stats()["delayed"] == {1: 1} and copy.stats()["wrote"] == taken.end <= end


def test_queues_whose_messages_are_gone_go_on_counting(store_path, target, monkeypatch):
    with open_small(store_path, file_reserved_time_h=72) as store:
        store.put_many([cystore.Message(topic="gone", body=b"x") for _ in range(7)])
        filled(store, 200)
        turn(monkeypatch, 4 * DAY_MS)
        store.clean()
        assert "gone" not in store.topics()
        take(store_path, target)
    with cystore.open(target) as store:
        assert store.put("gone", b"x").queue_offset == 7


@pytest.mark.parametrize(("count", "record_format"), [(0, "cystore"), (1, "cystore"), (100, "rocketmq")])
def test_small_and_odd_stores(store_path, target, count, record_format):
    with open_small(store_path, record_format=record_format) as store:
        fill(store, count)
    assert take(store_path, target).records == count
    assert sum(map(len, content(target).values())) == count


def test_a_store_that_ends_with_a_segment(store_path, target):
    with open_small(store_path) as store:
        while store.put("T", bytes(1000)).physical_offset < LOG_BYTES:
            pass
    assert content(store_path) == (take(store_path, target) and content(target))


def test_a_crashed_store(store_path, target):
    """Nobody has it open, and the last one did not close it: it is recovered first."""
    write_and_crash(store_path, 50)
    assert take(store_path, target).records == 50
    assert content(target) == content(store_path)


def test_damage_goes_along(store_path, target, command):
    """Unknown damage gives exit code 1. Other records are in the copy; a copy of the copy knows the damage."""
    with open_small(store_path) as store:
        put = filled(store, 200)
        with open(store_path / "commitlog" / f"{0:020d}", "r+b") as file:
            file.seek(put[7].physical_offset + 60)
            file.write(b"\xff" * 4)
        done = command.run("snapshot", store_path, target)
    assert done.returncode == 1 and f"damaged from {put[7].physical_offset} to" in done.stderr
    with cystore.open(target, read_only=True) as store:
        assert len(list(store.scan())) == 199
    assert take(target, target.with_name("two")).damaged == ()


def test_a_known_hole_and_its_copy(store_path, target):
    """Quarantined bytes are part of a backup."""
    with open_small(store_path) as store:
        put = fill(store, 60)
        store.flush()
    damage_at = put[3].physical_offset + 60
    with open(store_path / "commitlog" / f"{0:020d}", "r+b") as file:
        file.seek(damage_at)
        file.write(b"\xff" * 4)
    with open_small(store_path) as store:
        assert store.stats()["holes"]
        assert take(store_path, target).damaged == ()
        holes = store.stats()["holes"]
    with cystore.open(target, read_only=True) as store:
        assert store.stats()["holes"] == holes
    assert {p.name for p in (target / "quarantine").iterdir()} >= {
        p.name for p in (store_path / "quarantine").iterdir()
    }


# -------------------------------------------------------------------------------------- what must not be


def test_targets_that_are_refused(store_path, target, tmp_path):
    write(store_path, 3)
    with pytest.raises(TargetError, match="inside the store"):
        take(store_path, store_path / "copy")
    with pytest.raises(TargetError, match="inside the store"):
        take(store_path, store_path)
    (tmp_path / "link").symlink_to(store_path)
    with pytest.raises(TargetError, match="inside the store"):
        take(store_path, tmp_path / "link" / "copy")
    with pytest.raises(TargetError, match="parent directory"):
        take(store_path, target / "deep")
    with pytest.raises(StoreFormatError, match=r"no store|not a store"):
        take(tmp_path / "none", target)
    for root in (Path("/"), Path("//"), Path("/..")):  # a folder without a name, which was a traceback
        with pytest.raises(TargetError, match="already exists"):
            take(store_path, root)
    nothing_left(target)
    target.parent.chmod(0o777)
    with pytest.raises(StorePermissionError, match="may write to"):
        take(store_path, target)
    target.parent.chmod(0o700)
    nothing_left(target)
    target.mkdir()
    with pytest.raises(TargetError, match="already exists"):
        take(store_path, target)
    target.rmdir()
    target.with_name("one.incomplete").mkdir()
    with pytest.raises(TargetError, match="interrupted copy"):
        take(store_path, target)


@pytest.mark.parametrize("what", ["copying the log", "verify"])
def test_an_error_leaves_nothing(store_path, target, what):
    """Ctrl-C in the middle, for one."""
    with open_small(store_path) as store:
        fill(store, 200)

    def interrupt(now, done, total):
        if (now == "copying the log") == (what == "copying the log") and target.with_name(
            "one.incomplete"
        ).exists():
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        take(store_path, target, interrupt)
    nothing_left(target)


KILLED = """
import os, signal, sys
from pathlib import Path
from cystore.operate import backup
from cystore.config import StoreConfig
from cystore.system import files
from cystore.system.ranges import file_ranges
place, at = sys.argv[3], int(sys.argv[4])
calls = 0
def counted(real):
    def call(*words, **named):
        global calls
        if "one.incomplete" in str(words):
            calls += 1
            if calls == at:
                os.kill(os.getpid(), signal.SIGKILL)
        return real(*words, **named)
    return call
room = file_ranges if place == "copy_ranges" else files
setattr(room, place, counted(getattr(room, place)))
backup.take(Path(sys.argv[1]), Path(sys.argv[2]), StoreConfig())
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("place", "at"),
    [
        ("copy_ranges", 1),
        ("copy_ranges", 3),
        ("write_whole", 1),
        ("write_whole", 3),
        ("remove", 1),
        ("move", 1),
        ("remove_tree", 1),
    ],
)
def test_a_kill_leaves_nothing_that_passes_for_the_store(store_path, target, place, at):
    with open_small(store_path) as store:
        fill(store, 200)
    before = content(store_path)
    command = [sys.executable, "-c", KILLED, str(store_path), str(target), place, str(at)]
    done = subprocess.run(command, cwd=ROOT, timeout=90, check=False)
    assert done.returncode == -signal.SIGKILL
    if place == "remove_tree":  # the copy has its name
        assert content(target) == before
    else:
        assert not target.exists()
    draft = target.with_name("one.incomplete")
    refused(draft)
    assert content(store_path) == before


def refused(draft):
    """Neither a writer nor a reader opens what a kill left."""
    before = sorted(draft.rglob("*"))
    with pytest.raises(StoreFormatError):
        cystore.open(draft)
    with pytest.raises(StoreFormatError):
        cystore.open(draft, read_only=True)
    assert sorted(draft.rglob("*")) == before != []


KILLED_IN_VERIFY = """
import os, signal, sys
from pathlib import Path
from cystore.operate import backup
from cystore.config import StoreConfig
def report(what, done, total):
    if what != "copying the log" and Path(sys.argv[2] + ".incomplete").exists():
        os.kill(os.getpid(), signal.SIGKILL)
backup.take(Path(sys.argv[1]), Path(sys.argv[2]), StoreConfig(), report)
"""


def test_a_kill_during_the_verify_leaves_nothing_that_opens(store_path, target, command):
    """The mark was gone by then: `info` and `put` took what was left for a store."""
    write(store_path, 200)
    killed = [sys.executable, "-c", KILLED_IN_VERIFY, str(store_path), str(target)]
    done = subprocess.run(killed, cwd=ROOT, timeout=90, check=False)
    assert done.returncode == -signal.SIGKILL and not target.exists()
    draft = target.with_name("one.incomplete")
    refused(draft)
    assert command.run("info", draft).returncode == 2
    assert command.run("put", draft, "T", stdin=b"x\n").returncode == 2


FULL = """
import shutil, sys
from pathlib import Path
from cystore.operate import backup
from cystore.operate import facts
from cystore.config import StoreConfig
from cystore.errors import StoreError
disk, path = Path(sys.argv[1]), Path(sys.argv[2])
ballast, target = disk / "ballast", disk / "one"
def left():
    return sorted(p.name for p in disk.iterdir() if p != ballast)
def take(free):
    ballast.write_bytes(bytes(ALL - free))
    try:
        taken = backup.take(path, target, StoreConfig())
    except StoreError as error:
        return type(error).__name__, left()
    finally:
        ballast.unlink()
    told = taken.records, facts.state(target).name, left()
    shutil.rmtree(target)
    return told
ALL = 8 * 1024 * 1024
enough = next(free for free in range(512 * 1024, ALL, 128 * 1024) if take(free)[1] == "closed")
found = {}
for free in range(enough - 160 * 1024, enough + 8192, 8192):
    found.setdefault(str(take(free)), free)
print(*found, sep="\\n")
"""


def test_a_disk_that_fills_at_the_end(store_path, tmp_path):
    """Each amount of space beside the least that is enough. A copy whose queues could not be made durable kept
    `abort` and got its name all the same."""
    with open_small(store_path) as store:
        fill(store, 1500)
    disk = tmp_path / "disk"
    disk.mkdir()
    told = on_small_disk("8m", disk, FULL, str(store_path)).splitlines()
    assert "(1500, 'closed', ['one'])" in told
    assert {line for line in told if not line.endswith("Error', [])")} == {"(1500, 'closed', ['one'])"}
    assert len(told) > 1


def test_the_command(store_path, target, command: Command):
    with open_small(store_path) as store:
        fill(store, 20)
        (told,) = command.json_lines("snapshot", store_path, target)
        assert (told["records"], told["begin"], told["queues"], told["damaged"]) == (20, 0, 2, [])
        assert command.ok("verify", target) == "no damage\n"
        done = command.run("snapshot", store_path, target)
        assert done.returncode == 2 and "already exists" in done.stderr
        done = command.run("snapshot", store_path, "/")
        assert done.returncode == 2 and "already exists" in done.stderr and done.stderr.count("\n") == 1
    assert json.loads(command.ok("info", target, "--json"))["state"] == "closed"
    assert "20 records in" in command.ok("snapshot", target, Path(f"{target}-2"))


def test_the_compacted_file_is_copied(tmp_path, target):
    settings = {"compacted_topics": "state", "file_reserved_time_h": 0}
    with open_small(tmp_path / "store", **settings) as store:
        for number in range(100):
            store.put("state", b"%d" % number, keys=[f"k{number % 10}"])
            store.put("other", bytes(900))
        store.flush()
        assert store.clean().segments
        store.put("state", b"newer", keys=["k0"])
        newest = {f"k{number}": b"9%d" % number for number in range(10)} | {"k0": b"newer"}
        take(tmp_path / "store", target)
    with open_small(target) as copy:
        assert {key: bytes(copy.latest("state", key).body) for key in newest} == newest
        assert {one.keys[0]: bytes(one.body) for one in copy.compacted("state")} == newest
