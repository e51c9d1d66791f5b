"""Goal: only a member in sync is elected, a lease ends without anybody's help, and settings that do not fit are
refused. Method: members in processes of this host with a real etcd."""

from __future__ import annotations

import select
import signal
import socket
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore.engine.inspect.recognize import is_store
from cystore.engine.manifest.manifest import read_facts
from cystore.ha.copied_log import CopiedLog
from cystore.ha.election.etcd import Etcd
from cystore.ha.election.group import Group, View
from cystore.ha.election.orders import group_of, promote
from cystore.ha.home import home_of
from cystore.ha.link import wire
from cystore.ha.role import FLAG_SLAVE, role_of
from cystore.ha.slave import Slave
from cystore.ha.status import read_status
from tests.support.ha.etcd import EtcdServer, needs_etcd
from tests.support.ha.ha_pair import (
    check_equal,
    every,
    fill,
    free_port,
    members,
    put_delayed,
    until,
    wait_log,
    wrote,
)
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS

pytestmark = needs_etcd
LEASE_MS = 2_000
OPENED = "import cystore; store = cystore.open(path, **settings)"
TRIED = """
try:
    put, error = store.put("T", b"x", flush="replicated"), ""
except cystore.StoreError as raised:
    put, error = None, type(raised).__name__
error
"""


@pytest.fixture
def etcd(tmp_path):
    with EtcdServer(tmp_path / "etcd") as server:
        yield server


def settings(etcd: EtcdServer, name: str, **more: Any) -> dict[str, Any]:
    times = {"ha_lease_ms": LEASE_MS, "ha_in_sync_lag_ms": 500, "slave_timeout_ms": 1_000}
    return members(etcd.url, name, **{**times, **more})


def seen(etcd: EtcdServer) -> View:
    group = Group(Etcd(cystore.StoreConfig(), etcd.url, 2.0), "g")
    try:
        return group.look()
    finally:
        group.close()


def in_sync(etcd: EtcdServer) -> set[str]:
    state = seen(etcd).state
    return set() if state is None else set(state.in_sync)


def master(etcd: EtcdServer) -> str:
    found = seen(etcd).master
    return "" if found is None else found.member


def put(store: cystore.MessageStore, body: bytes = b"x") -> cystore.PutResult:
    """A replicated put, as soon as it is taken."""

    def tried() -> cystore.PutResult | None:
        try:
            return store.put("T", body, flush="replicated")
        except (cystore.StoreNotWritableError, cystore.FlushSlaveTimeoutError):
            return None

    return until(tried)


def test_the_store_with_a_log_is_the_first_master_and_the_others_get_all_of_it(tmp_path, etcd):
    """An empty member is a candidate after it waited for a lease: the lease is longer than the open of the other store
    takes on a busy machine. And no slow slave stops being in sync."""
    long = {"ha_lease_ms": 60_000, "ha_in_sync_lag_ms": 60_000}
    with cystore.open(tmp_path / "a", **SETTINGS) as plain:
        fill(plain, 200)
    with (
        cystore.open(tmp_path / "b", **settings(etcd, "b", **long)) as b,
        cystore.open(tmp_path / "a", **settings(etcd, "a", **long)) as a,
    ):
        put(a)
        assert master(etcd) == "a"
        until(lambda: in_sync(etcd) == {"a", "b"})
        homes = {home_of(store.path, read_facts(store.path)[0]) for store in (a, b)}
        assert homes == {(a.path / "config" / "storeId").read_text()}, "tasks of Celery keep their home"
        for _ in range(20):
            done = put(a)
            assert wrote(b) >= done.physical_offset + done.size_bytes
        check_equal(a, b)
        with pytest.raises(cystore.StoreIsSlaveError, match=r"a slave of 127\.0\.0\.1:"):
            b.put("T", b"x")


