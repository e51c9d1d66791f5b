"""The history of tasks: events and results of a task, a name, a workflow or a span of time, newest first, read on
demand.

    with cystore.open("/var/lib/app/store", read_only=True) as store:
        for entry in history.entries(store, task_id="..."):  # the whole life of a task
            print(entry.time_ms, entry.state, entry.name)
        for transition in history.transitions(store, name="app.tasks.send", begin_ms=..., states=["FAILURE"]):
            print(transition.task_id, transition.traceback)

`events` reads the lifecycle log, `transitions` the results, `entries` both. Instead of a store they take `Stores`, and
read several stores as one. It needs no Celery app and no process that
dispatches. It unpickles nothing: a body that is not JSON shows only its type and size.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from itertools import chain, islice
from typing import Any, cast

from celery import states
from kombu.exceptions import DecodeError
from kombu.serialization import loads

from cystore import Contains, Message, MessageStore
from cystore.celery.base import events as layout
from cystore.celery.base import reading, records
from cystore.celery.base.events import Event
from cystore.celery.base.reading import BATCH as BATCH
from cystore.celery.base.reading import Passed as Passed
from cystore.celery.base.reading import Stores as Stores
from cystore.celery.base.reading import of_each
from cystore.celery.versions import decompress_payload

JSON = "application/json"
# A queue that workflows share is read only while it is so short. Then it takes as long as the index, which has the
# events of one root alone.
SHARED_MOST = 256


@dataclass(frozen=True, slots=True)
class Transition:
    """One state of one task. `name` is None if the storing process did not know it; times are ms since 1970."""

    task_id: str
    state: str | None
    name: str | None
    time_ms: int
    size_bytes: int
    content_type: str
    physical_offset: int
    _message: Message = field(repr=False, compare=False)
    store: str = ""  # the path of the store that has it, if several stores are read as one

    @classmethod
    def of(cls, message: Message) -> Transition:
        """The transition that a stored record of `celery_results` holds."""
        properties = message.properties
        assert message.store_timestamp_ms is not None and message.physical_offset is not None
        return cls(
            task_id=records.id_of(next(iter(message.keys), "")),
            state=message.tags,
            name=properties.get("task"),
            time_ms=message.store_timestamp_ms,
            size_bytes=len(message.body),
            content_type=properties.get("content_type", ""),
            physical_offset=message.physical_offset,
            _message=message,
        )

    @property
    def forgotten(self) -> bool:
        """True for the tombstone of a `forget`: older records are not valid any more."""
        return records.is_tombstone(self._message)

    @property
    def late(self) -> bool:
        """True for a state that came from another host after the state that followed it: it is history only."""
        return bool(self._message.properties.get(records.LATE))

    @property
    def meta(self) -> dict[str, Any]:
        """Celery's meta: `result`, `traceback`, `date_done`, `children`; with result_extended also `args`, `kwargs`,
        `worker`, `retries`, `queue`. Empty if it is not JSON."""
        if self.forgotten or self.content_type != JSON:
            return {}
        try:
            meta = loads(decompress_payload(bytes(self._message.body)), JSON, "utf-8", accept={JSON})
        except DecodeError:
            return {}
        return meta if isinstance(meta, dict) else {}

    @property
    def result(self) -> Any:
        """The return value; of a failure a dict with `exc_type`, `exc_message` and `exc_module`."""
        return self.meta.get("result")

    @property
    def traceback(self) -> str | None:
        """The traceback of a failure."""
        return self.meta.get("traceback")

    @property
    def error(self) -> str | None:
        """The exception of a failure, as its repr; None for another state, and where the result does not say it."""
        return error_text(self.result) if self.state in states.EXCEPTION_STATES else None


def error_text(result: Any) -> str | None:
    """The repr of an exception as a result keeps it."""
    if not isinstance(result, dict) or not isinstance(result.get("exc_type"), str):
        return None
    message = result.get("exc_message")
    parts = message if isinstance(message, (list, tuple)) else [message]
    return f"{result['exc_type']}({', '.join(repr(part) for part in parts)})"


@of_each
def transitions(
    store: MessageStore,
    *,
    task_id: str | None = None,
    name: str | None = None,
    states: Collection[str] = (),
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> Iterator[Transition]:
    """Transitions that meet every condition given, newest first: of a task, of all tasks of a name, into one of
    `states`, stored from `begin_ms` to `end_ms` (both included)."""
    return cast(Iterator[Transition], _transitions(store, None, task_id, name, states, begin_ms, end_ms))


def _transitions(
    store: MessageStore, contains: Contains | None, task_id: str | None, name: str | None, states: Collection[str],
    begin_ms: int, end_ms: int | None,
) -> Iterator[Transition | Passed]:  # fmt: skip
    name = name and records.kept_name(name)
    for message in _stored(store, records.RESULTS, contains, task_id, name, states, begin_ms, end_ms):
        if isinstance(message, Passed):
            yield message
        elif message.tags in states or not states:
            transition = Transition.of(message)
            if name is None or transition.name == name:
                yield transition


@of_each
def events(
    store: MessageStore,
    *,
    task_id: str | None = None,
    root_id: str | None = None,
    group_id: str | None = None,
    worker: str | None = None,
    name: str | None = None,
    states: Collection[str] = (),
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> Iterator[Event]:
    """Events that meet every condition given, newest first: of a task, of a whole workflow (the root and all below
    it), of a group, of a worker (its node name), of all tasks of a name, one of `states`
    (`cystore.celery.base.events.KINDS`), from `begin_ms` to `end_ms`. Light queues are read where the store has
    them."""
    found = _events(store, None, task_id, root_id, group_id, worker, name, states, begin_ms, end_ms)
    return cast(Iterator[Event], found)


def _events(
    store: MessageStore, contains: Contains | None, task_id: str | None, root_id: str | None, group_id: str | None,
    worker: str | None, name: str | None, states: Collection[str], begin_ms: int, end_ms: int | None,
) -> Iterator[Event | Passed]:  # fmt: skip
    span: dict[str, Any] = {"begin_ms": begin_ms, "end_ms": end_ms}
    name = name and records.kept_name(name)
    found: Iterator[Message | Passed]
    if task_id is None and root_id is not None:
        found = reading.merged(
            reading.of_key(store, layout.EVENTS, records.key_of(root_id), **span),
            _below(store, root_id, **span),
        )
    elif task_id is None and group_id is not None:
        found = reading.of_key(store, layout.EVENTS, layout.group_key(group_id), **span)
    elif task_id is None and worker is not None:
        found = _of_worker(store, contains, worker, name, states, **span)
    else:
        found = _stored(store, layout.EVENTS, contains, task_id, name, states, begin_ms, end_ms)
    for message in found:
        if isinstance(message, Passed):
            yield message
            continue
        if states and message.tags not in states:
            continue
        event = Event.of(message)
        if (
            (task_id is None or event.task_id == task_id)
            and (root_id is None or event.root_id == root_id)
            and (group_id is None or event.group_id == group_id)
            and (name is None or event.name == name)
            and (worker is None or event.details.get("worker") == worker)
        ):
            yield event


@of_each
def entries(
    store: MessageStore,
    *,
    task_id: str | None = None,
    root_id: str | None = None,
    group_id: str | None = None,
    worker: str | None = None,
    name: str | None = None,
    states: Collection[str] = (),
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> Iterator[Event | Transition]:
    """Events and transitions, newest first, as one stream. With a root, a group or a worker only events, because
    results do not record theirs."""
    span: dict[str, Any] = {"states": states, "begin_ms": begin_ms, "end_ms": end_ms}
    happened = events(
        store, task_id=task_id, root_id=root_id, group_id=group_id, worker=worker, name=name, **span
    )
    if root_id is not None or group_id is not None or worker is not None:
        return happened
    stored = transitions(store, task_id=task_id, name=name, **span)
    return reading.merged(happened, stored)


@of_each
def search(
    store: MessageStore,
    contains: Contains,
    *,
    in_events: Contains | None = None,
    worker: str | None = None,
    name: str | None = None,
    states: Collection[str] = (),
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> Iterator[Event | Transition | Passed]:
    """Those of `entries` whose records contain a text, as the log has it, and in between the places that the search has
    passed. `in_events`: another text for events, whose bodies say more about their form than those of results."""
    happened = _events(store, in_events or contains, None, None, None, worker, name, states, begin_ms, end_ms)
    if worker is not None:
        return happened
    return reading.merged(happened, _transitions(store, contains, None, name, states, begin_ms, end_ms))


@of_each
def failures(
    store: MessageStore, *, name: str | None = None, begin_ms: int = 0, end_ms: int | None = None
) -> Iterator[Event | Transition]:
    """Runs that ended badly and will not be tried again by the broker, newest first. In a store without a lifecycle
    log the results that are FAILURE."""
    span: dict[str, Any] = {"begin_ms": begin_ms, "end_ms": end_ms}
    if not has_events(store):
        yield from transitions(store, name=name, states=(states.FAILURE,), **span)
        return
    for event in events(store, name=name, states=layout.FAILURES, **span):
        if not event.details.get("requeue"):
            yield event


def has_events(store: MessageStore) -> bool:
    """Whether the store ever got a lifecycle log."""
    return layout.EVENTS in store.topics() or any(True for _ in islice(events(store), 1))


def entry_of(message: Message) -> Event | Transition | None:
    """A stored message as an entry about a task; None for another message."""
    if message.topic == layout.EVENTS:
        return Event.of(message)
    return Transition.of(message) if message.topic == records.RESULTS else None


def _below(store: MessageStore, root_id: str, *, begin_ms: int, end_ms: int | None) -> Iterator[Message]:
    """Events of the tasks below a root."""
    key, queue = layout.root_key(root_id), layout.workflow_queue(root_id)

    def indexed(end_ms: int | None) -> Iterator[Message]:
        return reading.of_key(store, layout.EVENTS, key, begin_ms=begin_ms, end_ms=end_ms)

    newer, older = _by_light_queue(store, None, queue, (), begin_ms, end_ms, indexed, most=SHARED_MOST)
    messages = cast(Iterator[Message], newer)  # nothing is searched for a text
    return chain((message for message in messages if key in message.keys), cast(Iterator[Message], older))


def _of_worker(
    store: MessageStore, contains: Contains | None, worker: str, name: str | None, states: Collection[str], *,
    begin_ms: int, end_ms: int | None,
) -> Iterator[Message | Passed]:  # fmt: skip
    """Events of a worker, and others where they must be searched."""

    def searched(end_ms: int | None) -> Iterator[Message | Passed]:
        return _stored(store, layout.EVENTS, contains, None, name, states, begin_ms, end_ms)

    queue = layout.worker_queue(worker)
    return chain(*_by_light_queue(store, contains, queue, states, begin_ms, end_ms, searched))


def _by_light_queue(
    store: MessageStore, contains: Contains | None, queue: str, states: Collection[str], begin_ms: int,
    end_ms: int | None, otherwise: Callable[[int | None], Iterator[Message | Passed]], most: int | None = None,
) -> tuple[Iterator[Message | Passed], Iterator[Message | Passed]]:  # fmt: skip
    """The events in a light queue, and those before its oldest one, which are found `otherwise`, up to a time: the
    queue may be younger than the log. All are found otherwise without the queue, if it has more than `most` events, and
    in a store that makes no light queues."""
    oldest = reading.oldest_of_light_queue(store, queue, most) if layout.has_light_queues(store) else None
    if oldest is None:
        return iter(()), otherwise(end_ms)
    begin, time_ms = oldest.physical_offset, oldest.store_timestamp_ms
    newer = reading.of_light_queue(
        store, layout.EVENTS, queue, tags=states, begin_ms=begin_ms, end_ms=end_ms, contains=contains
    )
    older = otherwise(time_ms if end_ms is None else min(end_ms, time_ms))
    return newer, (message for message in older if message.physical_offset < begin)


def _stored(
    store: MessageStore, topic: str, contains: Contains | None, task_id: str | None, name: str | None,
    states: Collection[str], begin_ms: int, end_ms: int | None,
) -> Iterator[Message | Passed]:  # fmt: skip
    """Messages of one of the two topics, by the condition that leaves the fewest to examine."""
    if task_id is not None:
        return reading.of_key(store, topic, records.key_of(task_id), begin_ms=begin_ms, end_ms=end_ms)
    queues = None if name is None else (records.queue_of(name),)
    return reading.search_queues(
        store, topic, contains, queues, tags=states, begin_ms=begin_ms, end_ms=end_ms
    )
