"""The lifecycle log: one append for each event in the life of a task, written by the processes that get Celery's
signals.

Each of Celery's signals fires in one kind of process (`events.KINDS`). A process connects to them when it first makes
its result backend, so a program imports nothing. The log never affects a task: an event that cannot be written is
counted, the error is reported once, and the task continues. Events survive a crash of the process; no task waits until
an event is on disk, whatever `flush` says for results.

Settings of the app, beside those of `celery`:

| setting | default | means |
|---|---|---|
| `cystore_lifecycle` | `True` | keep the log |
| `cystore_lifecycle_args_chars` | `1024` | characters kept of the positional and of the keyword arguments; 0: none |
| `cystore_lifecycle_traceback_chars` | `8192` | characters kept of a traceback |
| `cystore_lifecycle_redact` | `()` | names of arguments whose values are not kept, in results neither; or a function |
| `cystore_lifecycle_redact_positions` | `"known"` | `"all"`: hide positions whose names this process does not know |
| `cystore_lifecycle_payload` | `None` | `"message"`: keep each message as sent, for `celery -A APP cystore rerun` |
| `cystore_lifecycle_light_queues` | `"worker"` | queues beside the log: `"worker"`, `"worker,workflow"`, or `"off"` |
"""

from __future__ import annotations

import os
import signal
import weakref
from collections.abc import Callable, Iterable, Sequence
from functools import partial, wraps
from typing import TYPE_CHECKING, Any

from billiard.einfo import ExceptionWithTraceback
from billiard.exceptions import SoftTimeLimitExceeded, TimeLimitExceeded, WorkerLostError
from celery import Celery, current_app, signals
from celery.app.task import Context
from celery.exceptions import Reject
from celery.utils.log import get_logger

from cystore import MessageIllegalError, StoreError, StoreFullError, StoreMovedError
from cystore.celery.base import events, greenlets, records
from cystore.celery.base.identity import known_home_of
from cystore.celery.base.processes import in_pool
from cystore.celery.homes import HOME
from cystore.celery.lifecycle import payload
from cystore.celery.lifecycle.light_queues import LightQueues
from cystore.celery.lifecycle.redaction import Redaction
from cystore.celery.stores import Location, open_shared
from cystore.clock import monotonic_s

if TYPE_CHECKING:
    from cystore import MessageStore
    from cystore.celery.backend import CystoreBackend

log = get_logger(__name__)

SETTING, TRACE = "cystore_lifecycle", "traceparent"
DUTIES = "cystore."  # prefix of the store's own tasks, which are left out of the log
PAUSE_S = 5.0  # after a failed write, so that tasks do not wait for the store again and again
# The longest wait of an event for an append lock without progress: a worker's main process has heartbeats to send, and
# a publisher perhaps an event loop. A pool process waits as long as for the task's result.
BUSY_MS = 1_000
EXCEPTION_CHARS = 1024
NAMES_KEPT = 10_000

_pid = os.getpid()
_logs: weakref.WeakKeyDictionary[Celery, Lifecycle] = weakref.WeakKeyDictionary()


