"""Goal: I1, I2 and I6 when processes that come and go are killed and stopped at moments that nobody chose, with
nobody who stays. Method: short lives (attach, put, read, flush, leave) in several processes; a seeded generator says
who is killed or stopped after how many acknowledged puts; the dead are replaced at once. In between and at the end
all that was acknowledged must be there."""

from __future__ import annotations

import contextlib
import os
import random
import select
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checks import check, check_closed
from tests.support.process import Process
from tests.support.processes.writers import acknowledged
from tests.support.small_stores import SETTINGS, open_small

LIVES = """
import cystore, os, random
def lives():
    rng = random.Random(who)
    out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    n = 0
    while True:
        with cystore.open(path, **settings) as store:
            for _ in range(rng.randrange(1, 25)):
                n += 1
                key, topic, queue_id = f"{who}.{n}", rng.choice(["shared", "shared", f"T{n % 40}"]), n % 2
                flush = "sync" if rng.random() < 0.1 else "async"
                if rng.random() < 0.3:
                    message = cystore.Message(topic=topic, body=b"b" * 150, queue_id=queue_id, keys=(key,))
                    batch = [message] * 3
                    results = store.put_many(batch, flush=flush)
                else:
                    results = [store.put(topic, b"x" * rng.randrange(400), queue_id=queue_id, keys=(key,), flush=flush)]
                for r in results:
                    os.write(out, f"{topic} {queue_id} {r.queue_offset} {key}\\n".encode())
                os.write(beat, b".")
                what = rng.random()
                if what < 0.2:
                    assert store.query(topic, key)
                elif what < 0.3:
                    store.flush()
                elif what < 0.4:
                    assert store.get(topic, queue_id, results[0].queue_offset, 1).messages[0].keys == (key,)
"""


class Crowd:
    """Processes that live on one store, and a pipe that tells of each acknowledged put."""

    def __init__(
        self, path: Path, log: Path, size: int, rng: random.Random, stack: contextlib.ExitStack
    ) -> None:
        self._path, self._log, self._rng, self._stack = path, log, rng, stack
        self._reading, self._writing = os.pipe()
        stack.callback(os.close, self._reading)
        stack.callback(os.close, self._writing)
        self._born = 0
        self.members = [self._new() for _ in range(size)]

    def _new(self) -> Process:
        process = self._stack.enter_context(Process(keep=(self._writing,)))
        self._born += 1
        names = {"path": str(self._path), "log": str(self._log), "beat": self._writing, "who": self._born}
        # A stopped process may hold the append lock for a while.
        process.do(LIVES, settings={**SETTINGS, "os_page_cache_busy_timeout_ms": 60_000}, **names)
        process.send("lives()")
        return process

    def beats(self, count: int) -> None:
        """Returns after so many acknowledged puts, or when there are none any more (somebody who holds a lock is
        stopped)."""
        while count > 0 and select.select([self._reading], [], [], 0.5)[0]:
            count -= len(os.read(self._reading, count))

    def kill_one(self) -> None:
        place = self._rng.randrange(len(self.members))
        self.members[place].kill()
        self.members[place] = self._new()

    @contextlib.contextmanager
    def one_stopped(self) -> Iterator[None]:
        process = self._rng.choice(self.members)
        process.stop()
        yield
        process.go_on()

    def kill_all(self) -> None:
        for process in self.members:
            process.kill()


def cut_off(path: Path, log: Path, rng: random.Random, *, size: int, generations: int, kills: int) -> None:
    for _ in range(generations):
        with contextlib.ExitStack() as stack:
            crowd = Crowd(path, log, size, rng, stack)
            for _ in range(kills):
                crowd.beats(rng.randrange(1, 60))
                if rng.random() < 0.3:
                    with crowd.one_stopped():
                        crowd.beats(rng.randrange(1, 20))
                crowd.kill_one()
            crowd.kill_all()
        with open_small(path, read_only=True) as store:
            check(store, acknowledged(log))
    with open_small(path) as store:
        check(store, acknowledged(log))
    check_closed(path, SETTINGS)


def test_i1_i2_i6_lives_that_are_cut_off(in_memory, tmp_path, rng):
    cut_off(in_memory / "store", tmp_path / "acknowledged", rng, size=3, generations=2, kills=4)


@pytest.mark.slow
@pytest.mark.parametrize("turn", range(3))
def test_i1_i2_i6_many_lives_that_are_cut_off(in_memory, tmp_path, rng, turn):
    cut_off(in_memory / "store", tmp_path / "acknowledged", rng, size=4, generations=2, kills=25)
