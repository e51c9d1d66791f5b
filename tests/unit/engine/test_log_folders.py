"""Goal: a log with several folders is one log: files go where RocketMQ would put them, are found wherever they are, and
nobody takes a wrong folder for one of the log's. Method: stores of small files with two folders beside their own."""

from __future__ import annotations

import gc
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
from tests.support.disks.small_disk import NOT_ASKED, on_small_disk
from tests.support.process import Process
from tests.support.processes.writers import acknowledged, start
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

HOUR_MS = 3_600_000


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


@pytest.fixture
def others(in_memory):
    """Two folders on what would be other disks."""
    found = [in_memory / "disks" / name for name in ("one", "two")]
    for folder in found:
        folder.mkdir(parents=True)
    return found


def several(others: list[Path], own: bool = True) -> dict[str, str]:
    """The setting that names them."""
    return {"store_path_commit_log": ",".join([*(["commitlog"] if own else []), *map(str, others)])}


def segments_in(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())


def where(path: Path, others: list[Path]) -> dict[int, Path]:
    return {base: folder for folder in (path / "commitlog", *others) for base in segments_in(folder)}


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


def gone(folder: Path, mark: Path) -> None:
    folder.rename(folder.with_name("away"))


def unmounted(folder: Path, mark: Path) -> None:
    """What is left when a disk is not mounted: empty folders."""
    shutil.rmtree(folder)
    folder.mkdir()
    shutil.rmtree(mark.parent)
    mark.parent.mkdir()


def a_file(folder: Path, mark: Path) -> None:
    shutil.rmtree(folder)
    folder.write_bytes(b"")


def a_link(folder: Path, mark: Path) -> None:
    folder.rename(folder.with_name("away"))
    folder.symlink_to(folder.with_name("away"))


def damaged_mark(folder: Path, mark: Path) -> None:
    mark.write_bytes(mark.read_bytes().replace(b'"id"', b'"ie"'))


def twice(folder: Path, mark: Path) -> None:
    name = file_name(segments_in(folder)[0])
    shutil.copy(folder / name, folder.parent / "two" / name)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("read_only", [False, True])
@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (gone, "missing or is not a directory"),
        (unmounted, "has no mark"),
        (a_file, "not a directory"),
        (a_link, "link"),
        (damaged_mark, "mark of a folder of the log cannot be read"),
        (twice, "has a file of this name too"),
    ],
)
def test_a_wrong_folder_is_named(path, others, harm, said, read_only, tmp_path):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    kept = shutil.copytree(path.parent, tmp_path / "kept")
    harm(others[0], Path(f"{others[0]}.cystore/mark.json"))
    with pytest.raises(cystore.StoreError, match=said) as refused:
        open_small(path, read_only=read_only)
    assert "disks/one" in str(refused.value)
    shutil.rmtree(path.parent)
    shutil.copytree(kept, path.parent)
    with open_small(path) as store:  # nothing was changed
        check_cleaned(store, put)


def test_a_folder_of_another_store_is_refused(path, others, tmp_path):
    with open_small(path, **several(others)) as store:
        fill(store)
    for more in (several(others), {"store_path_commit_log": str(others[1])}):
        with pytest.raises(cystore.StoreError, match=f"belongs to the store {path}"):
            open_small(tmp_path / "second", **more)
    (tmp_path / "old").mkdir()
    shutil.copy(next(others[0].glob("0*")), tmp_path / "old")
    with open_small(tmp_path / "third") as store:
        store.configure(store_path_commit_log=f"commitlog,{tmp_path / 'old'}")
    with pytest.raises(cystore.StoreConfigError, match="must be empty"):
        open_small(tmp_path / "third")


def test_a_folder_in_another_store_is_refused(path, others, tmp_path):
    """A new store adopts the files in its folders: those of RocketMQ, and not those of a store that is open."""
    with open_small(path) as store:
        put = filled(store, 50)
        (path / "below").mkdir()
        for name in ("commitlog", "below"):
            with pytest.raises(cystore.StoreConfigError, match=f"must not lie in another store, {path}"):
                open_small(tmp_path / name, store_path_commit_log=str(path / name))
        put += fill(store, 50, len(put))
        store.dispatch()
        check_cleaned(store, put)


