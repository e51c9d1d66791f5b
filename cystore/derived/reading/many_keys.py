"""Answers for many keys at once, from one walk over the log that the index does not cover yet."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from cystore._native.read.key_reader import QueryResult
from cystore._native.record.argument_checks import text
from cystore._native.record.message import Message
from cystore.errors import CorruptRecordError, MessageIllegalError

log = logging.getLogger("cystore")


def distinct(keys: Iterable[str]) -> dict[str, Any]:
    """The keys in their order, each once; without values. A single text is refused, because its letters would become
    keys."""
    if isinstance(keys, (str, bytes)) or not isinstance(keys, Iterable):
        raise MessageIllegalError(f"keys must be several keys, for example a list, not {type(keys).__name__}")
    given = list(keys)
    if set(map(type, given)) <= {str} and all(map(str.isascii, given)):
        return dict.fromkeys(given)
    return dict.fromkeys(text("key", key) for key in given)


def add_newer(found: dict[str, QueryResult], walk: Iterable[Message], max_count: int) -> None:
    """Puts the messages of a walk, oldest first, before the known ones of each key. Damage ends the walk, and is
    reported for every key, because the record may have held it."""
    newer: dict[str, list[Message]] = {}
    damaged: list[CorruptRecordError] = []
    try:
        for message in walk:
            for key in {*message.keys, message.properties.get("UNIQ_KEY")}:
                if key in found:
                    newer.setdefault(key, []).append(message)
    except CorruptRecordError as error:
        log.error("a query cannot read behind damage that dispatch has not stepped over yet: %s", error)
        damaged = [error]
    for key in found if damaged else newer:
        older, added = found[key], newer.get(key, [])
        known = {message.physical_offset for message in added}
        messages = [*reversed(added), *(m for m in older if m.physical_offset not in known)]
        found[key] = QueryResult(messages[:max_count], [*older.damaged, *damaged])
