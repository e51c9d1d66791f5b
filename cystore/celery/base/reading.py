"""Messages newest first, read on demand: of queues, of a light queue, and of a key. Of one store, or of `Stores`. For
`history`.

Undispatched messages count too, although a read-only store cannot dispatch. For queues this module searches the end of
the log, and remembers only the positions of wanted messages. A query by key searches the end of the log itself.

A search for a text (`contains`) may read long without a result. So its stream has a `Passed` in between.
"""

from __future__ import annotations

import dataclasses
import functools
import heapq
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, Concatenate, ParamSpec, Protocol, TypeVar, cast

from cystore import Contains, CorruptRecordError, Message, MessageStore, OffsetError, QueueRange
from cystore.celery.base.events import LIGHT, LIGHT_OFFSETS

BATCH = 32  # messages of one read: this many of each queue are in memory
FILTERED_BATCH = 1024  # queue entries of one read that keeps few of them
FIRST_PAGE, PAGE = 32, 4096  # messages of a key
PIECE_BYTES = 4 << 20  # of log, between two looks of a search at the clock
# A search for a text reads the log itself if that has no more bytes for each wanted message: it passes a byte of log in
# a fraction of a nanosecond, and an entry of a queue in half a microsecond.
LOG_BYTES_MOST = 2048


class Placed(Protocol):
    """An object with a position in the log."""

    @property
    def physical_offset(self) -> int:
        """Byte position in the commit log."""


@dataclass(frozen=True, slots=True)
class Passed:
    """A place that a search for a text has passed without a match. It lets the caller look at the clock, and continue
    there later."""

    physical_offset: int
    time_ms: int
    store: str = ""

    @property
    def store_timestamp_ms(self) -> int:
        """Its time, as messages name it."""
        return self.time_ms


Entry = TypeVar("Entry", bound=Placed)
Options = ParamSpec("Options")
Found = TypeVar("Found")


class Stores:
    """Several stores that are read as one, by the homes that they keep. Their entries are ordered by their times, which
    are those of their masters' clocks."""

    def __init__(self, by_home: Mapping[str, MessageStore]) -> None:
        self.by_home = dict(by_home)

    def merged(self, read: Callable[[MessageStore], Iterable[Found]]) -> Iterator[Found]:
        """The entries or messages that `read` finds in each store, each newest first, as one stream. An entry says
        from which store it comes."""
        streams = (_labelled(read(store), str(store.path)) for store in self.by_home.values())
        return heapq.merge(*streams, key=lambda entry: -_time_ms(entry))


Source = MessageStore | Stores


def _labelled(entries: Iterable[Found], path: str) -> Iterator[Found]:
    for entry in entries:
        yield dataclasses.replace(entry, store=path) if hasattr(entry, "store") else entry  # type: ignore[type-var]


def _time_ms(entry: Any) -> int:
    time_ms: int | None = getattr(entry, "time_ms", None)
    return int(entry.store_timestamp_ms) if time_ms is None else time_ms


def of_each(
    read: Callable[Concatenate[MessageStore, Options], Iterator[Found]],
) -> Callable[Concatenate[Source, Options], Iterator[Found]]:
    """Lets a function that reads one store also read `Stores`."""

    @functools.wraps(read)
    def call(store: Source, /, *args: Options.args, **kwargs: Options.kwargs) -> Iterator[Found]:
        if isinstance(store, Stores):
            return store.merged(lambda one: read(one, *args, **kwargs))
        return read(store, *args, **kwargs)

    return call


def merged(*streams: Iterable[Entry]) -> Iterator[Entry]:
    """Several streams that are each newest first, as one."""
    # Store timestamps never go back, so the order of positions is the order of times.
    return heapq.merge(*streams, key=lambda entry: -entry.physical_offset)


@of_each
def of_queues(
    store: MessageStore, topic: str, queue_ids: Collection[int] | None = None, *, tags: Collection[str] = (),
    begin_ms: int = 0, end_ms: int | None = None, ordered: bool = True,
) -> Iterator[Message]:  # fmt: skip
    """Messages of some queues of a topic (default: of all), with one of the tags, from `begin_ms` to `end_ms`. With
    `ordered` False they come queue by queue, which is faster."""
    found = search_queues(
        store, topic, None, queue_ids, tags=tags, begin_ms=begin_ms, end_ms=end_ms, ordered=ordered
    )
    return cast(Iterator[Message], found)


