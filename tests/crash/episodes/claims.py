"""Claims: processes put messages into one queue, claim, settle (alone, or together with a result) and give them back,
and clean. One is killed; another one does the same beside it, or after it. A log outside of the store has each call
before it begins, and its answer."""

from __future__ import annotations

import random
import shutil
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cystore
from cystore.consumers.claims import FOLDER, ClaimedQueue, Owner
from tests.crash.episodes import armed, killed_beside
from tests.support.aftermath import after_kills
from tests.support.small_stores import SETTINGS

LIGHT = {**SETTINGS, "enable_lmq": True, "enable_multi_dispatch": True}  # as settling with a result needs
CLEANED = {**LIGHT, "file_reserved_time_h": 0}
KEPT = {**LIGHT, "file_reserved_time_h": 100_000}  # when the episode is over, a clean removes nothing
COUNT = 200  # calls of a process
# Place: how often it may be passed before.
PLACES = {
    "claims.filled": 1,
    "claims.placed": 30,
    "claims.emptied": 20,
    "claims.marked": 12,
    "claims.settled_together": 12,
    "append.intent": 80,
    "append.bytes_written": 80,
    "append.published": 80,
    "files.made": 6,
    "files.named": 4,
}
WORK = """
import cystore, logging, os, random
from cystore.consumers.claims import ClaimedQueue, Owner
from cystore.system import platform
logging.disable()
if boot:
    platform.identity = lambda known=platform.identity(): {**known, "boot_id": boot}
rng = random.Random(seed)
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(*words):
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())
owner = Owner(store.path)
queue = ClaimedQueue(store, lambda: owner, "g", "T", 0)
mine = []
def take(most):
    done = [mine.pop(rng.randrange(len(mine))) for _ in range(min(len(mine), rng.randrange(1, most)))]
    return done, [number for number, _ in done], [claim for _, claim in done]
for at in range(begin, begin + count):
    what = rng.random()
    if what < 0.4:
        note("puts", owner.id, at)
        store.put("T", b"%d" % at, queue_id=0)
        queue.keep()
        note("put", owner.id, at)
    elif what < 0.7:
        for claim in queue.claim(rng.randrange(1, 5)):
            (message,) = store.get("T", 0, claim.queue_offset, 1).messages
            mine.append((int(bytes(message.body)), claim))
            note("has", owner.id, mine[-1][0])
    elif what < 0.9 and mine:
        done, numbers, claims = take(4)
        note("settles", owner.id, *numbers)
        for number, claim in done:
            if number % 2 and (together := queue.begin_settling(claim, owner.id)):
                store.put("results", b"%d" % number, properties=together)
                queue.end_settling(claim, owner.id)
        queue.settle(claims)
        note("settled", owner.id, *numbers)
    elif mine:
        done, numbers, claims = take(3)
        note("frees", owner.id, *numbers)
        queue.give_back(claims)
    else:
        queue.take_over()
    if rng.random() < 0.1:
        store.put("other", bytes(4_000))
        store.dispatch()
        store.flush()
        queue.look()
        store.clean()
queue.close()
owner.close()
store.close()
"""


def given(
    path: Path, log: Path, rng: random.Random, begin: int, *, count: int = COUNT, boot: str = ""
) -> dict[str, Any]:
    """`boot` is the name of a boot of the host, for a process behind a power cut."""
    return {
        "path": str(path), "log": str(log), "settings": CLEANED, "seed": rng.randrange(1 << 30), "begin": begin,
        "count": count, "boot": boot,
    }  # fmt: skip


def in_life(path: Path, log: Path, rng: random.Random, life: int, *, cleans: bool) -> dict[str, Any]:
    """For a process of a store that lives through power cuts. Each process cleans."""
    return given(path, log, rng, life * 1_000_000, boot=f"boot {life}")


def notes(log: Path) -> list[tuple[str, int, list[int]]]:
    """What was noted: the word, the owner, the numbers of messages."""
    if not log.exists():
        return []
    lines = (line.split() for line in log.read_text().splitlines())
    return [(word, int(owner), [int(number) for number in numbers]) for word, owner, *numbers in lines]


def _states(log: Path) -> dict[str, set[int]]:
    """The messages by the last that is known of them, after a look at each note: nobody had one that was settled, or
    that somebody had who wrote more notes later, and so lived."""
    known = notes(log)
    last = {owner: at for at, (_, owner, _) in enumerate(known)}
    states: dict[str, set[int]] = defaultdict(set)
    has: dict[int, int] = {}
    for at, (word, owner, numbers) in enumerate(known):
        for number in numbers:
            if word == "has":
                assert number not in states["settled"], f"message {number} came again"
                before = has.get(number)
                assert before is None or last[before] < at, (
                    f"message {number} was taken from its living owner"
                )
                has[number] = owner
            else:
                has.pop(number, None)
            states[word].add(number)
    return states


def check(path: Path, log: Path, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Claims all that is left, with the file of claims and without it. `more` are settings of the disk."""
    states = _states(log)
    for lost in (False, True):
        with cystore.open(path, **{**CLEANED, **more}) as store:
            store.configure(file_reserved_time_h=KEPT["file_reserved_time_h"])
            if lost:
                shutil.rmtree(path / FOLDER)
            owner = Owner(path)
            queue = ClaimedQueue(store, lambda: owner, "g", "T", 0)  # noqa: B023 - used at once
            queue.take_over()
            left: list[int] = []
            while claims := queue.claim(64):
                for claim in claims:
                    (message,) = store.get("T", 0, claim.queue_offset, 1).messages
                    left.append(int(bytes(message.body)))
            assert len(left) == len(set(left)), "a message is left twice"
            assert set(left) <= states["puts"], sorted(set(left) - states["puts"])
            again = set(left) & states["settled"]
            assert not again, f"settled, and there again: {sorted(again)}"
            gone = states["put"] - set(left) - states["settled"] - states["settles"]
            assert not gone, f"lost: {sorted(gone)}"
            results = [int(bytes(message.body)) for message in store.scan() if message.topic == "results"]
            assert len(results) == len(set(results)), "a message has two results"
            assert not set(results) & set(left), "a message that has a result is left"
            queue.close()
            owner.close()
    after_kills(path, {**KEPT, **more})


def killed_at(
    place: str,
    rng: random.Random,
    folder: Path,
    environment: Mapping[str, str],
    *,
    survivors: bool,
    planted: str = "",
) -> None:
    path, log = folder / "store", folder / "log"
    hits = rng.randint(1, PLACES[place])
    killed_beside(
        armed(environment, place, hits),
        WORK,
        lambda begin, count: given(path, log, rng, begin, count=count or COUNT),
        survivors=survivors,
        together=place != "claims.filled",  # the one that makes the file comes there
        planted=planted,
    )
    check(path, log)
