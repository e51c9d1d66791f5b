"""Goal: a consumer's process may be killed anywhere: every message is processed, none that was acknowledged is given
again, others take its queues over, nothing is stuck. Method: processes of the build with failpoints that are killed
at each place, and several that are killed at random while messages come; one log, outside of the store, of what was
given and acknowledged, in order."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

import cystore
from cystore.clock import monotonic_s
from tests.crash.episodes.consumers import COUNT, LEVELS, PLACES, begin, check, fill, killed_at
from tests.support.process import Process
from tests.support.processes.places import in_sources

TIME_S = 90


@pytest.fixture
def places(in_memory):
    (in_memory / "deaths").write_text("0")
    return in_memory / "store", in_memory / "log"


def test_these_are_all_places():
    assert set(PLACES) == {name for name in in_sources() if name.startswith("consumers.")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
def test_killed_at(place, in_memory, rng, build_environment):
    killed_at(place, rng, in_memory, build_environment("failpoints"))


@pytest.mark.parametrize("turns", [6, pytest.param(100, marks=pytest.mark.slow)])
def test_several_are_killed_at_random_while_messages_come(places, rng, turns):
    path, log = places
    with cystore.open(path, **LEVELS) as store, contextlib.ExitStack() as stack:
        put = 0
        workers = []

        def worker():
            process = stack.enter_context(Process())
            begin(process, path, log)
            process.send("consume(10**9)")
            workers.append(process)

        fill(store, put, COUNT)
        put += COUNT
        for _ in range(3):
            worker()
        for turn in range(turns):
            begun = (
                len(log.read_text().splitlines()) if log.exists() else 0
            )  # the workers are fast: before the puts
            fill(store, put, COUNT)
            put += COUNT
            # Killed in the middle: when some of the new ones were given out.
            seen, wanted, until_s = 0, rng.randrange(1, COUNT), monotonic_s() + TIME_S
            while seen < wanted and monotonic_s() < until_s:
                store.wait_log(store.wrote_position, 0.01)
                seen = (len(log.read_text().splitlines()) if log.exists() else 0) - begun
            assert seen >= wanted, "stuck"
            workers.pop(rng.randrange(len(workers))).signal(signal.SIGKILL)
            (log.parent / "deaths").write_text(str(turn + 1))
            worker()
        for process in workers:
            process.answer()  # each ends when nothing is left
        store.groups.save()
    check(path, log, put)
    assert os.path.getsize(log)
