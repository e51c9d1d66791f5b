"""Goal: a log with several folders is one log: files go where RocketMQ would put them, are found wherever they are, and
nobody takes a wrong folder for one of the log's. Method: stores of small files with two folders beside their own."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

import cystore
from cystore.cli.program import main
from cystore.config import StoreConfig
from cystore.config_sources import resolve
from cystore.derived.reading.snapshot import runs_of
from cystore.engine.files import log_folders
from cystore.engine.files.log_folders import LogFolders, Space
from cystore.engine.files.segments import file_name
from cystore.engine.log import disk_space
from cystore.ha.epochs.truncation import order_truncation
from tests.support.checks import check, everything
from tests.support.cleaning import check_cleaned, fill, filled
from tests.support.clock import turn
from tests.support.disks.log_folders import segments_in, several, where
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import Process
from tests.support.processes.writers import acknowledged, start
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

pytestmark = pytest.mark.unsanitized  # about folders: its kernels are those of every log

HOUR_MS = 3_600_000


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


@pytest.mark.parametrize("own", [True, False], ids=["with its own folder", "without it"])
def test_files_take_turns_in_the_folders(path, others, own):
    """By MultiPathMappedFileQueue's rule: the number of the file, modulo the folders in order."""
    with open_small(path, **several(others, own)) as store:
        put = filled(store)
        check_cleaned(store, put)
    names = sorted(map(str, [*([path / "commitlog"] if own else []), *others]))
    found = where(path, others)
    assert len(found) > 4
    for base, folder in found.items():
        assert str(folder) == names[base // LOG_BYTES % len(names)], base
    for more in ({"read_only": True}, {}):
        with open_small(path, **more) as store:
            check_cleaned(store, put)
    assert main(["verify", str(path)]) == 0


def test_a_log_with_one_folder_is_as_ever(path, tmp_path):
    with open_small(path, store_path_commit_log="commitlog") as store:
        fill(store)
        assert "store_path_commit_log" not in store._attached().manifest.snapshot().settings
    assert not (path / "config" / "log_folders.json").exists()
    with open_small(tmp_path / "plain") as store:
        fill(store)
        assert not {"store_path_commit_log", "read_only_commit_log_store_paths"} & set(
            store._attached().manifest.snapshot().settings
        )
    assert not (tmp_path / "plain" / "config" / "log_folders.json").exists()


def test_all_processes_have_the_same_folders(path, others):
    with open_small(path, **several(others)) as store, open_small(path) as beside:
        fill(store, 60)
        put = beside.put("T", b"x")
        assert beside._attached().config.store_path_commit_log == several(others)["store_path_commit_log"]
        assert bytes(store.read(put.physical_offset).body) == b"x"
        with pytest.raises(
            cystore.StoreConfigError, match=rf"store_path_commit_log.*{others[1]}.*'/elsewhere'"
        ):
            open_small(path, store_path_commit_log="/elsewhere")
    open_small(path, store_path_commit_log=f"{others[1]}/,{others[0]}, commitlog").close()  # in another order
    with pytest.raises(cystore.StoreConfigError, match="cystore config PATH --set store_path_commit_log"):
        open_small(path, store_path_commit_log="")
    with (
        open_small(path.with_name("other")),
        pytest.raises(cystore.StoreConfigError, match="store_path_commit_log"),
    ):
        open_small(path.with_name("other"), **several(others))


@pytest.mark.parametrize(
    ("settings", "wrong"),
    [
        ({"store_path_commit_log": "here,/there"}, "'here' must be an absolute path"),
        ({"store_path_commit_log": "/a/../b"}, "must be an absolute path"),
        ({"store_path_commit_log": "/a,,/b"}, "must be an absolute path"),
        ({"store_path_commit_log": "/"}, "/ cannot be a folder"),
        ({"store_path_commit_log": "/a", "read_only_commit_log_store_paths": "/a"}, "none is left"),
        ({"read_only_commit_log_store_paths": "commitlog"}, "none is left"),
    ],
)
def test_settings_that_name_no_folders(settings, wrong):
    with pytest.raises(cystore.StoreConfigError, match=wrong):
        StoreConfig(**settings)


def test_a_program_may_list_the_folders(path, others):
    with open_small(path, store_path_commit_log=[str(others[0]), str(others[1])]) as store:
        assert store.settings.log_folders() == dict.fromkeys(map(str, others), True)


def test_a_file_and_the_environment_may_name_the_folders(tmp_path, monkeypatch):
    (tmp_path / "settings.toml").write_text('store_path_commit_log = ["commitlog", "/disk"]\n')
    monkeypatch.setenv("CYSTORE_READ_ONLY_COMMIT_LOG_STORE_PATHS", "/old,/older/")
    config = resolve({}, file=tmp_path / "settings.toml")
    assert config.log_folders() == {"/disk": True, "commitlog": True, "/old": False, "/older": False}


def test_a_folder_that_is_read_only_gets_no_new_file_and_goes_when_it_is_empty(path, others, monkeypatch):
    """How an operator retires a disk."""
    with open_small(path, **several(others), file_reserved_time_h=72) as store:
        put = filled(store)
        store.configure(read_only_commit_log_store_paths=str(others[0]))
        put += fill(store, 100, len(put))  # from the next open on
        before = segments_in(others[0])
    with open_small(path) as store:
        put += fill(store, 200, len(put))
        store.dispatch()
        store.flush()
        assert segments_in(others[0]) == before
        check_cleaned(store, put)
        store.configure(store_path_commit_log=f"commitlog,{others[1]}", read_only_commit_log_store_paths=None)
    with open_small(path) as store:  # it is named no more, and still has files
        check_cleaned(store, put)
        turn(monkeypatch, 100 * HOUR_MS)
        assert store.clean().segments > 0
        assert not [base for base in segments_in(others[0]) if base < store.stats()["min_physical_offset"]]
        check_cleaned(store, put)
    for base in segments_in(others[0]):  # kept ready, or too young: what an operator would wait for
        shutil.move(others[0] / file_name(base), others[1] / file_name(base))
    with open_small(path) as store:
        check_cleaned(store, put)
        assert [folder.name for folder in LogFolders.of(store._attached().root).folders] == [
            "commitlog", str(others[1]),
        ]  # fmt: skip
    assert not Path(f"{others[0]}.cystore").exists()
    shutil.rmtree(others[0])
    open_small(path).close()


def test_a_folder_may_be_added(path, others):
    with open_small(path) as store:
        put = filled(store, 100)
        store.configure(**several(others))
        with open_small(path) as beside:  # not before all have closed
            put += fill(beside, 50, len(put))
    assert os.listdir(others[0]) == []
    with open_small(path) as store:
        put += fill(store, 200, len(put))
        store.dispatch()
        check_cleaned(store, put)
    assert segments_in(others[0]) and segments_in(others[1])


def test_a_folder_whose_disk_is_full_is_avoided(path, others, monkeypatch):
    spaces: dict[str, Space] = {}
    monkeypatch.setattr(log_folders, "space_of", lambda folder: spaces.get(str(folder), Space(10.0, 1 << 40)))
    with open_small(path, **several(others)) as store:
        put = fill(store)
        spaces[str(others[0])] = Space(86.0, 1 << 40)  # disk_space_clean_forcibly_ratio is 85
        spaces[str(others[1])] = Space(50.0, LOG_BYTES - 1)  # has no room for a whole file
        before = [segments_in(folder) for folder in others]
        put += fill(store, 400, len(put))
        assert [segments_in(folder) for folder in others] == before
        spaces[str(path / "commitlog")] = Space(99.0, 0)  # of the rest, one has room
        before = [segments_in(folder) for folder in (path / "commitlog", others[1])]
        put += fill(store, 400, len(put))
        assert [segments_in(folder) for folder in (path / "commitlog", others[1])] == before
        spaces[str(others[0])] = Space(
            99.0, 0
        )  # all are full: RocketMQ's rule, and the disk has the last word
        put += fill(store, 400, len(put))
        assert [segments_in(folder) for folder in (path / "commitlog", others[1])] != before
        store.dispatch()
        check_cleaned(store, put)


@pytest.mark.parametrize("full", ["one folder", "all folders", "the store's disk"])
def test_a_disk_is_full_when_every_folder_or_the_stores_own_disk_is(path, others, monkeypatch, full):
    """As RocketMQ: the emptiest disk of the log counts, and that of the queues."""
    with open_small(path, **several(others, own=False)) as store:
        fill(store, 40)
        ones = {"one folder": others[:1], "all folders": others, "the store's disk": [path]}[full]
        taken = {str(folder): Space(95.0, 1 << 30) for folder in ones}
        for module in (log_folders, disk_space):
            monkeypatch.setattr(module, "space_of", lambda at: taken.get(str(at), Space(30.0, 1 << 30)))
        store._attached().cleaner.watch_space()
        assert store.used_disk_percent() == (30.0 if full == "one folder" else 95.0)
        if full == "one folder":
            store.put("T", b"goes on")
        else:
            with pytest.raises(cystore.StoreFullError, match=r"95\.0 % of the disk"):
                store.put("T", b"")


SMALL = """
import os, sys
import cystore
from tests.support.cleaning import fill
from tests.support.small_stores import open_small
root, path = sys.argv[1:3]
folder = os.path.join(root, "log")
os.mkdir(folder)
with open_small(path, store_path_commit_log=f"commitlog,{folder}", mapped_file_size_commit_log_bytes=1 << 18) as store:
    fill(store, 10_000)
    store.dispatch()
    assert len(list(store.scan())) == 10_000
    used = os.statvfs(root)
    assert used.f_bavail * used.f_frsize < 1 << 18
with open_small(path, mapped_file_size_commit_log_bytes=1 << 18) as store:
    assert len(list(store.scan())) == 10_000
print(len(os.listdir(folder)) - 1, len(os.listdir(os.path.join(path, "commitlog"))) - 1)
"""


@pytest.mark.may_skip(NOT_ASKED)
def test_on_a_real_disk_that_is_full_the_log_goes_on_in_the_other_folder(path, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    here, own = map(int, on_small_disk("1m", disk, SMALL, str(path)).split())
    assert 0 < here < 4 < own


# ------------------------------------------------------------------------------------------ folders that are not theirs


def test_two_processes_that_make_one_file_make_it_once(path, others):
    """They may find different disks full."""
    open_small(path, **several(others)).close()
    limits = StoreConfig(**SETTINGS)
    first, second = (LogFolders.of(path) for _ in range(2))
    base = 90 * LOG_BYTES
    assert first.for_new_file(base, LOG_BYTES, limits) != first.for_new_file(
        base + LOG_BYTES, LOG_BYTES, limits
    )
    made = first.make(base, LOG_BYTES, 0, limits)
    second.for_new_file = lambda *_: pytest.fail("the file is there")
    assert second.make(base, LOG_BYTES, 0, limits) == made
    assert sum((folder / file_name(base)).exists() for folder in (path / "commitlog", *others)) == 1


def test_the_segments_of_a_lost_disk_are_holes(path, others):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    left = {base for base, folder in where(path, others).items() if folder != others[0]}
    shutil.rmtree(others[0])
    shutil.rmtree(f"{others[0]}.cystore")
    others[0].mkdir()
    with pytest.raises(cystore.StoreFormatError, match="has no mark"):
        open_small(path)
    shutil.copytree(f"{others[1]}.cystore", f"{others[0]}.cystore")
    with open_small(path) as store:
        found = {m.physical_offset for m in store.scan()}
        kept = {one.physical_offset for one in put if one.physical_offset // LOG_BYTES * LOG_BYTES in left}
        assert found == kept
        assert fill(store, 50)


# ---------------------------------------------------------------------------------------------- recovery and the rest


def in_folder(path: Path, others: list[Path], which: Callable[[int], bool]) -> Path:
    """A file of the log in one of the other folders."""
    return next(
        folder / file_name(base)
        for base, folder in sorted(where(path, others).items())
        if folder in others and which(base)
    )


def test_damage_in_another_folder_is_kept_aside(path, others):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    file = in_folder(path, others, lambda base: base > 0)
    data = bytearray(file.read_bytes())
    data[3000:3100] = bytes(100)
    file.write_bytes(data)
    (path / "abort").touch()
    (path / "checkpoint").write_bytes(bytes(4096))
    with open_small(path) as store:
        assert store.recovery.new_holes
        left = list(store.scan())
        assert 0 < len(put) - len(left) < 8
        assert {m.physical_offset for m in left} < {one.physical_offset for one in put}
    assert os.listdir(path / "quarantine")


def test_a_file_behind_the_logs_end_goes_to_quarantine(path, others, tmp_path):
    """A rename cannot go from one disk to another: the file is copied."""
    others[0] = tmp_path / "another disk"
    others[0].mkdir()
    with open_small(path, **several(others)) as store:
        put = filled(store)
    last = max(where(path, others))
    far = last + 30 * LOG_BYTES
    stray = others[0] / file_name(far)
    stray.write_bytes(b"\1" * LOG_BYTES)
    (path / "abort").touch()
    with open_small(path) as store:
        check_cleaned(store, put)
    assert not stray.exists()
    assert [p.read_bytes() for p in (path / "quarantine").glob(f"commitlog-{file_name(far)}-*")] == [
        b"\1" * LOG_BYTES
    ]


def test_a_snapshot_has_one_folder(path, others, tmp_path, capsys):
    with open_small(path, **several(others)) as store:
        put = filled(store)
        assert main(["snapshot", str(path), str(tmp_path / "copy")]) == 0
    with open_small(tmp_path / "copy") as copy:
        check_cleaned(copy, put)
        assert LogFolders.of(copy._attached().root) is None
        assert copy.settings.store_path_commit_log == ""


def test_a_snapshot_opens_each_folder_once(path, others, tmp_path, monkeypatch):
    opened = []
    real = log_folders._opened
    with open_small(path, **several(others)) as store:
        filled(store)
        monkeypatch.setattr(log_folders, "_opened", lambda *given: opened.append(given) or real(*given))
        assert main(["snapshot", str(path), str(tmp_path / "copy")]) == 0
    assert len(where(path, others)) > 4
    assert len(opened) <= 2 * 3  # as a second process, and to read the files


def test_info_lists_the_folders(path, others, capsys):
    with open_small(path, **several(others)) as store:
        filled(store)
    assert main(["info", str(path)]) == 0
    shown = capsys.readouterr().out
    assert all(str(folder) in shown for folder in (path / "commitlog", *others))
    assert f"segments: {len(where(path, others))}" in shown


def test_a_reader_by_url_refuses(path, others):
    sealed = pytest.importorskip("cystore.columns.sealed")
    objects = pytest.importorskip("cystore.columns.object_store")
    with open_small(path, **several(others)) as store:
        filled(store)
    where, url = objects.ObjectStore.of(f"file://{path}", {})
    with pytest.raises(cystore.StoreFormatError, match="several folders"):
        sealed.SealedLog(where, url)


POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}


def test_ranges_of_a_snapshot_name_each_segment(path, others):
    """Arrow and Spark read them in other processes."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
        snapshot = store.snapshot()
        ranges = list(snapshot.segments(snapshot.minimum, snapshot.end))
    assert [part for run in runs_of(ranges) for part in run.ranges()] == ranges
    found = where(path, others)
    assert {part.path: part.base for part in ranges} == {
        str(found[part.base] / file_name(part.base)): part.base for part in ranges
    }
    arrow = pytest.importorskip("cystore.columns.arrow")
    batches = arrow.read_ranges(ranges, arrow.ReadSettings())
    assert sum(batch.num_rows for batch in batches) == len(put)


def test_a_log_is_truncated_in_all_folders(path, others):
    """As a replaced master's is (docs/replication.md)."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
        cut = put[50]
        end = store.stats()["wrote"]
        order_truncation(store._attached().manifest, cut.physical_offset, end)
    with open_small(path) as store:
        assert store.stats()["wrote"] == cut.physical_offset
        assert [m.physical_offset for m in store.scan()] == [one.physical_offset for one in put[:50]]
        store.put("T", b"goes on")
    kept = next((path / "quarantine").glob("commitlog-*"))
    assert kept.stat().st_size == end - cut.physical_offset > 3 * LOG_BYTES


def test_a_pool_commits_into_all_folders(path, others, tmp_path):
    """And what a crash left in its buffers goes where the rule says."""
    with Process() as victim:
        start(victim, path, tmp_path / "log", 1, {**SETTINGS, **several(others), **POOL})
        victim.do("work(400)")
        victim.do("store.put('last', b'only in a buffer').physical_offset")
        victim.kill()
    with open_small(path) as store:
        assert len(everything(store)["last", 0]) == 1
        check(store, acknowledged(tmp_path / "log"))
    found = where(path, others)
    names = sorted(map(str, [path / "commitlog", *others]))
    assert set(found.values()) == {path / "commitlog", *others}
    assert all(str(folder) == names[base // LOG_BYTES % 3] for base, folder in found.items())
