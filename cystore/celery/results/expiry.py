"""Expiry of results: `result_expires` and `result_failure_expires`, checked by every reader.

Expiry itself writes and removes nothing. Expired bytes leave with their segment, when the store cleans.
"""

from __future__ import annotations

from typing import NamedTuple

from celery import states

from cystore import Message
from cystore.clock import now_ms


class Expiry(NamedTuple):
    """The time for which records are valid after they were stored, in seconds; None or 0 is for ever."""

    seconds: float | None
    failure_seconds: float | None

    def until_ms(self, tag: str) -> int | None:
        """The time until which a record that is stored now is valid; None is for ever."""
        seconds = self.failure_seconds if tag == states.FAILURE else self.seconds
        return now_ms() + int(seconds * 1000) if seconds else None

    def is_valid(self, message: Message) -> bool:
        """True while a record is valid."""
        seconds = self.failure_seconds if message.tags == states.FAILURE else self.seconds
        stored_ms = message.store_timestamp_ms
        return not seconds or stored_ms is None or now_ms() < stored_ms + seconds * 1000
