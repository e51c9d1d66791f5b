"""Turns a caller's filter into the form that readers use."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from cystore._native.filters.program import FilterProgram
from cystore._native.record.message import Message
from cystore.errors import FilterError
from cystore.filters.contains import Contains
from cystore.filters.sql import SqlFilter

Filter = str | SqlFilter | Contains | Callable[[Message], Any]


def chosen(filter: Filter) -> tuple[FilterProgram | None, Callable[[Message], Any] | None]:
    """The program of an expression, or the callable. Raises FilterError."""
    if isinstance(filter, str):
        return SqlFilter(filter).program, None
    if isinstance(filter, (SqlFilter, Contains)):
        return filter.program, None
    if not callable(filter):
        raise FilterError(
            f"filter: must be an expression, a SqlFilter or a callable, not {type(filter).__name__}"
        )
    return None, filter


def predicate(filter: Filter) -> Callable[[Message], Any]:
    """The filter as a callable. Raises FilterError."""
    program, call = chosen(filter)
    return call if program is None else program.matches_message  # type: ignore[return-value]
