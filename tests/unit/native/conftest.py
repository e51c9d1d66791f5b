"""What tests of exceptions in signal handlers share."""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator

import pytest


@pytest.fixture
def no_frames_kept(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """pytest keeps the exceptions of finalizers, and those that the library logs, until the end. Their frames lead to
    those of the call that was interrupted, and these keep what the call had: a store that was closed stays mapped, and
    one of an earlier test is collected anywhere."""

    def without_frames(record: logging.LogRecord) -> bool:
        record.exc_info = None
        return True

    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
    logger = logging.getLogger("cystore")
    logger.addFilter(without_frames)
    yield
    logger.removeFilter(without_frames)
