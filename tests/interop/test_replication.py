"""Goal: replication speaks RocketMQ 4.9.3's protocol both ways: the same bytes, with queues and index.
Method: a master in the JVM with a slave of cystore, and the other way around, over loopback."""

from __future__ import annotations

import pytest

import cystore
from tests.support.golden.cystore_config import cystore_config
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import QUICK, free_port, log_bytes, members, until, wait_log
from tests.support.interop import specs
from tests.support.interop.cystore_side import dump_of_copy, put_all
from tests.support.interop.expect import Stored, check_queries, check_queues, check_records
from tests.support.interop.rocketmq import Refused
from tests.support.process import Process

JVM_QUICK = {"haSendHeartbeatInterval": 200, "haHousekeepingInterval": 5000}


@pytest.fixture
def writer(rng):
    return specs.Writer(rng)


def of_the_log(rows: list[dict]) -> list[dict]:
    """Without the checkpoint, which says when each store was flushed."""
    return [row for row in rows if not row["type"].startswith("checkpoint")]


def masters_settings(port: int) -> dict:
    plain = {"ha_listen_port": port, "ha_allow_plain": True}  # a JVM knows no secret
    return {"services": "all", "broker_role": "async_master", **plain, **QUICK}


def slaves_settings(port: int) -> dict:
    return {"services": "all", "broker_role": "slave", "ha_master_address": f"127.0.0.1:{port}", **QUICK}


def test_a_slave_in_the_jvm_follows(rocketmq, writer, tmp_path):
    port, spec = free_port(), {"config": specs.SMALL}
    path, there = tmp_path / "slave", tmp_path / "master"
    with cystore.open(there, **cystore_config(spec), **masters_settings(port)) as master:
        stored = put_all(master, list(writer.many(150)))
        config = {**specs.SMALL, **JVM_QUICK, "haMasterAddress": f"127.0.0.1:{port}"}
        with rocketmq.opened(path, config, role="SLAVE") as slave:
            end = master.stats()["wrote"]
            assert slave.reach(end) == (end, 0)
            stored += put_all(master, list(writer.many(150)))
            end = master.stats()["wrote"]
            assert slave.reach(end) == (end, 0)
            last = master.put("T", b"replicated", flush="replicated")
            end = last.physical_offset + last.size_bytes
            assert slave.reach(end) == (end, 0)
    assert log_bytes(path, 0, end) == log_bytes(there, 0, end)
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    check_queries(rows, stored)
    assert of_the_log(rows) == of_the_log(dump_of_copy(rocketmq, there, spec, tmp_path))


def test_a_slave_follows_a_master_in_the_jvm(rocketmq, writer, tmp_path):
    port, spec = free_port(), {"config": specs.SMALL}
    path, there = tmp_path / "slave", tmp_path / "master"
    config = {**specs.SMALL, **JVM_QUICK, "haListenPort": port}
    items = list(writer.many(20))
    with rocketmq.opened(there, config) as master:
        stored = [Stored.by_rocketmq(*pair) for pair in zip(items, master.put(items), strict=True)]
        with cystore.open(path, **cystore_config(spec), **slaves_settings(port)) as slave:
            end, _ = master.reach(0)
            wait_log(slave, end)
            for _ in range(2):
                items = list(writer.many(120))
                stored += [Stored.by_rocketmq(*pair) for pair in zip(items, master.put(items), strict=True)]
                end, _ = master.reach(0)
                wait_log(slave, end)
            until(lambda: slave.stats()["dispatch_behind_bytes"] == 0)
            assert slave.stats()["min_physical_offset"] == 0
            check_followed(slave, stored)
    assert log_bytes(path, 0, end) == log_bytes(there, 0, end)
    rows = dump_of_copy(rocketmq, path, spec, tmp_path)
    check_records(rows, stored)
    check_queues(rows, stored, ext=False)
    check_queries(rows, stored)


def check_followed(slave: cystore.MessageStore, stored: list[Stored]) -> None:
    assert stored
    assert [m.physical_offset for m in slave.scan()] == [one.physical_offset for one in stored]
    for one in stored[::7]:
        (same,) = slave.get(*one.queue, one.queue_offset, 1).messages
        assert same.physical_offset == one.physical_offset


