"""The damaged ranges of a log, as they are now: all attached processes see a range that one of them finds."""

from __future__ import annotations

from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.manifest import Manifest


class KnownDamage:
    """A view on the manifest. `ranges` is an immutable list: a reader that keeps it has a consistent one."""

    def __init__(self, manifest: Manifest) -> None:
        self._manifest = manifest

    @property
    def ranges(self) -> DamagedRanges:
        """All damaged ranges that are known."""
        return self._manifest.snapshot().damaged_ranges

    def covering(self, position: int) -> tuple[int, int] | None:
        """The damaged range that holds a position."""
        return self.ranges.covering(position)

    def add(self, begin: int, end: int, reason: str, copy: str) -> None:
        """Lists [begin, end) as damaged, durably, for all processes. Raises StoreIOError; StoreFullError for a list
        that outgrows its room on a full disk."""
        self._manifest.add_damage(begin, end, reason, copy)
