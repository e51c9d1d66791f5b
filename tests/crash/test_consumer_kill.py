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
from tests.support.aftermath import after_kills
from tests.support.process import Process
from tests.support.processes.places import in_sources
from tests.support.small_stores import SETTINGS

LEVELS = {**SETTINGS, "message_delay_level": "0s 1s 1s 1s"}
COUNT, QUEUES, TIME_S = 60, 3, 90
# Place: how often it may be passed before.
PLACES = {
    "consumers.table_begun": 1,
    "consumers.table_filled": 1,
    "consumers.row_written": 6,
    "consumers.taken": 3,
    "consumers.commit": 40,
    "consumers.sent_back": 5,
    "consumers.saving": 1,
    "consumers.saved": 1,
}
# Every tenth message is refused once. `given` is written before the work, `acking` and `acked` before and behind the
# acknowledgement.
CONSUME = """
import cystore, os
store = cystore.open(path, **settings)
out = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def note(word, message):
    place = f"{message.topic} {message.queue_id} {message.queue_offset}"
    os.write(out, f"{word} {bytes(message.body).decode()} {place}\\n".encode())
def consume(most):
    done = 0
    with store.consumer("billing", "orders", invisible_ms=30_000) as consumer:
        while done < most:
            messages = consumer.poll(1, timeout_s=1)
            if not messages and not store.stats()["delayed"] and not any(store.groups.lags().values()):
                return done
            for message in messages:
                done += 1
                note("given", message)
                if int(bytes(message.body)) % 10 == 3 and not message.reconsume_times:
                    consumer.retry(message, delay_level=1)
                    continue
                note("acking", message)
                if consumer.ack(message):
                    note("acked", message)
    return done
"""


def begin(process, path, log):
    process.do(CONSUME, path=str(path), log=str(log), settings=LEVELS)


def fill(store, start, count):
    for number in range(start, start + count):
        store.put("orders", b"%d" % number, queue_id=number % QUEUES)


def check(path, log, count):
    """Every message was acknowledged, and none was given after that."""
    acked: set[tuple[str, ...]] = set()
    last: dict[int, str] = {}
    for line in log.read_text().splitlines():
        word, name, *place = line.split()
        assert word != "given" or tuple(place) not in acked, f"given again: {line}"
        last[int(name)] = word
        if word == "acked":
            acked.add(tuple(place))
    with cystore.open(path, **LEVELS) as store:
        assert store.groups.lags() == {"billing": 0}
        assert store.deliver() == 0
        assert not store.get("%DLQ%billing", 0, 0).messages
    assert set(last) == set(range(count))
    # A process may die between its acknowledgement and its note; the offsets above say that these are settled.
    unknown = [name for name, word in last.items() if word != "acked"]
    assert all(last[name] == "acking" for name in unknown), unknown
    assert len(unknown) <= deaths(log), unknown
    after_kills(path, LEVELS)


def deaths(log):
    return int((log.parent / "deaths").read_text())


@pytest.fixture
def places(in_memory):
    (in_memory / "deaths").write_text("0")
    return in_memory / "store", in_memory / "log"


def test_these_are_all_places():
    assert set(PLACES) == {name for name in in_sources() if name.startswith("consumers.")}


@pytest.mark.sampled(2)
@pytest.mark.parametrize("place", PLACES)
def test_killed_at(place, places, rng, build_environment):
    path, log = places
    with cystore.open(path, **LEVELS) as store:
        fill(store, 0, COUNT)
    environment = {
        **build_environment("failpoints"),
        "CYSTORE_FAILPOINT": f"{place}:{rng.randint(1, PLACES[place])}",
    }
    with Process(environment) as victim, Process() as other:
        victim.send(CONSUME + "consume(1000); store.close()", path=str(path), log=str(log), settings=LEVELS)
        with pytest.raises(EOFError):
            victim.answer()
        (log.parent / "deaths").write_text("1")
        begin(other, path, log)
        other.do("consume(1000)")
    check(path, log, COUNT)


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
