"""The work of a worker's main process for its store. Every worker with a store has it; nothing has to be installed.

It removes expired segments, ends chords, and delivers delayed messages (`duties.NEEDED`). A lease in the store's
control block picks one worker of the store at a time. If the app installed the duties as tasks
(`cystore.celery.tasks`), the main process does all of them, with leases in Redis: those that ticks ask for, and those
that the store needs. It also sends heartbeats to Redis. It looks once a second, in shared memory; while nothing is
appended it sleeps until a duty is due, at most `duties.QUIET_S`. While the store needs nothing it asks Redis nothing.

A thread does it (a greenlet, if those are threads). It starts after the last fork of the boot steps, beat's included. A
later fork, which replaces a pool process, waits for the end of the thread's turn. Otherwise the child would inherit the
lock of the thread's running import, and wait for it for ever. A kill leaves leases and a heartbeat in Redis that expire
by themselves.
"""

from __future__ import annotations

import logging
import threading
from contextlib import ExitStack
from typing import Any

from kombu.utils.compat import detect_environment

from cystore import FencedError, MessageStore, StoreTimeoutError
from cystore.celery import registry
from cystore.celery.base import greenlets
from cystore.celery.base.identity import store_id_of
from cystore.celery.base.processes import ForkLock
from cystore.celery.duties import duty_runs, ticks
from cystore.celery.duties.duty_news import DutyEvents, MinuteLog
from cystore.celery.duties.duty_runs import ALL, REPUT, Held
from cystore.celery.duties.worker_steps import takes_ticks
from cystore.celery.redis_urls import RedisAwayError
from cystore.clock import monotonic_s, now_ms
from cystore.engine.files.progress import Progress
from cystore.operate.output import time_text
from cystore.services.duty_table import DutyRun, Outcome
from cystore.services.threads import ServiceThread

log = logging.getLogger("cystore.celery")

EVENTS_SETTING = "cystore_duty_events"
LOOK_S = 1.0
GO_ON_S = 0.01  # between two turns of which the first left work: a fork, and other workers, come in
MISSED_PERIODS = 3  # after so many without a run, a needed duty counts as not done
PRUNE_S = 600.0
JOIN_S = 10.0
REPUT_WAIT_S = 0.25
NOTE_S = 1.0
ASK_AGAIN_S = 1.0  # for a lease that another worker has


TURN = ForkLock()


class DutyHost:
    """The content of a worker's step `cystore duties` (`worker_steps`). Setting `cystore_host_reput`: dispatch by this
    process, at once."""

    def __init__(self) -> None:
        self._threads: list[ServiceThread] = []
        self._loop: ReputLoop | None = None
        self._keeper: Keeper | None = None

    def listen(self, parent: Any) -> None:
        """Takes the worker's ticks from now on. They wait for the threads. Raises StoreError."""
        if self._keeper is not None:
            return
        roles = ("worker", "reput") if self._hosts_reput(parent) else ("worker",)
        events = DutyEvents(parent) if parent.app.conf.get(EVENTS_SETTING) else None
        keeper = self._keeper = Keeper(
            parent.app,
            duty_runs.store_of(parent.app),
            parent.hostname,
            roles,
            ticks=takes_ticks(),
            events=events,
        )
        if takes_ticks():
            ticks.take(parent, keeper.ask)

    @staticmethod
    def _hosts_reput(parent: Any) -> bool:
        return bool(parent.app.conf.get("cystore_host_reput"))

    def start(self, parent: Any) -> None:
        """Starts the threads after the first connection to the broker; they stay through all later ones. Call `listen`
        first."""
        keeper = self._keeper
        if self._threads or keeper is None:
            return
        log.info("%s", keeper.introduction())
        "".encode("idna")  # loads a codec that connections need, in the thread that forks
        # The thread asks Redis and sends chord bodies over the worker's own connections, so it runs in the worker's
        # hub.
        self._threads = [
            ServiceThread(
                "duties", keeper.turn, LOOK_S, keeper.wait, thread=greenlets.Thread, flag=threading.Event
            )
        ]
        if self._hosts_reput(parent):
            if detect_environment() == "default":
                self._loop = ReputLoop(parent.app, duty_runs.store_of(parent.app))
                self._threads.append(
                    ServiceThread("reput", self._loop.run_once, REPUT_WAIT_S, self._loop.wait)
                )
            else:
                log.warning(
                    "cystore_host_reput: ignored under %s, where one thread does everything",
                    detect_environment(),
                )

    def shutdown(self, parent: Any) -> None:
        """Ends the threads; a duty that is at work ends its step."""
        for thread in self._threads:
            thread.stop()
        if self._keeper is not None:
            self._keeper.wake()
        for thread in self._threads:
            thread.join(JOIN_S)
        self._threads, self._keeper = [], None
        if self._loop is not None:
            self._loop.release()
            self._loop = None


