"""Folders held open: a look-up of a name in a store uses the opened directory, even if its path names another now.

The look-up follows no symbolic link, and no `..` leaves the store.
"""

from __future__ import annotations

import ctypes
import errno
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from cystore._native.system.descriptor import Descriptor, InFolder, identity_of, open_beneath, open_in
from cystore.errors import StoreClosedError, StoreMovedError

AT_FDCWD = -100
_RESOLVE_NO_SYMLINKS, _RESOLVE_BENEATH = 0x04, 0x08
_FLAGS = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC
LIBC = ctypes.CDLL(None, use_errno=True)  # made once: each CDLL keeps a class for ever


class Beside(Protocol):
    """Other folders of a store, which are held open as long as its directory."""

    def check(self) -> None:
        """As `Home.check`."""

    def let_go(self) -> None:
        """As `Home.let_go`."""


class Home:
    """A store's directory, held open until `let_go`."""

    folder: Descriptor | None
    beside: Beside | None = None

    def __init__(self, path: Path | str, folder: Descriptor | None = None) -> None:
        self.path = str(path)
        self.prefix = self.path.rstrip("/") + "/"
        # None after `let_go`. A call in progress keeps its own reference to the Descriptor.
        self.folder = folder = folder or open_folder(Path(path))
        status = os.fstat(folder.fd)
        self.identity = status.st_dev, status.st_ino

    def let_go(self) -> None:
        """Closes the directory as soon as no call uses it any more."""
        self.folder = None
        beside, self.beside = self.beside, None
        if beside is not None:
            beside.let_go()

    def check(self) -> None:
        """Raises StoreMovedError if the path does not lead to this directory any more. A check costs 1 to 2
        microseconds."""
        check_leads(self.path, self.identity)
        beside = self.beside  # `let_go` may take it away meanwhile
        if beside is not None:
            beside.check()


class HomePath(type(Path())):  # type: ignore[misc]
    """A path at or beneath a store's directory. Each store has its own subclass, so that every path made from one of
    its paths knows the open directory too.

    `home` is set once and never replaced. Python deletes the old value of a class attribute before it clears its
    attribute cache: a thread that reads the attribute in between gets an object that is already deleted
    (python/cpython issue 118492).
    """

    __slots__ = ()
    home: ClassVar[Home]

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        """As `Path.stat`, in the directory that was opened."""
        folder, name = at(self)
        return os.stat(name, dir_fd=folder.fd if folder else None, follow_symlinks=follow_symlinks)

    def lstat(self) -> os.stat_result:
        """As `Path.lstat`, in the directory that was opened."""
        return self.stat(follow_symlinks=False)

    def __reduce__(self) -> tuple[Callable[[str], Path], tuple[str]]:
        return Path, (str(self),)


def held_open(path: Path) -> Path:
    """`path`, a folder, as a HomePath whose directory is held open until `let_go`. Raises OSError."""
    return _path_in(Home(path))


def held_again(path: Path) -> Path:
    """Another HomePath for the directory of a `held_open` path; each is released separately. Raises
    StoreClosedError, OSError."""
    folder = at(path)[0]
    return held_open(path) if folder is None else _path_in(Home(os.fspath(path), folder))


def _path_in(home: Home) -> Path:
    kind: Any = type("StorePath", (HomePath,), {"__slots__": (), "home": home})
    place: Path = kind(home.path)
    return place


def check_place(path: Path) -> None:
    """Raises StoreMovedError if the store's path names another directory now; an ordinary path never does."""
    if isinstance(path, HomePath):
        at(path)
        path.home.check()


def check_leads(path: str, place: tuple[int, int]) -> None:
    """Raises StoreMovedError if a path does not lead to the directory with this device and inode."""
    found = "its path is another directory now"
    try:
        if identity_of(path) == place:
            return
    except (FileNotFoundError, NotADirectoryError):
        found = "its path does not exist now"
    except OSError:  # without access this process cannot tell whether it moved
        return
    raise StoreMovedError(
        f"the store's directory was moved, deleted or replaced under this process; {found}. This process "
        "neither reads nor writes there any more: close the store, and open it at its new place",
        path=path,
    )


