"""Goal: readers of an elected master see nothing that a failover may take back. Method: a real group whose replicas
stand still, read by another process of the master's host; and a store whose confirmed position is set by hand, compared
with what all reads give without a bound."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from types import SimpleNamespace
from typing import Any

import pytest

import cystore
from cystore import clock
from cystore.derived.reading.reader import Reader
from cystore.engine.log.commit_log import CommitLog
from cystore.ha.epochs.confirmed_file import ConfirmedFile
from cystore.ha.epochs.history import History, keep_history
from cystore.ha.role import end_slave
from cystore.ha.status import ReplicationStatus, read_status, write_status
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import free_port, masters, members, slaves, until
from tests.support.process import Process
from tests.support.small_stores import BLANK_BYTES, LOG_BYTES, SETTINGS

OPENED = "import cystore; store = cystore.open(path, **settings)"
PUT = """
RESULT = {"content_type": "application/json", "content_encoding": "utf-8"}
def put(body, **more):
    return store.put("T", body, keys=("k",), tags="t", **more).physical_offset
def put_result(task_id):
    store.put("celery_results", b'{"status": "SUCCESS", "result": 7, "task_id": "%s"}' % task_id.encode(),
              keys=(task_id,), tags="SUCCESS", properties=RESULT)
def acknowledged():
    try:
        return put(b"first", flush="replicated") >= 0
    except cystore.StoreError:
        return False
"""
READ = """
import celery
app = celery.Celery(broker="memory://", backend=f"cystore://{path}?services=none")
consumer = store.consumer("g", "T", begin="first")
consumed = []
def bodies(messages):
    return [bytes(message.body).decode() for message in messages if message.topic == "T"]
def seen():
    consumed.extend(bodies(consumer.poll(10, timeout_s=0.01)))
    return {
        "get": bodies(store.get("T", 0, 0).messages),
        "query": bodies(store.query("T", "k"))[::-1],
        "query_many": bodies(store.query_many("T", ["k"])["k"])[::-1],
        "scan": bodies(store.scan()),
        "consumed": list(consumed),
    }
def waits(known, end):
    return store.wait("T", 0, known, 0.01), store.wait_log(end, 0.01), store.topics()["T"][0].max_offset > known
def state():
    return app.AsyncResult("task-1").state
