"""`cystore doctor`: checks a store and its host in one go, and says what to do."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

from cystore.cli.host import cgroup_checks, host_checks, redis_checks, store_checks
from cystore.cli.host.site import Check, Finding, Site, bad
from cystore.errors import StoreError
from cystore.operate.command import FOUND_WRONG, OK, Command, add_json, store_config
from cystore.operate.exits import hint
from cystore.operate.output import one_line, write_json, write_line

# In this order. A check that needs the content of the store comes after `content`, which reads it.
CHECKS: tuple[Check, ...] = (
    Check("directory", "whether a store is there, and its state", store_checks.directory),
    Check("file system", "its kind: network file systems, overlay, tmpfs", host_checks.file_system),
    Check("space", "free bytes and inodes, against the store's settings", host_checks.space),
    Check("owner", "who may write, and who could replace the store", host_checks.owner),
    Check("attached", "who has it open, who of them is stopped, requests to leave", store_checks.attached, "store"),
    Check("namespace", "the PID namespaces of this process and of the writers", store_checks.namespace),
    Check("layout", "the version that has the store open", host_checks.layout, "store"),
    Check("versions", "cystore, Python, the kernel", host_checks.versions),
    Check("celery", "the version of Celery", host_checks.celery),
    Check("redis-py", "the version of redis-py", host_checks.redis_py),
    Check("open files", "descriptors, here and in the attached processes", host_checks.open_files),
    Check("threads", "threads and processes of this user", host_checks.threads),
    Check("address space", "room for mapped segments", host_checks.address_space),
    Check("file size", "the longest file", host_checks.file_size),
    Check("locked memory", "if `active_segment_memory` asks for it", host_checks.locked_memory),
    Check("mappings", "`vm.max_map_count` beside the files of the store", host_checks.mappings),
    Check("group memory", "memory of the control group, of a unit or a container", cgroup_checks.memory),
    Check("group processes", "processes of the control group", cgroup_checks.processes),
    Check("group disk", "limits of reading and writing of the control group", cgroup_checks.disk),
    Check("content", "positions, queues, the reasons why nothing can be written", store_checks.content, "store"),
    Check("clock", "the store's time beside the wall clock", store_checks.store_clock, "content"),
    Check("backlog", "log that is not dispatched, or not on disk", store_checks.backlog, "content"),
    Check("duties", "when each ran last, and its outcome", store_checks.duties, "content"),
    Check("holds", "what keeps the log from cleaning", store_checks.holds, "content"),
    Check("damage", "known damage: holes, lost offsets, compacted values", store_checks.damage, "store"),
    Check("records", "every checksum, if the log has at most 64 MiB, or with --verify", store_checks.records, "store"),
    Check("redis", "whether it answers (with --redis)", redis_checks.reachable),
    Check("redis role", "whether it is a master", redis_checks.role, "redis"),
    Check("redis persistence", "`appendonly`", redis_checks.persistence, "redis"),
    Check("redis eviction", "`maxmemory-policy`", redis_checks.eviction, "redis"),
)  # fmt: skip
WIDTH = max(len(check.name) for check in CHECKS)


def findings(site: Site) -> Iterator[tuple[Check, Finding]]:
    """Each finding of each check, in order. An error inside a check is its finding."""
    for check in CHECKS:
        if not site.has(check.needs):
            continue
        try:
            for finding in check.run(site):
                yield check, finding
        except StoreError as error:
            yield check, bad(str(error), hint(error).removeprefix("; "))
        except OSError as error:
            yield check, bad(str(error), "check the path and the rights of this user")


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--redis", metavar="URL", default="", help="check this Redis, too; a password may stand in "
                        "the environment: CYSTORE_REDIS_PASSWORD")  # fmt: skip
    parser.add_argument("--verify", action="store_true", help="read every record, however long the log is")
    add_json(parser, "one JSON object")


def report(site: Site, *, as_json: bool) -> int:
    """Writes the findings; returns the exit code."""
    counts = {"ok": 0, "warn": 0, "bad": 0}
    rows: list[dict[str, Any]] = []
    for check, finding in findings(site):
        counts[finding.level] += 1
        if as_json:
            rows.append({"check": check.name, **finding._asdict()})
            continue
        write_line(f"{finding.level:<4}  {check.name:<{WIDTH}}  {one_line(finding.found)}")
        if finding.advice:
            write_line(f"      {'':<{WIDTH}}  -> {one_line(finding.advice)}")
    worst = next(level for level in ("bad", "warn", "ok") if counts[level] or level == "ok")
    if as_json:
        write_json({"path": str(site.path), "status": worst, "counts": counts, "checks": rows})
    else:
        write_line(f"{counts['bad']} bad, {counts['warn']} to look at, {counts['ok']} ok")
    return FOUND_WRONG if worst == "bad" else OK


def _run(args: argparse.Namespace) -> int:
    site = Site(args.path, store_config(args), redis_url=args.redis, reads_all=args.verify)
    return report(site, as_json=args.json)


COMMAND = Command(
    name="doctor",
    summary="checks a store and its host in one go, and says what to do",
    description=(
        "Writes a line for each check: ok, warn or bad, what was found, and below it what to do. Works for a store in "
        "any\n"
        "state, and where none is. Changes nothing. Limits are those of this process: run it as a worker is run (the "
        "same user,\n"
        "`systemd-run -p`, the same container). Exit code 1: something is bad."
    ),
    examples=(
        "cystore doctor /var/lib/app/store",
        "cystore doctor /var/lib/app/store --redis redis://localhost:6379/0 --json",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
