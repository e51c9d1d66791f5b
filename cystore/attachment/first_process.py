"""The work of the first process in a store: recovers it, builds the control block from the result of recovery,
dispatches the tail and makes all of it durable."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from cystore._native.append.appender import Appender
from cystore._native.derived.delay import Delivered
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.attachment.assemble import compose
from cystore.attachment.attachment import Attachment
from cystore.config import INT_MAX, LOG_FOLDER, StoreConfig
from cystore.derived.dispatch.known_filters import begin_filters
from cystore.derived.files.known_queues import forget_known_queues
from cystore.engine.files.log_folders import begin_log_folders
from cystore.engine.files.segments import Mode
from cystore.engine.inspect.recognize import check_outside_of_stores
from cystore.engine.log.allocate import CONTROL_NAME, HEADROOM_NAME, without_room
from cystore.engine.manifest.manifest import Facts, Manifest, look
from cystore.engine.manifest.manifest_file import FILE_NAME as MANIFEST
from cystore.engine.manifest.store_settings import effective_at, enter_settings
from cystore.engine.pool.buffers import check_memory, make_buffers
from cystore.engine.pool.replay import replay_pool
from cystore.errors import (
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
    StoreNotWritableError,
)
from cystore.ha.epochs.history import doubt_history
from cystore.ha.role import check_pooled, enter_role
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.services.retention.carry_over import carry_over
from cystore.system import files, platform
from cystore.system.file_system import FileSystem
from cystore.system.ranges import unreadable_ranges
from cystore.system.ranges.file_ranges import made_from
from cystore.system.store_lock import StoreLocks

if TYPE_CHECKING:
    from cystore.recovery.outcome import RecoveredState

log = logging.getLogger("cystore")


def recover_and_build(
    root: Path,
    config: StoreConfig,
    locks: StoreLocks,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment:
    """For the only process in the store: recovers, builds the control block, dispatches the tail, and makes all of it
    durable.

    Where a full disk does not let it, recovery gets the reserved space, and then that of expired segments. Raises
    StoreFullError if that does not help.
    """
    abort = root / ABORT_NAME
    marked = abort.exists()
    for make_room in (lend_headroom, partial(free_expired, config=config)):
        try:
            return _recover_and_build(root, config, locks, revive, progress)
        except StoreFullError as error:
            if not marked:
                files.remove(abort, durable=False)
            log.warning("%s: the disk is too full to open the store: %s", root, error)
            if not make_room(root):
                raise
    return _recover_and_build(root, config, locks, revive, progress)


def lend_headroom(root: Path) -> bool:
    """Gives the reserved space to recovery. `keep_headroom` reserves it again before anything else grows."""
    files.remove(root / HEADROOM_NAME, durable=False)
    return True


def free_expired(root: Path, config: StoreConfig, *, forcibly: bool = False) -> int:
    """For the only process in a store that a full disk does not let it open: removes the segments that a clean would
    remove; returns their number. Needs no new space. `forcibly`: the oldest segment, although it has not expired.

    The store is recovered in private memory. Only segments go whose records have entries in the files of the queues: so
    each queue continues to count from there.
    """
    from cystore.recovery.recover import recover

    if look(root).facts is None:
        return 0  # the log's begin cannot be entered in place
    config = effective_at(config, root)
    state = recover(root, config, Mode.PRIVATE, abnormal=(root / ABORT_NAME).exists(), with_index=False)
    private = Manifest.private(root, state.damaged_ranges, state.given_up)
    carry_over(root, private)
    attachment = build(root, config, Mode.PRIVATE, state, private, None, _no_appender)
    try:
        attachment.control.flushed = state.watermark
        attachment.delivered.load(writable=False)
        cleaner, segments = attachment.cleaner, attachment.commit_log.files
        end = cleaner.log.end_of_removable(1 if forcibly else None, cleaner.needs(), forced=forcibly)
        gone = [base for base in segments.refresh() if base + segments.file_bytes <= end]
        if gone:
            file_system = FileSystem(root)
            file_system.sync()  # the entries of their records are durable
            file_system.close()
            failpoint("clean.room_synced")
            Manifest.load(root, None, Facts).set_log_begin(end)
            failpoint("clean.room_begin_entered")
        for base in gone:
            files.remove(segments.path(base))
            failpoint("clean.room_segment_gone")
    finally:
        attachment.control.detach()
        attachment.checkpoint.close()
        attachment.let_mappings_go()
    if gone:
        log.warning("%s: removed %d segments below %d to open the store", root, len(gone), end)
    return len(gone)


def free_full_disk(
    root: Path, config: StoreConfig, *, elsewhere: Path | None = None, forcibly: bool = False
) -> int:
    """For an operator: makes room in a store that nobody has open, and that a full disk does not let him open. Recovers
    it, with copies of damaged bytes in the folder `elsewhere`, if one is given; removes the oldest segment `forcibly`,
    although it has not expired. Returns the number of removed segments. Raises StoreLockedError if a process has it
    open."""
    from cystore.recovery.recover import recover

    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            if not locks.try_alone():
                raise StoreLockedError("other processes have the store open", path=locks.path)
            if elsewhere is not None:
                begun = effective_at(config, root)
                recover(root, begun, Mode.WRITE, abnormal=(root / ABORT_NAME).exists(), elsewhere=elsewhere)
            return free_expired(root, config, forcibly=True) if forcibly else 0
    finally:
        locks.close()


def _no_appender() -> NoReturn:
    raise StoreNotWritableError("the store is open for a clean only")


def _recover_and_build(
    root: Path,
    config: StoreConfig,
    locks: StoreLocks,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment:
    # A process that joins others needs none of it.
    from cystore.ha.epochs.truncation import truncate_if_ordered
    from cystore.recovery.recover import recover

    files.clear_temporaries(root)
    abort = root / ABORT_NAME
    made = not (root / MANIFEST).exists()
    given, config = config, effective_at(config, root)
    check_outside_of_stores(root, [Path(name) for name in config.log_folders() if name != LOG_FOLDER])
    begin_log_folders(root, config, adopt=made)
    replayed = replay_pool(root, look(root), config, crashed=abort.exists())
    truncate_if_ordered(root, config.mapped_file_size_commit_log_bytes)
    state = recover(root, config, Mode.WRITE, abnormal=abort.exists() or replayed, progress=progress)
    failpoint("attach.recovered")
    if not abort.exists():
        files.write_whole(root, abort, b"", keep_last=False)
    failpoint("attach.marked")
    forget_known_queues(root)
    manifest = Manifest.load(
        root, None, lambda: Facts(damaged_ranges=state.damaged_ranges, given_up=state.given_up)
    )
    manifest.set_damaged_ranges(state.damaged_ranges)
    if config.transient_store_pool_enable:
        check_pooled(manifest, given)
        check_memory(  # before the setting becomes one of the store
            config.transient_store_pool_size,
            state.commit_log_file_bytes or config.mapped_file_size_commit_log_bytes,
        )
    enter_settings(
        manifest,
        config,
        new=made and state.wrote == state.min_physical_offset,
        log_file_bytes=state.commit_log_file_bytes if state.commit_log_file_bytes <= INT_MAX else 0,
        queue_file_bytes=state.consume_queue_file_bytes,
    )
    enter_role(manifest, given)
    if state.report.lost is not None or state.report.new_holes:
        doubt_history(manifest)
    carry_over(root, manifest)
    if manifest.snapshot().log_begin != state.min_physical_offset:
        manifest.set_log_begin(state.min_physical_offset)
    begin_filters(manifest, root, state.wrote, abnormal=state.report.abnormal)
    failpoint("attach.manifest")
    attachment = build(root, config, Mode.WRITE, state, manifest, locks, revive)
    failpoint("attach.built")
    try:
        finish(attachment, state, progress)
    except BaseException:
        attachment.control.detach()
        raise
    attachment.index.recovered = True
    return attachment


def build(
    root: Path,
    config: StoreConfig,
    mode: Mode,
    state: RecoveredState,
    manifest: Manifest,
    locks: StoreLocks | None,
    revive: Callable[[], Appender],
) -> Attachment:
    """Builds a new control block from the result of recovery, and the parts on top of it."""
    if mode is Mode.WRITE and state.commit_log_file_bytes > INT_MAX:
        raise StoreFormatError(
            f"the commit log's files have {state.commit_log_file_bytes} bytes; files above {INT_MAX} cannot be "
            "written, neither here nor in "
            "RocketMQ: open the store with read_only=True and copy its messages to a new one",
            path=root,
        )
    size, first = Control.size_bytes(config.max_queues), Control.first_bytes(config.max_queues)
    if mode is Mode.WRITE:
        path = root / CONTROL_NAME
        _make_control(root, path, size, first)
        memory = files.map_file(path, 0, size)
    else:
        memory = MappedFile.anonymous(0, size)
    identity = platform.identity()
    control = Control.create(
        memory,
        commit_log_file_bytes=state.commit_log_file_bytes or config.mapped_file_size_commit_log_bytes,
        consume_queue_file_bytes=state.consume_queue_file_bytes
        or config.mapped_file_size_consume_queue_bytes,
        max_hash_slot_num=config.max_hash_slot_num,
        max_index_num=config.max_index_num,
        max_queues=config.max_queues,
        **identity,
    )
    if mode is Mode.WRITE and locks is not None:
        control.enter(locks.fd)
    manifest.share(control)
    Delivered(control).set_levels(config.delay_levels_ms())
    control.min_physical_offset = state.min_physical_offset
    control.wrote = control.allocated = state.wrote
    control.dispatched = state.dispatched
    control.last_store_timestamp_ms = state.last_store_timestamp_ms
    control.last_record = state.last_record
    for topic, queue_id, dispatched, minimum, following in state.queues:
        while control.queue_count >= control.queue_capacity:
            _more_queues(root, control)
        control.add_queue(topic, queue_id, next=following, dispatched=dispatched, minimum=minimum)
    if mode is Mode.WRITE and config.transient_store_pool_enable:
        make_buffers(root, manifest.snapshot().store_id, control.commit_log_file_bytes, config)
        control.pool_begins(config.transient_store_pool_size)
    attachment = compose(root, config, mode, control, locks, revive, manifest)
    if mode is Mode.PRIVATE:
        attachment.index.hide(state.index_drop)
        for path, pieces in state.index_pieces.items():
            attachment.index.overwrite(path, pieces)
        for topic, queue_id, begin, end in state.queue_holes:
            attachment.queues.get(control.find_queue(topic, queue_id)).overwrite_with_holes(begin, end)
    attachment.clock.begin(config.max_clock_jump_s * 1000, state.last_store_timestamp_ms)
    attachment.clock.look()
    attachment.recovered = state
    return attachment


def _make_control(root: Path, path: Path, size: int, first: int) -> None:
    """Makes the file of the control block. The next first process makes it again, so it need not outlive a power cut.

    A full disk has no space for a new one: then the block of the last life, or `headroom`, gives its space. No moment
    passes at which another program could take it.
    """
    try:
        files.create_sized(root, path, size, first, replace=True, durable=False)
    except StoreFullError as error:
        given = (path, root / HEADROOM_NAME)
        if not any(made_from(root, source, path, size, first) for source in given):
            raise without_room(path, first) from error


def _more_queues(root: Path, control: Control) -> None:
    """Makes more slots while no other process is attached."""
    step = control.more_queue_bytes()
    if step is None:
        raise StoreFormatError(
            f"the store has more queues than max_queues = {control.max_queues}: raise it",
            path=control.file.path,
        )
    files.allocate_mapped(root / CONTROL_NAME, control.file, step[0], step[1])
    control.publish_queue_capacity(step[1])


def finish(
    attachment: Attachment, state: RecoveredState, progress: Callable[[str, int, int], None] | None
) -> None:
    """Dispatches the tail, then makes everything from the watermark on dirty again and syncs it: a sync error before
    the crash may have left pages that look clean and are not on disk."""
    control = attachment.control
    if attachment.mode is Mode.WRITE:
        control.flushed = min(state.watermark, state.wrote)
        _allocate_sparse(attachment, min(control.flushed, control.dispatched))
    try:
        if attachment.mode is Mode.WRITE:
            attachment.allocator.keep_headroom()  # before dispatch takes space
        attachment.dispatcher.run_to_end(progress)
        attachment.dispatcher.give_up_swallowed()
    except StoreFullError:
        log.warning(
            "%s: no space to dispatch the tail; it becomes readable when there is space", attachment.root
        )
    except StoreError as error:
        log.warning(
            "%s: the tail could not be dispatched and is not readable yet: %s", attachment.root, error
        )
    for slot in range(control.queue_count):
        if control.queue_next(slot) < control.queue_dispatched(slot):
            control.set_queue_next(slot, control.queue_dispatched(slot))
    if attachment.mode is not Mode.WRITE:
        control.flushed = control.wrote
        attachment.delivered.load(writable=False)
        return
    begin, end = control.flushed, state.wrote
    segments = attachment.commit_log.files
    for base in range(segments.base_of(max(begin, state.min_physical_offset)), end, segments.file_bytes):
        segment = segments.get(base)
        if segment is not None:
            first, last = max(begin, base), min(end, segment.end)
            attachment.commit_log.check_readable(first, last)
            segment.redirty(first - base, last - base)
    attachment.flusher.flush_to(end)
    if state.report.lost is not None:
        attachment.flusher.restate_watermark()
    attachment.derived_flusher.flush_dispatched()
    control.flushed = end
    attachment.delivered.load(writable=True)
    try:
        attachment.allocator.keep_headroom()
        if not state.offsets_saved:
            attachment.derived_flusher.save_queue_offsets()
            attachment.allocator.keep_headroom()
    except StoreFullError:
        log.warning("%s: the disk is full; puts are refused until there is space", attachment.root)


def _allocate_sparse(attachment: Attachment, begin: int) -> None:
    """Reserves space for the holes of a sparse copy, in the segments that are written or dispatched from now on.

    Raises StoreFullError: then nothing has changed, and the store opens when there is space.
    """
    segments, end = attachment.commit_log.files, attachment.control.wrote
    begin = max(begin, attachment.control.min_physical_offset)
    for base in range(segments.base_of(begin), end, segments.file_bytes):
        segment = segments.get(base)
        if segment is not None:
            unreadable_ranges.allocate_sparse(
                segments.path(base), segment, 0, min(end - base, segments.file_bytes)
            )
