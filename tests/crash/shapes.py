"""Shapes of stores: rows of the fault matrix run on a plain store, and again on stores of other shapes.

A shape is a setting that the store keeps. So a row makes its store with `Case.begin` before its fault, and goes on as
with a plain store.
"""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import cystore
from cystore.engine.pool.buffers import SHARED_MEMORY, folder_of, remove_buffers
from cystore.system import files
from tests.support.processes.places import POOL_PLACES, Place

OTHER_FOLDERS = ("one", "two")  # beside the store
OWN_FOLDER = "commitlog"


@dataclass(frozen=True)
class Shape:
    """`folders`: whether the log has folders beside the store. `buffers`: the size of the pool. `places`: failpoints
    that only such a store has. `stopped_in`: those inside of locks that only such a store takes."""

    name: str = ""
    how: str = ""
    folders: bool = False
    buffers: int = 0
    places: Mapping[str, Place] = field(default_factory=dict)
    stopped_in: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def settings(self, path: Path) -> dict[str, Any]:
        """The settings that make a store of this shape."""
        found: dict[str, Any] = {}
        if self.folders:
            names = [OWN_FOLDER, *(str(one) for one in self.log_folders(path)[1:])]
            found["store_path_commit_log"] = ",".join(names)
        if self.buffers:
            found |= {"transient_store_pool_enable": True, "transient_store_pool_size": self.buffers}
        return found

    def log_folders(self, path: Path) -> list[Path]:
        """Where the files of the log are."""
        return [path / OWN_FOLDER, *(path.parent / name for name in OTHER_FOLDERS if self.folders)]

    def log_files(self, path: Path) -> list[Path]:
        """The files of the log, in its order."""
        found = (file for folder in self.log_folders(path) if folder.is_dir() for file in folder.iterdir())
        return sorted((file for file in found if file.name.isdecimal()), key=lambda file: int(file.name))

    def make(self, path: Path, settings: Mapping[str, Any]) -> str:
        """Makes a store of this shape, unless it is plain; gives the end of the name of its buffers' folder."""
        if not self.name:
            return ""
        for folder in self.log_folders(path)[1:]:
            folder.mkdir()
        files.sync_directory(path.parent)
        with cystore.open(path, **{**settings, **self.settings(path), "services": "none"}) as store:
            assert store.stats()["pool_buffers"] == self.buffers
            folder = folder_of(path, store._attached().manifest.snapshot().store_id)
            return folder.name.rpartition("-")[2]

    def remove(self, path: Path) -> None:
        """Removes a store and the other folders of its log."""
        shutil.rmtree(path)
        for folder in self.log_folders(path)[1:]:
            shutil.rmtree(folder)
            shutil.rmtree(f"{folder}.cystore")


def lose_buffers(end_of_name: str) -> None:
    """As a power cut does. Nobody has the store open; its disk may be away."""
    for left in SHARED_MEMORY.glob(f"cystore-*-{end_of_name}"):
        remove_buffers(left)


PLAIN = Shape()
FOLDERS = Shape("folders", "the log has three folders", folders=True)
POOL = Shape(
    "pool",
    "appends go to a pool of buffers",
    buffers=2,
    places=POOL_PLACES,
    stopped_in={"commit": ("commit.begun", "commit.copied", "commit.published", "pool.used", "pool.zeroed")},
)
