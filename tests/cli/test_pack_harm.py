"""Goal: no foreign, broken or half pack makes anything but an error, and no kill or full disk leaves a half one.
Method: packs that were cut, changed or made to do harm; kills at the calls of the operating system; small disks."""

from __future__ import annotations

import io
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tarfile
import zlib
from pathlib import Path

import pytest

import cystore
from cystore.errors import StoreError, StoreFormatError, StoreFullError
from cystore.operate.packs import members
from cystore.operate.packs.members import FIRST, LAST, PackError, PackFacts
from cystore.operate.packs.streams import TargetError
from tests.support.cleaning import fill
from tests.support.cli.packs import SUFFIXES, content, pack, unpack
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import ROOT
from tests.support.small_stores import LOG_BYTES, open_small


@pytest.fixture
def packed(store_path, place):
    """A plain pack of a small store."""
    with open_small(store_path) as store:
        fill(store, 200)
    pack(store_path, place / "p.tar")
    return place / "p.tar"


def refused(file, target, match=None, kind=PackError):
    before = sorted(os.listdir(target.parent))
    with pytest.raises(kind, match=match) as raised:
        unpack(file, target)
    assert str(file) in str(raised.value) or kind is not PackError
    assert sorted(os.listdir(target.parent)) == before


def members_of(file):
    with tarfile.open(file) as tar:
        return [(info, tar.extractfile(info).read()) for info in tar.getmembers()]


def as_pack(file, parts):
    """Members as a pack; the last one agrees with them, so that nothing but the members' own checks refuses it."""
    count = checksum = 0
    with tarfile.open(file, "w", format=tarfile.GNU_FORMAT) as tar:
        for info, data in parts:
            if info.name == LAST:
                found = members.parse_facts(data, "")
                data = members.render_facts(found._replace(pieces=count, checksum=checksum))
            elif info.name != FIRST:
                count += 1
                checksum = zlib.crc32(data, zlib.crc32(info.name.encode(), checksum))
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return file


def test_a_pack_that_tar_wrote_again_is_read(packed, place):
    as_pack(place / "again.tar", members_of(packed))
    assert unpack(place / "again.tar", place / "one").records == 200


def evil(name, kind=tarfile.REGTYPE, link=""):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


