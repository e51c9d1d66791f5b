"""Facts about the store's environment: file system, boot, PID namespace, C library."""

from __future__ import annotations

import ctypes
import os
import struct
from pathlib import Path
from typing import TypedDict

from cystore._native.memory.locks import locks_inline
from cystore.errors import StoreFormatError
from cystore.system import files
from cystore.system.folders import LIBC

# statx(2)
AT_FDCWD, STATX_BTIME, STATX_BYTES, BTIME_AT = -100, 0x800, 256, 80
# statfs(2) magic numbers. These file systems promise: reserved space stays reserved, mapped pages are never moved.
PROMISED = {0xEF53: "ext4", 0x58465342: "xfs", 0x01021994: "tmpfs"}
NETWORK = {
    0x6969: "nfs",
    0xFF534D42: "cifs",
    0xFE534D42: "smb2",
    0x517B: "smb",
    0x01021997: "9p",
    0x00C36400: "ceph",
    0x0BD00BD0: "lustre",
    0x5346414F: "afs",
    0x6B414653: "afs",
    0x7461636F: "ocfs2",
    0x01161970: "gfs2",
}

# A user's program serves these files, possibly from another host or an object store.
CGROUPS = Path("/sys/fs/cgroup")
OTHERS = {0x65735546: "fuse"}
# Local, and not tested: writing needs allow_any_file_system.
UNTESTED = {
    0x794C7630: "overlay",
    0x9123683E: "btrfs",
    0x2FC12FC1: "zfs",
    0xF2F52010: "f2fs",
    0x858458F6: "ramfs",
    0x4D44: "vfat",
}


def give_memory_back() -> None:
    """Gives free memory back to the system. Otherwise the C library keeps the memory of a recovery's largest tables,
    tens of MB, until the process ends. Does nothing if the C library is not glibc."""
    trim = getattr(LIBC, "malloc_trim", None)
    if trim is not None:
        trim(0)


def available_memory() -> int:
    """Bytes that this host can give to programs without swapping (MemAvailable)."""
    for line in files.read_all(Path("/proc/meminfo")).decode("ascii").splitlines():
        name, value = line.split(":")
        if name == "MemAvailable":
            return int(value.split()[0]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGESIZE")


def file_system(path: Path) -> str:
    """Name of the filesystem type that holds `path`, or its magic number in hexadecimal."""
    buffer = ctypes.create_string_buffer(256)
    if LIBC.statfs(os.fsencode(path), buffer):
        with files.translated(path):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    magic = ctypes.c_long.from_buffer(buffer).value & 0xFFFFFFFF
    return {**PROMISED, **NETWORK, **OTHERS, **UNTESTED}.get(magic, f"{magic:#x}")


def born_ns(path: Path) -> int:
    """When a file or folder was made (statx), in ns since 1970; nobody can set it. 0 if the file system does not
    know."""
    found = ctypes.create_string_buffer(STATX_BYTES)
    if LIBC.statx(AT_FDCWD, os.fsencode(path), 0, STATX_BTIME, found):
        with files.translated(path):
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()), str(path))
    (known,), (born_s, more_ns) = struct.unpack_from("=I", found), struct.unpack_from("=qI", found, BTIME_AT)
    return int(born_s * 1_000_000_000 + more_ns) if known & STATX_BTIME else 0


def may_be_remote(path: Path) -> bool:
    """Whether another host may change or remove the files here. A mapping of such a file may kill this process."""
    return file_system(path) in {*NETWORK.values(), *OTHERS.values()}


def check_writable_file_system(path: Path, *, allow_any: bool) -> None:
    """Refuses to write where mapped files do not behave as the store needs. Raises StoreFormatError."""
    kind = file_system(path)
    if kind in NETWORK.values():
        raise StoreFormatError(
            f"the store is on a network file system ({kind}), where shared memory does not work: move it to a "
            "local disk",
            path=path,
        )
    if kind not in PROMISED.values() and not allow_any:
        raise StoreFormatError(
            f"file system {kind} is not one of {', '.join(PROMISED.values())}, and a full disk may kill the "
            "process there; "
            "set allow_any_file_system=True to accept that",
            path=path,
        )


class Identity(TypedDict):
    """See Control.attach."""

    boot_id: str
    pid_namespace: int
    c_library: str


