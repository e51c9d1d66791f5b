"""Goal: what the log does not have follows as well: offsets of consumer groups, removed queues, the retention policy.
So a slave that becomes the master continues where the old one was. Method: two stores on loopback; the process of the
master is killed; frames that no master sends."""

from __future__ import annotations

import errno
import json
import os
import socket
import threading
from typing import Any

import pytest

import cystore
from cystore.consumers.table import OffsetTable
from cystore.errors import ReplicationError
from cystore.ha.connection import SlaveConnection
from cystore.ha.facts.collected import Sealed
from cystore.ha.facts.shipment import Shipment
from cystore.ha.link import wire
from cystore.ha.link.sockets import ours
from cystore.ha.status import ReplicationStatus, read_status, write_status
from tests.support.disks.small_disk import on_small_disk
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import (
    clean_segments,
    fill,
    free_port,
    masters,
    members,
    slaves,
    until,
    wait_log,
    wrote,
)
from tests.support.process import Process
from tests.support.small_stores import SETTINGS

OPENED = "import cystore; store = cystore.open(path, **settings)"


@pytest.fixture
def port() -> int:
    return free_port()


def offset(store: cystore.MessageStore, group: str = "g") -> int | None:
    return store.groups.offset(group, "T", 0)


def test_a_group_continues_on_the_slave_that_becomes_the_master(tmp_path, port):
    with Process() as master:
        master.do(OPENED, path=str(tmp_path / "master"), settings=masters(port))
        with Process() as follower:
            follower.do(OPENED, path=str(tmp_path / "slave"), settings=slaves(port))
            master.do("for i in range(20): store.put('T', b'%d' % i)")
            master.do("consumer = store.consumer('g', 'T')")
            acknowledge = "for message in consumer.poll(7, timeout_s=30): consumer.ack(message)"
            master.do(acknowledge)
            until(lambda: follower.do("store.groups.offset('g', 'T', 0)") == 7)
            until(lambda: follower.do("store.stats()['wrote']") == master.do("store.stats()['wrote']"))
            master.kill()
            follower.kill()
    with cystore.open(tmp_path / "slave", services="all", broker_role="async_master") as promoted:
        consumer = promoted.consumer("g", "T")
        messages = until(lambda: consumer.poll(100, timeout_s=1))
        assert [bytes(message.body) for message in messages] == [b"%d" % number for number in range(7, 20)]


FULL = """
import logging, os, sys
from pathlib import Path
import cystore
from cystore.ha.epochs.confirmed_file import read_confirmed
from cystore.ha.slave_progress import SlaveProgress
from cystore.ha.status import PATH, ReplicationStatus, read_status, write_status
from tests.support.ha.ha_pair import check_equal, clean_segments, fill, masters, slaves, until, wait_log, wrote
from cystore.consumers import replicated
from cystore.ha.facts import collected, followed
collected.READ_S = followed.RETRY_S = replicated.RETRY_S = replicated.SAVE_S = 0.1  # seconds
disk, port, said = Path(sys.argv[1]), int(sys.argv[3]), []
handler = logging.Handler()
def emit(record):
    text = record.getMessage()
    said.append(text)
    if "follows" in text or "closed the connection" in text or "gets on again" in text:
        told.append((record.levelname == "DEBUG", "closed" in text, text))
handler.emit, told = emit, []
logging.getLogger("cystore").addHandler(handler)
logging.getLogger("cystore").setLevel(logging.DEBUG)
with cystore.open(sys.argv[2], **masters(port)) as master, cystore.open(disk / "s", **slaves(port)) as slave:
    fill(master, 20)
    wait_log(slave, wrote(master))
    def is_refused():
        # Again and again: a service may have given pages back, and what there was room for follows.
        with open(disk / "ballast", "ab", buffering=0) as ballast:
            for size in (1 << 16, 1 << 12):
                try:
                    while ballast.write(bytes(size)) == size:
                        pass
                except OSError:
                    pass
        master.groups.commit("g", "T0", 0, (master.groups.offset("g", "T0", 0) or 0) % 3 + 1)
        return any(("over facts" in text or "ha-offsets" in text) and "no space" in text for text in said)
    master.configure(file_reserved_time_h=99)
    master.delete_topic("T1")
    until(is_refused)
    master.groups.commit("g", "T0", 0, 3)
    fill(master, 60, start=20)
    other, control = disk / "other", slave._attached().control
    # It comes again and again, but the log says that once.
    until(lambda: (True, True) in [line[:2] for line in told])
    first = len(told)
    until(lambda: [line[:2] for line in told[first:]].count((True, True)) >= 2)
    assert all(debug for debug, *_ in told[first:]), told
    progress, end = SlaveProgress(control, slave.config, other), control.wrote
    write_status(other, ReplicationStatus(pid=1))  # and no error
    progress.confirmed(end)
    assert read_confirmed(other) == 0 and control.confirmed == end, "readers do not wait for the disk"
    os.unlink(disk / "ballast")
    progress.confirmed(end + 1)
    progress.close()
    assert read_confirmed(other) == end + 1
    write_status(other, ReplicationStatus(pid=1))
    assert other.joinpath(*PATH).exists()
    wait_log(slave, wrote(master))
    until(lambda: slave.groups.offset("g", "T0", 0) == 3 and slave.settings.file_reserved_time_h == 99)
    until(lambda: read_status(disk / "s").connected)
    check_equal(master, slave)
    for said_once in ("has space again", "gets on again"):
        until(lambda: any(said_once in text for *_, text in told))
print("equal")
"""


