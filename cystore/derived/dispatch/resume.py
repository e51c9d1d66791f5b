"""Finds the valid log behind damage that dispatch meets. The search has small steps, so that no call waits for all of
them."""

from __future__ import annotations

from cystore._native.scan import log_walk
from cystore.engine.files.quarantine import copy_name, pieces_of, put_aside
from cystore.engine.files.segments import Mode
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import OffsetError
from cystore.layout import CONSTANTS

RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]
PIECE_BYTES = 4 * 1024 * 1024  # of log searched at once; some 5 ms


class DamageSearch:
    """Finds the end of the damage at `begin`: the next valid record that stands at its own offset, or the limit of
    the search.

    Looks only at bytes below the wrote position: a running append is not damage.
    """

    def __init__(self, commit_log: CommitLog, begin: int, reason: str) -> None:
        self.begin, self.reason = begin, reason
        self.end = -1  # not found yet
        self.copy: str | None = None  # None: not copied aside yet
        self._commit_log, self._at, self._needed = commit_log, begin + 1, 0
        self._scanner = log_walk.LogWalker(check_checksum=True, follow_queues=False)

    def step(self, limit: int) -> bool:
        """Searches one piece, up to `limit`; True when the end is found."""
        log = self._commit_log.files
        if self.end < 0 and self._at >= limit:
            self.end = limit
        if self.end >= 0:
            return True
        file_end = log.base_of(self._at) + log.file_bytes
        at, until = self._at, min(file_end, limit)
        stop = min(at + max(PIECE_BYTES, self._needed), until)
        piece = self._commit_log.piece(at, stop)
        if piece is None:  # the file is missing
            if at < self._commit_log.control.min_physical_offset:
                raise OffsetError("the segment was cleaned meanwhile", path=log.directory, offset=at)
            self._at = file_end
            return False
        scanner = self._scanner
        scanner.move(at, file_end)
        found = scanner.find(piece, stop - at, at)
        self._needed = scanner.needed
        if found >= 0:
            self.end = found
        elif stop < until:
            self._at = scanner.position
        elif self._needed and scanner.position + RECORD_SIZE_MIN <= until:
            self._at, self._needed = (
                scanner.position + 1,
                0,
            )  # a record must end before the limit
        else:
            self._at = until
        return self.end >= 0

    def put_aside(self) -> None:
        """Copies the damaged bytes to quarantine/. Needs no lock, because no process writes there. Raises
        StoreFullError."""
        log = self._commit_log.files
        if log.mode is not Mode.WRITE:
            self.copy = ""
        elif self.copy is None:
            pieces = pieces_of(log.path, log.file_bytes, self.begin, self.end)
            self.copy = put_aside(log.root, pieces, copy_name(self.begin, self.end)) if pieces else ""
