"""Goal: a slave has its master's log byte for byte, with queues and index, whatever was there before and whoever dies
in between. Method: two stores of small files on loopback; the process that follows, or serves, is killed at the steps
of a copy."""

from __future__ import annotations

import signal

import pytest

import cystore
from cystore import clock
from cystore.engine.manifest.manifest import look
from cystore.ha import service
from cystore.ha.status import read_status
from tests.support.ha.ha_pair import (
    check_equal,
    clean_segments,
    every,
    fill,
    free_port,
    masters,
    put_delayed,
    slaves,
    until,
    wait_log,
    wrote,
)
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

PLACES = (
    "append.intent",
    "copied.claimed",
    "copied.before_publish",
    "copied.published",
    "copied.next_set",
    "append.intent_cleared",
    "copied.queue_added",
    "append.blank_written",
    "append.blank_published",
    "allocate.published",
)


@pytest.fixture
def port() -> int:
    return free_port()


def test_a_record_that_is_longer_than_the_slaves_memory_comes_at_once(tmp_path, port, caplog):
    """Seen: the memory grew without the bytes that it had. The slave found zeros, and connected anew, with more memory,
    until the record fitted in."""
    large = {"mapped_file_size_commit_log_bytes": 1 << 24, "max_message_size_bytes": 1 << 23}
    with (
        cystore.open(tmp_path / "master", **masters(port, **large)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, **large)) as slave,
    ):
        fill(master, 10)
        master.put("T", bytes(range(256)) * 20_000)
        wait_log(slave, wrote(master))
        check_equal(master, slave)
    assert "not an intact record" not in caplog.text


def test_a_slave_follows_from_the_first_record_on(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 300)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            check_equal(master, slave)
            fill(master, 100, start=300)
            wait_log(slave, wrote(master))
            check_equal(master, slave)
        fill(master, 200, start=400)
        with cystore.open(
            tmp_path / "slave", services="all"
        ) as slave:  # the store knows its role and its master
            wait_log(slave, wrote(master))
            check_equal(master, slave)


def test_an_empty_slave_begins_where_a_cleaned_master_does(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port, file_reserved_time_h=0)) as master:
        fill(master, 300)
        clean_segments(master, 3)
        begin = master.stats()["min_physical_offset"]
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            assert slave.stats()["min_physical_offset"] == begin > 0
            check_equal(master, slave)
        with cystore.open(tmp_path / "slave", services="none") as slave:
            assert slave.stats()["min_physical_offset"] == begin
            assert slave.recovery.warnings == ()
            check_equal(master, slave)
            fill(master, 50, start=300)
        with cystore.open(tmp_path / "slave", services="all") as slave:
            wait_log(slave, wrote(master))
            check_equal(master, slave)


@pytest.mark.sampled(4)
@pytest.mark.parametrize("place", PLACES)
def test_the_process_that_follows_is_killed(tmp_path, port, rng, build_environment, place):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 30)
        passes = 1 if place in ("copied.queue_added", "append.intent_cleared") else rng.randrange(1, 4)
        environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:{passes}"}
        with Process(environment) as victim:
            opened = "import cystore; store = cystore.open(path, **settings)"
            victim.send(opened, path=str(tmp_path / "slave"), settings=slaves(port))
            if not place.startswith("copied.queue"):
                fill(master, 200, start=30)
            assert victim.wait() == -signal.SIGKILL
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            check_equal(master, slave)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("place", ["copied.before_publish", "copied.published", "copied.claimed"])
def test_another_process_follows_when_one_is_killed(tmp_path, port, build_environment, place):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        environment = {**build_environment("failpoints"), "CYSTORE_FAILPOINT": f"{place}:3"}
        with Process(environment) as victim, Process(build_environment("failpoints")) as other:
            opened = "import cystore; store = cystore.open(path, **settings)"
            settings = slaves(port)
            victim.do(opened, path=str(tmp_path / "slave"), settings=settings)
            until(lambda: victim.do("store.stats()['wrote']") == wrote(master))
            other.do(opened, path=str(tmp_path / "slave"), settings=settings)
            fill(master, 300, start=20)
            assert victim.wait() == -signal.SIGKILL
            assert other.do("store.wait_log(end - 1, 30)", end=wrote(master))
            other.do("store.close()")
        with cystore.open(tmp_path / "slave", services="none") as slave:
            check_equal(master, slave)


def test_another_process_serves_when_the_one_that_did_is_killed(tmp_path, port):
    opened = "import cystore; store = cystore.open(path, **settings)"
    settings = masters(port)
    with Process() as first:
        first.do(opened, path=str(tmp_path / "master"), settings=settings)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            first.do("for i in range(100): store.put('T', b'x' * i)")
            end = first.do("store.stats()['wrote']")
            wait_log(slave, end)
            with cystore.open(tmp_path / "master", **settings) as master:
                first.kill()
                fill(master, 100)
                wait_log(slave, wrote(master))
                check_equal(master, slave)


