"""Goal: with a pool of buffers, too, a process may be killed anywhere (I1, I2, I6): those that live continue without a
restart, and when everybody died the first process finds the buffers; everything acknowledged is there. Method: writers
and committers are killed at each named place of appends and commits, and at random beside others; then the process
that finds the buffers is killed."""

from __future__ import annotations

import signal

import pytest

import cystore
from cystore.engine.pool import buffers
from tests.support.checks import check, check_closed
from tests.support.process import Process, processes
from tests.support.processes.writers import acknowledged, arm, start
from tests.support.small_stores import SETTINGS

POOLED = {**SETTINGS, "transient_store_pool_enable": True, "transient_store_pool_size": 2}
COMMIT = "parts = store._attached(); parts.committer.commit_to(parts.control.log_end)"
# A query gives the newest messages of a key only, so each key is used once.
ENDLESSLY = f"""
import itertools
first = seed
for number in itertools.count():
    seed = f"{{first}}-{{number}}"
    work(rng.randrange(20))
    {COMMIT}
"""
WORK = f"for n in range(400):\n    work(7)\n    if n % 3 == 0: {COMMIT}"
# Place: how often it may be passed before.
PLACES = {
    "append.claimed": 30,
    "append.bytes_written": 30,
    "append.published": 30,
    "append.next_set": 30,
    "append.blank_written": 3,
    "append.blank_published": 3,
    "commit.begun": 6,
    "commit.copied": 8,
    "commit.published": 6,
    "pool.taken": 4,
    "pool.used": 3,
    "pool.zeroed": 3,
}


@pytest.fixture
def path(in_memory):
    path = in_memory / "store"
    yield path
    if not path.exists():
        return
    for left in buffers.SHARED_MEMORY.glob(f"{buffers.folder_of(path, '').name}*"):
        buffers.remove_buffers(left)


def goes_on(store: cystore.MessageStore, log) -> int:
    store.put("shared", b"goes on", keys=("after",))
    store.put_many([cystore.Message(topic="new", body=b"goes on", keys=("after",))])
    store.flush()
    assert [bytes(m.body) for m in store.query("shared", "after")] == [b"goes on"]
    assert store.stats()["flushed"] == store.stats()["wrote"] == store.stats()["appended"]
    return check(store, acknowledged(log))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize("place", PLACES)
def test_i1_i2_i6_a_kill_at(path, tmp_path, rng, build_environment, place, survivors):
    log = tmp_path / "acknowledged"
    store = cystore.open(path, **POOLED) if survivors else None
    with Process(build_environment("failpoints")) as victim:
        start(victim, path, log, rng.randrange(1 << 30), POOLED)
        arm(victim, f"{place}:{rng.randrange(1, PLACES[place] + 1)}")
        with pytest.raises(EOFError):
            victim.do(WORK)
        assert victim.wait() == -signal.SIGKILL
    with store or cystore.open(path, **POOLED) as store:
        goes_on(store, log)
    check_closed(path, POOLED)


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "place", ["pool.replayed:1", "pool.replayed:2", "attach.recovered:1", "attach.built:1"]
)
def test_i6_a_kill_of_the_process_that_finds_the_buffers(path, tmp_path, build_environment, place):
    log = tmp_path / "acknowledged"
    with Process() as writer:
        start(writer, path, log, 1, POOLED)
        writer.do("work(250)")
        writer.kill()
    with Process(build_environment("failpoints")) as finder:
        finder.do("import cystore, os; os.environ['CYSTORE_FAILPOINT'] = at", at=place)
        with pytest.raises(EOFError):
            finder.do("cystore.open(path, **settings)", path=str(path), settings=POOLED)
    with cystore.open(path, **POOLED) as store:
        assert goes_on(store, log) > 250
    check_closed(path, POOLED)


def test_writers_and_committers_are_killed_while_the_rest_goes_on(path, tmp_path, rng):
    """Kills at moments that nobody chose; in the end all of them."""
    log, seed = tmp_path / "acknowledged", 0
    store = cystore.open(path, **POOLED)
    for last in (False, False, True):
        with processes(3) as others:
            for process in others:
                seed += 1
                start(process, path, log, seed, POOLED)
            for process in others:
                process.send(ENDLESSLY)
            until = store.stats()["put_count"] + rng.randrange(50, 1500)
            while store.stats()["put_count"] < until:
                store.wait_log(store.wrote_position, 1)
            if last:
                store.close()
            for process in others:
                process.kill()
    with cystore.open(path, **POOLED) as store:
        assert goes_on(store, log) > 150
    check_closed(path, POOLED)
