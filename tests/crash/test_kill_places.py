"""Goal: a process may be killed at any place where what all share is half changed (I1, I2, I6): whoever lives
continues without a restart, and when everybody died the next open recovers; everything acknowledged is there. Method:
every named place outside of the append section (which has its own file), one kill each, with survivors and without;
then repairs that are killed themselves."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

import cystore
from cystore.engine.files.checkpoint import read_checkpoint
from tests.support.checks import check, check_closed
from tests.support.process import Process
from tests.support.processes.writers import acknowledged, arm, start
from tests.support.small_stores import SETTINGS, open_small

PUT = "work(4000)"
PUT_SYNC = "work(400, 'sync')"
FLUSH = "for n in range(40): work(5); store.flush()"
MANY_QUEUES = (
    "for n in range(700): acknowledge('Q', n, store.put('Q', b'', queue_id=n, keys=(f'q{n}',)), f'q{n}')"
)
# Place: what leads there, and how often it may be passed before.
PLACES = {
    "allocate.created": (PUT, 4),
    "allocate.reserved": (PUT, 6),
    "allocate.published": (PUT, 6),
    "allocate.slots_reserved": (MANY_QUEUES, 1),
    "files.made": (PUT, 8),
    "files.named": (PUT, 8),
    "control.queue_filled": (PUT, 8),
    "control.queue_counted": (PUT, 8),
    "control.bucket_read": (PUT, 8),
    "flush.leading": (PUT_SYNC, 20),
    "flush.synced": (PUT_SYNC, 20),
    "checkpoint.last_record_stored": (PUT_SYNC, 20),
    "checkpoint.checksum_stored": (PUT_SYNC, 20),
    "flush.watermark_stored": (PUT_SYNC, 20),
    "flush.published": (PUT_SYNC, 20),
    "flush.derived_synced": (FLUSH, 3),
    "flush.checkpoint_stored": (FLUSH, 3),
    "files.written": (FLUSH, 2),
    "files.backup_gone": (FLUSH, 2),
    "files.replaced": (FLUSH, 2),
    "dispatch.queue_entry": (PUT, 60),
    "dispatch.queue": (PUT, 60),
    "dispatch.index": (PUT, 60),
    "dispatch.record": (PUT, 60),
    "index.end_moved": (PUT, 60),
    "index.entry_written": (PUT, 60),
    "index.counted": (PUT, 60),
    "index.linked": (PUT, 60),
}
ATTACH_ALONE = (
    "attach.alone",
    "attach.recovered",
    "attach.marked",
    "attach.built",
    "attach.ready",
    "attach.shared",
)
DETACH_ALONE = (
    "detach.alone",
    "detach.dispatched",
    "detach.flushed",
    "detach.control_removed",
    "detach.done",
)
REPAIR = ("repair.begun", "repair.log_mended", "repair.settled", "repair.cleared")


def kill(process: Process, source: str) -> None:
    """Lets the process work until it is killed at the place that it is armed with."""
    with pytest.raises(EOFError):
        process.do(source)
    assert process.wait() == -signal.SIGKILL


def goes_on(store: cystore.MessageStore, log: Path) -> None:
    """Every verb works, and all that was acknowledged is there."""
    store.put("shared", b"goes on", keys=("after",), flush="sync")
    store.put_many(
        [cystore.Message(topic=topic, body=b"goes on", keys=("after",)) for topic in ("shared", "T0", "new")]
    )
    assert {bytes(m.body) for m in store.query("shared", "after")} == {b"goes on"}
    store.flush()
    assert store.stats()["flushed"] == store.stats()["wrote"]
    check(store, acknowledged(log))


@pytest.fixture
def path(in_memory):
    return in_memory / "store"


# test_dispatch_kill.py kills dispatchers there too, without a store around them.
KILLED_ELSEWHERE = ("dispatch.", "index.")


@pytest.mark.sampled(12)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
@pytest.mark.parametrize(
    "place",
    [pytest.param(p, marks=pytest.mark.slow if p.startswith(KILLED_ELSEWHERE) else ()) for p in PLACES],
)
def test_i1_i2_i6_a_kill_at(path, log, rng, victim, place, survivors):
    source, passes = PLACES[place]
    store = open_small(path) if survivors else None
    start(victim, path, log, rng.randrange(1 << 30))
    arm(victim, f"{place}:{rng.randrange(1, passes + 1)}")
    kill(victim, source)
    with store or open_small(path) as store:
        goes_on(store, log)
    check_closed(path, SETTINGS)
    with open_small(path, read_only=True) as store:
        check(store, acknowledged(log))


@pytest.mark.sampled(4)
@pytest.mark.parametrize("left", ["append.bytes_written", "append.published"])
@pytest.mark.parametrize("place", REPAIR)
@pytest.mark.parametrize(
    "survivors",
    [True, pytest.param(False, marks=pytest.mark.slow)],
    ids=["somebody lives", "everybody died"],
)
def test_i1_i2_a_repair_that_is_killed_is_done_by_the_next(
    path, log, rng, victim, build_environment, left, place, survivors
):
    store = open_small(path) if survivors else None
    with Process(build_environment("failpoints")) as repairer:
        start(repairer, path, log, 1)
        start(victim, path, log, 2)
        arm(victim, f"{left}:{rng.randrange(1, 30)}")
        arm(repairer, place)
        kill(victim, PUT)
        kill(repairer, PUT)
    with store or open_small(path) as store:
        goes_on(store, log)
    check_closed(path, SETTINGS)


def test_flush_needs_no_append_to_see_what_a_killed_one_published(path, log, victim):
    """Between the wrote position and the note of the last record: the next sync covers it, and says so in the
    checkpoint."""
    with open_small(path) as store:
        store.put("shared", b"first", flush="sync")
        start(victim, path, log, 1)
        arm(victim, "append.published")
        kill(victim, "store.put('shared', b'published, not acknowledged')")
        store.flush()
        assert store.stats()["flushed"] == store.stats()["wrote"]
        fields = read_checkpoint(path)
        assert (fields.watermark, fields.last_record) == (
            store.stats()["wrote"],
            [*store.scan()][-1].physical_offset,
        )
        goes_on(store, log)


def test_new_writer_repairs_where_only_a_reader_was_left(path, log, victim):
    start(victim, path, log, 1)
    victim.do("work(20)")
    with open_small(path, read_only=True) as reader:
        arm(victim, "append.next_set")
        kill(victim, PUT)
        count = len(list(reader.scan()))
        with open_small(path) as store:
            goes_on(store, log)
        assert len(list(reader.scan())) == count + 4


# ------------------------------------------------------------------------------------------- attach and detach


@pytest.mark.sampled(3)
@pytest.mark.parametrize("before", ["closed", "killed"])
@pytest.mark.parametrize("place", ATTACH_ALONE)
def test_i6_a_kill_while_attaching(path, log, victim, place, before):
    with Process() as earlier:
        start(earlier, path, log, 1)
        earlier.do("work(60)")
        if before == "closed":
            earlier.do("store.close()")
    victim.do("import os; os.environ['CYSTORE_FAILPOINT'] = place; import cystore", place=place)
    victim.send("cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
    assert victim.wait() == -signal.SIGKILL
    with open_small(path) as store:
        goes_on(store, log)
    check_closed(path, SETTINGS)


@pytest.mark.parametrize("place", ATTACH_ALONE)
def test_a_kill_while_attaching_to_nothing(path, log, victim, place):
    """The first open of a new store, and the one after it."""
    victim.do("import os; os.environ['CYSTORE_FAILPOINT'] = place; import cystore", place=place)
    victim.send("cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
    assert victim.wait() == -signal.SIGKILL
    with open_small(path) as store:
        goes_on(store, log)
    check_closed(path, SETTINGS)


def test_a_kill_while_joining(path, log, victim):
    with open_small(path) as store:
        victim.do("import os; os.environ['CYSTORE_FAILPOINT'] = 'attach.joining'; import cystore")
        victim.send("cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        assert victim.wait() == -signal.SIGKILL
        goes_on(store, log)
        with open_small(path) as other:
            other.put("shared", b"")
    check_closed(path, SETTINGS)


@pytest.mark.parametrize("place", DETACH_ALONE)
def test_i6_a_kill_while_detaching(path, log, victim, place):
    start(victim, path, log, 1)
    victim.do("work(60)")
    arm(victim, place)
    kill(victim, "store.close()")
    with open_small(path) as store:
        goes_on(store, log)
    check_closed(path, SETTINGS)


@pytest.mark.parametrize("place", ["detach.others_stay", "detach.done"])
def test_a_kill_while_leaving_others(path, log, victim, place):
    with open_small(path) as store:
        start(victim, path, log, 1)
        victim.do("work(60)")
        arm(victim, place)
        kill(victim, "store.close()")
        goes_on(store, log)
    check_closed(path, SETTINGS)


@pytest.mark.sampled(3)
@pytest.mark.parametrize("place", ["attach.alone", "attach.built", "attach.ready"])
@pytest.mark.parametrize("then", ["goes on", "is killed"])
def test_who_comes_while_the_first_one_stands_still_waits_and_gets_in(path, log, victim, place, then):
    """Nothing is taken from a stopped process; a dead one keeps nobody out."""
    with Process() as second:
        victim.do(
            "import os; os.environ['CYSTORE_FAILPOINT'] = place + ':1:stop'; import cystore", place=place
        )
        victim.send("store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS)
        victim.wait_stopped()
        second.send(
            "import cystore; store = cystore.open(path, **settings); store.put('shared', b'')",
            path=str(path),
            settings=SETTINGS,
        )
        if then == "goes on":
            victim.go_on()
            victim.answer()
            second.answer()
            assert victim.do("store.put('shared', b'').queue_offset") == 1
        else:
            victim.kill()
            second.answer()
        with open_small(path) as store:
            goes_on(store, log)


@pytest.mark.parametrize("place", ["flush.leading", "flush.watermark_stored"])
def test_i3_a_stopped_leader_is_waited_for_and_its_flush_counts(path, log, victim, place):
    with open_small(path, sync_flush_timeout_ms=300) as store:
        start(victim, path, log, 1)
        arm(victim, f"{place}:3:stop")
        victim.send("work(20, 'sync')")
        victim.wait_stopped()
        with pytest.raises(cystore.StoreTimeoutError, match=f"thread {victim.pid} is flushing"):
            store.put("shared", b"", flush="sync")
        victim.go_on()
        victim.answer()
        goes_on(store, log)


def test_a_stopped_dispatcher_holds_up_no_append_and_no_flush_of_the_log(path, log, victim):
    with open_small(path) as store:
        start(victim, path, log, 1)
        arm(victim, "dispatch.queue:5:stop")
        victim.send("work(60)")
        victim.wait_stopped()
        for _ in range(5):
            store.put("shared", b"", flush="sync")
        assert store.stats()["flushed"] == store.stats()["wrote"] > store.stats()["dispatched"]
        victim.go_on()
        victim.answer()
        goes_on(store, log)
        victim.do("store.close()")
    check_closed(path, SETTINGS)
