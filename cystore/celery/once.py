"""`base=cystore.celery.Once`: a task that succeeded is not run again, and runs once at a time.

    @app.task(base=cystore.celery.Once, once={"keys": ["order_id"], "window_s": 86_400})
    def charge(order_id, amount): ...

Each run holds a lock of its key from before the task's code until its result is stored. The lock belongs to the
process: the kernel releases it when the process ends in any way, so the lock needs no timeout. One record has a run's
SUCCESS, the task's id and the key of its arguments, so they are stored together.

The guard is that of one store: it holds between all workers whose home is this store (docs/celery.md, several hosts).
"""

from __future__ import annotations

import hashlib
import inspect
import json
import logging
import math
from collections.abc import Mapping, Sequence, Set
from typing import Any, ClassVar

from celery import Task, states
from celery.exceptions import Ignore, ImproperlyConfigured
from celery.result import AsyncResult
from kombu.utils.json import dumps

from cystore import Message, MessageStore, clock
from cystore.celery import homes
from cystore.celery.base import greenlets, records
from cystore.system.key_lock import KeyLock, is_taken

log = logging.getLogger("cystore.celery")

RUNS = "celery_once"  # the topic that says which task begins to run for a key
RUNNING = "RUNNING"
WAIT, REFUSE, JOIN = "wait", "refuse", "running"
CHOICES = (WAIT, REFUSE, JOIN)
OPTIONS = ("keys", "window_s", "on_duplicate")
AWAITED = (
    "chain",
    "chord",
    "group_id",
    "link",
    "link_error",
)  # options that the sender attached to this very call
KEY_CHARS = 40


class OnceRunningError(Exception):
    """Another task with the same key runs now: `task_id` (None where its record is gone)."""

    def __init__(self, name: str, task_id: str | None) -> None:
        super().__init__(name, task_id)
        self.name, self.task_id = name, task_id

    def __str__(self) -> str:
        return f"{self.name}: task {self.task_id or 'of unknown id'} runs now with the same key"


class OnceElsewhereError(Exception):
    """This worker does not have the store that guards the task."""


class OnceKeyError(TypeError):
    """No key can be made of the value of an argument."""

    def __init__(self, name: str, argument: str, why: str) -> None:
        super().__init__(name, argument, why)
        self.name, self.argument, self.why = name, argument, why

    def __str__(self) -> str:
        return (
            f"{self.name}: once cannot make a key from the argument {self.argument!r}: {self.why}. Its value must be "
            "JSON, and the keys of each dict in it must differ as text"
        )