def test_a_reader_by_the_hosts_follows_the_elected_master(tmp_path, etcd):
    a_settings, b_settings = settings(etcd, "a"), settings(etcd, "b")
    hosts = ",".join(f"127.0.0.1:{each['ha_listen_port']}" for each in (a_settings, b_settings))
    reader_settings = {**SETTINGS, "services": "all", "ha_truncate_diverged": True}
    with (
        ExitStack() as together,
        cystore.open(f"cystore://{hosts}{tmp_path}/reader", **reader_settings) as reader,
        cystore.open(tmp_path / "a", **a_settings) as a,
    ):
        put(a)
        b = together.enter_context(cystore.open(tmp_path / "b", **b_settings))
        until(lambda: in_sync(etcd) == {"a", "b"})
        put(a)
        until(lambda: len(list(reader.scan())) == 2)
        a.close()
        put(b)
        until(lambda: len(list(reader.scan())) == 3)
        with cystore.open(f"cystore://{hosts}{b.path}") as same:  # a member: etcd knows its master
            same.put("T", b"x", flush="replicated")
        late = Slave(*following(reader), f"127.0.0.1:{b_settings['ha_listen_port']}", least_epoch=2**62)
        with pytest.raises(
            cystore.ReplicationError, match=f"is of epoch .* followed one of epoch {2**62} before"
        ):
            late.turn()


@pytest.mark.slow  # leases that end
def test_a_reader_gives_back_what_the_failover_took_back(tmp_path, etcd):
    """It has a record that no member has. `cystore replicate` opens its store again, which truncates the log."""
    more = {"ha_in_sync_lag_ms": 60_000}
    a_settings, b_settings = settings(etcd, "a", **more), settings(etcd, "b", **more)
    hosts = ",".join(f"127.0.0.1:{each['ha_listen_port']}" for each in (a_settings, b_settings))
    command = [sys.executable, "-m", "cystore", "replicate", str(tmp_path / "reader"), "--from", hosts]
    with Process() as a, Process() as first_b, Process() as b:
        a.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        until(lambda: a.do(TRIED) == "")
        first_b.do(OPENED, path=str(tmp_path / "b"), settings=b_settings)
        until(lambda: in_sync(etcd) == {"a", "b"})
        with subprocess.Popen([*command, "--set", "ha_truncate_diverged=true"]) as follower:
            try:
                until(lambda: is_store(tmp_path / "reader"))
                sizes = {
                    "mapped_file_size_commit_log_bytes": LOG_BYTES
                }  # the first to open the store makes it
                with cystore.open(tmp_path / "reader", services="none", **sizes) as reader:
                    until(lambda: wrote(reader) == a.do("store.stats()['wrote']") > 0)
                    first_b.kill()
                    a.do("store.put('T', b'taken back'); store.flush()")
                    until(lambda: wrote(reader) == a.do("store.stats()['wrote']"))
                    assert b"taken back" not in [bytes(m.body) for m in reader.scan()]
                    a.kill()
                    b.do(OPENED, path=str(tmp_path / "b"), settings=b_settings)
                    until(lambda: b.do(TRIED) == "")
                    until(reader.asked_to_leave)
                until(lambda: has_equal_log(tmp_path / "reader", b))
            finally:
                follower.send_signal(signal.SIGINT)
                follower.wait(30)
        assert any("commitlog" in file.name for file in (tmp_path / "reader" / "quarantine").iterdir())


def has_equal_log(path: Path, member: Process) -> bool:
    """Whether a store shows the messages that the member does."""
    told = "[bytes(m.body) for m in store.scan()]"
    with cystore.open(path, read_only=True) as store:
        mine = [bytes(message.body).decode() for message in store.scan()]
    return mine == member.do(told)


def following(store: cystore.MessageStore) -> tuple[Any, ...]:
    """Parts of a store with which a slave compares its log."""
    parts = store._attached()
    assert parts.appender is not None
    copied = CopiedLog(parts.control, parts.commit_log, parts.appender.policy, parts.manifest, 1 << 20)
    return parts.control, parts.commit_log, copied, store.config


def test_a_member_that_is_not_in_sync_is_never_elected(tmp_path, etcd):
    a_settings, b_settings = settings(etcd, "a"), settings(etcd, "b")
    with cystore.open(tmp_path / "a", **a_settings) as a:
        put(a)
        with cystore.open(tmp_path / "b", **b_settings):
            until(lambda: in_sync(etcd) == {"a", "b"})
        until(lambda: in_sync(etcd) == {"a"})
        last = put(a, b"only a has it")
    with cystore.open(tmp_path / "b", **b_settings) as b:
        until(lambda: not master(etcd))
        with pytest.raises(TimeoutError):
            until_some(lambda: master(etcd), 3 * LEASE_MS / 1000)
        with cystore.open(tmp_path / "a", **a_settings) as a:
            put(a)
            assert master(etcd) == "a"
            wait_log(b, wrote(a))
            assert bytes(b.read(last.physical_offset).body) == b"only a has it"