def test_a_full_disk_of_the_slave_costs_nothing_but_another_try(tmp_path, port):
    (tmp_path / "disk").mkdir()
    told = on_small_disk("2m", tmp_path / "disk", FULL, str(tmp_path / "master"), str(port))
    assert told.endswith("equal\n")


def test_the_status_of_replication_needs_no_writable_disk(tmp_path, monkeypatch):
    """Seen: the thread of replication ended with a traceback where the disk had become read-only."""

    def refuse(path, flags):
        raise cystore.StoreIOError(os.strerror(errno.EROFS), path=path)

    write_status(tmp_path, ReplicationStatus(epoch=1))
    with monkeypatch.context() as patched:
        patched.setattr("cystore.ha.status.files.opened", refuse)
        write_status(tmp_path, ReplicationStatus(epoch=2))
    assert read_status(tmp_path).epoch == 1


def test_a_slow_disk_under_the_offsets_delays_no_acknowledged_put(tmp_path, port, monkeypatch):
    saving, go_on, save = threading.Event(), threading.Event(), OffsetTable.save

    def slow(table: OffsetTable) -> bool:
        if table._parts.root == tmp_path / "slave":
            saving.set()
            assert go_on.wait(30)
        return save(table)

    monkeypatch.setattr(OffsetTable, "save", slow)
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        try:
            fill_queue(master, 9)
            wait_log(slave, wrote(master))
            master.groups.commit("g", "T", 0, 5)
            assert saving.wait(30)
            for _ in range(3):
                master.put("T", b"x", flush="replicated")
        finally:
            go_on.set()


def test_offsets_are_durable_on_the_slave(tmp_path, port):
    """In the file: a power cut takes the table."""
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill_queue(master, 9)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            master.groups.commit("g", "T", 0, 5)
            file = tmp_path / "slave" / "config" / "consumerOffset.json"
            until(lambda: file.exists() and b'"T@g":{0:5' in file.read_bytes())
            assert offset(slave) == 5


@needs_etcd
def test_a_group_continues_on_the_member_that_is_elected(tmp_path):
    with EtcdServer(tmp_path / "etcd") as etcd, Process() as a, Process() as b:
        for name, member in {"a": a, "b": b}.items():
            settings = members(etcd.url, name, ha_lease_ms=2_000)
            member.do(OPENED, path=str(tmp_path / name), settings=settings)
            if name == "a":
                until(lambda: a.do("store.epoch"))
        until(lambda: a.do("store.stats()['in_sync']") == 2)
        a.do("for i in range(20): store.put('T', b'%d' % i, flush='replicated')")
        a.do("consumer = store.consumer('g', 'T')")
        a.do("for message in consumer.poll(7, timeout_s=30): consumer.ack(message)")
        until(lambda: b.do("store.groups.offset('g', 'T', 0)") == 7)
        a.kill()
        until(lambda: b.do("store.epoch"))
        b.do("consumer = store.consumer('g', 'T')")
        found = until(lambda: b.do("[int(bytes(m.body)) for m in consumer.poll(100, timeout_s=1)]"))
        assert found == list(range(7, 20))


