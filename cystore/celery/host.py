"""What a worker's main process does for its store: it says that it lives, and does a duty itself when nobody else does.

A thread of the main process (a greenlet, where those are threads): pool processes are busy with tasks, or there is no beat, or the
broker is gone. The pool forks from this process at any moment, so nothing that the thread locks may be needed in a child as it is: the
store attaches anew after a fork, connections to Redis are forgotten, the thread itself is not there. A kill leaves a heartbeat that
runs out in 20 s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from typing import Any

from celery import bootsteps
from celery.exceptions import ImproperlyConfigured
from kombu.utils.compat import detect_environment

from cystore import FencedError, MessageStore, StoreError, StoreTimeoutError
from cystore.celery import duties, greenlets, queues, registry
from cystore.celery.backend import CystoreBackend
from cystore.celery.duties import ALL, REPUT, Held
from cystore.celery.identity import store_id_of
from cystore.celery.redis_urls import RedisAwayError
from cystore.clock import monotonic_s, now_ms
from cystore.engine.progress import Progress
from cystore.services.duties import DutyRun, Outcome
from cystore.services.threads import ServiceThread

log = logging.getLogger("cystore.celery")

LOOK_S = 0.5
MISSED_PERIODS = 3
JOIN_S = 10.0
REPUT_WAIT_S = 0.25
NOTE_S = 1.0
ASK_AGAIN_S = 1.0  # for a lease that somebody else has


class DutyHost(bootsteps.StartStopStep):
    """The bootstep; for workers whose result backend is a store. Setting `cystore_host_reput`: dispatch by this process, at once."""

    label = "cystore duties"
    requires = ("celery.worker.components:Pool",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._threads: list[ServiceThread] = []
        self._loop: ReputLoop | None = None

    @staticmethod
    def take_part(worker: Any) -> None:
        """Before the worker's blueprint is made: it listens to its store's queue, and gets this step. One without a store does not;
        one whose store cannot be opened says why, and its tasks will say it again."""
        app = worker.app
        if not isinstance(app.backend, CystoreBackend):
            log.debug("no duties: the result backend is no store")
            return
        try:
            queues.consume_own_queue(app, store_id_of(app.backend.store))
            duties.coordination_for(app)  # says what is wrong with its settings
        except (StoreError, ImproperlyConfigured) as error:
            log.error("this worker does no duties: %s", error)
            return
        app.steps["worker"].add(DutyHost)
        for name in ("celery.worker.strategy", "celery.app.trace"):
            logging.getLogger(name).addFilter(_no_ticks)

    def start(self, parent: Any) -> None:
        """After the pool: its first processes were forked without this thread."""
        store = duties.store_of(parent.app)
        hosts_reput = bool(parent.app.conf.get("cystore_host_reput"))
        roles = ("worker", "reput") if hosts_reput else ("worker",)
        keeper = Keeper(parent.app, store, parent.hostname, roles)
        # It asks Redis and sends the bodies of chords: with the worker's own connections, so in the worker's own hub.
        self._threads = [
            ServiceThread("duties", keeper.run_once, LOOK_S, thread=greenlets.Thread, flag=threading.Event)
        ]
        if hosts_reput:
            if detect_environment() == "default":
                self._loop = ReputLoop(parent.app, store)
                self._threads.append(
                    ServiceThread("reput", self._loop.run_once, REPUT_WAIT_S, self._loop.wait)
                )
            else:
                log.warning(
                    "cystore_host_reput: not under %s, where one thread does all", detect_environment()
                )

    def stop(self, parent: Any) -> None:
        """Ends the threads; a duty that is at work ends its step."""
        for thread in self._threads:
            thread.stop()
        for thread in self._threads:
            thread.join(JOIN_S)
        if self._loop is not None:
            self._loop.release()

    terminate = stop


def _no_ticks(record: logging.LogRecord) -> bool:
    """Keeps what Celery says of each tick that goes well, a few lines a second, out of the worker's log."""
    about = record.args if isinstance(record.args, Mapping) else {}
    return record.levelno > logging.INFO or not str(about.get("name", "")).startswith("cystore.")


class Keeper:
    """Heartbeats, and duties that nobody did for three periods."""

    def __init__(self, app: Any, store: MessageStore, worker: str, roles: tuple[str, ...]) -> None:
        self._app, self._store, self._worker, self._roles = app, store, worker, roles
        self._store_id = store_id_of(store)
        self._began, self._next_beat = monotonic_s(), 0.0
        self._alone = False
        self._mine: dict[str, int] = {}

    def run_once(self) -> Progress:
        """One look."""
        if monotonic_s() >= self._next_beat:
            self._next_beat = monotonic_s() + registry.HEARTBEAT_S
            self._heartbeat()
        overdue = duties.overdue_here(self._store, MISSED_PERIODS, self._began, self._mine)
        if overdue and not self._alone:
            self._alone = True
            log.info(
                "%s: no tick of %s for %d periods (no beat, a busy pool, or no broker): the worker's main process does it",
                self._store.path, ", ".join(overdue), MISSED_PERIODS,
            )  # fmt: skip
        for name in overdue:
            if duties.run(self._app, ALL[name]) is not None:
                self._mine[name] = self._store.duties.last(name).runs
        return Progress(len(overdue))

    def _heartbeat(self) -> None:
        coordination = duties.coordination_for(self._app)
        if coordination is None:
            return
        try:
            coordination.call(
                lambda client: registry.heartbeat(
                    client, self._store_id, self._store, self._worker, self._roles
                )
            )
        except RedisAwayError as error:
            log.debug("no heartbeat: %s", error)


class ReputLoop:
    """Dispatch as soon as something is appended, while this process has the lease."""

    def __init__(self, app: Any, store: MessageStore) -> None:
        self._app, self._store = app, store
        self._lease = ExitStack()
        self._held: Held | None = None
        self._renew_at = self._note_at = 0.0
        self._seen = self._done = 0
        self._idle = threading.Event()

    def run_once(self) -> Progress:
        """Dispatches what is there."""
        now = monotonic_s()
        if self._held is None:
            self._held = self._lease.enter_context(duties.lease_for(self._app, self._store, REPUT))
            self._renew_at = now + REPUT.lease_s / 3
            if self._held is None:
                self._lease.close()
                return Progress(0)
        elif now >= self._renew_at:
            self._renew_at = now + REPUT.lease_s / 3
            if not self._held.renew():
                self.release()
                return Progress(0)
        self._seen = self._store.wrote_position
        try:
            with self._store.duties.step(REPUT.name, self._held.token, ttl_ms=int(REPUT.lease_s * 1000)):
                done = self._store.dispatch(max_bytes=duties.STEP_BYTES, timeout_s=duties.LOCK_WAIT_S)
        except FencedError:
            self.release()
            return Progress(0)
        except StoreTimeoutError:
            return Progress(0)
        self._done += done
        if now >= self._note_at:
            self._note_at = now + NOTE_S
            took_us = int((monotonic_s() - now) * 1_000_000)
            self._store.duties.ran(REPUT.name, DutyRun(now_ms(), took_us, self._done, Outcome.DONE, 0))
            self._done = 0
        return Progress(done, more=done > 0)

    def wait(self, timeout_s: float) -> None:
        """Until something is appended after the last look, or it is time to look after the lease."""
        if self._held is None:
            self._idle.wait(ASK_AGAIN_S)
        else:
            self._store.wait_log(self._seen, timeout_s)

    def release(self) -> None:
        """Gives the lease back; the loop asks for it again."""
        self._held = None
        self._lease.close()
