"""Goal: a process may be killed anywhere while it carries delayed messages forward (I7, I9): each is delivered once,
at its time, and the log is cleaned all the same. Method: processes of the build with failpoints that clean, killed at
each place and at random, beside others that live or alone. The due time of each message is in its body."""

from __future__ import annotations

import contextlib
import os
import signal

import pytest

from tests.support.aftermath import after_kills
from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.processes.shifted import ShiftedClock
from tests.support.small_stores import LOG_BYTES, SETTINGS

HOUR_MS = 3_600_000
DELAYED = {
    **SETTINGS,
    "message_delay_level": "1h 30h",
    "file_reserved_time_h": 2,
    "flush_delay_offset_interval_ms": 0,
    "max_clock_jump_s": 60,
}
POOL = {"transient_store_pool_enable": True, "transient_store_pool_size": 3}
COUNT = 60
# Place: how often it is passed before, at most. All of them are passed while messages are carried.
PLACES = {
    "carry.appended": 1,
    "carry.counted": 1,
    "deliver.begun": 1,
    "deliver.saved": 1,
    "append.intent": 1,
    "append.bytes_written": 50,
    "append.before_publish": 2,
    "append.published": 2,
    "append.next_set": 50,
    "append.blank_published": 1,
    "clean.published": 1,
    "clean.segment_gone": 3,
}
IN_EVERY_RUN = {place for place in PLACES if place.startswith(("carry.", "deliver."))} | {
    "append.bytes_written"
}
FILL = """
import cystore
store = cystore.open(path, **settings)
for n in range(count):
    put = store.put("T", b"", queue_id=n % 3, properties={"n": str(n)}, delay_level=1 + n % 2)
    due = put.store_timestamp_ms + (1 + 29 * (n % 2)) * 3_600_000
    dues[n] = due
    store.put("other", bytes(900))
store.dispatch(); store.flush()
"""
CHECK = """
found = [m for q in store.topics().get("T", {}) for m in store.get("T", q, 0, 100).messages]
left = store.topics().get("T", {})
numbers = sorted(int(m.properties["n"]) for m in found)
early = [m.properties["n"] for m in found if m.store_timestamp_ms < dues[int(m.properties["n"])]]
"""
OPEN = "import cystore; store = cystore.open(path, **settings)"
CLEAN = "while True: store.dispatch(); store.clean(); store.put('other', bytes(2000)); store.flush()"


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


@pytest.fixture
def turned(tmp_path):
    """The clock that all processes of a test live with."""
    return ShiftedClock(tmp_path)


def test_every_place_of_carrying_is_killed_at():
    assert {name for name in in_sources() if name.startswith("carry.")} == {
        place for place in PLACES if place.startswith("carry.")
    }


def deliver_in_time(process, clock):
    """Moves on in time and delivers; what is delivered last was due last."""
    for hours in (1, 10, 10, 10):
        clock.passed_ms += hours * HOUR_MS
        process.do("store.dispatch(); store.deliver(timeout_s=30); store.flush(); store.clean()")
    assert process.do("store.stats()['delayed']") == {}
    assert process.do("store.deliver()") == 0


def kill_a_carrier(path, clock, environment):
    """A process opens the store; three hours later it cleans, and is killed at the place that it is armed with."""
    with Process(clock.environment(environment)) as victim:
        victim.send(OPEN, path=str(path), settings=DELAYED)
        clock.passed_ms += 3 * HOUR_MS
        victim.send(CLEAN)
        with contextlib.suppress(EOFError):
            victim.answer()
        with pytest.raises(EOFError):
            victim.answer()
        assert victim.wait() == -signal.SIGKILL


@pytest.mark.sampled(5)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place", [pytest.param(p, marks=() if p in IN_EVERY_RUN else pytest.mark.slow) for p in PLACES]
)
def test_i9_a_kill_while_carrying(path, rng, turned, build_environment, place, survivors):
    failpoint = f"{place}:{rng.randrange(1, PLACES[place] + 1)}"
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(Process(turned.environment({**os.environ})))
        keeper.do("dues = {}\n" + FILL, path=str(path), settings=DELAYED, count=COUNT)
        if not survivors:
            keeper.do("store.close()")
        kill_a_carrier(path, turned, {**build_environment("failpoints"), "CYSTORE_FAILPOINT": failpoint})
        if not survivors:
            keeper.do("store = cystore.open(path, **settings)")
        keeper.do("store.dispatch(); store.flush(); store.clean()")
        assert keeper.do("store.stats()['min_physical_offset']") >= 2 * LOG_BYTES
        assert (
            keeper.do("set(store.stats()['delayed']) == {1, 2} and sum(store.stats()['delayed'].values())")
            == COUNT
        )
        keeper.do("store.configure(file_reserved_time_h=1000)")
        deliver_in_time(keeper, turned)
        keeper.do(CHECK)
        assert keeper.do("numbers") == list(range(COUNT))
        assert keeper.do("early") == []
        keeper.do("store.close()")
    check_closed(path, DELAYED)
    after_kills(path, DELAYED)


