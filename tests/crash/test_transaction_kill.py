"""Goal: a process may be killed anywhere while it ends transactions: each message is there once or not at all, and
the transactions that are left open are found and ended by others. Method: processes of the build with failpoints that
commit and roll back, killed at each place, beside others that live or alone; several that begin, end and check at
once and are killed at random."""

from __future__ import annotations

import contextlib
import os
from collections import Counter

import pytest

import cystore
from cystore import TransactionError
from cystore.layout import OP_TOPIC
from tests.crash.episodes.transactions import AT_ONCE, PLACES, killed_at
from tests.support.aftermath import after_kills
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.processes.places import in_sources

WORK = """
import random
rng = random.Random(seed)
number = 0
while True:
    half = store.begin("orders", b"%d-%d" % (seed, number))
    number += 1
    if rng.random() < 0.8:
        try:
            store.commit(half) if rng.random() < 0.5 else store.rollback(half)
        except cystore.TransactionError:
            pass  # a check of another process was first
    if rng.random() < 0.1:
        store.check_transactions(lambda half, message: rng.choice(("commit", "rollback", None)))
"""


def test_every_place_of_transactions_is_killed_at():
    assert {name for name in in_sources() if name.startswith("transaction.")} == {
        place for place in PLACES if place.startswith("transaction.")
    }


@pytest.mark.sampled(6)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_a_kill_while_a_transaction_ends(in_memory, rng, build_environment, place, survivors):
    killed_at(place, rng, in_memory, build_environment("failpoints"), survivors=survivors)


@pytest.mark.parametrize("rounds", [4, pytest.param(40, marks=pytest.mark.slow)])
def test_several_begin_end_and_check_at_once_and_are_killed_at_random(in_memory, rng, rounds):
    path = in_memory / "store"
    with cystore.open(path, **AT_ONCE) as store, contextlib.ExitStack() as stack:
        for seed in range(rounds):
            pair = [stack.enter_context(Process({**os.environ})) for _ in range(2)]
            for part, process in enumerate(pair):
                process.do(
                    "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=AT_ONCE
                )
                process.send(WORK, seed=2 * seed + part)
            wrote = store.wrote_position
            store.wait_log(wrote + rng.randrange(1, 60_000), 30)
            for process in pair:
                process.kill()
        for _ in range(AT_ONCE.get("transaction_check_max", 15) + 1):
            store.check_transactions(lambda half, message: rng.choice(("commit", "rollback", None)))
        assert store.open_transactions() == []
        found = list(store.scan())
        assert max(Counter(bytes(m.body) for m in found if m.topic == "orders").values()) == 1
        ended = Counter(bytes(m.body) for m in found if m.topic == OP_TOPIC)
        assert ended and max(ended.values()) == 1
        with pytest.raises(TransactionError):
            store.commit(found[0].unique_key)
    check_closed(path, AT_ONCE)
    after_kills(path, AT_ONCE)
