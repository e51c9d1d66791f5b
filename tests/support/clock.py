"""The clock by which stores of this process roll, deliver and delete, turned by a test; puts have the real one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from cystore import clock


def turn(monkeypatch: pytest.MonkeyPatch, ms: int | Callable[[], int]) -> None:
    """Moves it by so many ms from now on, as if nobody had ever doubted the time there."""
    real = getattr(clock.now_ms, "real", clock.now_ms)

    def now_ms(*of: Any) -> int:
        return int(real(*of)) + (ms() if callable(ms) else ms)

    now_ms.real = real  # type: ignore[attr-defined]
    monkeypatch.setattr(clock, "now_ms", now_ms)
    monkeypatch.setattr(clock, "expiry_ms", now_ms)


def stop(monkeypatch: pytest.MonkeyPatch, at_ms: int) -> None:
    """Stops it at a time."""
    monkeypatch.setattr(clock, "now_ms", lambda *of: at_ms)
    monkeypatch.setattr(clock, "expiry_ms", lambda of: at_ms)
