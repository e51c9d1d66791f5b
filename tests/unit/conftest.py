"""Shared by the unit tests: a user whose permissions count."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

NOBODY = 65534


@pytest.fixture
def unprivileged(tmp_path: Path) -> Iterator[None]:
    """The test runs as a user that file modes apply to: as root, whom nothing is refused, it becomes another one
    meanwhile."""
    if os.geteuid() != 0:
        yield
        return
    for folder in [tmp_path, *tmp_path.parents]:
        if folder.stat().st_uid == 0 and folder != Path("/") and folder != Path("/tmp"):
            folder.chmod(folder.stat().st_mode | 0o055)
    os.chown(tmp_path, NOBODY, NOBODY)
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)
