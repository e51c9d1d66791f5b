"""Goal: `cystore doctor` finds what a host or a store lacks, in every state, says what to do, and changes nothing.
Method: the command beside real conditions: small limits, a disk in memory, other users and namespaces, stopped
processes, a Redis that is away."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from itertools import chain
from pathlib import Path

import pytest

import cystore
from cystore import clock
from cystore.cli.host import store_checks
from cystore.cli.host.doctor import CHECKS, findings
from cystore.cli.host.site import Site
from cystore.services.duty_table import DutyRun, Outcome
from cystore.system import platform
from tests.crash.faults.containers import UNSHARE, obstacle
from tests.support.cli import stores
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.golden.stores import REPOSITORY
from tests.support.process import Process
from tests.support.processes.shifted import ShiftedClock
from tests.support.users import ALICE, BOB, NEEDS_ROOT, User, common_place, needs_root
from tools.redis_server import redis_server

IN_MEMORY = Path("/dev/shm")
HOUR_MS = 3_600_000


def report(text):
    """Findings by check, of --json."""
    told = json.loads(text)
    found = {}
    for row in told["checks"]:
        assert row["level"] in ("ok", "warn", "bad") and row["found"]
        assert bool(row["advice"]) == (row["level"] != "ok"), row
        found.setdefault(row["check"], []).append((row["level"], row["found"]))
    worst = {level for level, _ in chain(*found.values())}
    assert told["status"] == ("bad" if "bad" in worst else "warn" if "warn" in worst else "ok")
    return found


def doctor(command, path, *arguments, status=None):
    done = command.run("doctor", path, *arguments, "--json")
    assert done.returncode in (0, 1), done.stderr
    found = report(done.stdout)
    assert done.returncode == any(level == "bad" for level, _ in chain(*found.values()))
    assert status in (None, done.returncode), found
    return found


def under(command, limits, path, *arguments):
    """The same behind `ulimit`."""
    words = [*command.words, "doctor", str(path), *arguments, "--json"]
    shell = ["sh", "-c", f'ulimit {limits} && exec "$@"', "sh", *words]
    done = subprocess.run(
        shell, env=command.environment, cwd=command.folder, text=True, capture_output=True, check=False
    )
    assert done.returncode in (0, 1), done.stderr
    return report(done.stdout)


def levels(found, check):
    return [level for level, _ in found[check]]


def test_a_closed_store(command, store_path):
    stores.write(store_path, 50)
    before = stores.snapshot(store_path)
    found = doctor(command, store_path, status=0)
    assert stores.snapshot(store_path) == before
    assert {check.name for check in CHECKS if check.needs != "redis"} == set(found)
    assert found["records"][0][1].startswith("every record is intact")
    text = command.ok("doctor", store_path)
    assert text.startswith("ok    directory") and "not in use; closed cleanly" in text
    assert text.splitlines()[-1].startswith("0 bad, ")


def test_no_store_is_there(command, store_path):
    """Seen in production: a disk that was not mounted."""
    found = doctor(command, store_path, status=0)
    assert levels(found, "directory") == ["warn"]
    assert "open files" in found and "content" not in found
    assert levels(doctor(command, store_path, "--set", "create=false", status=1), "directory") == ["bad"]
    assert not store_path.exists()
    store_path.mkdir()
    assert levels(doctor(command, store_path, status=0), "directory") == ["warn"]


@pytest.mark.parametrize("what", ["file", "folder", "ledger"])
def test_something_else_is_there(command, tmp_path, what):
    path = tmp_path / "place"
    if what == "file":
        path.write_text("x")
    elif what == "folder":
        path.mkdir()
        (path / "letters.txt").write_text("x")
    else:
        (path / "dledger-n0" / "data").mkdir(parents=True)
    found = doctor(command, path, status=1)
    assert levels(found, "directory") == ["bad"]
    assert "versions" in found and "content" not in found


def test_a_store_in_use(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        store.put_many(stores.messages(20))
        found = doctor(command, store_path, status=0)
        assert str(os.getpid()) in found["attached"][0][1]
        assert cystore.__version__ in found["layout"][0][1]
        assert levels(found, "records") == ["ok"]
        assert "dispatch is" in found["backlog"][0][1] and " 0 B" not in found["backlog"][0][1]
        store.set_writable(False)
        assert levels(doctor(command, store_path, status=1), "content") == ["bad", "ok"]
        store.set_writable(True)


def test_a_crashed_store(command, store_path):
    stores.write_and_crash(store_path, 30)
    before = stores.snapshot(store_path)
    found = doctor(command, store_path, status=0)
    assert stores.snapshot(store_path) == before
    assert levels(found, "directory") == ["warn"]
    assert any("the next open will find" in text for _, text in found["content"])


def test_a_store_that_one_process_has_for_itself(command, store_path):
    with cystore.open(store_path, exclusive=True, **stores.SMALL) as store:
        store.put("t", b"")
        found = doctor(command, store_path, status=0)
    assert found["attached"] == [("ok", f"process {os.getpid()}")]
    assert levels(found, "directory") == ["warn"] == levels(found, "content")
    assert "clock" not in found and "records" not in found


def test_a_control_block_that_somebody_removed(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        store.put("t", b"")
        aside = store_path.with_name("control")
        (store_path / "control").rename(aside)
        found = doctor(command, store_path, status=1)
        aside.rename(store_path / "control")
        assert levels(found, "attached") == ["ok", "bad"] and levels(found, "content") == ["bad"]


def test_a_request_to_leave(command, store_path):
    with cystore.open(store_path, **stores.SMALL):
        command.run("handover", store_path, "--wait", "0")
        found = doctor(command, store_path, status=0)
        assert levels(found, "attached") == ["ok", "warn"]


def test_a_log_that_is_long_is_read_when_asked(store_path, monkeypatch):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 40)
    monkeypatch.setattr(store_checks, "READ_ALL_BYTES", 0)
    for reads_all in (False, True):
        site = Site(store_path, cystore.StoreConfig(), reads_all=reads_all)
        told = [finding.level for check, finding in findings(site) if check.name == "records"]
        assert ("bad" in told) == reads_all


def test_a_damaged_record(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 40)
    found = doctor(command, store_path, status=1)
    assert "bad" in levels(found, "records")


def test_damage_that_is_known(command, store_path):
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    (store_path / "abort").touch()
    with cystore.open(store_path):
        pass
    found = doctor(command, store_path, status=1)
    assert levels(found, "damage") == ["bad", "bad"]
    assert str(puts[10].physical_offset) in found["damage"][0][1]


def test_a_manifest_that_was_lost(command, store_path):
    """The holds are unknown then, so cleaning is paused."""
    stores.write(store_path, 5)
    manifest = store_path / "manifest"
    manifest.write_bytes(bytes(manifest.stat().st_size))
    with cystore.open(store_path):
        pass
    assert levels(doctor(command, store_path, status=1), "holds")[0] == "bad"


def test_a_stopped_process(command, store_path):
    with Process() as writer:
        writer.do("import cystore")
        writer.do("store = cystore.open(path, **settings)", path=str(store_path), settings=stores.SMALL)
        assert levels(doctor(command, store_path), "attached") == ["ok"]
        writer.stop()
        found = doctor(command, store_path, status=1)
        writer.go_on()
        assert levels(found, "attached") == ["ok", "bad"]
        assert str(writer.pid) in found["attached"][1][1]


@pytest.mark.parametrize(
    ("limits", "check", "level"),
    [
        ("-n 256", "open files", "warn"),
        ("-n 48", "open files", "bad"),
        ("-v 1900000", "address space", "bad"),
        ("-v 6000000", "address space", "warn"),
        ("-f 100000", "file size", "bad"),
    ],
)
@pytest.mark.unsanitized  # the sanitizer itself maps more than these limits allow
def test_limits(command, store_path, limits, check, level):
    assert levels(under(command, limits, store_path), check)[0] == level


CGROUPS = Path("/sys/fs/cgroup")
NO_CGROUPS = "no control group can be made here"


@contextmanager
def control_group(controller, **files):
    """A control group of this test, of either version, with the files of its limits; the path of its members."""
    root = CGROUPS / controller if (CGROUPS / controller).is_dir() else CGROUPS
    group = root / f"cystore-{os.getpid()}"
    try:
        group.mkdir()
    except OSError:
        pytest.skip(NO_CGROUPS)
    try:
        for name, text in files.items():
            try:
                (group / name.replace("__", ".")).write_text(text)
            except OSError:
                pytest.skip(NO_CGROUPS)
        yield group / "cgroup.procs"
    finally:
        group.rmdir()


@pytest.mark.parametrize(
    ("controller", "files", "check", "level"),
    [
        ("pids", {"pids__max": "100"}, "group processes", "warn"),
        ("pids", {"pids__max": "12"}, "group processes", "bad"),
        ("pids", {"pids__max": "10000"}, "group processes", "ok"),
        ("memory", {"memory__limit_in_bytes": str(200 << 20)}, "group memory", "warn"),
        ("blkio", {}, "group disk", "ok"),
    ],
)
@pytest.mark.may_skip(NO_CGROUPS)
@pytest.mark.unsanitized  # the sanitizer itself needs more memory
def test_the_control_group_of_a_unit_or_a_container(command, store_path, controller, files, check, level):
    with control_group(controller, **files) as members:
        words = [*command.words, "doctor", str(store_path), "--json"]
        shell = ["sh", "-c", f'echo $$ > {members} && exec "$@"', "sh", *words]
        done = subprocess.run(
            shell, env=command.environment, cwd=command.folder, text=True, capture_output=True, check=False
        )
    found = report(done.stdout)
    assert levels(found, check) == [level], found[check]
    assert level == "ok" or members.parent.name in found[check][0][1]


def test_memory_that_is_to_be_locked(command, store_path):
    ask = ("--set", "active_segment_memory=lock")
    assert levels(under(command, "-l 64", store_path), "locked memory") == ["ok"]
    assert levels(under(command, "-l 64", store_path, *ask), "locked memory") == ["warn"]


def test_a_process_of_the_store_that_has_few_descriptors_left(command, store_path):
    with Process() as writer:
        writer.do("import os, resource, cystore")
        writer.do("store = cystore.open(path, **settings)", path=str(store_path), settings=stores.SMALL)
        writer.do(
            "used = len(os.listdir('/proc/self/fd'))\n"
            "resource.setrlimit(resource.RLIMIT_NOFILE, (used, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))"
        )
        found = doctor(command, store_path)
        assert ("warn", str(writer.pid)) in [(level, text.split()[1]) for level, text in found["open files"]]


@pytest.mark.skipif(platform.file_system(IN_MEMORY) != "tmpfs", reason="/dev/shm is not in memory")
@pytest.mark.may_skip("/dev/shm is not in memory")
def test_a_store_in_memory(command):
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        assert levels(doctor(command, Path(folder) / "store", status=0), "file system") == ["warn"]


SMALL_DISK = """
import subprocess, sys
import cystore
path, size = sys.argv[1] + "/s", int(sys.argv[2])
with cystore.open(path, mapped_file_size_commit_log_bytes=1 << 20, mapped_file_size_consume_queue_bytes=20_000,
                  max_hash_slot_num=1000, max_index_num=4000, services="none") as store:
    store.put("T", b"b")