class Once(Task):
    """See the module. `once` holds the options: `keys`, `window_s`, `on_duplicate`."""

    abstract = True
    once: ClassVar[Mapping[str, Any]] = {}

    @classmethod
    def on_bound(cls, app: Any) -> None:
        """Raises ImproperlyConfigured for options that make no sense."""
        super().on_bound(app)
        where, once = f"{cls.name}: once", cls.once
        if not isinstance(once, Mapping):
            raise ImproperlyConfigured(f"{where} must be a dict of options, not {once!r}")
        unknown = sorted(set(once) - set(OPTIONS), key=repr)
        if unknown:
            raise ImproperlyConfigured(f"{where} has no option {unknown[0]!r}; it has {', '.join(OPTIONS)}")
        keys, window_s = once.get("keys"), once.get("window_s")
        if keys is not None and not _are_names(keys):
            raise ImproperlyConfigured(f"{where}: keys must be names of arguments, not {keys!r}")
        missing = sorted(set(keys or ()) - set(_signature(cls).parameters))
        if missing:
            raise ImproperlyConfigured(
                f"{where}: keys has {missing[0]!r}, which is not an argument of the task"
            )
        if window_s is not None and not _is_span(window_s):
            raise ImproperlyConfigured(
                f"{where}: window_s must be a finite number of seconds above 0, or None, not {window_s!r}"
            )
        if once.get("on_duplicate", WAIT) not in CHOICES:
            raise ImproperlyConfigured(
                f"{where}: on_duplicate must be one of {', '.join(CHOICES)}, not {once['on_duplicate']!r}"
            )
        if cls.ignore_result:
            raise ImproperlyConfigured(f"{where} needs the results of the task: ignore_result must be off")

    # ------------------------------------------------------------------------------------------- running

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the task, unless it succeeded before. A call that no worker makes (`task(...)`, `apply`,
        task_always_eager) is not guarded."""
        request = self.request
        if request.called_directly or request.is_eager or request.get("cystore_once_runs"):
            return super().__call__(*args, **kwargs)
        if request.ignore_result:
            raise ImproperlyConfigured(
                f"{self.name}: once needs the result of the task, and it was sent with ignore_result"
            )
        backend = self.backend
        home = homes.home_of(backend, request)
        if home != homes.own_id(backend):
            raise OnceElsewhereError(
                f"{self.name}: the guard of once is in the store of the task's home, {home}, and this worker "
                "has another one. Send "
                "tasks with once to a queue that only workers of their home consume"
            )
        key = self._once_key(request.id, args, kwargs)
        friends = {request.id, request.parent_id} if request.replaced_task_nesting else {request.id}
        lock = KeyLock(_lock_path(backend.store_to_write), key)
        try:
            greenlets.off_the_hub(lock.take, lambda: self._met(key, friends))
            found = self._succeeded(key, request.id)
            if found is not None:
                lock.give()
                return self._again(found, request.id)
            backend.store_to_write.put(
                RUNS, b"", keys=(key,), tags=RUNNING, properties={"task_id": request.id}, flush="async"
            )
            request.cystore_once_runs = True
            result = self.run(*args, **kwargs)
        except BaseException:
            lock.give()
            raise
        # The lock is held until the result is stored (`after_return`), at the latest until the request ends.
        request.cystore_once = lock
        request.cystore_once_key = key
        return result

    def after_return(self, *args: Any) -> None:
        """The result is stored."""
        lock = self.request.get("cystore_once")
        if lock is not None:
            self.request.cystore_once = None
            lock.give()
        super().after_return(*args)

    def _met(self, key: str, friends: Set[str | None]) -> None:
        """Another run has the lock. If that run is one of `friends`, this run always waits. A run with the same id (a
        redelivery, a retry) may still die, or is about to end. The run that replaced itself by this one is about to
        end, too."""
        if self.once.get("on_duplicate", WAIT) == REFUSE:
            running = _running(self.backend.store, key)
            if running not in friends and not self._is_stored(running):
                raise OnceRunningError(self.name, running)

    def _is_stored(self, task_id: str | None) -> bool:
        """Whether a run has succeeded and is just about to give its lock back."""
        found: Message | None = None if task_id is None else self.backend.latest(task_id)
        return found is not None and found.tags == states.SUCCESS

    def _again(self, found: Message, task_id: str) -> Any:
        """The result of a task that succeeded. If it is this very task, its result is stored and its successors were
        sent."""
        first = records.id_of(found.keys[0])
        log.info("%s[%s]: not run again, %s succeeded", self.name, task_id, first)
        if first == task_id:
            raise Ignore
        return self.backend.meta_of(found)["result"]

    # ------------------------------------------------------------------------------------------- sending

    def apply_async(
        self, args: Any = None, kwargs: Any = None, task_id: str | None = None, **options: Any
    ) -> AsyncResult:
        """Sends the task. With on_duplicate "running" it returns a task with the same key that runs now, or has
        succeeded within the window; with "refuse" it raises OnceRunningError for a running one. It always sends the
        task if this process has no store, or if other tasks wait for the call: a call with a task id (also each retry,
        and the replacement of a run), or with one of AWAITED. The worker decides then."""
        choice = self.once.get("on_duplicate", WAIT)
        eager = self._get_app().conf.task_always_eager
        awaited = task_id is not None or any(options.get(name) for name in AWAITED)
        asks = choice != WAIT and self.once.get("keys") is not None and not (eager or awaited)
        if asks and self.backend.location.path:
            key = self._once_key("", args or (), kwargs or {})
            known = self._known(key, choice)
            if known is not None:
                return self.AsyncResult(known)
        return super().apply_async(args, kwargs, task_id=task_id, **options)

    def _known(self, key: str, choice: str) -> str | None:
        store = self.backend.store
        if is_taken(_lock_path(store), key):
            running = _running(store, key)
            if choice == REFUSE and not self._is_stored(running):
                raise OnceRunningError(self.name, running)
            if choice == JOIN and running is not None:
                return running
        found = self._succeeded(key, "") if choice == JOIN else None
        return None if found is None else records.id_of(found.keys[0])

    # ----------------------------------------------------------------------------------------------- keys

    def _once_key(self, task_id: str, args: Any, kwargs: Any) -> str:
        """The key of a call: made of the task's name and the values of `keys` among its arguments, or of its id.
        Raises TypeError for arguments that the task does not take, OnceKeyError for values that JSON does not."""
        names = self.once.get("keys")
        if names is None:
            call = task_id
        else:
            bound = _signature(type(self)).bind(*args, **kwargs)
            bound.apply_defaults()
            call = f"[{', '.join(self._as_json(name, bound.arguments[name]) for name in sorted(names))}]"
        digest = hashlib.sha256(f"{self.name}\0{names is None}\0{call}".encode()).hexdigest()
        return f"once:{digest[:KEY_CHARS]}"

    def _as_json(self, name: str, value: Any) -> str:
        # The keys of a dict are text for a worker that gets them as JSON. The sender has to make the same of it.
        try:
            return json.dumps(json.loads(dumps(value), object_pairs_hook=_of_pairs), sort_keys=True)
        except (TypeError, ValueError) as error:
            raise OnceKeyError(self.name, name, str(error)) from error

    def _succeeded(self, key: str, task_id: str) -> Message | None:
        """The record of a SUCCESS with this key that holds: within the window, not expired and not forgotten."""
        backend, window_s, keys = self.backend, self.once.get("window_s"), self.once.get("keys")
        if keys is None:
            ids = [task_id]
        else:
            ids = [records.id_of(message.keys[0]) for message in backend.store.query(records.RESULTS, key, 1)]
        for one in ids:
            for found in backend.all_states(one):
                # The id may have been used again, for a call with another key.
                if found.tags == states.SUCCESS and (keys is None or key in found.keys):
                    age_ms = clock.now_ms() - (found.store_timestamp_ms or 0)
                    if window_s is None or age_ms < 1000 * window_s:
                        return found
        return None


def _are_names(keys: Any) -> bool:
    """Whether `keys` is a list, tuple or set of text. An iterator is refused, because the check would empty it."""
    return (
        isinstance(keys, (Sequence, Set))
        and not isinstance(keys, (str, bytes))
        and all(isinstance(name, str) for name in keys)
    )


def _of_pairs(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A dict of JSON. Raises ValueError for one key that comes twice."""
    found = dict(pairs)
    if len(found) < len(pairs):
        raise ValueError("two keys of a dict are the same text")
    return found


def _is_span(seconds: Any) -> bool:
    return isinstance(seconds, (int, float)) and not isinstance(seconds, bool) and 0 < seconds < math.inf


def _signature(task: type[Task]) -> inspect.Signature:
    """The signature of the task's code, without the task itself as first argument."""
    run = inspect.signature(task.run)
    if isinstance(inspect.getattr_static(task, "run"), staticmethod):
        return run
    return run.replace(parameters=list(run.parameters.values())[1:])


def _lock_path(store: MessageStore) -> Any:
    return store.path / "config" / "once.lock"


def _running(store: MessageStore, key: str) -> str | None:
    """The id of the task that began last with a key."""
    found = store.whole.query(RUNS, key, 1)
    return found[0].properties.get("task_id") if found else None
