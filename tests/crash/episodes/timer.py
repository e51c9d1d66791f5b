"""The timer: a process that puts messages with a time of their own, cancels and moves them, delivers and cleans is
killed; another one does the same beside it, or after it. A log outside of the store has each call before it begins,
and its answer."""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any

import cystore
from cystore.clock import monotonic_s, now_ms
from tests.crash.episodes import armed, killed_beside
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

TIMED = {**SETTINGS, "flush_delay_offset_interval_ms": 0, "file_reserved_time_h": 0}
KEPT = {**TIMED, "file_reserved_time_h": 100_000}  # when the episode is over, a clean removes nothing
COUNT = 150  # messages of a process
TIME_S = 120
LATER_MS = 20_000  # of an episode that cleans: it is over before anything is due
# Place: how often it may be passed before.
PLACES = {
    "deliver.begun": 20,
    "deliver.appended": 10,
    "deliver.counted": 10,
    "deliver.saved": 20,
    "withdraw.appended": 15,
    "withdraw.counted": 15,
    "carry.appended": 3,
    "carry.counted": 3,
    "append.intent": 60,
    "append.bytes_written": 120,
    "append.published": 60,
    "files.made": 6,
    "files.named": 6,
}
WORK = """
import cystore, logging, os, random, time
logging.disable()
rng = random.Random(seed)
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(*words):
    os.write(out, (" ".join(map(str, words)) + "\\n").encode())
def soon(most):
    return int(time.time() * 1000) + rng.randrange(most)
for number in range(begin, begin + count):
    due = soon(300) + later
    note("puts", number, due)
    store.put("T", b"%d" % number, queue_id=number % 3, keys=(f"k{number}",), deliver_at_ms=due)
    note("put", number, due)
    other, what = rng.randrange(max(begin, number - 20), number + 1), rng.random()
    if what < 0.25:
        note("cancels", other, 0)
        note("cancelled", other, 0, int(store.cancel("T", f"k{other}")))
    elif what < 0.5:
        due = soon(600) + later
        note("moves", other, due)
        note("moved", other, due, int(store.reschedule("T", f"k{other}", due)))
    if not later and rng.random() < 0.4:
        store.deliver(max_messages=rng.randrange(1, 20))
    if later and rng.random() < 0.2:  # nothing is delivered yet, so a clean removes no delivered message
        store.put("other", bytes(4_000))
        store.dispatch()
        store.flush()
        store.clean()
"""


def given(
    path: Path, log: Path, rng: random.Random, begin: int, later: int, count: int = COUNT
) -> dict[str, Any]:
    return {
        "path": str(path), "log": str(log), "settings": TIMED, "seed": rng.randrange(1 << 30), "begin": begin,
        "count": count, "later": later,
    }  # fmt: skip


def in_life(path: Path, log: Path, rng: random.Random, life: int, *, cleans: bool) -> dict[str, Any]:
    """For a process of a store that lives through power cuts."""
    return given(path, log, rng, life * 1_000_000, LATER_MS if cleans else 0)


def notes(log: Path) -> list[list[str]]:
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def _expected(log: Path) -> tuple[dict[int, set[int]], dict[int, int]]:
    """For each message how often it may be in its topic, and the earliest time of that."""
    known: dict[int, list[list[str]]] = defaultdict(list)
    for words in notes(log):
        known[int(words[1])].append(words)
    times, earliest = {}, {}
    for number, calls in known.items():
        answers = {tuple(words[:3]): words for words in calls}
        put = any(words[0] == "put" for words in calls)
        may, dues = ({1} if put else {0, 1}), set()
        for words in calls:
            if words[0] == "cancels":
                done = answers.get(("cancelled", words[1], words[2]))
                if any(one[0] == "cancelled" and one[3] == "1" for one in calls):
                    may = {0}
                elif done is None or calls.count(words) > sum(one[0] == "cancelled" for one in calls):
                    may = may | {0}
            elif words[0] in ("puts", "moves"):
                dues.add(int(words[2]))
        times[number], earliest[number] = may, min(dues)
        moved = [int(words[2]) for words in calls if words[0] == "moved" and words[3] == "1"]
        unknown = [words for words in calls if words[0] == "moves" and ("moved", *words[1:]) not in answers]
        if moved and not unknown:
            earliest[number] = moved[-1]
    return times, earliest