"""


def settings(etcd: EtcdServer, name: str, **more: Any) -> dict[str, Any]:
    times = {"ha_lease_ms": 10_000, "ha_in_sync_lag_ms": 60_000, "slave_timeout_ms": 2_000}
    return members(etcd.url, name, **{**times, **more})


@pytest.mark.slow
@needs_etcd
def test_another_process_sees_a_record_when_the_replicas_have_it(tmp_path):
    with (
        EtcdServer(tmp_path / "etcd") as etcd,
        Process() as a,
        Process() as b,
        Process() as c,
        Process() as reader,
        Process() as follower,
        Process() as next_follower,
    ):
        members, port = {"a": a, "b": b, "c": c}, free_port()
        for name, member in members.items():
            more = {"ha_listen_port": port} if name == "a" else {}
            member.do(OPENED, path=str(tmp_path / name), settings=settings(etcd, name, **more))
            if name == "a":
                a.do(PUT)
                until(lambda: a.do("acknowledged()"))
        until(lambda: a.do("store.stats()['in_sync']") == 3)
        a.do("begun = put(b'first', flush='replicated')")
        reader.do(OPENED, path=str(tmp_path / "a"), settings={"services": "none"})
        first = a.do("len(list(store.scan()))") * ["first"]
        reader.do(READ)
        follower.do(OPENED, path=str(tmp_path / "follower"), settings=slaves(port))  # no member of the group
        follower.do("def bodies(): return [bytes(m.body).decode() for m in store.get('T', 0, 0).messages]")
        until(lambda: follower.do("bodies()") == first)
        known, end = len(first), reader.do("store.wrote_position")
        assert all(bodies == first for bodies in reader.do("seen()").values())
        b.stop()
        c.stop()
        try:
            a.do("at = put(b'second'); store.flush(); put_result('task-1')")
            assert a.do("store.wrote_position") <= a.do("at")
            for _ in range(3):
                assert all(bodies == first for bodies in reader.do("seen()").values())
                assert reader.do("waits(known, end)", known=known, end=end) == [False] * 3
                assert reader.do("state()") == "PENDING"
                until(lambda: follower.do("store.stats()['wrote']") == a.do("store.stats()['wrote']"))
                assert follower.do("bodies()") == first
            follower.kill()
            with cystore.open(tmp_path / "follower", **slaves(1)) as again:  # its master is away
                assert [bytes(m.body).decode() for m in again.get("T", 0, 0).messages] == first
            next_follower.do(OPENED, path=str(tmp_path / "follower"), settings=slaves(port))
            with cystore.open(tmp_path / "a", services="none", read_unconfirmed=True) as chosen:
                assert [bytes(m.body) for m in chosen.get("T", 0, len(first)).messages] == [b"second"]
        finally:
            b.go_on()
            c.go_on()
        assert reader.do("store.wait('T', 0, known, 30)", known=known)
        both = [*first, "second"]
        until(lambda: all(bodies == both for bodies in reader.do("seen()").values()))
        assert reader.do("waits(known, end)", known=known, end=end) == [True] * 3
        until(lambda: reader.do("state()") == "SUCCESS")
        # A replica hears of it from its master.
        until(lambda: b.do("[bytes(m.body).decode() for m in store.get('T', 0, 0).messages]") == both)
        until(lambda: next_follower.do("len(store.get('T', 0, 0).messages)") == len(both))


@needs_etcd
def test_reads_do_not_step_back_when_all_processes_are_killed(tmp_path):
    """Seen: the position was written once a second, so the last second's records were gone until the next election."""
    with cystore.open(tmp_path / "a", **SETTINGS) as first:  # a store with a log waits for no other one
        first.put("T", b"first")
    with EtcdServer(tmp_path / "etcd") as etcd, Process() as a:
        group = settings(etcd, "a", ha_lease_ms=30_000)
        a.do(OPENED, path=str(tmp_path / "a"), settings=group)
        a.do(PUT)
        until(lambda: a.do("acknowledged()"))
        for _ in range(20):
            a.do("put(b'x', flush='replicated')")
        seen = a.do("len(store.get('T', 0, 0, 1000).messages)")
        a.kill()
        with cystore.open(tmp_path / "a", **{**group, "services": ("ha",)}) as again:
            assert seen > 20 and len(again.get("T", 0, 0, 1000).messages) == seen


def test_a_member_that_lost_its_status_shows_nothing_before_the_group_has_a_master(tmp_path):
    group = {**settings(SimpleNamespace(url="http://127.0.0.1:1"), "m"), "services": ("ha",)}
    with cystore.open(tmp_path / "s", **{**group, "services": "none"}) as store:
        end_slave(store._attached().control)
        store.put("T", b"x")
        keep_history(store._attached().manifest, History("log").begun(7, 0))
    with cystore.open(tmp_path / "s", **group) as store:
        assert (
            store.get("T", 0, 0).messages == [] == list(store.scan())
            and not store.topics()["T"][0].max_offset
        )
    write_status(tmp_path / "s", ReplicationStatus(confirmed=1 << 20))
    with cystore.open(tmp_path / "s", **group) as store:
        assert len(store.get("T", 0, 0).messages) == 1


@pytest.fixture
def store(tmp_path):
    """A store of a group without a master: the test says what is confirmed."""
    group = {
        "broker_role": "elected",
        "ha_group": "g",
        "ha_member": "m",
        "ha_etcd_endpoints": "http://127.0.0.1:1",
    }
    with cystore.open(tmp_path / "s", **SETTINGS, **group) as store:
        end_slave(store._attached().control)
        yield store