with open(sys.argv[1] + "/filler", "wb") as filler:
    filler.write(bytes(size))
sys.exit(subprocess.run([sys.executable, "-m", "cystore", "doctor", path, "--json"]).returncode not in (0, 1))
"""


@pytest.mark.may_skip(NOT_ASKED)
@pytest.mark.parametrize(
    ("filler_bytes", "level"), [(0, "ok"), (20 << 20, "ok"), (35_000_000, "warn"), (37_700_000, "bad")]
)
def test_a_disk_that_fills(tmp_path, filler_bytes, level):
    found = report(on_small_disk("40m", tmp_path, SMALL_DISK, str(filler_bytes)))
    assert levels(found, "space")[0] == level, found["space"]


@pytest.mark.may_skip(NOT_ASKED)
def test_a_disk_with_few_inodes(tmp_path):
    assert levels(report(on_small_disk("40m,nr_inodes=200", tmp_path, SMALL_DISK, "0")), "space") == [
        "ok",
        "warn",
    ]


OVERLAY = 'mount -t overlay none -o "lowerdir=$0/low,upperdir=$0/up,workdir=$0/work" "$0/all" && exec "$@"'


@pytest.mark.may_skip(NOT_ASKED)
def test_the_file_system_of_a_container(command):
    """Its files vanish with the container, so writers are refused; with the setting they are not."""
    with tempfile.TemporaryDirectory(dir=IN_MEMORY) as folder:
        for name in ("low", "up", "work", "all"):
            (Path(folder) / name).mkdir()
        for more, level in ((), "bad"), (("--set", "allow_any_file_system=true"), "warn"):
            words = [*command.words, "doctor", f"{folder}/all/store", "--json", *more]
            done = subprocess.run(
                ["unshare", "--mount", "--map-root-user", "sh", "-c", OVERLAY, folder, *words],
                env=command.environment, cwd=command.folder, text=True, capture_output=True, check=False,
            )  # fmt: skip
            if "unshare" in done.stderr or "mount:" in done.stderr:
                pytest.skip(NOT_ASKED)
            found = report(done.stdout)
            assert levels(found, "file system") == [level] and "overlay" in found["file system"][0][1]


def test_a_store_that_others_may_write_to(command, store_path):
    stores.write(store_path, 5)
    store_path.chmod(0o777)
    found = doctor(command, store_path, status=1)
    assert levels(found, "owner") == ["bad"] and "every user may write" in found["owner"][0][1]


def test_a_directory_above_that_others_may_write_to(command, tmp_path):
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    assert levels(doctor(command, tmp_path / "open" / "store", status=1), "owner") == ["bad"]


DOCTOR = """
import contextlib, io
written = io.StringIO()
with contextlib.redirect_stdout(written):
    command("doctor", root, "--json")
