"""Stores that are cleaned: what is put into them, and what must hold of what is left."""

from __future__ import annotations

import os
from collections.abc import Sequence

import pytest

import cystore
from tests.support.checks import check_chain, everything


def fill_disk(monkeypatch: pytest.MonkeyPatch, percent: float, free_bytes: int = 1 << 30) -> None:
    """Makes each file system look so full (percent used, bytes free)."""
    blocks = 1_000_000
    free = blocks - int(blocks * percent / 100)
    size = max(free_bytes // max(free, 1), 1)
    values = (size, size, blocks, free, free, 0, 0, 0, 0, 255)
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result(values))


def fill(store: cystore.MessageStore, count: int = 200, start: int = 0) -> list[cystore.PutResult]:
    """About 40 messages fill a small segment; a key for each, two queues."""
    return [
        store.put("T", b"x" * 300, queue_id=n % 2, keys=(f"k{n}",), properties={"n": str(n)})
        for n in range(start, start + count)
    ]


def filled(store: cystore.MessageStore, count: int = 200) -> list[cystore.PutResult]:
    """`fill`, ready to be cleaned: dispatched and on the disk."""
    put = fill(store, count)
    store.dispatch()
    store.flush()
    return put


def check_cleaned(store: cystore.MessageStore, put: Sequence[cystore.PutResult]) -> None:
    """I7: what `fill` put and is not below the log's minimum is whole: queues from their minimum, keys, the chain;
    what went is refused in RocketMQ's words."""
    minimum = store.stats()["min_physical_offset"]
    kept = {n for n, one in enumerate(put) if one.physical_offset >= minimum}
    queues = everything(store)
    for queue_id in (0, 1):
        own = [n for n in sorted(kept) if n % 2 == queue_id]
        assert [int(m.properties["n"]) for m in queues["T", queue_id]] == own
        last = max(n for n in range(len(put)) if n % 2 == queue_id)
        first = put[own[0]].queue_offset if own else put[last].queue_offset + 1
        assert store.topics()["T"][queue_id].min_offset == first
        if first:
            assert store.get("T", queue_id, first - 1).status.name == "OFFSET_TOO_SMALL"
    check_chain(store)
    for n, one in enumerate(put):
        found = store.query("T", f"k{n}")
        assert [m.physical_offset for m in found] == ([one.physical_offset] if n in kept else [])
