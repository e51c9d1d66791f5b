"""The request of a read in the kernels' form, and the answer for an offset without an entry."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple

from cystore._native.derived.queue import TagFilter
from cystore._native.filters.program import FilterProgram
from cystore._native.lookup.get_result import GetResult
from cystore._native.record.argument_checks import any_text
from cystore._native.record.message import Message
from cystore.errors import CorruptRecordError, OffsetError
from cystore.filters.given_filter import Filter, chosen
from cystore.filters.sql import SqlFilter
from cystore.results import GetStatus


class Wanted(NamedTuple):
    """The messages that a reader wants: they pass each part that is not None. `registered`: the group, topic and
    expression of `program`, if a group reads; bitmaps may spare a look at the message then."""

    tags: TagFilter | None = None
    program: FilterProgram | None = None
    predicate: Callable[[Message], Any] | None = None
    registered: tuple[str, str, str] | None = None


ALL = Wanted()


class CallableError(Exception):
    """Carries an error of a reader's callable past code that would take it for an error of the store."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def wanted(tags: str | None, filter: Filter | None) -> Wanted:
    """The messages that a tag expression and a filter let through. Raises MessageIllegalError, FilterError."""
    by_tags = None if tags is None else _tags(any_text("tags", tags))
    if filter is None:
        return ALL if by_tags is None else Wanted(by_tags)
    program, call = chosen(filter)
    return Wanted(by_tags, program, None if call is None else _errors_of_callable(call))


def wanted_by(group: str, topic: str, tags: str | None, filter: Filter | None) -> Wanted:
    """`wanted` for a group that reads a topic."""
    choice = wanted(tags, filter)
    if choice.program is None:
        return choice
    expression = filter.expression if isinstance(filter, SqlFilter) else filter
    assert isinstance(expression, str)
    return choice._replace(registered=(group, topic, expression))


def _errors_of_callable(call: Callable[[Message], Any]) -> Callable[[Message], Any]:
    """Wraps the callable so that only the caller of `get` handles its errors: a file that the callable misses is not a
    file that the batch misses."""

    def ask(message: Message) -> Any:
        try:
            return call(message)
        except (OffsetError, CorruptRecordError) as error:
            raise CallableError(error) from None

    return ask


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


def outside(queue_offset: int, minimum: int, maximum: int, following: int) -> GetResult | None:
    """The answer for an offset without an entry. `following` is the next queue offset to be given out: lower offsets
    are acknowledged, and get their entries when dispatch has caught up."""
    following = max(maximum, following)
    if following == 0:
        return GetResult(GetStatus.NO_MESSAGE_IN_QUEUE)
    if queue_offset < minimum:
        return GetResult(GetStatus.OFFSET_TOO_SMALL, [], minimum, minimum, maximum)
    if maximum <= queue_offset <= following:
        return GetResult(GetStatus.OFFSET_OVERFLOW_ONE, [], queue_offset, minimum, maximum)
    if queue_offset > maximum:
        # RocketMQ starts over if nothing was removed yet.
        next_offset = following if minimum else 0
        return GetResult(GetStatus.OFFSET_OVERFLOW_BADLY, [], next_offset, minimum, maximum)
    return None
