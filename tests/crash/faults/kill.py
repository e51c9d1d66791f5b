"""Kill: SIGKILL for any of eight writers, at random moments and at every named place.

A case is one store. A crowd of eight is killed one by one, some at places that they are armed with, while the rest
continues; then single writers are killed at places whose turn it is. After each round everything is read back: by an
observer who was attached all the time and continues without a restart, or, where everybody died, by the next to open,
who recovers.
"""

from __future__ import annotations

import random
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import cystore
from tests.crash.matrix import Fault, Run
from tests.support.aftermath import after_check
from tests.support.checks import check, check_closed
from tests.support.processes.fork_server import ForkServer, environment, no_compiler
from tests.support.processes.forked_writers import BATCH
from tests.support.processes.places import PLACES, WHEN_WRITING, Place
from tests.support.small_stores import BLANK_BYTES, LOG_BYTES, SETTINGS, open_small

CROWD = 8
PLACES_A_CASE = 4
DIGITS = 4  # by which a key may be longer than the one before
STEPS = 4000  # a writer ends after so many: the place it is armed with is not on its way
ENDLESS = 1_000_000  # of those who are killed from outside


def check_batches(store: cystore.MessageStore) -> None:
    """Messages of one `put_many` stand side by side, and are all there unless the rest did not fit into the segment."""
    batches: dict[str, list[cystore.Message]] = {}
    for message in store.scan():
        if message.tags:
            batches.setdefault(message.tags, []).append(message)
    for tag, found in batches.items():
        if len(found) < BATCH:
            last = found[-1]
            room = -(last.physical_offset + last.size_bytes) % LOG_BYTES
            assert room < last.size_bytes + BLANK_BYTES + DIGITS, (tag, len(found), room)


class Scene:
    """One store, the fork server that writes to it, and perhaps an observer who stays."""

    def __init__(
        self, fork_server: ForkServer, rng: random.Random, path: Path, places: dict[str, Place]
    ) -> None:
        self.fork_server, self.rng, self.path, self.places = fork_server, rng, path, places
        self.when_writing = [*WHEN_WRITING, *(name for name in places if name not in PLACES)]
        self.kills = 0
        self._born = 0
        self._observer: cystore.MessageStore | None = None

    @contextmanager
    def played(self) -> Iterator[Scene]:
        try:
            yield self
            self._leave()
            check_closed(self.path, SETTINGS)
            with open_small(self.path, read_only=True) as store:
                check(store, self.fork_server.acknowledged)
            after_check(self.path, SETTINGS, self.fork_server.acknowledged)
        finally:
            if self._observer is not None:
                self._observer.close()

    def _leave(self) -> None:
        """Nobody is attached."""
        if self._observer is not None:
            self._observer.close()
            self._observer = None

    def _stay(self) -> cystore.MessageStore:
        if self._observer is None:
            self._observer = open_small(self.path)
        return self._observer

    def _attend(self, company: bool | None) -> None:
        """Somebody who stays, nobody, or by chance."""
        if self.rng.random() < 0.5 if company is None else company:
            self._stay()
        else:
            self._leave()

    def _fork(self, life: str, place: str = "", steps: int = STEPS) -> int:
        self._born += 1
        failpoint = f"{place}:{self.rng.randrange(self.places[place].passes) + 1}" if place else ""
        services = self.rng.choice(["none", "none", "all"])
        return self.fork_server.fork(
            life,
            failpoint,
            path=str(self.path),
            seed=self._born,
            settings={**SETTINGS, "services": services},
            steps=steps,
        )

    def _check(self) -> None:
        """Every verb works, and all that was acknowledged is there."""
        store = self._stay()
        store.put("shared", b"goes on", keys=("after",), flush="sync")
        store.put_many([cystore.Message(topic=topic, body=b"goes on") for topic in ("shared", "T0")])
        assert {bytes(m.body) for m in store.query("shared", "after")} == {b"goes on"}
        store.flush()
        assert store.stats()["flushed"] == store.stats()["wrote"]
        check(store, self.fork_server.acknowledged)
        check_batches(store)

    def crowd(self) -> None:
        """Eight writers, half of them armed; they are killed in any order, and each time the rest continues."""
        self._attend(None)
        armed = [
            self._fork("live", place, ENDLESS) for place in self.rng.sample(self.when_writing, CROWD // 2)
        ]
        plain = [self._fork("live", steps=ENDLESS) for _ in range(CROWD - len(armed))]
        others = armed + plain[:-1]
        self.rng.shuffle(others)
        for pid in (*others, plain[-1]):
            self.fork_server.news(self.rng.randrange(40))
            self.fork_server.kill(pid)
        assert self.fork_server.reap(*armed, *plain) == [-signal.SIGKILL] * CROWD
        self.kills += CROWD
        self._check()

    def at(self, name: str) -> None:
        """One writer is killed there, sometimes over what another one left."""
        place = self.places[name]
        self._attend(place.company)
        if place.before:
            self._killed_at(self.rng.choice(place.before))
        elif self.rng.random() < 0.3:
            self._killed_at(self.rng.choice(self.when_writing))
        self._killed_at(name)
        self._check()

    def _killed_at(self, name: str) -> None:
        (code,) = self.fork_server.reap(self._fork(self.places[name].life, name))
        assert code == -signal.SIGKILL, f"{name} was not reached, the writer ended with {code}"
        self.kills += 1


def run(run: Run) -> None:
    places = {**PLACES, **run.shape.places}
    names = sorted(places)
    with ForkServer(environment("failpoints")) as fork_server:
        for case in run.cases():
            turn = case.number * PLACES_A_CASE
            with run.case(case), case.in_memory() as folder:
                fork_server.begin()
                case.begin(folder / "store", SETTINGS)
                scene = Scene(fork_server, case.rng, folder / "store", places)
                with scene.played():
                    for name in (names[(turn + n) % len(names)] for n in range(PLACES_A_CASE)):
                        scene.at(name)
                    scene.crowd()
                case.faults = scene.kills
                run.tally(acknowledged=len(fork_server.acknowledged), at_named_places=scene.kills - CROWD)


FAULT = Fault(
    "kill",
    f"SIGKILL for any of {CROWD} writers, at random moments and at each of {len(PLACES)} named places",
    20_000,
    60,
    run,
    no_compiler,
)
