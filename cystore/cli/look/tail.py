"""`cystore tail`: the newest messages of a topic, and new ones as they come."""

from __future__ import annotations

import argparse
import contextlib
import heapq
import sys
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter

import cystore
from cystore import Message, MessageStore
from cystore._native.record.properties import queues_of
from cystore.operate.command import (
    FOUND_WRONG,
    OK,
    Command,
    add_body,
    add_filter,
    add_json,
    reading_config,
    whole_number,
)
from cystore.operate.output import write_message, write_note
from cystore.operate.progress import progress
from cystore.operate.queue_messages import (
    DamageCount,
    QueueView,
    dispatched_queues,
    has_queue_entry,
    no_such_topic,
    queue_messages,
    sees_in_queue,
)
from cystore.operate.wait_for_store import Place, follow


def _add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topic", metavar="TOPIC")
    parser.add_argument(
        "-f", "--follow", action="store_true", help="continue with new messages; Ctrl-C ends it"
    )
    parser.add_argument("-n", "--lines", metavar="K", type=whole_number, default=10,
                        help="begin with the newest K messages (default: 10)")  # fmt: skip
    parser.add_argument("--queue", metavar="N", dest="queues", type=whole_number, action="append", default=[],
                        help="only this queue id; may be repeated")  # fmt: skip
    add_filter(parser)
    add_body(parser)
    add_json(parser, "one JSON object a message")


class _Tail:
    """Writes a topic's messages in the order they were appended; `position` is the log position up to which that is
    done."""

    def __init__(self, args: argparse.Namespace) -> None:
        self._args = args
        self._damage = DamageCount()
        self.position = 0
        self._place = Place()
        self.found: bool | None = None  # whether there was anything at the first look

    def look(self, store: MessageStore) -> int:
        """Writes the messages to show now, and returns the position up to which that is done."""
        self.position = self._place.position_in(store, self.position)
        if self.found is None:
            self.found = self.newest(store)
            if not self.found:
                topic = self._args.topic
                write_note(f"there is no message of topic {topic}{no_such_topic(topic, store.topics())}")
        else:
            self.later(store)
        return self.position

    def newest(self, store: MessageStore) -> bool:
        """Writes the newest messages; False when there is nothing of the topic."""
        args = self._args
        self.position = store.catch_up()
        queues = dispatched_queues(store, args.topic, args.queues)
        below = (message for queue in queues for message in self._newest_of(store, queue))
        by_place = attrgetter("physical_offset")
        newest = deque(
            sorted(heapq.nlargest(args.lines, below, key=by_place), key=by_place), maxlen=args.lines
        )
        newest.extend(self._appended(store))
        self._write(newest)
        return bool(queues or newest)

    def _newest_of(self, store: MessageStore, queue: QueueView) -> Iterator[Message]:
        """The newest wanted messages of a queue. The last ones may have expired, or not match the filter, so it looks
        further and further back."""
        pieces: list[deque[Message]] = []
        missing, end, step = self._args.lines, queue.end, self._args.lines
        while queue.begin < end and missing:
            begin = max(queue.begin, end - step)
            view = QueueView(queue.topic, queue.queue_id, begin, end)
            found = filter(self._is_below, queue_messages(store, view, begin, self._damage))
            pieces.append(deque(found, maxlen=missing))
            missing -= len(pieces[-1])
            end, step = begin, 2 * step
        return chain.from_iterable(reversed(pieces))

    def _is_below(self, message: Message) -> bool:
        """Whether a message of a queue is wanted and stands below `position`: `_appended` gives the others."""
        chosen = self._args.filter
        return (message.physical_offset or 0) < self.position and (chosen is None or chosen(message))

    def later(self, store: MessageStore) -> None:
        """Writes the messages that were appended behind `position`."""
        self._write(self._appended(store))

    def _appended(self, store: MessageStore) -> Iterator[Message]:
        """The topic's messages behind `position`, dispatched or not, that readers get now: the log keeps expired and
        removed ones, too."""
        end, minimum = store.wrote_position, store.stats()["min_physical_offset"]
        begin = min(self.position, end)
        if begin < minimum:
            write_note(f"the log from {begin} to {minimum} was cleaned before it could be shown")
            begin = minimum
        for message in filter(self._is_wanted, store.scan(begin, end)):
            if self._is_visible(store, message):
                yield message
        self.position = end

    def _write(self, messages: Iterable[Message]) -> None:
        for message in messages:
            write_message(message, as_json=self._args.json, body=self._args.body)
        sys.stdout.flush()

    def _is_visible(self, store: MessageStore, message: Message) -> bool:
        """Whether readers of the topic get the message now."""
        return any(
            sees_in_queue(store, message, topic, queue_id, queue_offset)
            for topic, queue_id, queue_offset in queues_of(message)
            if self._is_asked(topic, queue_id)
        )

    def _is_asked(self, topic: str, queue_id: int) -> bool:
        return topic == self._args.topic and (not self._args.queues or queue_id in self._args.queues)

    def _is_wanted(self, message: Message) -> bool:
        args = self._args
        return (
            has_queue_entry(message)
            and any(self._is_asked(topic, queue_id) for topic, queue_id, _ in queues_of(message))
            and (args.filter is None or args.filter(message))
        )


@contextlib.contextmanager
def _opened(args: argparse.Namespace, config: cystore.StoreConfig) -> Iterator[MessageStore]:
    with progress() as report, cystore.open(args.path, config=config, progress=report) as store:
        yield store


def _run(args: argparse.Namespace) -> int:
    tail = _Tail(args)
    config = reading_config(args)
    follow(args.path, lambda: _opened(args, config), tail.look, go_on=args.follow)
    return OK if tail.found else FOUND_WRONG


COMMAND = Command(
    name="tail",
    summary="the newest messages of a topic, and new ones as they come",
    description=(
        "Writes the newest messages of a topic in the order of their appends; with -f it continues with new "
        "messages of any\n"
        "process. Changes nothing. If no process has the store open, -f waits until one opens it."
    ),
    examples=(
        "cystore tail /var/lib/app/store orders -n 20",
        "cystore tail /var/lib/app/store orders -f --json",
        "cystore tail /var/lib/app/store orders -f --filter \"price > 100 AND region IN ('north', 'south')\"",
    ),
    add_arguments=_add_arguments,
    run=_run,
)
