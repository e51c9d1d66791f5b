"""Keeps a worker from taking tasks while its store is away, because it could not store their results.

A store is away when its directory was moved, deleted or replaced, when a sync failed (then the store is read-only
until every process has closed it), when it is a slave, or when writing was switched off. The worker's event loop
checks at its turns, once a second, and before each task; a sleeping loop checks every `SLEEP_S`. When the store is
away the worker stops consuming, and gives unstarted tasks back to the broker. Then it ends (`cystore_store_away =
"exit"`, the default), or waits until the store is back (`"wait"`). Running tasks end. A task that is acknowledged late
goes back to the broker too: `back_to_the_broker`.

A full disk has the same effect, but the worker always waits: it takes tasks again when there is space.
"""

from __future__ import annotations

import logging
import os
from contextlib import suppress
from functools import partial
from typing import Any

from celery import bootsteps
from celery.exceptions import ImproperlyConfigured, Reject
from celery.worker import state

from cystore import (
    FlushSlaveTimeoutError,
    NotAcknowledgingError,
    StoreClosedError,
    StoreError,
    StoreFullError,
    StoreMovedError,
)
from cystore.celery.base.green_timers import STARTED_BEFORE, cancel_repeated, end_heartbeats
from cystore.celery.base.identity import is_master
from cystore.celery.base.pools import BROKER, claim, may_have_begun, tell_what_was_raised
from cystore.celery.base.processes import in_pool
from cystore.celery.stores import moved, opened_at
from cystore.clock import monotonic_s
from cystore.errors import did_you_mean

log = logging.getLogger("cystore.celery")

SETTING = "cystore_store_away"
EXIT, WAIT = "exit", "wait"
LOOK_S = 1.0
TASK_LOOK_S = 0.02  # between two looks before a task; what another process has found is seen before each
SLEEP_S = 5.0  # a loop turns every one or two seconds: for its broker, its heartbeat
BEGIN_S = 10.0  # a pool process that is not stopped reports a begun task within this time
EXIT_CODE = os.EX_IOERR
HANDOVER_EXIT_CODE = os.EX_TEMPFAIL


def setting_of(app: Any) -> str:
    """The reaction of a worker when its store is away. Raises ImproperlyConfigured."""
    chosen = app.conf.get(SETTING, EXIT)
    if chosen not in (EXIT, WAIT):
        near = did_you_mean(chosen, (EXIT, WAIT))
        raise ImproperlyConfigured(f"{SETTING} must be {EXIT!r} or {WAIT!r}, not {chosen!r}{near}")
    return str(chosen)


def away(path: str) -> StoreError | None:
    """The reason why this process's open store at a path cannot be written, or why this process does not open the store
    that its worker found; None if it can."""
    store = opened_at(path)
    if store is None:
        return moved(path)
    try:
        store.check_usable()
        store.check_takes_puts()
        if not is_master(store):
            return NotAcknowledgingError(
                "this elected master's lease is over: does `cystore ha run` run, and does etcd answer?",
                path=path,
            )
    except StoreClosedError:
        return None
    except StoreError as error:  # also in a forked child that cannot attach
        return error
    return None


def doubtful(path: str) -> bool:
    """Whether another process may have found a reason for `away`, `full` or `handed_over`, or none has looked at the
    directory for half a second. Costs a microsecond."""
    store = opened_at(path)
    try:
        return store is None or store.is_doubtful
    except StoreError:
        return True


def followed(path: str) -> int | None:
    """How often this process's open store at a path continued in another directory; None if it is not open."""
    store = opened_at(path)
    return None if store is None else store.followed


def full(path: str) -> StoreFullError | None:
    """The reason why this process's open store at a path takes no records until there is space; None if it takes
    them."""
    store = opened_at(path)
    try:
        if store is not None:
            store.check_room()
    except StoreFullError as error:
        return error
    except StoreError:  # the store is closed, or away
        return None
    return None


def handed_over(path: str) -> bool:
    """Whether this process is asked to leave its open store at a path."""
    store = opened_at(path)
    try:
        return store is not None and store.asked_to_leave()
    except StoreError:  # `away` reports this error
        return False


