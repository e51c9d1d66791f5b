"""Chords without a server: each step of a chord is a record (`chord_runs`), and a worker that sees all parts sends the
body.

A worker that finds a run complete appends a claim and reads back: the first claim in log order wins, so no lock is held
while the body is sent. If a worker is killed before it stored the part, the task runs again. If it is killed after the
part or the claim, `sweep` ends the run. If it is killed after it sent the body, a claim without `DONE` is left: the
body is not sent again if the store knows its task. Otherwise it is sent twice under one task id, which the history
shows.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from celery import states
from celery._state import get_current_task
from celery.canvas import maybe_signature
from celery.exceptions import ChordError, ImproperlyConfigured
from celery.result import GroupResult
from celery.utils.functional import LRUCache, _regen
from kombu.utils.encoding import ensure_bytes

from cystore import OffsetError, clock
from cystore.celery import homes
from cystore.celery.base import records
from cystore.celery.base.identity import is_replica
from cystore.celery.base.records import CHORDS
from cystore.celery.chords.chord_bodies import read_body, stored_body
from cystore.celery.chords.chord_runs import (
    ADDED,
    CLAIM,
    DONE,
    OPEN,
    PART,
    SIZE,
    Claim,
    Run,
    Table,
    batches,
    check_step,
    queue_of,
    read_run,
)
from cystore.celery.stores import lifetime_s
from cystore.celery.versions import publish, retrying
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore import MessageStore
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore")

RUN = "cystore_run"  # field of a body's signature, beside task, args and options; each part brings it back
HOLD = "celery_chords"  # the hold on the segments of open chords; one that keeps nothing: all before it have ended
CLAIM_SETTING = "cystore_chord_claim_s"
CLAIM_S = 30  # longer than sending a message may take
EXPIRES_S = 7 * 24 * 3600  # if neither result_chord_expires nor result_expires is set


def expires_ms(app: Any) -> int:
    """How long an open chord holds its segments: `result_chord_expires`, else `result_expires`."""
    for name in ("result_chord_expires", "result_expires"):
        seconds = lifetime_s(name, app.conf.get(name))
        if seconds:
            return int(seconds * 1000)
    return EXPIRES_S * 1000


def claim_s_of(app: Any) -> float:
    """The setting: how long a claim holds; 0 and None are the default. Raises ImproperlyConfigured."""
    chosen = app.conf.get(CLAIM_SETTING) or CLAIM_S
    if isinstance(chosen, bool) or not isinstance(chosen, (int, float)) or not 0 < chosen < float("inf"):
        raise ImproperlyConfigured(f"{CLAIM_SETTING} must be a number of seconds, not {chosen!r}")
    return float(chosen)


_tables: dict[tuple[str, int], Table] = {}  # by path and epoch: a log may be truncated between two epochs
_opened: LRUCache = LRUCache(limit=10_000)  # group id -> run that this process opened last
_added: LRUCache = LRUCache(limit=10_000)  # id of a header task -> ids that it added


def _forked() -> None:
    """Threads that the child does not have may have held the locks."""
    global _opened, _added
    _tables.clear()
    _sweepers.clear()
    _opened, _added = LRUCache(limit=10_000), LRUCache(limit=10_000)


os.register_at_fork(after_in_child=_forked)


# ------------------------------------------------------------------------------------------ what Celery calls


@value_class
class _Ending:
    """A header task that is being marked as ended, and whether its part is in the store already."""

    request: Any
    stored: bool = False


_ending: ContextVar[_Ending | None] = ContextVar("cystore_ending", default=None)


class Chords:
    """The chords of one backend. Records go to the chord's home: this store, or through the broker (`homes`)."""

    def __init__(self, backend: CystoreBackend) -> None:
        self._backend = backend

    def open(self, group_id: str, results: Any, body: Any) -> None:
        """A chord is about to send its header (`Backend.apply_chord`)."""
        backend, app = self._backend, self._backend.app
        home = homes.home_of(backend)
        body[RUN] = run_id = uuid.uuid4().hex
        _opened[group_id] = run_id
        shape = None
        if not isinstance(results, _regen) and any(isinstance(result, GroupResult) for result in results):
            shape = [result.as_tuple() for result in results]
        payload, properties = stored_body(app, group_id, body, shape, readable=not backend.hides_call(body))
        first = [_record(OPEN, group_id, run_id, payload, **properties)]
        with self.holding(first) if home == homes.own_id(backend) else nullcontext():
            self._retrying(self._put, home, first, flush=None)

    def set_size(self, group_id: str, size: int) -> None:
        """Stores the number of parts of the newest run; durable before the last header task is sent."""
        home = homes.home_of(self._backend)
        self._retrying(self._put, home, [_record(SIZE, group_id, _opened.pop(group_id, ""), size=str(size))])

    def add(self, group_id: str, task_id: str) -> None:
        """One more part, of a task that a header task is about to send."""
        task = get_current_task()
        request = task.request if task is not None else None
        run_id = _run_of(getattr(request, "chord", None))
        home = homes.home_of(self._backend, request)
        if request is not None and home != homes.own_id(self._backend):
            # Messages overtake each other, so the part of the adding task repeats the new task's id.
            _added.setdefault(request.id, []).append(records.key_of(task_id))
        self._retrying(self._put, home, [_record(ADDED, group_id, run_id, task_id=records.key_of(task_id))])

    @contextmanager
    def ending(self, request: Any) -> Iterator[None]:
        """Around the marking of a task as ended: its result and its part are stored in one append."""
        token = _ending.set(_Ending(request) if is_part(request) else None)
        try:
            yield
        finally:
            _ending.reset(token)

    def part_with(self, task_id: str, request: Any, state: str, result: Any) -> dict[str, Any] | None:
        """The record of the part that ends with this result; None if the result does not belong to a part."""
        ending = _ending.get()
        if ending is None or ending.stored or ending.request is not request or request.id != task_id:
            return None
        return self._part(request, state, result)

    def stored(self) -> None:
        """Notes that the part from `part_with` is in the store."""
        ending = _ending.get()
        if ending is not None:
            ending.stored = True

    def returned(self, request: Any, state: str, result: Any) -> None:
        """A header task ended, its result is stored (`Backend.on_chord_part_return`). `result` as Celery gives it."""
        if not is_part(request):
            return
        backend, ending = self._backend, _ending.get()
        home = homes.home_of(backend, request)
        if ending is None or ending.request is not request or not ending.stored:
            part = self._part(request, state, backend.redacted(state, backend.encode_result(result, state)))
            self._retrying(self._put, home, [part])
        if home == homes.own_id(backend):
            self.settle(request.group, _run_of(request.chord), request.chord)

    def _part(self, request: Any, state: str, result: Any) -> dict[str, Any]:
        backend, index = self._backend, request.group_index
        more = {"index": str(index)} if index is not None else {}
        if added := _added.get(request.id):
            more["added"] = " ".join(added)
        return _record(
            PART,
            request.group,
            _run_of(request.chord),
            ensure_bytes(backend.encode({"result": result})),
            task_id=records.key_of(request.id),
            state=state,
            content_type=backend.content_type,
            content_encoding=backend.content_encoding,
            **more,
        )

    def _put(self, home: str, fields: Sequence[dict[str, Any]], flush: str | None = "sync") -> None:
        homes.put(self._backend, home, fields, flush=flush)

    def _retrying(self, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
        """Makes `call`, and repeats it if the app has `result_backend_always_retry`, because no other worker would do
        it later. `CLAIM` and `DONE`, the end of a run, are not repeated: `sweep` does them later."""
        retrying(self._backend, call, *args, **kwargs)

    @contextmanager
    def holding(self, fields: Iterable[Mapping[str, Any]]) -> Iterator[None]:
        """Around the append of records: if one of them opens a chord, the log is held from before it.

        A sweep that knows of no open chord ends the hold, and looks at the log again. This looks at the hold again
        after the append. So one of the two sees the other."""
        if not any(one["topic"] == CHORDS and one["tags"] == OPEN for one in fields):
            yield
            return
        begin = self._backend.store.wrote_position
        self._retrying(self._hold, begin)
        yield
        self._retrying(self._hold, begin)

    def _hold(self, begin: int) -> None:
        store = self._backend.store
        held = store.holds().get(HOLD)
        if held is None or held.keeps_nothing:
            begin = begin if held is None else held.physical_offset  # others may have opened chords since
            store.hold(HOLD, begin, max_age_ms=expires_ms(self._backend.app))

    # --------------------------------------------------------------------------------------- the end of a run

    def check_step(self, one: Mapping[str, Any]) -> None:
        """Raises MessageIllegalError for a record from another host that is no step of a chord."""
        check_step(one)

    def part_at(self, one: Mapping[str, Any]) -> int | None:
        """The place of the part that this store has for a task, if a record from another host is that part anew, and
        the part is no success."""
        if one["tags"] != PART:
            return None
        properties, store = one["properties"], self._backend.store
        run = _table_of(store).look(store, records.id_of(one["keys"][0]), properties.get("run", ""))
        offset, state = run.parts.get((properties["task_id"], properties.get("index", "")), (None, ""))
        return None if state == states.SUCCESS else offset

    def settle_records(self, fields: Iterable[Mapping[str, Any]]) -> None:
        """Ends the runs that records from another host completed."""
        for one in fields:
            if one["topic"] == CHORDS:
                self.settle(records.id_of(one["keys"][0]), one["properties"].get("run", ""))

    def settle(self, group_id: str, run_id: str, chord: Any = None) -> bool:
        """Sends the body if the run is complete and no other worker sends it; returns whether it did. `chord` is the
        body from a part's message."""
        backend, store = self._backend, self._backend.store
        if is_replica(store):
            return False  # the master's host does it
        table = _table_of(store)
        if not table.may_be_complete(store, group_id, run_id):
            return False
        run = table.look(store, group_id, run_id)
        if run.done or not run.complete or run.is_claimed(clock.now_ms()):
            return False
        opening = self._opening(run)
        body = opening.get("body") or chord
        if body is None:
            return False
        retaken = run.claim
        token = uuid.uuid4().hex
        lives_ms = int(claim_s_of(backend.app) * 1000)
        own = str(homes.own_id(backend))
        # The look behind it must see the claim: an elected master shows it when its members in sync have it.
        flush = None if store.epoch else "async"
        self._put(own, [_record(CLAIM, group_id, run_id, claim=token, lives_ms=str(lives_ms))], flush=flush)
        run = table.look(store, group_id, run_id)
        if run.done or run.claim is None or run.claim.token != token:
            return False  # another worker was first, in the order of the log
        if retaken is not None:
            log.warning("chord %s: its claim was lost; sending its body now", group_id)
        with homes.at(own):
            outcome = self._end(run, opening.get("header"), body, token, retaken)
        if outcome is not None:
            self._say_done(run, token, outcome)
        return outcome is not None

    def _opening(self, run: Run) -> dict[str, Any]:
        """The body's signature and the shape of the header, as `open` stored them; empty if these records were
        cleaned."""
        if run.opened_at is None:
            return {}
        try:
            message = self._backend.store.read(run.opened_at)
        except OffsetError:
            return {}
        return read_body(self._backend.app, run.group_id, message)

    def _end(self, run: Run, shape: Any, chord: Any, token: str, retaken: Claim | None) -> str | None:
        """Sends the body, or fails it; returns the outcome, None if another claim took over meanwhile."""
        backend, app = self._backend, self._backend.app
        callback = maybe_signature({name: value for name, value in chord.items() if name != RUN}, app=app)
        if retaken is not None and self._is_known(callback, retaken):
            return "known"
        try:
            values = self._values(run, shape)
        except Exception as error:  # noqa: BLE001 - whatever it is, the body's result says so
            return self._failed(
                run, callback, error if isinstance(error, ChordError) else _error("Join", error)
            )
        assert run.claim is not None
        if clock.now_ms() >= run.claim.until_ms:
            store = backend.store
            run = _table_of(store).look(store, run.group_id, run.run_id)
            if run.done or run.claim is None or run.claim.token != token:
                log.warning("chord %s: the claim was lost before the body was sent", run.group_id)
                return None
        try:
            publish(app, callback.delay, values)
        except Exception as error:  # noqa: BLE001 - as above
            return self._failed(run, callback, _error("Callback", error))
        return "sent"

    def _say_done(self, run: Run, token: str, outcome: str) -> None:
        own = str(homes.own_id(self._backend))
        done = _record(DONE, run.group_id, run.run_id, claim=token, outcome=outcome)
        self._put(own, [done], flush="async")

    def _failed(self, run: Run, callback: Any, error: ChordError) -> str:
        log.error("chord %s raised: %r", run.group_id, error)
        try:
            raise error
        except ChordError:
            self._backend.chord_error_from_stack(callback, error)
        return "failed"

    def _is_known(self, callback: Any, claim: Claim) -> bool:
        """Whether the store has heard of the body since another worker claimed to send it."""
        task_id = callback.options.get("task_id")
        if not task_id:
            return False
        found = records.records_of(self._backend.store, records.RESULTS, records.key_of(task_id))
        return bool(found) and found[0].physical_offset > claim.physical_offset

    def _values(self, run: Run, shape: Any) -> list[Any]:
        """The results of the header, in its order. Raises ChordError for a part that failed."""
        values: dict[str, Any] = {}
        ordered = []
        for (key, _), (offset, state) in sorted(run.parts.items(), key=_place):
            task_id = records.id_of(key)
            value = self._backend._content(self._backend.store.read(offset))["result"]
            if state in states.EXCEPTION_STATES:
                value = self._backend.exception_to_python(value)
            if state in states.PROPAGATE_STATES:
                error = ChordError(f"Dependency {task_id} raised {value!r}")
                if isinstance(value, Exception):
                    error.__cause__ = value
                raise error
            values[task_id] = value
            ordered.append(value)
        return ordered if shape is None else [self._shaped(one, values) for one in shape]

    def _shaped(self, result: Any, values: Mapping[str, Any]) -> Any:
        """The values of a result in the shape of the header: a group's as a list."""
        (task_id, _), children = result
        if children is not None:
            return [self._shaped(child, values) for child in children]
        if task_id in values:
            return values[task_id]
        meta = self._backend.get_task_meta(task_id, cache=False)
        if meta["status"] != states.SUCCESS:
            raise ChordError(f"Dependency {task_id} raised {meta['result']!r}")
        return meta["result"]


def _table_of(store: MessageStore) -> Table:
    which = (str(store.path), store.epoch)
    return _tables.get(which) or _tables.setdefault(which, Table())


def _place(part: tuple[tuple[str, str], tuple[int, str]]) -> tuple[float, int]:
    """Parts in the order of the header; parts without a place in it come last, as stored."""
    (_, index), (offset, _) = part
    return (float(index) if index else float("inf"), offset)


def _error(what: str, cause: Exception) -> ChordError:
    error = ChordError(f"{what} error: {cause!r}")
    error.__cause__ = cause
    return error


def is_part(request: Any) -> bool:
    """Whether the end of this task is a part of a chord."""
    return bool(request and request.chord and request.group and request.id)


def _run_of(chord: Any) -> str:
    return str(chord.get(RUN, "")) if isinstance(chord, Mapping) else ""


def _record(kind: str, group_id: str, run_id: str, body: bytes = b"", **properties: str) -> dict[str, Any]:
    """Keyword arguments of a `Message`."""
    return {
        "topic": CHORDS,
        "body": body,
        "queue_id": queue_of(run_id, group_id) if kind == PART else 0,
        "keys": (records.key_of(group_id), run_id) if run_id else (records.key_of(group_id),),
        "tags": kind,
        "properties": {"run": run_id, **properties} if run_id else properties,
    }


# ----------------------------------------------------------------------------------------------- the sweep

FIRST_LOOK_MS = 5_000  # from the opening of a chord to its first look; most chords are done by then
LOOKS = 8  # then a look each time the chord's age grew by an eighth
READ_AT_ONCE = 10_000  # records of queue 0 in one sweep
HOLD_STEP_BYTES = 4 << 20


@value_class
class _Open:
    """A run without `DONE`, and when it is due for a look."""

    opened_at: int
    opened_ms: int
    look_ms: int


class Sweeper:
    """One process's knowledge of the open chords of a store: it reads queue 0 once, from the hold on."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._open: dict[tuple[str, str], _Open] = {}
        self._next: int | None = None
        self._wrote = -1  # the log's end before the last look

    def is_due(self, store: MessageStore) -> bool:
        """Whether a look may find something: the log grew since the last one, or an open chord is due."""
        if self._wrote != store.wrote_position:
            return True
        now_ms = clock.now_ms()
        with self._lock:
            return any(one.look_ms <= now_ms for one in self._open.values())

    def sweep(self, backend: CystoreBackend, max_chords: int) -> int:
        """Ends due chords once; returns the number of bodies sent."""
        with self._lock:
            store = backend.store
            wrote = store.wrote_position
            covered = store.catch_up()
            if self._next is None:
                held = store.holds().get(HOLD)
                self._next = _first_at(store, held.physical_offset) if held is not None else 0
            read = self._read(store, covered)
            now_ms = clock.now_ms()
            due = [which for which, one in self._open.items() if one.look_ms <= now_ms]
            sent = sum(self._look(backend, which, now_ms) for which in due[:max_chords])
            if self._move_hold(backend, read, knows_all=read == covered):
                # A chord may have been opened before the hold ended: see `Chords.holding`.
                read = self._read(store, covered := store.catch_up())
                self._move_hold(backend, read, knows_all=read == covered)
            self._wrote = wrote if read == covered else -1  # if more is left to read, a look is due
            return sent

    def _read(self, store: MessageStore, covered: int) -> int:
        """Reads which chords were opened and done since; returns the log position up to which that is known."""
        assert self._next is not None
        for count, (messages, place, behind) in enumerate(batches(store, 0, self._next), 1):
            self._next = place
            for message in messages:
                which = (records.id_of(message.keys[0]), message.properties.get("run", ""))
                if message.tags == OPEN:
                    begun = message.store_timestamp_ms
                    self._open[which] = _Open(message.physical_offset, begun, begun + FIRST_LOOK_MS)
                elif message.tags == DONE:
                    self._open.pop(which, None)
            if behind and messages and count * len(messages) >= READ_AT_ONCE:
                return messages[-1].physical_offset
        return covered

    def _look(self, backend: CystoreBackend, which: tuple[str, str], now_ms: int) -> bool:
        one, run = self._open[which], read_run(backend.store, *which)
        if run.done:
            del self._open[which]
            return False
        if run.complete and not run.is_claimed(now_ms):
            if backend.chords.settle(*which):
                del self._open[which]
                return True
            run = read_run(backend.store, *which)
        age_ms = now_ms - one.opened_ms
        if age_ms > expires_ms(backend.app):
            log.warning(
                "chord %s is open for %d s, with %d of %s parts: its records may be cleaned now",
                which[0],
                age_ms // 1000,
                len(run.parts),
                "an unknown number of" if run.size is None else run.size + len(run.added),
            )
            del self._open[which]
            return False
        one.look_ms = now_ms + max(FIRST_LOOK_MS, age_ms // LOOKS)
        if run.complete and run.claim is not None:
            one.look_ms = max(now_ms + 1, run.claim.until_ms)
        return False

    def _move_hold(self, backend: CystoreBackend, read: int, *, knows_all: bool) -> bool:
        """Moves the hold to the oldest open chord. Without one, the hold keeps nothing, and tells the next process
        where to begin. Returns whether the hold of chords ended."""
        store = backend.store
        held = store.holds().get(HOLD)
        if not self._open and (held is None or not knows_all):
            return False
        needed = min((one.opened_at for one in self._open.values()), default=read)
        age_ms = expires_ms(backend.app) if self._open else 0
        file_bytes = store.config.mapped_file_size_commit_log_bytes
        if (
            held is None
            or held.max_age_ms != age_ms
            or not 0 <= needed - held.physical_offset < HOLD_STEP_BYTES
            or (self._open and needed // file_bytes != held.physical_offset // file_bytes)
        ):
            store.hold(HOLD, needed, max_age_ms=age_ms)
        return held is not None and not held.keeps_nothing and not self._open


def _first_at(store: MessageStore, physical_offset: int) -> int:
    """The offset in queue 0 of the first record that is at or behind a physical offset."""
    bounds = store.get(CHORDS, 0, 0, 1)
    low, high = bounds.min_offset, bounds.max_offset
    while low < high:
        middle = (low + high) // 2
        found = store.get(CHORDS, 0, middle, 1)
        if found.messages and found.messages[0].physical_offset < physical_offset:
            low = middle + 1
        else:
            high = middle
    return low


_sweepers: dict[str, Sweeper] = {}


def sweep_is_due(store: MessageStore) -> bool:
    """Whether a sweep of this process may find something. Costs almost nothing."""
    return _sweepers.setdefault(str(store.path), Sweeper()).is_due(store)


def sweep(app: Any, store: MessageStore, *, max_chords: int = 1_000) -> int:
    """Ends at most `max_chords` chords that have all parts and whose body no worker sends; returns the number of bodies
    sent.

    Cheap if no chord is open: it reads one queue's new records since the last call. Moves the hold of open chords, and
    gives up (with a warning) those that are open for longer than `result_chord_expires`, else `result_expires`. Any
    number of processes may call it at once, because claims keep them apart. `store` is that of the app's result
    backend.
    """
    return _sweepers.setdefault(str(store.path), Sweeper()).sweep(app.backend, max_chords)


def begin_again(path: str) -> None:
    """Forgets this process's knowledge of the open chords of a store, which was a replica meanwhile."""
    _sweepers.pop(path, None)


def sweep_replica(backend: CystoreBackend, *, max_chords: int = 1_000) -> int:
    """`sweep` for the backend of a replica that has become the master."""
    store = backend.store
    return _sweepers[str(store.path)].sweep(backend, max_chords) if sweep_is_due(store) else 0