HOSTILE = {
    "up": evil("../evil@0"),
    "up inside": evil("config/../../evil@0"),
    "absolute": evil("/etc/cystore-evil@0"),
    "dots": evil("config/..@0"),
    "folder in a folder": evil("config/a/b@0"),
    "unknown file": evil("lock@0"),
    "shared memory": evil("control@0"),
    "folders of the log": evil("config/log_folders.json@0"),
    "a control character": evil("config/a\nb@0"),
    "no offset": evil("manifest"),
    "a large offset": evil("quarantine/x@99999999999999999999"),
    "a gap": evil("config/x@5"),
    "negative": evil("config/x@-5"),
    "leading zero": evil("config/x@00"),
    "another segment": evil(f"commitlog/{7:020d}@0"),
    "a far segment": evil(f"commitlog/{LOG_BYTES * 5000:020d}@0"),
    "a huge segment": evil(f"commitlog/{'9' * 20}@0"),
    "behind a segment": evil(f"commitlog/{0:020d}@{LOG_BYTES}"),
    "back in a segment": evil(f"commitlog/{0:020d}@0"),
    "symbolic link": evil("config/x@0", tarfile.SYMTYPE, "/etc/passwd"),
    "hard link": evil("config/x@0", tarfile.LNKTYPE, "../../evil"),
    "device": evil("config/x@0", tarfile.CHRTYPE),
    "fifo": evil("config/x@0", tarfile.FIFOTYPE),
    "folder": evil("config", tarfile.DIRTYPE),
    "second first": evil(FIRST),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_members_are_refused(packed, place, name):
    """Nothing is left, in the target's folder or outside of it."""
    parts = members_of(packed)
    data = b"evil" if HOSTILE[name].type == tarfile.REGTYPE else b""
    file = as_pack(place / "evil.tar", [*parts[:-1], (HOSTILE[name], data), parts[-1]])
    refused(file, place / "one")
    assert not list(place.parent.rglob("evil")) and not Path("/etc/cystore-evil").exists()


def test_hostile_lengths_are_refused(packed, place):
    """A header may say any length: nothing is read for it, and no file grows to it."""
    parts = members_of(packed)
    for size in (members.PIECE_BYTES + 1, 1 << 40, (1 << 63) - 1):
        info = evil("config/x@0")
        info.size = size
        data = packed.read_bytes()
        at = data.index(b"manifest@0")
        (place / "long.tar").write_bytes(data[:at] + info.tobuf(tarfile.GNU_FORMAT) + data[at:])
        refused(place / "long.tar", place / "one", "bytes; 1048576 are the most")
        info = evil("long", b"L")  # GNU: the next member's name, which a reader takes into memory
        info.size = size
        (place / "long.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + data)
        refused(place / "long.tar", place / "one", "no plain file")
    for first in (
        PackFacts(0, 1 << 62, LOG_BYTES), PackFacts(0, 1 << 60, 1), PackFacts(5, 4, LOG_BYTES), PackFacts(0, 5, 0),
    ):  # fmt: skip
        changed = [(parts[0][0], members.render_facts(first)), *parts[1:]]
        refused(as_pack(place / "first.tar", changed), place / "one", kind=(PackError, StoreFullError))
    last = members.parse_facts(parts[-1][1], "")
    for end in (last.end + LOG_BYTES, 1 << 60, (1 << 63) - 1):
        changed = [*parts[:-1], (parts[-1][0], members.render_facts(last._replace(end=end)))]
        refused(as_pack(place / "last.tar", changed), place / "one", "segments of its log")


def test_a_manifest_that_leads_elsewhere_is_refused(packed, place, tmp_path):
    from cystore.engine.manifest import manifest, manifest_file

    parts = members_of(packed)
    at = next(n for n, (info, _) in enumerate(parts) if info.name == "manifest@0")
    payload = json.loads(manifest_file.parse_slots(parts[at][1])[0].payload)
    payload["settings"]["store_path_commit_log"] = str(tmp_path / "elsewhere")
    data = manifest_file.whole(9, json.dumps(payload).encode())
    changed = [*parts[:at], (parts[at][0], data), *parts[at + 1 :]]
    refused(as_pack(place / "evil.tar", changed), place / "one", kind=StoreError)
    assert manifest and not (tmp_path / "elsewhere").exists()


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_cut_and_changed_packs_are_refused(store_path, place, suffix):
    """At places all over the file, and something behind its end: an error that names the file, and nothing is left."""
    with open_small(store_path) as store:
        store.put_many([cystore.Message(topic="T", body=random.randbytes(300)) for _ in range(100)])
    pack(store_path, place / f"p.{suffix}")
    whole = (place / f"p.{suffix}").read_bytes()
    file, chosen = place / f"q.{suffix}", random.Random(7)
    for at in [0, 1, 3, 100, 511, 512, 513, *chosen.sample(range(len(whole) - 1100), 12)]:
        file.write_bytes(whole[:at])
        refused(file, place / "one")
    for at in chosen.sample(range(len(whole) - 1100), 24):
        file.write_bytes(whole[:at] + bytes([whole[at] ^ 0x10]) + whole[at + 1 :])
        error = ""
        try:
            unpack(file, place / "one")
        except PackError as raised:
            error = str(raised)
        if not error:  # a byte that means nothing, of the padding
            assert content(place / "one") == content(store_path)
            shutil.rmtree(place / "one")
        assert (not error or str(file) in error) and not list(place.glob("one*"))
    file.write_bytes(whole + b"more")
    refused(file, place / "one")


def test_a_small_archive_of_much_is_refused_in_little_memory(place):
    """A gigabyte of zeros, packed into a megabyte: it is no pack from its first bytes on, or ends with the first piece
    that is wrong."""
    zstandard = pytest.importorskip("zstandard")
    bomb = zstandard.ZstdCompressor().compress(bytes(1 << 28))
    (place / "bomb.tar.zst").write_bytes(bomb * 4)
    refused(place / "bomb.tar.zst", place / "one", "too short")


KILLED = """
import os, signal, sys
from pathlib import Path
from cystore.operate import backup
from cystore.config import StoreConfig
from cystore.system import files
from cystore.system.ranges import file_ranges
from cystore.operate.packs import streams
what, room, name, at = sys.argv[3:7]
calls = 0
room = {"files": files, "file_ranges": file_ranges, "file": streams._File}[room]
real = getattr(room, name)
def call(*words, **named):
    global calls
    if ".incomplete" in str(words) or room is streams._File or name == "sync":
        calls += 1
        if calls == int(at):
            os.kill(os.getpid(), signal.SIGKILL)
    return real(*words, **named)
setattr(room, name, call)
getattr(backup, what)(Path(sys.argv[1]), Path(sys.argv[2]), StoreConfig())
"""


def killed(what, source, target, place_of_kill, at):
    words = [sys.executable, "-c", KILLED, str(source), str(target), what, *place_of_kill, str(at)]
    done = subprocess.run(words, cwd=ROOT, timeout=300, check=False)
    assert done.returncode == -signal.SIGKILL


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("place_of_kill", "at"),
    [
        (("file", "write"), 1),
        (("file", "write"), 4),
        (("file", "write"), 12),
        (("files", "rename_no_replace"), 1),
    ],
)
def test_a_kill_leaves_no_half_pack(store_path, place, place_of_kill, at):
    with open_small(store_path) as store:
        fill(store, 200)
    killed("pack", store_path, place / "p.tar", place_of_kill, at)
    assert os.listdir(place) == ["p.tar.incomplete"]
    with pytest.raises(TargetError, match="interrupted pack"):
        pack(store_path, place / "p.tar")
    if place_of_kill[0] == "file":
        with pytest.raises(PackError):
            unpack(place / "p.tar.incomplete", place / "one")
    (place / "p.tar.incomplete").unlink()
    pack(store_path, place / "p.tar")


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("place_of_kill", "at"),
    [
        (("files", "create_sized"), 2),
        (("files", "create_sized"), 4),
        (("file_ranges", "write_open"), 1),
        (("file_ranges", "write_open"), 9),
        (("files", "remove"), 1),
        (("files", "move"), 1),
        (("files", "remove_tree"), 1),
    ],
)
def test_a_kill_leaves_nothing_that_passes_for_a_store(packed, store_path, place, command, place_of_kill, at):
    killed("unpack", packed, place / "one", place_of_kill, at)
    draft, before = place / "one.incomplete", content(store_path)
    assert (place / "one").exists() == (place_of_kill[1] == "remove_tree")
    left = sorted(draft.rglob("*"))
    for more in ({}, {"read_only": True}):
        with pytest.raises(StoreFormatError):
            cystore.open(draft, **more)
    assert command.run("info", draft).returncode == 2
    assert command.run("put", draft, "T", stdin=b"x\n").returncode == 2
    assert sorted(draft.rglob("*")) == left != []
    if not (place / "one").exists():
        with pytest.raises(TargetError, match="interrupted copy"):
            unpack(packed, place / "one")
        shutil.rmtree(draft)
        unpack(packed, place / "one")
    assert content(place / "one") == before


