"""The obstacles that the kernel of `get` (QueueReader) meets, and their removal."""

from __future__ import annotations

from cystore._native.derived.queue import UnitReader
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow
from cystore.derived.dispatch.heal import QueueHealer
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.tail import MadeEntries, TailReader
from cystore.derived.reading.windows import SpareWindows
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, OffsetError

HEALED_TRIES = 5


class QueueObstacles:
    """Removes what keeps a get from going on. The kernel then looks at the queue again. `windows`: the spare windows of
    all readers."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        filters: KnownFilters | None,
        help_dispatch: DispatchHelp,
        tail: TailReader,
        healer: QueueHealer,
        windows: tuple[SpareWindows, ...],
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self._filters, self._help = filters, help_dispatch
        self._tail, self._healer, self._windows = tail, healer, windows

    def dispatch(self) -> None:
        """The queue is behind the log, and another thread or process dispatches."""
        self._help.run()

    def window(self) -> LogWindow:
        """There is no spare window."""
        return self._commit_log.window()

    def forget_cleaned(self) -> None:
        """Segments were cleaned: ends their mappings."""
        self.forget_windows()
        self._commit_log.forget_cleaned()

    def forget_windows(self) -> None:
        """Drops the segments that are kept for the next call."""
        for windows in self._windows:
            windows.clear()

    def file_of(self, slot: int, queue_offset: int) -> MappedFile | None:
        """The queue's file with an entry is not mapped."""
        return self._queues.file_of(slot, queue_offset)

    def units(self, slot: int, registered: tuple[str, str, str]) -> UnitReader | None:
        """The extended units of a queue for a group whose filter is registered. Called when the batch's entries are
        known."""
        found = None if self._filters is None else self._filters.bits_of(*registered)
        ext = None if found is None else self._queues.get(slot).ext
        return None if found is None or ext is None else UnitReader(*found, ext.file_of)

    def end_below(self, slot: int, position: int) -> int:
        """The queue offset behind a queue's last message before a log position. Its messages are in the order of the
        log."""
        return self._queues.get(slot).offset_at(position)

    def heal(self, slot: int, queue_offset: int, tries: int) -> bool:
        """A queue file is gone or wrong. True if the kernel should look again.

        First this process opens the file by its name again, because another process may have made it anew. Then the
        entries are rewritten from the log.
        """
        if tries == 0:
            self._queues.get(slot).forget(queue_offset)
            return True
        return tries < HEALED_TRIES and self._healer.heal(slot, queue_offset)

    def from_log(self, slot: int, queue_offset: int, room: int, walks: int) -> MadeEntries | None:
        """A read-only handle cannot heal a queue: makes the entries from the log, for itself. The usual walk ends
        before damage; if that did not help, the second one searches for the end of the damage."""
        if not self._control.read_only or walks > 1:
            return None
        queue = self._queues.get(slot)
        control, name = self._control, (queue.topic.encode(), queue.queue_id)
        room = max(1, min(room, queue.max_offset - queue_offset))  # a caller may ask for 2^31 messages
        if walks == 0:
            minimum = control.min_physical_offset
            try:
                made = self._tail.entries(
                    self.window(), minimum, control.wrote, minimum, name, queue_offset, room
                )
                if made.number:
                    return made
            except (OffsetError, CorruptRecordError):  # a segment is missing
                pass
        found = self._healer.entries(slot, queue_offset)
        return None if found is None else MadeEntries(None, *found, 0)

    def read_on(self, made: MadeEntries, done: int) -> None:
        """The reader has consumed `done` of the entries."""
        self._tail.go_on(made, done)

    def behind_file(self, slot: int, queue_offset: int) -> int:
        """The queue offset at which the file behind the one with an entry begins."""
        return self._queues.get(slot).next_file_offset(queue_offset)