def test_a_member_whose_disk_lost_records_is_no_candidate_before_it_has_caught_up(tmp_path, etcd):
    a_settings, b_settings = settings(etcd, "a", ha_in_sync_lag_ms=60_000), settings(etcd, "b")
    with cystore.open(tmp_path / "a", **a_settings) as a:
        put(a)
        with cystore.open(tmp_path / "b", **b_settings):
            until(lambda: in_sync(etcd) == {"a", "b"})
            places = [put(a, b"y" * 100) for _ in range(30)]
    assert in_sync(etcd) == {"a", "b"}  # so b may be elected, as far as etcd knows
    lost = places[20].physical_offset
    file = tmp_path / "b" / "commitlog" / f"{lost - lost % LOG_BYTES:020}"
    with file.open("r+b") as damaged:
        damaged.seek(lost % LOG_BYTES)
        damaged.write(bytes(LOG_BYTES - lost % LOG_BYTES))
    with cystore.open(tmp_path / "b", **b_settings) as b:
        until(lambda: not master(etcd))
        with pytest.raises(TimeoutError):
            until_some(lambda: master(etcd), 2 * LEASE_MS / 1000)
    with cystore.open(tmp_path / "a", **settings(etcd, "a")):
        # If b came back now, a would drop it from the set at its first report, and take it in again. The set in etcd
        # would not show which of these steps are still to come. So b is dropped while it is away.
        until(lambda: in_sync(etcd) == {"a"})
    with cystore.open(tmp_path / "b", **b_settings) as b:
        with cystore.open(tmp_path / "a", **a_settings) as a:
            put(a)
            until(lambda: in_sync(etcd) == {"a", "b"})
        put(b)
        assert master(etcd) == "b"
        assert [bytes(b.read(one.physical_offset).body) for one in places] == [b"y" * 100] * 30


def until_some(wanted: Any, seconds: float) -> None:
    """As `until`, for something that is not to happen."""
    event = cystore.system.threads.os_threads.Flag()
    for _ in range(int(seconds / 0.05)):
        if wanted():
            return
        event.wait(0.05)
    raise TimeoutError


def test_a_master_that_returns_with_records_of_its_own_is_cut(tmp_path, etcd):
    a_settings = settings(etcd, "a", ha_in_sync_lag_ms=60_000)
    b_settings = settings(etcd, "b")
    with Process() as b:
        with Process() as a, Process() as b_before:
            a.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
            until(lambda: a.do(TRIED) == "")
            b_before.do(OPENED, path=str(tmp_path / "b"), settings=b_settings)
            until(lambda: in_sync(etcd) == {"a", "b"})
            b_before.kill()
            a.do("puts = [store.put('T', b'own %d' % n, queue_id=n % 3) for n in range(40)]")
            begin, end = a.do("puts[0].physical_offset, store.stats()['wrote']")
        b.do(OPENED, path=str(tmp_path / "b"), settings=b_settings)
        until(lambda: b.do(TRIED) == "")
        common = b.do("put.physical_offset")
        assert common == begin < end
        b.do("for n in range(60): store.put('T', b'new %d' % n, queue_id=n % 3)")
        with cystore.open(tmp_path / "a", **a_settings) as a_again:
            until(a_again.asked_to_leave)
        with cystore.open(tmp_path / "a", **a_settings) as a_again:
            until(lambda: in_sync(etcd) == {"a", "b"})
            wait_log(a_again, b.do("store.stats()['wrote']"))
            (kept,) = (tmp_path / "a" / "quarantine").glob("commitlog-*")
            assert kept.name == f"commitlog-{common:020}-{end:020}" and b"own 39" in kept.read_bytes()
            b.do("store.close()")
            put(a_again)
            bodies = [bytes(message.body) for message in a_again.scan()]
            assert b"own 39" not in bodies and b"new 59" in bodies


