"""The parameters of the API, once: how each is read, and how the description of the API names it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

from starlette.datastructures import QueryParams

from cystore.operate.command import duration_of, moment_of
from cystore.web.problems import bad

LIMIT_MOST, CHARS_MOST = 1000, 1000
QUEUE_MOST = (1 << 31) - 1
WITHIN_MOST_MS = 30_000
TIME_FORM = "RFC 3339, seconds or ms since 1970, or an age: 90s, 15m, 2h, 7d, 2w"


@dataclass(frozen=True)
class Parameter:
    """One parameter of a query. `read` raises ValueError."""

    name: str
    help: str
    read: Callable[[str], Any] = str
    default: Any = None
    schema: tuple[tuple[str, Any], ...] = (("type", "string"), ("minLength", 1), ("maxLength", CHARS_MOST))
    example: str = ""


def _text(text: str) -> str:
    if not 0 < len(text) <= CHARS_MOST:
        raise ValueError(f"must have 1 to {CHARS_MOST} characters")
    return text


def _number(text: str, most: int, least: int = 1) -> int:
    if not (text.isascii() and text.isdecimal() and len(text) <= 10 and least <= int(text) <= most):
        raise ValueError(f"{text!r} is not a number from {least} to {most}")
    return int(text)


def _step(text: str) -> int:
    try:
        return _number(text, 10**9) * 1000
    except ValueError:
        return max(1000, duration_of(text))


def _span_ms(text: str) -> int:
    digits = text.removesuffix("ms")
    if digits != text and digits.isascii() and digits.isdecimal() and len(digits) < 10:
        return int(digits)
    return duration_of(text)


NAME = Parameter("name", "only tasks of this name", _text, example="shop.charge")
STATE = Parameter(
    "state",
    "only tasks in this state: Celery's (FAILURE), or an event's (TIMED_OUT)",
    _text,
    example="FAILURE",
)
WORKER = Parameter("worker", "only tasks of this worker (its node name)", _text, example="celery@host1")
SINCE = Parameter("since", f"not before this time: {TIME_FORM}", moment_of, example="2h")
UNTIL = Parameter("until", f"not after this time: {TIME_FORM}", moment_of, example="2026-01-31T12:00:00Z")
TEXT = Parameter(
    "text",
    "only tasks with this text in their name, arguments, exception or traceback, or at the beginning of their id",
    _text,
    example="order-17",
)
LIMIT = Parameter(
    "limit",
    "the most rows of a page",
    lambda text: _number(text, LIMIT_MOST),
    100,
    (("type", "integer"), ("minimum", 1), ("maximum", LIMIT_MOST)),
)
AFTER = Parameter("after", "the `next` of the page before", _text)
STEP = Parameter(
    "step", "the width of a bucket: seconds, or a length of time (90s, 15m, 2h)", _step, example="60"
)

WITHIN = Parameter(
    "within",
    "end a page after this time, perhaps with fewer rows; its `next` continues: 400ms, 2s",
    lambda text: min(max(_span_ms(text), 1), WITHIN_MOST_MS) / 1000,
    example="400ms",
)
STORE = Parameter("store", "the path of the store, as /api/stores names it; the first one by default", _text)
QUEUE = Parameter(
    "queue",
    "only messages of this queue of the topic",
    lambda text: _number(text, QUEUE_MOST, 0),
    None,
    (("type", "integer"), ("minimum", 0), ("maximum", QUEUE_MOST)),
)

TASKS = (NAME, STATE, WORKER, SINCE, UNTIL, TEXT, LIMIT, AFTER, WITHIN)
STATS = (SINCE, UNTIL, STEP)
FAILURES = (NAME, SINCE, LIMIT)
SPAN = (SINCE,)
WAITING = (NAME, LIMIT, AFTER)
MESSAGES = (STORE, QUEUE, LIMIT, AFTER)


def read(query: QueryParams, known: Iterable[Parameter]) -> dict[str, Any]:
    """The values of the query. Raises Problem 400, which names the parameter."""
    by_name = {one.name: one for one in known}
    unknown = [name for name in query if name not in by_name]
    if unknown:
        names = ", ".join(by_name) or "none"
        raise bad(f"unknown parameter {unknown[0]!r}: this address takes {names}")
    values: dict[str, Any] = {name: one.default for name, one in by_name.items()}
    for name in query:
        given = query.getlist(name)
        if len(given) > 1:
            raise bad(f"{name}: give it once")
        if given[0] == "":
            continue  # an empty field of a form asks for nothing
        values[name] = _value(by_name[name], given[0])
    return values


def _value(parameter: Parameter, text: str) -> Any:
    try:
        return parameter.read(text)
    except ValueError as error:
        raise bad(f"{parameter.name}: {error}") from None
