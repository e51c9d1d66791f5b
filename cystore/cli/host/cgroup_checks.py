"""Checks of the control groups of this process (a unit, a container), for `cystore doctor`."""

from __future__ import annotations

from collections.abc import Iterator

from cystore.cli.host.site import Finding, Site, bad, ok, warn
from cystore.operate.output import size_text
from cystore.system import platform

NO_LIMIT_FROM = 1 << 60  # version 1 writes a number near 2**63 for none
MEMORY_LEAST, MEMORY_FEW = 64 << 20, 256 << 20
PROCESSES_LEAST, PROCESSES_FEW = 16, 128
USED = 0.9


def _smallest(controller: str, name: str, older_name: str) -> tuple[int, str] | None:
    """The limit that holds, and the file that has it; None for none."""
    limits = [
        (int(text), path)
        for path, text in platform.cgroup_files(controller, name, older_name)
        if text.isdecimal() and int(text) < NO_LIMIT_FROM
    ]
    return min(limits, default=None)


def _now(controller: str, name: str, older_name: str, limit_path: str) -> int | None:
    """A count of the group that has a limit; None where it cannot be read."""
    folder = limit_path.rpartition("/")[0]
    for path, text in platform.cgroup_files(controller, name, older_name):
        if path.rpartition("/")[0] == folder and text.isdecimal():
            return int(text)
    return None


def memory(site: Site) -> Iterator[Finding]:
    """Memory of the group. Pages of the log that are in use count, too, and leave when others need the room."""
    limit = _smallest("memory", "memory.max", "memory.limit_in_bytes")
    segment = site.config.mapped_file_size_commit_log_bytes
    if limit is None:
        yield ok("no control group limits memory")
        return
    text, advice = (
        f"{size_text(limit[0])} of memory ({limit[1]})",
        "a larger MemoryMax= in the unit, or --memory",
    )
    if limit[0] < MEMORY_LEAST:
        yield bad(f"{text}: too little for a worker with its store", advice)
    elif limit[0] < max(MEMORY_FEW, segment):
        yield warn(
            f"{text}: less than a worker and a segment ({size_text(segment)}); the log is read from disk",
            advice,
        )
    else:
        yield ok(text)


def processes(site: Site) -> Iterator[Finding]:
    """Processes and threads of the group."""
    limit = _smallest("pids", "pids.max", "pids.max")
    if limit is None:
        yield ok("no control group limits processes")
        return
    used = _now("pids", "pids.current", "pids.current", limit[1])
    text = f"{limit[0]} processes and threads ({limit[1]}), {used if used is not None else '?'} in use"
    advice = "a larger TasksMax= in the unit, or --pids-limit"
    if limit[0] < PROCESSES_LEAST:
        yield bad(f"{text}: too few for a worker with its pool", advice)
    elif limit[0] < PROCESSES_FEW or (used is not None and used > USED * limit[0]):
        yield warn(f"{text}: a worker needs several threads for each process of its pool", advice)
    else:
        yield ok(text)


def disk(site: Site) -> Iterator[Finding]:
    """Limits of reading and writing, of which a worker waits without knowing why."""
    found = [
        f"{path}: {text.replace(chr(10), '; ')}"
        for name in ("io.max",)
        for path, text in platform.cgroup_files("io", name, name)
        if text
    ]
    for kind in ("read", "write"):
        for what in ("bps", "iops"):
            name = f"blkio.throttle.{kind}_{what}_device"
            found += [f"{path}: {text}" for path, text in platform.cgroup_files("blkio", name, name) if text]
    if found:
        yield warn(
            f"a control group limits the disk: {', '.join(found)}; each sync waits for its turn",
            "no IOReadBandwidthMax=, IOWriteBandwidthMax= and the like in the unit, or larger ones",
        )
    else:
        yield ok("no control group limits the disk")
