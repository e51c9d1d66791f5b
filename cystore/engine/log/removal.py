"""Cleaning of the log: unlinks expired segments, oldest first.

Source: DefaultMessageStore.CleanCommitLogService. Two differences: a segment's age is that of its newest record and not
of its file, so copying a store does not make it young; and a forced clean is off by default, because foreign files that
fill the disk must not cost messages. Segments that a user still needs stay.

The log's minimum is published under the lock "clean", which no append ever waits for; the files are unlinked after
that, under no lock. A kill leaves files below the minimum, which the next clean removes. If all processes are gone, the
log still begins with these files.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.engine.log.ages import Ages
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.store_settings import Policy
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

HOUR_MS = 3_600_000
_UNITS = ((HOUR_MS, "h"), (60_000, "min"), (1000, "s"), (1, "ms"))


class Need(NamedTuple):
    """A user needs the log from `position` on. Records older than `max_age_ms` (None: of any age) may be removed all
    the same."""

    owner: str
    position: int
    max_age_ms: int | None = None

    def keeps(self, end: int, newest_ms: int, now_ms: int) -> bool:
        """Whether a segment that ends at `end` has to stay, whose newest record is of `newest_ms`."""
        if end <= self.position:
            return False
        return self.max_age_ms is None or newest_ms > now_ms - self.max_age_ms


class LogCleaner:
    """Removes expired segments of one log. Any process may do it."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        policy: Policy,
        manifest: Manifest,
    ) -> None:
        self._control, self._commit_log, self._policy, self._manifest = control, commit_log, policy, manifest
        self.ages = Ages(control, commit_log)

    def end_of_expired(self, *, forced: bool) -> int:
        """The end of the expired part of the log, needed or not; 0 if nothing expired. Forced: the oldest segment,
        however young it is."""
        return max(
            (base + self._commit_log.file_bytes for base, _ in self._expired(forced=forced)), default=0
        )

    def end_of_removable(self, max_segments: int | None, needs: Iterable[Need], *, forced: bool) -> int:
        """The position up to which `remove_expired` would remove the log if `needs` were all needs."""
        return self._end(self._expired(forced=forced)[:max_segments], list(needs))[0]

    def remove_expired(
        self, max_segments: int | None, needs: Callable[[], Iterable[Need]], *, forced: bool
    ) -> int:
        """Removes expired segments that no user needs, and the leftovers of a killed clean; returns the number of
        segments. `needs()` gives the needs; it is called under the lock."""
        expired = self._expired(forced=forced)[:max_segments]
        if expired:
            undisturbed(partial(self._publish_in_turn, expired, needs))
            failpoint("clean.published")
            self._control.wake_append()  # sleeping processes end their mappings
        return self._unlink_below(self._control.min_physical_offset)

    def _publish_in_turn(self, expired: list[tuple[int, int]], needs: Callable[[], Iterable[Need]]) -> None:
        with self._control.held("clean"):
            self._publish(expired, list(needs()))

    def _expired(self, *, forced: bool) -> list[tuple[int, int]]:
        """(base, a store timestamp that is not before any of its records) of each expired segment, oldest first."""
        segments, control = self._commit_log.files, self._control
        last = min(segments.base_of(control.wrote), control.flushed)
        oldest_kept_ms = clock.expiry_ms(control) - self._policy.now().file_reserved_time_h * HOUR_MS
        expired: list[tuple[int, int]] = []
        newest_ms = 0
        for base in segments.refresh():
            end = base + segments.file_bytes
            if end > last:
                break
            if base < control.min_physical_offset:
                continue
            # A segment counts as no older than the segments before it, although the clock may have been behind.
            newest_ms = max(newest_ms, self.ages.at_or_behind_ms(end))
            if not forced and newest_ms > oldest_kept_ms:
                break
            expired.append((base, newest_ms))
            if forced:
                break  # one at a time: then look at the disk again
        return expired

    def _end(self, expired: list[tuple[int, int]], needs: list[Need]) -> tuple[int, Need | None]:
        """The end of the last segment that no user needs, and the need that keeps the next one."""
        now_ms, end = clock.expiry_ms(self._control), self._control.min_physical_offset
        for base, newest_ms in expired:
            behind = base + self._commit_log.file_bytes
            keeping = next((need for need in needs if need.keeps(behind, newest_ms, now_ms)), None)
            if keeping is not None:
                return end, keeping
            end = max(end, behind)
        return end, None

    def _publish(self, expired: list[tuple[int, int]], needs: list[Need]) -> None:
        """Moves the log's begin, under the lock, behind the last segment that no user needs."""
        end, keeping = self._end(expired, needs)
        if keeping is not None:
            log.info("%s keeps the log from %d on", keeping.owner, keeping.position)
        if end <= self._control.min_physical_offset:
            return
        for need in needs:
            if end > need.position:
                log.warning(
                    "the hold of %s from %d on is older than its limit of %s: removing the segments all the same",
                    need.owner,
                    need.position,
                    _age_text(need.max_age_ms or 0),
                )
        self._control.min_physical_offset = end

    def _unlink_below(self, minimum: int) -> int:
        """Makes each removal durable before the next one, so that a power cut leaves no gap."""
        segments = self._commit_log.files
        gone = [base for base in segments.refresh() if base + segments.file_bytes <= minimum]
        if gone and self._manifest.snapshot().log_begin < minimum:
            self._manifest.set_log_begin(
                minimum
            )  # if a first file behind that is missing, the cleaner did not remove it
            failpoint("clean.begin_entered")
        for base in gone:
            segments.remove(base)
            failpoint("clean.segment_gone")
        if gone:
            log.info("%s: removed %d files below %d", segments.directory, len(gone), minimum)
        return len(gone)


def _age_text(age_ms: int) -> str:
    """A limit of age for people, in whole units."""
    unit, name = next(one for one in _UNITS if age_ms >= one[0] or one[0] == 1)
    return f"{age_ms // unit} {name}"
