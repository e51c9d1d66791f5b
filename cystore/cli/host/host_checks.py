"""Checks of the host, for `cystore doctor`: disk, owner, limits, versions."""

from __future__ import annotations

import os
import resource
import shlex
import sys
from collections.abc import Iterator

import cystore
from cystore.cli.host.site import Finding, Site, bad, ok, warn
from cystore.engine.files.log_folders import LogFolders
from cystore.engine.files.mappings import mapping_limit
from cystore.engine.inspect.control_head import OURS
from cystore.engine.log.disk_space import space_for, why_full
from cystore.errors import StoreError, StorePermissionError
from cystore.operate.exits import hint
from cystore.operate.output import size_text
from cystore.system import file_system as whole_file_system
from cystore.system import ownership, platform

SEGMENTS_AHEAD = 2  # the one that is written to, and the next one
INODES_LEAST, INODES_FEW = 10, 1_000
OPEN_FILES_LEAST, OPEN_FILES_FEW = 64, 1_024
OPEN_FILES_USED = 0.8  # of the limit of a process that has the store
THREADS_FEW = 256
MAPPINGS_FEW = 65_530  # the default of Linux
REDIS_PY_LEAST = 5
PYTHON_LEAST = (3, 11)


# ---------------------------------------------------------------------------------------------------- the disk


def file_system(site: Site) -> Iterator[Finding]:
    """The kind of the file system, and whether it is mounted read-only."""
    kind = platform.file_system(site.place)
    local = "move the store to a local disk with ext4 or XFS"
    if kind in platform.NETWORK.values():
        yield bad(
            f"{kind}: a network file system, where shared memory does not work; writers are refused", local
        )
    elif kind in platform.PROMISED.values():
        if kind == "tmpfs":
            yield warn("tmpfs: a restart of the host loses the store", f"if its messages must last, {local}")
        else:
            yield ok(kind)
    elif site.config.allow_any_file_system:
        yield warn(f"{kind}: not tested, and allowed by allow_any_file_system", f"if you can, {local}")
    else:
        what = "a container's own files, which vanish with it" if kind == "overlay" else "not tested"
        yield bad(f"{kind}: {what}; writers are refused", f"{local}, or mount such a directory here")
    if os.statvfs(site.place).f_flag & os.ST_RDONLY:
        yield warn(
            "mounted read-only: processes can only read", "mount it for writing where a process writes"
        )


def space(site: Site) -> Iterator[Finding]:
    """Free bytes and inodes, against the settings of the store."""
    config = site.config
    folders = LogFolders.of(site.path) if site.state is not None else None
    found = space_for(site.place, folders)
    text = f"{size_text(found.free_bytes)} free, {found.used_percent:.1f} % used"
    ahead = SEGMENTS_AHEAD * config.mapped_file_size_commit_log_bytes
    room = "make space: remove other files, or shorten file_reserved_time_h with `cystore config`"
    if reason := why_full(found, config):
        yield bad(f"{text}; puts are refused: {reason}", room)
    elif found.used_percent > config.disk_space_clean_forcibly_ratio:
        yield warn(f"{text}, more than disk_space_clean_forcibly_ratio; puts are refused soon", room)
    elif found.free_bytes < ahead:
        yield warn(f"{text}; {SEGMENTS_AHEAD} segments of the log take {size_text(ahead)}", room)
    else:
        yield ok(text)
    status = os.statvfs(site.place)
    if status.f_files:  # some file systems have no table of inodes
        count = f"{status.f_favail} inodes free"
        if status.f_favail < INODES_LEAST:
            yield bad(f"{count}: no file can be made", "remove files that nobody needs, see `df -i`")
        elif status.f_favail < INODES_FEW:
            yield warn(
                f"{count}: each queue of a topic needs some", "remove files that nobody needs, see `df -i`"
            )
        else:
            yield ok(count)


