"""Messages of queues, batch by batch, for the commands that show them."""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from cystore import CorruptRecordError, Message, MessageStore
from cystore._native.record.properties import queues_of
from cystore.engine.inspect.queue_offset import queue_offset_in
from cystore.errors import did_you_mean
from cystore.layout import takes_queue_offset
from cystore.operate.output import write_note

BATCH = 1024
DAMAGE_LINES = 20


class DamageCount:
    """Counts records that cannot be read and reports the first of them."""

    def __init__(self) -> None:
        self.count = 0

    def found(self, where: str, error: CorruptRecordError) -> None:
        """Reports one record."""
        self.count += 1
        if self.count <= DAMAGE_LINES:
            write_note(f"{where} cannot be read: {error}")

    def summary(self) -> None:
        """Reports the number of errors, if some were not reported."""
        if self.count > DAMAGE_LINES:
            write_note(f"{self.count} messages cannot be read; `cystore verify` lists all damage")


def report_stepped_over(store: MessageStore) -> None:
    """Reports the ranges of the log whose records are missing among a store's messages: holes, and lost ranges behind
    the end."""
    ranges = [(begin, end, "left out") for begin, end in store.stats()["holes"]]
    lost = lost_range(store)
    if lost is not None:
        ranges.append((*lost, "lost"))
    for begin, end, what in ranges[:DAMAGE_LINES]:
        write_note(f"bytes {begin}..{end} of the log are damaged; their records are {what}")
    if len(ranges) > DAMAGE_LINES:
        write_note(f"{len(ranges)} ranges of the log are damaged; `cystore verify` lists all damage")


def lost_range(store: MessageStore) -> tuple[int, int] | None:
    """The durable records behind the end of the log that recovery could not read; None without such a range, and when
    new records have its place."""
    lost = None if store.recovery is None else store.recovery.lost
    return lost if lost is not None and lost[0] >= store.wrote_position else None


@dataclass
class QueueView:
    """A queue as it was at one moment: offsets from `begin` to before `end` are dispatched, `behind` holds the
    physical offsets of the messages that follow them."""

    topic: str
    queue_id: int
    begin: int
    end: int
    behind: array[int] = field(default_factory=lambda: array("q"))


def no_such_topic(topic: str, known: Iterable[str]) -> str:
    """The end of a note that there is no message: whether there is no topic of that name, and which one is meant
    perhaps. Empty if the topic is known."""
    known = set(known)
    return "" if topic in known else f": there is no such topic{did_you_mean(topic, known)}"


def dispatched_queues(store: MessageStore, topic: str | None, queue_ids: list[int]) -> list[QueueView]:
    """The queues that are asked for, by topic and queue id; all of them without a topic."""
    return [
        QueueView(name, queue_id, *offsets)
        for name, queues in store.topics().items()
        for queue_id, offsets in queues.items()
        if (topic is None or name == topic) and (not queue_ids or queue_id in queue_ids)
    ]


def whole_queues(store: MessageStore, topic: str | None, queue_ids: list[int]) -> list[QueueView]:
    """The same with undispatched messages. A reader beside other processes' writes can only wait for their dispatch."""
    dispatched, end = store.catch_up(), store.wrote_position
    views = {(view.topic, view.queue_id): view for view in dispatched_queues(store, topic, queue_ids)}
    for message in store.scan(dispatched, end) if dispatched < end else ():
        for name, queue_id, offset in queues_of(message) if has_queue_entry(message) else ():
            if (topic in (None, name)) and (not queue_ids or queue_id in queue_ids):
                view = views.setdefault((name, queue_id), QueueView(name, queue_id, offset, offset))
                if offset >= view.end:  # else it was dispatched meanwhile
                    view.behind.append(message.physical_offset)
    return [views[key] for key in sorted(views)]


def has_queue_entry(message: Message) -> bool:
    """Whether the message is one of its queue: prepared and rolled back ones of a transaction are not."""
    return takes_queue_offset(message.sys_flag)


def sees_in_queue(
    store: MessageStore, message: Message, topic: str, queue_id: int, queue_offset: int
) -> bool:
    """Whether readers of a queue get a message now that stands there at an offset."""
    parts = store._attached()
    slot = parts.control.find_queue(topic, queue_id)
    return parts.reader.sees(message, slot, queue_offset)


def queue_messages(
    store: MessageStore, view: QueueView, begin: int, damage: DamageCount
) -> Iterator[Message]:
    """Messages of a queue from queue offset `begin` on; an unreadable one is reported and stepped over. Batches are
    read ahead, so each message is judged when its turn comes."""
    for message in _fetched(store, view, begin, damage):
        offset = queue_offset_in(message, view.topic, view.queue_id)
        if sees_in_queue(store, message, view.topic, view.queue_id, offset):
            yield message


def _fetched(store: MessageStore, view: QueueView, begin: int, damage: DamageCount) -> Iterator[Message]:
    yield from _dispatched(store, view, max(begin, view.begin), damage)
    for physical_offset in view.behind:
        try:
            message = store.read(physical_offset)
        except CorruptRecordError as error:
            damage.found(f"{view.topic}/{view.queue_id}", error)
            continue
        if queue_offset_in(message, view.topic, view.queue_id) >= begin:
            yield message


def _dispatched(store: MessageStore, view: QueueView, at: int, damage: DamageCount) -> Iterator[Message]:
    while at < view.end:
        try:
            got = store.get(view.topic, view.queue_id, at, BATCH)
        except CorruptRecordError as error:
            damage.found(f"{view.topic}/{view.queue_id}@{at}", error)
            at += 1
            continue
        for message in got.messages:
            if queue_offset_in(message, view.topic, view.queue_id) >= view.end:
                return
            yield message
        if got.next_offset <= at:
            return
        at = got.next_offset
