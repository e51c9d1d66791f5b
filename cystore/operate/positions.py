"""The view of an attached process on its store: positions, queues, index files, delays, and the needs that the
cleaner waits for."""

from __future__ import annotations

from typing import Any

from cystore._native.derived.delay import Delivered
from cystore.attachment.attach import Attachment
from cystore.engine.inspect.stats import store_stats
from cystore.engine.pool.buffers import pool_figures
from cystore.errors import StoreError
from cystore.layout import FLAGS


def positions(parts: Attachment) -> dict[str, Any]:
    """Facts that an attached process sees."""
    control = parts.control
    queues = []
    for slot in range(control.queue_count):
        topic, queue_id, next_offset, _, minimum = control.queue(slot)
        maximum = parts.reader.end_of(slot)
        offsets = {"min_offset": minimum, "max_offset": maximum, "next_offset": max(maximum, next_offset)}
        queues.append({"topic": topic, "queue_id": queue_id, **offsets})
    index_files = [
        {"name": f"{file.name:017d}", "slots": file.slots, "capacity": file.capacity, **header._asdict()}
        for file in parts.index.files()
        if (header := file.peek()) is not None
    ]
    report = parts.recovered.report if parts.recovered is not None else None
    return {
        "positions": {
            **store_stats(control),
            **pool_figures(control, parts.root, parts.manifest.snapshot().store_id),
        },
        "flags": [
            name.removeprefix("FLAG_").lower() for name, (bit, _) in FLAGS.items() if control.flags & bit
        ],
        "queues": sorted(queues, key=lambda queue: (queue["topic"], queue["queue_id"])),
        "delayed": _delayed(parts),
        "delayed_overdue_ms": parts.scheduler.overdue_ms(),
        "needs": _needs(parts),
        "index_files": index_files,
        "recovery": None if report is None else str(report),
    }


def _needs(parts: Attachment) -> list[dict[str, Any]]:
    """The needs that keep the cleaner from removing expired segments: owner, first physical offset, bytes of log, and
    the store timestamp there (None if no record begins there, or if it cannot be read)."""
    wrote, found = parts.control.wrote, []
    for need in parts.cleaner.needs():
        if need.position >= wrote:
            continue
        try:
            since_ms = parts.commit_log.read(need.position).store_timestamp_ms
        except StoreError:
            since_ms = None
        found.append(
            {
                "owner": need.owner,
                "physical_offset": need.position,
                "bytes": wrote - need.position,
                "since_ms": since_ms,
                "max_age_ms": need.max_age_ms,
            }
        )
    return found


def _delayed(parts: Attachment) -> list[dict[str, int | None]]:
    """Levels with waiting messages; level 0 is those with a time of their own. In a store in use, messages that a
    killed process delivered count until the next delivery."""
    if parts.recovered is not None:
        parts.delivered.settle()  # changes only this process's own memory
    levels_ms = Delivered(parts.control).levels_ms
    return [
        {
            "level": level,
            "delay_ms": levels_ms[level - 1] if 0 < level <= len(levels_ms) else None,
            "pending": count,
        }
        for level, count in parts.delivered.pending().items()
    ]
