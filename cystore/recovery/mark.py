"""The mark that a store was not closed: `abort` in its directory."""

from __future__ import annotations

from pathlib import Path

from cystore.engine.checkpoint import Checkpoint
from cystore.engine.segments import Mode
from cystore.system import files

ABORT_NAME = "abort"


def mark_undispatched(root: Path) -> None:
    """Marks a store as crashed with nothing dispatched: the next load goes through its whole log and enters it anew. For whoever is alone
    in it and is about to take consume queues and index away: of a store of RocketMQ's, which keeps no list of its queues, recovery would
    not miss one that a kill left without files."""
    files.write_whole(root, root / ABORT_NAME, b"", keep_last=False)
    checkpoint = Checkpoint(root, Mode.WRITE)
    checkpoint.logics_timestamp = checkpoint.index_timestamp = checkpoint.index_watermark = 0
    checkpoint.sync()
    checkpoint.close()
