"""Numbers about a store, as StoreStatsService has them."""

from __future__ import annotations

from itertools import pairwise
from typing import Any, NamedTuple

from cystore._native.append.append import LATENCY_BOUNDS_MS
from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import mapped_bytes, mapped_files
from cystore.clock import boottime_ms

# Counted by all processes since the first attach.
_COUNTERS = (
    "put_count",
    "put_bytes",
    "put_failed",
    "put_slow",
    "put_time_max_ms",
    "room_requests",
    "room_wait_ms",
    "room_wait_max_ms",
    "files_made",
    "get_time_max_ms",
    "query_count",
    "dispatch_count",
    "clock_clamps",
)


class QueueRange(NamedTuple):
    """Queue offsets that can be read: from `min_offset` to before `max_offset`."""

    min_offset: int
    max_offset: int


def latency_labels() -> list[str]:
    """Names of the buckets of times (StoreStatsService.PUT_MESSAGE_ENTIRE_TIME_MAX_DESC)."""

    def text(ms: int) -> str:
        return f"{ms // 1000}s" if ms >= 1000 else f"{ms}ms"

    bounds = LATENCY_BOUNDS_MS
    middle = [f"{text(low) if low else '0'}~{text(high)}" for low, high in pairwise(bounds)]
    return [f"<={text(bounds[0])}", *middle, f"{text(bounds[-1])}~"]


def store_stats(control: Control) -> dict[str, Any]:
    """Positions (bytes); counters of all processes since the first attach, puts and gets by the time they took;
    the mappings of this process (TOTAL_MAPPED_FILES, TOTAL_MAPPED_VIRTUAL_MEMORY)."""
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
        **{name: counters[name] for name in _COUNTERS},
        "put_size_average_bytes": counters["put_bytes"] / counters["put_count"]
        if counters["put_count"]
        else 0.0,
        "clock_jumps": store_clock.jumps(control),
        "clock_ahead_ms": store_clock.ahead_ms(control),
        "turns_over_budget": control.turns_over_budget,
        "replicated": control.replicated,
        "confirmed": control.confirmed if control.confirming else control.wrote,
        "epoch": control.epoch,
        "in_sync": control.in_sync,
        "lease_left_ms": max(control.lease_until_ms - boottime_ms(), 0) if control.epoch else 0,
        "put_latency": dict(zip(latency_labels(), counters["put_latency"], strict=True)),
        "get_latency": dict(zip(latency_labels(), counters["get_latency"], strict=True)),
        "get_count": sum(counters["get_latency"]),
        "get_found_count": counters["get_found"],
        "get_message_count": counters["get_messages"],
        "mapped_files": mapped_files(),
        "mapped_bytes": mapped_bytes(),
    }


def put_bytes_by_topic(control: Control) -> dict[str, int]:
    """Bytes of records appended since the first attach, by topic."""
    found: dict[str, int] = {}
    for slot in range(control.queue_count):
        topic = control.queue(slot)[0]
        found[topic] = found.get(topic, 0) + control.queue_put_bytes(slot)
    return dict(sorted(found.items()))
