"""Small stores: files so short that a test fills several of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cystore

LOG_BYTES = 16 * 1024
SETTINGS: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": LOG_BYTES,
    "mapped_file_size_consume_queue_bytes": 100 * 20,
    "max_hash_slot_num": 101,
    "max_index_num": 1000,
    "services": "none",
}
# The size of a record beside body, topic and properties: fixed fields and two IPv4 hosts.
RECORD_OVERHEAD = 91
BLANK_BYTES = 8


def open_small(path: Path | str, **more: Any) -> cystore.MessageStore:
    """A store of small files without service threads, unless `more` says otherwise."""
    return cystore.open(path, **{**SETTINGS, **more})


def put_own(store: cystore.MessageStore, *messages: cystore.Message) -> list[cystore.PutResult]:
    """Puts messages as the store puts its own: also to topics that are closed to programs."""
    parts = store._attached()
    assert parts.appender is not None
    return parts.appender.put_with(parts.appender.policy, list(messages))


def body_for(record_bytes: int, topic: str = "T") -> bytes:
    """A body that makes a record of exactly so many bytes, without properties."""
    return bytes(record_bytes - RECORD_OVERHEAD - len(topic))
