"""Goal: processes that put once may be killed anywhere: each key has one message, and a put that answered tells its
place for ever. Method: several processes that put the same keys; some are killed, at random or behind the append; one
note, outside of the store, of each answer."""

from __future__ import annotations

import contextlib
import signal

import pytest

import cystore
from cystore.clock import monotonic_s
from tests.crash.episodes.once import KEYS, PLACES, PUT, check, given, killed_at, notes
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

TIME_S = 90


def test_this_is_the_only_place():
    assert {name for name in in_sources() if name.startswith("once.")} == set(PLACES)


def test_killed_behind_the_append(in_memory, rng, build_environment):
    killed_at("once.put", rng, in_memory, build_environment("failpoints"))


@pytest.mark.parametrize("turns", [4, pytest.param(60, marks=pytest.mark.slow)])
def test_killed_at_random(in_memory, rng, turns):
    path, log = in_memory / "store", in_memory / "log"
    with cystore.open(path, **SETTINGS) as store, contextlib.ExitStack() as stack:
        for _ in range(turns):
            pair = [stack.enter_context(Process()) for _ in range(2)]
            begun, wanted, until_s = len(notes(log)), rng.randrange(1, KEYS), monotonic_s() + TIME_S
            for process in pair:
                process.send(PUT, **given(path, log))
            while len(notes(log)) < begun + wanted and monotonic_s() < until_s:
                store.wait_log(store.wrote_position, 0.002)
            assert len(notes(log)) >= begun + wanted, "stuck"
            for process in pair:
                process.signal(signal.SIGKILL)
        with Process() as last:
            last.do(PUT, **given(path, log))
    check(path, log)
