"""Disks of hosts on one machine: each member's folder is a file system of its own, which can be full, and can lose its
power.

Disks that can lose their power are images behind loop devices. Where these cannot be made, the disks are in memory.
"""

from __future__ import annotations

import errno
import os
import subprocess
from pathlib import Path
from types import TracebackType

from tests.support.disks.disks import FORMAT, MIB, obstacle, shut_down

DISK_BYTES = 160 * MIB
PIECE = bytes(1 << 16)


class Disks:
    """A context manager. `names` of members have their folders in `folder`."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self._names = folder, names
        self.can_lose_power = not obstacle("ext4")

    def __enter__(self) -> Disks:
        # Hosts see their own copies of the mounts. A shared folder tells them which disks come and go.
        _run("mount", "--bind", str(self._folder), str(self._folder))
        _run("mount", "--make-shared", str(self._folder))
        for name in self._names:
            (self._folder / name).mkdir(parents=True)
            if self.can_lose_power:
                with self._image(name).open("wb") as file:
                    file.truncate(DISK_BYTES)
                _run(*FORMAT["ext4"], str(self._image(name)))
            self._mount(name)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for place in (*(self._folder / name for name in self._names), self._folder):
            # Lazily: a killed member's files may take a moment to go.
            subprocess.run(["umount", "-l", str(place)], capture_output=True, check=False)

    def _image(self, name: str) -> Path:
        return self._folder / f"{name}.image"

    def _mount(self, name: str) -> None:
        if self.can_lose_power:
            _run("mount", "-t", "ext4", "-o", "loop", str(self._image(name)), str(self._folder / name))
        else:
            options = f"size={DISK_BYTES},mode=755"
            _run("mount", "-t", "tmpfs", "-o", options, "cystore-test", str(self._folder / name))

    def cut(self, name: str, how: int) -> None:
        """From now on nothing reaches the disk any more; `how` is one of POWER_CUTS."""
        shut_down(self._folder / name, how)

    def power_on(self, name: str) -> None:
        """The disk comes back after a cut, with what had reached it. No process uses it any more. While another test of
        this machine has a copy of all mounts, the kernel would give the file system without power again: then a copy
        of the disk is made."""
        _run("umount", str(self._folder / name))
        self._mount(name)
        if not self._is_alive(name):
            _run("umount", str(self._folder / name))
            image = self._image(name)
            _run("cp", "--sparse=always", str(image), f"{image}.copy")
            os.replace(f"{image}.copy", image)
            self._mount(name)

    def _is_alive(self, name: str) -> bool:
        try:
            self._filler(name).touch()
            self.empty(name)
        except OSError as error:
            if error.errno not in (errno.EIO, errno.EROFS):
                raise
            return False
        return True

    def _filler(self, name: str) -> Path:
        return self._folder / name / "filler"

    def fill(self, name: str) -> None:
        """There is no free byte."""
        with self._filler(name).open("wb", buffering=0) as filler:
            while True:
                try:
                    filler.write(PIECE)
                except OSError as error:
                    if error.errno != errno.ENOSPC:
                        raise
                    return

    def empty(self, name: str) -> None:
        """There is space again."""
        self._filler(name).unlink(missing_ok=True)


def _run(*command: str) -> None:
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, env={**os.environ, "PATH": path}
    )
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")
