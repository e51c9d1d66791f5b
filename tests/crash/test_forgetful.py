"""Goal: the disk of the row lost-writes keeps what was synced, forgets the rest, and lets nothing pass that the row
should find. Method: files written and mapped on it before the power goes; its memory alone, with thousands of seeds;
the row itself on a disk that lies."""

from __future__ import annotations

import mmap
import os
import random
import stat
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from cystore.system import files
from tests.crash import matrix
from tests.crash.faults import lost_writes
from tests.support.disks.forgetful import ForgetfulDisk, Power
from tests.support.disks.unsynced import HOW, PAGE_BYTES, SECTOR_BYTES, Node, Tree
from tests.support.processes.forks import Nursery

PAGES = 3
OLD, NEW, NEWER = (bytes([n]) * PAGE_BYTES for n in (1, 2, 3))


# ------------------------------------------------------------------------------------------------ its memory


def new_file(tree: Tree, name: str = "file") -> Node:
    return tree.make(tree.root, name, stat.S_IFREG | 0o600, 0, 0)


def written() -> tuple[Tree, Node]:
    """A file that was synced, and then written to twice."""
    tree = Tree()
    node = new_file(tree)
    tree.write(node, 0, OLD * PAGES)
    tree.sync(node)
    tree.sync(tree.root)
    tree.write(node, 0, NEW * PAGES)
    tree.write(node, 0, NEWER * PAGES)
    return tree, node


def left(how: str, seed: int) -> list[bytes]:
    tree, _ = written()
    tree.forget(random.Random(seed), how)
    data = tree.read(tree.find(tree.root, "file"), 0, PAGES * PAGE_BYTES)
    return [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]


def test_pages_are_left_in_any_version_since_the_sync():
    assert {page for seed in range(50) for page in left("none", seed)} == {OLD}
    assert {page for seed in range(50) for page in left("all", seed)} == {NEWER}
    assert {tuple(left("any", seed)) for seed in range(1000)} == {
        (a, b, c) for a in (OLD, NEW, NEWER) for b in (OLD, NEW, NEWER) for c in (OLD, NEW, NEWER)
    }


def test_torn_pages_consist_of_sectors_of_neighbouring_versions():
    torn = [page for seed in range(200) for page in left("torn", seed)]
    kinds = [{page[at : at + SECTOR_BYTES] for at in range(0, PAGE_BYTES, SECTOR_BYTES)} for page in torn]
    sectors = [page[:SECTOR_BYTES] for page in (OLD, NEW, NEWER)]
    assert all(
        kind in ({sectors[0]}, *map(set, (sectors[:2], sectors[1:], sectors[1:2], sectors[2:])))
        for kind in kinds
    )
    assert set(sectors[:2]) in kinds and set(sectors[1:]) in kinds


@pytest.mark.parametrize("how", HOW)
def test_nothing_is_forgotten_that_was_synced(how):
    for seed in range(50):
        tree, node = written()
        tree.rename(tree.root, "file", tree.root, "other", replace=False)
        tree.resize(node, PAGE_BYTES)
        tree.sync(node)
        tree.forget(random.Random(seed), how)
        node = tree.find(tree.root, "other")  # renamed before the length changed
        assert (node.size, tree.read(node, 0, PAGES * PAGE_BYTES)) == (PAGE_BYTES, NEWER)


def test_names_go_from_the_last_one_on():
    found = set()
    for seed in range(200):
        tree = Tree()
        kept = new_file(tree, "kept")
        tree.sync(tree.root)
        tree.link(kept, tree.root, "a")
        tree.rename(tree.root, "a", tree.root, "b", replace=False)
        new_file(tree, "c")
        tree.rename(tree.root, "c", tree.root, "b", replace=True)
        tree.remove(tree.root, "kept", is_folder=False)
        tree.forget(random.Random(seed), "none")
        names = tree.root.entries
        found.add(" ".join(sorted(names)))
        assert all(node.links == list(names.values()).count(node) for node in names.values())
    assert found == {"kept", "a kept", "b kept", "b c kept", "b"}


# ------------------------------------------------------------------------------------------------- the disk


@pytest.fixture
def power() -> Iterator[Power]:
    with Power() as power:
        yield power


@pytest.fixture
def disk(power) -> Iterator[ForgetfulDisk]:
    why = lost_writes.FAULT.obstacle()
    if why:
        pytest.skip(why)
    with Nursery(own_mounts=True, keep=(power.tell,)) as nursery, ForgetfulDisk(nursery, power) as disk:
        yield disk


def sync(path: Path) -> None:
    with files.opened(path) as fd:
        os.fsync(fd)


