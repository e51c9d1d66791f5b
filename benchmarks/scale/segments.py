"""Reading a log of very many segments from end to end, beside one of ten that holds as much."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cystore
from cystore.verify import verify

BODY_BYTES = 100
ROUNDS = 3  # rounds of each reading; the fastest counts


def _settings(segment_bytes: int) -> dict[str, Any]:
    return {"services": "none", "mapped_file_size_commit_log_bytes": segment_bytes}


def build_log(root: Path, total_bytes: int, segment_bytes: int) -> None:
    """A log that fills all but half of its last segment, dispatched and closed."""
    with cystore.open(root, **_settings(segment_bytes)) as store:
        batch = [cystore.Message(topic="T", queue_id=0, body=b"x" * BODY_BYTES)] * 100
        while store.stats()["wrote"] < total_bytes - segment_bytes // 2:
            store.put_many(batch)


def _descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def _scan(store: cystore.MessageStore) -> int:
    return sum(1 for _ in store.scan())


def _get(store: cystore.MessageStore) -> int:
    at = 0
    while got := store.get("T", 0, at, 32).messages:
        at += len(got)
    return at


def _timed(read: Callable[[], int]) -> tuple[float, float]:
    """(processor time, time) in ns a record, of the fastest round."""
    found = []
    for _ in range(ROUNDS):
        wall, cpu = time.perf_counter(), time.process_time()
        records = read()
        found.append(
            ((time.process_time() - cpu) / records * 1e9, (time.perf_counter() - wall) / records * 1e9)
        )
    return min(found)


def read_log(root: Path, segment_bytes: int) -> dict[str, float]:
    """The cost of an open and of the reads, and the most descriptors at their ends."""
    wall, cpu = time.perf_counter(), time.process_time()
    store = cystore.open(root, **_settings(segment_bytes))
    found = {"open_s": time.perf_counter() - wall, "open_cpu_s": time.process_time() - cpu}
    descriptors = _descriptors()
    with store:
        records = _scan(store)
        for name, read in (("scan", _scan), ("get", _get)):
            found[name], found[f"{name}_wall"] = _timed(lambda read=read: read(store))  # type: ignore[misc]
            descriptors = max(descriptors, _descriptors())
    config = cystore.StoreConfig(**_settings(segment_bytes))

    def verified() -> int:
        if damage := list(verify(root, config)):
            raise RuntimeError(f"the store is damaged: {damage[0]}")
        return records

    found["verify"], found["verify_wall"] = _timed(verified)
    return {**found, "descriptors": descriptors, "records": records}