def owner(site: Site) -> Iterator[Finding]:
    """Whether this user may write, and whether another user could replace the store."""
    user = f"user {os.geteuid()}"
    if site.config.read_only:
        yield ok(f"{user} reads only (setting read_only)")
        return
    if not os.access(site.place, os.W_OK | os.X_OK):
        yield warn(
            f"{user} may only read {site.place}",
            "run what writes as the owner, or share the store (setting group)",
        )
        return
    if site.config.allow_any_owner:
        yield ok(f"{user} may write; not checked, because of allow_any_owner: who else may")
        return
    group = ownership.group_id(site.config.group)
    try:
        ownership.check_way(site.path, group)
        if site.state is not None:
            ownership.check_store(site.path, group)
    except StorePermissionError as error:
        if os.geteuid() == 0 and site.state is not None and site.path.stat().st_uid != 0:
            yield warn(f"checked as root: {error}", "run this as the store's owner, too")
        else:
            yield bad(str(error), hint(error).removeprefix("; "))
    else:
        yield ok(f"{user} may write, and no other user may replace the store")


# -------------------------------------------------------------------------------------------------- the limits


def _limit(number: int) -> int | None:
    """The limit that holds for this process; None for none."""
    limit = resource.getrlimit(number)[0]
    return None if limit == resource.RLIM_INFINITY else limit


def open_files(site: Site) -> Iterator[Finding]:
    """Descriptors that this process may have, and those of the processes that have the store."""
    limit, advice = _limit(resource.RLIMIT_NOFILE), "LimitNOFILE=65536 in the unit, or `ulimit -n 65536`"
    text = f"{limit if limit is not None else 'any number of'} open files in a process"
    if limit is not None and limit < OPEN_FILES_LEAST:
        yield bad(f"{text}: too few for a store and a client", advice)
    elif limit is not None and limit < OPEN_FILES_FEW:
        yield warn(f"{text}: few for a worker with its pool", advice)
    else:
        yield ok(text)
    for process in () if site.attached is None else site.attached["processes"]:
        if process["pid_namespace"] is not None:
            continue
        used = platform.open_files_of(process["pid"])
        if used is not None and used[0] > OPEN_FILES_USED * used[1]:
            yield warn(f"process {process['pid']} has {used[0]} of {used[1]} files open", advice)


def threads(site: Site) -> Iterator[Finding]:
    """Threads and processes that this user may have."""
    limit = _limit(resource.RLIMIT_NPROC)
    if limit is not None and limit < THREADS_FEW and os.geteuid() != 0:  # root has no such limit
        advice = "TasksMax= and LimitNPROC= in the unit, or `ulimit -u`"
        yield warn(f"{limit} threads and processes for this user: few for a worker with its pool", advice)
    else:
        yield ok(f"{limit if limit is not None else 'any number of'} threads and processes for this user")


def address_space(site: Site) -> Iterator[Finding]:
    """The address space of a process, in which segments are mapped."""
    limit, segment = _limit(resource.RLIMIT_AS), site.config.mapped_file_size_commit_log_bytes
    if limit is None:
        yield ok("no limit of the address space")
        return
    advice = "no LimitAS= in the unit, or a larger `ulimit -v`"
    text = f"{size_text(limit)} of address space, segments of {size_text(segment)}"
    if limit < SEGMENTS_AHEAD * segment:
        yield bad(f"{text}: two do not fit", advice)
    elif limit // 4 < SEGMENTS_AHEAD * segment:
        yield warn(
            f"{text}: a store uses a quarter for files that stay mapped, and maps them again and again",
            advice,
        )
    else:
        yield ok(text)


def file_size(site: Site) -> Iterator[Finding]:
    """The longest file that a process may write."""
    limit, segment = _limit(resource.RLIMIT_FSIZE), site.config.mapped_file_size_commit_log_bytes
    if limit is not None and limit < segment:
        text = f"files of at most {size_text(limit)}, and a segment has {size_text(segment)}"
        yield bad(text, "no LimitFSIZE= in the unit, or `ulimit -f unlimited`")
    else:
        yield ok("files may be as long as a segment")