def test_a_new_master_delivers_no_delayed_message_again(tmp_path, etcd):
    a_settings, b_settings = settings(etcd, "a"), settings(etcd, "b")
    with cystore.open(tmp_path / "b", **b_settings) as b, cystore.open(tmp_path / "a", **a_settings) as a:
        until(lambda: master(etcd))
        first, second = (a, b) if master(etcd) == "a" else (b, a)
        put(first)
        until(lambda: in_sync(etcd) == {"a", "b"})
        put_delayed(first, 5)
        until(lambda: len(every(first, "D", 0, 0)) == 5)
        wait_log(second, wrote(first))
        first.close()
        put(second)
        put_delayed(second, 1)  # due after all that would be delivered again
        assert len(until(lambda: (found := every(second, "D", 0, 0))[5:] and found)) == 6


def test_a_peer_that_knows_of_an_epoch_that_there_is_not_ends_no_master(tmp_path, etcd):
    a_settings = settings(etcd, "a")
    with cystore.open(tmp_path / "a", **a_settings) as a:
        put(a)
        epoch = seen(etcd).master.epoch
        for member, newest in (("x", 1 << 61), ("no name", epoch)):
            with socket.create_connection(("127.0.0.1", a_settings["ha_listen_port"]), 20) as peer:
                peer.sendall(wire.REPORT.pack(wire.HELLO) + wire.Join("g", member, newest, "").word())
                while peer.recv(4096):
                    pass
        for _ in range(50):
            put(a)
        assert seen(etcd).master.epoch == epoch


@pytest.mark.slow
def test_an_order_for_a_member_that_stands_still_ends_no_master(tmp_path, etcd):
    slow = {"ha_in_sync_lag_ms": 60_000}  # so it stays in sync
    with cystore.open(tmp_path / "a", **settings(etcd, "a", **slow)) as a, Process() as b:
        put(a)
        b.do(OPENED, path=str(tmp_path / "b"), settings=settings(etcd, "b", **slow))
        until(lambda: in_sync(etcd) == {"a", "b"})
        epoch = seen(etcd).master.epoch
        b.stop()
        a.put("T", b"b does not have it")
        with (
            group_of(role_of(a._attached().manifest.snapshot()), a.settings) as group,
            pytest.raises(cystore.ElectionError, match="did not become master"),
        ):
            promote(group, "b", 4.0)
        a.put("T", b"taken")
        b.go_on()
        put(a)
        assert seen(etcd).master.epoch == epoch


def test_a_process_that_takes_the_master_for_a_replica_stops_no_put(tmp_path, etcd):
    with cystore.open(tmp_path / "a", **settings(etcd, "a")) as a:
        put(a)
        a._attached().control.set_flag(FLAG_SLAVE)  # it looked before the election
        put(a)


def test_too_few_members_in_sync_refuse_replicated_puts(tmp_path, etcd):
    # Long enough that the last put of two members also begins in time on a busy host.
    times = {"ha_in_sync_lag_ms": 2_000, "slave_timeout_ms": 4_000}
    with cystore.open(tmp_path / "a", **settings(etcd, "a", min_in_sync_replicas=2, **times)) as a:
        until(lambda: master(etcd) == "a")
        until(lambda: not a._attached().control.flags)
        with pytest.raises(cystore.NotAcknowledgingError, match="1 of 2 members"):
            a.put("T", b"x", flush="replicated")
        a.put("T", b"taken")
        with cystore.open(tmp_path / "b", **settings(etcd, "b", min_in_sync_replicas=2)):
            put(a)
        # A put that began with two members is not acknowledged by one.
        with pytest.raises(cystore.FlushSlaveTimeoutError):
            a.put("T", b"too late", flush="replicated")
        until(lambda: in_sync(etcd) == {"a"} and a._attached().control.in_sync == 1)
        end, acknowledged = wrote(a), a.stats()["replicated"]
        assert refused(a)
        assert wrote(a) == end > acknowledged == a.stats()["replicated"]


def make_first(path: Path) -> None:
    """A store with a log does not wait for others before the first election."""
    with cystore.open(path, **SETTINGS) as plain:
        fill(plain, 1)


def waits(process: Process) -> bool:
    """Whether what was sent to a process has not ended yet."""
    return not select.select([process.answers], [], [], 0)[0]


