"""The services of a store that this process runs in threads. They keep the parts of an attachment, not the store that a program holds."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from cystore._native.control import Control
from cystore.attach import Attachment
from cystore.config import StoreConfig
from cystore.engine.progress import Progress
from cystore.services.idle import QuietWait
from cystore.services.threads import ServiceThread
from cystore.system import os_threads

WAIT_SLICE_S = 0.25
ALLOCATE_INTERVAL_S = 0.02
CLEAN_INTERVAL_S = 10.0  # RocketMQ's cleanResourceInterval


def service_threads(name: str, parts: Attachment, config: StoreConfig) -> list[ServiceThread]:
    """The threads of one service. Queues are flushed apart from the log, which must not wait for them."""
    control, flusher, derived = parts.control, parts.flusher, parts.derived_flusher
    match name:
        case "flush":
            log_s = config.flush_interval_commit_log_ms / 1000
            queues_s = config.flush_interval_consume_queue_ms / 1000
            return [
                _quiet_thread(name, parts, parts.turn(flusher.run_once), lambda: flusher.idle, log_s),
                _quiet_thread(
                    "flush-queues",
                    parts,
                    parts.turn(parts.flush_derived_once),
                    lambda: derived.idle and control.dispatched >= control.wrote,
                    queues_s,
                ),
            ]
        case "allocate":
            return [
                _quiet_thread(
                    name,
                    parts,
                    parts.turn(parts.allocate_once),
                    lambda: control.dispatched >= control.wrote,
                    ALLOCATE_INTERVAL_S,
                )
            ]
        case "schedule":
            return [ServiceThread(name, parts.turn(parts.scheduler.run_once), parts.scheduler.idle_s)]
        case "clean":
            return [ServiceThread(name, parts.turn(parts.cleaner.run_once), CLEAN_INTERVAL_S)]
        case _:
            wait = partial(_wait_for_appends, control)
            return [ServiceThread(name, parts.turn(parts.dispatcher.run_once), WAIT_SLICE_S, wait)]


def _quiet_thread(
    name: str,
    parts: Attachment,
    run_once: Callable[[], Progress],
    idle: Callable[[], bool],
    interval_s: float,
) -> ServiceThread:
    """A service that sleeps until the next append when there is nothing to do."""
    stopping = os_threads.Flag()
    wait = QuietWait(parts.control, idle, stopping)
    return ServiceThread(name, run_once, interval_s, wait, flag=lambda: stopping)


def _wait_for_appends(control: Control, timeout_s: float) -> None:
    seen = control.append_seq
    if control.dispatched >= control.wrote:
        control.wait_append(seen, int(timeout_s * 1000))
