"""Attaching to a store: the first process recovers it and builds the control block; later processes map that block.

A reader (`read_only=True`) maps the shared files of live processes. If no process is attached, it recovers into private
memory and changes no byte on disk.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from cystore._native.append.appender import Appender
from cystore._native.derived.delay import Delivered
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.failpoint import failpoint
from cystore.attachment.assemble import compose
from cystore.attachment.attachment import Attachment as Attachment
from cystore.config import INT_MAX, StoreConfig
from cystore.derived.files.known_queues import forget_known_queues
from cystore.engine.files.segments import Mode
from cystore.engine.inspect.control_head import another_version, read_head
from cystore.engine.inspect.recognize import check_is_store, is_store
from cystore.engine.log.allocate import CONTROL_NAME, HEADROOM_NAME
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.engine.manifest.manifest_file import FILE_NAME as MANIFEST
from cystore.engine.manifest.store_settings import effective, effective_at, enter_settings
from cystore.errors import (
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreLockedError,
)
from cystore.layout import CONTROL_BYTES
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.services.retention.carry_over import carry_over
from cystore.system import files, folders, ownership, platform, unreadable_ranges
from cystore.system.other_processes import Ground
from cystore.system.store_lock import LOCK_NAME, StoreLocks

if TYPE_CHECKING:
    from cystore.recovery.walk.recovery_types import RecoveredState

log = logging.getLogger("cystore")

READER_TRIES = 20  # private recoveries of one open, while other processes come and go


def attach(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None = None,
    *,
    instead: Attachment | None = None,
) -> Attachment:
    """Opens the store at `root` for this process. Raises StoreLockedError, StoreFormatError, StorePermissionError.

    `instead` is a private view that is outdated because a process came. The new attachment continues in the same open
    directory.
    """
    with files.translated(root):
        if instead is not None:
            place = folders.held_again(instead.root)
        else:
            if not config.read_only:
                _check_directory(root, config)
            elif not root.is_dir():
                raise StoreFormatError("there is no store here", path=root)
            place = folders.held_open(root)
        try:
            if config.read_only:
                return _attach_reader(place, config, revive, progress)
            return _attach_writer(place, config, revive, progress)
        except BaseException:
            folders.let_go(place)
            raise


def _attach_writer(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment:
    platform.check_writable_file_system(root, allow_any=config.allow_any_file_system)
    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            if locks.try_alone():
                failpoint("attach.alone")
                locks.claim_directory(alone=True)
                locks.join_writers()
                attachment = _first(root, config, locks, revive, progress)
                failpoint("attach.ready")
                if not config.exclusive:
                    locks.share()
                    failpoint("attach.shared")
                    locks.claim_directory(alone=False)
                return attachment
            if config.exclusive or not locks.share():
                raise StoreLockedError("the store is open in another process", path=locks.path)
            locks.claim_directory(alone=False)
            failpoint("attach.joining")
            sole_writer = locks.try_sole_writer()
            attachment = _join(root, config, Mode.WRITE, locks, revive, sole_writer=sole_writer)
            locks.join_writers()
            return attachment
    except BaseException:
        locks.close()
        raise


def _check_directory(root: Path, config: StoreConfig) -> None:
    """Makes a missing directory. Refuses one with foreign content, or one that another user could replace."""
    group = ownership.group_id(config.group)
    if not config.create:
        _check_is_there(root)
    if not config.allow_any_owner:
        ownership.check_way(root, group)
    if root.is_dir():
        with files.translated(root):
            names = files.names(root)
        if names - {"lost+found"} and not is_store(root):
            raise StoreFormatError(
                f"the directory is not empty and is not a store (it contains {', '.join(sorted(names)[:3])})",
                path=root,
            )
        if group is not None and not names and root.stat().st_uid == os.geteuid():
            files.share(root, group)
    elif root.exists() and not root.is_dir():  # not "not exists": another process may be making it
        raise StoreFormatError("not a directory", path=root)
    else:
        files.make_root(root, group)
    if not config.allow_any_owner:
        ownership.check_store(root, group)


def _check_is_there(root: Path) -> None:
    """For create=false: an empty directory may be the mount point of a disk that is not mounted."""
    if not root.is_dir() or not files.names(root) - {"lost+found"}:
        raise StoreFormatError(
            "there is no store here, and create=false forbids making one: the directory was moved or deleted, or its disk is not "
            "mounted; to make a new store, open with create=true",
            path=root,
        )


# ------------------------------------------------------------------------------------------------ first in


def _first(
    root: Path,
    config: StoreConfig,
    locks: StoreLocks,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment:
    """For the only process in the store: recovers, builds the control block, dispatches the tail, and makes all of it
    durable."""
    from cystore.recovery.recover import recover  # a process that joins others needs none of it

    files.clear_temporaries(root)
    for given_back in (
        HEADROOM_NAME,
        CONTROL_NAME,
    ):  # on a full disk this makes room for the new control block
        files.remove(root / given_back, durable=False)
    abort = root / ABORT_NAME
    made = not (root / MANIFEST).exists()
    config = effective_at(config, root)
    state = recover(root, config, Mode.WRITE, abnormal=abort.exists(), progress=progress)
    failpoint("attach.recovered")
    if not abort.exists():
        files.write_whole(root, abort, b"", keep_last=False)
    failpoint("attach.marked")
    forget_known_queues(root)
    manifest = Manifest.load(root, None, lambda: Facts(holes=state.holes, given_up=state.given_up))
    manifest.set_holes(state.holes)
    enter_settings(
        manifest,
        config,
        new=made and state.wrote == state.min_physical_offset,
        log_file_bytes=state.commit_log_file_bytes if state.commit_log_file_bytes <= INT_MAX else 0,
        queue_file_bytes=state.consume_queue_file_bytes,
    )
    carry_over(root, manifest)
    if manifest.snapshot().log_begin != state.min_physical_offset:
        manifest.set_log_begin(state.min_physical_offset)
    failpoint("attach.manifest")
    attachment = _build(root, config, Mode.WRITE, state, manifest, locks, revive)
    failpoint("attach.built")
    try:
        _finish(attachment, state, progress)
    except BaseException:
        attachment.control.detach()
        raise
    attachment.index.recovered = True
    return attachment


def _build(
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
        files.create_sized(root, path, size, first, replace=True)
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


def _finish(
    attachment: Attachment, state: RecoveredState, progress: Callable[[str, int, int], None] | None
) -> None:
    """Dispatches the tail, then makes everything from the watermark on dirty again and syncs it: a sync error before
    the crash may have left pages that look clean and are not on disk."""
    control = attachment.control
    if attachment.mode is Mode.WRITE:
        control.flushed = min(state.watermark, state.wrote)
        _fill_holes(attachment, min(control.flushed, control.dispatched))
    try:
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
        if not state.offsets_saved:
            attachment.derived_flusher.save_queue_offsets()
        attachment.allocator.keep_headroom()
    except StoreFullError:
        log.warning("%s: the disk is full; puts are refused until there is space", attachment.root)


def _fill_holes(attachment: Attachment, begin: int) -> None:
    """Reserves space for the holes of a sparse copy, in the segments that are written or dispatched from now on.

    Raises StoreFullError: then nothing has changed, and the store opens when there is space.
    """
    segments, end = attachment.commit_log.files, attachment.control.wrote
    begin = max(begin, attachment.control.min_physical_offset)
    for base in range(segments.base_of(begin), end, segments.file_bytes):
        segment = segments.get(base)
        if segment is not None:
            unreadable_ranges.fill_holes(
                segments.path(base), segment, 0, min(end - base, segments.file_bytes)
            )


# -------------------------------------------------------------------------------------------- later arrivals


def _join(
    root: Path,
    config: StoreConfig,
    mode: Mode,
    locks: StoreLocks,
    revive: Callable[[], Appender],
    *,
    sole_writer: bool = False,
) -> Attachment:
    """Maps the control block of the attached processes. A `sole_writer` knows that all of them are readers: it may come
    from another PID namespace than the writers before it."""
    path = root / CONTROL_NAME
    head = read_head(root)
    if head is not None and not head.is_ours:
        raise StoreFormatError(another_version(root, head), path=path)
    try:
        length = path.lstat().st_size
        if length < CONTROL_BYTES:
            raise StoreFormatError(
                "the control block was shortened under live processes: stop them, then open the store again",
                path=path,
            )
        memory = files.map_file(path, 0, length, writable=mode is Mode.WRITE)
    except FileNotFoundError:
        raise StoreLockedError(
            "the control block was deleted under live processes: stop them, then open the store again",
            path=path,
        ) from None
    except OSError as error:
        with files.translated(path):
            raise error
    control = Control.attach(memory, sole_writer=sole_writer, **platform.identity())
    manifest = Manifest.load(root, control)
    if mode is Mode.WRITE:
        enter_settings(manifest, config, new=False)
    config = effective(config, manifest.snapshot())
    attachment = compose(root, config, mode, control, locks, revive, manifest)
    attachment.index.recovered = True
    return attachment


def _attach_reader(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment:
    """Opens without writing: joins live processes, or, alone, recovers into private memory; again if a process comes
    meanwhile."""
    for _ in range(READER_TRIES):
        attachment = _try_reader(root, config, revive, progress)
        if attachment is not None:
            return attachment
    raise StoreLockedError(
        f"other processes opened and closed the store {READER_TRIES} times while it was being read: try again",
        path=root,
    )


def _try_reader(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
) -> Attachment | None:
    """None if a process came between the look at the lock and the end of a private recovery."""
    check_is_store(root)
    from cystore.attachment.other_layout import can_only_be_followed, read_beside

    locks = StoreLocks(root, read_only=True) if LOCK_NAME in files.names(root) else None
    beside = False
    try:
        with locks.gate() if locks is not None else contextlib.nullcontext():
            holder = "nobody" if locks is None else locks.holder()
            if locks is not None and holder == "exclusive":
                raise StoreLockedError("the store is open exclusively in another process", path=locks.path)
            if locks is not None and holder == "shared" and can_only_be_followed(root):
                beside = True
            elif locks is not None and holder == "shared":
                locks.share()
                locks.claim_directory(alone=False)
                return _join(root, config, Mode.READ, locks, revive)
            ground = None if beside else Ground(root, locks)
        # The gate is open: a writer that comes now recovers without a wait, and `ground` shows it.
        if ground is None:
            if locks is not None:
                locks.close()  # otherwise the handover would wait for this process
            return read_beside(root, config, revive, progress)
        attachment = _private(root, config, revive, progress, ground) if ground.settled() else None
    except BaseException:
        if locks is not None:
            locks.close()
        raise
    if attachment is None:
        ground.leave()
    return attachment


def _private(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Callable[[str, int, int], None] | None,
    ground: Ground,
) -> Attachment | None:
    """A view of the store as recovery would leave it, in private memory; None if the files changed meanwhile."""
    from cystore.recovery.recover import recover

    try:
        abnormal = (root / ABORT_NAME).exists()
        config = effective_at(config, root)
        state = recover(root, config, Mode.PRIVATE, abnormal=abnormal, progress=progress)
        failpoint("attach.private")
        manifest = Manifest.private(root, state.holes, state.given_up)
        carry_over(root, manifest)
        attachment = _build(root, config, Mode.PRIVATE, state, manifest, None, revive)
        attachment.ground = ground
        _finish(attachment, state, progress)
    except (StoreError, OSError):
        if ground.moved():
            return None
        raise
    if ground.moved():
        attachment.let_mappings_go()
        return None
    return attachment
