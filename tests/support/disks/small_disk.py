"""A disk of a few megabytes for one script: a file system in memory, mounted in a namespace that only the script
sees."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

NOT_ASKED = "the kernel of this host does not let a user mount a small disk"
MOUNT = 'mount -t tmpfs -o size="$0" none "$1" && shift && exec "$@"'


def on_small_disk(size: str, at: Path, script: str, *arguments: str) -> str:
    """Runs a Python script whose first argument is the folder `at`, which is a disk of that size. Returns what it
    prints; skips the test where nobody may mount."""
    unshare = ["unshare", "--mount", "--map-root-user", "sh", "-c", MOUNT, size, str(at)]
    done = subprocess.run(
        [*unshare, sys.executable, "-c", script, str(at), *arguments],
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode and ("unshare" in done.stderr or "mount:" in done.stderr):
        pytest.skip(NOT_ASKED)
    assert done.returncode == 0, done.stderr
    return done.stdout
