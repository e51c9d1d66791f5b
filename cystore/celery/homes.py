"""More than one host: a task's results belong to one store, its home, whichever worker runs it.

Every message names its home in the header `cystore_home`: the home of the sending task, else the setting of that name,
else the store of the sending process. A worker that has that store appends there. Another worker sends its records
through the broker to `cystore.<home id>` (task `cystore.home_record`), and the workers of the home append them. While
none of these runs, the message waits in the broker.

Each record is appended once. It has an id of its own, which the store keeps as its unique key. A redelivered message
finds its records in the store. A lock keeps two simultaneous deliveries of one message apart; the kernel releases it
when its holder dies. If a worker is killed, it leaves either none or all of the records, and the message is delivered
again.
"""

from __future__ import annotations

import base64
import logging
import re
import uuid
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from functools import partial
from typing import TYPE_CHECKING, Any
from uuid import UUID

from celery import current_app, shared_task, signals, states
from celery._state import get_current_task
from celery.exceptions import BackendError, ImproperlyConfigured
from celery.exceptions import TimeoutError as ResultTimeoutError
from celery.utils.functional import LRUCache

from cystore import Message, MessageIllegalError, StoreError, clock
from cystore.celery.base import greenlets, records
from cystore.celery.base.events import EVENTS, RECEIVED, REDELIVERED, SENT, STARTED, Event
from cystore.celery.base.identity import has_home, is_replica, known_home_of
from cystore.celery.base.queues import declared
from cystore.layout.record import LIGHT, SETTLES

if TYPE_CHECKING:
    from cystore import MessageStore
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore")

HOME = "cystore_home"  # the header and the setting
SENDS_SETTING = "cystore_send_without_store"
HOME_RECORD = "cystore.home_record"
SENT_MS = records.SENT_MS
RECORDS_MOST = 100  # of one message; a worker sends one or two
FLUSHES = (None, "sync", "async")
BEGINS = (SENT, RECEIVED, REDELIVERED, STARTED)  # events of a new run
LOCKS = 256
FOREIGN_KEPT = 100_000
RETRY_AT_MOST_S = 60
FAILURES = "failures"  # the key that each stored failure wakes, beside its task's

_at: ContextVar[str | None] = ContextVar("cystore_home", default=None)
_calling: ContextVar[tuple[str, Any, str | None] | None] = ContextVar("cystore_calling", default=None)
_foreign: LRUCache = LRUCache(limit=FOREIGN_KEPT)  # homes by (own path, task id)
_reported: set[str] = set()


class ResultsElsewhereError(BackendError):
    """A store that this process does not have, and cannot ask, keeps the result."""


class HomeAwayError(ResultsElsewhereError, ResultTimeoutError):
    """A store that was asked for a result, or the Redis between, did not answer in time. It may answer later."""


# -------------------------------------------------------------------------------------------- whose home


def own_id(backend: CystoreBackend) -> str | None:
    """The home that this process's store keeps; None without a store."""
    return known_home_of(backend.store) if backend.location.path else None


def setting(app: Any) -> str | None:
    """The setting `cystore_home`. Raises ImproperlyConfigured for anything but a store id."""
    value = app.conf.get(HOME)
    if not value:
        return None
    try:
        return str(UUID(str(value)))
    except ValueError:
        raise ImproperlyConfigured(
            f"{HOME} must be the id of a store, which is in its file config/storeId, not {value!r}"
        ) from None


def home_of(backend: CystoreBackend, request: Any = None) -> str:
    """The home for records and messages of `request` (or else the current task). Raises ImproperlyConfigured."""
    return given_home(backend, request) or own_home(backend)


def given_home(backend: CystoreBackend, request: Any = None) -> str | None:
    """The home that is named for `request` (or else the current task); None: this process's store is the home."""
    found = _at.get() or (None if request is None else getattr(request, HOME, None))
    if found is None:
        task = get_current_task()
        found = (task is not None and getattr(task.request, HOME, None)) or backend.home
    return None if not found else str(found)


