"""What tests of exceptions in signal handlers share."""

from __future__ import annotations

import sys

import pytest


@pytest.fixture
def no_frames_kept(monkeypatch):
    """pytest's hook keeps the exception of a finalizer until the end. Its frames lead to those of the call that the
    finalizer interrupted, and these keep what the call had: the store of an earlier test is collected anywhere."""
    monkeypatch.setattr(sys, "unraisablehook", lambda _: None)
