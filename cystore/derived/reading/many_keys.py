"""Answers for many keys at once, from one walk over the log that the index does not cover yet."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from pathlib import Path

from cystore._native.lookup.key_reader import QueryResult
from cystore._native.record.message import Message
from cystore.errors import CorruptRecordError, MessageIllegalError

log = logging.getLogger("cystore")

FOREVER_MS = (1 << 63) - 1


def several(keys: Iterable[str]) -> list[str]:
    """The keys as a new list. A single text is refused, because its letters would become keys."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise MessageIllegalError(f"keys must be several keys, for example a list, not {type(keys).__name__}")
    return list(keys)


def add_newer(
    found: dict[str, QueryResult],
    look: Callable[[bytes, int, int, int], tuple[list[Message], int]],
    wrote: int,
    max_count: int,
    path: Path,
) -> None:
    """Puts the messages that are not in the index yet before the known ones of each key. `look(key, count, begin_ms,
    end_ms)` gives them, newest first, and the position where it had to end. Damage there is reported for every key,
    because the damaged record may have held the key."""
    damaged: list[CorruptRecordError] = []
    for key, older in found.items():
        newer, end = look(key.encode(), max_count, 0, FOREVER_MS)
        if end < wrote and not damaged:
            damaged = [
                CorruptRecordError("dispatch has not stepped over this damage yet", path=path, offset=end)
            ]
            log.error("a query cannot read behind damage: %s", damaged[0])
        if newer or end < wrote:
            more = damaged if end < wrote else []
            found[key] = QueryResult(newest_first([*newer, *older], max_count), [*older.damaged, *more])


def newest_first(messages: Iterable[Message], max_count: int) -> list[Message]:
    """Messages of the index and of the log behind it, newest first, each once. Meanwhile dispatch may have entered
    those of the log, and newer ones."""
    by_offset = {message.physical_offset: message for message in messages}
    return [by_offset[offset] for offset in sorted(by_offset, reverse=True)][:max_count]
