"""What a read-only handle reads of the log that dispatch has not entered yet. It may not dispatch, so it walks the log itself."""

from __future__ import annotations

from cystore._native import tail as kernel
from cystore._native.mapping import MappedFile
from cystore._native.queue import entry_at
from cystore._native.window import LogWindow
from cystore.derived.consume_queue import ENTRY_BYTES

QUEUES_REMEMBERED = 4096

Queue = tuple[bytes, int]


class TailReader:
    """Entries of queues that are not in their files yet. Safe for threads: a place that is forgotten only costs a longer walk."""

    def __init__(self) -> None:
        # For a queue: a queue offset, and a log position before which no record of that offset or a later one stands.
        self._places: dict[Queue, tuple[int, int]] = {}

    def entries(
        self,
        window: LogWindow,
        minimum: int,
        wrote: int,
        dispatched: int,
        queue: Queue,
        queue_offset: int,
        room: int,
    ) -> tuple[MappedFile, int, int]:
        """(file, count, reached): the entries of a queue from an offset on, in memory that looks like a consume queue file,
        and the log position that the walk came to.

        `dispatched` was read before the queue's own end. Raises OffsetError when a segment goes meanwhile.
        """
        known, position = self._places.get(queue, (-1, 0))
        if known != queue_offset or position < dispatched:
            position = dispatched
        out = MappedFile.anonymous(queue_offset * ENTRY_BYTES, room * ENTRY_BYTES)
        count, reached = kernel.entries_into(out, window, minimum, wrote, position, *queue)
        if count == 0:
            self._remember(queue, queue_offset, reached)
        return out, count, reached

    def go_on(self, queue: Queue, file: MappedFile, count: int, reached: int, done: int) -> None:
        """The reader is done with `done` of the entries in `file`: the next walk begins where the next of them leads to."""
        first = file.base // ENTRY_BYTES
        entry = entry_at(file, done * ENTRY_BYTES) if done < count else (reached, 0, 0)
        if entry is not None:
            self._remember(queue, first + done, entry[0])

    def _remember(self, queue: Queue, queue_offset: int, position: int) -> None:
        if len(self._places) >= QUEUES_REMEMBERED:
            self._places = {}
        self._places[queue] = queue_offset, position