def places(messages: Any) -> list[int]:
    return [message.physical_offset for message in messages]


def raw_places(result: Any) -> list[int]:
    return [int.from_bytes(result.raw[at + 28 : at + 36], "big") for at in result.record_offsets]


def every(store: cystore.MessageStore, queue_id: int, count: int, **asked: Any) -> list[int]:
    found, at = [], 0
    for _ in range(10_000):
        result = store.get("T", queue_id, at, count, **asked)
        found += raw_places(result) if asked.get("raw") else places(result.messages)
        if result.next_offset <= at:
            return found
        at = result.next_offset
    raise AssertionError("a get without end")


def test_each_read_ends_at_the_confirmed_position(store, rng):
    puts = [
        store.put(
            "T", bytes(rng.randrange(900)), queue_id=rng.randrange(3), keys=(f"k{rng.randrange(5)}",),
            tags=rng.choice("ab"),
        )
        for _ in range(120)
    ]  # fmt: skip
    control, everything = store._attached().control, list(store.scan())
    assert len(everything) == len(puts)
    control.confirming = 1
    ends = sorted({0, *(one.physical_offset + one.size_bytes for one in rng.sample(puts, 12)), control.wrote})
    for end in ends:
        control.raise_confirmed(end)
        below = [message for message in everything if message.physical_offset < end]
        assert store.wrote_position == end == store.stats()["confirmed"]
        assert places(store.scan()) == places(below) == places(store.scan(0, control.wrote))
        assert store.catch_up() <= end
        for queue_id, there in store.topics().get("T", {}).items():
            mine = [message for message in below if message.queue_id == queue_id]
            assert there.max_offset == len(mine)
            for count in (1, 7, 1000):
                assert every(store, queue_id, count) == places(mine)
                assert every(store, queue_id, count, raw=True) == places(mine)
                tagged = places(message for message in mine if message.tags == "a")
                assert every(store, queue_id, count, tags="a") == tagged
            beyond = store.get("T", queue_id, len(mine))
            status = "OFFSET_OVERFLOW_ONE" if mine else "NO_MESSAGE_IN_QUEUE"
            assert (beyond.status.name, beyond.next_offset) == (status, len(mine))
            assert not store.wait("T", queue_id, len(mine), 0)
            assert not mine or store.wait("T", queue_id, len(mine) - 1, 0)
        many = store.query_many("T", [f"k{number}" for number in range(5)], 4)
        for number in range(5):
            mine = [message for message in below if f"k{number}" in message.keys][::-1]
            for count in (1, 4, 1000):
                assert places(store.query("T", f"k{number}", count)) == places(mine[:count])
            assert places(many[f"k{number}"]) == places(mine[:4])
    assert places(store.scan()) == places(everything)


def test_offsets_and_lags_end_at_the_confirmed_position(store):
    """Seen: a group that began at "last" never got the messages that came in the place of those taken back."""
    puts = [store.put("T", b"%d" % number, queue_id=number % 2) for number in range(40)]
    control, whole_offset = store._attached().control, store.offset_by_time("T", 0, 1 << 50)
    begun = [store.consumer(name, "T", begin="first") for name in ("whole", "bounded")]
    for consumer in begun:
        consumer.close()
    for name in ("whole", "bounded"):
        for queue_id in (0, 1):
            store.groups.commit(name, "T", queue_id, 0)
    assert whole_offset == 19 and store.groups.lags() == {"bounded": 20 + 20, "whole": 20 + 20}
    end = puts[10].physical_offset
    control.raise_confirmed(end)
    control.confirming = 1
    assert store.offset_by_time("T", 0, 1 << 50) == 4 and store.offset_by_time("T", 1, 0) == 0
    rows = [row for row in store.groups.lag("whole") if row.topic == "T"]
    assert [(row.end_offset, row.lag) for row in rows] == [(5, 5), (5, 5)]
    assert store.groups.lags() == {"bounded": 10, "whole": 10}
    for to in ("last", clock.now_ms() + 60_000):
        assert store.groups.reset("bounded", "T", to) == {0: 5, 1: 5}
    with store.consumer("late", "T", begin="last") as late:
        got = late.poll(10, timeout_s=0)
        assert got == [] and [store.groups.offset("late", "T", number) for number in (0, 1)] == [5, 5]
    with cystore.open(store.path, **SETTINGS, read_unconfirmed=True) as chosen:
        assert chosen.groups.lags()["whole"] == 40 and chosen.offset_by_time("T", 0, 1 << 50) == 19
    control.raise_confirmed(control.wrote)
    assert store.offset_by_time("T", 0, 1 << 50) == 19 and store.groups.lags()["whole"] == 40


