"""Checks of the store, for `cystore doctor`: its state, users, clock, duties, damage, backlog."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from itertools import islice

from cystore import clock
from cystore._native.memory.locks import locks_inline
from cystore.cli.host.site import Content, Finding, Site, bad, ok, warn
from cystore.cli.look.verify import damage_of
from cystore.engine.inspect.control_head import AttachedProcess, attached_processes
from cystore.engine.manifest.manifest import read_facts
from cystore.layout import FLAGS
from cystore.operate import facts
from cystore.operate.command import UNITS_MS
from cystore.operate.exits import hint
from cystore.operate.output import size_text, time_text
from cystore.services.duty_table import Outcome
from cystore.system import platform

CLOCKS_DIFFER_MS = 5_000
DUTY_SILENT_MS = 15 * 60_000  # three times the pause of an idle duty
BEHIND_MS = 60_000  # dispatch and flush take a second or two
BEHIND_BYTES = 256 << 20
READ_ALL_BYTES = 64 << 20  # a shorter log is verified at once
DAMAGE_SHOWN = 10
PROCESSES_SHOWN = 12
NEEDED_DUTIES = ("clean_expired", "deliver_delayed", "chord_sweep")  # of each store of a Celery app


def _command(name: str, site: Site, more: str = "") -> str:
    """A command line on the store, for an advice."""
    return f"`cystore {name} {shlex.quote(str(site.path))}{more}`"


def directory(site: Site) -> Iterator[Finding]:
    """Whether a store is there, and its state."""
    state = site.state
    if site.is_absent:
        if site.config.create:
            yield warn(
                "there is no store here", "check PATH; the first process that opens it for writing makes it"
            )
        else:
            yield bad(
                "there is no store here, and create=false forbids to make one",
                "check that its disk is mounted; `celery -A APP cystore create` makes a new one",
            )
    elif state is None:
        error = site.trouble
        assert error is not None
        yield bad(str(error), hint(error).removeprefix("; "))
    elif state.name == "exclusive":
        yield warn(facts.STATES[state.name], "end that process, and run this again, to check the content")
    elif state.name == "crashed":
        yield warn(facts.STATES[state.name], f"{_command('recover', site, ' --dry-run')} shows what it finds")
    else:
        yield ok(facts.STATES[state.name])


def attached(site: Site) -> Iterator[Finding]:
    """The processes that have the store open, and whether they run."""
    state = site.state
    assert state is not None
    if state.name not in ("live", "exclusive"):
        yield ok("no process")
        return
    processes = attached_processes(site.path)
    named = ", ".join(_named(process) for process in processes[:PROCESSES_SHOWN])
    more = f" and {len(processes) - PROCESSES_SHOWN} more" if len(processes) > PROCESSES_SHOWN else ""
    if processes:
        yield ok(f"process {named}{more}")
    else:
        yield ok("processes that this one cannot see: of another user or PID namespace")
    here = [process.pid for process in processes if process.pid_namespace is None]
    stopped = [str(pid) for pid in here if platform.is_stopped(pid)]
    if stopped:
        yield bad(
            f"stopped: process {', '.join(stopped)}; if it holds a lock, every other process waits",
            f"kill -CONT {' '.join(stopped)}, or end it",
        )
    if state.name == "live" and site.attached is None:
        yield bad(
            "their control block is gone, or damaged", "stop these processes, then open the store again"
        )
    request = facts.standing_request(site.path)
    if request is not None:
        yield warn("the attached processes are asked to leave", f"if nobody upgrades now: {request}")


def _named(process: AttachedProcess) -> str:
    return str(process.pid) if process.pid_namespace is None else f"{process.pid} {process.command}"


def namespace(site: Site) -> Iterator[Finding]:
    """The PID namespaces of the writers and of this process. Writers may be in any, unless the C library takes their
    locks."""
    own = platform.pid_namespace()
    live = site.state is not None and site.state.name == "live"
    others = {p.pid_namespace for p in attached_processes(site.path)} - {None} if live else set()
    if not others:
        yield ok(str(own))
        return
    named = ", ".join(str(number) for number in sorted(filter(None, others)))
    text = f"this process is in PID namespace {own}, others are in {named}"
    if locks_inline or site.config.read_only:
        yield ok(text)
    else:
        yield bad(
            f"{text}: with this C library a writer is refused here",
            "start the containers with --pid=host, or in one pod with shareProcessNamespace; readers set read_only",
        )


def content(site: Site) -> Iterator[Finding]:
    """Reads what an attached process sees: positions, queues, clock, duties."""
    if not site.look():
        yield warn("cannot be read beside the processes that have the store", "see the lines above")
        return
    found = _seen(site)
    at = found.positions["positions"]
    stopped = [FLAGS[f"FLAG_{flag.upper()}"][1] for flag in found.positions["flags"]]
    if stopped:
        yield bad(
            f"nothing can be written: {'; '.join(stopped)}",
            "a full disk: make space; a failed sync: check the disk, then restart the processes that have the store",
        )
    yield ok(f"log from {at['min_physical_offset']} to {at['wrote']}, {at['queues']} queues")
    if found.positions["recovery"] is not None and site.state is not None and site.state.name == "crashed":
        yield ok(f"the next open will find: {found.positions['recovery']}")


def _seen(site: Site) -> Content:
    assert site.content is not None
    return site.content


def store_clock(site: Site) -> Iterator[Finding]:
    """The store's time beside the wall clock."""
    found = _seen(site).times
    behind = found["now_ms"] - found["wall_clock_ms"]
    newest = found["last_store_timestamp_ms"] - found["wall_clock_ms"]
    if found["ahead_ms"]:
        yield warn(
            f"the wall clock is {found['ahead_ms'] / 1000:.0f} s ahead of the store, and not believed",
            f"set the host's clock; if it is right: {_command('clock', site, ' --believe')}",
        )
    elif max(behind, newest) > CLOCKS_DIFFER_MS:
        yield warn(
            f"the store is {max(behind, newest) / 1000:.0f} s ahead of the wall clock",
            "set the host's clock; until it is past the newest message, expiry and delays wait",
        )
    else:
        yield ok(f"{time_text(found['now_ms'])}, as the wall clock")