@of_each
def search_queues(
    store: MessageStore, topic: str, contains: Contains | None, queue_ids: Collection[int] | None = None, *,
    tags: Collection[str] = (), begin_ms: int = 0, end_ms: int | None = None, ordered: bool = True,
) -> Iterator[Message | Passed]:  # fmt: skip
    """The same that contain a text. There is a Passed only where a text is searched."""

    def is_wanted(message: Message) -> bool:
        return (
            message.topic == topic
            and (queue_ids is None or message.queue_id in queue_ids)
            and (not tags or message.tags in tags)
        )

    dispatched = store.catch_up()
    ranges = store.topics().get(topic, {})
    wanted = {queue: bounds for queue, bounds in ranges.items() if queue_ids is None or queue in queue_ids}
    found: Iterable[Message | Passed]
    if contains is not None and _is_dense(store, wanted):
        found = _in_log(store, topic, contains, wanted, dispatched, begin_ms, end_ms, is_wanted)
    else:
        queues = (
            _of_queue(store, topic, queue_id, bounds, frozenset(tags), begin_ms, end_ms, dispatched, contains)
            for queue_id, bounds in wanted.items()
        )
        dispatched_part = merged(*queues) if ordered else chain.from_iterable(queues)
        found = chain(_behind(store, dispatched, is_wanted, contains), dispatched_part)
    yield from _within(found, begin_ms, end_ms)


def _is_dense(store: MessageStore, queues: Mapping[int, QueueRange]) -> bool:
    count = sum(bounds.max_offset - bounds.min_offset for bounds in queues.values())
    return 0 < store.wrote_position - _minimum(store) <= count * LOG_BYTES_MOST


def _minimum(store: MessageStore) -> int:
    return int(store.stats()["min_physical_offset"])