def test_the_lags_of_many_queues_dispatch_once(store, monkeypatch):
    """Seen: with a dispatcher that stood still, each queue took a second."""
    for queue_id in range(5):
        store.put("T", b"x", queue_id=queue_id)
        store.groups.commit("g", "T", queue_id, 0)
    control, turns = store._attached().control, []
    control.raise_confirmed(control.wrote)
    store.put("T", b"y")
    control.confirming = 1
    monkeypatch.setattr(Reader, "help_dispatch", lambda reader: turns.append(reader))
    store.groups.lags()
    assert len(turns) == 1
    store.groups.lag("g")
    assert len(turns) == 2


def test_a_dispatcher_begins_behind_a_blank_without_a_walk(store, monkeypatch):
    """Seen: a bound in the blank at the end of a file read all records of that file."""
    first = store.put("T", b"x" * (LOG_BYTES - 1_000))
    store.put("T", b"behind the blank" * 100)
    control = store._attached().control
    control.confirming = 1
    blank = first.physical_offset + first.size_bytes
    for number in range(3):
        store.dispatchers.add(f"d{number}", lambda messages: None).close()
    with monkeypatch.context() as patched:
        patched.setattr(CommitLog, "scan", lambda *_: pytest.fail("walks the file"))
        for number, (bound, position) in enumerate(
            [(blank, blank), (blank + BLANK_BYTES, LOG_BYTES), (LOG_BYTES - 1, LOG_BYTES)]
        ):
            control.raise_confirmed(bound)
            assert store.dispatchers.reset(f"d{number}", "last") == position
    taken: list[bytes] = []
    control.raise_confirmed(control.wrote)
    for number in range(3):
        with store.dispatchers.add(f"d{number}", lambda ms: taken.extend(bytes(m.body) for m in ms)):
            until(lambda seen=number: len(taken) > seen)
    assert taken == [b"behind the blank" * 100] * 3


def test_followers_of_the_log_begin_at_the_confirmed_position(store, monkeypatch):
    puts = [store.put("T", b"%d" % number) for number in range(30)]
    control = store._attached().control
    control.confirming = 1
    for number, end in ((10, puts[10].physical_offset), (11, puts[11].physical_offset + 1)):
        control.raise_confirmed(end)
        with store.dispatchers.add(f"d{number}", lambda messages: None, begin="last") as dispatcher:
            # Behind the last whole record, too, when the bound is inside of something that is none.
            assert dispatcher.position == puts[number].physical_offset and dispatcher.lag_bytes <= 1

    control.raise_confirmed(puts[12].physical_offset)
    ended: list[threading.Thread] = []
    shown_ends = type(store._attached().reader).shown_ends

    def shown(reader: Reader) -> Any:
        found = shown_ends(reader)

        def shown_end(slot: int) -> int:
            end = found(slot)
            ended.append(threading.current_thread())
            return int(end)

        return shown_end

    monkeypatch.setattr(type(store._attached().reader), "shown_ends", shown)

    async def first_of_tail() -> bytes:
        async with aclosing(store.aio.tail("T", 0)) as messages:
            asking = asyncio.ensure_future(anext(messages))
            while not ended:
                await asyncio.sleep(0)
            assert threading.main_thread() not in ended, "it may dispatch for a second"
            control.raise_confirmed(control.wrote)
            control.wake_committed()
            return bytes((await asyncio.wait_for(asking, 30)).body)

    assert asyncio.run(first_of_tail()) == b"12"


