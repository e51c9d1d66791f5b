"""The free space of a store's file system, and the limits that refuse puts (RunningFlags' disk full bit)."""

from __future__ import annotations

import logging
import os
from pathlib import Path

from cystore._native.memory.control import Control
from cystore.config import StoreConfig
from cystore.engine.manifest.store_settings import Policy
from cystore.errors import StoreFullError
from cystore.layout import FLAGS
from cystore.system import files

log = logging.getLogger("cystore")

DISK_FULL = FLAGS["FLAG_DISK_FULL"][0]


class DiskSpace:
    """Watches the file system that holds the store, also inside quotas and on loop mounts."""

    def __init__(self, root: Path, control: Control, policy: Policy) -> None:
        self._root, self._control, self._policy = root, control, policy

    @property
    def _config(self) -> StoreConfig:
        return self._policy.now()

    def used_percent(self) -> float:
        """The used share of the space that this user may have, as `df` counts."""
        return self._look()[0]

    def _look(self) -> tuple[float, int]:
        with files.translated(self._root):
            found = os.statvfs(self._root)
        used, free = found.f_blocks - found.f_bfree, found.f_bavail
        return 100.0 * used / max(used + free, 1), free * found.f_frsize

    def _full(self) -> str:
        """The reason to refuse writes; empty if there is none."""
        used, free_bytes = self._look()
        if used > self._config.disk_space_warning_level_ratio:
            return f"{used:.1f} % of the disk is used, more than disk_space_warning_level_ratio"
        if free_bytes < self._config.min_free_bytes:
            return f"{free_bytes} bytes are free on the disk, less than min_free_bytes"
        return ""

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

    def has_changed(self) -> bool:
        """Whether `watch` would switch writing off or on."""
        return bool(self._full()) != bool(self._control.flags & DISK_FULL)

    def check(self) -> None:
        """Called for a refused put: raises StoreFullError unless there is space again."""
        if self._control.flags & DISK_FULL:
            self.watch()
            if self._control.flags & DISK_FULL:
                raise StoreFullError(f"{self._full()}; make space, then appends work again", path=self._root)
