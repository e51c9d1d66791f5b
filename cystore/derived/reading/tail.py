"""Reads of a read-only handle beyond the dispatched position. It may not dispatch, so it walks the log itself.

One table has the entries of all queues that dispatch has not written yet (`table`). Another has the keys of
these records (`keys`), also for searches of a handle whose dispatch stands still. If a queue's files are damaged, or
for a search by time, a separate walk makes the entries of one queue from any log position on (`entries`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from cystore._native.derived.queue import entry_at
from cystore._native.lookup import tail as kernel
from cystore._native.lookup.tail import TailKeys
from cystore._native.lookup.tail_table import TailTable
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow
from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.layout import CONSTANTS, QUEUE_ENTRY

QUEUES_REMEMBERED = 4096

SEARCHED_ENTRIES = 65_536  # entries of a queue that are made at once for a search by time
HOLE_ENTRY_SIZE = CONSTANTS["HOLE_ENTRY_SIZE"][0]

Queue = tuple[bytes, int]


class At(NamedTuple):
    """A message of a queue, and its store timestamp."""

    queue_offset: int
    ms: int


class MadeEntries(NamedTuple):
    """A `number` of entries of a queue that a walk over the log made, in memory that looks like a consume queue file;
    and the log position that the walk `reached`. `queue` is None if no later walk begins there."""

    queue: Queue | None
    file: MappedFile
    number: int
    reached: int


class TailReader:
    """Entries of queues that are not in their files yet. Safe for threads: a place that is forgotten only costs a
    longer walk."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self.table = TailTable() if control.read_only else None  # None: this process dispatches
        self.keys = TailKeys()
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
    ) -> MadeEntries:
        """The entries of a queue from an offset on. `dispatched` was read before the queue's own end. Raises
        OffsetError if a segment is removed meanwhile."""
        known, position = self._places.get(queue, (-1, 0))
        if known != queue_offset or position < dispatched:
            position = dispatched
        out = MappedFile.anonymous(queue_offset * ENTRY_BYTES, room * ENTRY_BYTES)
        count, reached = kernel.entries_into(out, window, minimum, wrote, position, *queue)
        if count == 0 and reached >= wrote:
            self._remember(queue, queue_offset, reached)
        return MadeEntries(queue, out, count, reached)

    def go_on(self, made: MadeEntries, done: int) -> None:
        """The reader has consumed `done` of the entries: the next walk begins at the record of the next one."""
        first = made.file.base // ENTRY_BYTES
        entry = entry_at(made.file, done * ENTRY_BYTES) if done < made.number else (made.reached, 0, 0)
        if made.queue is not None and entry is not None:
            self._remember(made.queue, first + done, entry[0])

    def around(
        self,
        window: LogWindow,
        bounds: tuple[int, int, int],
        queue: Queue,
        begin: int,
        timestamp_ms: int,
        ms_of: Callable[[int, int], int | None],
    ) -> tuple[At | None, At | None]:
        """The last message of a queue before a time, and the first one at or after it, from the queue offset `begin`
        on.

        `bounds`: the log's minimum, its wrote position, and the dispatched position, which was read before the
        queue's own end. `ms_of(physical offset, size)` is a record's store timestamp. Raises OffsetError if a segment
        is removed meanwhile.
        """
        earlier: At | None = None
        while True:
            made = self.entries(window, *bounds, queue, begin, SEARCHED_ENTRIES)
            if made.number == 0:
                return earlier, None
            rows = list(QUEUE_ENTRY.iter_unpack(made.file.read(0, made.number * ENTRY_BYTES)))
            numbers = [number for number, (_, size, _) in enumerate(rows) if size != HOLE_ENTRY_SIZE]

            def time_of(number: int, rows: list[tuple[int, int, int]] = rows) -> int:
                return ms_of(*rows[number][:2]) or 0

            split = bisect_left(numbers, timestamp_ms, key=time_of)
            if split:
                earlier = At(begin + numbers[split - 1], time_of(numbers[split - 1]))
            if split < len(numbers):
                return earlier, At(begin + numbers[split], time_of(numbers[split]))
            self.go_on(made, made.number)
            begin += made.number

    def _remember(self, queue: Queue, queue_offset: int, position: int) -> None:
        if len(self._places) >= QUEUES_REMEMBERED:
            self._places = {}
        self._places[queue] = queue_offset, position
