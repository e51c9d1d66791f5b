"""Small disks of their own: file systems in an image behind a loop device, or in memory. They can be full, and lose
their power.

A disk belongs to a nursery: only it and its children see the mounts, and the kernel takes mounts and loop devices
away when these have ended, even if nobody was left to do so.
"""

from __future__ import annotations

import contextlib
import fcntl
import gc
import os
import shutil
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.support.processes.forks import Nursery

SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
WITH_FLUSH, LOG_FLUSHED, NOTHING_FLUSHED = (
    0,
    1,
    2,
)  # what reaches the disk before the power is gone: all, the journal, nothing
# Mostly little reaches the disk by itself: that would hide what a sync forgot.
POWER_CUTS = (NOTHING_FLUSHED, NOTHING_FLUSHED, LOG_FLUSHED, LOG_FLUSHED, WITH_FLUSH)
MIB = 1 << 20

OPTIONS = {"ext4": "data=ordered", "xfs": ""}
FORMAT = {
    "ext4": ["mkfs.ext4", "-q", "-F", "-E", "nodiscard,lazy_itable_init=0,lazy_journal_init=0", "-m", "0"],
    "xfs": ["mkfs.xfs", "-q", "-f", "-m", "reflink=0"],
}

_LOOP_DEVICE = """
import errno, fcntl, stat, struct
def loop_device(image, spare):
    "A block device of the file, kept while this process lives; `spare` is a name for it where /dev has none."
    LOOP_CTL_GET_FREE, LOOP_CONFIGURE, LO_FLAGS_AUTOCLEAR, LOOP_MAJOR = 0x4C82, 0x4C0A, 4, 7
    backing = os.open(image, os.O_RDWR)
    for _ in range(100):
        control = os.open("/dev/loop-control", os.O_RDWR)
        number = fcntl.ioctl(control, LOOP_CTL_GET_FREE)
        os.close(control)
        node = f"/dev/loop{number}"
        if not os.path.exists(node):
            os.mknod(spare, stat.S_IFBLK | 0o600, os.makedev(LOOP_MAJOR, number))
            node = spare
        device = os.open(node, os.O_RDWR)
        try:
            fcntl.ioctl(device, LOOP_CONFIGURE, struct.pack("II52xI236x", backing, 0, LO_FLAGS_AUTOCLEAR))
        except OSError as error:
            os.close(device)
            if node == spare:
                os.unlink(spare)
            if error.errno != errno.EBUSY:
                raise
            continue  # somebody else was faster
        os.close(backing)
        return node
    raise OSError("no loop device is free")
"""


def obstacle(kind: str) -> str:
    """Why there can be no such disk here; nothing if there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    if kind == "tmpfs":
        return ""
    if shutil.which(FORMAT[kind][0], path=_path()) is None:
        return f"there is no {FORMAT[kind][0]}"
    if not os.access("/dev/loop-control", os.W_OK):
        return "there are no loop devices"
    return ""


def _path() -> str:
    return os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])


def shut_down(folder: Path, how: int) -> None:
    """From now on nothing reaches the disk below a mounted folder any more; `how` is one of POWER_CUTS."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.ioctl(fd, SHUTDOWN, struct.pack("I", how))
    finally:
        os.close(fd)


class Disk:
    """One disk; formatted when it is made, mounted as often as one likes."""

    def __init__(self, nursery: Nursery, folder: Path, kind: str, size_bytes: int) -> None:
        self._nursery, self.kind, self._size_bytes = nursery, kind, size_bytes
        self._device = "none"
        self.image = folder / f"{kind}.image"
        if kind != "tmpfs":
            image = self.image
            with image.open("wb") as file:
                file.truncate(size_bytes)
            subprocess.run(
                [*FORMAT[kind], str(image)],
                check=True,
                capture_output=True,
                env={**os.environ, "PATH": _path()},
            )
            nursery.do(_LOOP_DEVICE)
            self._device = nursery.do(
                "loop_device(image, spare)", image=str(image), spare=str(folder / f"{kind}.device")
            )

    def mount(self, folder: Path) -> None:
        """The disk's files appear in `folder`, for the nursery's children."""
        folder.mkdir(exist_ok=True)
        options = f"size={self._size_bytes}" if self.kind == "tmpfs" else OPTIONS[self.kind]
        self._nursery.do(
            "mount(device, target, kind, options)",
            device=self._device, target=str(folder), kind=self.kind, options=options,
        )  # fmt: skip

    def unmount(self, folder: Path, *, in_use: bool = False) -> None:
        """Whoever still uses it keeps it only when that is said."""
        self._nursery.do("umount(target, detach)", target=str(folder), detach=in_use)

    @contextlib.contextmanager
    def mounted(self, folder: Path) -> Iterator[Path]:
        """The folder, with the disk."""
        self.mount(folder)
        try:
            yield folder
        except BaseException:
            self.unmount(folder, in_use=True)  # the error's frames may hold files open
            raise
        gc.collect()  # folders of a log that `verify` looked at are held until then
        self.unmount(folder)
