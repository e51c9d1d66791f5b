"""The failpoints: each with the life of a writer that leads there, who else is attached, and how often it may be
passed before."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
SUFFIXES = (".py", ".pyx", ".pxd", ".h")
_CALL = re.compile(r"\bfailpoint\((.*)\)")
_NAME = re.compile(r'"([a-z]+\.[a-z_]+)"')


def in_sources() -> set[str]:
    """The names that the sources give to `failpoint`."""
    found: set[str] = set()
    for path in (ROOT / "cystore").rglob("*"):
        if path.suffix in SUFFIXES:
            for arguments in _CALL.findall(path.read_text(encoding="utf-8")):
                found.update(_NAME.findall(arguments))
    return found


@dataclass(frozen=True)
class Place:
    """`company`: True when somebody else must be attached, False when nobody may be, None when it does not matter.
    `before`: a place where another writer must have been killed, because this one is on the way to its repair."""

    life: str
    passes: int = 1
    company: bool | None = None
    before: tuple[str, ...] = ()


_OFTEN, _TWICE = Place("live", 12), Place("live", 2)
_WHEN_WRITING = {
    "append.looked": _OFTEN,
    "append.one_begun": _OFTEN,
    "append.many_begun": _OFTEN,
    "append.intent": _OFTEN,
    "append.claimed": _OFTEN,
    "append.bytes_written": _OFTEN,
    "append.before_publish": _OFTEN,
    "append.published": _OFTEN,
    "append.next_set": _OFTEN,
    "append.intent_cleared": _OFTEN,
    "append.queue_added": _TWICE,
    "append.blank_intent": _TWICE,
    "append.blank_written": _TWICE,
    "append.blank_published": _TWICE,
    "control.queue_filled": _TWICE,
    "control.queue_counted": _TWICE,
    "control.bucket_read": _TWICE,
    "allocate.created": _TWICE,
    "allocate.reserved": _TWICE,
    "allocate.published": _TWICE,
    "files.made": _TWICE,
    "files.named": _TWICE,
    "files.written": _TWICE,
    "files.backup_gone": _TWICE,
    "files.replaced": _TWICE,
    "dispatch.queue_entry": _OFTEN,
    "dispatch.queue": _OFTEN,
    "dispatch.index": _OFTEN,
    "dispatch.record": _OFTEN,
    "index.end_moved": _OFTEN,
    "index.entry_written": _OFTEN,
    "index.counted": _OFTEN,
    "index.linked": _OFTEN,
    "flush.leading": _TWICE,
    "flush.synced": _TWICE,
    "flush.watermark_stored": _TWICE,
    "flush.published": _TWICE,
    "flush.derived_synced": _TWICE,
    "flush.checkpoint_stored": _TWICE,
    "checkpoint.last_record_stored": _TWICE,
    "checkpoint.checksum_stored": _TWICE,
    "lock.pending": Place("live", 300),
}
_ALONE = Place("live", company=False)
_LEAVES_ALONE = Place("live_and_leave", company=False)
_REPAIRS = Place("live", company=True, before=("append.bytes_written", "append.published", "append.next_set"))

PLACES: dict[str, Place] = {
    **_WHEN_WRITING,
    "allocate.slots_reserved": Place("many_queues"),
    "index.unlinked": Place("dispatch", company=True, before=("index.linked", "index.counted")),
    "attach.alone": _ALONE,
    "attach.recovered": _ALONE,
    "attach.marked": _ALONE,
    "attach.manifest": _ALONE,
    "attach.built": _ALONE,
    "attach.ready": _ALONE,
    "attach.shared": _ALONE,
    "attach.joining": Place("live", company=True),
    "attach.entered": Place("live", company=True),
    "detach.alone": _LEAVES_ALONE,
    "detach.log_flushed": _LEAVES_ALONE,
    "detach.dispatched": _LEAVES_ALONE,
    "detach.derived_flushed": _LEAVES_ALONE,
    "detach.flushed": _LEAVES_ALONE,
    "detach.control_removed": _LEAVES_ALONE,
    "detach.others_stay": Place("live_and_leave", company=True),
    "detach.done": Place("live_and_leave"),
    "repair.begun": _REPAIRS,
    "repair.log_mended": _REPAIRS,
    "repair.settled": _REPAIRS,
    "repair.cleared": _REPAIRS,
}
WHEN_WRITING = tuple(_WHEN_WRITING)
# Those of a store with a pool of buffers; a writer commits with each flush.
POOL_PLACES: dict[str, Place] = {
    "commit.begun": _TWICE,
    "commit.copied": _TWICE,
    "commit.published": _TWICE,
    "pool.taken": _TWICE,
    "pool.used": _TWICE,
    "pool.zeroed": _TWICE,
}
