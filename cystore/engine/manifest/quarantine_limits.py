"""Limits the folder quarantine/: removes copies that are too old, and the oldest ones when all together take too much
space.

Copies of a recently found damaged range stay, whatever space they take, so that an operator has time to repair it. So
does the newest copy of a compacted file.
"""

from __future__ import annotations

import logging
from pathlib import Path

from cystore.config import StoreConfig
from cystore.engine.files.quarantine import QuarantinedCopy, compacted_copies, quarantined_copies
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.system import files

log = logging.getLogger("cystore")

HOUR_MS = 3_600_000


def trim(root: Path, damaged: DamagedRanges, policy: StoreConfig, now_ms: int) -> int:
    """Removes the copies in quarantine/ that are older than quarantine_reserved_time_h, then the oldest ones while all
    together take more than quarantine_bytes_max on the disk. Returns the number of removed copies.

    `now_ms` is the time by which the store deletes (`clock.expiry_ms`). Files with other names stay. Any process may do
    it.
    """
    oldest_kept_ms = now_ms - policy.quarantine_reserved_time_h * HOUR_MS
    compacted = sorted(compacted_copies(root), key=lambda copy: copy.modified_ms)
    copies = sorted([*quarantined_copies(root), *compacted], key=lambda copy: copy.modified_ms)
    taken = sum(copy.allocated_bytes for copy in copies)
    removed = 0
    for copy in copies:
        too_old = copy.modified_ms <= oldest_kept_ms
        if not too_old and taken <= policy.quarantine_bytes_max:
            break  # the next copies are younger
        if any(each.found_ms > oldest_kept_ms for each in damaged.within(copy.begin, copy.end)):
            continue
        if compacted and copy == compacted[-1] and not too_old:
            continue
        _remove(
            root, copy, "it is older than quarantine_reserved_time_h" if too_old else "quarantine_bytes_max"
        )
        taken -= copy.allocated_bytes
        removed += 1
    return removed


def _remove(root: Path, copy: QuarantinedCopy, why: str) -> None:
    files.remove(copy.path(root))
    what = f"of the log from {copy.begin} on" if copy.end else "of a compacted file"
    log.warning("%s: removed, %d bytes %s (%s)", copy.path(root), copy.size_bytes, what, why)