class Keeper:
    """Looks after a store's needs, once a period. With `ticks` it does all duties, those that a tick asked for and
    those that the store needs, and sends heartbeats. Otherwise it does only the duties that every store needs."""

    def __init__(
        self,
        app: Any,
        store: MessageStore,
        worker: str,
        roles: tuple[str, ...],
        *,
        ticks: bool = True,
        events: DutyEvents | None = None,
    ) -> None:
        self._app, self._store, self._worker, self._roles = app, store, worker, roles
        self._ticks, self._events = ticks, events
        self._store_id = store_id_of(store)
        self._began, self._next_beat, self._next_prune = monotonic_s(), 0.0, 0.0
        self._asked: dict[str, str] = {}  # task ids by task name; single operations, so threads need no lock
        self._log = MinuteLog(store.path)
        self._woken, self._pause_s, self._goes_on = threading.Event(), LOOK_S, False
        self._waits = False  # for a lease that another process has, and loses when it is killed
        self._listens = False  # the store's next append wakes this thread

    def introduction(self) -> str:
        """The cleaning worker, and the last clean, for the worker's log."""
        last = self._store.duties.last(duty_runs.CLEAN_EXPIRED.name)
        by = f"process {last.pid}" if last.pid else "a process of another PID namespace"
        cleaned = f"cleaned last at {time_text(last.begun_ms)} by {by}" if last.runs else "not cleaned yet"
        what = (
            "does all its duties" if self._ticks else "cleans it, ends chords and delivers delayed messages"
        )
        who = f"the main process of one of its workers {what}"
        return f"{self._store.path}: {who}; {cleaned} since the first process opened it"

    def ask(self, task: str, task_id: str) -> None:
        """A tick came. Several ticks of one kind count once."""
        self._asked[task] = task_id
        if self._listens:
            self._woken.set()

    def turn(self) -> Progress:
        """One look, with forks kept out."""
        with TURN:
            quiet = self._is_quiet()
            progress = self.run_once()
            self._goes_on = duty_runs.has_left_work(self._store)
            quiet = quiet and not self._waits
            self._pause_s = duty_runs.quiet_s(self._store, LOOK_S) if quiet else LOOK_S
            return progress

    def wait(self, timeout_s: float) -> None:
        """Waits a second. In a quiet time it waits until something is appended, a tick comes, or something is due. It
        does not wait while a turn left work."""
        self._woken.wait(GO_ON_S if self._goes_on else max(self._pause_s, timeout_s))
        self._woken.clear()

    def wake(self) -> None:
        """Ends a wait: the thread is to end."""
        self._woken.set()

    def _is_quiet(self) -> bool:
        """Whether the next append wakes this thread. Called before the look, so that no append is missed. A thread
        cannot wake a greenlet."""
        if not self._listens and not greenlets.in_use():
            self._listens = True
            self._listens = self._store.ring_at_append(self._ring)
        return self._listens

    def _ring(self) -> None:
        self._listens = False
        self._woken.set()

    def run_once(self) -> Progress:
        """One look."""
        self._waits = False
        if not self._ticks:
            among = duty_runs.overdue_here(self._store, 1, self._began, {}, duty_runs.NEEDED)
            for name in among:
                self._waits |= duty_runs.run(self._app, ALL[name], fleet=False) is None
            return Progress(len(among))
        asked = {name: self._asked.pop(name) for name in list(self._asked)}
        watched_s = monotonic_s() - self._began
        needed = duty_runs.needed_here(self._store) if watched_s >= LOOK_S else []  # else it is starting
        for duty in ALL.values():
            if duty.task in asked or duty.name in needed:
                self._run(duty, asked.get(duty.task))
        if ticks.FAN_OUT in asked:
            ticks.send_ticks(self._app)
        if monotonic_s() >= self._next_beat:
            self._next_beat = monotonic_s() + registry.HEARTBEAT_S
            self._heartbeat()
        self._log.tell()
        return Progress(len(needed) + len(asked))

    def _run(self, duty: duty_runs.Duty, task_id: str | None) -> None:
        begun_s = monotonic_s()
        done = duty_runs.run(self._app, duty)
        if done is None:
            self._waits = True
            return
        self._log.ran(duty.name, done)
        if self._events is not None:
            self._events.ran(duty.task, task_id, done, monotonic_s() - begun_s)

    def _heartbeat(self) -> None:
        coordination = duty_runs.coordination_for(self._app)
        if coordination is None:
            return
        undone = duty_runs.needed_here(self._store, MISSED_PERIODS, float("inf"))
        prune = monotonic_s() >= self._next_prune
        try:
            coordination.call(
                lambda client: registry.heartbeat(
                    client,
                    self._store_id,
                    self._store,
                    self._worker,
                    self._roles,
                    needs=undone,
                    prune=prune,
                )
            )
        except RedisAwayError as error:
            self._next_beat = self._next_prune = 0.0
            log.debug("no heartbeat: %s", error)
        else:
            if prune:
                self._next_prune = monotonic_s() + PRUNE_S


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
        """Dispatches the waiting records."""
        now = monotonic_s()
        if self._held is None:
            self._held = self._lease.enter_context(duty_runs.lease_for(self._app, self._store, REPUT))
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
                done = self._store.dispatch(max_bytes=duty_runs.STEP_BYTES, timeout_s=duty_runs.LOCK_WAIT_S)
        except FencedError:
            self.release()
            return Progress(0)
        except StoreTimeoutError:
            return Progress(0)
        self._done += done
        if now >= self._note_at:
            self._note_at = now + NOTE_S
            took_us = int((monotonic_s() - now) * 1_000_000)
            self._store.duties.ran(REPUT.name, DutyRun(now_ms(), took_us, self._done, Outcome.DONE))
            self._done = 0
        return Progress(done, more=done > 0)

    def wait(self, timeout_s: float) -> None:
        """Waits until something is appended after the last look, or until the lease needs a look."""
        if self._held is None:
            self._idle.wait(ASK_AGAIN_S)
        else:
            self._store.wait_log(self._seen, timeout_s)

    def release(self) -> None:
        """Gives the lease back; the loop asks for it again."""
        self._held = None
        self._lease.close()
