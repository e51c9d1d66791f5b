"""Numbers about a store, as StoreStatsService has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from cystore._native.append.append import LATENCY_BOUNDS_MS
from cystore._native.memory import store_clock
from cystore._native.memory.control import Control


class QueueRange(NamedTuple):
    """Queue offsets that can be read: from `min_offset` to before `max_offset`."""

    min_offset: int
    max_offset: int


def latency_labels() -> list[str]:
    """Names of the put latency buckets (StoreStatsService.PUT_MESSAGE_ENTIRE_TIME_MAX_DESC)."""

    def text(ms: int) -> str:
        return f"{ms // 1000}s" if ms >= 1000 else f"{ms}ms"

    bounds = LATENCY_BOUNDS_MS
    middle = [f"{text(low) if low else '0'}~{text(high)}" for low, high in pairwise(bounds)]
    return [f"<={text(bounds[0])}", *middle, f"{text(bounds[-1])}~"]


def store_stats(control: Control) -> dict[str, Any]:
    """Positions (bytes), counters since the first attach, and puts by the time they took."""
    counters = control.counters()
    return {
        "min_physical_offset": control.min_physical_offset,
        "wrote": control.wrote,
        "flushed": control.flushed,
        "dispatched": control.dispatched,
        "dispatch_behind_bytes": control.wrote - control.dispatched,
        "allocated": control.allocated,
        "last_store_timestamp_ms": control.last_store_timestamp_ms,
        "queues": control.queue_count,
        "put_count": counters["put_count"],
        "put_bytes": counters["put_bytes"],
        "put_size_average_bytes": counters["put_bytes"] / counters["put_count"]
        if counters["put_count"]
        else 0.0,
        "put_time_max_ms": counters["put_time_max_ms"],
        "dispatch_count": counters["dispatch_count"],
        "clock_clamps": counters["clock_clamps"],
        "clock_jumps": store_clock.jumps(control),
        "clock_ahead_ms": store_clock.ahead_ms(control),
        "turns_over_budget": control.turns_over_budget,
        "put_latency": dict(zip(latency_labels(), counters["put_latency"], strict=True)),
    }
