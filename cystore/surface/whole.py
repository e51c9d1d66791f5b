"""Reads up to the end of the log, also where the master is elected and other reads end at the confirmed position."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from cystore._native.lookup.key_reader import QueryResult
from cystore._native.memory.control import WROTE
from cystore._native.record.message import Message
from cystore.attachment.attach import Attachment
from cystore.derived.reading.by_key import DEFAULT_COUNT


class WholeLog:
    """For decisions about records that this store itself appends: whether it has a record already. If a failover takes
    back the record that was found, it takes back all later ones, too."""

    def __init__(self, attached: Callable[[], Attachment]) -> None:
        self._attached = attached

    def query(self, topic: str, key: str, max_count: int = DEFAULT_COUNT) -> QueryResult:
        """See MessageStore.query."""
        return self._attached().reader.query(topic, key, max_count, read_end=WROTE)

    def scan_undispatched(self) -> Iterator[Message]:
        """The records that `query` does not find yet."""
        parts = self._attached()
        parts.reader.help_dispatch()
        return parts.commit_log.scan(parts.control.dispatched, over_cleaned=True)