class Lifecycle:
    """The log of one app in this process. `lost` counts the events that could not be written."""

    def __init__(self, app: Celery, location: Location) -> None:
        self.location = location
        self.redaction = Redaction.of(app.conf, app)
        self.keeps_messages = payload.is_wanted(app.conf)
        self._light = LightQueues(app.conf)
        self.lost = 0
        self._app = weakref.ref(app)
        self._store: MessageStore | None = None  # the store that `open_shared` returned
        self._followed = -1  # of that store, when its light queues were looked at
        self._places: dict[str | None, tuple[int, dict[str, str]]] = {}  # task name: its queue and property
        # By task name and worker: queue and properties, light queue included, of the events of tasks that stand alone.
        self._ready: dict[tuple[str | None, str | None], tuple[int, dict[str, str]]] = {}
        self._busy_ms: int | None = 0  # the wait for an append lock in this process; 0: not looked yet
        self._untold = 0  # lost events that were not reported yet
        self._paused_until = 0.0
        self._began: dict[str, float] = {}  # task id: when its code began in this process
        self._timed_out: str | None = None  # id of the last timed-out task
        # The main process's messages by task id. Celery names only the id when a child was lost or timed out.
        self._requests: weakref.WeakValueDictionary[str, Any] = weakref.WeakValueDictionary()

    def append(
        self, event: str, task_id: str | None, name: str | None, root_id: str | None, group_id: str | None,
        **details: Any
    ) -> None:  # fmt: skip
        """Writes one event, unless the store failed a moment ago. Leaves out a `home` among the details if it is this
        store. Raises the store's errors."""
        if self._paused_until and monotonic_s() < self._paused_until:
            self._lose()
            return
        store = self._store
        if store is None or store.closed:
            store = self._store = open_shared(self.location, self._app())
            self._followed = -1
        if store.followed != self._followed:
            self._followed = store.followed
            self._forget_queues()
        if details.get("home") is not None and details["home"] == known_home_of(store):
            del details["home"]
        body = events.body_of({**details, "lost": self._untold} if self._untold else details)
        if self.keeps_messages:
            body = payload.within(body, details, store.config.max_message_size_bytes, events.body_of)
        worker, parent_id = details.get("worker"), details.get("parent_id")
        if worker is not None and type(worker) is not str:
            worker = None
        stands_alone = not (parent_id or group_id or (root_id and root_id != task_id))  # nearly every task
        ready = self._ready.get((name, worker)) if stands_alone else None
        if ready is not None:
            self._put(store, event, body, ready[0], (records.key_of(task_id),) if task_id else (), ready[1])
        else:
            light = self._light.of(store, task_id, root_id, parent_id, group_id, worker)
            queue_id, properties = self._places.get(name) or self._place(name)
            ready = queue_id, _with_light(properties, light)
            if stands_alone and self._light.stays(light, worker):
                if len(self._ready) >= NAMES_KEPT:
                    self._ready.clear()
                self._ready[name, worker] = ready
            keys = events.keys_of(task_id, root_id, group_id)
            try:
                self._put(store, event, body, queue_id, keys, ready[1])
            except StoreFullError:  # perhaps only for another queue
                there = self._light.there(store, light)
                if len(there) == len(light):
                    raise
                self._put(store, event, body, queue_id, keys, _with_light(properties, there))
        if self._untold:  # this event says so, too
            log.warning(
                "%s: the lifecycle log works again; %d events are missing", self.location.path, self._untold
            )
            self._untold, self._paused_until = 0, 0.0

    def _put(
        self, store: MessageStore, event: str, body: bytes, queue_id: int, keys: tuple[str, ...],
        properties: dict[str, str]
    ) -> None:  # fmt: skip
        busy_ms = self._busy_ms
        if busy_ms == 0:
            busy_ms = self._busy_ms = None if in_pool() else BUSY_MS
        if greenlets.in_use():
            put = partial(
                store.put, events.EVENTS, body, queue_id=queue_id, keys=keys, tags=event, properties=properties,
                flush="async",
            )  # fmt: skip
            greenlets.append(put, busy_ms)
        else:
            store.put(
                events.EVENTS, body, queue_id=queue_id, keys=keys, tags=event, properties=properties, flush="async",
                busy_timeout_ms=busy_ms,
            )  # fmt: skip

    def message_details(
        self, name: str, body: Any, headers: Any, exchange: str, routing_key: str | None
    ) -> dict[str, Any]:
        """The fields of a SENT event that keep its message."""
        app = self._app()
        return (
            {}
            if app is None
            else payload.details(app.conf, self.redaction, name, body, headers or {}, exchange, routing_key)
        )

    def text_of(self, error: Any) -> str | None:
        """The kept text of an exception."""
        return self.redaction.exception(error, EXCEPTION_CHARS)

    def _place(self, name: str | None) -> tuple[int, dict[str, str]]:
        if len(self._places) >= NAMES_KEPT:
            self._places.clear()
        place = self._places[name] = (
            records.queue_of(name),
            {"task": records.kept_name(name)} if name else {},
        )
        return place

    def _forget_queues(self) -> None:
        self._light.forget()
        self._ready.clear()

    def trouble(self, error: Exception) -> None:
        """Counts an event that could not be written; reports once, until the log works again."""
        first = not self._untold
        self._lose()
        # The first concerns one task alone. After the second, a store may be at the path again at any moment.
        if not isinstance(error, (MessageIllegalError, StoreMovedError)):
            self._paused_until = monotonic_s() + PAUSE_S
        if first:
            log.warning(
                "%s: cannot log events of tasks; tasks continue without: %s", self.location.path, error,
                exc_info=None if isinstance(error, StoreError) else error,  # the store's errors say all
            )  # fmt: skip

    def _lose(self) -> None:
        self.lost += 1
        self._untold += 1

    def received(self, request: Any) -> None:
        """This process took a task's message."""
        self._requests[request.id] = request

    def context_of(self, task_id: str) -> Context:
        """The content of a task's message, as far as this process has it."""
        request = self._requests.get(task_id)
        return Context() if request is None else Context(request.request_dict, hostname=request.hostname)

    def began(self, task_id: str) -> None:
        """The task's code begins."""
        self._began[task_id] = monotonic_s()

    def ended(self, task_id: str) -> None:
        """The task will log no more events."""
        self._began.pop(task_id, None)

    def runtime(self, task_id: str) -> float | None:
        """Seconds since it began, None if it began in another process."""
        began = self._began.get(task_id)
        return None if began is None else round(monotonic_s() - began, 6)

    def is_first_time_out(self, task_id: str) -> bool:
        """False for the second signal of one hard time limit: from the pool's error, and from its timer."""
        first, self._timed_out = self._timed_out != task_id, task_id
        return first

    def release(self) -> None:
        """Releases the store."""
        self._store = None

    def forked(self) -> None:
        """Called in a child. The parent reports its own lost events."""
        self._began.clear()
        self._requests.clear()
        self._forget_queues()
        self._busy_ms = 0
        self.lost = self._untold = 0


