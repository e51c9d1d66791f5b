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
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

COUNT, BATCH, TIME_S = 60, 7, 90
# Place: how often it may be passed before.
PLACES = {
    "dispatcher.made": 1,
    "dispatcher.taken": 1,
    "dispatcher.give": 8,
    "dispatcher.gave": 8,
    "dispatcher.moved": 8,
}
RUN = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def work(messages):
    numbers = " ".join(bytes(message.body).decode() for message in messages)
    os.write(out, f"begin {os.getpid()} {numbers}\\n".encode())
    os.write(out, f"end {os.getpid()} {numbers}\\n".encode())
search = store.dispatchers.add("search", work, max_count=batch)
"""


def given(path, log):
    return {"path": str(path), "log": str(log), "settings": SETTINGS, "batch": BATCH}


def begin(process, path, log):
    process.do(RUN, **given(path, log))


def fill(store, start, count):
    for number in range(start, start + count):
        store.put("orders", b"%d" % number)


def lines_of(log):
    return [line.split() for line in log.read_text().splitlines()] if log.exists() else []


def check(log, count, killed):
    """Batches follow each other without a gap; one begins before the end of another only behind a kill."""
    done, inside = 0, None
    for word, pid, *numbers in lines_of(log):
        first, last = int(numbers[0]), int(numbers[-1])
        if word == "begin":
            assert inside is None or inside in killed, f"{inside} and {pid} at once"
            assert first <= done, f"{done} to {first} are left out"
            assert first >= done - BATCH, f"{first} to {done} came again"
            inside = pid
        else:
            assert inside == pid
            done, inside = last + 1, None
    assert done == count


@pytest.fixture
def places(in_memory):
    return in_memory / "store", in_memory / "log"


def test_these_are_all_places():
    assert set(PLACES) == {name for name in in_sources() if name.startswith("dispatcher.")}


@pytest.mark.parametrize("place", PLACES)
def test_killed_at(place, places, rng, build_environment):
    path, log = places
    with cystore.open(path, **SETTINGS) as store:
        fill(store, 0, COUNT)
    environment = {
        **build_environment("failpoints"),
        "CYSTORE_FAILPOINT": f"{place}:{rng.randint(1, PLACES[place])}",
    }
    with Process(environment) as victim, Process() as other:
        killed = {str(victim.pid)}
        victim.send(RUN + "search.wait(60)", **given(path, log))
        with pytest.raises(EOFError):
            victim.answer()
        begin(other, path, log)
        assert other.do("search.wait(60)")
        assert other.do("search.close() and store.close()") is None
    check(log, COUNT, killed)
    with cystore.open(path, **SETTINGS) as store:
        assert store.dispatchers.states() == [("search", store.wrote_position, 0, False, 0, False)]
    after_kills(path, SETTINGS)


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
