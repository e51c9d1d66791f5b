"""Calls of functions that a program gave, by threads of the store. A coroutine is refused: no thread awaits it."""

from __future__ import annotations

import inspect
from collections.abc import Callable

from cystore.errors import StoreConfigError


def checked_function(function: object, what: str) -> None:
    """Raises StoreConfigError for an object that cannot be called, or that would give a coroutine."""
    asynchronous = map(inspect.iscoroutinefunction, (function, getattr(function, "__call__", None)))  # noqa: B004
    if not callable(function) or any(asynchronous):
        raise StoreConfigError(f"{what}: give a function that is not async, not {type(function).__name__}")


def call(function: Callable[..., object], *arguments: object) -> None:
    """Calls the function. Raises StoreConfigError if it gives a coroutine, because then its work is not done."""
    given = function(*arguments)
    if inspect.iscoroutine(given):
        given.close()
        raise StoreConfigError(
            f"{function!r} gave a coroutine, which no thread awaits: give a function that is not async"
        )