may_skip = pytest.mark.may_skip("mounting needs root and /dev/fuse")


@may_skip
def test_files_behave_like_on_other_disks(disk, tmp_path):
    with disk.mounted(tmp_path / "disk") as folder:
        root = folder / "a"
        root.mkdir()
        files.create_sized(root, root / "mapped", 5 * PAGE_BYTES, 2 * PAGE_BYTES)
        with (root / "mapped").open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
            memory[PAGE_BYTES] = 7
            memory.flush()
            os.rename(root / "mapped", root / "renamed")
            os.link(root / "renamed", root / "linked")
            with pytest.raises(FileExistsError):
                files.rename_no_replace(root / "linked", root / "renamed")
            assert os.fstat(file.fileno()).st_nlink == 2
            (root / "renamed").unlink()
            (root / "linked").unlink()
            assert os.fstat(file.fileno()).st_nlink == 0
            memory[2 * PAGE_BYTES] = 8
            memory.flush()
            assert (memory[PAGE_BYTES], memory[2 * PAGE_BYTES], len(memory)) == (7, 8, 5 * PAGE_BYTES)
        for number in range(300):
            (root / f"{number} with a long name, so that they fill several listings").write_bytes(
                bytes(number)
            )
        assert len(list(root.iterdir())) == 301 and files.free_space(root)[0] > 0
        with pytest.raises(OSError, match="not empty"):
            root.rmdir()


@may_skip
def test_power_takes_what_was_not_synced(disk, tmp_path):
    for seed in range(5):
        with disk.mounted(tmp_path / "disk") as folder:
            synced = folder / f"synced{seed}"
            synced.write_bytes(OLD)
            sync(synced)
            (folder / f"unsynced{seed}").write_bytes(OLD)
            sync(folder)
            with synced.open("r+b") as file, mmap.mmap(file.fileno(), 0) as memory:
                memory[:] = NEW  # stays in the page cache
                disk.cut_now()
                with pytest.raises(OSError, match="error"):
                    memory.flush()
            with pytest.raises(OSError, match="error"):
                (folder / "later").touch()
        disk.power_on(random.Random(seed))
        with disk.mounted(tmp_path / "disk") as folder:
            assert synced.read_bytes() == OLD
            assert (folder / f"unsynced{seed}").read_bytes() in (b"", OLD, bytes(PAGE_BYTES), *torn_zeros())
            assert not (folder / "later").exists()
    disk.copy_left(tmp_path / "copy")
    assert (tmp_path / "copy" / "synced4").read_bytes() == OLD


@may_skip
def test_who_holds_a_file_through_the_power_cut_changes_nothing_afterwards(disk, tmp_path):
    folder = tmp_path / "disk"
    disk.mount(folder)
    with (folder / "file").open("wb", buffering=0) as file:
        file.write(OLD)
        sync(folder / "file")
        sync(folder)
        disk.cut_now()
        disk.unmount(folder, in_use=True)
        disk.power_on(random.Random(1))
        with pytest.raises(OSError, match="error"):
            file.write(NEW)
    with disk.mounted(folder):
        assert (folder / "file").read_bytes() == OLD


def torn_zeros() -> set[bytes]:
    """A page of which some sectors were written."""
    parts = OLD[:SECTOR_BYTES], bytes(SECTOR_BYTES)
    count = PAGE_BYTES // SECTOR_BYTES
    return {b"".join(parts[number >> n & 1] for n in range(count)) for number in range(1 << count)}


@may_skip
def test_power_goes_at_the_request_that_was_named(disk, power, tmp_path):
    with disk.mounted(tmp_path / "disk") as folder:
        disk.cut_at(4)
        path = folder / "file"
        path.touch()  # one
        sync(folder)  # two
        fd = os.open(path, os.O_WRONLY)
        os.write(fd, OLD)  # three
        assert not power.is_gone
        with pytest.raises(OSError, match="error"):
            os.fsync(fd)
        assert power.is_gone
        os.close(fd)
    disk.power_on(random.Random(1))
    with disk.mounted(tmp_path / "disk") as folder:
        assert os.listdir(folder) == ["file"]


@may_skip
def test_row_finds_a_disk_that_does_not_sync(disk, seed, tmp_path):
    lies = matrix.Fault("lies", "", 0, 0, partial(lost_writes.run, ignores_sync=True))
    # The run ends with the fifth find, after 5 to 25 power cuts.
    row = matrix.run(lies, seed=seed, count=400, folder=tmp_path)
    assert any("durable was promised" in failure for failure in row.failures), matrix.table([row])
    assert list(tmp_path.glob("lies-*/left")), "the files of a failed case are kept"
