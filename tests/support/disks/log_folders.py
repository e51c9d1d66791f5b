"""Stores whose log has several folders."""

from __future__ import annotations

import os
from pathlib import Path


def several(others: list[Path], own: bool = True) -> dict[str, str]:
    """The setting that names them."""
    return {"store_path_commit_log": ",".join([*(["commitlog"] if own else []), *map(str, others)])}


def segments_in(folder: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(folder) if name.isdecimal())


def where(path: Path, others: list[Path]) -> dict[int, Path]:
    return {base: folder for folder in (path / "commitlog", *others) for base in segments_in(folder)}
