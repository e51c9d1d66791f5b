"""Goal: owners of claims may be killed anywhere: each message is settled, and none that was settled comes again.
Method: several processes that claim and settle messages of one queue; some are killed, at random or at a place; one
note, outside of the store, of each settled message. Every other message is settled by a record that says something
else, too, as the result of a task does: such a record is there once. Then the file of claims goes, and the log alone
says what is settled."""

from __future__ import annotations

import contextlib
import shutil
import signal
from collections import Counter

import pytest

import cystore
from cystore.clock import monotonic_s
from cystore.consumers.claims import FOLDER, ClaimedQueue, Owner
from cystore.layout.record import SETTLES
from tests.crash.episodes import armed
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS as SMALL

SETTINGS = {**SMALL, "enable_lmq": True, "enable_multi_dispatch": True}
MESSAGES, TIME_S = 300, 90
# The most hits before the kill.
PLACES = {
    "claims.filled": 1,
    "claims.placed": 60,
    "claims.emptied": 200,
    "claims.marked": 100,
    "claims.settled_together": 100,
}
WORK = """
import cystore, os
from cystore.consumers.claims import ClaimedQueue, Owner
store = cystore.open(path, **settings)
owner = Owner(store.path)
queue = ClaimedQueue(store, lambda: owner, "g", "T", 0)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
while True:
    claims = queue.claim(3)
    if not claims and not queue.take_over():
        break
    for claim in claims:
        if claim.queue_offset % 2:
            store.put("results", b"", properties=queue.begin_settling(claim, owner.id))
            queue.end_settling(claim, owner.id)
        queue.settle([claim])
        os.write(out, f"{claim.queue_offset}\\n".encode())
owner.close()
"""


def filled(path) -> None:
    with cystore.open(path, **SETTINGS) as store:
        for number in range(MESSAGES):
            store.put("T", b"%d" % number, queue_id=0)


def given(path, log) -> dict:
    return {"path": str(path), "log": str(log), "settings": SETTINGS}


def notes(log) -> list[int]:
    return list(map(int, log.read_text().split())) if log.exists() else []


def check(path, log) -> None:
    """Nothing is left, with the file of claims and without it; and no message was settled twice."""
    settled = notes(log)
    assert len(settled) == len(set(settled))
    with cystore.open(path, **SETTINGS) as store:
        ended = Counter(int(one.properties[SETTLES]) for one in store.scan() if one.topic == "results")
    assert ended == dict.fromkeys(range(1, MESSAGES, 2), 1)
    for lost in (False, True):
        with cystore.open(path, **SETTINGS) as store:
            if lost:
                shutil.rmtree(path / FOLDER)
            owner = Owner(path)
            queue = ClaimedQueue(store, lambda: owner, "g", "T", 0)  # noqa: B023 - used at once
            again = {claim.queue_offset for claim in queue.claim(MESSAGES)} if lost else set()
            assert not again & set(settled)
            assert queue.ready() == 0 and len(again) <= MESSAGES - len(settled)
            queue.close()
            owner.close()
    after_kills(path, SETTINGS)


def test_these_are_all_places():
    assert {name for name in in_sources() if name.startswith("claims.")} == set(PLACES)


@pytest.mark.parametrize("place", PLACES)
def test_killed_at_a_place(in_memory, rng, build_environment, place):
    path, log = in_memory / "store", in_memory / "log"
    filled(path)
    hits = rng.randint(1, PLACES[place])
    with Process(armed(build_environment("failpoints"), place, hits)) as victim, Process() as other:
        victim.send(WORK, **given(path, log))
        with pytest.raises(EOFError):
            victim.answer()
        other.do(WORK, **given(path, log))
    check(path, log)


@pytest.mark.parametrize("turns", [3, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_random(in_memory, rng, turns):
    path, log = in_memory / "store", in_memory / "log"
    filled(path)
    with cystore.open(path, **SETTINGS) as store, contextlib.ExitStack() as stack:
        for _ in range(turns):
            pair = [stack.enter_context(Process()) for _ in range(2)]
            wanted, until_s = len(notes(log)) + rng.randrange(1, 60), monotonic_s() + TIME_S
            for process in pair:
                process.send(WORK, **given(path, log))
            while len(notes(log)) < min(wanted, MESSAGES - 20) and monotonic_s() < until_s:
                store.wait_log(store.wrote_position, 0.002)
            for process in pair:
                process.signal(signal.SIGKILL)
        with Process() as last:
            last.do(WORK, **given(path, log))
    check(path, log)
