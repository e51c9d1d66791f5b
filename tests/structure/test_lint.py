"""Goal: what `make lint` asks for holds. Method: run each of its tools over the repository."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.structure.sources import ROOT


@pytest.mark.parametrize(
    "command",
    [("ruff", "check", "."), ("ruff", "format", "--check", "."), ("mypy",)],
    ids=lambda command: " ".join(command),
)
def test_lint(command):
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, text=True, capture_output=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