def test_a_put_that_waits_returns_when_the_next_process_that_serves_needs_fewer_members(tmp_path, etcd):
    times = {"ha_lease_ms": 30_000, "slave_timeout_ms": 60_000}
    a_settings = settings(etcd, "a", **times, min_in_sync_replicas=2)
    make_first(tmp_path / "a")
    with Process() as first, Process() as second, Process() as b:
        first.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        b.do(OPENED, path=str(tmp_path / "b"), settings=settings(etcd, "b", **times))
        until(lambda: first.do(TRIED) == "")
        second.do(OPENED, path=str(tmp_path / "a"), settings={**a_settings, "min_in_sync_replicas": 1})
        assert second.do(TRIED) == ""  # the first one serves
        b.stop()
        second.send(TRIED)
        until(lambda: in_sync(etcd) == {"a"} and first.do("store._attached().control.in_sync") == 1)
        assert first.do(TRIED) == "NotAcknowledgingError" and waits(second)
        first.kill()
        assert second.answer() == ""
        assert second.do(TRIED) == ""


def test_a_put_that_waits_is_not_acknowledged_after_a_process_serves_that_needs_more_members(tmp_path, etcd):
    times = {"ha_lease_ms": 30_000, "ha_in_sync_lag_ms": 60_000}
    a_settings = settings(etcd, "a", **times, min_in_sync_replicas=1)
    make_first(tmp_path / "a")
    more = {**a_settings, "min_in_sync_replicas": 3, "slave_timeout_ms": 10_000}
    with Process() as first, Process() as second, Process() as b, ExitStack() as looking:
        first.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        b.do(OPENED, path=str(tmp_path / "b"), settings=settings(etcd, "b", **times))
        until(lambda: first.do(TRIED) == "" and in_sync(etcd) == {"a", "b"})
        second.do(OPENED, path=str(tmp_path / "a"), settings=more)
        looker = looking.enter_context(cystore.open(tmp_path / "a", **{**a_settings, "services": "none"}))
        control = looker._attached().control
        b.stop()
        before = wrote(looker)
        second.send(TRIED)
        until(lambda: wrote(looker) > before)  # it began while one member was enough
        first.kill()
        until(lambda: control.in_sync_needed == 3)
        b.go_on()
        until(lambda: [slave[1] for slave in read_status(looker.path).slaves] == [wrote(looker)])
        assert waits(second) and control.in_sync == 2
        assert second.answer() == "FlushSlaveTimeoutError"
        assert control.replicated <= before and second.do(TRIED) == "NotAcknowledgingError"


def refused(store: cystore.MessageStore) -> bool:
    try:
        store.put("T", b"x", flush="replicated")
    except cystore.NotAcknowledgingError:
        return True
    return False


def test_another_process_of_the_host_continues_the_epoch(tmp_path, etcd):
    lease_ms = 30_000  # also a slow machine continues before it ends
    a_settings = settings(etcd, "a", ha_lease_ms=lease_ms)
    make_first(tmp_path / "a")
    with Process() as first, Process() as second:
        first.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        until(lambda: first.do(TRIED) == "")
        epoch = seen(etcd).master.epoch
        second.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        assert second.do(TRIED) == ""
        first.kill()
        killed_ms = boottime_ms()
        until(lambda: second.do(TRIED) == "")
        until(lambda: second.do("store._attached().control.lease_until_ms") > killed_ms + 0.8 * lease_ms)
        for _ in range(20):
            assert second.do(TRIED) == ""
        assert seen(etcd).master.epoch == epoch


def boottime_ms() -> int:
    return cystore.clock.boottime_ms()


def test_a_lease_ends_while_the_process_that_keeps_it_stands_still(tmp_path, etcd):
    """The other process of the store has only the clock to go by."""
    a_settings = settings(etcd, "a")
    with Process() as keeper, Process() as writer:
        keeper.do(OPENED, path=str(tmp_path / "a"), settings=a_settings)
        until(lambda: keeper.do(TRIED) == "")
        writer.do(OPENED, path=str(tmp_path / "a"), settings={**a_settings, "services": "none"})
        until(lambda: writer.do(TRIED) == "")
        keeper.stop()
        until(lambda: writer.do(TRIED) == "NotAcknowledgingError")
        assert writer.do("lease = store._attached().control; lease.lease_until_ms") <= boottime_ms()
        keeper.go_on()
        until(lambda: writer.do(TRIED) == "")


def test_the_lease_is_over_before_etcd_says_so(tmp_path, etcd):
    with cystore.open(tmp_path / "a", **settings(etcd, "a")) as a:
        put(a)
        etcd.stop()
        until(lambda: refused(a))
        etcd.go_on()
        put(a)


