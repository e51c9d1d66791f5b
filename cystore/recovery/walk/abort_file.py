"""The mark that a store was not closed: `abort` in its directory."""

from __future__ import annotations

from pathlib import Path

from cystore.engine.files.checkpoint import Checkpoint
from cystore.engine.files.segments import Mode
from cystore.system import files

ABORT_NAME = "abort"


def mark_undispatched(root: Path) -> None:
    """Marks a store as crashed with nothing dispatched: the next load walks its whole log and dispatches it anew. For a
    process that is alone in the store and is about to remove consume queues and index. A store of RocketMQ's has no
    list of its queues, so without the mark recovery would not miss a queue that a kill left without files."""
    files.write_whole(root, root / ABORT_NAME, b"", keep_last=False)
    checkpoint = Checkpoint(root, Mode.WRITE)
    checkpoint.logics_timestamp = checkpoint.index_timestamp = checkpoint.index_watermark = 0
    checkpoint.sync()
    checkpoint.close()
