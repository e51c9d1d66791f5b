"""The only caller of clocks on the Python side."""

from __future__ import annotations

import math
import time

from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore.errors import StoreConfigError, shown

FOREVER_S = 1e9
_REALTIME_COARSE = 5  # of Linux; Python has no name for it


def now_ms(of: Control | None = None) -> int:
    """The time of a store, ms since the epoch: the wall clock, unless it jumped and is not believed. Without a store it
    is the wall clock."""
    return time.time_ns() // 1_000_000 if of is None else store_clock.now_ms(of)


def now_us() -> int:
    """The wall clock, µs since the epoch."""
    return time.time_ns() // 1_000


def expiry_ms(of: Control) -> int:
    """The time by which a store deletes: no later than `now_ms`, and never by a first look at the clock alone."""
    return store_clock.expiry_ms(of)


def monotonic_s() -> float:
    """A clock that never goes back, s."""
    return time.monotonic()


def boottime_ms() -> int:
    """A clock of this host that cannot be set, and that runs while the host sleeps, ms. Leases are measured by it."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000


def file_time_ns() -> int:
    """The clock that a file system stamps changes with, ns since the epoch. It moves on in steps of some
    milliseconds."""
    return time.clock_gettime_ns(_REALTIME_COARSE)


def wait_s(timeout_s: float | None) -> float:
    """The longest duration of a wait with this timeout, s: from 0 to FOREVER_S; None means FOREVER_S. Raises
    StoreConfigError."""
    return FOREVER_S if timeout_s is None else max(seconds(timeout_s), 0.0)


def seconds(timeout_s: object, *, least: float = -math.inf) -> float:
    """The timeout as a float of at most FOREVER_S. Raises StoreConfigError for anything else, or less than `least`."""
    value = math.nan
    # Calls float's and int's own methods: a subclass may override them.
    if isinstance(timeout_s, float):
        value = float.__float__(timeout_s)
    elif isinstance(timeout_s, int) and not isinstance(timeout_s, bool):
        value = float(max(min(int.__int__(timeout_s), int(FOREVER_S)), -int(FOREVER_S)))
    if not value >= least:  # nor is NaN
        raise StoreConfigError(
            f"timeout_s must be seconds{' from 0' if least == 0 else ''}, or None, not {shown(timeout_s)}"
        )
    return min(value, FOREVER_S)


def index_file_name(now: int) -> str:
    """Local time as RocketMQ names index files: yyyyMMddHHmmssSSS (UtilAll.timeMillisToHumanString)."""
    return time.strftime("%Y%m%d%H%M%S", time.localtime(now / 1000)) + f"{now % 1000:03d}"