def test_a_slave_finds_its_master_among_several_hosts(tmp_path, port):
    """The second host has a replica, which becomes the master when the first host is gone."""
    other = free_port()
    hosts, more = f"127.0.0.1:{port},127.0.0.1:{other}", {**SETTINGS, "services": "all"}
    with (
        cystore.open(f"cystore://{hosts}{tmp_path}/reader", **more) as reader,
        cystore.open(tmp_path / "b", **slaves(port)) as b,
    ):
        with cystore.open(tmp_path / "a", **masters(port)) as a:
            fill(a, 30)
            for replica in (b, reader):
                wait_log(replica, wrote(a))
            until(lambda: read_status(reader.path).connected)
            with pytest.raises(cystore.StoreIsSlaveError, match=f"a slave of 127.0.0.1:{port}: "):
                reader.put("T", b"x")
        b.close()
        assert len(list(reader.scan())) == 30, "it answers while no host is the master"
        with cystore.open(tmp_path / "b", **masters(other)) as b:
            fill(b, 30, start=30)
            wait_log(reader, wrote(b))
            check_equal(b, reader)
            until(lambda: read_status(reader.path).master == f"127.0.0.1:{other}")
            with pytest.raises(cystore.StoreIsSlaveError, match=f"a slave of 127.0.0.1:{other}: "):
                reader.put("T", b"x")


def test_a_slave_asks_its_master_again_before_another_host(tmp_path, monkeypatch):
    asked: list[str] = []
    answers = iter([False, False, True, False, False])  # does it connect?

    class OneTurn:
        def __init__(self, *parts: object, **_more: object) -> None:
            self.master, self.is_connected, self.epoch, self.masters_end = parts[4], False, 0, -1
            self.greeting_s = 0.0

        def turn(self) -> int:
            if self.is_connected:
                self.is_connected = False
                raise ConnectionResetError("the master ends")
            asked.append(self.master)
            self.is_connected = next(answers)
            if not self.is_connected:
                raise ConnectionRefusedError("nobody there")
            return 0

        close = turn

    monkeypatch.setattr(service, "Slave", OneTurn)
    settings = {**SETTINGS, "broker_role": "slave", "ha_master_address": "a:1,b:2"}
    with cystore.open(tmp_path / "s", **settings) as store:
        parts = store._attached()
        work = service.Replication(
            parts.control, parts.commit_log, parts.manifest, parts.cleaner.holds, parts.appender, parts.config
        )
        while len(asked) < 5:
            work.run_once()
    assert asked == ["a:1", "b:2", "a:1", "a:1", "b:2"]


def test_a_slave_refuses_puts_in_every_process(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)),
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        for write in (
            lambda: slave.put("T", b"x"),
            lambda: slave.put("T", b"x", keys=("k",), flush="sync"),
            lambda: slave.put_many([cystore.Message(topic="T", body=b"x")]),
        ):
            with pytest.raises(cystore.StoreIsSlaveError, match=f"127.0.0.1:{port}"):
                write()
        with cystore.open(tmp_path / "slave") as plain, pytest.raises(cystore.StoreIsSlaveError):
            plain.put("T", b"x")
        assert wrote(slave) == 0
    with cystore.open(tmp_path / "slave", broker_role="async_master") as promoted:
        promoted.put("T", b"x")
    with cystore.open(tmp_path / "slave") as again:
        again.put("T", b"y")
        assert len(list(again.scan())) == 2


def test_a_slave_that_becomes_a_master_delivers_nothing_again(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            put_delayed(master, 5)
            until(lambda: len(every(master, "D", 0, 0)) == 5)
            wait_log(slave, wrote(master))
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            put_delayed(master, 5)
            until(lambda: len(every(master, "D", 0, 0)) == 10)
            wait_log(slave, wrote(master))
    with cystore.open(tmp_path / "slave", services="all", broker_role="async_master") as promoted:
        put_delayed(promoted, 1)  # due after all that would be delivered again
        assert len(until(lambda: (found := every(promoted, "D", 0, 0))[10:] and found)) == 11


def test_a_slave_cleans_what_its_master_delivered(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, file_reserved_time_h=0)) as slave,
    ):
        put_delayed(master, 5)
        until(lambda: len(every(master, "D", 0, 0)) == 5)
        fill(master, 300)
        wait_log(slave, wrote(master))
        clean_segments(slave, 3)


