"""Goal: the process that runs a named dispatcher may be killed anywhere: no record is left out, at most the batch
that it had comes again, two processes never run it at once, and another one takes over. Method: processes of the
build with failpoints that are killed at each place, and several that are killed at random while messages come; one
note, outside of the store, before and behind each batch."""

from __future__ import annotations

import contextlib
import signal

import pytest

import cystore
from cystore.clock import monotonic_s
from tests.crash.episodes.dispatchers import BATCH, COUNT, PLACES, begin, check, fill, killed_at, lines_of
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

TIME_S = 90


@pytest.fixture
def places(in_memory):
    return in_memory / "store", in_memory / "log"


def test_these_are_all_places():
    assert set(PLACES) == {name for name in in_sources() if name.startswith("dispatcher.")}


@pytest.mark.parametrize("place", PLACES)
def test_killed_at(place, in_memory, rng, build_environment):
    killed_at(place, rng, in_memory, build_environment("failpoints"))


@pytest.mark.parametrize("turns", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_several_are_killed_at_random_while_messages_come(places, rng, turns):
    path, log = places
    with cystore.open(path, **SETTINGS) as store, contextlib.ExitStack() as stack:
        put, killed, workers = 0, set(), []

        def worker():
            process = stack.enter_context(Process())
            begin(process, path, log)
            workers.append(process)

        for _ in range(3):
            worker()
        for _ in range(turns):
            seen, wanted, until_s = (
                len(lines_of(log)),
                rng.randrange(1, 2 * COUNT // BATCH),
                monotonic_s() + TIME_S,
            )
            fill(store, put, COUNT)
            put += COUNT
            # Killed in the middle: when some of the new ones were given.
            while len(lines_of(log)) < seen + wanted and monotonic_s() < until_s:
                store.wait_log(store.wrote_position, 0.005)
            assert len(lines_of(log)) >= seen + wanted, "stuck"
            active = lines_of(log)[-1][1]
            victim = next(process for process in workers if str(process.pid) == active)
            if rng.random() < 0.2:  # one that only waits
                victim = rng.choice(workers)
            workers.remove(victim)
            killed.add(str(victim.pid))
            victim.signal(signal.SIGKILL)
            worker()
        assert workers[0].do("search.wait(60)")
    check(log, put, killed)
    after_kills(path, SETTINGS)
