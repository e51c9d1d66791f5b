"""The command as a user runs it, and stores to run it on."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.golden.conftest import unpack_golden
from tests.support.cli.command import Command

__all__ = ["command", "store_path", "unpack_golden"]


@pytest.fixture
def command(tmp_path: Path) -> Command:
    """Runs `cystore` in an empty folder."""
    folder = tmp_path / "cwd"
    folder.mkdir()
    return Command(folder)


@pytest.fixture
def store_path(tmp_path: Path) -> Path:
    """Where a store may be made."""
    return tmp_path / "store"


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """An empty folder for copies of stores."""
    folder = tmp_path / "backups"
    folder.mkdir()
    return folder