def is_at_place(path: Path) -> bool:
    """Whether `check_place` raises nothing."""
    try:
        check_place(path)
    except StoreMovedError:
        return False
    return True


def identity(path: Path) -> tuple[str, int, int] | None:
    """(path, device, inode) of a store's directory, for callers that check its place without Python; None for an
    ordinary path."""
    return (path.home.path, *path.home.identity) if isinstance(path, HomePath) else None


def has_more(path: Path) -> bool:
    """Whether a store has folders beside its directory."""
    return isinstance(path, HomePath) and path.home.beside is not None


def let_go(path: Path) -> None:
    """Ends `held_open`; the descriptor is closed when no call uses it any more."""
    if isinstance(path, HomePath):
        path.home.let_go()


def at(path: Path | str) -> tuple[Descriptor | None, str]:
    """The arguments for the system's look-up of a path: (open directory, name beneath it), or (None, the path). Raises
    StoreClosedError after `let_go`."""
    text = os.fspath(path)
    if not isinstance(path, HomePath):
        return None, text
    home = path.home
    folder = home.folder
    if folder is None:
        raise StoreClosedError("the store is closed", path=text)
    if text == home.path:
        return folder, "."
    if not text.startswith(home.prefix):
        raise OSError(errno.EXDEV, "outside of the store's directory", text)
    return folder, text[len(home.prefix) :]


def open_folder(path: Path) -> Descriptor:
    """A descriptor that only names a folder, reached without following a link. Raises OSError."""
    home, name = at(path)  # `home` keeps the directory open until this call returns
    folder = AT_FDCWD if home is None else home.fd
    try:
        return open_beneath(
            folder, name, _FLAGS, _RESOLVE_NO_SYMLINKS | (0 if home is None else _RESOLVE_BENEATH)
        )
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
    return _walk_to_folder(folder, Path(name))  # Linux before 5.6, or a sandbox without this call


def _walk_to_folder(folder: int, path: Path) -> Descriptor:
    """The same as `open_folder`, one part of the path at a time."""
    flags = _FLAGS | os.O_NOFOLLOW
    if ".." in path.parts and folder != AT_FDCWD:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV), str(path))
    reached = open_in(folder, path.anchor or ".", flags)
    for name in path.parts[1:] if path.anchor else path.parts:
        with reached as fd:
            step = open_in(fd, name, flags)
        reached = step
    return reached


def mount_of(path: Path) -> bytes:
    """The mount that a folder is reached through. Two mounts of one file system differ; empty where the system does
    not say. Raises OSError."""
    folder = open_folder(path)
    try:
        with open_in(AT_FDCWD, f"/proc/self/fdinfo/{folder.fd}", _FILE_FLAGS) as fd:
            lines = os.read(fd, 4096).splitlines()
    except OSError:  # there is no /proc
        return b""
    return next((line for line in lines if line.startswith(b"mnt_id")), b"")


def inside(path: Path) -> InFolder:
    """A with block that gives (descriptor of the path's parent folder, last part of the path), for calls that take a
    name in a folder. Raises OSError."""
    folder, name = at(path)
    if folder is not None and name == ".":
        return InFolder(folder, ".", owned=False)
    return InFolder(open_folder(path.parent), path.name or ".", owned=True)


_FILE_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK  # an open of a FIFO would wait


def open_file_in(folder: int, name: str) -> Descriptor:
    """A descriptor for reading, for callers that read very many files. Does not follow a link. Raises OSError."""
    return open_in(folder, name, _FILE_FLAGS)


def open_folder_in(folder: int, name: str) -> Descriptor:
    """The same for a folder. Raises OSError."""
    return open_in(folder, name, _FILE_FLAGS | os.O_DIRECTORY)