def test_files_that_another_store_wrote_are_not_adopted(path, others, tmp_path):
    """The mark is missing at another mount point of the same folder."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
        shutil.copytree(others[0], tmp_path / "mounted")
        with pytest.raises(cystore.StoreConfigError, match="must be empty"):
            open_small(tmp_path / "second", store_path_commit_log=str(tmp_path / "mounted"))
        check_cleaned(store, put)


def test_the_directory_that_has_another_stores_folder_is_not_a_store(path, tmp_path):
    (tmp_path / "commitlog").mkdir()
    with open_small(path, **several([tmp_path / "commitlog"])) as store:
        fill(store)
        with pytest.raises(cystore.StoreFormatError, match="not a store"):
            open_small(tmp_path)
        assert main(["verify", str(tmp_path)]) == 2


@pytest.mark.parametrize("read_only", [True, False], ids=["read-only", "not named"])
def test_a_retired_folder_without_its_disk_is_refused(path, others, read_only):
    with open_small(path, **several(others)) as store:
        put = filled(store)
        retired = {"read_only_commit_log_store_paths": str(others[0])} if read_only else {}
        store.configure(**several(others[1:]), **retired)
    away = path.with_name("away")
    for _ in range(2):  # before the store knows that the folder is retired, and after
        away.mkdir()
        for folder in (others[0], Path(f"{others[0]}.cystore")):
            shutil.move(folder, away / folder.name)
        others[0].mkdir()  # the mount point
        with pytest.raises(cystore.StoreFormatError, match="is its disk mounted"):
            open_small(path)
        others[0].rmdir()
        for folder in away.iterdir():
            shutil.move(folder, others[0].parent / folder.name)
        away.rmdir()
        with open_small(path) as store:
            check_cleaned(store, put)


@pytest.mark.parametrize("read_only", [True, False])
def test_a_closed_store_holds_no_folder(path, others, read_only):
    """Also before Python's collector runs."""
    with open_small(path, **several(others)) as store:
        fill(store)
        store.configure(**several(others[1:]))
    open_small(path, read_only=read_only).close()
    gc.collect()
    gc.disable()
    try:
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            open_small(path, read_only=read_only).close()
            assert len(os.listdir("/proc/self/fd")) == before
    finally:
        gc.enable()


def test_a_copied_store_does_not_take_the_originals_folders_and_a_moved_one_does(path, others, tmp_path):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    shutil.copytree(path, tmp_path / "copy")
    for read_only in (False, True):
        with pytest.raises(cystore.StoreFormatError, match=f"is a copy of {path}"):
            open_small(tmp_path / "copy", read_only=read_only)
    shutil.rmtree(path)
    for _ in range(2):
        with open_small(tmp_path / "copy") as store:
            check_cleaned(store, put)


@pytest.mark.parametrize("place", ["{store}/inside", "{store}", "{above}", "{other}/below"])
def test_folders_in_each_other_are_refused(path, others, place):
    named = place.format(store=path, above=path.parent, other=others[0])
    open_small(path).close()
    Path(named).mkdir(exist_ok=True)
    with open_small(path) as store:
        store.configure(store_path_commit_log=f"commitlog,{others[0]},{named}")
    with pytest.raises(cystore.StoreConfigError, match=r"must not contain each other|is the same directory"):
        open_small(path)
    shutil.rmtree(others[0] / "below", ignore_errors=True)
    assert main(["config", str(path), "--set", f"store_path_commit_log=commitlog,{others[0]}"]) == 0
    open_small(path).close()


def test_a_folder_that_is_replaced_under_a_process_is_noticed(path, others):
    with open_small(path, **several(others)) as store:
        put = filled(store)
        others[0].rename(others[0].with_name("away"))
        others[0].mkdir()
        check_cleaned(store, put)  # the open folder still has the files
        with pytest.raises(cystore.StoreMovedError, match="disks/one"):
            fill(store, 400)
        others[0].rmdir()
        others[0].with_name("away").rename(others[0])


@pytest.mark.parametrize("lost", ["the list", "the manifest", "both"])
def test_a_lost_list_is_made_again_from_the_marks(path, others, lost):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    if lost != "the manifest":
        for name in ("log_folders.json", "log_folders.json.bak"):
            (path / "config" / name).unlink(missing_ok=True)
    if lost != "the list":
        (path / "manifest").unlink()
    with open_small(path, **(several(others) if lost == "both" else {})) as store:
        check_cleaned(store, put)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("lost", ["gone", "empty"])
def test_a_lost_list_with_a_copy_is_refused(path, others, lost, read_only):
    """Nothing else names a retired folder."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
        store.configure(**several(others[1:]))
    open_small(path).close()
    listed = path / "config" / "log_folders.json"
    listed.unlink() if lost == "gone" else listed.write_bytes(b"")
    with pytest.raises(cystore.StoreFormatError, match=r"list of the log's folders is lost"):
        open_small(path, read_only=read_only)
    shutil.copy(f"{listed}.bak", listed)
    with open_small(path) as store:
        check_cleaned(store, put)


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