def own_home(backend: CystoreBackend) -> str:
    """`own_id`. Raises ImproperlyConfigured without a store."""
    found = own_id(backend)
    if not found:
        raise ImproperlyConfigured(
            f"this process has no store (its result_backend is {backend.as_uri()!r}): the setting {HOME} must "
            "name the store "
            f"that keeps its results, by the id in that store's file config/storeId"
        )
    return found


def is_home_of(backend: CystoreBackend, task_id: str) -> bool:
    """Whether this process's store is the home of a task, by its id alone: the store knows the task, and knows no other
    home of it."""
    if not backend.location.path or (backend.location.path, task_id) in _foreign:
        return False
    if records.records_of(backend.store, records.RESULTS, records.key_of(task_id)):
        return True
    known, home = log_entry_of(backend, task_id)
    return known and home is None


def log_entry_of(backend: CystoreBackend, task_id: str) -> tuple[bool, str | None]:
    """The lifecycle log's knowledge of a task: whether this store knows it, and its home if that is another store."""
    found = records.records_of(backend.store, EVENTS, records.key_of(task_id), to_tombstone=False)
    return _event_home(found, task_id)


def is_logged(backend: CystoreBackend, task_id: str) -> bool:
    """Whether the lifecycle log has anything of a task."""
    return bool(backend.store.query(EVENTS, records.key_of(task_id), 1))


def log_entries_of(backend: CystoreBackend, task_ids: Iterable[str]) -> dict[str, tuple[bool, str | None]]:
    """`log_entry_of` for many tasks, with one look at the store."""
    keys = {records.key_of(task_id): task_id for task_id in task_ids}
    found = records.records_of_many(backend.store, EVENTS, keys)
    return {task_id: _event_home(found.get(key, []), task_id) for key, task_id in keys.items()}


def without_results(backend: CystoreBackend, task_ids: Iterable[str]) -> list[str]:
    """The ids without any result in this store, forgotten results included."""
    keys = {records.key_of(task_id): task_id for task_id in task_ids}
    found = records.records_of_many(backend.store, records.RESULTS, keys)
    return [task_id for key, task_id in keys.items() if not found.get(key)]


def _event_home(found: Iterable[Message], task_id: str) -> tuple[bool, str | None]:
    mine = [event for event in map(Event.of, found) if event.task_id == task_id]
    named = next((event.details["home"] for event in mine if event.details.get("home")), None)
    return bool(mine), named and str(named)


def sent_to(backend: CystoreBackend, task_id: str) -> str | None:
    """The other home of a task, as far as this process remembers: it sent the task there, or the home has answered
    for it."""
    if not _foreign.data:  # nearly every process
        return None
    found: str | None = _foreign.get((backend.location.path, task_id))
    return found


def remember(backend: CystoreBackend, task_id: str, home: str) -> None:
    """Remembers that the home of a task is another store."""
    _foreign[backend.location.path, task_id] = home


@contextmanager
def at(home: str) -> Iterator[None]:
    """Everything that is stored or sent inside the block belongs to `home`."""
    token = _at.set(home)
    try:
        yield
    finally:
        _at.reset(token)


HOW = (
    "workers answer for their store through a Redis: name it on both sides, as the broker or as "
    "?reader=redis://... in result_backend "
    "(docs/remote.md)"
)


def no_store(backend: CystoreBackend) -> ResultsElsewhereError:
    """The error for a read without a store and without a home to ask."""
    home = backend.home
    keeper = (
        f"store {home}, named by the setting {HOME}, keeps them"
        if home
        else f"the setting {HOME} names no store"
    )
    return ResultsElsewhereError(
        f"this process has no store (its result_backend is {backend.as_uri()!r}), so it can send tasks but not "
        "read results: "
        f"{keeper}. "
        f"Read them on that store's host, with result_backend = 'cystore:///path/of/the/store'. Or {HOW}"
    )


def elsewhere(task_id: str, home: str) -> ResultsElsewhereError:
    """The error for a task whose result never comes to this store, if no home can be asked."""
    return ResultsElsewhereError(
        f"store {home} keeps the result of task {task_id} (by the task's header or the setting {HOME}), and "
        "this process does not have that store: read the result on that store's host, or send it with another "
        f"{HOME}. Or {HOW}"
    )


def ids_of(result: Any) -> Iterator[str]:
    """The task ids in a result, which may be a group's."""
    children = getattr(result, "results", None)
    if children is None:
        yield result.id
    else:
        for child in children:
            yield from ids_of(child)


