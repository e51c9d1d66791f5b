"""The folders of a log that has several: the store's own, and others, as a rule on other disks.

Source: MultiPathMappedFileQueue, DefaultMessageStore.CleanCommitLogService. Each file of the log lies in one of them.
The settings name the folders. `config/log_folders.json` lists those that may have files of this log, and a folder that
the settings name no longer stays in the list until cleaning has removed its last file. The list is fixed while a
process has the store open. A store with its own folder only has no list.

RocketMQ accepts nothing but files of the log in such a folder. So the folder /disk/log has a neighbour
/disk/log.cystore with a mark, which says whose folder it is, and with a place where new files are made.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from cystore.config import LOG_FOLDER, StoreConfig
from cystore.engine.files.segments import OURS, file_name, sizes_in
from cystore.errors import StoreConfigError, StoreError, StoreFormatError, StoreIOError
from cystore.system import files, folders, ownership, platform
from cystore.system.checked_json import parse, render
from cystore.system.folders import HomePath
from cystore.system.key_lock import NameLocks

FILE = "log_folders.json"
NEIGHBOUR = ".cystore"
MARK = "mark.json"
MAKE_S = 10.0  # a process that makes a file for so long is stopped


class LogFolder(NamedTuple):
    """`name` is as in the settings. New files are made in `room`, on the same file system."""

    name: str
    path: Path
    room: Path
    writable: bool


class Listed(NamedTuple):
    """The content of the list: an id that all marks of the log have, and whether each folder gets new files."""

    log_id: str
    folders: Mapping[str, bool]


class Mark(NamedTuple):
    """The content of a mark: the log's id, and the directory of the store."""

    log_id: str
    store: str


class Space(NamedTuple):
    """The used share of a disk, and its free bytes, for this user."""

    used_percent: float
    free_bytes: int


def space_of(path: Path) -> Space:
    """The space of the file system that has a folder, as `df` counts."""
    with files.translated(path):
        found = os.statvfs(path)
    used, free = found.f_blocks - found.f_bfree, found.f_bavail
    return Space(100.0 * used / max(used + free, 1), free * found.f_frsize)


def chosen(number: int, paths: Collection[str], full: Collection[str] = ()) -> str:
    """The path for the file of the log with this number. Full ones get a file only if all are full
    (MultiPathMappedFileQueue.tryCreateMappedFile)."""
    left = sorted(path for path in paths if path not in full) or sorted(paths)
    return left[number % len(left)]


