"""Goal: a CPU without instructions for CRC-32C writes and checks the same records. Method: the tests of checksums and
of appended records again, in a process that is told to use none of them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PORTABLE = {"CYSTORE_HYPOTHESIS": "quick", **os.environ, "CYSTORE_CHECKSUM": "portable"}


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *command],
        env=PORTABLE,
        cwd=HERE.parents[1],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@pytest.mark.unsanitized  # which has the same code with other instructions
def test_checksums_and_records_without_the_instructions_of_a_cpu():
    chosen = run("-c", "from cystore._native.record import checksum; print(checksum.implementation)")
    assert chosen.stdout.strip() == "portable", chosen.stderr
    files = [str(HERE / name) for name in ("test_checksum.py", "test_appended_record.py")]
    done = run("-m", "pytest", "-q", "-p", "no:cacheprovider", *files)
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout.splitlines()[-1]