def _in_log(
    store: MessageStore, topic: str, contains: Contains, queues: Mapping[int, QueueRange], dispatched: int,
    begin_ms: int, end_ms: int | None, is_wanted: Callable[[Message], bool],
) -> Iterator[Message | Passed]:  # fmt: skip
    """Wanted messages of the log that contain a text, from `begin_ms` to about `end_ms`, newest first. Reads piece by
    piece, the newest piece first. Entries of the longest queue say where records begin."""
    queue_id, bounds = max(queues.items(), key=lambda one: one[1].max_offset - one[1].min_offset)
    high, count, end = bounds.max_offset, BATCH, store.wrote_position
    begin = min(dispatched, end)
    if end_ms is not None:
        high = store.offset_by_time(topic, queue_id, end_ms + 1, boundary="lower")
        later = _at(store, topic, queue_id, high)
        if later is not None:
            begin = end = later.physical_offset
    passed, is_last = None, False  # the begin of the piece
    while True:
        found = 0
        for message in _backwards(store, begin, end, is_wanted, contains):
            found += 1
            yield message
        if passed is not None:
            yield passed
            if passed.time_ms < begin_ms:
                return
        if is_last:
            return
        if found > BATCH or end - begin > PIECE_BYTES:
            count = max(count // 2, 1)
        elif found <= BATCH // 2 and end - begin <= PIECE_BYTES // 2:
            count *= 2
        high, end = max(bounds.min_offset, high - count), begin
        passed, is_last = _at(store, topic, queue_id, high), high == bounds.min_offset
        if is_last:  # records of other queues may be older
            begin = min(_minimum(store), end)
        elif passed is not None:
            begin = min(passed.physical_offset, end)


def of_light_queue(
    store: MessageStore, topic: str, name: str, *, tags: Collection[str] = (), begin_ms: int = 0,
    end_ms: int | None = None, contains: Contains | None = None,
) -> Iterator[Message | Passed]:  # fmt: skip
    """Messages of a topic that are in a light queue, with one of the tags, from `begin_ms` to `end_ms`; that contain a
    text, and a Passed in between."""

    def is_wanted(message: Message) -> bool:
        names = message.properties.get(LIGHT, "").split(",")
        is_in_queue = name in names and LIGHT_OFFSETS in message.properties
        return is_in_queue and (contains is None or contains(message))

    dispatched = store.catch_up()
    asked = store.get(name, 0, 0, 1)
    bounds = QueueRange(asked.min_offset, asked.max_offset)
    dispatched_part = _of_queue(
        store, name, 0, bounds, frozenset(tags), begin_ms, end_ms, dispatched, contains
    )
    found = chain(_behind(store, dispatched, is_wanted, None), dispatched_part)
    for message in _within(found, begin_ms, end_ms):
        if isinstance(message, Passed) or (message.topic == topic and (not tags or message.tags in tags)):
            yield message


def oldest_of_light_queue(store: MessageStore, name: str, most: int | None = None) -> Message | None:
    """The oldest message that a light queue still has; None without any, if it is damaged, or if there are more than
    `most` messages."""
    at = 0
    while True:
        try:
            found = store.get(name, 0, at, 1)
        except CorruptRecordError:
            return None
        if most is not None and found.max_offset - found.min_offset > most:
            return None
        if found.messages:
            return found.messages[0]
        if found.next_offset <= at:
            return None
        at = found.next_offset


def _within(
    messages: Iterable[Message | Passed], begin_ms: int, end_ms: int | None
) -> Iterator[Message | Passed]:
    for message in messages:
        if begin_ms <= message.store_timestamp_ms and (
            end_ms is None or message.store_timestamp_ms <= end_ms
        ):
            yield message


@of_each
def of_key(
    store: MessageStore, topic: str, key: str, *, begin_ms: int = 0, end_ms: int | None = None
) -> Iterator[Message]:
    """Messages of a topic that have a key, from `begin_ms` to `end_ms`; pages grow, but not beyond a bound."""
    before, count = store.wrote_position, FIRST_PAGE
    while end_ms is None or begin_ms <= end_ms:
        found = store.query(topic, key, count, begin_ms=begin_ms, end_ms=end_ms)
        fresh = [message for message in found if message.physical_offset < before]
        yield from fresh
        if len(found) < count:
            return
        before, end_ms = min(before, found[-1].physical_offset), found[-1].store_timestamp_ms
        # If no message is new, all messages of the page have the same millisecond.
        count = min(count * 4, PAGE) if fresh else count * 4


def check_key(source: Source, topics: Iterable[str], key: str) -> None:
    """Raises CorruptRecordError if a damaged record may have been a message with a key in one of the topics."""
    for store in source.by_home.values() if isinstance(source, Stores) else (source,):
        for topic in topics:
            for error in store.query(topic, key, 1).damaged:
                raise error


def _behind(
    store: MessageStore, dispatched: int, is_wanted: Callable[[Message], bool], contains: Contains | None
) -> Iterator[Message]:
    """Wanted messages at the undispatched end of the log, newest first."""
    return _backwards(store, dispatched, store.wrote_position, is_wanted, contains)


def _backwards(
    store: MessageStore, begin: int, end: int, is_wanted: Callable[[Message], bool], contains: Contains | None
) -> Iterator[Message]:
    """Wanted messages of a part of the log, which perhaps contain a text, newest first. Leaves out
    messages that are cleaned meanwhile."""
    if begin >= end:
        return
    places = array("q")
    try:
        scanned = store.scan(begin, end, filter=contains)
        places.extend(message.physical_offset for message in scanned if is_wanted(message))
    except OffsetError:
        if begin >= _minimum(store):
            raise
    for place in reversed(places):
        try:
            yield store.read(place)
        except OffsetError:
            if place >= _minimum(store):
                raise


def _of_queue(
    store: MessageStore, topic: str, queue_id: int, bounds: QueueRange, tags: frozenset[str], begin_ms: int,
    end_ms: int | None, dispatched: int, contains: Contains | None = None,
) -> Iterator[Message | Passed]:  # fmt: skip
    """Messages of a queue below a position in the log, stored from `begin_ms` to `end_ms`, newest first."""
    high, batch, before = bounds.max_offset, BATCH, dispatched
    if end_ms is not None:
        # The nearest message may be the first later one.
        high = min(high, store.offset_by_time(topic, queue_id, end_ms + 1) + 1)
    while high > bounds.min_offset:
        low = max(bounds.min_offset, high - batch)
        found = _between(store, topic, queue_id, low, high, tags, contains)
        read = len(found)
        while found:
            message = found.pop()
            if message.store_timestamp_ms < begin_ms:
                return
            # A filtered get may end with messages that the one before gave.
            if message.physical_offset < before:
                before = message.physical_offset
                yield message
        passed = _at(store, topic, queue_id, low) if contains is not None else None
        if passed is not None and passed.physical_offset < before:
            if passed.time_ms < begin_ms:
                return
            yield passed
        high = low
        # Long reads if few are kept, short ones if many are: every task may have this state.
        if read <= BATCH // 2:
            batch = min(batch * 2, FILTERED_BATCH)
        elif read > BATCH:
            batch = max(batch // 2, BATCH)


def _at(store: MessageStore, topic: str, queue_id: int, queue_offset: int) -> Passed | None:
    """The place of a queue's message; None if there is none, or if it is damaged."""
    try:
        found = store.get(topic, queue_id, queue_offset, 1).messages
    except CorruptRecordError:
        return None
    if not found or found[0].queue_offset != queue_offset:
        return None
    return Passed(found[0].physical_offset, found[0].store_timestamp_ms)


def _between(
    store: MessageStore, topic: str, queue_id: int, low: int, high: int, tags: frozenset[str],
    contains: Contains | None,
) -> list[Message]:  # fmt: skip
    """Messages of [low, high) with one of the tags, and perhaps some behind; a single get may end earlier, at its limit
    of bytes."""
    found: list[Message] = []
    # In an expression, the name of an app's own state may have another meaning.
    expression = " || ".join(sorted(tags)) if all(tag.isidentifier() for tag in tags) else ""
    while low < high:
        got = store.get(topic, queue_id, low, high - low, tags=expression, filter=contains)
        found += [message for message in got.messages if not tags or message.tags in tags]
        if got.next_offset <= low:
            break
        low = got.next_offset
    return found
