"""The registered filters of consumer groups: the store marks the messages that match them, so that a group need not
read the others (RocketMQ's ConsumerFilterManager)."""

from __future__ import annotations

import builtins
from collections.abc import Iterator
from typing import NamedTuple

from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.consumers.names import checked_group
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.engine.manifest.group_filters import UNBORN, GroupFilter, group_filters_of
from cystore.engine.manifest.store_settings import has_room_for_bitmaps
from cystore.engine.manifest.topic_names import checked_topic
from cystore.errors import StoreConfigError
from cystore.filters.sql import SqlFilter, checked


class RegisteredFilter(NamedTuple):
    """A group's filter for a topic. Messages at the log position `born` and behind it are marked; None: not yet."""

    group: str
    topic: str
    expression: str
    born: int | None


class Filters:
    """The registered filters of a store; `store.filters`. Safe for threads and processes.

    A store with ``enable_consume_queue_ext=True`` keeps a bitmap beside each queue entry. It says which of the
    registered filters the message matches. A `get`, a `pull` or a consumer of the group with the same expression then
    leaves the other messages out without reading them. The messages that it gives are the same with and without
    bitmaps.
    """

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def add(self, group: str, topic: str, expression: str | SqlFilter) -> RegisteredFilter:
        """Registers a group's filter for a topic, durably and for all processes. It works for messages that are
        appended from now on. The same filter once more changes nothing; another expression replaces the old one.

        Raises FilterError, StoreConfigError (for a store without extended entries, too), StoreNotWritableError,
        StoreTimeoutError if another process stands still in the dispatch: call it again.
        """
        group, topic = checked_group(group), checked_topic(topic)
        text = expression.expression if isinstance(expression, SqlFilter) else checked(expression)
        SqlFilter(text)  # raises for an expression that cannot be parsed
        parts = self._store._writable()
        return _shown(_known(parts).add(group, topic, text))

    def remove(self, group: str, topic: str) -> bool:
        """Ends a filter; False if there was none. Reads with its expression look at each message again."""
        group, topic = checked_group(group), checked_topic(topic)
        return _known(self._store._writable()).remove(group, topic)

    def list(self) -> builtins.list[RegisteredFilter]:
        """All filters, by group and topic."""
        facts = self._store._attached().manifest.snapshot()
        return [_shown(row) for row in group_filters_of(facts.sections).rows]

    def __iter__(self) -> Iterator[RegisteredFilter]:
        return iter(self.list())


def _known(parts: Attachment) -> KnownFilters:
    if parts.filters is None:
        raise StoreConfigError(
            "the store has no extended queue entries, which hold the bitmaps of filters: make it with "
            "enable_consume_queue_ext=True",
            path=parts.root,
        )
    bits, name = parts.config.bit_map_length_consume_queue_ext, "mapped_file_size_consume_queue_ext_bytes"
    file_bytes = parts.config.mapped_file_size_consume_queue_ext_bytes
    if not has_room_for_bitmaps(bits, file_bytes):
        raise StoreConfigError(f"the store's bitmaps of {bits} bits do not fit into its {name}={file_bytes}")
    return parts.filters


def _shown(row: GroupFilter) -> RegisteredFilter:
    return RegisteredFilter(row.group, row.topic, row.expression, None if row.born <= UNBORN else row.born)