# -------------------------------------------------------------------------------------------- publishing


def calling(backend: CystoreBackend, task_id: str) -> None:
    """A task is about to be sent by the app of this backend (`Backend.on_task_call`): finds its home, because the
    signal that follows names no app, and an error raised there is only logged. Raises ImproperlyConfigured, and the
    store's error if the app asks for that (`SENDS_SETTING`)."""
    _calling.set((task_id, backend, _home_or_none(backend, sends_without_store(backend.app))))


@signals.before_task_publish.connect(weak=False)
def name_home(headers: dict[str, Any] | None = None, **_signal: Any) -> None:
    """Gives a message its home."""
    if not headers or "id" not in headers:
        return  # a message of protocol 1 has no place for it
    called = _calling.get()
    if called is not None and called[0] == headers["id"]:
        _, backend, home = called
    else:  # Celery made no such call: the task's result is ignored
        backend = _current_backend()
        home = None if backend is None else _home_or_none(backend, True)
    home = headers.get(HOME) or home
    if backend is None or home is None:
        return
    headers[HOME] = home
    if headers.get("task") == HOME_RECORD:
        return
    try:
        own = own_id(backend)
    except StoreError as error:
        _tell_unopened(backend, error)
        return
    if home != own:
        _foreign[backend.location.path, headers["id"]] = home


def _home_or_none(backend: CystoreBackend, without_store: bool) -> str | None:
    """The home to name in a message, or None. A worker takes its own store as the home of a message that names none;
    so a replica that did not meet its master yet, and does not know its home, names none."""
    named = backend.home or _at.get() or get_current_task()
    if backend.location.remote and not named:
        return None
    try:
        if not named and backend.location.path and not has_home(backend.store):
            return None
        return home_of(backend)
    except StoreError as error:
        if not without_store:
            raise
        _tell_unopened(backend, error)
        return None


def _tell_unopened(backend: CystoreBackend, error: StoreError) -> None:
    if backend.location.path not in _reported:
        _reported.add(backend.location.path)
        log.warning("tasks are sent without a home, because the store cannot be opened: %s", error)


def sends_without_store(app: Any) -> bool:
    """The setting: whether a task is sent, without a home, while this process cannot open its store. Raises
    ImproperlyConfigured."""
    chosen = app.conf.get(SENDS_SETTING, True)
    if not isinstance(chosen, bool):
        raise ImproperlyConfigured(f"{SENDS_SETTING} must be True or False, not {chosen!r}")
    return chosen


def _current_backend() -> Any:
    """The backend, if it is one of ours, of the app that probably sends a message."""
    task = get_current_task()
    app = task.app if task is not None else current_app._get_current_object()
    url = app.conf.result_backend
    return app.backend if isinstance(url, str) and url.startswith(("cystore:", "cystore+remote:")) else None


# ------------------------------------------------------------------------------------------- appending


def put(
    backend: CystoreBackend, home: str | None, fields: Sequence[dict[str, Any]], *, flush: str | None = None
) -> None:
    """Appends records (keyword arguments of `Message`) in order to their home: here, or through the broker. None is
    this process's store. A replica of the home on this host takes no records: the master gets them. Raises
    StoreIsSlaveError in a replica that does not know its home yet."""
    if backend.location.path:
        store = backend.store
        own = known_home_of(store)
        if home is None or home == own:
            home = own
            try:
                _append(backend.store_to_write if store.config.read_only else store, fields, flush)
                return
            except StoreError as error:
                if getattr(error, "results", None) or not (is_replica(store) and has_home(store)):
                    raise
    elif home is None:
        home = own_home(backend)
    send_id, sent_ms = uuid.uuid4().hex, str(clock.now_ms())
    listed = [
        {
            **one,
            "body": base64.b64encode(one["body"]).decode(),
            "properties": {**_sent(one.get("properties", {})), SENT_MS: sent_ms},
            "unique_key": f"{send_id}-{number}",
        }
        for number, one in enumerate(fields)
    ]
    app = backend.app
    app.send_task(
        HOME_RECORD,
        (home, send_id, listed, flush),
        queue=declared(app, home),
        serializer="json",
        ignore_result=True,
        add_to_parent=False,
        headers={HOME: home},
    )