def fill_queue(store: cystore.MessageStore, count: int) -> None:
    for number in range(count):
        store.put("T", b"%d" % number)


def test_a_reset_follows_and_an_older_offset_does_not(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill_queue(master, 9)
        master.groups.commit("g", "T", 0, 6)
        master.groups.commit("gone", "T", 0, 6)
        master.groups.commit("own", "T", 0, 2)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            until(lambda: (offset(slave), offset(slave, "gone"), offset(slave, "own")) == (6, 6, 2))
            slave.groups.commit("own", "T", 0, 8)  # a consumer of the slave's own host
            master.groups.reset("g", "T", "first")
            master.groups.remove("gone")
            master.groups.commit("own", "T", 0, 3)
            until(lambda: (offset(slave), offset(slave, "gone")) == (0, None))
            assert offset(slave, "own") == 8
            master.groups.commit("g", "T", 0, 4)
            until(lambda: offset(slave) == 4)
        with cystore.open(tmp_path / "slave", services="none") as slave:
            slave.groups.commit("g", "T", 0, 9)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            master.groups.commit("later", "T", 0, 1)
            until(lambda: offset(slave, "later") == 1)
            assert offset(slave) == 9


def test_a_store_without_groups_gets_no_table_of_them(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        master.configure(file_reserved_time_h=5)
        until(lambda: slave.settings.file_reserved_time_h == 5)
        for store in (master, slave):
            assert not (store.path / "config" / "consumers.table").exists()


def test_the_retention_policy_follows_unless_the_slave_gives_its_own(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, delete_when="01")) as slave,
    ):
        master.configure(
            file_reserved_time_h=7, compacted_topics="C", delete_when="05", min_free_bytes=1 << 20
        )
        until(lambda: slave.settings.file_reserved_time_h == 7 and slave.settings.compacted_topics == "C")
        assert slave.settings.delete_when == "01"
        assert slave.settings.min_free_bytes != 1 << 20  # of a host's disk
        master.configure(message_delay_level="1s 3s")
        master.put("D", b"x", delay_level=1)
        levels = lambda: slave._attached().manifest.snapshot().settings["message_delay_level"]  # noqa: E731
        until(lambda: levels() == "1s 3s")
    with cystore.open(tmp_path / "slave", broker_role="async_master") as promoted:
        assert promoted.settings.file_reserved_time_h == 7 and len(promoted.settings.delay_levels_ms()) == 2


def test_a_queue_whose_messages_expired_before_the_slave_came_continues_to_count(tmp_path, port):
    with cystore.open(tmp_path / "master", **masters(port, file_reserved_time_h=0)) as master:
        fill_queue(master, 5)
        master.groups.commit("g", "T", 0, 5)
        fill(master, 300)
        clean_segments(master, 3)
        until(lambda: "T" not in master.topics())
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            until(lambda: offset(slave) == 5)
            assert slave.next_queue_offset("T", 0) == 5
            assert "T" not in slave.topics()
            wait_log(slave, wrote(master))
    for _ in range(2):  # in the process that promotes it, and from the files
        with cystore.open(tmp_path / "slave", broker_role="async_master") as promoted:
            at = promoted.next_queue_offset("T", 0)
            assert promoted.put("T", b"new").queue_offset == at >= 5
            assert offset(promoted) == 5
            assert [bytes(message.body) for message in promoted.get("T", 0, 5).messages][-1] == b"new"