def _with_light(properties: dict[str, str], names: Sequence[str]) -> dict[str, str]:
    return {**properties, events.LIGHT: ",".join(names)} if names else properties


def install(app: Celery, location: Location) -> None:
    """Keeps the log of an app in the store at a location, from now on, in this process; called when its backend is
    made.

    Raises ImproperlyConfigured for settings that make no sense.
    """
    if app in _logs or not app.conf.get(SETTING, True):
        return
    life = _logs[app] = Lifecycle(app, location)
    if life.keeps_messages:
        payload.watch(app)
    for celery_signal, handler in HANDLERS:
        celery_signal.connect(handler, weak=False)


def skip_rest(backend: CystoreBackend, task_id: str, request: Any, error: Any) -> None:
    """Logs that the rest of a failed task's chain will not run."""
    rest = getattr(request, "chain", None)
    if rest:
        home = getattr(request, HOME, None)
        _skip(backend, reversed(rest), error, task_id, request.root_id or task_id, home)


def skip_body(backend: CystoreBackend, body: Any, error: Any) -> None:
    """Logs that the body of a failed chord, and the rest of its chain, will not run."""
    rest, root_id = reversed(body.options.get("chain") or ()), body.options.get("root_id")
    _skip(backend, [body, *rest], error, records.cause_in(error), root_id)


def _skip(
    backend: CystoreBackend, calls: Iterable[Any], error: Any, cause: str | None, root_id: str | None,
    home: str | None = None,
) -> None:  # fmt: skip
    life = _logs.get(backend.app) if backend.is_own else None
    if life is None:
        return
    try:
        text, parent_id = life.text_of(error), cause
        for call in payload.tasks_in(calls):
            options = call.get("options") or {}
            task_id = options.get("task_id")
            if not task_id or _is_duty(call.get("task")):
                continue
            life.append(
                events.SKIPPED, task_id, call.get("task"), root_id or options.get("root_id"), options.get("group_id"),
                parent_id=parent_id, cause=cause, exception=text, home=home,
            )  # fmt: skip
            parent_id = task_id
    except Exception as trouble:  # noqa: BLE001 - the failure itself is stored
        life.trouble(trouble)


