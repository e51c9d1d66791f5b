"""The free space of a store's file system, and the limits that refuse puts (RunningFlags' disk full bit)."""

from __future__ import annotations

import logging
from pathlib import Path

from cystore._native.memory.control import Control
from cystore.config import StoreConfig
from cystore.engine.files.log_folders import LogFolders, Space, space_of
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import StoreFullError
from cystore.layout import FLAGS

log = logging.getLogger("cystore")

DISK_FULL = FLAGS["FLAG_DISK_FULL"][0]


def space_for(root: Path, log_folders: LogFolders | None) -> Space:
    """The space for a store: in its directory, and on the emptiest disk of the log."""
    used, free_bytes = space_of(root)
    if log_folders is not None:
        spaces = log_folders.spaces().values()
        used = max(used, min(space.used_percent for space in spaces))
        free_bytes = min(free_bytes, max(space.free_bytes for space in spaces))
    return Space(used, free_bytes)


def why_full(space: Space, config: StoreConfig) -> str:
    """The reason to refuse writes with so little space; empty if there is none."""
    if space.used_percent > config.disk_space_warning_level_ratio:
        return f"{space.used_percent:.1f} % of the disk is used, more than disk_space_warning_level_ratio"
    if space.free_bytes < config.min_free_bytes:
        return f"{space.free_bytes} bytes are free on the disk, less than min_free_bytes"
    return ""


class DiskSpace:
    """Watches the file system that holds the store, also inside quotas and on loop mounts. If the log has several
    folders, the disk of one of them needs space, too."""

    def __init__(
        self, root: Path, control: Control, policy: Policy, log_folders: LogFolders | None = None
    ) -> None:
        self._root, self._control, self._policy = root, control, policy
        self._log_folders = log_folders

    @property
    def _config(self) -> StoreConfig:
        return self._policy.now()

    def used_percent(self) -> float:
        """The used share of the space that this user may have, as `df` counts."""
        return self._look()[0]

    def free_bytes(self) -> int:
        """The bytes that this user may still write: in the store's directory, and on the emptiest disk of the log."""
        return self._look()[1]

    def _look(self) -> Space:
        return space_for(self._root, self._log_folders)

    def _full(self) -> str:
        """The reason to refuse writes; empty if there is none."""
        return why_full(self._look(), self._config)

    def watch(self) -> float:
        """Switches writing off on a full disk, for every attached process, and on again; returns the used
        percentage."""
        reason = self._full()
        if reason and not self._control.flags & DISK_FULL:
            log.error("%s: %s; puts are refused until there is space", self._root, reason)
            self._control.set_flag(DISK_FULL)
        elif not reason and self._control.flags & DISK_FULL:
            log.warning("%s: there is space again", self._root)
            self._control.clear_flag(DISK_FULL)
        return self.used_percent()

    @property
    def is_full(self) -> bool:
        """Whether writing is switched off."""
        return bool(self._control.flags & DISK_FULL)

    def has_changed(self) -> bool:
        """Whether `watch` would switch writing off or on."""
        return bool(self._full()) != bool(self._control.flags & DISK_FULL)

    def check(self) -> None:
        """Called for a refused put: raises StoreFullError unless there is space again."""
        if self._control.flags & DISK_FULL:
            self.watch()
            if self._control.flags & DISK_FULL:
                raise StoreFullError(f"{self._full()}; make space, then appends work again", path=self._root)