written.getvalue()
"""


@needs_root
@pytest.mark.may_skip(NEEDS_ROOT)
def test_a_user_without_rights(command):
    """He is told so, and gets every line about the host all the same. Root looks at a store of another user."""
    with common_place() as folder:
        (folder / "alice").mkdir()
        os.chown(folder / "alice", ALICE, ALICE)
        root = folder / "alice" / "store"
        with User(ALICE) as alice, User(BOB) as bob:
            alice.do("put(root)", root=str(root))
            assert levels(report(alice.do(DOCTOR, root=str(root))), "owner") == ["ok"]
            found = report(bob.do(DOCTOR, root=str(root)))
            assert levels(found, "directory") == ["bad"] or levels(found, "content") == ["bad"]
            assert levels(found, "owner") == ["warn"]
            assert "open files" in found and "versions" in found
            found = doctor(command, root)
            assert levels(found, "owner") == ["warn"] or levels(found, "owner") == ["bad"]
            (folder / "alice").chmod(0o700)
            found = report(bob.do(DOCTOR, root=str(root)))
            assert levels(found, "directory") == ["bad"] and "open files" in found


@pytest.mark.unsanitized
@pytest.mark.skipif(bool(obstacle()), reason=obstacle())
@pytest.mark.may_skip("no PID namespace can be made")
@pytest.mark.may_skip("no unshare")
def test_another_pid_namespace(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        store.put("t", b"b")
        for more in ((), ("--set", "read_only=true")):
            words = [sys.executable, "-m", "cystore", "doctor", str(store_path), "--json", *more]
            done = subprocess.run(
                [*UNSHARE, "--mount-proc", *words],
                env=command.environment, cwd=REPOSITORY, text=True, capture_output=True, check=False,
            )  # fmt: skip
            found = report(done.stdout)
            assert levels(found, "namespace") == levels(found, "content") == ["ok"]
            assert f"{os.getpid()} in PID namespace {os.stat('/proc/self/ns/pid').st_ino}" in str(found)


def test_a_clock_that_jumped(command, store_path, tmp_path):
    shifted = ShiftedClock(tmp_path)
    command.environment = shifted.environment(command.environment)
    with cystore.open(store_path, **stores.SMALL) as store:
        store.put("t", b"b")
        assert levels(doctor(command, store_path), "clock") == ["ok"]
        shifted.offset_ms = -HOUR_MS
        assert levels(doctor(command, store_path, status=0), "clock") == ["warn"]
        shifted.offset_ms = HOUR_MS
        found = doctor(command, store_path, status=0)
        assert levels(found, "clock") == ["warn"] and "ahead" in found["clock"][0][1]


def test_duties_and_backlog(command, store_path):
    """A last run that failed is bad, one that is long ago is to look at; so is log that nobody dispatches."""
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        assert levels(doctor(command, store_path), "duties") == ["ok"]
        now_ms = clock.now_ms()
        store.duties.ran("clean_expired", DutyRun(now_ms, 10, 0, Outcome.DONE))
        store.duties.ran("deliver_delayed", DutyRun(now_ms - HOUR_MS, 10, 0, Outcome.DONE))
        found = doctor(command, store_path, status=0)
        assert sorted(levels(found, "duties")) == ["ok", "warn"]
        assert str(os.getpid()) in found["duties"][0][1]
        store.duties.ran("clean_expired", DutyRun(now_ms, 10, 0, Outcome.FAILED))
        assert "bad" in levels(doctor(command, store_path, status=1), "duties")


def test_log_that_nobody_dispatches_or_flushes(command, store_path, tmp_path):
    shifted = ShiftedClock(tmp_path)
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        store.put("t", b"b")
        assert levels(doctor(command, store_path), "backlog") == ["ok", "ok"]
        command.environment = shifted.environment(command.environment)
        shifted.offset_ms = HOUR_MS
        assert levels(doctor(command, store_path), "backlog") == ["warn", "warn"]
        store.dispatch()
        store.flush()
        assert levels(doctor(command, store_path), "backlog") == ["ok", "ok"]


def test_a_hold_that_is_older_than_the_retention(command, store_path, tmp_path):
    puts = stores.write(store_path, 20, file_reserved_time_h=1)
    with cystore.open(store_path, **stores.SMALL) as store:
        store.hold("reader-7", puts[5].physical_offset)
    assert levels(doctor(command, store_path, status=0), "holds") == ["ok"]
    shifted = ShiftedClock(tmp_path)
    command.environment = shifted.environment(command.environment)
    shifted.offset_ms = 2 * HOUR_MS
    found = doctor(command, store_path)
    assert levels(found, "holds") == ["warn"] and "reader-7" in found["holds"][0][1]


def test_redis(command, store_path):
    """A Redis that keeps its data, one that may lose them, one that was stopped, and one that is none."""
    safe = ("--appendonly", "yes", "--maxmemory-policy", "noeviction")
    with redis_server(*safe, own=True) as redis:
        found = doctor(command, store_path, "--redis", redis.url, status=0)
        assert {name: levels(found, name) for name in found if name.startswith("redis")} == {
            "redis-py": ["ok"],
            "redis": ["ok"],
            "redis role": ["ok"],
            "redis persistence": ["ok"],
            "redis eviction": ["ok"],
        }
        os.kill(redis.pid, signal.SIGSTOP)
        try:
            assert levels(doctor(command, store_path, "--redis", redis.url, status=1), "redis") == ["bad"]
        finally:
            os.kill(redis.pid, signal.SIGCONT)
    url = redis.url.replace("unix://", "unix://user:secret@")
    found = doctor(command, store_path, "--redis", url, status=1)
    assert levels(found, "redis") == ["bad"] and "redis eviction" not in found
    assert "secret" not in found["redis"][0][1]
    risky = ("--appendonly", "no", "--maxmemory-policy", "allkeys-lru", "--maxmemory", "100mb")
    with redis_server(*risky, own=True) as redis:
        found = doctor(command, store_path, "--redis", redis.url, status=1)
        assert (levels(found, "redis persistence"), levels(found, "redis eviction")) == (["warn"], ["bad"])
    assert levels(doctor(command, store_path, "--redis", "http://x", status=1), "redis") == ["bad"]


def test_the_page_lists_every_check():
    page = (
        (REPOSITORY / "docs" / "commands.md").read_text().partition("\n## doctor\n")[2].partition("\n## ")[0]
    )
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    assert [(name, about) for name, about, *_ in rows[1:]] == [(check.name, check.about) for check in CHECKS]
