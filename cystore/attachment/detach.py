"""Detaching from a store: every writer makes the log durable, the last process out closes the store cleanly, and every
process repairs the work of dead lock owners."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path

from cystore._native.system.failpoint import failpoint
from cystore.attachment.attach import Attachment
from cystore.clock import monotonic_s
from cystore.derived.dispatch.known_filters import end_filters
from cystore.derived.files.known_queues import save_known_queues
from cystore.engine.files.segments import Mode
from cystore.engine.log.allocate import CONTROL_NAME, HEADROOM_NAME
from cystore.engine.log.flush import SYNC_FAILED
from cystore.errors import NotDurableError, StoreError
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.system import files

log = logging.getLogger("cystore")

SCARCE_BYTES = (
    256 * 1024 * 1024
)  # free on the disk: with less, the next open may find none, and `headroom` stays
REPAIRED = ("dispatch", "append", "deliver")  # locks, in the order in which a detach repairs them


def detach(attachment: Attachment, begun_s: float | None = None) -> None:
    """Leaves the store. A writer makes the log durable first, because the processes that stay may be readers, or
    writers without the service "flush". The last process out also makes the rest durable and removes `abort`
    (`_shut_down`). Every process repairs the work of dead lock owners. Nothing may use the attachment afterwards. The
    call waits for another process's flush until sync_flush_timeout_ms after `begun_s` (default: now).

    Raises NotDurableError, after everything was released, when a part of the store may not be on disk. The log has it
    then in one line: after a drop, or at the end of the process, nobody catches the error.
    """
    if attachment.mode is not Mode.WRITE or attachment.locks is None:
        attachment.release()
        return
    missing: NotDurableError | None = None
    _leave(attachment)
    until_s = (monotonic_s() if begun_s is None else begun_s) + attachment.config.sync_flush_timeout_ms / 1000
    try:
        # Before the gate, so that a process that opens the store does not wait for the disk, nor for a stopped process
        # that is flushing.
        unflushed = _flush_log(attachment, until_s) if attachment.control.intact else None
        attachment.await_turns()
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
            attachment.await_turns()  # an interrupted call may have begun another turn
            attachment.end_turns()
            attachment.forget()
    finally:
        attachment.release()
    if missing is not None:
        log.error("%s", missing)
        raise missing


def _leave(attachment: Attachment) -> None:
    """Lets the users of this attachment save their own state. The detach continues if that fails."""
    for save in attachment.at_leave:
        try:
            save()
        except StoreError as error:
            log.warning("%s: closing: %s", attachment.root, error)
    attachment.at_leave.clear()


def _flush_log(attachment: Attachment, until_s: float) -> NotDurableError | None:
    """Makes everything durable that is appended by now. Waits up to `until_s` for another process's flush. Returns the
    error if a part may not be durable."""
    control, wanted = attachment.control, attachment.control.log_end
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
        f"closed, but the log from {attachment.control.flushed} to {end} may not be on the disk; the next open "
        f"recovers what is there: {error}",
        path=attachment.root,
    )
    missing.__cause__ = error
    return missing


def _repair(attachment: Attachment, names: Sequence[str] = REPAIRED) -> None:
    """Repairs the work of dead lock owners. A lock with a live owner needs no repair."""
    for name in names:
        with attachment.control.held_if_free(name):
            pass  # taking the lock has repaired it


def _shut_down(attachment: Attachment, until_s: float) -> NotDurableError | None:
    """For the last process out: makes the log durable first, whatever state queues and index are in, then makes queues
    and index durable. Removes `abort` when both are done; otherwise `abort` stays, and the next open recovers. Returns
    the error if a part may not be durable."""
    root, control = attachment.root, attachment.control
    try:
        _repair(attachment, ("append",))
        attachment.flusher.flush_to(control.log_end, _left_ms(until_s))
        if not control.flags & SYNC_FAILED:
            attachment.flusher.sync_checkpoint()
            attachment.allocator.remove_files_ahead()
    except StoreError as error:
        if control.flushed >= control.log_end:
            log.warning(
                "%s: not closed cleanly, but the log is durable; the next open recovers the store: %s",
                root,
                error,
            )
            return None
        return _not_durable(attachment, control.log_end, error)
    if attachment.buffers is not None:
        attachment.buffers.remove()
    failpoint("detach.log_flushed")
    if not _shut_down_derived(attachment):
        return None  # the log alone determines queues and index
    failpoint("detach.flushed")
    if files.free_space(root)[0] >= SCARCE_BYTES:
        files.remove(root / HEADROOM_NAME, durable=False)
    elif _occupied(root / HEADROOM_NAME) < _occupied(root / CONTROL_NAME):  # it was made on a full disk
        files.remove(root / HEADROOM_NAME, durable=False)
        files.move(root / CONTROL_NAME, root / HEADROOM_NAME)
    files.remove(root / CONTROL_NAME)
    failpoint("detach.control_removed")
    files.remove(root / ABORT_NAME)
    return None


def _occupied(path: Path) -> int:
    """The bytes that a file takes on the disk; none if it is missing."""
    try:
        return path.stat().st_blocks * files.BLOCK_BYTES
    except FileNotFoundError:
        return 0


def _shut_down_derived(attachment: Attachment) -> bool:
    """Dispatches the tail and makes queues, index and progress durable. False if the next open has to repair them."""
    root = attachment.root
    try:
        attachment.flusher.check()  # a failed sync is not repeated
        _repair(attachment, ("dispatch", "deliver"))
        attachment.dispatcher.run_to_end()
        attachment.dispatcher.give_up_swallowed()
        failpoint("detach.dispatched")
        attachment.derived_flusher.flush()
        attachment.delivered.save()
        failpoint("detach.derived_flushed")
        save_known_queues(root, attachment.control, attachment.checkpoint.fields())
        end_filters(attachment.manifest, root, attachment.control)
    except Exception as error:
        log.error(
            "%s: the log is durable; queues and index are not, and the next open mends them: %s",
            root, error, exc_info=None if isinstance(error, StoreError) else error,
        )  # fmt: skip
        return False
    return True
