"""Goal: `cystore snapshot --pack` writes a store into one file that has only what is there, and `--unpack` makes the
same store of it. Method: round trips of arbitrary stores, beside writers and the cleaner, through files and pipes;
names that are refused."""

from __future__ import annotations

import gzip
import os
import random
import shutil
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import cystore
from cystore.config import StoreConfig
from cystore.errors import StoreError
from cystore.operate import backup, facts
from cystore.operate.packs.members import FIRST, PackError
from cystore.operate.packs.streams import TargetError
from tests.support.checks import check_chain
from tests.support.cleaning import check_cleaned, fill, filled
from tests.support.cli.command import Command
from tests.support.cli.packs import SUFFIXES, content, pack, unpack
from tests.support.cli.stores import write, write_and_crash
from tests.support.clock import turn
from tests.support.process import ROOT, Process
from tests.support.small_stores import LOG_BYTES, open_small

DAY_MS = 86_400_000


def log_of(path, end):
    """The bytes of a store's log."""
    found = b""
    for segment in sorted(path.glob("commitlog/0*")):
        found += segment.read_bytes()
    return found[:end]


def disk_bytes(path):
    return sum(each.stat().st_blocks * 512 for each in path.rglob("*"))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_a_pack_becomes_the_store_that_it_was_made_of(store_path, place, command: Command, suffix):
    """With the log's bytes, offsets, settings, quarantine and id; `verify` finds no damage, and puts continue."""
    more = {"message_delay_level": "1s 1h", "enable_consume_queue_ext": True}
    with open_small(store_path, file_reserved_time_h=24, **more) as store:
        fill(store, 300)
        store.put("later", b"x", delay_level=2)
        store.dispatch()
        (store_path / "config" / "storeId").write_text("6c5ab5a3-7a8c-4c8e-9d0f-3b1f6a1f8f44")
        (told,) = command.json_lines("snapshot", "--pack", place / f"p.{suffix}", store_path)
        before, end = content(store_path, **more), store.wrote_position
    file, target = place / f"p.{suffix}", place / "one"
    assert (told["begin"], told["end"], told["size_bytes"]) == (0, end, file.stat().st_size)
    assert file.stat().st_mode & 0o777 == 0o600
    (made,) = command.json_lines("snapshot", target, "--unpack", file)
    assert (made["records"], made["damaged"], made["path"]) == (301, [], str(target))
    assert sorted(os.listdir(place)) == ["one", file.name]
    assert facts.state(target).name == "closed"
    assert command.ok("verify", target) == "no damage\n"
    assert content(target, **more) == before and log_of(target, end) == log_of(store_path, end)
    with cystore.open(target) as store:
        assert store.put("T", b"next").queue_offset == 150 and store.stats()["delayed"] == {2: 1}
        assert store._attached().manifest.snapshot().settings["file_reserved_time_h"] == 24
    assert (target / "config" / "storeId").read_text().startswith("6c5ab5a3")


message = st.builds(
    cystore.Message,
    topic=st.sampled_from(["T", "other", "%RETRY%g"]),
    body=st.binary(max_size=3000),
    keys=st.lists(st.text("abc", min_size=1, max_size=3), max_size=3).map(tuple),
    tags=st.sampled_from([None, "red", "grün"]),
    properties=st.dictionaries(
        st.text("xyz", min_size=1, max_size=3), st.text(max_size=8).map(repr), max_size=2
    ),
)


@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_store_comes_back_as_it_was(tmp_path_factory, data):
    """Whatever was put, in one life or several, with any compression: the copy of a folder and the unpacked store have
    the same messages."""
    place = tmp_path_factory.mktemp("any")
    rounds = data.draw(st.lists(st.lists(message, max_size=25), max_size=3))
    suffix = data.draw(st.sampled_from(SUFFIXES))
    record_format = data.draw(st.sampled_from(["cystore", "rocketmq"]))
    with open_small(place / "s", record_format=record_format):
        pass
    for messages in rounds:
        with open_small(place / "s") as store:
            store.put_many(messages)
    (place / "s" / "checkpoint").stat()
    pack(place / "s", place / f"p.{suffix}")
    taken = unpack(place / f"p.{suffix}", place / "u")
    copied = backup.take(place / "s", place / "c", StoreConfig())
    assert taken.records == copied.records == sum(map(len, rounds))
    assert content(place / "u") == content(place / "c") == content(place / "s")
    shutil.rmtree(place)