def test_a_deleted_topic_is_deleted_on_the_slave(tmp_path, port):
    late = {"flush_interval_commit_log_ms": 60_000, "flush_commit_log_thorough_interval_ms": 60_000}
    with cystore.open(tmp_path / "master", **masters(port, compacted_topics="T", **late)) as master:
        master.put("T", b"x", keys=("k",))
        fill_queue(master, 4)
        with cystore.open(tmp_path / "slave", **slaves(port, **late)) as slave:
            wait_log(slave, wrote(master))
            until(lambda: slave.settings.compacted_topics == "T")
            assert slave.latest("T", "k") is not None
            deleted = wrote(master)
            master.delete_topic("T")
            until(lambda: "T" not in slave.topics() and slave.latest("T", "k") is None)
            # Else a power cut leaves the deletion, and takes records: others get their places.
            assert all(store._attached().control.flushed >= deleted for store in (master, slave))
            master.put("T", b"new")
            wait_log(slave, wrote(master))
            assert [bytes(message.body) for message in slave.get("T", 0, 5).messages] == [b"new"]
    with cystore.open(tmp_path / "slave", services="none") as slave:
        assert slave.topics()["T"][0] == (5, 6)


def test_expired_queues_of_the_master_stay_on_a_slave_that_keeps_them_longer(tmp_path, port):
    with (
        cystore.open(tmp_path / "master", **masters(port, file_reserved_time_h=0)) as master,
        cystore.open(tmp_path / "slave", **slaves(port, file_reserved_time_h=72)) as slave,
    ):
        fill_queue(master, 5)
        fill(master, 300)
        wait_log(slave, wrote(master))
        clean_segments(master, 3)
        until(lambda: "T" not in master.topics())
        master.groups.commit("g", "T", 0, 5)
        until(lambda: offset(slave) == 5)  # the same frame has the removed queues
        assert len(slave.get("T", 0, 0).messages) == 5


def test_facts_wait_for_the_log_that_they_speak_of(tmp_path):
    """A slave with offsets beyond its log would skip messages if it became the master then."""
    with cystore.open(tmp_path / "s", **masters(0)) as store:
        fill_queue(store, 3)
        inside = store._attached()
        end = wrote(store)
        hello = wire.Hello("store", 0, end, inside.commit_log.file_bytes, facts=True)
        mine, theirs = socket.socketpair()
        with theirs:
            connection = SlaveConnection(
                ours(mine), "s", inside.control, inside.commit_log, inside.config, lambda nonce: hello, None
            )
            mine.setblocking(False)
            ahead = wrote(store) + 1
            asked = (wire.REPORT.pack(word) for word in (wire.HELLO, wire.FACTS, 0))
            theirs.sendall(b"".join(asked))
            connection.receive()
            connection.offer(Sealed(ahead, b"{}"))
            connection.send()
            connection.send()
            early = theirs.recv(1 << 20)
            assert early.endswith(bytes(inside.commit_log.piece(0, end)))
            fill_queue(store, 1)
            connection.send()
            connection.send()
            late = theirs.recv(1 << 20)
            facts = wire.HEADER.pack(wire.FACTS, 2) + b"{}"
            assert facts not in early and late.endswith(facts)
            connection.close()


def wrong(**more: Any) -> bytes:
    return json.dumps({"groups": {}, "settings": {}, "removed": [], "begin": 0, **more}).encode()


WRONG = {
    "no JSON": b"{",
    "deep": b"[" * 100_000,
    "no table": wrong(groups=[1]),
    "an offset that is none": wrong(groups={"T@g": {"0": -1}}),
    "a flat table": wrong(groups={"T@g": 7}),
    "no settings": wrong(settings=3),
    "no begin": wrong(begin="0"),
    "a begin that deletes what has expired": wrong(begin=-1),
    "a folder elsewhere": wrong(removed=[["../../x", 0, 5, 5]]),
    "a removal of nothing": wrong(removed=[["T", 0, 0, 5]]),
    "a queue id that is none": wrong(removed=[["T", 1 << 40, 5, 5]]),
}


@pytest.mark.parametrize("data", WRONG.values(), ids=WRONG)
def test_facts_that_no_master_sends_are_refused(data):
    with pytest.raises(ReplicationError):
        Shipment.parse(data)