def identity() -> Identity:
    """The facts that attached processes must share besides the layout: see Control.attach."""
    return {
        "boot_id": files.read_all(Path("/proc/sys/kernel/random/boot_id")).decode("ascii").strip(),
        "pid_namespace": pid_namespace(),
        "c_library": _c_library(),
    }


def pid_namespace(of: int | str = "self") -> int:
    """The inode of a process's PID namespace. Raises OSError for one that ended or belongs to another user."""
    return os.stat(f"/proc/{of}/ns/pid").st_ino


def own_ids_of(pid: int) -> tuple[int, int] | None:
    """(process id, PID namespace) of a process that this one can see, as it sees itself; None if it ended or belongs to
    another user."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text("ascii", "replace").splitlines()
        own = next((int(line.split()[-1]) for line in lines if line.startswith("NSpid:")), pid)
        return own, pid_namespace(pid)
    except OSError:
        return None


def _c_library() -> str:
    """The C library's name and version, if it tells them. It decides the layout of a mutex. One that takes the locks
    itself (free_lock.h) does not go together with one that does not."""
    try:
        name = os.confstr("CS_GNU_LIBC_VERSION") or "unknown"
    except ValueError:
        name = "not glibc"
    return name if locks_inline else f"{name}, its own locks"


def command_of(pid: int) -> str | None:
    """The command line of a process that this one can see; None if it ended."""
    try:
        arguments = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return None
    return arguments.replace(b"\0", b" ").decode("utf-8", "replace").strip()


def parent_of(pid: int) -> int | None:
    """The process that started one that this process can see, or that took it over; None if it ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    return int(fields[1])


def is_stopped(pid: int) -> bool:
    """Whether a process that this one can see is stopped (SIGSTOP, a debugger): it keeps its locks."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return False
    return fields[0] in (b"T", b"t")


def open_files_of(pid: int) -> tuple[int, int] | None:
    """(open, limit) of the descriptors of a process; None if it ended, has no limit, or is another user's."""
    try:
        count = len(os.listdir(f"/proc/{pid}/fd"))
        lines = Path(f"/proc/{pid}/limits").read_text("ascii").splitlines()
    except OSError:
        return None
    limit = next((line.split()[3] for line in lines if line.startswith("Max open files")), "unlimited")
    return (count, int(limit)) if limit.isdecimal() else None


def cgroup_files(controller: str, name: str, older_name: str) -> list[tuple[str, str]]:
    """(path, content) of a file of the control group of this process and of each group above, which limit it, too; the
    innermost first. `older_name` is the file's name in version 1."""
    found = []
    try:
        groups = Path("/proc/self/cgroup").read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return []
    for line in groups:
        _, controllers, group = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        root = CGROUPS / controller if controllers else CGROUPS
        for folder in (root / group.lstrip("/"), *(root / group.lstrip("/")).parents):
            if not folder.is_relative_to(root):
                break
            path = folder / (older_name if controllers else name)
            try:
                found.append((str(path), path.read_text("ascii").strip()))
            except (
                OSError
            ):  # the group of the host has none, and a container does not see groups above its own
                continue
    return found


def processes_with(path: Path) -> list[tuple[int, str]]:
    """(pid, command) of each other process that has a file open, by pid. Processes of other users and PID namespaces
    may not show."""
    with files.opened(path) as fd:
        status = os.fstat(fd)
        wanted = status.st_dev, status.st_ino
    found = []
    for pid in sorted(int(name) for name in os.listdir("/proc") if name.isdecimal()):
        if pid != os.getpid() and _has_open(pid, path.name, wanted):
            found.append((pid, command_of(pid) or "ended since"))
    return found


def _has_open(pid: int, name: str, wanted: tuple[int, int]) -> bool:
    folder = f"/proc/{pid}/fd"
    try:
        descriptors = os.listdir(folder)
    except OSError:  # it ended, or belongs to another user
        return False
    for descriptor in descriptors:
        try:
            if os.path.basename(os.readlink(f"{folder}/{descriptor}")) != name:
                continue
            status = os.stat(f"{folder}/{descriptor}")
        except OSError:  # closed meanwhile
            continue
        if (status.st_dev, status.st_ino) == wanted:
            return True
    return False
