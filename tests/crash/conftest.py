"""Shared by the tests that kill a process at a named place."""

from __future__ import annotations

import pytest

from tests.support.process import Process


@pytest.fixture
def log(tmp_path):
    return tmp_path / "acknowledged"


@pytest.fixture
def victim(build_environment):
    """A process of the build with failpoints."""
    with Process(build_environment("failpoints")) as process:
        yield process
