"""Cursors: where the next page of a list continues, as a word of an address."""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Sequence

INT64_MAX = (1 << 63) - 1


class CursorError(ValueError):
    """A text that is no cursor of this list."""


def word_of(numbers: Sequence[int]) -> str:
    """The cursor of some numbers."""
    text = json.dumps(list(numbers), separators=(",", ":"))
    return base64.urlsafe_b64encode(text.encode()).decode()


def numbers_of(word: str, count: int) -> list[int]:
    """The numbers of a cursor, `count` of them from 0 to INT64_MAX. Raises CursorError for another word."""
    try:
        numbers = json.loads(base64.b64decode(word.encode(), altchars=b"-_", validate=True))
        good = isinstance(numbers, list) and len(numbers) == count
        good = good and all(type(one) is int and 0 <= one <= INT64_MAX for one in numbers)
    except (ValueError, TypeError, binascii.Error, RecursionError):
        good = False
    if not good:
        raise CursorError("after: it is not a cursor of this list: give the `next` of the page before")
    return list(numbers)
