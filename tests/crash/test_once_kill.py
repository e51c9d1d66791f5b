"""Goal: processes that put once may be killed anywhere: each key has one message, and a put that answered tells its
place for ever. Method: several processes that put the same keys; some are killed, at random or behind the append; one
note, outside of the store, of each answer."""

from __future__ import annotations

import contextlib
import signal

import pytest

import cystore
from cystore.clock import monotonic_s
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

KEYS, TIME_S, HOUR_MS = 400, 90, 3_600_000
PUT = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for number in range(keys):
    place, _ = store.put_once("orders", b"%d" % number, dedup_key=f"k{number}", window_ms=hour_ms)
    os.write(out, f"{number} {place.physical_offset}\\n".encode())
"""


def given(path, log):
    return {"path": str(path), "log": str(log), "settings": SETTINGS, "keys": KEYS, "hour_ms": HOUR_MS}


def notes(log):
    return [tuple(map(int, line.split())) for line in log.read_text().splitlines()] if log.exists() else []


def check(path, log):
    with cystore.open(path, **SETTINGS) as store:
        found = {int(bytes(message.body)): message.physical_offset for message in store.scan()}
        assert len(list(store.scan())) == len(found) == KEYS
        assert {(number, at) for number, at in notes(log)} == set(found.items())
    after_kills(path, SETTINGS)


def test_this_is_the_only_place():
    assert {name for name in in_sources() if name.startswith("once.")} == {"once.put"}


def test_killed_behind_the_append(in_memory, rng, build_environment):
    path, log = in_memory / "store", in_memory / "log"
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"once.put:{rng.randint(1, KEYS)}"}
    with Process(environment) as victim, Process() as other:
        victim.send(PUT, **given(path, log))
        with pytest.raises(EOFError):
            victim.answer()
        other.do(PUT, **given(path, log))
    check(path, log)


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