def test_a_kill_before_the_mark_leaves_an_empty_folder(packed, place, command):
    """A folder is there before a file can be in it. Nothing of the store is in it, so it is none."""
    killed("unpack", packed, place / "one", ("files", "create_sized"), 1)
    draft = place / "one.incomplete"
    assert os.listdir(draft) == [] and not (place / "one").exists()
    assert command.run("info", draft).returncode == 2
    with pytest.raises(StoreFormatError):
        cystore.open(draft, read_only=True)
    with pytest.raises(TargetError, match="interrupted copy"):
        unpack(packed, place / "one")
    assert os.listdir(draft) == []


@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError(5, "failed")])
def test_an_error_leaves_nothing(store_path, packed, place, error):
    def report(what, done, total):
        if what in ("copying the log", "unpacking the log"):
            raise error

    for call in (
        lambda: pack(store_path, place / "q.tar.zst", report), lambda: unpack(packed, place / "one", report),
    ):  # fmt: skip
        with pytest.raises((type(error) if isinstance(error, Exception) else error, StoreError)):
            call()
        assert os.listdir(place) == ["p.tar"]


FULL = """
import os, shutil, sys
from pathlib import Path
from cystore.config import StoreConfig
from cystore.errors import StoreError
from cystore.operate import backup, facts
disk, path, what = Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3]
source, target = (path, disk / "p.tar") if what == "pack" else (path, disk / "one")
ballast, ALL = disk / "ballast", 8 * 1024 * 1024
def go(free):
    ballast.write_bytes(bytes(ALL - free))
    try:
        getattr(backup, what)(source, target, StoreConfig())
    except StoreError as error:
        return f"{type(error).__name__} {sorted(p.name for p in disk.iterdir() if p != ballast)}"
    finally:
        ballast.unlink()
    told = sorted(p.name for p in disk.iterdir())
    if what == "pack":
        backup.unpack(target, path.with_name("unpacked"), StoreConfig())
        shutil.rmtree(path.with_name("unpacked"))
        target.unlink()
    else:
        assert facts.state(target).name == "closed"
        shutil.rmtree(target)
    return f"made {told}"
enough = next(free for free in range(0, ALL, 128 * 1024) if go(free).startswith("made"))
found = {go(free) for free in range(max(enough - 160 * 1024, 0), enough + 8192, 16384)}
print(*sorted(found), sep="\\n")
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize("what", ["pack", "unpack"])
def test_a_disk_that_fills(store_path, packed, tmp_path, what):
    """Each amount of space beside the least that is enough: all of it, or an error and nothing."""
    disk = tmp_path / "disk"
    disk.mkdir()
    source = store_path if what == "pack" else packed
    told = on_small_disk("8m", disk, FULL, str(source), what).splitlines()
    made = "made ['p.tar']" if what == "pack" else "made ['one']"
    assert made in told and "StoreFullError []" in told
    assert {line for line in told if not line.endswith("Error []")} == {made}
