"""Transfer out of a queue of delayed messages: appends copies of them under the deliver lock.

Each copy names its source. So after a kill the next process finds in the log which messages have left
(delivery_progress.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NoReturn

from cystore._native.append.appender import Appender
from cystore._native.derived.delay import refuse_room
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message, PutResult
from cystore.engine.log.append_policy import AppendPolicy
from cystore.errors import MessageIllegalError, StoreError
from cystore.services.delay.delivery_progress import DeliveryProgress
from cystore.services.delay.timer import STEPPED_OVER

BATCH_MESSAGES = 256
BATCH_BYTES = 1024 * 1024

# Slot, queue offset and copy of a message that leaves its queue; None in the place of a copy for a message that cannot
# be delivered and is stepped over.
Leaving = tuple[int, int, Message | None]


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


class NoRoom(Room):
    """The same for `replace_one`, which meets no obstacle: then another way is taken."""

    segment_at = make_room = more_queues = staticmethod(refuse_room)  # type: ignore[assignment]


class Transfer:
    """Appends the copies. All of it happens under the deliver lock."""

    def __init__(self, progress: DeliveryProgress, appender: Appender) -> None:
        self._progress, self._appender = progress, appender
        self._room = Room(appender.policy)

    def append(
        self, messages: list[Message], *, makes_space: bool = False, together: bool = False
    ) -> tuple[list[PutResult], RoomNeededError | None]:
        """Appends as many copies as there is room for, and returns the missing resource for the rest. After any error
        the appended copies are left to be counted; only MessageIllegalError comes before anything is written."""
        self._progress.begin()
        try:
            put = self._appender.put_with(self._room, messages, makes_space=makes_space, together=together)
            return put, None
        except RoomNeededError as error:
            return error.results or [], error
        except MessageIllegalError:
            self._progress.finish()
            raise

    def leave(self, batch: Iterable[Leaving], put: Sequence[PutResult]) -> None:
        """Counts the first messages of a batch, whose copies are at the places in `put`, and the stepped-over ones
        between them."""
        ends: dict[int, int] = {}
        timed: list[tuple[int, int]] = []
        done, timer_slot = 0, self._progress.timer.slot
        for slot, queue_offset, copy in batch:
            position = STEPPED_OVER
            if copy is not None:
                if done == len(put):
                    break
                position = put[done].physical_offset
                done += 1
            if slot == timer_slot:
                timed.append((queue_offset, position))
            else:
                ends[slot] = queue_offset + 1
        if timed:
            self._progress.timer.leave_all(timed)
        for slot, end in ends.items():
            self._progress.move(slot, end)
