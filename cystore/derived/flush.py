"""Flush of what follows from the log: consume queues and index, the checkpoint that speaks of them, the queues' next offsets.

Source: DefaultMessageStore.FlushConsumeQueueService, StoreCheckpoint. The log is made durable first, so nothing on disk leads
behind its end.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cystore._native.control import Control
from cystore._native.failpoint import failpoint
from cystore.clock import monotonic_s
from cystore.config import StoreConfig
from cystore.derived.consume_queue import ConsumeQueues
from cystore.derived.index import IndexFiles
from cystore.derived.offsets import QueueOffsets, read_queue_offsets, write_queue_offsets
from cystore.engine.checkpoint import Checkpoint
from cystore.engine.flush import SYNC_FAILED, Flusher
from cystore.engine.progress import Progress
from cystore.errors import StoreFormatError, StoreLockedError, SyncFailedError

log = logging.getLogger("cystore")


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
    ) -> None:
        self._root, self._control, self._config = root, control, config
        self._queues, self._index, self._checkpoint = queues, index, checkpoint
        self._log_flusher = log_flusher
        self._flushed_at = self._offsets_saved_at = monotonic_s()
        self._checkpointed = control.flushed  # flushed position when this process last synced the checkpoint

    def flush(self) -> None:
        """Everything that is dispatched by now, and the queues' next offsets; those are left to a later flush, or to the clean that
        needs them, when somebody makes room for so long that they cannot be saved."""
        self.flush_dispatched()
        try:
            self.save_queue_offsets()
        except StoreLockedError as error:
            log.warning("%s: the queues' next offsets are saved later: %s", self._root, error)

    def flush_log(self) -> None:
        """Makes the log durable as far as it is appended now."""
        self._log_flusher.flush_to(self._control.wrote)

    def flush_dispatched(self) -> None:
        """Syncs queues and index, then the checkpoint that speaks of them. Order: log, queues, index, checkpoint."""
        control = self._control
        position, timestamp = control.dispatched, control.dispatched_timestamp_ms
        self._log_flusher.flush_to(position)
        flushed = control.flushed
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
            self._checkpoint.sync()
        except SyncFailedError as error:
            self._log_flusher.poison(error)
        self._checkpointed = flushed
        self._flushed_at = monotonic_s()

    def save_queue_offsets(self) -> None:
        """Writes config/queueOffset.json: queues whose messages are all gone go on counting from there.

        What it counts is durable in the log before: else a queue that a power cut takes away would begin with a gap. An older
        table does not replace a newer one.
        """
        control = self._control
        position = control.wrote
        queues = [control.queue(slot) for slot in range(control.queue_count)]
        self._log_flusher.flush_to(control.wrote)
        with control.held("clean", timeout_ms=self._config.sync_flush_timeout_ms):
            newer = (
                position < self._saved_up_to() <= control.wrote
            )  # beyond the log's end: of a log that was cut since
            if queues and not newer:
                write_queue_offsets(self._root, QueueOffsets.of(queues, position))
        self._offsets_saved_at = monotonic_s()

    def _saved_up_to(self) -> int:
        """The log position of the table on disk, 0 where none can be read."""
        try:
            return read_queue_offsets(self._root).physical_offset
        except StoreFormatError:
            return 0  # damaged, and so is its copy: a new one is what it needs

    def run_once(self) -> Progress:
        """One look: flushes when the interval is over and something was dispatched or made durable since."""
        control, config, now = self._control, self._config, monotonic_s()
        behind = control.dispatched - control.index_flushed
        if control.flags & SYNC_FAILED or not (behind or self._checkpointed < control.flushed):
            return Progress(0)
        if (now - self._flushed_at) * 1000 >= config.flush_interval_consume_queue_ms:
            self.flush_dispatched()
            if (now - self._offsets_saved_at) * 1000 >= config.flush_consume_queue_thorough_interval_ms:
                self.save_queue_offsets()
        return Progress(behind)
