"""Goal: a put with flush="replicated" returns when a slave has the message, in every process of the master's store,
and says truly why not otherwise. Method: a slave that follows, that stands still, and that is gone."""

from __future__ import annotations

import pytest

import cystore
from cystore.ha.connection import SlaveConnection
from tests.support.ha.ha_pair import (
    check_equal,
    clean_segments,
    fill,
    free_port,
    masters,
    slaves,
    until,
    wait_log,
    wrote,
)
from tests.support.process import Failed, Process

OPENED = "import cystore; store = cystore.open(path, **settings)"


@pytest.fixture
def port() -> int:
    return free_port()


def followed(store: cystore.MessageStore) -> None:
    """Waits until a slave follows."""

    def does() -> bool:
        try:
            store.put("T", b"x", flush="replicated")
        except (cystore.SlaveNotAvailableError, cystore.FlushSlaveTimeoutError):
            return False
        return True

    until(does)


def test_a_replicated_put_returns_when_the_slave_has_it(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        followed(master)
        for number in range(50):
            put = master.put("T", b"x" * number, flush="replicated")
            assert wrote(slave) >= put.physical_offset + put.size_bytes
        batch = [cystore.Message(topic="T", body=b"y") for _ in range(300)]
        last = master.put_many(batch, flush="replicated")[-1]
        assert wrote(slave) >= last.physical_offset + last.size_bytes
        check_equal(master, slave)


def test_a_slave_counts_before_it_gets_the_log(tmp_path, port, monkeypatch):
    """Seen on a busy machine: the slave had all of the log, and a put said that no slave is connected."""
    counted, send = [], SlaveConnection.send

    def told(connection: SlaveConnection) -> int:
        if connection.is_following:
            counted.append(master._attached().control.replicas)
        return send(connection)

    monkeypatch.setattr(SlaveConnection, "send", told)
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill(master, 20)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            assert counted and set(counted) == {1}


def test_a_process_that_serves_no_slaves_waits_for_them_too(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
        Process() as other,
    ):
        followed(master)
        other.do(OPENED, path=str(tmp_path / "master"), settings={"services": "none"})
        for _ in range(20):
            end = other.do("p = store.put('T', b'x', flush='replicated'); p.physical_offset + p.size_bytes")
            assert wrote(slave) >= end


def test_the_default_of_a_sync_master_waits(tmp_path, port):
    settings = masters(port, broker_role="sync_master")
    with cystore.open(tmp_path / "master", **settings) as master:
        with pytest.raises(cystore.SlaveNotAvailableError) as refused:
            master.put("T", b"alone")
        (kept,) = refused.value.results
        assert bytes(master.read(kept.physical_offset).body) == b"alone"
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            followed(master)
            put = master.put("T", b"x")
            assert wrote(slave) >= put.physical_offset + put.size_bytes
            master.put("T", b"x", flush="async")
    with cystore.open(tmp_path / "master") as again, pytest.raises(cystore.SlaveNotAvailableError):
        again.put("T", b"x")  # the store knows that it is a sync_master


def test_a_slave_that_stands_still_is_a_timeout(tmp_path, port):
    settings = masters(port, slave_timeout_ms=200)
    with cystore.open(tmp_path / "master", **settings) as master, Process() as follower:
        follower.do(OPENED, path=str(tmp_path / "slave"), settings=slaves(port))
        followed(master)
        follower.stop()
        with pytest.raises(cystore.FlushSlaveTimeoutError, match="slave_timeout_ms") as late:
            master.put("T", b"late", flush="replicated")
        (kept,) = late.value.results
        assert bytes(master.read(kept.physical_offset).body) == b"late"
        with pytest.raises(cystore.FlushSlaveTimeoutError) as late:
            master.put_many(
                [cystore.Message(topic="T", body=b"1"), cystore.Message(topic="T", body=b"2")],
                flush="replicated",
            )
        assert [bytes(master.read(one.physical_offset).body) for one in late.value.results] == [b"1", b"2"]
        follower.go_on()
        followed(master)


def test_a_slave_that_is_far_behind_is_not_waited_for(tmp_path, port):
    settings = masters(port, ha_slave_fallbehind_max_bytes=10_000)
    with cystore.open(tmp_path / "master", **settings) as master, Process() as follower:
        follower.do(OPENED, path=str(tmp_path / "slave"), settings=slaves(port))
        followed(master)
        follower.stop()
        fill(master, 100)
        with pytest.raises(cystore.SlaveNotAvailableError, match="ha_slave_fallbehind_max_bytes") as behind:
            master.put("T", b"x", flush="replicated")
        assert len(behind.value.results) == 1
        follower.go_on()
        followed(master)


def test_a_slave_that_is_gone_is_not_available(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        with cystore.open(tmp_path / "slave", **slaves(port)):
            followed(master)

        def refused() -> bool:
            try:
                master.put("T", b"x", flush="replicated")
            except cystore.SlaveNotAvailableError as error:
                return len(error.results) == 1
            except cystore.FlushSlaveTimeoutError:
                return False
            return False

        until(refused)


def test_a_put_whose_epoch_ended_before_it_was_replicated_may_be_cut(tmp_path):
    with cystore.open(tmp_path / "master") as master:
        master._attached().control.in_sync_needed = 1  # as an elected master leaves it
        with pytest.raises(cystore.FlushSlaveTimeoutError, match="may be cut") as ended:
            master.put("T", b"x", flush="replicated")
        assert len(ended.value.results) == 1


def test_a_word_that_is_no_flush_is_refused(tmp_path):
    with cystore.open(tmp_path / "master") as master:
        for wrong in ("replicate", "", 1):
            with pytest.raises(cystore.MessageIllegalError, match="flush"):
                master.put("T", b"x", flush=wrong)


def test_the_cleaning_keeps_what_a_slave_that_is_away_needs(tmp_path, port):
    settings = masters(port, file_reserved_time_h=0)
    with cystore.open(tmp_path / "master", **settings) as master:
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            fill(master, 100)
            wait_log(slave, wrote(master))
            until(lambda: "ha-slaves" in master.holds() and master.holds()["ha-slaves"].physical_offset > 0)
            end = wrote(slave)
        fill(master, 300, start=100)
        master.clean()
        assert 0 < master.stats()["min_physical_offset"] <= end
        with cystore.open(tmp_path / "slave", services="all") as slave:
            wait_log(slave, wrote(master))


def test_the_cleaning_keeps_no_more_than_the_limit(tmp_path, port, caplog):
    settings = masters(port, file_reserved_time_h=0, ha_hold_bytes_max=20_000)
    with cystore.open(tmp_path / "master", **settings) as master:
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            fill(master, 30)
            wait_log(slave, wrote(master))
            until(lambda: "ha-slaves" in master.holds())
        fill(master, 400, start=100)
        until(lambda: "kept no longer" in caplog.text and "ha-slaves" not in master.holds())
        clean_segments(master, 4)


def test_failed_processes_tell(tmp_path, port):
    with Process() as other:
        other.do(OPENED, path=str(tmp_path / "master"), settings={"services": "none"})
        with pytest.raises(Failed, match="SlaveNotAvailableError"):
            other.do("store.put('T', b'x', flush='replicated')")


def test_the_kernel_waits_for_the_slave_by_itself(tmp_path, port, monkeypatch):
    """With and without a sync; the policy is for what is rare."""
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        followed(master)
        master.put("T", b"names the segment", flush="sync")
        policy = master._attached().appender.policy
        master._attached().flusher.commits.slice_ms = 60_000
        monkeypatch.setattr(policy, "reach", lambda *_: pytest.fail("the policy was asked"))
        for number in range(50):
            put = master.put("T", b"x" * number, flush="replicated")
            assert wrote(slave) >= put.physical_offset + put.size_bytes
        monkeypatch.undo()
        master._attached().control.bell = -1  # no thread rings any more, and the service looks by itself
        assert not master._attached().control.ring()
