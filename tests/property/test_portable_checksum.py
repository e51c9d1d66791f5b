"""Goal: every CPU writes and checks the same records. Method: the tests of checksums and of appended records again, in
a process that is told to use no instruction for CRC-32C; and the copies of `crc_copy.h` beside a checksum that goes bit
by bit, compiled for this CPU and for ARM64, which QEMU runs."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
PORTABLE = {"CYSTORE_HYPOTHESIS": "quick", **os.environ, "CYSTORE_CHECKSUM": "portable"}


NATIVE = HERE.parents[1] / "cystore" / "_native" / "record"
FOREIGN_CC, EMULATOR = "aarch64-linux-gnu-gcc", "qemu-aarch64"
needs_arm = pytest.mark.skipif(
    not (shutil.which(FOREIGN_CC) and shutil.which(EMULATOR)), reason="no compiler or no emulator for ARM64"
)


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return execute(sys.executable, *command, env=PORTABLE)


def execute(*command: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        env=env,
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


def compiled(folder: Path, compiler: str, *flags: str) -> str:
    """The program of `checksum_copy.c`, made with this compiler."""
    program = str(folder / "checksum_copy")
    source = str(HERE / "checksum_copy.c")
    warnings = ("-Wall", "-Wextra", "-Werror")
    done = execute(compiler, "-O2", *warnings, *flags, f"-I{NATIVE}", source, "-o", program)
    assert done.returncode == 0, done.stderr
    return program


@pytest.mark.unsanitized
def test_copies_give_the_checksum_of_their_bytes(tmp_path, seed):
    program = compiled(tmp_path, os.environ.get("CC", "cc"))
    done = execute(program, str(seed), "300", env={**os.environ, "CYSTORE_CHECKSUM": ""})
    if done.returncode == 3:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 4000


@pytest.mark.slow
@pytest.mark.unsanitized
@needs_arm
@pytest.mark.parametrize("optimised", ["-O1", "-O3"])
def test_copies_on_arm(tmp_path, seed, optimised):
    program = compiled(tmp_path, FOREIGN_CC, "-static", optimised)
    done = execute(EMULATOR, program, str(seed), "20000")
    assert done.returncode == 0, done.stdout
    assert int(done.stdout.split()[0]) > 100_000


@pytest.mark.slow
@pytest.mark.unsanitized
@needs_arm
def test_an_arm_cpu_without_the_instructions_takes_the_other_way(tmp_path, seed):
    program = compiled(tmp_path, FOREIGN_CC, "-static")
    done = execute(EMULATOR, program, str(seed), "1", env={**os.environ, "CYSTORE_CHECKSUM": "portable"})
    assert done.returncode == 3, done.stdout