def release(app: Celery) -> None:
    """Releases the store of the app's log; the next event opens it again."""
    life = _logs.get(app)
    if life is not None:
        life.release()


def log_of(app: Celery) -> Lifecycle | None:
    """The log of an app in this process; None without one."""
    return _logs.get(app)


# ---------------------------------------------------------------------------------------------- handlers

HANDLERS: list[tuple[Any, Callable[..., None]]] = []


def _handles(celery_signal: Any) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """A handler of a celery_signal: called with the log of the sender's app, if it has one."""

    def wrap(handler: Callable[..., None]) -> Callable[..., None]:
        @wraps(handler)
        def safe_handler(sender: Any = None, **named: Any) -> None:
            life = _log_for(sender)
            if life is None:
                return
            try:
                handler(life, sender, **named)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is no reason for a task to fail
                life.trouble(error)

        HANDLERS.append((celery_signal, safe_handler))
        return safe_handler

    return wrap


def _log_for(sender: Any) -> Lifecycle | None:
    """The log of a task's or worker's app. A publisher is only a name: it gets this process's only log, or if there are
    several, the current app's."""
    if not isinstance(sender, str):
        app = getattr(sender, "app", None)
        return None if app is None else _logs.get(app)
    return (
        next(iter(_logs.values()), None) if len(_logs) == 1 else _logs.get(current_app._get_current_object())
    )


def _is_duty(name: str | None) -> bool:
    return name is not None and name.startswith(DUTIES)


@_handles(signals.after_task_publish)
def _sent(
    life: Lifecycle, sender: str, headers: Any, body: Any, exchange: Any, routing_key: str | None, **_: Any
) -> None:
    # Protocol 1 has everything in the body.
    fields = headers if headers and "task" in headers else body
    if _is_duty(sender):
        return
    given = fields if fields is body else {"args": body[0], "kwargs": body[1]}
    args, kwargs = life.redaction.arguments(sender, given["args"], given["kwargs"], fields)
    exchange_name = str(getattr(exchange, "name", exchange) or "")
    message = (
        life.message_details(sender, body, headers, exchange_name, routing_key) if life.keeps_messages else {}
    )
    life.append(
        events.SENT, fields["id"], sender, fields.get("root_id"), fields.get("group"),
        origin=fields.get("origin"), queue=routing_key, exchange=exchange_name,
        parent_id=fields.get("parent_id"), retries=fields.get("retries") or None, eta=fields.get("eta"),
        expires=fields.get("expires"),
        args=args, kwargs=kwargs, home=fields.get(HOME), traceparent=fields.get(TRACE), **message,
    )  # fmt: skip


@_handles(signals.task_received)
def _received(life: Lifecycle, sender: Any, request: Any, **_: Any) -> None:
    name = request.task.name
    if _is_duty(name):
        return
    fields = request.request_dict
    delivery = request.delivery_info
    event = events.REDELIVERED if delivery.get("redelivered") else events.RECEIVED
    args, kwargs = life.redaction.arguments(name, request.args, request.kwargs, fields)
    life.append(
        event, request.id, name, fields.get("root_id"), fields.get("group"),
        worker=request.hostname, queue=delivery.get("routing_key"), parent_id=fields.get("parent_id"),
        retries=fields.get("retries") or None, eta=fields.get("eta"), expires=fields.get("expires"),
        args=args, kwargs=kwargs, home=fields.get(HOME), traceparent=fields.get(TRACE),
    )  # fmt: skip
    life.received(request)
    if request.task.acks_late:
        request.on_reject = _Rejecting(life, request)