def test_a_store_with_another_log_is_no_member(tmp_path, etcd, caplog):
    with cystore.open(tmp_path / "a", **settings(etcd, "a")) as a:
        fill_replicated(a, 20)
        with cystore.open(tmp_path / "b", **SETTINGS) as other:
            fill(other, 50)
        with cystore.open(tmp_path / "b", **settings(etcd, "b")) as b:
            until(lambda: "start with an empty directory" in caplog.text)
            assert in_sync(etcd) == {"a"}
            assert len(list(b.scan())) == 50


def fill_replicated(store: cystore.MessageStore, count: int) -> None:
    for number in range(count):
        put(store, b"%d" % number)


def test_a_second_store_with_the_same_name_is_no_member(tmp_path, etcd, caplog):
    with cystore.open(tmp_path / "a", **settings(etcd, "a")) as a:
        put(a)
        with cystore.open(tmp_path / "b", **settings(etcd, "a")):
            until(lambda: "has this one's name" in caplog.text)
        put(a)
        assert in_sync(etcd) == {"a"}


@pytest.mark.parametrize(
    ("wrong", "names"),
    [
        ({"ha_group": ""}, "ha_group"),
        ({"ha_group": "a/b"}, "ha_group"),
        ({"ha_member": "x" * 65}, "ha_member"),
        ({"ha_member": "ä"}, "ha_member"),
        ({"ha_etcd_endpoints": ""}, "ha_etcd_endpoints"),
        ({"ha_etcd_endpoints": "ftp://x:1"}, "ha_etcd_endpoints"),
        ({"ha_etcd_endpoints": "http://x:99999"}, "ha_etcd_endpoints"),
        ({"ha_advertised_address": "nowhere"}, "ha_advertised_address"),
        ({"ha_listen_host": "0.0.0.0"}, "ha_advertised_address"),
        ({"ha_listen_host": "::"}, "ha_advertised_address"),
        ({"ha_lease_ms": 10}, "ha_lease_ms"),
        ({"min_in_sync_replicas": 0}, "min_in_sync_replicas"),
    ],
)
def test_settings_that_make_no_sense_are_refused(tmp_path: Path, wrong, names):
    known = {
        "broker_role": "elected",
        "ha_group": "g",
        "ha_member": "m",
        "ha_etcd_endpoints": "http://127.0.0.1:1",
    }
    with pytest.raises(cystore.StoreConfigError, match=names):
        cystore.open(tmp_path / "s", **{**SETTINGS, **known, "ha_listen_port": 10_912, **wrong})


def test_without_etcd_a_store_opens_and_is_a_replica(tmp_path):
    with Process() as alone:
        given = {
            **SETTINGS,
            "services": "all",
            "broker_role": "elected",
            "ha_group": "g",
            "ha_member": "m",
            "ha_listen_port": free_port(),
            "ha_etcd_endpoints": f"http://127.0.0.1:{free_port()}",
        }
        alone.do(OPENED, path=str(tmp_path / "s"), settings=given)
        assert alone.do(TRIED) == "StoreIsSlaveError"
        with pytest.raises(Failed, match="StoreIsSlaveError"):
            alone.do("store.put('T', b'x')")
        alone.do("store.close()")


def test_a_member_syncs_and_reports_in_the_kernel(tmp_path, etcd, monkeypatch):
    """Python does so once in each segment; then the kernel knows the segment's name."""
    slow = {"ha_in_sync_lag_ms": 30_000}  # on a busy host it is in sync nevertheless
    with (
        cystore.open(tmp_path / "a", **settings(etcd, "a", **slow)) as a,
        cystore.open(tmp_path / "b", **settings(etcd, "b", **slow)) as b,
    ):
        put(a)
        until(lambda: in_sync(etcd) == {"a", "b"})
        policy, asked = b._attached().appender.policy, set()
        make_durable = policy.make_durable
        monkeypatch.setattr(policy, "make_durable", lambda end: (asked.add(end), make_durable(end)))
        ends = set()
        for _ in range(2 * LOG_BYTES // 1000):
            done = put(a, bytes(500))
            ends.add(done.physical_offset + done.size_bytes)
            assert b._attached().control.flushed >= max(ends)
        assert ends - asked
        assert not b._attached().control.gathered, "nobody else appends to a member while it syncs"
