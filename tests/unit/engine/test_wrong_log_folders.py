"""Goal: a store with several folders of its log never takes a wrong folder for one of them, and names a wrong one.
Method: folders that are missing, foreign, copied, moved, listed twice or not listed."""

from __future__ import annotations

import gc
import os
import shutil
from pathlib import Path

import pytest

import cystore
from cystore.cli.program import main
from cystore.engine.files.segments import file_name
from tests.support.cleaning import check_cleaned, fill, filled
from tests.support.disks.log_folders import segments_in, several
from tests.support.processes.forks import Nursery
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about folders: its kernels are those of every log


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


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
    with (
        open_small(tmp_path / "third") as store,
        pytest.raises(cystore.StoreConfigError, match="must be empty"),
    ):
        store.configure(store_path_commit_log=f"commitlog,{tmp_path / 'old'}")


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
    wrong = r"must not contain each other|is the same directory"
    with open_small(path) as store, pytest.raises(cystore.StoreConfigError, match=wrong):
        store.configure(store_path_commit_log=f"commitlog,{others[0]},{named}")
    with pytest.raises(
        cystore.StoreError, match=wrong if "{store}" not in place else "in another|not a valid"
    ):
        open_small(path.with_name("new"), store_path_commit_log=f"commitlog,{others[0]},{named}")
    shutil.rmtree(others[0] / "below", ignore_errors=True)
    assert main(["config", str(path), "--set", f"store_path_commit_log=commitlog,{others[0]}"]) == 0
    open_small(path).close()


@pytest.mark.may_skip("mounting needs root")
def test_a_folder_that_is_mounted_at_another_path_is_refused(path, others):
    """The same folder on the same file system, still empty, and its mark is not there."""
    if os.geteuid():
        pytest.skip("mounting needs root")
    mounted = path.parent / "elsewhere" / "one"
    mounted.mkdir(parents=True)
    with Nursery(own_mounts=True) as nursery, open_small(path, **several(others)) as store:
        assert not segments_in(others[0])
        nursery.do(
            "check(libc.mount(shown.encode(), at.encode(), None, 4096, None), 'bind')",
            shown=str(others[0]),
            at=str(mounted),
        )
        assert mounted.samefile(others[0])
        with pytest.raises(cystore.StoreConfigError, match="must not be a mount point"):
            open_small(path.with_name("second"), store_path_commit_log=str(mounted))
        with pytest.raises(cystore.StoreConfigError, match="is the same directory as"):
            store.configure(store_path_commit_log=f"commitlog,{others[0]},{mounted}")
        check_cleaned(store, filled(store))


@pytest.mark.parametrize("is_open", [False, True])
def test_a_setting_that_the_next_open_would_refuse_is_not_saved(path, others, is_open, capsys):
    """Seen: the command saved it, and ended with an error."""
    with open_small(path.with_name("another"), **several(others[1:])) as store:
        filled(store)
    kept = open_small(path) if is_open else open_small(path).close()
    (others[0] / "file").write_bytes(b"")
    named = {
        path.parent / "nowhere": "missing or is not a directory",
        others[0] / "file": "missing or is not a directory",
        others[1]: "belongs to the store",
        path / "config": "must not contain each other",
    }
    for folder, said in named.items():
        assert main(["config", str(path), "--set", f"store_path_commit_log=commitlog,{folder}"]) == 2
        assert said in capsys.readouterr().err
    if kept is not None:
        with pytest.raises(cystore.StoreConfigError, match="missing"):
            kept.configure(read_only_commit_log_store_paths=str(path.parent / "nowhere"))
        kept.close()
    with open_small(path) as store:
        assert store.settings.store_path_commit_log in ("", "commitlog")
        store.configure(store_path_commit_log=f"commitlog,{path / 'commitlog'}")
    (others[0] / "file").unlink()
    assert main(["config", str(path), "--set", f"store_path_commit_log=commitlog,{others[0]}"]) == 0
    with open_small(path) as store:
        filled(store)


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


def test_who_changes_nothing_is_told_that_the_list_is_lost(path, others, capsys):
    """Seen: a reader saw the segments of the store's own folder, and holes in place of the others."""
    with open_small(path) as store:
        store.configure(**several(others))
    with open_small(path, read_only=True):
        pass  # there is no list yet, and nothing in the folders
    with open_small(path) as store:
        put = filled(store)
    for name in ("log_folders.json", "log_folders.json.bak"):
        (path / "config" / name).write_bytes(b"")
    with pytest.raises(cystore.StoreFormatError, match="the next open for writing makes the list anew"):
        open_small(path, read_only=True)
    for command in ("verify", "snapshot"):
        more = [str(path.parent / "copy")] * (command == "snapshot")
        assert main([command, str(path), *more]) in (0, 2)
    assert "makes the list anew" in capsys.readouterr().err
    with open_small(path) as store:
        check_cleaned(store, put)
    with open_small(path, read_only=True) as store:
        check_cleaned(store, put)


@pytest.mark.parametrize("copy", ["damaged", "empty", "gone"])
@pytest.mark.parametrize("lost", ["damaged", "gone"])
def test_a_list_without_a_good_copy_is_made_anew_as_the_error_says(path, others, lost, copy):
    """Seen: the error recommended the copy, which was damaged too."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
    listed = path / "config" / "log_folders.json"
    copied = listed.with_name(f"{listed.name}.bak")
    for file, how in ((listed, lost), (copied, copy)):
        file.write_bytes(b"{" if how == "damaged" else b"")
        if how == "gone":
            file.unlink()
    if lost == "gone" and copy != "damaged":
        return  # the marks say it all: see above
    for read_only in (True, False):
        with pytest.raises(cystore.StoreFormatError) as caught:
            open_small(path, read_only=read_only)
        assert (
            "cannot be read either" in str(caught.value)
            if copy == "damaged"
            else "is missing, too" in str(caught.value)
        )
        assert "in its place" not in str(caught.value) and "Move both away" in str(caught.value)
    listed.unlink(missing_ok=True)
    copied.unlink(missing_ok=True)
    with open_small(path, **several(others)) as store:
        check_cleaned(store, put)


def test_a_damaged_list_with_a_good_copy_is_put_back_as_the_error_says(path, others):
    with open_small(path, **several(others)) as store:
        put = filled(store)
    listed = path / "config" / "log_folders.json"
    listed.write_bytes(b"{")
    with pytest.raises(
        cystore.StoreFormatError, match=r"put its last good copy, log_folders.json.bak, in its place"
    ):
        open_small(path)
    shutil.copy(f"{listed}.bak", listed)
    with open_small(path) as store:
        check_cleaned(store, put)


@pytest.mark.parametrize("read_only", [True, False])
@pytest.mark.parametrize("lost", ["gone", "empty"])
@pytest.mark.parametrize("retires", [True, False])
def test_a_lost_list_with_a_copy_is_refused(path, others, lost, read_only, retires):
    """Nothing else names a retired folder, or tells a reader the folders."""
    with open_small(path, **several(others)) as store:
        put = filled(store)
        if retires:
            store.configure(**several(others[1:]))
    open_small(path).close()
    listed = path / "config" / "log_folders.json"
    listed.unlink() if lost == "gone" else listed.write_bytes(b"")
    with pytest.raises(cystore.StoreFormatError, match=r"list of the log's folders is lost"):
        open_small(path, read_only=read_only)
    shutil.copy(f"{listed}.bak", listed)
    with open_small(path) as store:
        check_cleaned(store, put)