class _Rejecting:
    """Wraps a request's `on_reject`: when a child died and the message goes back, this call is the only sign."""

    def __init__(self, life: Lifecycle, request: Any) -> None:
        self._life, self._on_reject = life, request.on_reject
        self._request = weakref.ref(request)

    def __call__(self, logger: Any, errors: Any, requeue: bool = False) -> Any:
        request = self._request()
        if requeue and request is not None:
            try:
                self._tell(request)
            except Exception as error:  # noqa: BLE001 - the message goes back all the same
                self._life.trouble(error)
        return self._on_reject(logger, errors, requeue)

    def _tell(self, request: Any) -> None:
        ran = request._apply_result and request._apply_result()
        if ran is None or not ran.ready() or ran.successful():
            return  # the task asked for it: the child lives, and has logged it
        error = ran._value.exception
        if isinstance(error, ExceptionWithTraceback):
            error = error.exc
        if isinstance(error, TimeLimitExceeded):
            return
        fields = request.request_dict
        self._life.append(
            events.CHILD_LOST, request.id, request.task.name, fields.get("root_id"), fields.get("group"),
            worker=request.hostname, pid=request.worker_pid, parent_id=fields.get("parent_id"),
            retries=fields.get("retries") or None, exception=self._life.text_of(error), requeue=True,
        )  # fmt: skip


def _of(request: Any, **details: Any) -> dict[str, Any]:
    """The details from a task's request, for any event of it."""
    return {
        "worker": request.hostname,
        "pid": _pid,
        "parent_id": request.parent_id,
        "retries": request.retries or None,
        **details,
    }


@_handles(signals.task_prerun)
def _started(life: Lifecycle, sender: Any, task_id: str, **_: Any) -> None:
    if _is_duty(sender.name):
        return
    life.began(task_id)
    request = sender.request
    life.append(
        events.STARTED, task_id, sender.name, request.root_id, request.group,
        worker=request.hostname, pid=_pid, parent_id=request.parent_id, retries=request.retries or None,
        eager=request.is_eager,
    )  # fmt: skip


@_handles(signals.task_success)
def _succeeded(life: Lifecycle, sender: Any, runtime: float | None = None, **_: Any) -> None:
    if _is_duty(sender.name):
        return
    request = sender.request
    life.append(
        events.SUCCEEDED, request.id, sender.name, request.root_id, request.group,
        worker=request.hostname, pid=_pid, parent_id=request.parent_id, retries=request.retries or None,
        # Celery before 5.7 does not say the runtime.
        runtime=life.runtime(request.id) if runtime is None else round(runtime, 6),
    )  # fmt: skip


@_handles(signals.task_failure)
def _failed(
    life: Lifecycle, sender: Any, task_id: str, exception: Any, args: Any = (), kwargs: Any = None,
    einfo: Any = None, **_: Any,
) -> None:  # fmt: skip
    if _is_duty(sender.name) or isinstance(exception, Reject):  # the child has logged that
        return
    event, soft = events.FAILED, False
    if isinstance(exception, (SoftTimeLimitExceeded, TimeLimitExceeded)):
        event, soft = events.TIMED_OUT, isinstance(exception, SoftTimeLimitExceeded)
        if not soft and not life.is_first_time_out(task_id):
            return
    elif isinstance(exception, WorkerLostError):
        event = events.CHILD_LOST
    request = sender.request
    if request.id != task_id:  # in the main process, the request may be another one
        request = life.context_of(task_id)
    repr_args, repr_kwargs = life.redaction.arguments(sender.name, args, kwargs, request)
    life.append(
        event, task_id, sender.name, request.root_id, request.group,
        **_of(
            request, soft=soft, runtime=life.runtime(task_id), args=repr_args, kwargs=repr_kwargs,
            exception=life.text_of(exception),
        traceback=life.redaction.traceback(einfo),
        ),
    )  # fmt: skip


