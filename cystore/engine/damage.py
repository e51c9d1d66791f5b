"""The damaged ranges of a log, as one attached process knows them. Another process may have found more since."""

from __future__ import annotations

from pathlib import Path

from cystore import clock
from cystore.engine.holes import Hole, Holes, read_holes, write_holes
from cystore.engine.segments import Mode


class KnownDamage:
    """`holes` is replaced as a whole, never changed: a reader that holds it has a consistent list."""

    def __init__(self, root: Path, mode: Mode, holes: Holes) -> None:
        self._root, self._mode = root, mode
        self.holes = holes

    def refresh(self) -> bool:
        """Reads the list of the store again; True when it has ranges that this process did not know.

        A private attachment knows more than the disk and keeps its own list. Raises StoreFormatError.
        """
        if self._mode is Mode.PRIVATE:
            return False
        before = self.holes
        self.holes = read_holes(self._root)
        return self.holes != before

    def covering(self, position: int) -> tuple[int, int] | None:
        """The damaged range that holds a position; asks the store's list when this process knows of none."""
        found = self.holes.covering(position)
        if found is None and self.refresh():
            found = self.holes.covering(position)
        return found

    def add(self, begin: int, end: int, reason: str, copy: str) -> None:
        """Lists [begin, end) as damaged, durably, for all processes. Under the dispatch lock. Raises StoreFullError."""
        hole = Hole(begin, end, reason, copy, clock.now_ms())
        if self._mode is Mode.PRIVATE:
            self.holes = self.holes.merged([hole])
            return
        listed = read_holes(self._root).merged([hole])
        write_holes(self._root, listed)
        self.holes = listed
