"""Messages that the store has delivered into the queue 0 of a topic, for the group of the topic's name: whoever has the
lease of the duty takes them, one after the other.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from cystore import GetStatus, Message

if TYPE_CHECKING:
    from cystore import MessageStore

QUEUE_ID = 0


def is_there(store: MessageStore, topic: str) -> bool:
    """Whether a delivered message was not taken yet."""
    return store.groups.pull(topic, topic, QUEUE_ID, 1).status is GetStatus.FOUND


def take(
    store: MessageStore, topic: str, most: int, handle: Callable[[Message], bool]
) -> tuple[int, Message | None, bool]:
    """Handles delivered messages until `handle` says False; each counts as taken when it is handled. Returns their
    number, the message that stays, and whether more may be there. Raises the store's errors."""
    found = store.groups.pull(topic, topic, QUEUE_ID, most)
    if found.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.OFFSET_OVERFLOW_BADLY):
        store.groups.commit(topic, topic, QUEUE_ID, found.next_offset)
    done = 0
    for message in found.messages:
        if not handle(message):
            return done, message, False
        done += 1
        store.groups.commit(topic, topic, QUEUE_ID, (message.queue_offset or 0) + 1)
    return done, None, done > 0
