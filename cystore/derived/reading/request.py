"""The request of a read in the kernels' form."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from cystore._native.derived.queue import TagFilter
from cystore._native.filters.program import FilterProgram
from cystore._native.record.argument_checks import any_text
from cystore._native.record.message import Message
from cystore.filters.contains import Contains
from cystore.filters.given_filter import Filter, chosen
from cystore.filters.sql import SqlFilter


class QueueState(NamedTuple):
    """A queue in its slot of the control block: the queue offsets of its first message, behind its last entry, and
    behind its last message; and the bounds of the log."""

    slot: int
    minimum: int
    dispatched: int
    following: int
    log_minimum: int
    wrote: int


class Wanted(NamedTuple):
    """The messages that a reader wants: they pass each part that is not None. `registered`: the group, topic and
    expression of `program`, if a group reads; bitmaps may spare a look at the message then."""

    tags: TagFilter | None = None
    program: FilterProgram | None = None
    predicate: Callable[[Message], Any] | None = None
    registered: tuple[str, str, str] | None = None


ALL = Wanted()


def wanted(tags: str | None, filter: Filter | None) -> Wanted:
    """The messages that a tag expression and a filter let through. Raises MessageIllegalError, FilterError."""
    by_tags = None if tags is None else _tags(any_text("tags", tags))
    if filter is None:
        return ALL if by_tags is None else Wanted(by_tags)
    program, call = chosen(filter)
    return Wanted(by_tags, program, call)


def wanted_by(group: str, topic: str, tags: str | None, filter: Filter | None) -> Wanted:
    """`wanted` for a group that reads a topic."""
    choice = wanted(tags, filter)
    if choice.program is None or isinstance(filter, Contains):  # no bitmap knows what a body contains
        return choice
    expression = filter.expression if isinstance(filter, SqlFilter) else filter
    assert isinstance(expression, str)
    return choice._replace(registered=(group, topic, expression))


def _tags(expression: str) -> TagFilter | None:
    """The filter of a tag expression. None: all messages."""
    return None if expression in ("", "*") else _tag_filter(expression)


@lru_cache(256)
def _tag_filter(expression: str) -> TagFilter:
    return TagFilter(expression)


def stored_topic(topic: str) -> bytes:
    """A topic as stored; an impossible topic matches no message."""
    return encoded(any_text("topic", topic))


@lru_cache(1024)
def encoded(topic: str) -> bytes:
    """A text as stored, lone surrogates and all."""
    return topic.encode("utf-8", "surrogatepass")
