"""A process that makes every public call there is, one by one, and notes what was acknowledged, raised and not found.

A row leads it: it imports this module in a child, makes a `Worker`, and sends what it shall do.
"""

from __future__ import annotations

import random
import select
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import cystore
from tests.support.checks import check_chain, committed, everything
from tests.support.processes.forks import Child, Nursery
from tests.support.processes.line_pipe import LinePipe

TOPICS = ("shared", "A", "B")
BATCH = 3
WAIT_S = 0.002
QUIET_S = 1.0
LATER = "a later message"
IMPORT = "import logging; logging.disable(); import tests.support.processes.worker"


def body_of(key: str, size: int) -> bytes:
    """The body of the message with that key: a wrong byte shows."""
    return (f"{key}|".encode() * (size // (len(key) + 1) + 1))[:size]


def right(message: cystore.Message) -> bool:
    """Whether the body is the one that was put under the message's only key."""
    body = bytes(message.body)
    return len(message.keys) == 1 and body == body_of(message.keys[0], len(body))


class Worker:
    """`acknowledged`: topic, queue id, queue offset, key, physical offset, bytes. `raised`: the call, the error's
    class, its text, and whether it is one of cystore's. `missing`: topic, queue id, queue offset of an acknowledged
    message, and what came instead."""

    def __init__(self, path: str, settings: dict[str, Any], seed: int) -> None:
        self.path, self.settings, self.name = Path(path), settings, str(seed)
        self.rng = random.Random(seed)
        self.acknowledged: list[tuple[str, int, int, str, int, int]] = []
        self.raised: list[tuple[str, str, str, bool]] = []
        self.missing: list[tuple[str, int, int, str]] = []
        self.body_bytes = 300  # at most, of a message
        self._count = 0
        self.store = self.open()

    def open(self) -> cystore.MessageStore:
        return cystore.open(self.path, **self.settings)

    # ---------------------------------------------------------------------------------------------------- the calls

    def _message(self) -> tuple[str, int, str, bytes]:
        self._count += 1
        key, rng = f"{self.name}.{self._count}", self.rng
        return rng.choice(TOPICS), rng.randrange(2), key, body_of(key, rng.randrange(self.body_bytes))

    def _acknowledge(self, topic: str, queue_id: int, key: str, put: cystore.PutResult) -> None:
        self.acknowledged.append(
            (topic, queue_id, put.queue_offset, key, put.physical_offset, put.size_bytes)
        )

    def committed(self) -> None:
        """What was put is there for readers."""
        committed(self.store)

    def put(self, flush: str = "async") -> None:
        topic, queue_id, key, body = self._message()
        put = self.store.put(topic, body, queue_id=queue_id, keys=(key,), flush=flush)
        self._acknowledge(topic, queue_id, key, put)

    def put_sync(self) -> None:
        self.put("sync")

    def put_many(self) -> None:
        given = [self._message() for _ in range(BATCH)]
        messages = [cystore.Message(topic=t, queue_id=q, keys=(key,), body=body) for t, q, key, body in given]
        results = self.store.put_many(messages, flush=self.rng.choice(("async", "sync")))
        for (topic, queue_id, key, _), put in zip(given, results, strict=True):
            self._acknowledge(topic, queue_id, key, put)

    def get(self) -> None:
        if self.acknowledged:
            topic, queue_id, queue_offset, key, *_ = self.rng.choice(self.acknowledged)
            self.committed()
            got = self.store.get(topic, queue_id, queue_offset, 1)
            if not got.messages:
                self.missing.append((topic, queue_id, queue_offset, got.status.name))
            for message in got.messages:
                later = message.queue_offset > queue_offset
                assert self._right(message, "" if later else key), (topic, queue_id, queue_offset, key)
                if later:
                    self.missing.append((topic, queue_id, queue_offset, LATER))

    def _right(self, message: cystore.Message, key: str = "") -> bool:
        """Whether the message is right, and has the key. A message is a view of the log, its keys too: bytes that were
        hit after the store had checked them are no wrong answer, and the store refuses them from then on."""
        if right(message) and key in ("", *message.keys):
            return True
        try:
            self.store.read(message.physical_offset)
        except cystore.CorruptRecordError:
            return True
        return False

    def query(self) -> None:
        if self.acknowledged:
            topic, queue_id, queue_offset, key, *_ = self.rng.choice(self.acknowledged)
            self.committed()
            found = self.store.query(topic, key)
            assert all(self._right(message, key) for message in found), (topic, key)
            if not found:
                self.missing.append((topic, queue_id, queue_offset, "not by key"))

    def wait(self) -> None:
        topic, queue_id = self.rng.choice(TOPICS), self.rng.randrange(2)
        self.store.wait(topic, queue_id, self.store.next_queue_offset(topic, queue_id), WAIT_S)

    def scan(self) -> None:
        for count, message in enumerate(self.store.scan()):
            assert not message.keys or self._right(message), message.physical_offset
            if count > 200:
                break

    def flush(self) -> None:
        self.store.flush()

    def dispatch(self) -> None:
        self.store.dispatch()

    def deliver(self) -> None:
        self.store.deliver()

    def clean(self) -> None:
        self.store.clean()

    def clean_due(self) -> None:
        self.store.clean_due()

    def scrub(self) -> None:
        self.store.scrub(16 * 1024)

    def stats(self) -> None:
        self.store.stats()

    def checkpoint(self) -> None:
        self.store.checkpoint()

    def attach(self) -> None:
        """Opens and closes one more handle of this process."""
        self.open().close()

    def reopen(self) -> None:
        """Closes and opens the handle. What `close` cannot do it says, and then this is open or closed."""
        try:
            self.store.close()
        finally:
            self.store = self.open()

    def revive(self) -> None:
        """Opens the store again when a call has closed it, and was interrupted or refused before it was open again."""
        try:
            _ = self.store.wrote_position
        except cystore.StoreClosedError:
            self.store = self.open()

    # -------------------------------------------------------------------------------------------------- being led

    def attempt(self, name: str) -> bool:
        """Makes one call; notes what it raised."""
        try:
            self.revive()
            getattr(self, name)()
        except AssertionError:
            raise
        except Exception as error:  # noqa: BLE001 - the row judges
            typed = isinstance(error, cystore.StoreError)
            self.raised.append((name, type(error).__name__, str(error), typed))
            return False
        return True

    def work(self, steps: int, names: Sequence[str]) -> None:
        """Tries so many calls, by chance."""
        for _ in range(steps):
            self.attempt(self.rng.choice(names))

    def told(self) -> list[Any]:
        """Takes out what was acknowledged, raised and missing."""
        told = [list(self.acknowledged), list(self.raised), list(self.missing)]
        self.raised.clear()
        self.missing.clear()
        return told

    def goes_on(self, names: Sequence[str]) -> None:
        """Each call once, and none may raise."""
        for name in names:
            getattr(self, name)()


PUTS = ("put", "put", "put", "put_sync", "put_many")
READS = ("get", "get", "query", "scan", "wait", "stats")
DUTIES = ("flush", "dispatch", "deliver", "clean", "scrub", "checkpoint")
LIVES = ("attach", "reopen")
ALL = (*PUTS, *READS, *DUTIES, *LIVES)


def born(nursery: Nursery, path: Path, settings: dict[str, Any], seed: int) -> Child:
    """A child with a worker `w`. The caller kills it."""
    child = nursery.fork()
    child.do(
        f"{IMPORT}; w = tests.support.processes.worker.Worker(path, settings, seed)",
        path=str(path),
        settings=settings,
        seed=seed,
    )
    return child


Check = Callable[[cystore.MessageStore], object]


def check_kept(store: cystore.MessageStore, acknowledged: Sequence[Sequence[Any]]) -> int:
    """I2 and I7: queues count without a gap from their minimum; each acknowledged message at or behind the log's
    minimum is served at its place and under its key with its own bytes, and none before it is. Gives how many are
    kept."""
    committed(store)
    check_chain(store)
    minimum, queues = store.stats()["min_physical_offset"], everything(store)
    first = {(t, q): one.min_offset for t, numbers in store.topics().items() for q, one in numbers.items()}
    for queue, messages in queues.items():
        assert [m.queue_offset for m in messages] == list(
            range(first[queue], first[queue] + len(messages))
        ), queue
    kept = 0
    for topic, queue_id, queue_offset, key, physical_offset, *_ in acknowledged:
        begin = first.get((topic, queue_id))
        if begin is None:  # the queue was removed: all of it expired
            begin = store.next_queue_offset(topic, queue_id)
        if physical_offset < minimum:
            assert queue_offset < begin, (topic, queue_id, queue_offset, begin, minimum)
            continue
        kept += 1
        assert queue_offset >= begin, (topic, queue_id, queue_offset, begin)
        message = queues[topic, queue_id][queue_offset - begin]
        assert message.keys == (key,) and right(message), (topic, queue_id, queue_offset, key)
        assert message.physical_offset == physical_offset, (topic, queue_id, queue_offset)
        found = [m.physical_offset for m in store.query(topic, key)]
        assert found == [physical_offset], (topic, key, found)
    places = {(topic, queue_id, at) for topic, queue_id, at, *_ in acknowledged}
    assert len(places) == len(acknowledged), "one place was acknowledged twice"
    return kept


class Acknowledgements:
    """What writers that may be killed at any moment acknowledged: they write lines into the pipe's end `out`. A
    context manager."""

    def __init__(self) -> None:
        self._pipe = LinePipe()
        self.out = self._pipe.out
        self.acknowledged: list[tuple[str, int, int, str, int, int]] = []

    def __enter__(self) -> Acknowledgements:
        return self

    def __exit__(self, *_: object) -> None:
        self._pipe.close()

    def forget(self) -> None:
        """For another store; nobody writes any more."""
        self.take()
        self._pipe.drop_rest()
        self.acknowledged = []

    def wait(self, count: int) -> None:
        """Until so many more were acknowledged, or nobody says anything any more."""
        wanted = len(self.acknowledged) + count
        while len(self.acknowledged) < wanted and select.select([self._pipe], [], [], QUIET_S)[0]:
            self.take()

    def take(self) -> None:
        """Takes in all that was said by now."""
        for topic, queue_id, queue_offset, key, physical_offset, size in self._pipe.lines():
            self.acknowledged.append(
                (topic, int(queue_id), int(queue_offset), key, int(physical_offset), int(size))
            )