@pytest.mark.parametrize("passed", [1, pytest.param(30, marks=pytest.mark.slow)])
def test_i9_a_killed_batch_counts_before_it_is_dispatched(path, turned, build_environment, passed):
    """The killed carrier published its whole batch, and few queues count it. A carrier that looks for the last message
    of a run has to see them all, or later ones get before earlier ones."""
    with contextlib.ExitStack() as stack:
        keeper = stack.enter_context(Process(turned.environment({**os.environ})))
        keeper.do("dues = {}\n" + FILL, path=str(path), settings=DELAYED, count=COUNT)
        environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"append.next_set:{passed}"}
        kill_a_carrier(path, turned, environment)
        keeper.do("parts = store._attached(); parts.delivered.settle()")
        assert keeper.do("parts.control.dispatched < parts.control.wrote")
        assert keeper.do("sum(store.stats()['delayed'].values())") == COUNT
        keeper.do("store.close()")
    after_kills(path, DELAYED)


@pytest.mark.parametrize("more", [{}, POOL], ids=["", "pool"])
@pytest.mark.parametrize("rounds", [5, pytest.param(40, marks=pytest.mark.slow)])
def test_i9_several_carry_and_deliver_at_once_and_are_killed_at_random(path, rng, turned, rounds, more):
    """All of them put, deliver and clean while hours pass; in each round one dies, sometimes all. Nothing is lost,
    early or twice."""
    work = """
import random
rng = random.Random(seed)
while True:
    n += 1
    name = f"{seed}.{n}"
    put = store.put("T", b"", properties={"n": name}, keys=name, delay_level=2, flush="sync")
    print(name, put.store_timestamp_ms, file=noted, flush=True)
    for _ in range(rng.randrange(8)):
        store.put("other", bytes(1000))
    if rng.random() < 0.5:
        store.deliver(max_messages=rng.randrange(1, 30), timeout_s=5)
    if rng.random() < 0.3:
        store.dispatch()
        store.clean()
"""
    notes = path.parent / "notes"
    writer_group: list[Process] = []
    with contextlib.ExitStack() as stack:
        environment = turned.environment({**os.environ})
        watch = stack.enter_context(Process(environment))
        watch.do(OPEN, path=str(path), settings={**DELAYED, **more})
        for _ in range(rounds):
            while len(writer_group) < 3:
                process = stack.enter_context(Process(environment))
                writer_group.append(process)
                process.do(OPEN, path=str(path), settings={**DELAYED, **more})
                process.send(
                    "n = 0; noted = open(notes, 'a')\n" + work, notes=str(notes), seed=rng.randrange(1 << 30)
                )
            watch.do("store.wait_log(store.wrote_position + more, 60)", more=rng.randrange(20_000, 90_000))
            turned.passed_ms += 5 * HOUR_MS
            everybody = rng.random() < 0.3
            if everybody:
                watch.do("store.close()")
            for process in list(writer_group) if everybody else [rng.choice(writer_group)]:
                process.kill()
                writer_group.remove(process)
            if everybody:
                watch.do(OPEN)
        for process in writer_group:
            process.kill()
        watch.do("store.configure(file_reserved_time_h=1000)")
        for _ in range(4):
            turned.passed_ms += 10 * HOUR_MS
            watch.do("store.dispatch()\nwhile store.deliver(timeout_s=30): pass")
        assert watch.do("store.stats()['delayed']") == {}
        stamps = dict(line.split() for line in notes.read_text().splitlines() if line.count(" ") == 1)
        assert stamps
        minimum = watch.do("store.topics()['T'][0].min_offset")
        found = watch.do(
            "store.flush(); found, offset = [], store.topics()['T'][0].min_offset\n"
            "while (got := store.get('T', 0, offset, 1000)).messages:\n"
            "    found += [(m.properties['n'], m.store_timestamp_ms) for m in got.messages]; offset = got.next_offset\n"
            "found"
        )
        names = [name for name, _ in found]
        assert len(names) == len(set(names)), "delivered twice"
        assert minimum or set(stamps) <= set(names), "lost"
        early = [name for name, ms in found if name in stamps and ms < int(stamps[name]) + 30 * HOUR_MS]
        assert not early
        watch.do("store.close()")
    check_closed(path, DELAYED)
    after_kills(path, DELAYED)
