"""Files and folders that are opened below a folder which is open already: one system call each, for those who look at very many."""

from __future__ import annotations

import os

_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC


def open_file_in(folder: int, name: str) -> int:
    """A descriptor for reading; `name` itself is no link that is followed. Raises OSError."""
    return os.open(name, _FILE_FLAGS, dir_fd=folder)


def open_folder_in(folder: int, name: str) -> int:
    """The same for a folder. Raises OSError."""
    return os.open(name, _FILE_FLAGS | os.O_DIRECTORY, dir_fd=folder)
