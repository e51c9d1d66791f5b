"""`python -m benchmarks groups`: the lag of 1,000 consumer groups with 8 queues each, and a consumer's time for a
message.

Each group reads a topic of its own, so 8,000 queues are looked at. The time of `lags` is the median of its calls in
one process.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import cystore

GROUPS, QUEUES, ROUNDS = 1000, 8, 21
MESSAGES = 50_000
GOAL_MS = 10.0


def lag_ms(folder: Path, groups: int = GROUPS, rounds: int = ROUNDS) -> float:
    """The time of one look at the lag of all groups, each one message behind in half of its queues."""
    with cystore.open(folder, services="none") as store:
        store.put_many(
            [
                cystore.Message(topic=f"topic-{group}", queue_id=queue_id, body=b"")
                for group in range(groups)
                for queue_id in range(QUEUES)
            ]
        )
        for group in range(groups):
            for queue_id in range(QUEUES):
                store.groups.commit(f"group-{group}", f"topic-{group}", queue_id, queue_id % 2)
        lags = store.groups.lags()
        assert len(lags) == groups and set(lags.values()) == {QUEUES // 2}
        return statistics.median(_took_ms(store.groups.lags) for _ in range(rounds))


def message_us(folder: Path, count: int = MESSAGES) -> dict[str, float]:
    """The time of a message from `poll` and `ack`, of one after the other by iteration, and of `get` alone."""
    found = {}
    with cystore.open(folder) as store:
        store.put_many([cystore.Message(topic="T", body=b"x" * 100) for _ in range(count)])
        with store.consumer("by-poll", "T") as consumer:
            found["poll and ack"] = _took_ms(lambda: _polled(consumer, count)) * 1000 / count
        with store.consumer("by-iteration", "T") as consumer:
            found["iteration and ack"] = _took_ms(lambda: _iterated(consumer, count)) * 1000 / count
        found["get alone"] = _took_ms(lambda: _got(store, count)) * 1000 / count
    return found


def _polled(consumer: cystore.Consumer, count: int) -> None:
    while count > 0:
        count -= consumer.ack(*consumer.poll(timeout_s=1))


def _iterated(consumer: cystore.Consumer, count: int) -> None:
    for message in consumer:
        count -= consumer.ack(message)
        if count == 0:
            return


def _got(store: cystore.MessageStore, count: int) -> None:
    at = 0
    while at < count:
        at = store.get("T", 0, at).next_offset


def _took_ms(call: Callable[[], object]) -> float:
    begun = time.perf_counter()
    call()
    return (time.perf_counter() - begun) * 1000


def main() -> int:
    with tempfile.TemporaryDirectory() as folder:
        took = lag_ms(Path(folder, "lag"))
        print(f"lag of {GROUPS:,} groups with {QUEUES} queues each: {took:.1f} ms, goal {GOAL_MS:.0f} ms")
        for name, each in message_us(Path(folder, "messages")).items():
            print(f"{name:<20} {each:6.1f} us a message")
    return 0 if took <= GOAL_MS else 1
