"""Consumers: the process of a consumer is killed; another one takes its queues over. A log outside of the store has
what was given and acknowledged, in order."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from tests.crash.episodes import armed
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

LEVELS: dict[str, Any] = {**SETTINGS, "message_delay_level": "0s 1s 1s 1s"}
COUNT, QUEUES = 60, 3
# Place: how often it may be passed before.
PLACES = {
    "consumers.table_begun": 1,
    "consumers.table_filled": 1,
    "consumers.row_written": 6,
    "consumers.taken": 3,
    "consumers.commit": 40,
    "consumers.sent_back": 5,
    "consumers.saving": 1,
    "consumers.saved": 1,
}
# Every tenth message is refused once. `given` is written before the work, `acking` and `acked` before and behind the
# acknowledgement.
CONSUME = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(word, message):
    place = f"{message.topic} {message.queue_id} {message.queue_offset}"
    os.write(out, f"{word} {bytes(message.body).decode()} {place}\\n".encode())
def consume(most):
    done = 0
    with store.consumer("billing", "orders", invisible_ms=30_000) as consumer:
        while done < most:
            messages = consumer.poll(1, timeout_s=1)
            if not messages and not store.stats()["delayed"] and not any(store.groups.lags().values()):
                return done
            for message in messages:
                done += 1
                note("given", message)
                if int(bytes(message.body)) % 10 == 3 and not message.reconsume_times:
                    consumer.retry(message, delay_level=1)
                    continue
                note("acking", message)
                if consumer.ack(message):
                    note("acked", message)
    return done
"""


def begin(process: Process, path: Path, log: Path) -> None:
    process.do(CONSUME, path=str(path), log=str(log), settings=LEVELS)


def fill(store: cystore.MessageStore, start: int, count: int) -> None:
    for number in range(start, start + count):
        store.put("orders", b"%d" % number, queue_id=number % QUEUES)


def check(path: Path, log: Path, count: int) -> None:
    """Every message was acknowledged, and none was given after that."""
    acked: set[tuple[str, ...]] = set()
    last: dict[int, str] = {}
    for line in log.read_text().splitlines():
        word, name, *place = line.split()
        assert word != "given" or tuple(place) not in acked, f"given again: {line}"
        last[int(name)] = word
        if word == "acked":
            acked.add(tuple(place))
    with cystore.open(path, **LEVELS) as store:
        assert store.groups.lags() == {"billing": 0}
        assert store.deliver() == 0
        assert not store.get("%DLQ%billing", 0, 0).messages
    assert set(last) == set(range(count))
    # A process may die between its acknowledgement and its note; the offsets above say that these are settled.
    unknown = [name for name, word in last.items() if word != "acked"]
    assert all(last[name] == "acking" for name in unknown), unknown
    assert len(unknown) <= deaths(log), unknown
    after_kills(path, LEVELS)


def deaths(log: Path) -> int:
    return int((log.parent / "deaths").read_text())


def killed_at(
    place: str, rng: random.Random, folder: Path, environment: Mapping[str, str], *, planted: str = ""
) -> None:
    path, log = folder / "store", folder / "log"
    with cystore.open(path, **LEVELS) as store:
        fill(store, 0, COUNT)
    hits = rng.randint(1, PLACES[place])
    with Process(armed(environment, place, hits)) as victim, Process() as other:
        victim.send(CONSUME + "consume(1000); store.close()", path=str(path), log=str(log), settings=LEVELS)
        with pytest.raises(EOFError):
            victim.answer()
        (folder / "deaths").write_text("1")
        begin(other, path, log)
        other.do(planted + "\nconsume(1000)")
    check(path, log, COUNT)