def backlog(site: Site) -> Iterator[Finding]:
    """Log that is not dispatched, and log that is not on disk."""
    found = _seen(site)
    at, now_ms = found.positions["positions"], clock.now_ms()
    live = site.state is not None and site.state.name == "live"
    rows = (
        ("dispatch", at["dispatch_behind_bytes"], found.undispatched_since_ms,
         "a worker, or a process with services=all, dispatches; look for a stopped process"),
        ("flush", at["wrote"] - at["flushed"], found.unflushed_since_ms,
         "check the disk, and that a process has the flush service; a power cut now loses this"),
    )  # fmt: skip
    for name, behind_bytes, since_ms, advice in rows:
        text = f"{name} is {size_text(max(behind_bytes, 0))} behind"
        age_ms = now_ms - since_ms if since_ms and behind_bytes > 0 else 0
        if live and (age_ms > BEHIND_MS or behind_bytes > BEHIND_BYTES):
            yield warn(f"{text}, since {time_text(since_ms)}" if since_ms else text, advice)
        else:
            yield ok(text)


def duties(site: Site) -> Iterator[Finding]:
    """The last run of each duty that a store of a Celery app needs."""
    found = _seen(site)
    if site.state is None or site.state.name != "live":
        yield ok("no process has the store open")
        return
    waiting = sum(level["pending"] for level in found.positions["delayed"])
    runs = {name: run for name, run in found.runs.items() if run.runs}
    if not runs:
        text = "no worker has done one since the first process opened the store"
        if waiting:
            yield warn(f"{text}, and {waiting} delayed messages wait", "start a worker, or use services=all")
        else:
            yield ok(f"{text}; services of the attached processes do their own work")
        return
    now_ms = clock.now_ms()
    for name, lease in found.leases.items():
        who = f"process {lease.pid}" if lease.pid else "a process of another PID namespace"
        yield ok(f"{who} has the lease of {name}, in the store")
    for name, run in runs.items():
        age_ms = max(now_ms - run.begun_ms, 0)
        where = f"process {run.pid}" if run.pid else "another PID namespace"
        last = f"{name} ran {age_ms / 1000:.0f} s ago in {where}: {run.outcome.name.lower()}"
        if run.outcome is Outcome.FAILED:
            yield bad(last, "the log of that worker has the error")
        elif name in NEEDED_DUTIES and age_ms > DUTY_SILENT_MS:
            yield warn(last, "check that a worker of this store runs: its main process does the duties")
        else:
            yield ok(last)


