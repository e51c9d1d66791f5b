"""Transfer out of a queue of delayed messages: appends copies of them under the deliver lock.

Each copy names its source. So after a kill the next process finds in the log which messages have left
(delivery_progress.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any, NoReturn

from cystore._native.append.appender import Appender
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message, PutResult
from cystore._native.record.properties import changed_properties
from cystore.engine.log.append_policy import AppendPolicy
from cystore.errors import MessageIllegalError, StoreError
from cystore.layout import CONSTANTS, HALF_TOPIC, SCHEDULE_TOPIC
from cystore.services.delay.delivery_progress import (
    DUE,
    SOURCE,
    DeliveryProgress,
    carried_due_ms,
    source_text,
)

BATCH_MESSAGES = 256
BATCH_BYTES = 1024 * 1024
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]


class RoomNeededError(StoreError):
    """The log needs something that is made under the housekeeping lock, which comes before the deliver lock."""

    def __init__(self, make: Callable[[], Any]) -> None:
        super().__init__("the log needs room")
        self.make = make


class Room:
    """The append policy of a thread that holds the deliver lock: it asks for resources that it may not make now."""

    def __init__(self, policy: AppendPolicy) -> None:
        self._policy = policy
        self.refused, self.overwritten = policy.refused, policy.overwritten
        self.faulted_in = policy.faulted_in
        self._segment: MappedFile | None = None

    def segment_at(self, position: int) -> MappedFile:
        """The segment, if it was prepared."""
        segment, self._segment = self._segment, None  # the appender keeps it
        if segment is None or not segment.base <= position < segment.end:
            raise RoomNeededError(partial(self._prepare, position))
        return segment

    def _prepare(self, position: int) -> None:
        self._segment = self._policy.segment_at(position)

    def make_room(self, needed: int) -> NoReturn:
        """Asks for room."""
        raise RoomNeededError(partial(self._policy.make_room, needed))

    def more_queues(self) -> NoReturn:
        """Asks for queue slots."""
        raise RoomNeededError(self._policy.more_queues)


class Transfer:
    """Appends the copies. All of it happens under the deliver lock."""

    def __init__(self, progress: DeliveryProgress, appender: Appender) -> None:
        self._progress, self._appender = progress, appender
        self._room = Room(appender.policy)

    def append(
        self, messages: list[Message], *, makes_space: bool = False
    ) -> tuple[list[PutResult], RoomNeededError | None]:
        """Appends as many copies as there is room for, and returns the missing resource for the rest. After any error
        the appended copies are left to be counted; only MessageIllegalError comes before anything is written."""
        self._progress.begin()
        try:
            return self._appender.put_with(self._room, messages, makes_space=makes_space), None
        except RoomNeededError as error:
            return error.results or [], error
        except MessageIllegalError:
            self._progress.finish()
            raise

    def leave(self, batch: Iterable[tuple[int, int, Message | None]], put: int) -> None:
        """Counts the first `put` messages of a batch of (slot, queue offset, message), and the stepped-over ones
        between them: None in the place of a message."""
        for slot, queue_offset, message in batch:
            if message is not None:
                if put == 0:
                    break
                put -= 1
            self._progress.move(slot, queue_offset + 1)


def target_of(properties: Mapping[str, str]) -> tuple[str, int]:
    """Topic and queue id that a delayed message goes to. Raises ValueError."""
    topic, queue_id = properties.get("REAL_TOPIC"), properties.get("REAL_QID", "")
    if not topic:
        raise ValueError("it names no REAL_TOPIC")
    if topic in (HALF_TOPIC, SCHEDULE_TOPIC):
        raise ValueError(f"REAL_TOPIC is {topic}")
    if not (queue_id.isascii() and queue_id.isdecimal() and int(queue_id) <= 0x7FFFFFFF):
        raise ValueError(f"REAL_QID is {queue_id!r}")
    return topic, int(queue_id)


def properties_of(message: Message, **notes: str) -> bytes:
    """The properties of a waiting message, with these notes instead of those of an earlier transfer."""
    old = (SOURCE, DUE) if carried_due_ms(message) is not None else (SOURCE,)
    return changed_properties(message.properties_bytes, notes, old)


def properties_with_source(message: Message, **notes: str) -> bytes | None:
    """`properties_of` with the name of the source; None if that needs more room than properties have."""
    found = properties_of(message, **notes, **{SOURCE: source_text(message)})
    return found if len(found) <= PROPERTIES_BYTES_MAX else None
