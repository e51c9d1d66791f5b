"""Ends a segment that has been written to for long, so that a store with few messages expires too.

RocketMQ has nothing like it. A file that ends early ends in a blank, as each file of RocketMQ does.
"""

from __future__ import annotations

from functools import partial

from cystore import clock
from cystore._native.append.append import end_segment
from cystore._native.memory import store_clock
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore.engine.log.ages import Ages
from cystore.engine.log.allocate import Allocator
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.store_settings import Policy
from cystore.engine.pool.buffers import BufferPool
from cystore.layout import BLANK_SIZE_MIN, FLAGS
from cystore.system.threads.reentry import undisturbed

FLAG_SLAVE = FLAGS["FLAG_SLAVE"][0]
HOUR_MS = 3_600_000


class Roller:
    """Rolls the log of one store over to its next segment."""

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        allocator: Allocator,
        policy: Policy,
        buffers: BufferPool | None = None,
    ) -> None:
        self._control, self._commit_log, self._allocator = control, commit_log, allocator
        self._ages = Ages(control, commit_log)
        self._policy, self._buffers = policy, buffers

    def run_once(self) -> bool:
        """Ends the segment that is written to if its first record is older than roll_interval_h. Raises
        StoreFullError."""
        base = self._commit_log.files.base_of(self._control.log_end)
        if self._control.flags & FLAG_SLAVE or not self._is_due(base):
            return False  # a slave's files end where its master's do
        self._allocator.make_room(base + self._commit_log.file_bytes + BLANK_SIZE_MIN)
        segment = self._commit_log.files.get(base)
        if segment is not None and self._buffers is not None:
            segment = self._buffers.writing(base, segment)
        if segment is None:
            return False
        return undisturbed(partial(self._end, segment))

    def is_due(self) -> bool:
        """Whether `run_once` would end a segment."""
        if self._control.flags & FLAG_SLAVE:
            return False
        return self._is_due(self._commit_log.files.base_of(self._control.log_end))

    def _end(self, segment: MappedFile) -> bool:
        with self._control.held("append"):
            return end_segment(self._control, segment)

    def _is_due(self, base: int) -> bool:
        """Whether the segment has to end, by its first readable record. A segment without a readable record does
        not."""
        if base >= self._control.wrote:
            return False
        first_ms = self._ages.first_ms(base)
        if first_ms is None:
            return False
        age_ms = clock.now_ms(self._control) - first_ms
        # A segment of a wrong clock would stay young for as long as the clock was ahead; the next one begins with the
        # right time.
        return age_ms >= self._policy.now().roll_interval_h * HOUR_MS or age_ms < -store_clock.jump_ms(
            self._control
        )