def test_facts_are_read_as_they_were_written():
    given = Shipment({"T@g": {"3": 9}}, {"delete_when": "04"}, (), 8192)
    assert Shipment.parse(given.data()) == given
    assert Shipment.parse(wrong(settings={"ha_secret_file": "/x", "delete_when": []}, more=1)).settings == {}


def test_a_group_is_set_back_with_a_log_that_is_truncated(tmp_path, port):
    """Else it would not get the messages that take the place of those that it read."""
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        fill_queue(master, 4)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
        with cystore.open(tmp_path / "slave", **SETTINGS, broker_role="async_master") as other:
            fill_queue(other, 3)
            other.put("U", b"x")
            other.groups.commit("g", "T", 0, 7)
            other.groups.commit("h", "T", 0, 2)
        cutting = slaves(port, ha_truncate_diverged=True)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            until(slave.asked_to_leave)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            assert (offset(slave), offset(slave, "h")) == (4, 2)
            fill_queue(master, 5)
            wait_log(slave, wrote(master))
            assert len(slave.groups.pull("g", "T", 0).messages) == 5


def test_a_deletion_goes_with_the_records_that_it_deleted(tmp_path, port):
    """Seen: the records that took their places were deleted as well, and then those of every slave."""
    with cystore.open(tmp_path / "master", **masters(port, compacted_topics="T")) as master:
        fill_queue(master, 5)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
        with cystore.open(tmp_path / "slave", **SETTINGS, broker_role="async_master") as other:
            fill_queue(other, 5)
            fill(other, 50)
            other._attached().manifest.give_up("T", 0, 7, 9)
            other.delete_topic("T")
        cutting = slaves(port, ha_truncate_diverged=True)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            until(slave.asked_to_leave)
        with cystore.open(tmp_path / "slave", **cutting) as slave:
            assert slave.next_queue_offset("T", 0) == 5 and "T" not in slave.topics()
            for number in range(5, 10):
                master.put("T", b"%d" % number, keys=("k",))
            wait_log(slave, wrote(master))
            until(lambda: slave.settings.compacted_topics == "T")
            assert bytes(slave.latest("T", "k").body) == b"9"
    new = [b"%d" % number for number in range(5, 10)]
    with cystore.open(tmp_path / "slave", **masters(port)) as promoted:
        assert [bytes(message.body) for message in promoted.get("T", 0, 5).messages] == new
        with cystore.open(tmp_path / "master", **slaves(port)) as follower:
            promoted.groups.commit("g", "T", 0, 1)
            until(lambda: offset(follower) == 1)  # the same frame has the removed queues
            assert [bytes(message.body) for message in follower.get("T", 0, 5).messages] == new


@pytest.mark.parametrize("side", ["master", "slave"])
def test_a_truncated_table_of_groups_keeps_the_log_from_no_slave(tmp_path, port, side, caplog):
    with (
        cystore.open(tmp_path / "master", **masters(port)) as master,
        cystore.open(tmp_path / "slave", **slaves(port)) as slave,
    ):
        fill_queue(master, 3)
        master.groups.commit("g", "T", 0, 1)
        until(lambda: offset(slave) == 1)
        os.truncate(tmp_path / side / "config" / "consumers.table", 0)
        if side == "slave":
            master.groups.commit("g", "T", 0, 2)
        told = {"master": "its slaves do not get its facts now", "slave": "cannot take over facts"}[side]
        until(lambda: told in caplog.text or "cystore-ha failed" in caplog.text)
        fill_queue(master, 3)
        wait_log(slave, wrote(master))
        assert "cystore-ha failed" not in caplog.text


def test_a_damaged_table_of_groups_keeps_the_log_from_no_slave(tmp_path, port, caplog):
    with cystore.open(tmp_path / "master", **masters(port)) as master:
        master.put("T", b"x")
        table = tmp_path / "master" / "config" / "consumers.table"
        table.mkdir(parents=True)
        with cystore.open(tmp_path / "slave", **slaves(port)) as slave:
            wait_log(slave, wrote(master))
            master.put("T", b"y")
            wait_log(slave, wrote(master))
            until(lambda: "its slaves do not get its facts now" in caplog.text)
            assert master._attached().control.replicas == 1