def test_nobody_is_asked_about_an_unconfirmed_half_message(store):
    known = store.begin("T", b"known")
    control, asked = store._attached().control, []
    control.raise_confirmed(control.wrote)
    control.confirming = 1
    other = store.begin("T", b"may be taken back")
    times = {"transaction_timeout_ms": 0, "transaction_check_interval_ms": 0}
    with cystore.open(store.path, **SETTINGS, **times) as checking:
        end_slave(control)
        checking.check_transactions(lambda half, message: asked.append(half.id))
        assert asked == [known.id]
        control.raise_confirmed(control.wrote)
        checking.check_transactions(lambda half, message: asked.append(half.id))
        assert sorted(asked[1:]) == sorted([known.id, other.id])


def test_a_query_behind_many_unconfirmed_messages_takes_few_looks(store, monkeypatch):
    control, looks, query = store._attached().control, [], Reader.query
    first = store.put("T", b"first", keys=("k",))
    control.raise_confirmed(first.physical_offset + first.size_bytes)
    control.confirming = 1
    store.put_many([cystore.Message(topic="T", body=b"x", keys=("k",)) for _ in range(200)])
    monkeypatch.setattr(
        Reader, "query", lambda *given, **named: looks.append(given) or query(*given, **named)
    )
    assert places(store.query("T", "k", 1)) == [first.physical_offset]
    assert len(looks) < 12


def test_what_a_store_decides_itself_sees_the_whole_log(store):
    store._attached().control.confirming = 1
    once = store.put_once("T", b"one", dedup_key="d", window_ms=60_000)
    again = store.put_once("T", b"two", dedup_key="d", window_ms=60_000)
    assert again.place == once.place and not again.is_new
    assert store.get("T", 0, 0).messages == [] and store.query("T", "d") == []
    assert places(store.whole.query("T", "d")) == [once.place.physical_offset]
    assert store.next_queue_offset("T", 0) == 1


def test_compaction_and_its_reads_end_at_the_confirmed_position(tmp_path, store):
    store.configure(compacted_topics="C")
    control = store._attached().control
    old = store.put("C", b"old", keys=("k",))
    control.raise_confirmed(old.physical_offset + old.size_bytes)
    control.confirming = 1
    store.put("C", b"new", keys=("k",))
    only = store.put("C", b"only", keys=("o",))
    store.flush()
    for _ in range(2):
        assert [bytes(message.body) for message in store.compacted("C")] == [b"old"]
        assert bytes(store.latest("C", "k").body) == b"old" and store.latest("C", "o") is None
        assert store.compact().covered == control.confirmed
    control.raise_confirmed(only.physical_offset + only.size_bytes)
    assert store.compact().covered == control.wrote
    assert [bytes(message.body) for message in store.compacted("C")] == [b"new", b"only"]


def test_a_store_that_leaves_its_group_shows_everything_to_processes_that_have_it_open(tmp_path, store):
    first = store.put("T", b"one")
    control = store._attached().control
    control.raise_confirmed(first.physical_offset + first.size_bytes)
    control.confirming = 1
    with cystore.open(tmp_path / "s", services="none", broker_role="async_master") as plain:
        plain.put("T", b"two")
        assert [bytes(message.body) for message in store.get("T", 0, 0).messages] == [b"one", b"two"]
        assert len(list(store.scan())) == 2 and store.wait("T", 0, 1, 0)


NOWHERE = "http://127.0.0.1:1"
GROUP = {"broker_role": "elected", "ha_group": "g", "ha_member": "m", "ha_etcd_endpoints": NOWHERE}