def _sent(properties: dict[str, str]) -> dict[str, str]:
    """Only a record that stays in the store settles a message."""
    return {name: value for name, value in properties.items() if name not in (SETTLES, LIGHT)}


def safe_flush(store: MessageStore, flush: str | None) -> str | None:
    """The flush of a put. An elected master may be cut off without knowing it, and its own disk may be lost with it: so
    records that do not ask for "async" wait until each member in sync has them."""
    return "replicated" if flush != "async" and store.epoch else flush


def _append(store: MessageStore, fields: Sequence[dict[str, Any]], flush: str | None) -> None:
    flush = safe_flush(store, flush)
    if not greenlets.in_use():
        _append_now(store, fields, flush)
    elif len(fields) > 1 or flush == "replicated" or "sync" in (flush, store.config.flush_disk_type):
        greenlets.off_the_hub(_append_now, store, fields, flush)
    else:
        greenlets.append(partial(_append_now, store, fields, flush))


def _append_now(
    store: MessageStore,
    fields: Sequence[dict[str, Any]],
    flush: str | None,
    busy_timeout_ms: int | None = None,
) -> None:
    if len(fields) == 1:
        one = fields[0]
        # Topic and body by position: only such a call goes straight into the kernel.
        store.put(
            one["topic"], one["body"], queue_id=one["queue_id"], keys=one["keys"], tags=one["tags"],
            properties=one["properties"], flush=flush, busy_timeout_ms=busy_timeout_ms,
        )  # fmt: skip
    else:
        store.put_many([Message(**one) for one in fields], flush=flush)
    _wake(store, fields)


def _wake(store: MessageStore, fields: Sequence[dict[str, Any]]) -> None:
    """Wakes the waiters for a result. After a kill before that, their next look finds it, seconds later
    at most (`results.consumer.IDLE_S`)."""
    for one in fields:
        if one["topic"] == records.RESULTS:
            for key in one["keys"]:
                store.wake_key(key)
            if one["tags"] in states.PROPAGATE_STATES:
                store.wake_key(FAILURES)


@shared_task(
    name=HOME_RECORD, bind=True, ignore_result=True, acks_late=True, reject_on_worker_lost=True, max_retries=None
)  # fmt: skip
def home_record(
    self: Any,
    home: Any = None,
    send_id: Any = None,
    fields: Any = None,
    flush: Any = None,
    *more: Any,
    **named: Any,
) -> int:
    """Appends records that a worker of another store sent here; returns the number of new ones. A store that refuses
    them for the moment gets them again later; so does a replica that cannot be found for the moment. Raises
    MessageIllegalError for a message that `put` does not send: any program that reaches the broker may send one."""
    if more or named or not isinstance(home, str) or not _UUID.fullmatch(home):
        raise records.illegal("home", "must be the id of a store, and four arguments are known")
    own = self.app.backend
    if not hasattr(own, "of_home"):
        raise ImproperlyConfigured(f"records for store {home} reached a worker without a store")
    try:
        backend = own.of_home(home)
        if backend is None:
            unknown = ImproperlyConfigured(
                f"records for store {home} reached a worker of store {own_id(own)}"
            )
            if not own.has_replicas:
                raise unknown
            raise self.retry(exc=unknown, countdown=min(2**self.request.retries, RETRY_AT_MOST_S))
        with backend.for_a_while():
            return _take(backend, send_id, fields, flush)
    except MessageIllegalError:
        raise
    except StoreError as error:
        raise self.retry(exc=error, countdown=min(2**self.request.retries, RETRY_AT_MOST_S)) from error


_UUID, _SEND_ID = re.compile("[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}"), re.compile("[0-9a-f]{32}")


def _take(backend: CystoreBackend, send_id: Any, fields: Any, flush: Any) -> int:
    new = append_once(backend, send_id, fields, flush)
    # Known records too: the process that appended them may have been killed before it looked at their chords.
    backend.chords.settle_records(fields)
    return new


