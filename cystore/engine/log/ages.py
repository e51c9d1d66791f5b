"""The ages of segments: by store timestamps of readable records, never by file times.

A record's store timestamp is never behind that of the record before it, except after a wrong clock was corrected. So no
record of a segment is younger than the first readable record behind the segment. The search steps over damage, missing
segments and timestamps ahead of the store's clock.
"""

from __future__ import annotations

from cystore import clock
from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore._native.scan import log_walk
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import CorruptRecordError, OffsetError

PIECE_BYTES = 4 << 20  # searched at once for a record behind damage


class Ages:
    """Ages of one log's segments, as one process knows them."""

    def __init__(self, control: Control, commit_log: CommitLog) -> None:
        self._control, self._commit_log = control, commit_log
        self._behind_damage: dict[int, int | None] = {}  # by base, of whole segments

    def first_ms(self, base: int) -> int | None:
        """The store timestamp of the first readable record of a segment; None if there is none."""
        try:
            return self._commit_log.read(base).store_timestamp_ms
        except (OffsetError, CorruptRecordError):
            return self._first_behind_damage(base)

    def at_or_behind_ms(self, position: int) -> int:
        """The store timestamp of the first readable record at or behind a segment's beginning that is not further ahead
        of the store's clock than a clock may jump. If there is none, that of the last appended record."""
        control, segments = self._control, self._commit_log.files
        believed_ms = clock.now_ms(control) + store_clock.jump_ms(control)
        for base in [base for base in segments.bases() if position <= base < control.wrote]:
            found = self.first_ms(base)
            if found is not None and found <= believed_ms:
                return found
        return control.last_store_timestamp_ms

    def _first_behind_damage(self, base: int) -> int | None:
        if base not in self._behind_damage:
            segment_end = base + self._commit_log.file_bytes
            found = self._search(base, min(segment_end, self._control.wrote))
            if segment_end > self._control.wrote:
                return found  # the segment is still appended to
            self._behind_damage = {
                b: ms for b, ms in self._behind_damage.items() if b >= self._control.min_physical_offset
            }
            self._behind_damage[base] = found
        return self._behind_damage[base]

    def _search(self, base: int, end: int) -> int | None:
        """Searches [base, end) of one segment for a record with the right checksum."""
        scanner, needed = log_walk.LogWalker(check_checksum=True, follow_queues=False), 0
        position = base
        while position < end:
            count = min(max(PIECE_BYTES, needed), end - position)
            piece = self._commit_log.piece(position, position + count)
            if piece is None:
                return None
            scanner.move(position, end)
            found = scanner.find(piece, count, position)
            if found >= 0:
                try:
                    return self._commit_log.read(found).store_timestamp_ms
                except OffsetError:
                    return None  # another cleaner has removed the segment meanwhile
            needed = scanner.needed
            if not needed and position + count == end:
                return None
            if scanner.position == position and count == end - position:
                return None
            position = scanner.position
        return None
