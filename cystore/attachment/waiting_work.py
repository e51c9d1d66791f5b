"""The present work of a store, read from shared memory: a worker asks this before it does duties."""

from __future__ import annotations

from dataclasses import dataclass

from cystore import clock
from cystore.attachment.attachment import Attachment
from cystore.services.scrub_progress import SECTION, progress_of


@dataclass(frozen=True, slots=True)
class Maintenance:
    """The waiting work. Bytes are those of the log: not dispatched, not durable, dispatched but not in a durable index,
    and (`compact_bytes`) in full segments that are not compacted. `delayed`: a delayed message is due. `due_in_ms`: the
    time until the next one is due, None if none waits. `clean`: a clean has work (see `Cleaner.is_due`). `scrub`: a
    round is not finished."""

    dispatch_bytes: int
    flush_bytes: int
    checkpoint_bytes: int
    delayed: bool
    due_in_ms: int | None
    clean: bool
    scrub: bool
    compact_bytes: int


def maintenance_of(parts: Attachment) -> Maintenance:
    """The work of an attached store. Raises StoreError if the disk cannot be read."""
    control = parts.control
    wrote, dispatched = control.wrote, control.dispatched
    due_ms = parts.scheduler.next_due_ms()
    due_in_ms = None if due_ms is None else max(due_ms - clock.now_ms(control), 0)
    scrub = progress_of(parts.manifest.snapshot().sections.get(SECTION))
    return Maintenance(
        dispatch_bytes=max(wrote - dispatched, 0),
        flush_bytes=max(wrote - control.flushed, 0),
        checkpoint_bytes=max(dispatched - control.index_flushed, 0),
        delayed=due_in_ms == 0,
        due_in_ms=due_in_ms,
        clean=parts.cleaner.is_due(),
        scrub=bool(scrub.began_ms and not scrub.ended_ms),
        compact_bytes=parts.compactor.uncovered_bytes(),
    )
