"""The content of the queues of a broker in a store, for people: read from the log and from the files of claims, by a
store that is open for reading only. Nothing is claimed, and no file is made."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple
from urllib.parse import unquote

from cystore import CorruptRecordError, GetStatus, Message, MessageStore
from cystore.celery.transport import directory, frames
from cystore.celery.transport.channel import QUEUE_PREFIX, topic_of
from cystore.celery.transport.transport import GROUP
from cystore.clock import now_ms
from cystore.consumers import claims
from cystore.consumers.claims import FOLDER, FREE
from cystore.consumers.settled import SettledLog, ack_topic, ranges_of
from cystore.layout import LMQ_PREFIX
from cystore.system import platform

RATE_S = 60  # rates are those of the last minute
AT_ONCE = 256


class Holder(NamedTuple):
    """Who has messages of a queue: process id (0: one of another PID namespace), its command ("": it has ended, or is
    of another namespace), since when it is connected (ms since 1970), and the number of messages."""

    pid: int
    command: str
    since_ms: int
    messages: int


class BrokerQueue(NamedTuple):
    """A queue that lasts. `oldest_ms`: when its oldest message that is not settled was put, ms since 1970; 0 for an
    empty one. Rates are messages a second, of the last minute."""

    name: str
    ready: int
    claimed: int
    holders: tuple[Holder, ...]
    oldest_ms: int
    put_rate: float
    settled_rate: float


class _Places(NamedTuple):
    """Of one priority: the first offset that nobody ever had, offsets that were given back, and those with owners."""

    following: int
    free: list[int]
    owned: list[tuple[int, int]]


def listed(store: MessageStore) -> list[BrokerQueue]:
    """The queues that last, by name. Raises StoreError."""
    topics, noted = store.topics(), claims.owner_notes(store.path)
    found = []
    for name in names(store):
        topic = topic_of(name)
        ready, oldest_ms, put = 0, 0, 0
        owners: Counter[int] = Counter()
        for queue_id, (low, high) in topics.get(topic, {}).items():
            places = _places(store, topic, queue_id, low)
            ready += len(places.free) + max(high - max(places.following, low), 0)
            owners.update(owner for _, owner in places.owned)
            waiting = [
                offset for offset in (*places.free, *(one for one, _ in places.owned)) if offset >= low
            ]
            first = min([max(places.following, low), *waiting])
            if first < high:
                put_ms = _put_ms(store, topic, queue_id, first)
                oldest_ms = min(oldest_ms or put_ms, put_ms or oldest_ms)
            since = store.offset_by_time(topic, queue_id, now_ms() - RATE_S * 1000, boundary="lower")
            put += max(high - since, 0)
        holders = tuple(_holder(noted.get(owner), count) for owner, count in owners.items())
        found.append(BrokerQueue(
            name, ready, sum(owners.values()), holders, oldest_ms, put / RATE_S,
            _settled(store, topics, topic, topics.get(topic, {})) / RATE_S,
        ))  # fmt: skip
    return found


def names(store: MessageStore) -> list[str]:
    """The names of the queues that last: those that were declared, and those with messages."""
    declared = directory.read_state(store.path / "config" / directory.NAME)["lasting"]
    with_messages = (
        unquote(topic.removeprefix(QUEUE_PREFIX))
        for topic in store.topics()
        if topic.startswith(QUEUE_PREFIX)
    )
    return sorted({*declared, *with_messages})


def peek(store: MessageStore, name: str, limit: int) -> Iterator[tuple[Message, dict[str, Any] | None]]:
    """The messages that are ready, in the order in which they will be given out: each with its content, None if that is
    no message of a broker. Raises StoreError."""
    topic = topic_of(name)
    for queue_id, (low, high) in sorted(store.topics().get(topic, {}).items(), reverse=True):
        places = _places(store, topic, queue_id, low)
        ranges = [(offset, offset + 1) for offset in sorted(places.free) if offset >= low]
        for at, end in (*ranges, (max(places.following, low), high)):
            while at < end and limit > 0:
                try:
                    result = store.get(topic, queue_id, at, min(limit, end - at, AT_ONCE))
                except CorruptRecordError:
                    at += 1
                    continue
                for message in result.messages:
                    limit -= 1
                    yield message, _content(message)
                if result.next_offset <= at:
                    break
                at = result.next_offset


def _content(message: Message) -> dict[str, Any] | None:
    try:
        return frames.decode(bytes(message.body))
    except CorruptRecordError:
        return None


def _places(store: MessageStore, topic: str, queue_id: int, low: int) -> _Places:
    """From the file of claims, if it is of this boot; else from the group's offset: all behind it counts as ready."""
    path = store.path / FOLDER / SettledLog(store, GROUP, topic, queue_id).name
    known = claims.read_places(path, store.wrote_position)
    if known is None:
        return _Places(max(store.groups.offset(GROUP, topic, queue_id) or 0, low), [], [])
    following, places = known
    below = [(offset, owner) for offset, owner in places if 0 <= offset < following]
    return _Places(
        following,
        [offset for offset, owner in below if owner == FREE],
        [(offset, owner) for offset, owner in below if owner != FREE],
    )


def _put_ms(store: MessageStore, topic: str, queue_id: int, offset: int) -> int:
    """When a message was put, or the next one that can be read; 0 without one."""
    try:
        found = store.get(topic, queue_id, offset, 1)
    except CorruptRecordError:
        return 0
    return (found.messages[0].store_timestamp_ms or 0) if found.messages else 0


def _settled(store: MessageStore, topics: Mapping[str, Any], topic: str, queue_ids: Iterable[int]) -> int:
    """How many messages of a queue were settled in the last minute: by records of their own, and by records that settle
    one message besides what they say."""
    since_ms, count = now_ms() - RATE_S * 1000, 0
    tags = {f"{topic}/{queue_id}" for queue_id in queue_ids}
    for queue_id in queue_ids:
        light = f"{LMQ_PREFIX}settled-{SettledLog(store, GROUP, topic, queue_id).name}"
        if light in topics:
            count += max(
                topics[light][0].max_offset - store.offset_by_time(light, 0, since_ms, boundary="lower"), 0
            )
    own = ack_topic(GROUP)
    if own not in topics:
        return count
    at = store.offset_by_time(own, 0, since_ms, boundary="lower")
    while True:
        found = store.get(own, 0, at, AT_ONCE)
        for message in found.messages:
            if message.tags in tags:
                count += sum(end - begin for begin, end in ranges_of(message))
        if found.next_offset <= at or found.status is not GetStatus.FOUND:
            return count
        at = found.next_offset


def _holder(note: claims.OwnerNote | None, messages: int) -> Holder:
    if note is None or note.pid_namespace != platform.pid_namespace():
        return Holder(0, "", 0 if note is None else note.since_ms, messages)
    return Holder(note.pid, platform.command_of(note.pid) or "", note.since_ms, messages)
