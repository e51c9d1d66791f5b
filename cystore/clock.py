"""The only caller of clocks on the Python side."""

from __future__ import annotations

import time


def now_ms() -> int:
    """Wall clock, ms since the epoch."""
    return time.time_ns() // 1_000_000


def monotonic_s() -> float:
    """A clock that never goes back, s."""
    return time.monotonic()


def index_file_name(now: int) -> str:
    """Local time as RocketMQ names index files: yyyyMMddHHmmssSSS (UtilAll.timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now / 1000)) + f"{now % 1000:03d}"
