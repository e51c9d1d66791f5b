"""What tasks did: all transitions of a task, of a name, of a span of time, newest first, read as they are asked for.

    with cystore.open("/var/lib/app/store", read_only=True) as store:
        for transition in history.transitions(store, name="app.tasks.send", begin_ms=..., states=["FAILURE"]):
            print(transition.task_id, transition.traceback)

Nothing is ever unpickled here: what is not JSON shows its type and size only.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from celery.backends.base import decompress_payload
from kombu.exceptions import DecodeError
from kombu.serialization import loads

from cystore import Message, MessageStore
from cystore.celery import records

BATCH = 32
JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Transition:
    """One state that one task went into. `name` is None where it was not known to who stored it; times are ms since 1970."""

    task_id: str
    state: str | None
    name: str | None
    time_ms: int
    size_bytes: int
    content_type: str
    physical_offset: int
    _message: Message = field(repr=False, compare=False)

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
        """True for the tombstone of a `forget`: what is older is not valid any more."""
        return records.is_tombstone(self._message)

    @property
    def meta(self) -> dict[str, Any]:
        """What Celery stored: `result`, `traceback`, `date_done`, `children`; with result_extended also `args`, `kwargs`,
        `worker`, `retries`, `queue`. Empty where that is not JSON."""
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


def transitions(
    store: MessageStore,
    *,
    task_id: str | None = None,
    name: str | None = None,
    states: Collection[str] = (),
    begin_ms: int = 0,
    end_ms: int | None = None,
) -> Iterator[Transition]:
    """Transitions that meet every condition given, newest first: of a task, of all tasks of a name, into one of `states`,
    stored from `begin_ms` to `end_ms` (both included)."""
    found: Iterable[Transition]
    if task_id is not None:
        key = records.key_of(task_id)
        found = map(Transition.of, records.records_of(store, records.RESULTS, key, to_tombstone=False))
    elif name is not None:
        found = _backwards(store, records.queue_of(name), begin_ms, end_ms)
    else:
        queues = store.topics().get(records.RESULTS, {})
        found = heapq.merge(
            *(_backwards(store, queue_id, begin_ms, end_ms) for queue_id in queues),
            key=lambda transition: -transition.physical_offset,  # of time too: store timestamps never go back
        )
    for transition in found:
        if (
            (name is None or transition.name == name)
            and (not states or transition.state in states)
            and begin_ms <= transition.time_ms
            and (end_ms is None or transition.time_ms <= end_ms)
        ):
            yield transition


def _backwards(store: MessageStore, queue_id: int, begin_ms: int, end_ms: int | None) -> Iterator[Transition]:
    """A queue's transitions from the last one not after `end_ms` back to the first one not before `begin_ms`."""
    bounds = store.topics().get(records.RESULTS, {}).get(queue_id)
    if bounds is None:
        return
    high = bounds.max_offset
    if end_ms is not None:
        # The nearest one may be the first that is later.
        high = min(high, store.offset_by_time(records.RESULTS, queue_id, end_ms + 1) + 1)
    while high > bounds.min_offset:
        low = max(bounds.min_offset, high - BATCH)
        for message in reversed(_between(store, queue_id, low, high)):
            transition = Transition.of(message)
            if transition.time_ms < begin_ms:
                return
            yield transition
        high = low


def _between(store: MessageStore, queue_id: int, low: int, high: int) -> list[Message]:
    """Messages with queue offsets in [low, high); a single get may end earlier, at its limit of bytes."""
    found: list[Message] = []
    while low < high:
        got = store.get(records.RESULTS, queue_id, low, high - low)
        found += got.messages
        if got.next_offset <= low:
            break
        low = got.next_offset
    return found