def _check_sent(backend: CystoreBackend, send_id: Any, fields: Any, flush: Any) -> None:
    """Raises MessageIllegalError unless these are the arguments that `put` sends."""
    if not isinstance(send_id, str) or not _SEND_ID.fullmatch(send_id):
        raise records.illegal("send_id", "must be 32 hexadecimal digits")
    if not isinstance(fields, (list, tuple)) or not 0 < len(fields) <= RECORDS_MOST:
        raise records.illegal("fields", f"must be a list of 1 to {RECORDS_MOST} records")
    if not isinstance(flush, (str, type(None))) or flush not in FLUSHES:
        raise records.illegal("flush", 'must be "sync", "async" or null')
    for number, one in enumerate(fields):
        records.check_sent(one, f"{send_id}-{number}")
        if one["topic"] == records.CHORDS:
            backend.chords.check_step(one)


def append_once(
    backend: CystoreBackend, send_id: str, fields: Sequence[dict[str, Any]], flush: str | None
) -> int:
    """Appends the records that the store does not have yet. Raises MessageIllegalError for arguments that `put` does
    not send."""
    _check_sent(backend, send_id, fields, flush)
    store = backend.store
    from cystore.system.store_lock import locked_byte  # only a home of other hosts' tasks needs it

    with locked_byte(store.path / "config" / "homeRecord.lock", int(send_id[:8], 16) % LOCKS):
        known = _unique_keys(store, [(one["topic"], one["unique_key"]) for one in fields])
        fresh = [one for one in fields if one["unique_key"] not in known]
        messages = []
        for one in fresh:
            properties = one["properties"]
            if _changes_nothing(backend, one):
                properties = {**properties, records.LATE: "1"}
            messages.append(
                Message(
                    **{**one, "properties": properties, "body": base64.b64decode(one["body"], validate=True)}
                )
            )
        if messages:
            # Elsewhere a sweep begins the hold.
            with backend.chords.holding(fresh) if backend.is_own else nullcontext():
                store.put_many(messages, flush=safe_flush(store, flush))
            _wake(store, fresh)
        else:  # an earlier delivery appended them, and perhaps did not wait to the end
            if store.epoch:
                store.wait_replicated()
            store.check_takes_puts()  # a replica's log may be cut
        return len(messages)


def _unique_keys(store: MessageStore, wanted: Sequence[tuple[str, str]]) -> set[str]:
    """The pairs (topic, unique key) that the store has, dispatched or not, confirmed or not."""
    whole, keys = store.whole, {key for _, key in wanted}
    behind = {m.unique_key for m in whole.scan_undispatched() if m.unique_key in keys}
    return behind | {key for topic, key in wanted if whole.query(topic, key, 1)}


def _changes_nothing(backend: CystoreBackend, one: dict[str, Any]) -> bool:
    """Whether a record must not change its task's state, or its chord: only the history shows it.

    Messages overtake each other, so a task's begin may come after its end. And a task that has ended is not ended
    again in another way, unless this store has heard of a new run of it: else whoever reaches the broker could turn a
    failure into a success. (A SUCCESS stays in any case, see `records.fold`.)
    """
    if one["topic"] == records.CHORDS:
        ended_at = backend.chords.part_at(one)
        return ended_at is not None and not _began_again(
            backend, records.key_of(records.id_of(one["properties"]["task_id"])), ended_at
        )
    if one["topic"] != records.RESULTS or not one["body"]:
        return False
    key = one["keys"][0]
    known = backend.store.whole.query(records.RESULTS, key, records.FIRST_LOOK)
    newest = records.fold(known, backend.expiry.is_valid)
    if newest is None:
        newest = backend.latest(records.id_of(key))
    if newest is None or newest.tags not in states.READY_STATES:
        return False
    if one["tags"] not in states.READY_STATES:
        return int(newest.properties.get(SENT_MS, 0)) > int(one["properties"][SENT_MS])
    return newest.tags != states.SUCCESS and not _began_again(backend, key, newest.physical_offset)


def _began_again(backend: CystoreBackend, key: str, ended_at: int) -> bool:
    """Whether the lifecycle log has the begin of a run behind an end of the task."""
    events = backend.store.whole.query(EVENTS, key, records.FIRST_LOOK)
    return any(event.tags in BEGINS and event.physical_offset > ended_at for event in events)
