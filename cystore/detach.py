"""Detaching from a store: every writer makes the log durable, the last one out shuts the store down cleanly, everybody repairs what dead
owners of locks left."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from cystore._native.failpoint import failpoint
from cystore.attach import Attachment
from cystore.clock import monotonic_s
from cystore.derived.known_queues import save_known_queues
from cystore.engine.allocate import CONTROL_NAME, HEADROOM_NAME
from cystore.engine.flush import SYNC_FAILED
from cystore.engine.segments import Mode
from cystore.errors import NotDurableError, StoreError
from cystore.recovery.mark import ABORT_NAME
from cystore.system import files

log = logging.getLogger("cystore")

REPAIRED = ("dispatch", "append", "deliver")  # locks, in the order in which a detach repairs them


def detach(attachment: Attachment, begun_s: float | None = None) -> None:
    """Leaves the store. A writer makes the log durable first: those who stay may be readers, or writers without the service "flush". The
    last one out makes the rest durable, too, and removes `abort` (`_shut_down`). Everybody repairs what dead owners of locks left.
    Nothing may use the attachment any more. Somebody else's flush is waited for until sync_flush_timeout_ms after `begun_s` (default: now).

    Raises NotDurableError, after everything was let go, when a part of the store may not be on the disk.
    """
    if attachment.mode is not Mode.WRITE or attachment.locks is None:
        attachment.release()
        return
    missing: NotDurableError | None = None
    until_s = (monotonic_s() if begun_s is None else begun_s) + attachment.config.sync_flush_timeout_ms / 1000
    try:
        # Before the gate: who opens the store does not wait for the disk, nor for a stopped process that is flushing.
        unflushed = _flush_log(attachment, until_s) if attachment.control.intact else None
        with attachment.locks.gate():
            alone = attachment.locks.try_alone()
            if attachment.control.intact:
                attachment.clock.look()
            failpoint("detach.alone" if alone else "detach.others_stay")
            if not attachment.control.intact:
                log.error(
                    "%s: the control block was overwritten; the next open recovers the store", attachment.root
                )
            elif alone:
                missing = _shut_down(attachment, until_s)
            else:
                missing = unflushed
                _repair(attachment)
            failpoint("detach.done")
            attachment.forget()
    finally:
        attachment.release()
    if missing is not None:
        raise missing


def _flush_log(attachment: Attachment, until_s: float) -> NotDurableError | None:
    """Makes durable what is appended by now. Waits for whoever is flushing, up to a time. Gives what may not be durable."""
    control, wanted = attachment.control, attachment.control.wrote
    try:
        if control.flushed < wanted:
            attachment.flusher.flush_to(wanted, _left_ms(until_s))
    except StoreError as error:
        if control.flushed < wanted:
            return _not_durable(attachment, wanted, error)
        log.warning("%s: closed with an error, but the log is durable: %s", attachment.root, error)
    return None


def _left_ms(until_s: float) -> int:
    return max(int(1000 * (until_s - monotonic_s())), 0)


def _not_durable(attachment: Attachment, end: int, error: StoreError) -> NotDurableError:
    missing = NotDurableError(
        f"closed, but the log from {attachment.control.flushed} to {end} may not be on the disk: {error}",
        path=attachment.root,
    )
    missing.__cause__ = error
    return missing


def _repair(attachment: Attachment, names: Sequence[str] = REPAIRED) -> None:
    """Finishes what dead owners of locks left. A lock that a live owner holds has nothing to repair."""
    for name in names:
        with attachment.control.held_if_free(name):
            pass  # taking it has repaired it


def _shut_down(attachment: Attachment, until_s: float) -> NotDurableError | None:
    """The last one out makes the log durable first, whatever state queues and index are in; then these. `abort` goes when both are
    done: else it stays, and the next load recovers. Gives what may not be durable."""
    root, control = attachment.root, attachment.control
    try:
        _repair(attachment, ("append",))
        attachment.flusher.flush_to(control.wrote, _left_ms(until_s))
        if not control.flags & SYNC_FAILED:
            attachment.flusher.sync_checkpoint()
    except StoreError as error:
        if control.flushed >= control.wrote:
            log.warning(
                "%s: not closed cleanly, but the log is durable; the next open recovers the store: %s",
                root,
                error,
            )
            return None
        log.exception("%s: not closed cleanly; the next open recovers the store", root)
        return _not_durable(attachment, control.wrote, error)
    failpoint("detach.log_flushed")
    if not _shut_down_derived(attachment):
        return None  # all of it follows from the log
    failpoint("detach.flushed")
    files.remove(root / HEADROOM_NAME, durable=False)
    files.remove(root / CONTROL_NAME)
    failpoint("detach.control_removed")
    files.remove(root / ABORT_NAME)
    return None


def _shut_down_derived(attachment: Attachment) -> bool:
    """Dispatches the tail and makes queues, index and progress durable; False when the next load has to make up for it."""
    root = attachment.root
    try:
        attachment.flusher.check()  # a sync that failed is not repeated and believed
        _repair(attachment, ("dispatch", "deliver"))
        attachment.dispatcher.run_to_end()
        attachment.dispatcher.give_up_swallowed()
        failpoint("detach.dispatched")
        attachment.derived_flusher.flush()
        attachment.delivered.save()
        failpoint("detach.derived_flushed")
        save_known_queues(root, attachment.control, attachment.checkpoint.fields())
    except Exception:
        log.exception("%s: the log is durable; queues and index are not, and the next open mends them", root)
        return False
    return True
