"""Goal: no mount and no loop device outlives the run that made it, however that ended. Method: a nursery is killed
with a disk mounted and in use; the kernel is asked for what is left."""

from __future__ import annotations

import select
import time
from pathlib import Path

import pytest

from tests.support.disks import disks
from tests.support.disks.disks import Disk
from tests.support.process import TIMEOUT_S
from tests.support.processes.forks import Nursery


def backing_files() -> list[str]:
    found = []
    for path in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            found.append(path.read_text().strip())
        except OSError:
            continue  # the device was let go meanwhile
    return found


@pytest.mark.may_skip("mounting needs root and loop devices")
def test_mounts_and_devices_end_with_the_nursery(tmp_path):
    why = disks.obstacle("ext4")
    if why:
        pytest.skip(why)
    with Nursery(own_mounts=True) as nursery:
        disk = Disk(nursery, tmp_path, "ext4", 4 * disks.MIB)
        disk.mount(tmp_path / "disk")
        child = nursery.fork()
        child.do("file = open(path, 'w')", path=str(tmp_path / "disk" / "in use"))
        assert str(disk.image) in backing_files()
        assert str(tmp_path) not in Path("/proc/1/mounts").read_text()
        nursery.kill()
    until = time.monotonic() + TIMEOUT_S
    while str(disk.image) in backing_files():
        assert time.monotonic() < until, "the loop device is still there"
        select.select([], [], [], 0.01)
    assert list((tmp_path / "disk").iterdir()) == []
