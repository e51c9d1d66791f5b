"""A connection of kombu to a store: its owner of claims, its bell, and the queues that it uses."""

from __future__ import annotations

import os
from collections import OrderedDict, deque
from contextlib import suppress
from time import monotonic
from typing import Any

from kombu.transport import virtual

from cystore import MessageIllegalError, MessageStore, StoreConfigError, StoreError
from cystore.celery.stores import Location, open_shared, opened_at
from cystore.celery.transport.bell import Bell
from cystore.celery.transport.channel import Channel, topic_of
from cystore.celery.transport.directory import Directory
from cystore.consumers.claims import Claim, ClaimedQueue, Owner

ALIAS = "cystore"
GROUP = "celery"
LOOK_S = 5.0  # between two moves of a queue's offset
ASK_DEAD_S = 1.0  # between two looks for dead owners of a queue's messages


class Transport(virtual.Transport):
    """A connection to a store: its owner of claims, its bell, and the queues that it uses."""

    Channel = Channel
    driver_type = driver_name = ALIAS
    can_parse_url = True
    polling_interval = None  # type: ignore[assignment]  # nothing polls
    default_port = None
    connection_errors = (*virtual.Transport.connection_errors, StoreError)  # type: ignore[assignment]
    channel_errors = (*virtual.Transport.channel_errors, MessageIllegalError)  # type: ignore[assignment]
    implements = virtual.Transport.implements.extend(
        asynchronous=True, exchange_type=frozenset(["direct", "topic", "fanout"])
    )

    def __init__(self, client: Any, **options: Any) -> None:
        super().__init__(client, **options)
        self._known_directory: Directory | None = None
        self._store: MessageStore | None = None
        self._owner: Owner | None = None
        self._bell: Bell | None = None
        self._queues: OrderedDict[tuple[str, int], ClaimedQueue] = OrderedDict()
        self._look_at_s, self._turn = 0.0, 0
        self._ask_dead_at_s: dict[str, float] = {}  # by topic
        self._waits, self._pid = False, os.getpid()
        self._full: list[Channel] = []  # they could take nothing at the last look

    def driver_version(self) -> str:
        import cystore

        return cystore.__version__

    # ---------------------------------------------------------------------------------------------------------- parts

    @property
    def is_here(self) -> bool:
        """Whether this process made the connection. A forked child of it wakes nobody and claims nothing."""
        return self._pid == os.getpid()

    @property
    def store(self) -> MessageStore:
        """The store of the URL, open since the connection began. Raises StoreError."""
        if self._store is None:
            client: Any = self.client
            url = client.hostname or ""
            if "://" not in url:  # kombu has taken it apart: an alternative of a list
                url = f"{ALIAS}:///{(client.virtual_host or '').lstrip('/')}"
            location = Location.parse(url)
            if location.remote or not location.path:
                raise StoreConfigError(
                    f"broker_url must name a store of this host: {ALIAS}:///path/of/the/store"
                )
            self._store = opened_at(location.path) or open_shared(location)
        return self._store

    @property
    def owner(self) -> Owner:
        """Who claims."""
        if self._owner is None:
            self._owner = Owner(self.store.path)
        return self._owner

    @property
    def bell(self) -> Bell:
        """Wakes this connection."""
        if self._bell is None:
            self._bell = Bell(self.store, self._somebody_died)
        return self._bell

    @property
    def directory(self) -> Directory:
        """Exchanges and bindings."""
        if self._known_directory is None:
            self._known_directory = Directory(self.store.path)
        return self._known_directory

    def claimed_queues(self, queue: str) -> list[ClaimedQueue]:
        """The queues of a topic that there are, highest priority first. Messages of dead owners are free again."""
        topic, store = topic_of(queue), self.store
        control = store._attached().control
        found = [
            self._queue(topic, priority)
            for priority in range(Channel.max_priority, Channel.min_priority - 1, -1)
            if control.find_queue(topic, priority) >= 0
        ]
        # The bell asks only in an idle worker, and not every program has one.
        if (now_s := monotonic()) >= self._ask_dead_at_s.get(topic, 0.0):
            self._ask_dead_at_s[topic] = now_s + ASK_DEAD_S
            for claimed in found:
                claimed.take_over()
        return found

    def _queue(self, topic: str, priority: int) -> ClaimedQueue:
        found = self._queues.get((topic, priority))
        if found is None:
            found = self._queues[topic, priority] = ClaimedQueue(
                self.store, lambda: self.owner, GROUP, topic, priority
            )
        return found

    def held(self, claimed: ClaimedQueue, claim: Claim) -> tuple[Any, ...]:
        """Who has a message: for the process that runs its task (`results.settling`)."""
        return (
            str(self.store.path), claimed.group, claimed.topic, claimed.queue_id, claim, self.owner.id
        )  # fmt: skip

    def kept(self, queue: str, priority: int) -> None:
        """After a put: no clean removes the message before somebody takes it."""
        self._queue(topic_of(queue), priority).keep()

    def _somebody_died(self) -> bool:
        """Called by the bell's thread, once a second in an idle worker."""
        return sum(queue.take_over() for queue in list(self._queues.values())) > 0

    # ---------------------------------------------------------------------------------------------------- connection

    def establish_connection(self) -> Transport:
        if self._store is not None and self._store.closed:
            self._leave()
        self.store.path  # noqa: B018 - raises if the store cannot be opened
        return super().establish_connection()

    def close_connection(self, connection: Any) -> None:
        super().close_connection(connection)
        # Another thread may have had a queue's lock when this process was forked.
        if self.is_here:
            with suppress(StoreError):
                for queue in self._queues.values():
                    queue.look()
        self._leave()

    def _leave(self) -> None:
        for queue in self._queues.values():
            queue.close()
        self._queues.clear()
        for part in (self._bell, self._owner, self._known_directory):
            if part is not None:
                part.close()
        self._bell = self._owner = self._known_directory = self._store = None

    def verify_connection(self, connection: Any) -> bool:
        return self._store is not None and not self._store.closed

    # ------------------------------------------------------------------------------------------------------- events

    def look_soon(self) -> None:
        """A consumer came, or may take more."""
        if self._bell is not None:
            self._bell.ring()

    def drain_events(self, connection: Any, timeout: Any = None, **options: Any) -> None:
        until_s = None if timeout is None else monotonic() + timeout
        while True:
            seen = self.bell.seen()
            if self._deliver_some():
                return
            left_s = None if until_s is None else until_s - monotonic()
            if left_s is not None and left_s <= 0:
                raise TimeoutError
            self.bell.arm(seen)
            self.bell.wait(left_s)
            self.bell.quiet()

    def register_with_event_loop(self, connection: Any, loop: Any) -> None:
        """The loop calls when messages came, and after each of its turns."""
        loop.add_reader(self.bell.fd, self._rung)
        loop.on_tick.add(self._tick)

    def _rung(self, *_: Any) -> None:
        self.bell.quiet()
        self._waits = False

    def _tick(self) -> None:
        if self._bell is None or (self._waits and not self._more_room()):
            return
        seen = self.bell.seen()
        if self._deliver_some():
            self.bell.ring()  # the loop's next turn comes at once
        else:
            self._waits = True
            self._full = [channel for channel in self.channels if not channel.room()]
            self.bell.arm(seen)

    def _more_room(self) -> bool:
        """Whether a channel may take messages that could take none at the last look."""
        return any(channel.connection is not None and channel.room() for channel in self._full)

    def _deliver_some(self) -> int:
        """Gives messages to their callbacks, each queue in turn; returns their number."""
        count = 0
        for channel in list(self.channels):
            queues = list(dict.fromkeys(channel._active_queues))
            self._turn += 1
            for at in range(len(queues)):
                queue = queues[(at + self._turn) % len(queues)]
                room = channel.room() if channel.connection is not None else 0
                if not room:
                    break
                payloads = deque(channel.take(queue, room))
                count += len(payloads)
                try:
                    while payloads and queue in self._callbacks:
                        self._deliver(payloads.popleft(), queue)
                finally:  # a callback raised, or cancelled the consumer
                    channel.put_back(queue, payloads)
        now_s = monotonic()
        if now_s >= self._look_at_s:
            self._look_at_s = now_s + LOOK_S
            for one in self._queues.values():
                one.look()
        return count
