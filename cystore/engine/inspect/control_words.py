"""Three positions of a live store, read from its control block without an attachment.

They stand at the places that layout 2 gave them, and no later layout moves them. So a reader of any version can read
the end of a running store's log. The files alone do not contain it: a complete record may not be committed yet.
"""

from __future__ import annotations

import struct
from pathlib import Path
from typing import NamedTuple

from cystore.engine.log.allocate import CONTROL_NAME
from cystore.layout import CONTROL_FIELDS, CONTROL_LOCKS_AT, CONTROL_MAGIC
from cystore.system import files

FIRST_LAYOUT = 2  # the first one that has them there
_AT = {field.name: at for field, at in CONTROL_FIELDS}
_SHAPE = struct.Struct("=qqIII")  # from commit_log_file_bytes to max_queues


class Words(NamedTuple):
    """Each control block has another `generation`. The block is not locked, so the words are from different moments and
    `dispatched` may be beyond `wrote`. Then all below `wrote` is dispatched."""

    generation: int
    wrote: int
    dispatched: int
    minimum: int
    commit_log_file_bytes: int
    consume_queue_file_bytes: int
    max_hash_slot_num: int
    max_index_num: int
    max_queues: int


def read_words(root: Path) -> Words | None:
    """The words of a store's control block, of any layout from FIRST_LAYOUT on; None without a block."""
    data = files.read_if_there(root / CONTROL_NAME, first=CONTROL_LOCKS_AT)
    if data is None or len(data) < CONTROL_LOCKS_AT or _word(data, "magic") != CONTROL_MAGIC:
        return None
    return Words(
        _word(data, "generation"),
        _word(data, "wrote"),
        _word(data, "dispatched"),
        _word(data, "min_physical_offset"),
        *_SHAPE.unpack_from(data, _AT["commit_log_file_bytes"]),
    )


def _word(data: bytes, name: str) -> int:
    (value,) = struct.unpack_from("=Q", data, _AT[name])
    return int(value)
