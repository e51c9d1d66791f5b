"""Reads of a store whose master is elected: they end at the confirmed position, below which no failover takes a record
back.

The position is that of DefaultMessageStore.getConfirmOffset; RocketMQ's dispatch stops there. Here dispatch goes on,
because the store's own decisions need the whole log (`Reader.whole`), and the readers stop. A pool of buffers bounds
readers by its commits in the same way. In a store without an election, the bound costs a look at a word of shared
memory.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cystore._native.lookup.get_result import GetResult
from cystore._native.memory.control import CONFIRMED, WROTE
from cystore._native.record.message import Message
from cystore.derived.reading.by_time import QueueState
from cystore.derived.reading.reader import Reader
from cystore.derived.reading.request import outside
from cystore.filters.given_filter import Filter
from cystore.layout import field_of
from cystore.results import GetStatus

_PLACE, _PLACE_CODEC = field_of("record", "physical_offset")


class WholeLog:
    """The reads of a reader up to the end of the log; all else is the reader's."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self.get = partial(Reader.get, reader)
        self.query = partial(Reader.query, reader, read_end=WROTE)
        self.sees = partial(Reader.sees, reader)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._reader, name)


class ConfirmedReader(Reader):
    """A reader that ends at the confirmed position while the control block says so (`confirming`): a process may have
    opened the store before it became a member of a group."""

    is_whole = False
    read_end = CONFIRMED

    @property
    def whole(self) -> Any:
        return WholeLog(self) if self._control.confirming else self

    @property
    def log_end(self) -> int:
        return self._control.readable

    @property
    def covered(self) -> int:
        return min(super().covered, self._control.readable)

    def end_of(self, slot: int) -> int:
        end, control = super().end_of(slot), self._control
        readable = control.readable
        return end if readable >= control.wrote else min(end, self._confirmed_end(slot, readable))

    def shown_ends(self) -> Callable[[int], int]:
        control, has_helped = self._control, False

        def shown_end(slot: int) -> int:
            nonlocal has_helped
            end = control.queue_end(slot)
            if control.readable >= control.wrote:
                return end
            if not has_helped:  # it may wait for another dispatcher
                has_helped = True
                self.help_dispatch()
            return min(end, self._confirmed_end(slot, control.readable))

        return shown_end

    def _shown(self, state: QueueState) -> QueueState:
        slot, minimum, maximum, following, log_minimum, wrote = state
        readable = self._control.readable
        if readable >= wrote:
            return state
        end = self._confirmed_end(slot, readable)
        return slot, minimum, min(maximum, end), min(following, end), log_minimum, readable

    def _confirmed_end(self, slot: int, readable: int) -> int:
        """The queue offset behind a queue's last confirmed message. A queue's messages are in the order of the log."""
        return self._queues.get(slot).offset_at(readable)

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        tags: str | None = None,
        filter: Filter | None = None,
        group: str | None = None,
        raw: bool = False,
    ) -> GetResult:
        """See Reader.get. The queue ends behind its last confirmed message."""
        result = super().get(
            topic, queue_id, queue_offset, max_count, tags=tags, filter=filter, group=group, raw=raw
        )
        control = self._control
        readable = control.readable
        if readable >= control.wrote:
            return result
        slot = control.find_queue(topic, queue_id)
        if slot < 0:
            return result
        end = self._confirmed_end(slot, readable)
        if result.max_offset <= end:
            return result
        if queue_offset >= end:
            beyond = outside(queue_offset, result.min_offset, end, max(end, queue_offset))
            assert beyond is not None
            if raw:
                beyond.raw, beyond.record_offsets = b"", result.record_offsets[:0]
            return beyond
        result.max_offset, result.next_offset = end, min(result.next_offset, end)
        if raw:
            _cut_raw(result, readable)
        else:
            result.messages = [message for message in result.messages if _is_below(message, readable)]
        if result.status is GetStatus.FOUND and not (result.record_offsets if raw else result.messages):
            result.status = GetStatus.NO_MATCHED_MESSAGE
        return result

    def sees(self, message: Message, slot: int = -1, queue_offset: int = -1) -> bool:
        """See Reader.sees. Only confirmed messages."""
        return super().sees(message, slot, queue_offset) and _is_below(message, self._control.readable)


def _is_below(message: Message, position: int) -> bool:
    return (message.physical_offset or 0) + (message.size_bytes or 0) <= position


def _cut_raw(result: GetResult, readable: int) -> None:
    """Leaves out the records behind a position, in the form of ``raw=True``."""
    raw, offsets = result.raw or b"", result.record_offsets
    count = next(
        (
            number
            for number, at in enumerate(offsets)
            if _PLACE_CODEC.unpack_from(raw, at + _PLACE)[0] >= readable
        ),
        len(offsets),
    )
    if count < len(offsets):
        result.raw, result.record_offsets = raw[: offsets[count]], offsets[:count]