def test_a_pack_is_as_small_as_the_log(tmp_path, place):
    """Seen: 88 MB, 1.5 GB for a program that knows no holes, of 407 KB of log. Default settings."""
    with cystore.open(tmp_path / "s") as store:
        store.put_many(
            [cystore.Message(topic="T", body=random.randbytes(200), keys=(str(n),)) for n in range(1000)]
        )
        log_bytes = store.wrote_position
    for suffix in SUFFIXES:
        pack(tmp_path / "s", place / f"p.{suffix}")
        assert log_bytes // 2 < (place / f"p.{suffix}").stat().st_size <= 2 * log_bytes
    unpack(place / "p.tar.zst", place / "one")
    assert disk_bytes(place / "one") <= 24_000_000


def test_holes_of_segments_take_no_space(tmp_path, place):
    """A segment that ended early for a large message is mostly a hole."""
    mib = 1 << 20
    sizes = {"mapped_file_size_commit_log_bytes": 16 * mib, "max_message_size_bytes": 16 * mib - 65536}
    with open_small(tmp_path / "s", **sizes) as store:
        store.put("T", b"small")
        store.put("T", random.randbytes(15 * mib))
    pack(tmp_path / "s", place / "p.tar")
    assert (place / "p.tar").stat().st_size < 16 * mib
    unpack(place / "p.tar", place / "one")
    assert content(place / "one") == content(tmp_path / "s")


def test_standard_output_and_input(store_path, place):
    write(store_path, 50)
    cli = [sys.executable, "-m", "cystore", "snapshot"]
    packed = subprocess.run([*cli, "--pack", "-", store_path], cwd=ROOT, capture_output=True, check=True)
    assert b"of log" in packed.stderr and packed.stdout.startswith(FIRST.encode())
    for data in (packed.stdout, gzip.compress(packed.stdout)):
        done = subprocess.run([*cli, "--unpack", "-", place / "one"], cwd=ROOT, input=data, check=True)
        assert done.returncode == 0 and content(place / "one") == content(store_path)
        shutil.rmtree(place / "one")


def test_a_pack_beside_writers(store_path, place):
    with open_small(store_path, flush_disk_type="async") as store:
        before = fill(store, 300)
        with Process() as writer:
            writer.do(
                "import cystore, threading; store = cystore.open(path, services='none')\n"
                "ended = threading.Event(); ready = threading.Event()\n"
                "def run():\n    n = 0\n    while not ended.wait(0.001):\n"
                "        store.put('live', b'%d' % n); n += 1; ready.set()\n"
                "thread = threading.Thread(target=run); thread.start(); ready.wait(60)",
                path=str(store_path),
            )
            pack(store_path, place / "p.tar.zst")
            writer.do("ended.set(); thread.join(); store.close()")
        assert unpack(place / "p.tar.zst", place / "one").damaged == ()
        copied, whole = content(place / "one"), content(store_path)
    assert all(messages == whole[queue][: len(messages)] for queue, messages in copied.items())
    assert sum(len(copied["T", n]) for n in (0, 1)) == len(before)
    bodies = [body for _, _, body, *_ in copied["live", 0]]
    assert bodies and bodies == [b"%d" % n for n in range(len(bodies))]


def test_the_cleaner_beside_a_pack(store_path, place, monkeypatch):
    """It removes segments, some of which are in the pack already: the store begins behind them, and has the delayed
    message that was carried forward."""
    with open_small(store_path, message_delay_level="30d", file_reserved_time_h=72) as store:
        store.put("later", b"waits", delay_level=1)
        put = filled(store, 400)
        turn(monkeypatch, 4 * DAY_MS)
        steps = []

        def report(what, done, total):
            if what == "copying the log":
                steps.append(done)
                if len(steps) == 3:
                    assert store.clean().segments > 3

        packed = pack(store_path, place / "p.tar.gz", report)
        assert packed.begin > 0
    taken = unpack(place / "p.tar.gz", place / "one")
    assert (taken.begin, taken.end) == (packed.begin, packed.end)
    with cystore.open(place / "one") as store:
        assert store.stats()["delayed"] == {1: 1}
        check_cleaned(store, put)