def back_to_the_broker(error: StoreError, app: Any, path: str, request: Any) -> None:
    """Call it when the state of a task cannot be stored, before the error is raised again. If the store is away, or its
    replicas do not get the state, the worker's task is rejected and its message goes back: raises Reject instead."""
    ran_here = (
        request is not None
        and getattr(app.loader, "worker_initialized", False)
        and not getattr(request, "is_eager", False)
    )
    if not ran_here:
        return
    if isinstance(error, StoreFullError):
        _no_space(app, path, request, error)
        return
    unreplicated = isinstance(error, (NotAcknowledgingError, FlushSlaveTimeoutError))
    if away(path) is None and not unreplicated:
        return
    fate = "its message goes back to the broker" if _is_late(app, request) else "it was acknowledged early"
    log.error("the state of task %s cannot be stored, %s: %s", request.id, fate, error)
    if in_pool() or state.should_stop is None:
        raise Reject(error, requeue=True) from error


def _no_space(app: Any, path: str, request: Any, error: StoreFullError) -> None:
    """Raises Reject for a task whose message can go back. Logs which state is lost, because Celery's own log is limited
    to one line a minute."""
    store = opened_at(path)
    if store is not None:
        with suppress(StoreError):
            store.check_room(refused=True)  # all processes know it now
    if app.conf.result_backend_always_retry:  # Celery's retry waits for space
        return
    if _is_late(app, request):
        raise Reject(error, requeue=True) from error
    log.error(
        "the state of task %s is lost, because its message was acknowledged early: %s", request.id, error
    )


def _is_late(app: Any, request: Any) -> bool:
    task = app.tasks.get(getattr(request, "task", None))
    return bool(getattr(task, "acks_late", False))


