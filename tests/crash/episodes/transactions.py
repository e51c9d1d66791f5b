"""Transactions: a process that commits and rolls back is killed; those who come after it find and end what it left."""

from __future__ import annotations

import contextlib
import random
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.layout import OP_TOPIC
from tests.crash.episodes import armed
from tests.support.aftermath import after_kills
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

COUNT = 40
AT_ONCE: dict[str, Any] = {
    **SETTINGS,
    "transaction_timeout_ms": 0,
    "transaction_check_interval_ms": 0,
}
# Place: how often it is passed before, at most.
PLACES = {
    "transaction.ending": COUNT,
    "transaction.ended": COUNT,
    "append.many_begun": COUNT,
    "append.intent": COUNT,
    "append.claimed": COUNT,
    "append.bytes_written": COUNT,
    "append.before_publish": COUNT,
    "append.published": COUNT,
    "append.next_set": COUNT,
    "append.blank_published": 1,
}
BEGIN = """
import cystore
store = cystore.open(path, **settings)
for n in range(count):
    store.begin("orders", b"%d" % n + bytes(150))
"""
END = """
for half in store.open_transactions():
    n = int(bytes(store.read(half.physical_offset).body).rstrip(bytes(1)))
    store.rollback(half) if n % 3 == 0 else store.commit(half)
"""


def number_of(message: cystore.Message) -> int:
    return int(bytes(message.body).rstrip(b"\0"))


def by_number(half: cystore.HalfMessage, message: cystore.Message) -> str:
    return "rollback" if number_of(message) % 3 == 0 else "commit"


def killed_at(
    place: str,
    rng: random.Random,
    folder: Path,
    environment: Mapping[str, str],
    *,
    survivors: bool,
    planted: str = "",
) -> None:
    path = folder / "store"
    hits = rng.randrange(1, PLACES[place] + 1)
    with Process() as keeper, Process(armed(environment, place, hits)) as victim:
        keeper.do(BEGIN + planted, path=str(path), settings=AT_ONCE, count=COUNT)
        if not survivors:
            keeper.do("store.close()")
        victim.send(
            "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=AT_ONCE
        )
        victim.send(END)
        with contextlib.suppress(EOFError):
            victim.answer()
        with pytest.raises(EOFError):
            victim.answer()
        assert victim.wait() == -signal.SIGKILL
        with cystore.open(path, **AT_ONCE) as store:
            for half in store.open_transactions():
                assert store.read(half.physical_offset).unique_key == half.id
            checked = store.check_transactions(by_number)
            assert checked.failed == checked.asked_again == checked.discarded == 0
            assert store.open_transactions() == []
            found = list(store.scan())
            committed = sorted(number_of(message) for message in found if message.topic == "orders")
            assert committed == [n for n in range(COUNT) if n % 3], committed
            assert len([message for message in found if message.topic == OP_TOPIC]) == COUNT
            if survivors:
                keeper.do("store.close()")
    check_closed(path, AT_ONCE)
    after_kills(path, AT_ONCE)
