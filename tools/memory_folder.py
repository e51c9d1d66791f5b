"""A folder in memory for the files of tests: most tests sync small files again and again, and wait for the disk."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MEMORY = Path("/dev/shm")
ROOM_BYTES = 4 << 30  # the tests of a group need less than a quarter of it at a time


def has_room(memory: Path) -> bool:
    """Whether files may be made there, and both the file system and the host have the room. A file system in memory
    takes from the host only what its files hold, so its own free space says little."""
    if not os.access(memory, os.W_OK):
        return False
    free = os.statvfs(memory)
    return min(free.f_bavail * free.f_frsize, _available_bytes()) >= ROOM_BYTES


def _available_bytes() -> int:
    for line in Path("/proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return 0


@contextmanager
def memory_folder() -> Iterator[Path | None]:
    """A folder in memory, gone afterwards; None where memory has no room."""
    if not has_room(MEMORY):
        yield None
        return
    # A short name: tests put sockets there, and a socket's path has at most 108 bytes.
    with tempfile.TemporaryDirectory(prefix="cystore-", dir=MEMORY, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def keep(folder: Path, kept: Path) -> None:
    """Copies what failed tests left to the disk. Large files are mostly holes, and their copies have them too."""
    shutil.rmtree(kept, ignore_errors=True)
    subprocess.run(["cp", "-a", "--sparse=always", str(folder), str(kept)], check=False)
