"""Flush of the derived files: consume queues and index, then the checkpoint's record of them, and the queues' next
offsets.

Source: DefaultMessageStore.FlushConsumeQueueService, StoreCheckpoint. The log is made durable first, so nothing on disk
points behind its end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.files.consume_queue import ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.files.offsets import QueueOffsets, saved_position, write_queue_offsets
from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.progress import Progress
from cystore.engine.log.flush import SYNC_FAILED, Flusher
from cystore.errors import StoreLockedError, StoreTimeoutError, SyncFailedError
from cystore.system.threads.reentry import undisturbed

log = logging.getLogger("cystore")

WAIT_MS = 100  # between two looks, while another process flushes the queues


class DerivedFlusher:
    """Flushes queues, index and checkpoint of one store."""

    def __init__(
        self,
        root: Path,
        control: Control,
        queues: ConsumeQueues,
        index: IndexFiles,
        checkpoint: Checkpoint,
        log_flusher: Flusher,
        config: StoreConfig,
        room_is_gone: Callable[[], None],
    ) -> None:
        self._root, self._control, self._config = root, control, config
        self._room_is_gone = room_is_gone
        self._queues, self._index, self._checkpoint = queues, index, checkpoint
        self._log_flusher = log_flusher
        self._looked_at = -1  # `dispatched` in the turn before
        if not control.read_only and self._control.queues_flushed_ms == 0:
            self._control.queues_flushed_ms = self._control.offsets_saved_ms = _now_ms()

    def flush(self) -> None:
        """Flushes everything that is dispatched by now, and the queues' next offsets. If these cannot be saved because
        another process makes room for long, they are left to a later flush, or to the clean that needs them."""
        self.flush_dispatched()
        try:
            self.save_queue_offsets()
        except StoreLockedError as error:
            log.warning("%s: the queues' next offsets are saved later: %s", self._root, error)

    def flush_log(self) -> None:
        """Makes the log durable as far as it is appended now."""
        self._log_flusher.flush_to(self._control.log_end)

    def flush_dispatched(self) -> None:
        """Syncs queues and index, then the checkpoint's record of them. Order: log, queues, index, checkpoint. Waits
        for another process that does it. Raises StoreTimeoutError after sync_flush_timeout_ms."""
        undisturbed(self._flush_in_turn)

    def _flush_in_turn(self) -> None:
        until_s = monotonic_s() + self._config.sync_flush_timeout_ms / 1000
        wanted = self._control.dispatched
        while True:
            try:
                with self._control.held("sync", timeout_ms=WAIT_MS):
                    self._flush_dispatched()
                return
            except StoreLockedError as error:
                if self._control.index_flushed >= wanted:
                    return
                if monotonic_s() >= until_s:
                    raise StoreTimeoutError(f"queues and index are not flushed yet: {error}") from error

    def _flush_dispatched(self) -> None:
        """Under the lock "sync", which no append, read or flush of the log takes, because thousands of queues take
        long."""
        control = self._control
        position, timestamp = control.dispatched, control.dispatched_timestamp_ms
        self._log_flusher.flush_to(position)
        try:
            self._queues.flush()
            self._index.flush()
            failpoint("flush.derived_synced")
            control.queues_flushed_timestamp_ms = timestamp
            control.index_flushed = position
            self._checkpoint.logics_timestamp = max(self._checkpoint.logics_timestamp, timestamp)
            self._checkpoint.index_timestamp = max(self._checkpoint.index_timestamp, timestamp)
            if self._config.message_index_enable:
                self._checkpoint.index_watermark = position
            failpoint("flush.checkpoint_stored")
        except SyncFailedError as error:
            self._log_flusher.poison(error)
        self._log_flusher.sync_checkpoint()
        self._control.queues_flushed_ms = _now_ms()

    def save_queue_offsets(self) -> None:
        """Writes config/queueOffset.json: a queue without messages continues to count from its offset there.

        Everything that it counts is durable in the log before: otherwise a queue could begin with a gap after a power
        cut. An older table does not replace a newer one.
        """
        undisturbed(self._save_queue_offsets)

    def _save_queue_offsets(self) -> None:
        control = self._control
        position = control.log_end
        queues = [control.queue(slot) for slot in range(control.queue_count)]
        self._log_flusher.flush_to(control.log_end)
        with control.held("clean", timeout_ms=self._config.sync_flush_timeout_ms):
            newer = (
                position < saved_position(self._root) <= control.wrote
            )  # a position beyond the log's end: the log was cut since
            if (
                queues
                and not newer
                and not write_queue_offsets(self._root, QueueOffsets.of(queues, position))
            ):
                self._room_is_gone()
            self._control.offsets_saved, self._control.offsets_saved_ms = position, _now_ms()

    @property
    def idle(self) -> bool:
        """Whether all that is dispatched is durable."""
        return self._control.index_flushed >= self._control.dispatched

    def run_once(self) -> Progress:
        """One turn: flushes if the interval is over and something was dispatched since. While more is dispatched,
        less than flush_consume_queue_least_pages in every queue wait for the thorough interval. One process does it
        at a time, and skips recent work of another one."""
        control, config = self._control, self._config
        behind = control.dispatched - control.index_flushed
        if control.flags & SYNC_FAILED or not behind:
            return Progress(0)
        quiet, self._looked_at = self._looked_at == control.dispatched, control.dispatched
        since_ms = _now_ms() - control.queues_flushed_ms
        if since_ms < config.flush_interval_consume_queue_ms:
            return Progress(behind)
        old = quiet or since_ms >= config.flush_consume_queue_thorough_interval_ms
        if not old and not self._queues.any_dirty(config.flush_consume_queue_least_pages):
            return Progress(behind)
        with control.held_if_free("sync") as turn:
            if not turn.held:
                return Progress(0)
            self._flush_dispatched()
        if _now_ms() - control.offsets_saved_ms >= config.flush_consume_queue_thorough_interval_ms:
            self.save_queue_offsets()
        return Progress(behind)


def _now_ms() -> int:
    """A clock that all processes of this boot share."""
    return int(monotonic_s() * 1000)