class LogFolders:
    """The folders of one log, held open. The store's own is the first."""

    def __init__(self, root: Path, opened: tuple[LogFolder, ...]) -> None:
        self.root, self.folders = root, opened
        self._locks: NameLocks | None = None

    @classmethod
    def of(cls, root: Path) -> LogFolders | None:
        """The folders of a store's log; None if it has its own folder only. Raises StoreFormatError for a folder that
        is missing, or that is another store's."""
        home = root.home if isinstance(root, HomePath) else None
        if home is not None and home.beside is not None:
            assert isinstance(home.beside, LogFolders)
            return home.beside
        listed = read_listed(root)
        if listed is None:
            return None
        found = cls(root, tuple(_opened(root, name, new) for name, new in listed.folders.items()))
        for folder in found.folders[1:]:
            check_mark(root, folder.path, read_mark(folder.room), listed)
        if home is not None:
            home.beside = found
        return found

    def check(self) -> None:
        """Raises StoreMovedError if a path leads to another folder now."""
        for folder in self.folders[1:]:
            folders.check_place(folder.path)

    def let_go(self) -> None:
        """Closes the folders as soon as no call uses them any more."""
        if self._locks is not None:
            self._locks.close()
        for folder in self.folders[1:]:
            folders.let_go(folder.path)
            folders.let_go(folder.room)

    def sizes(self) -> tuple[dict[int, int], dict[int, Path]]:
        """The length of each file, and its folder, by the file's base. Raises StoreFormatError for a file that two
        folders have."""
        lengths: dict[int, int] = {}
        places: dict[int, Path] = {}
        for folder in self.folders:
            for base, length in sizes_in(folder.path).items():
                if base in places:
                    raise StoreFormatError(
                        f"{places[base]} has a file of this name too; move one of them away",
                        path=folder.path / file_name(base),
                    )
                lengths[base], places[base] = length, folder.path
        return lengths, places

    def path(self, base: int) -> Path:
        """The path of the file that begins at `base`; in the store's own folder if there is none."""
        name = file_name(base)
        paths = [folder.path / name for folder in self.folders]
        return next((path for path in paths if path.exists()), paths[0])

    def spaces(self) -> dict[str, Space]:
        """The space of each folder that gets new files, by its path."""
        return {str(folder.path): space_of(folder.path) for folder in self.folders if folder.writable}

    def for_new_file(self, base: int, file_bytes: int, limits: StoreConfig) -> LogFolder:
        """The folder for the file that begins at `base`. Its disk should have space for the whole file, and no more
        than disk_space_clean_forcibly_ratio in use."""
        spaces = self.spaces()
        without_room = {
            path for path, space in spaces.items() if space.free_bytes < file_bytes + limits.min_free_bytes
        }
        full = without_room | {
            path
            for path, space in spaces.items()
            if space.used_percent > limits.disk_space_clean_forcibly_ratio
        }
        path = chosen(base // file_bytes, spaces, without_room if len(full) == len(spaces) else full)
        return next(folder for folder in self.folders if str(folder.path) == path)

    def make(
        self, base: int, file_bytes: int, allocated_bytes: int, limits: StoreConfig, *, durable: bool = True
    ) -> Path:
        """Makes the file that begins at `base` unless a folder has it; returns its path. Another process may find
        other disks full, so one process at a time chooses. Raises StoreTimeoutError."""
        if self._locks is None:
            self._locks = NameLocks(self.root / "config" / FILE)
        with self._locks.held("new file", MAKE_S):
            path = self.path(base)
            if not path.exists():
                folder = self.for_new_file(base, file_bytes, limits)
                path = folder.path / file_name(base)
                files.create_sized(
                    folder.room, path, file_bytes, allocated_bytes, durable=durable, stays=True
                )
            elif durable:
                files.sync_directory(path.parent)  # the maker of the name may have died before this
        return path


def segment_path(root: Path, base: int) -> Path:
    """The path of the log's file that begins at `base`, wherever it is."""
    several = LogFolders.of(root)
    return root / LOG_FOLDER / file_name(base) if several is None else several.path(base)


def make_segment(root: Path, base: int, file_bytes: int, limits: StoreConfig) -> Path:
    """Makes the log's file that begins at `base`, with all of its space, unless it is there; returns its path."""
    several = LogFolders.of(root)
    if several is not None:
        return several.make(base, file_bytes, file_bytes, limits)
    path = root / LOG_FOLDER / file_name(base)
    files.create_sized(root, path, file_bytes, file_bytes)
    return path


def log_paths(root: Path) -> tuple[Path, ...]:
    """The folders of a store's log."""
    several = LogFolders.of(root)
    return (root / LOG_FOLDER,) if several is None else tuple(folder.path for folder in several.folders)


def _opened(root: Path, name: str, writable: bool) -> LogFolder:
    if name == LOG_FOLDER:
        return LogFolder(name, root / LOG_FOLDER, root, writable)
    path = _held(Path(name))
    try:
        return LogFolder(name, path, _held(Path(name + NEIGHBOUR)), writable)
    except BaseException:
        folders.let_go(path)
        raise


def _held(path: Path) -> Path:
    with files.translated(path):
        try:
            return folders.held_open(path)
        except (FileNotFoundError, NotADirectoryError) as error:
            raise StoreFormatError(
                "a folder of the commit log is missing or is not a directory: mount its disk", path=path
            ) from error


@contextmanager
def _held_here(path: Path) -> Iterator[Path]:
    """`path`, held open in a with block. Without it the descriptor would wait for Python's collector."""
    held = _held(path)
    try:
        yield held
    finally:
        folders.let_go(held)


# -------------------------------------------------------------------------------------------- the list, the marks


def read_listed(root: Path) -> Listed | None:
    """The list of a store's folders; None without one. Raises StoreFormatError."""
    path = root / "config" / FILE
    copy = path.with_name(f"{FILE}.bak")
    data = files.read_if_there(path) if path.exists() else None
    copied = None if data else files.read_if_there(copy)
    if not data and not copied:  # `make` leaves an empty file if the list was removed under it
        return None
    try:
        if data:
            return _listed(data)
        problem: Exception | None = None
    except (ValueError, KeyError, TypeError, StopIteration) as error:
        problem = error
    what = "is lost" if problem is None else f"cannot be read ({problem})"
    raise StoreFormatError(f"the list of the log's folders {what}; {_way_out(copy)}", path=path) from problem


def _listed(data: bytes) -> Listed:
    """The list in the bytes of a file. Raises ValueError, KeyError, TypeError, StopIteration."""
    content = parse(data)
    log_id, found = content["id"], {str(name): new is True for name, new in content["folders"]}
    if type(log_id) is not str or next(iter(found)) != LOG_FOLDER:
        raise ValueError("the first folder is not the store's own")
    StoreConfig(store_path_commit_log=",".join(found))
    return Listed(log_id, found)


def _way_out(copy: Path) -> str:
    """The way out for an operator whose list is lost or damaged. Looks at the copy first."""
    data = files.read_if_there(copy)
    try:
        _listed(data or b"")
    except (ValueError, KeyError, TypeError, StopIteration):
        what = "cannot be read either" if data else "is missing, too"
        return (
            f"its copy, {copy.name}, {what}. Move both away, and name in store_path_commit_log, or in "
            "read_only_commit_log_store_paths, every folder that has files of this log (its neighbour "
            f"FOLDER{NEIGHBOUR}/{MARK} names this store): the next open for writing makes the list anew"
        )
    return f"put its last good copy, {copy.name}, in its place"


def read_mark(room: Path) -> Mark | None:
    """The mark in a folder's neighbour; None without one. Raises StoreFormatError."""
    path = room / MARK
    try:
        data = files.read_if_there(path)
        content = {} if data is None else parse(data)
        return None if data is None else Mark(str(content["id"]), str(content["store"]))
    except (ValueError, KeyError) as error:
        raise StoreFormatError(
            f"the mark of a folder of the log cannot be read: {error}", path=path
        ) from error


def check_mark(root: Path, path: Path, mark: Mark | None, listed: Listed) -> None:
    """Raises StoreFormatError unless a listed folder has this log's mark."""
    if mark is None:
        raise StoreFormatError(
            f"the folder has no mark {path}{NEIGHBOUR}/{MARK}, so it is not the one that the store made: is its disk "
            "mounted? If the folder is lost, make it and its mark, as a copy of another folder's, and the log has "
            "holes",
            path=path,
        )
    if mark.log_id != listed.log_id:
        raise StoreFormatError(f"the folder belongs to the store {mark.store}: name another one", path=path)
    if mark.store != str(root) and _is_another(Path(mark.store), root, listed.log_id):
        raise StoreFormatError(
            f"the store is a copy of {mark.store}, and the folder is the original's; `cystore snapshot` makes copies "
            "of stores whose log has several folders",
            path=path,
        )


def _is_another(store: Path, root: Path, log_id: str) -> bool:
    """Whether a path leads to another store with the same list."""
    try:
        if os.path.samefile(store, root):
            return False
        listed = read_listed(store)
    except (StoreError, OSError):
        return False
    return listed is not None and listed.log_id == log_id


# ------------------------------------------------------------------------------------------------ the first process


def begin_log_folders(root: Path, config: StoreConfig, *, adopt: bool) -> LogFolders | None:
    """For the only process in the store, before recovery: brings the list in line with the settings, and marks new
    folders. With `adopt` these may have files, of a log that RocketMQ wrote. A kill at any step leaves marks that the
    next call finds. Raises StoreConfigError, StoreFormatError, StorePermissionError."""
    listed = read_listed(root)
    own = str(root / LOG_FOLDER)
    wanted = {LOG_FOLDER if name == own else name: new for name, new in config.log_folders().items()}
    if listed is None and wanted == {LOG_FOLDER: True}:
        return None
    before = {} if listed is None else listed.folders
    left = {name for name in before if name not in wanted and name != LOG_FOLDER}
    kept = set()
    for name in left:
        assert listed is not None
        with _held_here(Path(name)) as path:
            # Without its disk it would seem to be empty.
            check_mark(root, path, read_mark(Path(name + NEIGHBOUR)), listed)
            if sizes_in(path):
                kept.add(name)
    names = {LOG_FOLDER: False} | dict.fromkeys(sorted(kept), False) | dict(sorted(wanted.items()))
    others = [name for name in names if name != LOG_FOLDER]
    _check_apart(root, others)
    files.make_directory(root / LOG_FOLDER)
    marks = {name: read_mark(Path(name + NEIGHBOUR)) for name in others}
    ours = [mark.log_id for mark in marks.values() if mark is not None and mark.store == str(root)]
    known = listed or Listed(ours[0] if ours else os.urandom(16).hex(), {})
    for name in others:
        with _held_here(Path(name)) as path:
            if name in before or marks[name] is not None:
                check_mark(root, path, marks[name], known)
            elif sizes_in(path) and not (adopt and _is_foreign(path)):
                raise StoreConfigError(
                    "a new folder of the log must be empty, and this one has files of a log", path=path
                )
    for name in others:  # nothing is changed if one of them is refused
        with _held_here(Path(name)) as path:
            _prepare(path, config)
        if marks[name] is None or marks[name] != Mark(known.log_id, str(root)):
            _mark(root, Path(name + NEIGHBOUR), known, fresh=marks[name] is None)
    if listed is None or dict(listed.folders) != names:
        content = {"id": known.log_id, "folders": [list(item) for item in names.items()]}
        for _ in range(1 if listed else 2):  # the first list, too, has a copy
            files.write_whole(root, root / "config" / FILE, render(content))
    for name in left - kept:
        files.remove_tree(Path(name + NEIGHBOUR))
    return LogFolders.of(root)


def check_new_folders(root: Path, config: StoreConfig) -> None:
    """Raises StoreConfigError for a folder that the settings name, that is not in the list yet, and that the next open
    would refuse. Changes nothing."""
    listed = read_listed(root)
    known = {LOG_FOLDER, str(root / LOG_FOLDER), *(() if listed is None else listed.folders)}
    names = [name for name in config.log_folders() if name not in known]
    for name in names:
        if not Path(name).is_dir():
            raise StoreConfigError(
                "store_path_commit_log: the folder is missing or is not a directory: make it first",
                path=Path(name),
            )
    own = {LOG_FOLDER, str(root / LOG_FOLDER)}
    _check_apart(root, names + [name for name in known - own if Path(name).is_dir()])
    for name in names:
        path, mark = Path(name), read_mark(Path(name + NEIGHBOUR))
        ours = mark is not None and (
            mark.store == str(root) if listed is None else mark.log_id == listed.log_id
        )
        if mark is not None and not ours:
            raise StoreConfigError(
                f"store_path_commit_log: the folder belongs to the store {mark.store}: name another one",
                path=path,
            )
        if mark is None and sizes_in(path):
            raise StoreConfigError(
                "store_path_commit_log: a new folder of the log must be empty, and this one has files of a log",
                path=path,
            )


def check_list_is_there(root: Path, config: StoreConfig) -> None:
    """For a process that changes nothing. Raises StoreFormatError if there is no list, and a folder that the settings
    name has files of this log."""
    names = [name for name in config.log_folders() if name not in (LOG_FOLDER, str(root / LOG_FOLDER))]
    if not names or read_listed(root) is not None:
        return
    for name in names:
        mark = read_mark(Path(name + NEIGHBOUR))
        if mark is not None and mark.store == str(root) and sizes_in(Path(name)):
            raise StoreFormatError(
                f"the list of the log's folders is lost, and {name} has files of the log: the next open for writing "
                "makes the list anew",
                path=root / "config" / FILE,
            )


def _is_foreign(path: Path) -> bool:
    """Whether the files in a folder without a mark may be RocketMQ's. A marker says that a store of ours wrote them;
    perhaps the folder is mounted at this path, too."""
    return not any((path / name).exists() for name in OURS)


def _check_apart(root: Path, names: list[str]) -> None:
    """Refuses folders that lie in the store or in each other, and two paths of one folder."""
    own = root / LOG_FOLDER
    seen: dict[tuple[int, int], Path] = {}
    found = [(path, path.stat()) for path in (root, own) if path.exists()]
    for name in names:
        with _held_here(Path(name)) as held:
            found.append((Path(name), held.stat()))
    for path, status in found:
        one = seen.setdefault((status.st_dev, status.st_ino), path)
        if one is not path:
            raise StoreConfigError(f"store_path_commit_log: {path} is the same directory as {one}")
    paths = [Path(str(root)), *map(Path, names)]
    for path in paths[1:]:
        for other in paths:
            if other is not path and (path.is_relative_to(other) or other.is_relative_to(path)):
                raise StoreConfigError(
                    f"store_path_commit_log: {path} and {other} must not contain each other"
                )


def _prepare(path: Path, config: StoreConfig) -> None:
    """Checks a folder, and makes its neighbour."""
    group, neighbour = ownership.group_id(config.group), Path(f"{path}{NEIGHBOUR}")
    platform.check_writable_file_system(path, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check_way(Path(str(path)), group)
        if group is not None and not files.names(path) and path.stat().st_uid == os.geteuid():
            files.share(path, group)
        ownership.check_folder(path, group)
    files.make_root(neighbour, group)
    if not config.allow_any_owner:
        ownership.check_folder(neighbour, group)
    with _held_here(neighbour) as held:
        apart = held.stat().st_dev != path.stat().st_dev or folders.mount_of(held) != folders.mount_of(path)
    if apart:
        raise StoreConfigError(
            f"a folder of the log must not be a mount point, because its files are made in {neighbour}: name a folder "
            "below it",
            path=path,
        )
    files.clear_temporaries(neighbour)


def _mark(root: Path, room: Path, known: Listed, *, fresh: bool) -> None:
    """Marks a folder as this store's. Of two stores that do so at once, one gets a `fresh` mark."""
    data = render({"id": known.log_id, "store": str(root)})
    if not fresh:
        return files.write_whole(room, room / MARK, data)
    with files.temporary(room) as draft:
        files.write_whole(room, draft, data, keep_last=False)
        try:
            files.rename_no_replace(draft, room / MARK)
        except FileExistsError:
            mark = read_mark(room)
            if mark is None or mark.log_id != known.log_id:
                raise StoreIOError("another store took the folder meanwhile", path=room) from None
    files.sync_directory(room)
