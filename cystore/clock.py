"""The only caller of clocks on the Python side."""

from __future__ import annotations

import time

from cystore.errors import StoreConfigError

FOREVER_S = 1e9


def now_ms() -> int:
    """Wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """A clock that never goes back, s."""
    return time.monotonic()


def wait_s(timeout_s: float | None) -> float:
    """How long a wait with this timeout lasts at most, s: from 0 to FOREVER_S, which None means too. Raises StoreConfigError."""
    if timeout_s is None:
        return FOREVER_S
    number = isinstance(timeout_s, (int, float)) and not isinstance(timeout_s, bool)
    if not number or timeout_s != timeout_s:  # as only NaN is
        raise StoreConfigError(f"timeout_s must be seconds, or None, not {timeout_s!r}")
    return min(max(timeout_s, 0), FOREVER_S)


def index_file_name(now: int) -> str:
    """Local time as RocketMQ names index files: yyyyMMddHHmmssSSS (UtilAll.timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now / 1000)) + f"{now % 1000:03d}"
