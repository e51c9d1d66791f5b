"""The extended units of a queue, as the files have them."""

from __future__ import annotations

import cystore


def bitmaps_of(store: cystore.MessageStore, topic: str, queue_id: int = 0) -> list[bytes | None]:
    """The bitmap of each entry's unit; None for an entry without a unit."""
    store.dispatch()
    queue = store._attached().queues.find(topic, queue_id)
    assert queue is not None and queue.ext is not None
    found = []
    for _, entry in queue.entries(queue.min_offset, queue.max_offset):
        unit = None if entry is None else queue.ext.get(entry.tags_code)
        found.append(None if unit is None else unit.bitmap)
    return found
