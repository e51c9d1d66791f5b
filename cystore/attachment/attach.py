"""Attaching to a store: the first process recovers it and builds the control block; later processes map that block.

A reader (`read_only=True`) maps the shared files of live processes. If no process is attached, it recovers into private
memory and changes no byte on disk.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path

from cystore._native.append.appender import Appender
from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.attachment.assemble import compose
from cystore.attachment.attachment import Attachment as Attachment
from cystore.attachment.first_process import build, finish, recover_and_build
from cystore.attachment.store_directory import check_directory
from cystore.config import StoreConfig
from cystore.engine.files.segments import Mode
from cystore.engine.inspect.control_head import another_version, read_head
from cystore.engine.inspect.recognize import check_is_store
from cystore.engine.log.allocate import CONTROL_NAME
from cystore.engine.manifest.manifest import Manifest
from cystore.engine.manifest.store_settings import effective, effective_at, enter_settings
from cystore.errors import (
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
)
from cystore.ha.role import check_pooled, enter_role
from cystore.layout import CONTROL_BYTES
from cystore.recovery.walk.abort_file import ABORT_NAME
from cystore.services.retention.carry_over import carry_over
from cystore.system import files, folders, platform
from cystore.system.other_processes import Ground
from cystore.system.store_lock import LOCK_NAME, StoreLocks
from cystore.system.threads import lock_log as lock_log  # the locks report to it
from cystore.system.threads import os_threads

READER_TRIES = 20  # private recoveries of one open, while other processes come and go
Progress = Callable[[str, int, int], None]
_attaching: set[tuple[int, int, str]] = set()  # (process, thread, path of the store)


def attach(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Progress | None = None,
    *,
    instead: Attachment | None = None,
) -> Attachment:
    """Opens the store at `root` for this process. Raises StoreLockedError, StoreFormatError, StorePermissionError.

    `instead` is a private view that is outdated because a process came. The new attachment continues in the same open
    directory. An open or put of a signal handler that interrupted an attach of the same thread raises StoreLockedError:
    it would wait at the gate for that thread.
    """
    # No Path: its hash is a function of Python, in which a signal handler could raise before `discard` has an effect.
    mine = (os.getpid(), os_threads.native_id(), os.fspath(root))
    if mine in _attaching:
        raise StoreLockedError("an interrupted call of this thread attaches to the store", path=root)
    try:
        _attaching.add(mine)
        return _attach(root, config, revive, progress, instead)
    finally:
        _attaching.discard(mine)


def _attach(
    root: Path,
    config: StoreConfig,
    revive: Callable[[], Appender],
    progress: Progress | None,
    instead: Attachment | None,
) -> Attachment:
    with files.translated(root):
        if instead is not None:
            place = folders.held_again(instead.root)
        else:
            if not config.read_only:
                check_directory(root, config)
            elif not root.is_dir():
                raise StoreFormatError("there is no store here", path=root)
            place = folders.held_open(root)
        try:
            opening = _Opening(place, config, revive, progress)
            attachment = opening.as_reader() if config.read_only else opening.as_writer()
        except BaseException:
            folders.let_go(place)
            raise
    if attachment.recovered is not None:
        platform.give_memory_back()
    return attachment


class _Opening:
    """One opening of a store by this process. `root` is its open directory."""

    def __init__(
        self, root: Path, config: StoreConfig, revive: Callable[[], Appender], progress: Progress | None
    ) -> None:
        self._root, self._config, self._revive, self._progress = root, config, revive, progress

    # ------------------------------------------------------------------------------------------ writers

    def as_writer(self) -> Attachment:
        """Recovers the store if this process is alone in it, otherwise joins the others."""
        root, config = self._root, self._config
        platform.check_writable_file_system(root, allow_any=config.allow_any_file_system)
        locks = StoreLocks(root, read_only=False)
        try:
            with locks.gate():
                if locks.try_alone():
                    failpoint("attach.alone")
                    locks.claim_directory(alone=True)
                    locks.join_writers()
                    attachment = recover_and_build(root, config, locks, self._revive, self._progress)
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
                attachment = self._join(Mode.WRITE, locks, sole_writer=sole_writer)
                locks.join_writers()
                return attachment
        except BaseException:
            locks.close()
            raise

    def _join(self, mode: Mode, locks: StoreLocks, *, sole_writer: bool = False) -> Attachment:
        """Maps the control block of the attached processes. `sole_writer`: all attached processes are readers, so this
        process may have another C library than the writers before it."""
        root, config = self._root, self._config
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
        if mode is Mode.WRITE:
            control.enter(locks.fd)
            failpoint("attach.entered")
        manifest = Manifest.load(root, control)
        if mode is Mode.WRITE:
            if control.pooled:
                check_pooled(manifest, config)
            elif config.transient_store_pool_enable:
                raise StoreConfigError(
                    "transient_store_pool_enable: the processes that have the store open have no pool; it begins when "
                    "all of them have closed the store",
                    path=root,
                )
            enter_settings(manifest, config, new=False)
            enter_role(manifest, config)
        config = effective(config, manifest.snapshot())
        attachment = compose(root, config, mode, control, locks, self._revive, manifest)
        attachment.index.recovered = True
        return attachment

    # ------------------------------------------------------------------------------------------ readers

    def as_reader(self) -> Attachment:
        """Opens without writing. Joins live processes; if there are none, recovers into private memory, and tries again
        if a process comes meanwhile."""
        for _ in range(READER_TRIES):
            attachment = self._try_reader()
            if attachment is not None:
                return attachment
        raise StoreLockedError(
            f"other processes opened and closed the store {READER_TRIES} times while it was being read: try again",
            path=self._root,
        )

    def _try_reader(self) -> Attachment | None:
        """None if a process came between the look at the lock and the end of a private recovery."""
        root = self._root
        check_is_store(root)
        from cystore.attachment.other_layout import can_only_be_followed, read_beside

        locks = StoreLocks(root, read_only=True) if LOCK_NAME in files.names(root) else None
        beside = False
        try:
            with locks.gate() if locks is not None else contextlib.nullcontext():
                holder = "nobody" if locks is None else locks.holder()
                if locks is not None and holder == "exclusive":
                    raise StoreLockedError(
                        "the store is open exclusively in another process", path=locks.path
                    )
                if locks is not None and holder == "shared" and can_only_be_followed(root):
                    beside = True
                elif locks is not None and holder == "shared":
                    locks.share()
                    locks.claim_directory(alone=False)
                    return self._join(Mode.READ, locks)
                ground = None if beside else Ground(root, locks)
            # The gate is open: a writer that comes now recovers without a wait, and `ground` shows it.
            if ground is None:
                if locks is not None:
                    locks.close()  # otherwise the handover would wait for this process
                return read_beside(root, self._config, self._revive, self._progress)
            attachment = self._private(ground) if ground.settled() else None
        except BaseException:
            if locks is not None:
                locks.close()
            raise
        if attachment is None:
            ground.leave()
        return attachment

    def _private(self, ground: Ground) -> Attachment | None:
        """A view of the store as recovery would leave it, in private memory; None if the files changed meanwhile."""
        from cystore.recovery.recover import recover

        try:
            root = self._root
            abnormal = (root / ABORT_NAME).exists()
            config = effective_at(self._config, root)
            state = recover(root, config, Mode.PRIVATE, abnormal=abnormal, progress=self._progress)
            failpoint("attach.private")
            manifest = Manifest.private(root, state.damaged_ranges, state.given_up)
            carry_over(root, manifest)
            attachment = build(root, config, Mode.PRIVATE, state, manifest, None, self._revive)
            attachment.ground = ground
            finish(attachment, state, self._progress)
        except (StoreError, OSError):
            if ground.moved():
                return None
            raise
        if ground.moved():
            attachment.let_mappings_go()
            return None
        return attachment
