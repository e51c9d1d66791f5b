"""One walk over the log that stops at each place that is not as expected; a subclass judges the stops. Recovery, verify
and scrub walk this way."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

from cystore._native.record.record import STATUS_NAMES
from cystore._native.scan import log_walk
from cystore.recovery.walk.log_reader import GONE, Finder, LogReader, Walk
from cystore.recovery.walk.queue_reader import QueueReader

FIRST_ENTRIES, MORE_ENTRIES = 128, 4096
LEAST_ENTRIES, ENTRIES_HELD = 16, 1 << 21
AT_LIMIT = "the end of the range"

Key = tuple[str, int]


class LogVisitor(ABC):
    """A method for each kind of stop returns None to continue, or the reason why the walk ends here.

    A subclass enters more kinds into `_stops` if its scanner looks for more. `slots` are the numbers of the queues that
    the walk met; `_readers` has the files of those that have some.
    """

    def __init__(
        self,
        reader: LogReader,
        scanner: log_walk.LogWalker,
        *,
        check_checksum: bool = True,
        progress: Callable[[int], None] | None = None,
    ) -> None:
        self._reader, self.scanner = reader, scanner
        self._walk = Walk(reader, scanner, progress)
        self._finder = Finder(reader, check_checksum=check_checksum)
        self.slots: dict[Key, int] = {}
        self._readers: dict[int, QueueReader] = {}
        self._stops: dict[int, Callable[[], str | None]] = {
            log_walk.LIMIT: lambda: AT_LIMIT,
            log_walk.NEW_QUEUE: self._new_queue,
            log_walk.ENTRIES: self._load_entries,
            log_walk.OTHER_ENTRY: self._other_entry,
            log_walk.OUT_OF_SEQUENCE: self._out_of_sequence,
            log_walk.BLANK: self._no_next_file,
            log_walk.INVALID: lambda: self._damaged(STATUS_NAMES[scanner.reason]),
            GONE: lambda: self._damaged("no file"),
        }

    def next_stop(self) -> str | None:
        """Walks to the next stop and judges it."""
        return self._stops[self._walk.run()]()

    def go_to(self, position: int) -> None:
        """Continues behind damage."""
        self.scanner.step_over(position, self._reader.base_of(position) + self._reader.file_bytes)

    def _load_entries(self) -> str | None:
        """Gives the scanner entries of a queue. The entries of all queues together have a bound."""
        scanner, slot, wanted = self.scanner, self.scanner.slot, self.scanner.wanted
        reader = self._readers[slot]
        if wanted < reader.first:  # entries that the files do not hold any more cannot be compared
            scanner.limit_entries(slot, wanted)
            return None
        room = max(ENTRIES_HELD // len(self.slots), LEAST_ENTRIES)
        count = FIRST_ENTRIES if scanner.queue_first(slot)[0] < 0 else MORE_ENTRIES
        scanner.set_entries(slot, reader.read_some(wanted, min(count, room)), wanted)
        return None

    @abstractmethod
    def _new_queue(self) -> str | None:
        """The record belongs to a queue that the walk has not met before."""

    @abstractmethod
    def _other_entry(self) -> str | None:
        """The queue's entry is not that of the record."""

    @abstractmethod
    def _out_of_sequence(self) -> str | None:
        """The record's queue offset is not the next one."""

    @abstractmethod
    def _no_next_file(self) -> str | None:
        """A blank fills the file, and no file follows."""

    @abstractmethod
    def _damaged(self, reason: str) -> str | None:
        """No valid record begins here."""