class StoreWatch(bootsteps.StartStopStep):
    """The step of a worker's consumer that watches the store."""

    label = "cystore store"
    requires = STARTED_BEFORE

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._exits = setting_of(consumer.app) == EXIT
        self._path = consumer.app.backend.location.path
        self._away = self._leaves = self._full = False
        self._followed: int | None = None
        self._exit_code: int | None = None
        self._exits_at = 0.0  # the latest time for the end of the worker
        self._timer: Any = None
        self._before: Any = None
        self._hub: Any = None
        self._tick: Any = None
        self._looked_s = self._task_looked_s = 0.0

    def start(self, parent: Any) -> None:
        """Celery calls this each time the worker is connected to its broker."""
        tell_what_was_raised(parent.pool)
        self._before = self._before_task(parent)
        parent.on_task_message.add(self._before)
        self._hub, self._looked_s = parent.hub, monotonic_s()
        if self._hub is not None:  # a timer of its own would wake an idle worker every second
            self._tick = partial(self._look_at_tick, parent)
            self._hub.on_tick.add(self._tick)
        each_s = LOOK_S if self._hub is None else SLEEP_S
        self._timer = parent.timer.call_repeatedly(each_s, parent.call_soon, (self._look, parent))

    def stop(self, parent: Any) -> None:
        """Celery calls this before each new connection, and before it stops the heart."""
        end_heartbeats(parent)
        parent.on_task_message.discard(self._before)
        if self._hub is not None:
            self._hub.on_tick.discard(self._tick)
        if self._timer is not None:
            cancel_repeated(parent.timer, self._timer)
            self._timer = None

    shutdown = stop

    def _before_task(self, consumer: Any) -> Any:
        def look(request: Any) -> None:
            now_s = monotonic_s()
            stops = self._away or self._leaves or self._full
            if not stops and now_s - self._task_looked_s < TASK_LOOK_S and not doubtful(self._path):
                return
            self._task_looked_s = now_s
            self._look(consumer)
            if self._away or self._leaves or self._full:  # the task came before consuming ended
                _give_back([request])

        return look

    def _look_at_tick(self, consumer: Any) -> None:
        """Called at each turn of the loop, so it must be cheap."""
        if self._exit_code is not None:
            self._end(consumer)
            return
        now_s = monotonic_s()
        if now_s - self._looked_s >= LOOK_S:
            self._looked_s = now_s
            consumer.call_soon(self._look, consumer)

    def _look(self, consumer: Any) -> None:
        if self._exit_code is not None:
            self._end(consumer)
            return
        error = away(self._path) or self._replaced()
        if error is None and handed_over(self._path):
            self._leaves = True
            log.warning(
                "`cystore handover` asks this worker to leave %s to another version: the worker ends",
                self._path,
            )
            _stop_consuming(consumer)
            self._begin_to_end(consumer, HANDOVER_EXIT_CODE)
        elif error is None:
            if self._away:
                self._resume(consumer)
            elif not self._full:
                self._look_at_space(consumer)
            elif full(self._path) is None:
                self._full = False
                log.warning("%s has space again: this worker takes tasks again", self._path)
                consumer.task_consumer.consume()
        elif not self._away:
            self._pause(consumer, error)

    def _replaced(self) -> StoreMovedError | None:
        """For a worker that ends when its store is away: another directory at the path is another store to it."""
        found = followed(self._path)
        if self._followed is None:
            self._followed = found
        if not self._exits or found is None or found == self._followed:
            return None
        return StoreMovedError("the store's directory was replaced under this worker", path=self._path)

    def _look_at_space(self, consumer: Any) -> None:
        error = full(self._path)
        if error is None:
            return
        self._full = True
        log.critical(
            "the disk is full: this worker takes no more tasks, and gives unstarted tasks back to the broker, "
            "until there "
            "is space: %s", error,
        )  # fmt: skip
        _stop_consuming(consumer)

    def _pause(self, consumer: Any, error: StoreError) -> None:
        self._away = True
        log.critical(
            "this worker takes no more tasks, and gives unstarted tasks back to the broker; it %s: %s",
            "ends" if self._exits else "waits until its store is back", error,
        )  # fmt: skip
        _stop_consuming(consumer)
        if self._exits:
            self._begin_to_end(consumer, EXIT_CODE)

    def _begin_to_end(self, consumer: Any, exit_code: int) -> None:
        self._exit_code, self._exits_at = exit_code, monotonic_s() + BEGIN_S
        self._end(consumer)

    def _end(self, consumer: Any) -> None:
        """Ends the worker once the pool has reported all its tasks as begun. At its end Celery drops unreported tasks.
        If a process had begun one of them, Celery would wait 30 s for it, and the broker would give the task to another
        worker too."""
        if monotonic_s() >= self._exits_at or not any(
            may_have_begun(consumer.pool, request) for request in _unstarted()
        ):
            state.should_stop = self._exit_code

    def _resume(self, consumer: Any) -> None:
        self._away = False
        log.warning("%s is back: this worker takes tasks again", self._path)
        consumer.task_consumer.consume()


def _unstarted() -> list[Any]:
    """Tasks of this worker that are not reported as begun."""
    # Celery 5.7 keeps tasks with an ETA in a set of their own.
    known = (*state.reserved_requests, *getattr(state, "scheduled_requests", ()))
    return [request for request in known if request not in state.active_requests]


def _stop_consuming(consumer: Any) -> None:
    """Takes no more tasks from the broker, and gives unstarted ones back."""
    consumer.task_consumer.cancel()
    _give_back([request for request in _unstarted() if not may_have_begun(consumer.pool, request)])
    semaphore = getattr(consumer.controller, "semaphore", None)
    if semaphore is not None:
        semaphore.clear()


def _give_back(requests: list[Any]) -> None:
    """Returns messages to the broker. A pool or timer that still holds such a request finds it revoked or claimed, and
    does not run it."""
    for request in requests:
        if not claim(request, BROKER):  # a thread begins it
            continue
        request.reject(requeue=True)
        request._already_revoked = True
        state.reserved_requests.discard(request)
        getattr(state, "scheduled_requests", set()).discard(request)
        state.requests.pop(request.id, None)
