"""SqlFilter: a compiled SQL92 expression over the properties of messages."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache

from cystore._native.filters.program import FilterProgram
from cystore._native.record.argument_checks import any_text
from cystore._native.record.message import Message
from cystore.errors import FilterError

EXPRESSION_CHARS_MAX = 65_536
CACHED = 128


class SqlFilter:
    """A SQL92 expression over the properties of messages, compiled once. Give it to `get` or `scan`, or call it with a
    message.

    ``SqlFilter("a > 3 AND region IN ('north', 'south')")``. Properties are text; a comparison with a number parses the
    text as Java does. A property that a message does not have is NULL. If a property cannot be compared, the message
    does not match. Keys and tags are the properties KEYS and TAGS. Source: rocketmq-filter, SqlFilter.

    Raises FilterError, whose `position` is the place of the error in the expression.
    """

    __slots__ = ("expression", "program")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.program = _program(checked(expression))

    def __call__(self, message: Message) -> bool:
        """Whether a stored message matches."""
        return self.program.matches_message(message)

    def matches(self, properties: Mapping[str, str]) -> bool:
        """Whether a message with these properties matches. A property without a value is NULL, as in a store."""
        return self.program.matches(stored(properties))

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SqlFilter) and other.expression == self.expression

    def __hash__(self) -> int:
        return hash(self.expression)

    def __reduce__(self) -> tuple[type[SqlFilter], tuple[str]]:
        return SqlFilter, (self.expression,)


def checked(expression: object) -> str:
    """The expression, checked: text that is not too long. Raises FilterError."""
    text = any_text("filter", expression, FilterError)
    if len(text) > EXPRESSION_CHARS_MAX:
        raise FilterError(
            f"filter: {len(text)} characters, at most {EXPRESSION_CHARS_MAX}", position=EXPRESSION_CHARS_MAX
        )
    return text


@lru_cache(CACHED)
def _program(expression: str) -> FilterProgram:
    try:
        from cystore.filters.parser import parse
    except ModuleNotFoundError as error:
        if error.name != "lark":
            raise
        raise ImportError("SQL filters need lark: pip install 'cystore[filter]'") from error
    from cystore.filters.nodes import Steps

    steps = Steps()
    parse(expression).write(steps)
    return steps.program()


def stored(properties: Mapping[str, str]) -> bytes:
    """Properties in the bytes of a record."""
    try:
        pairs = [(any_text("name of a property", name, FilterError), any_text(name, value, FilterError))
                 for name, value in properties.items()]  # fmt: skip
    except AttributeError:
        raise FilterError(f"properties: must be a mapping, not {type(properties).__name__}") from None
    for name, value in pairs:
        if set(name + value) & {"\x01", "\x02"} or not name:
            raise FilterError(f"properties: {name!r} cannot be stored")
    return "\x02".join([f"{name}\x01{value}" for name, value in pairs]).encode("utf-8", "replace")
