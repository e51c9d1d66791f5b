"""The results of reads."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cystore._native.message import Message


class GetStatus(enum.Enum):
    """RocketMQ's GetMessageStatus."""

    FOUND = "FOUND"
    NO_MATCHED_MESSAGE = "NO_MATCHED_MESSAGE"
    MESSAGE_WAS_REMOVING = "MESSAGE_WAS_REMOVING"
    OFFSET_FOUND_NULL = "OFFSET_FOUND_NULL"
    OFFSET_OVERFLOW_BADLY = "OFFSET_OVERFLOW_BADLY"
    OFFSET_OVERFLOW_ONE = "OFFSET_OVERFLOW_ONE"
    OFFSET_TOO_SMALL = "OFFSET_TOO_SMALL"
    NO_MATCHED_LOGIC_QUEUE = "NO_MATCHED_LOGIC_QUEUE"
    NO_MESSAGE_IN_QUEUE = "NO_MESSAGE_IN_QUEUE"


@dataclass(slots=True)
class GetResult:
    """Answer of `MessageStore.get` (RocketMQ's GetMessageResult).

    `next_offset` is the offset to continue at: behind the last examined entry; the minimum if the asked offset is too
    small; the asked offset at the maximum. `behind` is True if dispatch has not entered all acknowledged messages of
    this queue yet (it stands still, or its disk is full). An acknowledged offset without an entry gives
    OFFSET_OVERFLOW_ONE, and `next_offset` is the asked one. Only ``get(raw=True)`` fills `raw` and `record_offsets`:
    all records in one buffer, and the begin of each.
    """

    status: GetStatus
    messages: list[Message] = field(default_factory=list)
    next_offset: int = 0
    min_offset: int = 0
    max_offset: int = 0
    raw: bytes | None = None
    record_offsets: Any = None
    behind: bool = False
