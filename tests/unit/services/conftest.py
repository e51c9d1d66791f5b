"""What the tests of services share: a path for a store, a clock that turns, and a log that is heard."""

from __future__ import annotations

import logging
from functools import partial

import pytest

from cystore import clock
from tests.support.clock import turn


@pytest.fixture(autouse=True)
def warnings(caplog):
    """The log is heard, whatever tests before made of it."""
    caplog.set_level(logging.WARNING, "cystore")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def late(monkeypatch):
    """Turns the clock by which deliveries are due: `late(ms)` from now."""
    return partial(turn, monkeypatch)


@pytest.fixture
def now():
    return clock.now_ms()