def locked_memory(site: Site) -> Iterator[Finding]:
    """Memory that a process may lock, if the store asks for that."""
    if site.config.active_segment_memory != "lock":
        yield ok("no memory is locked (active_segment_memory)")
        return
    limit = _limit(resource.RLIMIT_MEMLOCK)
    needed = SEGMENTS_AHEAD * site.config.mapped_file_size_commit_log_bytes
    if limit is not None and limit < needed:
        text = f"{size_text(limit)} may be locked, and active_segment_memory=lock needs {size_text(needed)}"
        yield warn(f"{text}; the store works without", "a larger LimitMEMLOCK= in the unit")
    else:
        yield ok(f"{size_text(needed)} may be locked")


def mappings(site: Site) -> Iterator[Finding]:
    """Mappings that a process may have, beside the files of the store."""
    most = mapping_limit()
    count = site.files["disk"]["total"]["files"] if site.state is not None else 0
    text = f"a store keeps at most {most} files mapped, and has {count}"
    advice = f"sysctl vm.max_map_count={max(4 * MAPPINGS_FEW, 4 * count)}"
    if most < MAPPINGS_FEW // 2:
        yield warn(f"{text}; vm.max_map_count is below the default of {MAPPINGS_FEW}", advice)
    elif count > most:
        yield warn(f"{text}: it maps them again and again", advice)
    else:
        yield ok(text)


# ------------------------------------------------------------------------------------------------ the versions


def versions(site: Site) -> Iterator[Finding]:
    """cystore, Python, the kernel."""
    python = ".".join(map(str, sys.version_info[:3]))
    text = f"cystore {cystore.__version__} with layout {OURS.layout_version}, Python {python}"
    if sys.version_info[:2] < PYTHON_LEAST:
        yield bad(text, "use Python 3.11 or newer")
    else:
        yield ok(text)
    kernel = f"Linux {os.uname().release}"
    if whole_file_system.tells_errors():
        yield ok(kernel)
    else:
        advice = (
            "use 5.8 or newer, whose syncfs reports failed writes; until then each file is synced by itself"
        )
        yield warn(kernel, advice)


def layout(site: Site) -> Iterator[Finding]:
    """The version that has the store open now."""
    attached = site.attached
    if attached is None:
        is_free = site.state is not None and site.state.name in ("closed", "crashed")
        yield ok("no process has the store open, so this version can" if is_free else "not known")
        return
    theirs = f"attached is cystore {attached['release'] or '(older)'} with layout {attached['layout_version'] or '?'}"
    if attached["is_ours"]:
        yield ok(theirs)
        return
    advice = (
        f"upgrade one of both: cystore handover {shlex.quote(str(site.path))} asks the attached ones to leave"
    )
    if attached["can_be_followed"]:
        yield warn(f"{theirs}, and this version can only read beside it", advice)
    else:
        yield bad(f"{theirs}, and this version cannot attach beside it", advice)


def celery(site: Site) -> Iterator[Finding]:
    """The version of Celery, for the plugin."""
    version = _installed("celery")
    if version is None:
        yield ok("not installed")
        return
    try:
        from cystore.celery.versions import check

        check(version)
    except StoreError as error:  # the import refuses, too
        yield bad(str(error), "install a version that is supported")
    else:
        yield ok(version)


def redis_py(site: Site) -> Iterator[Finding]:
    """The version of redis-py, for duties and for results of other hosts."""
    version = _installed("redis")
    if version is None:
        if site.redis_url:
            yield bad("not installed", "pip install 'cystore[redis]'")
        else:
            yield ok("not installed")
    elif int(version.partition(".")[0]) < REDIS_PY_LEAST:
        yield bad(f"{version}: too old", "pip install 'cystore[redis]'")
    else:
        yield ok(version)


def _installed(package: str) -> str | None:
    from importlib import metadata

    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None
