"""The messages of one queue between the store and the program: fetched, given out, acknowledged (ProcessQueue)."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable

from cystore._native.record.message import Message
from cystore.engine.inspect.queue_offset import queue_offset_in

PUT_OFF_DOUBLINGS, PUT_OFF_MAX_S = 6, 60.0


class QueueInFlight:
    """One queue that a consumer has. `next_offset` is the offset of its next read; `committed` is the group's offset,
    as this consumer knows it.

    The group's offset is the lowest one that is not acknowledged: messages behind it may be acknowledged already, and
    come again if the process is killed now.
    """

    __slots__ = (
        "committed",
        "given",
        "has_dropped",
        "leaving",
        "next_offset",
        "put_off_times",
        "queue",
        "ready",
        "row",
        "slot",
    )

    def __init__(self, queue: tuple[str, int], row: int, slot: int, offset: int) -> None:
        self.queue, self.row, self.slot = queue, row, slot
        self.leaving = False  # another consumer gets the queue when all given messages are settled
        self.move(offset)

    def move(self, offset: int) -> None:
        """Begins anew at an offset; messages that were given out before no longer count."""
        self.ready: deque[Message] = deque()
        self.given: dict[
            int, tuple[Message, float]
        ] = {}  # by queue offset, in the order of offsets; with the deadline
        self.put_off_times: dict[
            int, int
        ] = {}  # by queue offset: how often a given message could not be sent back
        self.next_offset = offset
        self.has_dropped = False  # messages were left out, so the group's offset may move
        self.committed = offset  # last: an interrupted move is done again

    def offset_of(self, message: Message) -> int:
        """The message's queue offset in this queue, which may be a light one of it."""
        return queue_offset_in(message, *self.queue)

    def fetched(self, at: int, messages: Iterable[Message], next_offset: int) -> None:
        """Takes in messages that were read from an offset on, in order. Does nothing if a signal handler came in
        between and read them, too."""
        if self.next_offset == at:  # no handler comes between here and the call of `extend`
            self.next_offset = next_offset
            self.ready.extend(messages)

    def give(self, deadline_s: float, sees: Callable[[Message, int, int], bool]) -> Message | None:
        """The next message for the program; None if none is ready. Leaves out, as read, messages that readers of the
        queue do not get any more: `sees(message, slot, queue offset)` says so."""
        while self.ready and not self.leaving:
            message = self.ready[0]
            offset = self.offset_of(message)
            seen = sees(message, self.slot, offset)
            # A signal handler may have got it meanwhile. No handler comes between here and the call of `popleft`.
            if self.ready and self.ready[0] is message:
                if seen:
                    self.given[offset] = message, deadline_s
                else:
                    self.has_dropped = True
                self.ready.popleft()
                if seen:
                    return message
        return None

    def settle(self, offset: int) -> bool:
        """Removes a given message that is acknowledged, or that stands in another queue now. False if it is not among
        the given ones."""
        self.put_off_times.pop(offset, None)
        return self.given.pop(offset, None) is not None

    def has_given(self, offset: int, message: Message) -> bool:
        """Whether this very message was given at an offset."""
        return offset in self.given and self.given[offset][0] is message

    def leave(self) -> None:
        """From now on gives no new message."""
        self.leaving = True
        if self.ready:
            self.next_offset = self.offset_of(self.ready[0])
            self.ready.clear()

    def expired(self, now_s: float) -> list[Message]:
        """Given messages whose time is over."""
        return [message for message, deadline_s in self.given.values() if deadline_s <= now_s]

    def put_off(self, offset: int, now_s: float) -> float:
        """Puts off the next try to send a given message back: for a second, each time for twice as long, at most a
        minute. Returns the time."""
        times = self.put_off_times.get(offset, 0)
        self.put_off_times[offset] = times + 1
        wait_s = min(2.0 ** min(times, PUT_OFF_DOUBLINGS), PUT_OFF_MAX_S)
        self.given[offset] = self.given[offset][0], now_s + wait_s
        return wait_s

    @property
    def lowest(self) -> int:
        """The lowest offset that is not settled."""
        for offset in self.given:
            return offset
        return self.offset_of(self.ready[0]) if self.ready else self.next_offset