@_handles(signals.task_internal_error)
def _internal_error(
    life: Lifecycle, sender: Any, task_id: str, request: Any, exception: Any, einfo: Any = None, **_: Any
) -> None:
    if _is_duty(sender.name):
        return
    fields = request or {}
    life.append(
        events.INTERNAL_ERROR, task_id, sender.name, fields.get("root_id"), fields.get("group"),
        worker=fields.get("hostname"), pid=_pid, parent_id=fields.get("parent_id"),
        retries=fields.get("retries") or None, exception=life.text_of(exception),
        traceback=life.redaction.traceback(einfo),
    )  # fmt: skip


@_handles(signals.task_retry)
def _retried(
    life: Lifecycle, sender: Any, request: Any, reason: Any = None, einfo: Any = None, **_: Any
) -> None:
    if _is_duty(sender.name):
        return
    when, cause = getattr(reason, "when", None), getattr(reason, "exc", None)
    is_number = isinstance(when, (int, float))
    life.append(
        events.RETRIED, request.id, sender.name, request.root_id, request.group,
        **_of(
            request, runtime=life.runtime(request.id), exception=life.text_of(cause if cause is not None else reason),
            countdown=when if is_number else None, eta=None if is_number or when is None else str(when),
            traceback=life.redaction.traceback(einfo),
        ),
    )  # fmt: skip


@_handles(signals.task_postrun)
def _ended(
    life: Lifecycle, sender: Any, task_id: str, retval: Any = None, state: str | None = None, **_: Any
) -> None:
    if _is_duty(sender.name):
        return
    if state not in (events.IGNORED, events.REJECTED):
        life.ended(task_id)
        return
    runtime = life.runtime(task_id)
    life.ended(task_id)
    request = sender.request
    life.append(
        state, task_id, sender.name, request.root_id, request.group,
        **_of(
            request, runtime=runtime, exception=life.text_of(retval),
            requeue=state == events.REJECTED and bool(retval.requeue),
        ),
    )  # fmt: skip


@_handles(signals.task_revoked)
def _revoked(
    life: Lifecycle, sender: Any, request: Any, terminated: bool = False, signum: Any = None, expired: bool = False,
    **_: Any,
) -> None:  # fmt: skip
    if _is_duty(sender.name):
        return
    by = signal.Signals(signum).name if isinstance(signum, int) else signum
    life.append(
        events.REVOKED, request.id, sender.name, request.root_id, request.group,
        worker=request.hostname, parent_id=request.parent_id, retries=request.retries or None,
        terminated=terminated, signal=by, expired=expired,
    )  # fmt: skip


@_handles(signals.task_rejected)
def _rejected(life: Lifecycle, sender: Any, message: Any, exc: Any = None, **_: Any) -> None:
    _of_message(life, events.REJECTED, sender, message, exc)


@_handles(signals.task_unknown)
def _unknown(
    life: Lifecycle, sender: Any, message: Any, exc: Any = None, name: Any = None, id: Any = None, **_: Any
) -> None:
    _of_message(life, events.UNKNOWN, sender, message, exc, {"id": id, "task": name})


def _of_message(
    life: Lifecycle, event: str, sender: Any, message: Any, error: Any, known: dict[str, Any] | None = None
) -> None:
    """An event of a message that became no request."""
    headers = message.headers if isinstance(message.headers, dict) else {}
    fields = {**headers, **(known or {})}
    name = fields.get("task")
    if _is_duty(name):
        return
    args, kwargs = life.redaction.unread(fields)
    life.append(
        event, fields.get("id"), name, fields.get("root_id"), fields.get("group"),
        worker=sender.hostname, queue=(message.delivery_info or {}).get("routing_key"),
        parent_id=fields.get("parent_id"), retries=fields.get("retries") or None, args=args, kwargs=kwargs,
        exception=life.text_of(error),
    )  # fmt: skip


def _forked() -> None:
    global _pid
    _pid = os.getpid()
    for life in _logs.values():
        life.forked()


os.register_at_fork(after_in_child=_forked)
