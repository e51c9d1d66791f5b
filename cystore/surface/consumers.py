"""The consumers of a store, as methods of MessageStore."""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.filters.given_filter import Filter
from cystore.system.threads.reentry import undisturbed

if TYPE_CHECKING:
    from cystore.consumers.consumer import Consumer
    from cystore.consumers.filters import Filters
    from cystore.consumers.groups import Groups


class StoreConsumers(StoreHandle):
    """The methods of `MessageStore` for consumer groups. Its modules are imported at their first use."""

    __slots__ = ()

    @property
    def groups(self) -> Groups:
        """The consumer groups of the store: offsets, lag, reset, pull."""
        from cystore.consumers.groups import Groups

        self._attached()  # raises StoreClosedError
        return Groups(self)

    @property
    def filters(self) -> Filters:
        """The registered filters of consumer groups: add, remove, list."""
        from cystore.consumers.filters import Filters

        self._attached()  # raises StoreClosedError
        return Filters(self)

    def consumer(
        self,
        group: str,
        topics: str | Sequence[str],
        *,
        tags: str | None = None,
        filter: Filter | None = None,
        begin: str | int = "first",
        invisible_ms: int = 60_000,
        max_reconsume_times: int = 16,
        max_in_flight: int = 1000,
    ) -> Consumer:
        """A consumer of a group: it gets the messages of its share of the topics' queues, and acknowledges each.

        `cystore.Consumer` explains the arguments. Raises StoreConfigError, StoreNotWritableError.
        """
        from cystore.consumers.consumer import Consumer

        make = partial(
            Consumer, self, group, topics, tags=tags, filter=filter, begin=begin, invisible_ms=invisible_ms,
            max_reconsume_times=max_reconsume_times, max_in_flight=max_in_flight,
        )  # fmt: skip
        return undisturbed(make)


def taken_up_to(parts: weakref.ref[Attachment], topic: str) -> int | None:
    """For cleaning, which is below consumer groups: the offset of the plugin's group in its topic."""
    from cystore.consumers.groups import own_offset

    there = parts()
    return None if there is None else own_offset(there, topic)
