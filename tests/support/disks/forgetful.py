"""A disk that forgets what was not synced, for the nursery's children and their leader:
tests/support/disks/fuse.py in a process."""

from __future__ import annotations

import os
import random
import select
from pathlib import Path

from tests.support.disks import fuse, unsynced
from tests.support.disks.disks import Disk
from tests.support.processes.forks import Nursery


def obstacle() -> str:
    """Why there can be no such disk here; nothing if there can."""
    if os.geteuid() != 0:
        return "mounting needs root"
    try:
        os.close(os.open(fuse.DEVICE, os.O_RDWR))
    except OSError as error:
        return f"there is no {fuse.DEVICE} to use: {error.strerror}"
    return ""


class Power:
    """Tells that a disk has none any more: the writing end of the pipe is the nursery's to keep."""

    def __init__(self) -> None:
        self.gone, self.tell = os.pipe()

    def __enter__(self) -> Power:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.gone)
        os.close(self.tell)

    @property
    def is_gone(self) -> bool:
        return bool(select.select([self.gone], [], [], 0)[0])


class ForgetfulDisk(Disk):
    """The nursery must have been made with `keep=(power.tell, ...)`. A context manager."""

    def __init__(self, nursery: Nursery, power: Power, *, ignores_sync: bool = False) -> None:
        self._nursery, self.power = nursery, power
        self._process = nursery.fork()
        self._process.do(
            "from tests.support.disks.fuse import Device\ndevice = Device(ignores_sync=ignores_sync)",
            ignores_sync=ignores_sync,
        )

    def __enter__(self) -> ForgetfulDisk:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()  # who still waits for it gets an error

    def mount(self, folder: Path) -> None:
        folder.mkdir(exist_ok=True)
        self._process.do("device.mount(folder)", folder=str(folder))

    def cut_at(self, request: int) -> None:
        """The power goes with the n-th request from now that changes anything; `Power` tells. With 0 it stays."""
        self._process.do("device.cut_at(request, tell)", request=request, tell=self.power.tell)

    def cut_now(self) -> None:
        """From now on nothing reaches the disk any more."""
        self._process.do("device.cut()")

    def power_on(self, rng: random.Random) -> dict[str, int]:
        """When it is not mounted any more: what was not synced is left as chance will have it. Gives what is gone."""
        if self.power.is_gone:
            os.read(self.power.gone, 1)
        return self._process.do(
            "device.power_on(seed, how)", seed=rng.randrange(1 << 40), how=rng.choice(unsynced.HOW)
        )

    def copy_left(self, folder: Path) -> None:
        """Copies the files as they were when the power came back for the last time."""
        self._process.do("device.copy_left(folder)", folder=str(folder))