def test_an_empty_slave_gets_the_last_file_of_a_cleaned_master_in_the_jvm(rocketmq, writer, tmp_path):
    port, spec = free_port(), {"config": specs.SMALL}
    path, there = tmp_path / "slave", tmp_path / "master"
    config = {**specs.SMALL, **JVM_QUICK, "haListenPort": port}
    items = list(writer.many(600))
    with rocketmq.opened(there, config) as master:
        stored = [Stored.by_rocketmq(*pair) for pair in zip(items, master.put(items), strict=True)]
    (there / "commitlog" / f"{0:020}").unlink()
    with rocketmq.opened(there, config) as master:
        end, begin = master.reach(0)
        last = end - end % specs.SMALL["mapedFileSizeCommitLog"]
        assert last > begin > 0
        with cystore.open(path, **cystore_config(spec), **slaves_settings(port)) as slave:
            wait_log(slave, end)
            until(lambda: slave.stats()["dispatch_behind_bytes"] == 0)
            assert slave.stats()["min_physical_offset"] == last
            check_followed(slave, [one for one in stored if one.physical_offset >= last])
    assert log_bytes(path, last, end) == log_bytes(there, last, end)


def test_a_sync_master_in_the_jvm_waits_for_a_slave(rocketmq, writer, tmp_path):
    port, spec = free_port(), {"config": specs.SMALL}
    config = {
        **specs.SMALL,
        **JVM_QUICK,
        "haListenPort": port,
        "flushDiskType": "SYNC_FLUSH",
        "slaveTimeout": 60_000,  # no put of a busy host is late
        "syncFlushTimeout": 60_000,
    }
    with rocketmq.opened(tmp_path / "master", config, role="SYNC_MASTER") as master:
        with pytest.raises(Refused, match="SLAVE_NOT_AVAILABLE"):
            master.put(list(writer.many(1)))
        with cystore.open(tmp_path / "slave", **cystore_config(spec), **slaves_settings(port)) as slave:
            wait_log(slave, master.reach(0)[0])
            assert {row["status"] for row in master.put(list(writer.many(20)))} == {"PUT_OK"}
            wait_log(slave, master.reach(0)[0])


def test_a_sync_master_in_the_jvm_says_that_a_slave_stands_still(rocketmq, writer, tmp_path):
    port, spec = free_port(), {"config": specs.SMALL}
    config = {
        **specs.SMALL,
        **JVM_QUICK,
        "haListenPort": port,
        "flushDiskType": "SYNC_FLUSH",
        "slaveTimeout": 200,
    }
    with rocketmq.opened(tmp_path / "master", config, role="SYNC_MASTER") as master, Process() as follower:
        settings = {**cystore_config(spec), **slaves_settings(port)}
        follower.do(
            "import cystore; store = cystore.open(path, **settings)",
            path=str(tmp_path / "slave"),
            settings=settings,
        )

        def acknowledged() -> bool:
            try:
                master.put(list(writer.many(1)))
            except Refused:
                return False
            return True

        until(acknowledged)  # the master knows its slave
        follower.stop()
        with pytest.raises(Refused, match="FLUSH_SLAVE_TIMEOUT"):
            master.put(list(writer.many(1)))
        follower.go_on()
        until(acknowledged)
        assert follower.do("store.stats()['wrote']") == master.reach(0)[0]


@pytest.mark.slow  # RocketMQ's slave tries again after five seconds
@needs_etcd
def test_a_slave_in_the_jvm_follows_an_elected_master(rocketmq, tmp_path):
    """Its stream has no epochs, and puts do not wait for it."""
    spec, there, path = {"config": specs.SMALL}, tmp_path / "member", tmp_path / "slave"
    with EtcdServer(tmp_path / "etcd") as etcd:
        member = {**members(etcd.url, "a"), **cystore_config(spec)}
        with cystore.open(there, **member) as master:
            until(lambda: master._attached().control.epoch)
            config = {**specs.SMALL, **JVM_QUICK, "haMasterAddress": f"127.0.0.1:{member['ha_listen_port']}"}
            with rocketmq.opened(path, config, role="SLAVE") as slave:
                for number in range(50):
                    master.put("T", b"%d" % number, keys=(f"k{number}",))
                end = master.stats()["wrote"]
                assert slave.reach(end) == (end, 0)
                assert master._attached().control.in_sync == 1
    assert log_bytes(path, 0, end) == log_bytes(there, 0, end)