def check(path: Path, log: Path, more: Mapping[str, Any] = MappingProxyType({})) -> None:
    """Delivers what is left, and compares the topic with the log of the calls. `more` are settings of the disk."""
    until_s = monotonic_s() + TIME_S
    found: Counter[int] = Counter()
    with cystore.open(path, **TIMED, **more) as store:
        while store.stats()["delayed"]:
            store.deliver(timeout_s=1)
            assert monotonic_s() < until_s, "stuck"
        times, earliest = _expected(log)
        begin = {queue_id: low for queue_id, (low, _) in store.topics().get("T", {}).items()}
        assert all(low == 0 for low in begin.values()), "the delivered messages are needed here"
        for queue_id in begin:
            at = 0
            while (got := store.get("T", queue_id, at, 100)).messages:
                at = got.next_offset
                for message in got.messages:
                    number = int(bytes(message.body))
                    found[number] += 1
                    assert message.queue_id == number % 3
                    assert message.store_timestamp_ms >= earliest[number], ("early", number)
        wrong = {n: (found[n], may) for n, may in times.items() if found[n] not in may}
        assert not wrong and set(found) <= set(times), wrong
        assert not list(store.pending())
        store.configure(file_reserved_time_h=KEPT["file_reserved_time_h"])
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
    hits, later = rng.randint(1, PLACES[place]), LATER_MS if place.startswith("carry.") else 0
    killed_beside(
        armed(environment, place, hits),
        WORK,
        lambda begin, count: given(path, log, rng, begin, later, count or COUNT),
        survivors=survivors,
        planted=planted,
    )
    check(path, log)


# ----------------------------------------------------------------------------------------- messages that come again

AGAIN_PLACES = {
    "deliver.begun": 12,
    "deliver.appended": 12,
    "deliver.counted": 12,
    "deliver.saved": 12,
    "append.bytes_written": 40,
    "append.published": 20,
}
EVERY_MS, SERIES, TIMES = 1000, 3, 60  # all of them are over when the first process begins
AGAIN_WORK = """
import cystore, logging, random
logging.disable()
rng = random.Random(seed)
with cystore.open(path, **settings) as store:
    while store.stats()["delayed"]:
        store.deliver(max_messages=rng.randrange(1, 8))
        if rng.random() < 0.1:
            store.put("other", bytes(2_000))
"""


def again_killed_at(
    place: str, rng: random.Random, folder: Path, environment: Mapping[str, str], *, survivors: bool
) -> None:
    """Each time of each series comes once, whoever was killed while it delivered."""
    path = folder / "store"
    with cystore.open(path, **KEPT) as store:
        first_ms = now_ms() - 2 * TIMES * EVERY_MS
        last_ms = first_ms + (TIMES - 1) * EVERY_MS
        for number in range(SERIES):
            store.put("T", b"%d" % number, queue_id=number, deliver_at_ms=first_ms, every_ms=EVERY_MS,
                      missed="all", until_ms=last_ms)  # fmt: skip
    work = {"path": str(path), "settings": {**KEPT, "flush_delay_offset_interval_ms": 0}}
    with (
        Process(armed(environment, place, rng.randint(1, AGAIN_PLACES[place]))) as victim,
        Process() as other,
    ):
        victim.send(AGAIN_WORK, **work, seed=rng.randrange(1 << 30))
        if survivors:
            other.do(AGAIN_WORK, **work, seed=rng.randrange(1 << 30))
        with suppress(EOFError):  # the other one may have left it nothing to do
            victim.answer()
        other.do(AGAIN_WORK, **work, seed=rng.randrange(1 << 30))
    with cystore.open(path, **KEPT) as store:
        for number in range(SERIES):
            found = [m for m in store.scan() if m.topic == "T" and bytes(m.body) == b"%d" % number]
            times = [int(m.properties["DELAY_AT"]) for m in found]
            assert times == list(range(first_ms, last_ms + 1, EVERY_MS)), number
        assert not list(store.pending())
    after_kills(path, KEPT)