def damage(site: Site) -> Iterator[Finding]:
    """Damage that is known: holes, lost queue offsets, compacted values."""
    found = site.files
    restore = "restore from a snapshot or a replica what you need (docs/recovery.md)"
    if found["holes"]:
        first = found["holes"][0]
        yield bad(
            f"{len(found['holes'])} damaged ranges of the log; the first: {first['begin']}..{first['end']}, "
            f"{first['reason']}",
            f"{_command('quarantine list', site)} lists the copies of them; {restore}",
        )
    lost = sum(one["end"] - one["begin"] for one in found["given_up"])
    if lost:
        yield bad(f"{lost} messages of queues are lost", f"{_command('info', site)} names them; {restore}")
    compaction = found["compaction"]
    if compaction is not None and (compaction["missing"] or compaction["damaged"]):
        yield bad(
            "compacted values are damaged or missing", f"{_command('info', site)} names them; {restore}"
        )
    if found["skipped"]:
        yield warn(
            f"{len(found['skipped'])} entries of the manifest have no effect", f"see {_command('info', site)}"
        )
    if not (found["holes"] or lost):
        yield ok("none is known")


def records(site: Site) -> Iterator[Finding]:
    """Every checksum, and queues and index against the log; of a long log only if asked for."""
    state = site.state
    assert state is not None
    if site.content is None and state.name in ("live", "exclusive"):
        return  # the end of the log is unknown
    log_bytes = sum(segment["allocated_bytes"] for segment in site.files["segments"])
    verify = _command("verify", site)
    if log_bytes > READ_ALL_BYTES and not site.reads_all:
        yield ok(f"not read ({size_text(log_bytes)} of log): --verify reads all")
        return
    config = site.given.but(read_only=True, services=())
    found = list(islice(damage_of(site.path, config, state), DAMAGE_SHOWN))
    for one in found:
        yield bad(f"{one.kind} {one.path} {one.begin}..{one.end}: {one.reason}", f"{verify} lists all damage")
    if not found:
        yield ok(f"every record is intact ({size_text(log_bytes)} of log)")


def holds(site: Site) -> Iterator[Finding]:
    """The needs that keep expired segments from cleaning."""
    paused = read_facts(site.path)[0].paused
    if paused:
        yield bad(
            f"cleaning is paused: {paused}",
            f"set all needed holds, then {_command('config', site, ' --resume-cleaning')}",
        )
    kept_ms, now_ms = site.config.file_reserved_time_h * UNITS_MS["h"], clock.now_ms()
    needs = _seen(site).positions["needs"]
    for need in needs:
        text = f"{need['owner']} holds {size_text(need['bytes'])} of log"
        if need["since_ms"] is not None and now_ms - need["since_ms"] > kept_ms > 0:
            yield warn(
                f"{text} since {time_text(need['since_ms'])}, longer than the retention",
                "look for the reader, job or dispatcher of that name; remove its hold if it is gone for good",
            )
        else:
            yield ok(text)
    if not needs:
        yield ok("nothing but the retention keeps the log")
