"""Disks of hosts on one machine: each member's folder is a file system of its own, which can be full."""

from __future__ import annotations

import contextlib
import errno
import subprocess
from pathlib import Path
from types import TracebackType

DISK_MIB = 96
PIECE = bytes(1 << 16)


class Disks:
    """A context manager. `names` of members have their folders in `folder`, in memory."""

    def __init__(self, folder: Path, names: tuple[str, ...]) -> None:
        self._folder, self._names = folder, names

    def __enter__(self) -> Disks:
        for name in self._names:
            place = self._folder / name
            place.mkdir(parents=True)
            mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m,mode=755", "cystore-test", str(place)]
            subprocess.run(mount, check=True, capture_output=True)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for name in self._names:
            # Lazily: a killed member's files may take a moment to go.
            subprocess.run(["umount", "-l", str(self._folder / name)], capture_output=True, check=False)

    def _filler(self, name: str) -> Path:
        return self._folder / name / "filler"

    def fill(self, name: str) -> None:
        """There is no free byte."""
        with self._filler(name).open("wb", buffering=0) as filler, contextlib.suppress(StopIteration):
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
