"""The directory of a run. Each run makes it anew, and replaces only a directory that a run made."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path

MARKER = "made-by-celery_app"


class FolderError(RuntimeError):
    """The directory cannot be used; the text says why."""


@dataclass(frozen=True)
class RunFolder:
    """The output of a run: the store, the logs of its processes, the list of acknowledged results."""

    root: Path

    @property
    def store(self) -> Path:
        """The store."""
        return self.root / "store"

    @property
    def logs(self) -> Path:
        """One file for each process."""
        return self.root / "logs"

    @property
    def broken(self) -> Path:
        """Files that do not parse, for a library that ships none."""
        return self.root / "broken"

    @property
    def acknowledged(self) -> Path:
        """A JSON object a line: results that were handed out while the job ran."""
        return self.root / "acknowledged.jsonl"

    @classmethod
    def fresh(cls, root: Path) -> RunFolder:
        """Removes the output of an earlier run. Raises FolderError for a directory with anything else in it."""
        folder = cls(root.resolve())
        if folder.root.exists():
            if not folder.root.is_dir():
                raise FolderError(f"{root} is not a directory")
            if any(folder.root.iterdir()) and not (folder.root / MARKER).exists():
                raise FolderError(f"{root} has files that no run made: choose another --path, or empty it")
            shutil.rmtree(folder.root)
        folder.logs.mkdir(parents=True)
        (folder.root / MARKER).write_text("The next run removes this directory.\n")
        return folder