def test_a_slave_has_the_light_queues_of_its_master(tmp_path, port):
    """And continues their queue offsets when it becomes a master (I2)."""
    light = {"enable_lmq": True, "enable_multi_dispatch": True}
    names = ("%LMQ%a", "%LMQ%b")

    def put(store: cystore.MessageStore, number: int) -> None:
        queues = names if number % 3 else names[:1]
        store.put("T", b"%d" % number, properties={"INNER_MULTI_DISPATCH": ",".join(queues)})

    with cystore.open(tmp_path / "master", **masters(port), **light) as master:
        for number in range(60):
            put(master, number)
        with cystore.open(tmp_path / "slave", **slaves(port), **light) as slave:
            wait_log(slave, wrote(master))
            for number in range(60, 90):
                put(master, number)
            assert slave.wait("%LMQ%a", 0, 89, timeout_s=60)
            wait_log(slave, wrote(master))
            check_equal(master, slave)
            assert slave.topics() == master.topics()
    with cystore.open(tmp_path / "slave", broker_role="async_master") as promoted:
        put(promoted, 91)
        bodies = [bytes(m.body) for at in (0, 32, 64) for m in promoted.get("%LMQ%b", 0, at).messages]
        assert bodies == [b"%d" % number for number in (*range(90), 91) if number % 3]


def test_a_slave_that_diverged_is_cut_at_the_last_common_record(tmp_path, port, rng, caplog):
    """The log was in two hands: the slave was opened as a master, and its own master took puts too."""
    common, own, new = rng.randrange(1, 90), rng.randrange(1, 90), rng.randrange(0, 90)
    settings = masters(port)
    with cystore.open(tmp_path / "master", **settings) as master:
        fill(master, common)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, end := wrote(master))
    with cystore.open(tmp_path / "slave", **SETTINGS, broker_role="async_master") as other:
        for number in range(own):
            other.put("T0", b"own %d" % number + b"." * (number * 37 % 700))
        others_end = wrote(other)
    with cystore.open(tmp_path / "master", **settings) as master:
        fill(master, new, start=common)
        refusing = slaves(port)
        with cystore.open(tmp_path / "slave", **refusing) as slave:
            until(lambda: "ha_truncate_diverged=True truncates this log" in caplog.text)
            refused = slave._attached()
            assert not refused.control.handover and wrote(slave) == others_end
        cutting = slaves(port, ha_truncate_diverged=True)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            until(slave.asked_to_leave)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            fill(master, 20, start=500)
            wait_log(slave, wrote(master))
            check_equal(master, slave)
        (kept,) = (tmp_path / "slave" / "quarantine").glob("commitlog-*")
        assert kept.name.startswith(f"commitlog-{end:020}-") and b"own 0" in kept.read_bytes()


def test_a_slave_that_diverged_says_what_truncates_it(tmp_path, port, caplog):
    with cystore.open(tmp_path / "slave", **SETTINGS) as other:
        fill(other, 50)
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        master.put("T", b"x")
        until(lambda: "ha_truncate_diverged=True truncates this log" in caplog.text)
        assert not slave.asked_to_leave()
    with (
        cystore.open(tmp_path / "master", **masters(port)),
        cystore.open(tmp_path / "slave", **slaves(port, ha_truncate_diverged=True)) as slave,
    ):
        until(lambda: "they have no record in common" in caplog.text)
        assert not slave.asked_to_leave() and len(list(slave.scan())) == 50


def test_a_promoted_slave_goes_on_with_the_timer(tmp_path, port):
    """What its master delivered or cancelled is not delivered again; what waits is, and can be cancelled."""
    began_ms = clock.now_ms()
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        for number in range(5):
            master.put("D", b"%d" % number, keys=(f"k{number}",), delay_ms=1)
        for key in "abcd":
            master.put("D", key.encode(), keys=(key,), deliver_at_ms=began_ms + 3_600_000)
        until(lambda: len(every(master, "D", 0, 0)) == 5)
        assert master.cancel("D", "a")
        assert master.reschedule("D", "b", began_ms + 7_200_000)
        wait_log(slave, wrote(master))
        assert [m.keys for m in slave.pending("D")] == [("c",), ("d",), ("b",)]
        assert look(tmp_path / "slave").facts.major == 2, "earlier versions are kept out"
        with pytest.raises(cystore.StoreError, match="master"):
            slave.cancel("D", "c")
    with cystore.open(tmp_path / "slave", services="all", broker_role="async_master") as promoted:
        assert [m.keys for m in promoted.pending("D")] == [("c",), ("d",), ("b",)]
        assert promoted.cancel("D", "c") and promoted.reschedule("D", "d", 1)
        found = until(lambda: (found := every(promoted, "D", 0, 0))[5:] and found)
        assert sorted(bytes(m.body) for m in found) == [b"0", b"1", b"2", b"3", b"4", b"d"]
