"""The result backend ``cystore:///path?option=value``: every state of every task is one append to a store on this host.

Source of the contract: celery.backends.base.Backend and celery.backends.asynchronous.AsyncBackendMixin.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from celery import states
from celery.backends.asynchronous import AsyncBackendMixin
from celery.backends.base import Backend
from celery.exceptions import ImproperlyConfigured
from celery.result import GroupResult, ResultSet, result_from_tuple
from kombu.serialization import loads
from kombu.utils.encoding import ensure_bytes

from cystore import (
    FlushSlaveTimeoutError,
    Message,
    PageCacheBusyError,
    StoreConfig,
    StoreError,
    StoreFullError,
    StoreNotWritableError,
)
from cystore.celery import homes
from cystore.celery.base import event_loop, greenlets, records
from cystore.celery.base.identity import check_id, store_id_of
from cystore.celery.base.store_watch import back_to_the_broker
from cystore.celery.chords.chord_steps import Chords, is_part
from cystore.celery.eta import keeping
from cystore.celery.lifecycle import recorder
from cystore.celery.lifecycle.redaction import Redaction
from cystore.celery.results import settling
from cystore.celery.results.consumer import ResultConsumer
from cystore.celery.results.encoding import encode_meta, largest_bytes
from cystore.celery.results.expiry import Expiry
from cystore.celery.routing.other_homes import Elsewhere, reader_of
from cystore.celery.stores import (
    DEFAULTS,
    Location,
    compacts_results,
    for_a_while,
    is_of_worker,
    lifetime_s,
    open_shared,
    open_to_read,
    put_off,
    release,
    shown,
)
from cystore.celery.versions import decompress_payload
from cystore.clock import now_us
from cystore.system.links import real_path

if TYPE_CHECKING:
    from cystore import MessageStore

# A later try may succeed. Nothing was appended; after FlushSlaveTimeoutError the master has the records, and a second
# time they change nothing.
SAFE_TO_RETRY = (StoreFullError, PageCacheBusyError, StoreNotWritableError, FlushSlaveTimeoutError)

log = logging.getLogger("cystore.celery")

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
MANY = 10_000  # ids of one look; their records are in memory at the same time

_backends: weakref.WeakSet[CystoreBackend] = weakref.WeakSet()
_closing: weakref.WeakSet[Any] = weakref.WeakSet()  # apps whose `close` closes their backends
_checked: set[str] = (
    set()
)  # stores that this worker found usable when it started; its pool's processes inherit that


class CystoreBackend(AsyncBackendMixin, Backend):
    """Stores results in the store that the URL names; opened when first used, once in each process.

    Writing never reads: states are appended as they come, and a reader folds them (`records.fold`). Raises
    ImproperlyConfigured for a URL or options that make no sense, `cystore.StoreError` for a store that cannot be
    used; a worker finds that out when it starts.
    """

    supports_native_join = True
    supports_result_compression = True
    supports_autoexpire = (
        True  # readers check expiry and workers clean: beat need not send celery.backend_cleanup
    )
    supports_failure_expires = True
    is_own = True  # the app's own store, which also has its lifecycle log; False: a replica of another home

    def __init__(self, app: Any, url: str | None = None, **kwargs: Any) -> None:
        super().__init__(app, url=url, **kwargs)
        conf = self.app.conf
        location = Location.parse(url, conf.get("result_backend_transport_options"))
        self.location = location.keeping(self.expires)
        failures = conf.get("result_failure_expires")
        self.expiry = Expiry(
            self.expires,
            self.expires if failures is None else lifetime_s("result_failure_expires", failures),
        )
        # Greenlets share one backend. With a backend each, each would wait in a native thread, and the hub has few.
        self.thread_safe: bool = bool(conf.get("result_backend_thread_safe")) or greenlets.in_use()
        if is_of_worker(self.app) and self.location.path and self.location.path not in _checked:
            self._refuse_to_start()
            _checked.add(self.location.path)
        self._opened: weakref.ref[MessageStore] | None = None  # the store that this backend found last
        self._thread = weakref.ref(threading.current_thread())  # Celery makes a backend for each thread
        # The most bytes of a record in that store. Without a store on this host, the limit of the default settings.
        self._limit_bytes = 0 if self.location.path else largest_bytes(StoreConfig.from_mapping(DEFAULTS))
        self.result_consumer = ResultConsumer(
            self, self.app, self.accept, self._pending_results, self._pending_messages
        )
        self.chords = Chords(self)
        self.home = homes.setting(app)
        self.elsewhere = Elsewhere(self)
        if self.location.reader:
            reader_of(self)  # reports an invalid URL now, and not at the first look
        self._redaction = Redaction.of(conf, self.app)
        self._zone: Any = None  # the app's time zone; the settings are read with the first result
        self._extended = False
        _backends.add(self)
        if self.is_own:
            keeping.begin(self.app)
        if self.location.path and self.is_own:
            recorder.install(self.app, self.location)
            _close_with(self.app)

    def prepare_expires(self, value: Any, type: Any = None) -> Any:
        """The seconds for which results are valid; None or 0 is for ever. Raises ImproperlyConfigured."""
        seconds = lifetime_s("result_expires", super().prepare_expires(value))
        return type(seconds) if type and seconds is not None else seconds

    def __reduce__(self, args: tuple = (), kwargs: dict[str, Any] | None = None) -> Any:
        return super().__reduce__(args, {**(kwargs or {}), "url": self.url})

    def as_uri(self, include_password: bool = False) -> str:
        """The URL as an app gives it. It has the reader's password only with `include_password`."""
        return str(self.url) if include_password else shown(self.url or "")

    @property
    def store(self) -> MessageStore:
        """The open store, read-only if this user may not write. Raises `homes.ResultsElsewhereError` if this host has
        none."""
        found = None if self._opened is None else self._opened()
        if found is None or found.closed:
            if not self.location.path:
                raise homes.no_store(self)
            found = open_to_read(self.location, self.app)
            self._limit_bytes = largest_bytes(found.config)
            self._opened = weakref.ref(found)
        return found

    @property
    def store_to_write(self) -> MessageStore:
        """The open store. Raises StorePermissionError if this user may only read it."""
        found = self.store
        return open_shared(self.location, self.app) if found.config.read_only else found

    def close(self) -> None:
        """Gives the store back. The process closes it if no other thread of the app and no other app uses it. A later
        call opens it again. `app.close()` does this for all threads. Raises NotDurableError."""
        self._opened = None
        if self.location.path and not any(other._uses_store_of(self) for other in list(_backends)):
            if self.is_own:
                recorder.release(self.app)
            release(self.location, self.app)

    def _uses_store_of(self, other: CystoreBackend) -> bool:
        """Whether this backend, of a thread that still runs, has the store of another backend of its app open."""
        if self.app is not other.app or self.location.path != other.location.path:
            return False
        store = None if self._opened is None else self._opened()
        thread = self._thread()
        return store is not None and not store.closed and thread is not None and thread.is_alive()

    def of_home(self, home: str) -> CystoreBackend | None:
        """The backend of a home whose records this host can take: this one, or that of a replica in the folder
        `cystore_replicas`. None if this host has no store of the home."""
        if self.location.path and (home == homes.own_id(self) or home == store_id_of(self.store)):
            return self
        from cystore.celery import replicas

        folder = replicas.folder_of(self.app)
        path = None if folder is None else replicas.served_in(folder, self.location.path).get(home)
        return None if path is None else ReplicaBackend(self.app, path)

    @property
    def has_replicas(self) -> bool:
        """Whether `of_home` looks into a folder: what it does not find there may come back."""
        from cystore.celery import replicas

        return replicas.folder_of(self.app) is not None

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Wraps the use of a backend from `of_home`."""
        yield

    def _refuse_to_start(self) -> None:
        """Raises when a worker starts and cannot use its store: one error instead of one for each task. The worker may
        open a store later that is there."""
        if self.location.settings.get("read_only") or not put_off(self.location, self.app):
            self.open_for_worker()

    def open_for_worker(self) -> MessageStore:
        """The open store. Raises ImproperlyConfigured if the worker cannot use it."""
        if self.location.settings.get("read_only"):
            raise ImproperlyConfigured(
                f"result_backend {self.as_uri()!r}: a worker has to store results, and read_only forbids that"
            )
        try:
            store = open_shared(self.location, self.app)
            check_id(store)
            if store.config.ha_listen_port:  # nearly no worker imports replication
                from cystore.celery.replicas import tell_unserved

                tell_unserved(store)
            with suppress(StoreNotWritableError):  # a slave, perhaps: it may become the master
                store.check_reserved_space()  # an open works on a full disk, but no task could be stored
            return store
        except StoreError as error:
            raise ImproperlyConfigured(f"result_backend {self.as_uri()!r} cannot be used: {error}") from error

    def exception_safe_to_retry(self, exc: BaseException) -> bool:
        """True for a full disk, a busy append lock and a store that refuses writes: with result_backend_always_retry
        Celery repeats the operation until it succeeds. False if this app itself asked for read_only."""
        return isinstance(exc, SAFE_TO_RETRY) and not self.location.settings.get("read_only")

    # ------------------------------------------------------------------------------------------ writing

    def _store_result(
        self, task_id: str, result: Any, state: str, traceback: Any = None, request: Any = None, **kwargs: Any
    ) -> Any:
        given = result
        if state in states.EXCEPTION_STATES:
            result = self.redacted(state, result)
            traceback = self._redaction.text(traceback) if isinstance(traceback, str) else traceback
        meta = self._get_result_meta(result=result, state=state, traceback=traceback, request=request)
        meta["task_id"] = str(task_id)
        name = part = also = None
        if request is not None:
            name = getattr(request, "task", None)
            if state == states.SUCCESS:
                also = getattr(request, "cystore_once_key", None)
        if "args" in meta:  # with result_extended
            meta["args"], meta["kwargs"] = self._redaction.values(name or "", meta["args"], meta["kwargs"])
        try:
            if self.location.path:
                _ = self.store  # it may be opened here, which finds the limit
            if getattr(request, "chord", None):
                part = self.chords.part_with(task_id, request, state, result)
            body = encode_meta(
                meta, self.encode, self.prepare_exception, name=name, limit_bytes=self._limit_bytes
            )
            self._append(
                records.RESULTS, task_id, body, tag=state, name=name, request=request, part=part, also=also
            )
        except StoreError as error:
            back_to_the_broker(error, self.app, self.location.path, request)
            raise
        return given

    def _get_result_meta(
        self, result: Any, state: str, traceback: Any, request: Any, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Celery's meta of a result. Celery looks at the settings for each result; without `result_extended`, which
        adds fields, only the time zone matters."""
        if self._zone is None:
            self._extended = bool(self.app.conf.find_value_for_key("extended", "result"))
            self._zone = self.app.timezone  # last: another thread that sees it sees both
        if self._extended or args or kwargs:
            extended: dict[str, Any] = super()._get_result_meta(
                result, state, traceback, request, *args, **kwargs
            )
            return extended
        done = None
        if state in states.READY_STATES:
            done = (EPOCH + timedelta(microseconds=now_us())).astimezone(self._zone).isoformat()
        meta = {
            "status": state,
            "result": result,
            "traceback": traceback,
            "children": self.current_task_children(request),
            "date_done": done,
        }
        if request is not None:
            if group := getattr(request, "group", None):
                meta["group_id"] = group
            if parent := getattr(request, "parent_id", None):
                meta["parent_id"] = parent
        return meta

    def redacted(self, state: str, result: Any) -> Any:
        """A result as it may be stored: the texts of a failure have no values that the app wants to be hidden."""
        return self._redaction.failure(result) if state in states.EXCEPTION_STATES else result

    def hides_call(self, call: Any) -> bool:
        """Whether a signature has something that the app wants to be hidden."""
        return self._redaction.hides_call(call)

    def _forget(self, task_id: str) -> None:
        home = self.elsewhere.home_of(task_id)
        with homes.at(home) if home else nullcontext():
            self._append(records.RESULTS, task_id, b"", tag=records.FORGET)

    def _save_group(self, group_id: str, result: GroupResult) -> GroupResult:
        payload = self.encode({"result": result.as_tuple()})
        self._append(records.GROUPS, group_id, payload, tag=records.SAVED)
        return result

    def _delete_group(self, group_id: str) -> None:
        self._append(records.GROUPS, group_id, b"", tag=records.FORGET)

    def cleanup(self) -> None:
        """Begins a new segment if it is time for one, and removes expired ones. A worker's main process does the same
        by itself."""
        self.store.clean_due()
        self.store.clean()

    def _append(
        self, topic: str, task_id: str, payload: str | bytes, *, tag: str, name: str | None = None,
        request: Any = None, part: dict[str, Any] | None = None, also: str | None = None,
    ) -> None:  # fmt: skip
        """`also` is another key of the record, behind the task's id."""
        body = ensure_bytes(payload)
        properties = (
            {"content_type": self.content_type, "content_encoding": self.content_encoding} if body else {}
        )
        if name:
            properties["task"] = records.kept_name(name)
        key = records.key_of(task_id)
        keys: tuple[str, ...] = (key,)
        if topic == records.RESULTS and self.location.path and compacts_results(self.store):
            keys, until_ms = records.compaction_keys(key, tag), self.expiry.until_ms(tag)
            if until_ms is not None:
                properties["EXPIRES_AT_MS"] = str(until_ms)  # compaction keeps the record at most until then
        record = {
            "topic": topic,
            "body": body,
            "queue_id": records.queue_of(name),
            "keys": (*keys, also) if also else keys,
            "tags": tag,
            "properties": properties,
        }
        home = homes.given_home(self, request)
        if part is None and settling.ends.get() is None:  # as for most
            homes.put(self, home, [record])
            return
        with settling.together(self, home, record):
            homes.put(self, home, [part, record] if part else [record], flush="sync" if part else None)
        if part:
            self.chords.stored()

    # ------------------------------------------------------------------------------- chords, and other homes

    def apply_chord(self, header_result_args: Any, body: Any, **kwargs: Any) -> None:
        """A chord is about to send its header."""
        self.ensure_chords_allowed()
        self.chords.open(header_result_args[0], header_result_args[1], body)

    def set_chord_size(self, group_id: str, chord_size: int) -> None:
        """Stores the number of the chord's parts."""
        self.chords.set_size(group_id, chord_size)

    def add_to_chord(self, chord_id: str, result: Any) -> None:
        """The chord waits for one more task."""
        self.chords.add(chord_id, result.id)

    def on_chord_part_return(self, request: Any, state: str, result: Any, **kwargs: Any) -> None:
        """A task of a chord's header ended."""
        self.chords.returned(request, state, result)

    def mark_as_done(self, task_id: str, result: Any, request: Any = None, *args: Any, **kwargs: Any) -> None:
        """A task succeeded."""
        held = settling.settles(request, states.SUCCESS)
        if held is None and not is_part(request):
            super().mark_as_done(task_id, result, request, *args, **kwargs)
            return
        with settling.ending(request, held), self.chords.ending(request):
            super().mark_as_done(task_id, result, request, *args, **kwargs)

    def mark_as_failure(
        self, task_id: str, exc: Any, traceback: Any = None, request: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Stores the failure of a task, and of the tasks that wait for it."""

        def mark() -> None:
            ends = settling.ending(request, settling.settles(request, states.FAILURE))
            with homes.at(homes.home_of(self, request)), self.chords.ending(request), ends:
                super(CystoreBackend, self).mark_as_failure(task_id, exc, traceback, request, *args, **kwargs)
            recorder.skip_rest(self, task_id, request, exc)

        event_loop.store(self.app, f"task {task_id} failed", mark)

    def mark_as_revoked(
        self, task_id: str, reason: str = "", request: Any = None, *args: Any, **kwargs: Any
    ) -> None:
        """Stores that a task was revoked. A worker without the task's message stores this only if its store is the
        task's home, because another worker may run the task for another home. The worker that gets the message stores
        the state at the task's home."""
        if request is None and not homes.is_home_of(self, task_id):
            log.debug("task %s was revoked; the worker that gets its message stores the state", task_id)
            return

        def mark() -> None:
            with self.chords.ending(request):
                super(CystoreBackend, self).mark_as_revoked(task_id, reason, request, *args, **kwargs)

        event_loop.store(self.app, f"task {task_id} was revoked", mark)

    def chord_error_from_stack(self, callback: Any, exc: Any = None) -> Any:
        """A chord failed: its body, and the tasks that follow it in its chain, do not run."""
        found = super().chord_error_from_stack(callback, exc)
        recorder.skip_body(self, callback, exc)
        return found

    def on_task_call(self, producer: Any, task_id: str) -> dict[str, Any]:
        """A task is about to be sent."""
        homes.calling(self, task_id)
        return {}

    def _wait_for_pending(self, result: Any, **kwargs: Any) -> Any:
        return self.elsewhere.wait_for(result, super()._wait_for_pending, **kwargs)

    # ------------------------------------------------------------------------------------------ reading

    def latest(self, task_id: str, topic: str = records.RESULTS) -> Message | None:
        """The record that is the state of an id now; None without one."""
        known = records.records_of(self.store, topic, records.key_of(task_id))
        return records.fold(known, self.expiry.is_valid)

    def latest_of(self, task_ids: Iterable[str]) -> dict[str, Message]:
        """`latest` of many tasks, with one look at the store. Ids without a state are left out."""
        store, ids = self.store, {records.key_of(task_id): task_id for task_id in task_ids}
        found = {}
        for key, known in records.records_of_many(store, records.RESULTS, ids).items():
            message = records.fold(known, self.expiry.is_valid)
            if message is not None:
                found[ids[key]] = message
        return found

    def all_states(self, task_id: str, topic: str = records.RESULTS) -> list[Message]:
        """The unexpired records of an id since its last forget, oldest first."""
        known = records.records_of(self.store, topic, records.key_of(task_id))
        return [*records.visible(known, self.expiry.is_valid)][::-1]

    def meta_of(self, message: Message) -> dict[str, Any]:
        """The meta in a record, as Celery wants it. Raises kombu's ContentDisallowed for a serializer that the app
        does not accept."""
        meta: dict[str, Any] = self.meta_from_decoded(self._content(message))
        return meta

    def _content(self, message: Message) -> Any:
        properties = message.properties
        return self.decoded(
            message.body,
            properties.get("content_type", self.content_type),
            properties.get("content_encoding", self.content_encoding),
        )

    def decoded(self, body: bytes | memoryview, content_type: str, content_encoding: str) -> Any:
        """The content of a record's body. Raises kombu's ContentDisallowed, as `meta_of`."""
        payload = decompress_payload(bytes(body))
        return loads(
            payload, content_type=content_type, content_encoding=content_encoding, accept=self.accept
        )

    def _content_of(self, record_id: str, topic: str = records.RESULTS) -> dict[str, Any] | None:
        """The valid meta of an id, here or at its home; None if no store has any."""
        message = self.latest(record_id, topic) if self.location.path else None
        if message is None:
            return self.elsewhere.find(record_id, topic)
        content: dict[str, Any] = self._content(message)
        return content

    def _get_task_meta_for(self, task_id: str) -> dict[str, Any]:
        message = self.latest(task_id) if self.location.path else None
        if message is not None:
            return self.meta_of(message)
        return self._meta_elsewhere(self.elsewhere.find(task_id))

    def _meta_elsewhere(self, content: dict[str, Any] | None) -> dict[str, Any]:
        """A home's meta of a task; a PENDING one counts as none."""
        return content if content is not None else {"status": states.PENDING, "result": None}

    def task_result_exists(self, task_id: str) -> bool:
        """True when this store or the task's home has a valid state of the task."""
        return self._content_of(task_id) is not None

    def _restore_group(self, group_id: str) -> dict[str, Any] | None:
        meta = self._content_of(group_id, records.GROUPS)
        if meta is None:
            return None
        meta["result"] = result_from_tuple(meta["result"], self.app)
        return meta

    def get_many(
        self,
        task_ids: Iterable[str],
        timeout: float | None = None,
        interval: float | None = None,
        no_ack: bool = True,
        on_message: Callable[[dict[str, Any]], None] | None = None,
        on_interval: Callable[[], None] | None = None,
        max_iterations: int | None = None,
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        """(task id, meta) of each task as it gets ready; with `max_iterations` only of tasks that are ready now."""
        waiting = []
        for task_id, meta in self._metas_of(list(dict.fromkeys(map(str, task_ids)))):
            if meta["status"] not in states.READY_STATES:
                waiting.append(self.app.AsyncResult(task_id, backend=self))
                continue
            if on_message is not None:
                on_message(meta)
            yield task_id, meta
        if waiting and not max_iterations:
            yield from ResultSet(waiting, app=self.app).iter_native(
                timeout=timeout, on_message=on_message, on_interval=on_interval
            )

    def _metas_of(self, task_ids: list[str]) -> Iterator[tuple[str, dict[str, Any]]]:
        """`get_task_meta` of each id, MANY of them with one look."""
        for begin in range(0, len(task_ids), MANY):
            some = task_ids[begin : begin + MANY]
            found = self.latest_of(some) if self.location.path else {}
            elsewhere = self.elsewhere.find_all(task_id for task_id in some if task_id not in found)
            for task_id in some:
                message = found.get(task_id)
                if message is not None:
                    yield task_id, self.meta_of(message)
                else:
                    yield task_id, self._meta_elsewhere(elsewhere.get(task_id))

    def _after_fork(self) -> None:
        """The child inherits none of its parent's waits."""
        for pending in self._pending_results:
            pending.clear()
        self.result_consumer._after_fork()
        self.elsewhere.after_fork()


class ReplicaBackend(CystoreBackend):
    """The backend of another home, whose replica is on this host. It takes records once the replica is the master."""

    is_own = False

    def __init__(self, app: Any, path: Path) -> None:
        super().__init__(app, url=f"cystore://{quote(os.fsencode(path))}")
        # The replica has its own settings, and `cystore ha run` or `cystore replicate` does its services.
        self.location = Location(str(real_path(path)), {"create": False, "services": "none"})

    def _refuse_to_start(self) -> None:
        """The worker starts without its replicas as well."""

    @contextmanager
    def for_a_while(self) -> Iterator[None]:
        """Closes the store afterwards: a process that keeps it open delays the truncation of a returned master."""
        with for_a_while(self.location, self.app):
            yield
        self._opened = None


def _close_with(app: Any) -> None:
    """Lets `app.close()` close the app's backends, which Celery does not tell."""
    if app in _closing:
        return
    _closing.add(app)
    reference, close_app = weakref.ref(app), type(app).close

    def close() -> None:
        closed = reference()
        with ExitStack() as rest:
            rest.callback(close_app, closed)
            for backend in list(_backends):
                if backend.app is closed:
                    rest.callback(backend.close)

    app.close = close


def _forked() -> None:
    for backend in list(_backends):
        backend._after_fork()


os.register_at_fork(after_in_child=_forked)