def test_a_store_that_was_a_master_shows_its_records_as_a_slave(tmp_path):
    """Seen: its reads ended where those of an earlier elected master's slave had ended, while the master was away."""
    with cystore.open(tmp_path / "s", **SETTINGS, broker_role="async_master") as master:
        confirmed = master.put("T", b"one").size_bytes
        master.put("T", b"two")
    kept = ConfirmedFile(tmp_path / "s")
    kept.write(confirmed)
    kept.close()
    write_status(tmp_path / "s", ReplicationStatus(confirmed=confirmed))
    with cystore.open(tmp_path / "s", **slaves(1)) as slave:
        assert len(slave.get("T", 0, 0).messages) == 2


@pytest.mark.parametrize("role", [members(NOWHERE, "m"), slaves(1)], ids=["member", "slave"])
def test_a_process_that_comes_later_bounds_no_reads(tmp_path, role):
    """Seen: beside a process that follows a master of an earlier release, reads ended at an old position for ever."""
    with cystore.open(tmp_path / "s", **SETTINGS, broker_role="async_master") as store:
        confirmed = store.put("T", b"one").size_bytes
        store.put("T", b"two")
    with cystore.open(tmp_path / "s", **{**role, "services": "none"}) as store, Process() as follower:
        keep_history(store._attached().manifest, History("log").begun(7, 0))
        write_status(tmp_path / "s", ReplicationStatus(confirmed=confirmed))
        take = "from cystore.ha.lock import ReplicationLock; lock = ReplicationLock(Path(path)); lock.take()"
        assert follower.do(f"from pathlib import Path; {take}", path=str(tmp_path / "s"))
        with cystore.open(tmp_path / "s", **{**role, "services": ("ha",)}) as later:
            assert len(later.get("T", 0, 0).messages) == len(store.get("T", 0, 0).messages) == 2


def test_a_process_leaves_the_work_of_a_new_role_to_others(tmp_path):
    """Seen: a process that had served slaves kept the lock, so no other one could work for the group."""
    state = lambda: read_status(tmp_path / "s").state  # noqa: E731
    with cystore.open(tmp_path / "s", **masters(free_port())):
        until(lambda: read_status(tmp_path / "s").listens)
        with cystore.open(tmp_path / "s", **members(NOWHERE, "m")) as member:
            until(lambda: state() == "etcd does not answer")
            control = member._attached().control
            control.confirming = 1
            with cystore.open(tmp_path / "s", **{**slaves(1), "services": ("ha",)}):
                until(lambda: read_status(tmp_path / "s").master == "127.0.0.1:1")
                assert control.confirming == 1  # the master says what is confirmed in a slave


def test_a_process_notices_that_its_store_becomes_a_member(tmp_path):
    with (
        cystore.open(tmp_path / "s", **SETTINGS) as plain,
        cystore.open(tmp_path / "s", read_only=True) as reader,
    ):
        first = plain.put("T", b"one", keys=("k",))
        with cystore.open(tmp_path / "s", services="none", **GROUP) as member:
            control = member._attached().control
            control.raise_confirmed(first.physical_offset + first.size_bytes)
            control.confirming = 1
            end_slave(control)
            plain.put("T", b"two", keys=("k",))
            for store in (plain, reader, member):
                assert [bytes(message.body) for message in store.get("T", 0, 0).messages] == [b"one"]
                assert [bytes(message.body) for message in store.query("T", "k")] == [b"one"]
                assert len(store.query_many("T", ["k"])["k"]) == len(list(store.scan())) == 1
                assert store.topics()["T"][0].max_offset == 1
            with cystore.open(tmp_path / "s", services="none", read_unconfirmed=True) as chosen:
                assert len(chosen.get("T", 0, 0).messages) == len(chosen.query("T", "k")) == 2
            assert len(plain.whole.query("T", "k")) == 2


def test_a_plain_store_keeps_the_reads_of_the_kernel(tmp_path):
    with cystore.open(tmp_path / "s", **SETTINGS) as plain:
        assert {"get", "read", "query"} <= plain.__dict__.keys()