def test_a_fast_cleaner_beside_each_pass(store_path, place):
    """Others put so much before each segment that the cleaner removes segments which the pack has."""
    with open_small(store_path, message_delay_level="30d", file_reserved_time_h=0) as store:
        store.put("later", b"waits", delay_level=1)
        filled(store, 200)
        steps = []

        def report(what, done, total):
            if what == "copying the log" and len(steps) < 12:
                steps.append(done)
                if done == 0 or len(steps) % 4 == 3:
                    filled(store, 3 * LOG_BYTES // 1000)
                    store.flush()
                    store.clean()

        packed = pack(store_path, place / "p.tar.zst", report)
    taken = unpack(place / "p.tar.zst", place / "one")
    assert (taken.begin, taken.end) == (packed.begin, packed.end)
    with cystore.open(place / "one") as copy:
        check_chain(copy)
        assert copy.stats()["delayed"] == {1: 1} and copy.stats()["wrote"] == packed.end


def test_crashed_stores_and_damage(store_path, place, command, tmp_path):
    """A crashed store is recovered first. Damage goes along, and is reported by whoever unpacks."""
    write_and_crash(tmp_path / "crashed", 50)
    pack(tmp_path / "crashed", place / "p.tar")
    assert unpack(place / "p.tar", place / "one").records == 50
    with open_small(store_path) as store:
        put = filled(store, 200)
        with open(
            store_path / "commitlog" / f"{put[7].physical_offset // LOG_BYTES * LOG_BYTES:020d}", "r+b"
        ) as file:
            file.seek(put[7].physical_offset % LOG_BYTES + 60)
            file.write(b"\xff" * 4)
        pack(store_path, place / "damaged.tar")
    done = command.run("snapshot", "--unpack", place / "damaged.tar", place / "two")
    assert done.returncode == 1 and f"damaged from {put[7].physical_offset} to" in done.stderr
    with cystore.open(place / "two", read_only=True) as store:
        assert len(list(store.scan())) == 199


def test_the_compacted_file_is_packed(tmp_path, place):
    with open_small(tmp_path / "s", compacted_topics="state", file_reserved_time_h=0) as store:
        for number in range(100):
            store.put("state", b"%d" % number, keys=[f"k{number % 10}"])
            store.put("other", bytes(900))
        store.flush()
        assert store.clean().segments
        pack(tmp_path / "s", place / "p.tar.zst")
        newest = {f"k{n}": bytes(store.latest("state", f"k{n}").body) for n in range(10)}
    unpack(place / "p.tar.zst", place / "one")
    with open_small(place / "one") as copy:
        assert {key: bytes(copy.latest("state", key).body) for key in newest} == newest


def test_names_that_are_refused(store_path, place, command, monkeypatch):
    write(store_path, 3)
    for name, why in {
        "p.zip": "ends in", "p": "ends in", "no/p.tar": "parent directory", "s": "ends in",
    }.items():  # fmt: skip
        with pytest.raises(TargetError, match=why):
            pack(store_path, place / name)
    with pytest.raises(TargetError, match="inside the store"):
        pack(store_path, store_path / "p.tar")
    (place / "p.tar").write_bytes(b"mine")
    with pytest.raises(TargetError, match="already exists"):
        pack(store_path, place / "p.tar")
    assert (place / "p.tar").read_bytes() == b"mine"
    (place / "q.tar.incomplete").touch()
    with pytest.raises(TargetError, match="interrupted pack"):
        pack(store_path, place / "q.tar")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(TargetError, match=r"pip install 'cystore\[zstd\]'"):
        pack(store_path, place / "z.tar.zst")
    monkeypatch.undo()
    pack(store_path, place / "r.tar")
    with pytest.raises(TargetError, match="already exists"):
        unpack(place / "r.tar", store_path)
    with pytest.raises(TargetError, match="parent directory"):
        unpack(place / "r.tar", place / "no" / "one")
    with pytest.raises(StoreError, match=r"none\.tar"):
        unpack(place / "none.tar", place / "one")
    with pytest.raises(PackError, match="is a folder"):
        unpack(store_path, place / "one")
    for words in (
        (store_path,), (store_path, place / "x", "--pack", place / "y.tar"), (store_path, "--pack", ""),
        (store_path, "--pack", place / "y.tar", "--unpack", place / "r.tar"),
    ):  # fmt: skip
        assert command.run("snapshot", *words).returncode == 2
    assert sorted(os.listdir(place)) == ["p.tar", "q.tar.incomplete", "r.tar"]
