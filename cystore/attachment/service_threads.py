"""The services of a store that this process runs in threads. They keep the parts of an attachment, not the store that
a program holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from cystore.attachment.attach import Attachment
from cystore.config import StoreConfig
from cystore.engine.files.progress import Progress
from cystore.services.service_waits import AppendWait, QuietWait
from cystore.services.threads import ServiceThread
from cystore.system.threads import os_threads

WAIT_SLICE_S = 0.25
DISPATCH_WAIT_MS = (
    100  # for another dispatcher: it may be stopped, and a stopped service thread ends within this
)
ALLOCATE_INTERVAL_S = 0.02
ALLOCATE_SLOW_S = 0.1  # while little is appended: each turn takes the interpreter from working threads
CLEAN_INTERVAL_S = 10.0  # RocketMQ's cleanResourceInterval
OFFSETS_INTERVAL_S = 1.0  # of the looks at a slave's offsets of groups; they are saved every five seconds
COMPACT_INTERVAL_S = 10.0  # RocketMQ: 15 minutes, however much there is to compact


def start_service(name: str, parts: Attachment, config: StoreConfig, threads: list[ServiceThread]) -> None:
    """Starts the threads of one service, and appends each to `threads` before it runs. Queues have a flush of their
    own, so that the log's does not wait for them."""
    control, flusher, derived = parts.control, parts.flusher, parts.derived_flusher
    match name:
        case "flush":
            _start_commit(parts, config, threads)
            log_s = config.flush_interval_commit_log_ms / 1000
            queues_s = config.flush_interval_consume_queue_ms / 1000
            _start_quiet(
                name,
                parts,
                parts.turn(flusher.run_once),
                lambda: flusher.idle,
                log_s,
                threads,
                lambda: flusher.urgent,
            )
            _start_quiet(
                "flush-queues",
                parts,
                parts.turn(parts.flush_derived_once),
                lambda: derived.idle and control.dispatched >= control.wrote,
                queues_s,
                threads,
                in_background=True,
            )
        case "allocate":
            _start_quiet(
                name,
                parts,
                parts.turn(parts.allocate_once),
                lambda: control.dispatched >= control.wrote,
                ALLOCATE_INTERVAL_S,
                threads,
                slow_s=ALLOCATE_SLOW_S,
                in_background=True,
            )
        case "schedule":
            ServiceThread(name, parts.turn(parts.scheduler.run_once), parts.scheduler.idle_s, among=threads)
        case "clean":
            turn = parts.turn(parts.cleaner.run_once)
            ServiceThread(name, turn, CLEAN_INTERVAL_S, among=threads, in_background=True)
        case "compact":
            turn = parts.turn(parts.compactor.run_once)
            ServiceThread(name, turn, COMPACT_INTERVAL_S, among=threads, in_background=True)
        case "ha":
            _start_replication(parts, config, threads)
        case _:
            stopping = os_threads.Flag()
            # It waits for the lock in its sleep. As there is more to do, it would ask for the lock again at once.
            run_once = parts.turn(partial(parts.dispatcher.run_once, timeout_ms=DISPATCH_WAIT_MS))
            wait = AppendWait(control, parts.sleepers, parts.look_while_quiet, stopping)
            ServiceThread(name, run_once, WAIT_SLICE_S, wait, flag=lambda: stopping, among=threads)


def _start_commit(parts: Attachment, config: StoreConfig, threads: list[ServiceThread]) -> None:
    """Starts the thread that commits; none in a store without a pool of buffers."""
    committer = parts.committer
    if committer is not None:
        _start_quiet(
            "commit",
            parts,
            parts.turn(committer.run_once),
            lambda: committer.idle,
            config.commit_interval_commit_log_ms / 1000,
            threads,
            lambda: committer.urgent,
        )


def _start_replication(parts: Attachment, config: StoreConfig, threads: list[ServiceThread]) -> None:
    """Starts the threads of replication; none in a store that is neither a slave nor a master of slaves."""
    from cystore.ha.role import role_of

    if parts.appender is None or not (config.ha_listen_port or role_of(parts.manifest.snapshot()).is_slave):
        return
    from cystore.ha.service import RETRY_S, Replication

    made: Callable[..., Any] = Replication
    if role_of(parts.manifest.snapshot()).is_elected:
        from cystore.ha.election.member import ElectedReplication

        made = ElectedReplication
    stopping = os_threads.Flag()
    from cystore.ha.facts.followed import FollowedFacts

    groups = None if parts.group_offsets is None else parts.group_offsets(parts)
    facts = FollowedFacts(
        parts.control,
        parts.manifest,
        parts.queues,
        parts.dispatcher,
        parts.remover,
        parts.compactor,
        parts.appender.policy,
        groups,
        config,
    )
    work = made(
        parts.control,
        parts.commit_log,
        parts.manifest,
        parts.cleaner.holds,
        parts.appender,
        config,
        stopping.is_set,
        groups,
        facts,
    )
    run_once = parts.turn(work.run_once)
    ServiceThread("ha", run_once, RETRY_S, flag=lambda: stopping, among=threads, at_end=work.close)
    if groups is not None:
        ServiceThread("ha-offsets", parts.turn(groups.save_once), OFFSETS_INTERVAL_S, among=threads)


def _start_quiet(
    name: str,
    parts: Attachment,
    run_once: Callable[[], Progress],
    idle: Callable[[], bool],
    interval_s: float,
    threads: list[ServiceThread],
    due: Callable[[], bool] | None = None,
    slow_s: float = 0.0,
    in_background: bool = False,
) -> None:
    """Starts a service that sleeps until the next append when there is nothing to do. Its next turn comes before the
    interval is over if its work is `due`."""
    stopping = os_threads.Flag()
    wait = QuietWait(
        parts.control,
        parts.sleepers,
        parts.look_while_quiet,
        idle,
        stopping,
        due,
        slow_s,
        lambda: parts.allocator.spectates,
    )
    ServiceThread(
        name,
        run_once,
        interval_s,
        wait,
        flag=lambda: stopping,
        among=threads,
        in_background=in_background,
    )
