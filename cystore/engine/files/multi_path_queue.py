"""The queue of the log's files in several folders (RocketMQ's MultiPathMappedFileQueue)."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from cystore.config import StoreConfig
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.segments import MappedFileQueue, file_name
from cystore.system import files
from cystore.system.threads.reentry import undisturbed


class MultiPathMappedFileQueue(MappedFileQueue):
    """`limits()` gives the present settings that say when a folder's disk is full."""

    def __init__(
        self, log_folders: LogFolders, limits: Callable[[], StoreConfig], *arguments: Any, **named: Any
    ) -> None:
        self._log_folders, self._limits = log_folders, limits
        self._folders: dict[int, Path] = {}  # of files that were found, by their bases
        super().__init__(*arguments, **named)

    def _sizes(self) -> dict[int, int]:
        sizes, self._folders = self._log_folders.sizes()
        return sizes

    def path(self, base: int) -> Path:
        """Path of the file that begins at `base`; in the store's own folder if there is none."""
        known = self._folders.get(base)
        if known is not None:
            path = known / file_name(base)
            if path.exists():
                return path
        path = self._log_folders.path(base)
        self._folders[base] = path.parent
        return path

    def _make(self, path: Path, base: int, allocated_bytes: int) -> bool:
        undisturbed(
            partial(
                self._log_folders.make,
                base,
                self.file_bytes,
                allocated_bytes,
                self._limits(),
                durable=self._durable_names,
            )
        )
        return False  # another process may have been faster

    def sync_removed(self) -> None:
        """Makes removals without `durable` durable."""
        for folder in self._log_folders.folders:
            files.sync_directory(folder.path)
