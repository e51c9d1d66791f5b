"""Folders of a log, beside that of its store."""

from __future__ import annotations

import pytest


@pytest.fixture
def others(in_memory):
    """Two folders on what would be other disks."""
    found = [in_memory / "disks" / name for name in ("one", "two")]
    for folder in found:
        folder.mkdir(parents=True)
    return found
