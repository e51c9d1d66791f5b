"""Goal: a writer may be killed anywhere (I1, I2, I6): whoever lives continues without a restart, everything
acknowledged is there, queues have neither gap nor repeat, and the same holds when everybody died and the next open
recovers. Method: processes of the build with failpoints are killed at every named place of the append section, and
plain ones at random."""

from __future__ import annotations

import signal

import pytest

import cystore
from tests.support.checks import check, check_closed
from tests.support.process import Process, processes
from tests.support.processes.writers import acknowledged, start
from tests.support.small_stores import SETTINGS

IN_BOTH = (
    "append.intent",
    "append.claimed",
    "append.bytes_written",
    "append.before_publish",
    "append.published",
    "append.next_set",
    "append.intent_cleared",
)
# `put` runs append_one; what needs a queue, a blank or another segment is append_items', which put_many runs.
FAILPOINTS = [
    *(("put", name) for name in ("append.looked", "append.one_begun", *IN_BOTH)),
    *(("put_many", name) for name in ("append.many_begun", *IN_BOTH)),
    *(
        ("put_many", name)
        for name in (
            "append.queue_added",
            "append.blank_intent",
            "append.blank_written",
            "append.blank_published",
        )
    ),
]


@pytest.mark.sampled(10)
@pytest.mark.parametrize(("how", "failpoint"), FAILPOINTS)
@pytest.mark.parametrize("survivors", [True, False], ids=["somebody lives", "everybody died"])
def test_i1_i2_a_kill_inside_an_append(tmp_path, rng, build_environment, how, failpoint, survivors):
    """Seen: the build with failpoints ran append_items for a put, and never append_one, which nearly every put runs."""
    path, log = tmp_path / "store", tmp_path / "acknowledged"
    environment = build_environment("failpoints")
    passes = rng.randrange(1, 4)
    store = cystore.open(path, **SETTINGS) if survivors else None
    with Process({**environment, "CYSTORE_FAILPOINT": f"{failpoint}:{passes}"}) as process:
        start(process, path, log, rng.randrange(1 << 30))
        with pytest.raises(EOFError):
            process.do("work(2000, how=how)", how=how)
        assert process.wait() == -signal.SIGKILL
    store = store or cystore.open(path, **SETTINGS)
    with store:
        store.put("shared", b"goes on", keys=("after",))
        assert [bytes(m.body) for m in store.query("shared", "after")] == [b"goes on"]
        check(store, acknowledged(log))
    check_closed(path, SETTINGS)


@pytest.mark.parametrize(
    ("how", "failpoint"), [("put", "append.many_begun"), ("put_many", "append.one_begun")]
)
def test_each_call_runs_its_own_append_function(tmp_path, build_environment, how, failpoint):
    """Armed with the other one's first place, nobody dies: so the kills above were where they say. The queue is
    known, and has room."""
    environment = {**build_environment("failpoints")}
    with Process(environment) as process:
        start(process, tmp_path / "store", tmp_path / "acknowledged", 1)
        process.do("store.put('shared', b''); store.put_many([cystore.Message(topic='shared', body=b'')])")
        process.do("os.environ['CYSTORE_FAILPOINT'] = failpoint", failpoint=failpoint)
        put, many = "store.put('shared', b'')", "store.put_many([cystore.Message(topic='shared', body=b'')])"
        process.do(put if how == "put" else many)
        with pytest.raises(EOFError):
            process.do(many if how == "put" else put)


@pytest.mark.parametrize("passes", [1, 2, 3])
def test_a_batch_is_there_as_a_whole_or_not_at_all_when_everybody_died(tmp_path, build_environment, passes):
    """Recovery does not know the wrote position: it takes what stands in the log."""
    path = tmp_path / "store"
    failpoint = f"append.bytes_written:{passes}"
    with Process({**build_environment("failpoints"), "CYSTORE_FAILPOINT": failpoint}) as process:
        process.do(
            "import cystore; store = cystore.open(path, **settings)", path=str(path), settings=SETTINGS
        )
        with pytest.raises(EOFError):
            process.do("store.put_many([cystore.Message(topic='T', body=b'b')] * 3)")
    with cystore.open(path, **SETTINGS) as store:
        assert list(store.scan()) == []
    check_closed(path, SETTINGS)


def test_one_writer_after_another_is_killed_while_the_rest_goes_on(tmp_path, rng):
    """12 kills at moments that nobody chose, 4 writers at a time; async puts survive them all."""
    path, log = tmp_path / "store", tmp_path / "acknowledged"
    seed = 0
    with cystore.open(path, **SETTINGS) as store:
        for _ in range(3):
            with processes(4) as others:
                for process in others:
                    seed += 1
                    start(process, path, log, seed)
                for process in others:
                    process.send("work(100000)")
                until = store.stats()["put_count"] + rng.randrange(50, 1500)
                while store.stats()["put_count"] < until:
                    store.wait_log(store.wrote_position, 1)
                for process in others:
                    process.kill()
        store.put("shared", b"goes on")
        assert check(store, acknowledged(log)) > 150
    with cystore.open(path, **SETTINGS) as store:
        check(store, acknowledged(log))


def test_everybody_is_killed_again_and_again(tmp_path, rng):
    """Each time the next to open recovers, from files that the dead left as they were."""
    path, log = tmp_path / "store", tmp_path / "acknowledged"
    for turn in range(3):
        with processes(3) as others:
            for number, process in enumerate(others):
                start(process, path, log, 100 * turn + number)
            for process in others:
                process.send("work(100000)")
            size = log.stat().st_size if log.exists() else 0
            with cystore.open(path, read_only=True) as reader:
                begin = reader.wrote_position
                while reader.wrote_position < begin + rng.randrange(2_000, 40_000):
                    reader.wait_log(reader.wrote_position, 1)
            for process in others:
                process.kill()
            assert log.stat().st_size > size
        with cystore.open(path, read_only=True) as store:
            check(store, acknowledged(log))
    with cystore.open(path, **SETTINGS) as store:
        assert store.recovery.abnormal
        check(store, acknowledged(log))


def test_a_stopped_owner_of_the_append_lock_is_reported_and_not_robbed(tmp_path, build_environment):
    path, log = tmp_path / "store", tmp_path / "acknowledged"
    environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": "append.before_publish:3:stop"}
    with (
        cystore.open(path, os_page_cache_busy_timeout_ms=500, **SETTINGS) as store,
        Process(environment) as process,
    ):
        start(process, path, log, 1)
        process.send("work(20)")
        process.wait_stopped()
        before = store.stats()["wrote"]
        with pytest.raises(cystore.PageCacheBusyError, match="has held the append lock"):
            store.put("shared", b"waits")
        assert store.stats()["wrote"] == before
        process.go_on()
        process.answer()
        store.put("shared", b"goes on")
        assert check(store, acknowledged(log)) == 30
