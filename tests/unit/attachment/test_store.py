"""Goal: a store is opened, shared, forked and closed without harm to anybody, or refused with a typed error that
names what is in the way. Method: directories of every wrong kind, other processes in every state, and each method of
a closed store."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import threading
import traceback
from pathlib import Path

import pytest

import cystore
from cystore.engine.files.checkpoint import read_checkpoint
from cystore.errors import (
    OffsetError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreLockedError,
    StoreNotWritableError,
    StorePermissionError,
)
from cystore.results import GetStatus
from cystore.system import store_lock
from tests.support.process import Failed, Process
from tests.support.small_stores import LOG_BYTES, SETTINGS, body_for, open_small

OPEN = "import cystore; store = cystore.open(path, **settings); parts = store._parts"
AS_JAVA = (
    "import fcntl, os; java = os.open(path, os.O_RDWR | os.O_CREAT); fcntl.lockf(java, fcntl.LOCK_EX, 1, 0)"
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "s"


@pytest.fixture
def store(path):
    with open_small(path) as store:
        yield store


def joined(path, **more) -> Process:
    process = Process()
    process.do(OPEN, path=str(path), settings={**SETTINGS, **more})
    return process


def bodies(store, topic: str = "T", queue_id: int = 0) -> list[bytes]:
    return [bytes(m.body) for m in store.get(topic, queue_id, 0, 1000).messages]


def contents(path: Path) -> dict[str, str]:
    return {
        str(file.relative_to(path)): hashlib.sha256(file.read_bytes()).hexdigest()
        if file.is_file()
        else "folder"
        for file in sorted(path.rglob("*"))
    }


# ------------------------------------------------------------------------------------------------- directories


def test_missing_directory_is_made_and_the_path_may_be_of_any_kind(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a/b/c", Path("relative"), str(tmp_path / "ünï cödé")):
        with open_small(name) as store:
            store.put("T", b"1")
            assert store.path.is_absolute()
            assert repr(store) == f"<MessageStore {str(store.path)!r}>"
        with open_small(name) as store:
            assert bodies(store) == [b"1"]


@pytest.mark.parametrize("given", ["", None, 5, b"bytes", ["list"], "nul\0", "\ud800"])
def test_what_is_no_path_is_refused(given):
    with pytest.raises(StoreConfigError, match="path must name a directory"):
        cystore.open(given)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("cystore+remote://r", "or be the text cystore://"),
        (Path("cystore://host1,host2/orders"), "or be the text cystore://"),
        ("cystore://host1,host2", "the URL of a store is"),
        ("cystore:///", "the URL of a store is"),
        ("cystore://a,b/orders?flush=sync", "without options"),
        ("cystore://user:secret@a/orders", "the URL of a store is"),
        ("cystore://var/orders", "write three slashes before a path, or var:10912"),
        ("cystore://a,/orders", "must be HOST:PORT"),
        ("cystore://a:70000,b/orders", "must be HOST:PORT"),
        ("cystore://[::1/orders", "is not a URL"),
        ("cystore://user:secret@\u2100/orders", "is not a URL"),
        ("cystore:/user:secret@a/orders", "or be the text cystore://"),
    ],
)
def test_a_url_that_names_no_place_is_refused(url, why, tmp_path, monkeypatch):
    """Seen: it made a folder of that name; the error repeated the password."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreConfigError, match=why) as error:
        cystore.open(url)
    assert "secret" not in "".join(traceback.format_exception(error.value))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "setting",
    [
        {"broker_role": "slave", "ha_master_address": "user:secret@a:1"},
        {
            "broker_role": "elected",
            "ha_group": "g",
            "ha_member": "a",
            "ha_etcd_endpoints": "http://user:secret@a:1",
        },
    ],
)
def test_an_address_has_no_password(setting, tmp_path):
    """Seen: it was taken for a part of the host's name, or left out without a word."""
    with pytest.raises(StoreConfigError, match=r"not '.*user:\*\*@a:1'") as error:
        cystore.open(tmp_path, **setting)
    assert "secret" not in "".join(traceback.format_exception(error.value))


def test_a_url_with_hosts_makes_a_slave_and_leaves_a_master(tmp_path):
    hosts = "host1,host2:7,[::1]"
    with cystore.open(f"cystore://{hosts}{tmp_path}/new%20one", **SETTINGS) as slave:
        assert slave.path == tmp_path / "new one"
        with pytest.raises(cystore.StoreIsSlaveError, match=r"host1:10912,host2:7,\[::1\]:10912"):
            slave.put("T", b"x")
    refused = pytest.raises(cystore.StoreIsSlaveError, match="elsewhere:1")
    with cystore.open(f"cystore://elsewhere:1{tmp_path}/new%20one", **SETTINGS) as slave, refused:
        slave.put("T", b"x")
    with open_small(tmp_path / "master") as master:
        master.put("T", b"1")
    for url in (f"cystore://{hosts}{tmp_path}/master", f"cystore://{tmp_path}/master"):
        with cystore.open(url, **SETTINGS) as master:
            master.put("T", b"2")
    with pytest.raises(StoreConfigError, match="do not give broker_role too"):
        cystore.open(f"cystore://{hosts}{tmp_path}/third", broker_role="slave", **SETTINGS)


def test_config_or_settings_and_never_both(tmp_path):
    with pytest.raises(StoreConfigError, match="not both"):
        cystore.open(tmp_path / "s", config=cystore.StoreConfig(), max_queues=5)
    with pytest.raises(StoreConfigError, match="max_queus"):
        cystore.open(tmp_path / "s", max_queus=5)
    with pytest.raises(StoreError, match="store_host"):
        cystore.open(tmp_path / "s", store_host="nonsense")


def test_foreign_directory_is_refused_and_left_alone(tmp_path):
    (tmp_path / "letters.txt").write_text("dear")
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match=r"no store|not a store"):
            open_small(tmp_path, read_only=read_only)
    assert contents(tmp_path) == {"letters.txt": hashlib.sha256(b"dear").hexdigest()}


def test_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").touch()
    for read_only in (False, True):
        with pytest.raises(StoreFormatError, match=r"not a directory|no store here"):
            open_small(tmp_path / "file", read_only=read_only)
    with pytest.raises(StoreError, match="file"):
        open_small(tmp_path / "file" / "below")


def test_reading_makes_no_directory(tmp_path):
    with pytest.raises(StoreFormatError, match="there is no store here"):
        open_small(tmp_path / "none", read_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(StoreFormatError, match=r"no store|not a store"):
        open_small(tmp_path / "empty", read_only=True)
    assert os.listdir(tmp_path) == ["empty"]
    assert os.listdir(tmp_path / "empty") == []


@pytest.mark.parametrize("mode", [0, 0o444, 0o111])
@pytest.mark.parametrize("read_only", [False, True])
def test_directory_out_of_reach_is_a_typed_error(tmp_path, unprivileged, mode, read_only):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"1")
    (tmp_path / "s").chmod(mode)
    with pytest.raises(StorePermissionError, match=str(tmp_path / "s")):
        open_small(tmp_path / "s", read_only=read_only)
    (tmp_path / "s").chmod(0o700)
    with open_small(tmp_path / "s", read_only=read_only) as store:
        assert bodies(store) == [b"1"]


@pytest.mark.parametrize(
    "name", ["commitlog/00000000000000000000", "lock", "checkpoint", "consumequeue/T/0/00000000000000000000"]
)
def test_unreadable_file_is_a_typed_error_with_its_path(tmp_path, unprivileged, name):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"1")
    (tmp_path / "s" / name).chmod(0)
    with pytest.raises(StorePermissionError, match=Path(name).name):
        open_small(tmp_path / "s").get("T", 0, 0)


def test_store_that_may_only_be_read_is_read(tmp_path, unprivileged):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"1", keys=("k",))
    for file in (tmp_path / "s").rglob("*"):
        file.chmod(0o555 if file.is_dir() else 0o444)
    (tmp_path / "s").chmod(0o555)
    before = contents(tmp_path / "s")
    with pytest.raises(StorePermissionError):
        open_small(tmp_path / "s")
    with open_small(tmp_path / "s", read_only=True) as store:
        assert bodies(store) == [b"1"]
        assert [bytes(m.body) for m in store.query("T", "k")] == [b"1"]
    assert contents(tmp_path / "s") == before
    (tmp_path / "s").chmod(0o700)


# ---------------------------------------------------------------------------------------- first in and last out


def test_abort_and_control_are_there_while_somebody_is(path):
    first = open_small(path)
    assert {"abort", "control", "lock"} <= set(os.listdir(path))
    with joined(path) as other:
        first.put("T", b"1")
        first.close()
        assert {"abort", "control"} <= set(os.listdir(path))
        assert other.do("[bytes(m.body) for m in store.get('T', 0, 0).messages]") == ["1"]
        other.do("store.close()")
    assert not {"abort", "control"} & set(os.listdir(path))


def test_last_one_out_flushes_and_dispatches(path):
    with open_small(path) as store:
        end = store.put_many([cystore.Message(topic="T", body=b"%d" % n, keys=("k",)) for n in range(10)])[-1]
    fields = read_checkpoint(path)
    assert fields.watermark == fields.index_watermark == end.physical_offset + end.size_bytes
    with open_small(path, read_only=True) as store:
        assert len(store.query("T", "k")) == 10
        assert store.recovery is not None


def test_killed_last_one_leaves_the_next_load_to_recover(path):
    with joined(path) as other:
        other.do("store.put_many([cystore.Message(topic='T', body=b'%d' % n) for n in range(50)])")
        other.kill()
    assert (path / "abort").exists()
    with open_small(path) as store:
        assert bodies(store) == [b"%d" % n for n in range(32)]
        assert len(list(store.scan())) == 50
        assert store.put("T", b"next").queue_offset == 50


def test_block_that_a_killed_process_left_is_never_trusted(path):
    with joined(path) as other:
        other.do("store.put('T', b'1')")
        other.kill()
    data = bytearray((path / "control").read_bytes())
    data[:] = os.urandom(4096) + data[4096:]
    (path / "control").write_bytes(data)
    with open_small(path) as store:
        assert bodies(store) == [b"1"]


def test_sizes_are_those_of_who_came_first(path):
    with (
        open_small(path) as store,
        joined(path, mapped_file_size_commit_log_bytes=LOG_BYTES, max_queues=7) as other,
    ):
        assert other.do("store._parts.config.mapped_file_size_commit_log_bytes") == LOG_BYTES
        assert other.do("store._parts.config.max_queues") == store.config.max_queues
        other.do("store.put('T', bytes(9000)); store.put('T', bytes(9000))")
        assert [m.physical_offset for m in store.scan()] == [0, LOG_BYTES]


# ------------------------------------------------------------------------------------------------ who may enter


def test_exclusive_store_keeps_others_out_and_enters_alone(path):
    with open_small(path, exclusive=True):
        for more in ({}, {"exclusive": True}, {"read_only": True}):
            with pytest.raises(StoreLockedError, match="open"):
                open_small(path, **more)
    with open_small(path), pytest.raises(StoreLockedError, match="open in another process"):
        open_small(path, exclusive=True)
    with open_small(path, exclusive=True) as store:
        store.put("T", b"1")


def test_store_that_a_jvm_has_open_is_refused(path):
    open_small(path).close()
    with Process() as jvm:
        jvm.do(AS_JAVA, path=str(path / "lock"))
        for more in ({}, {"exclusive": True}, {"read_only": True}):
            with pytest.raises(StoreLockedError):
                open_small(path, **more)
        jvm.kill()
    open_small(path).close()


def test_store_opened_twice_in_one_process_is_one_store(path):
    with open_small(path) as one, open_small(path) as other:
        one.put("T", b"1")
        other.put("T", b"2")
        assert bodies(one) == bodies(other) == [b"1", b"2"]
        one.close()
        assert other.put("T", b"3").queue_offset == 2


def test_directory_that_another_opener_makes_at_the_same_moment(path, monkeypatch):
    is_dir = Path.is_dir

    def made_meanwhile(self: Path) -> bool:
        was = is_dir(self)
        if self == path:
            os.makedirs(self, exist_ok=True)
        return was

    monkeypatch.setattr(Path, "is_dir", made_meanwhile)
    open_small(path).close()


def test_lock_file_deleted_under_live_processes(path, monkeypatch):
    monkeypatch.setattr(store_lock, "_DIRECTORY_WAIT_S", 0.0)
    with open_small(path) as store:
        (path / "lock").unlink()
        with pytest.raises(StoreLockedError, match="deleted or replaced"):
            open_small(path)
        store.put("T", b"1")
    with open_small(path) as store:
        assert bodies(store) == [b"1"]


def test_control_block_deleted_under_live_processes(path):
    with open_small(path) as store:
        (path / "control").unlink()
        with pytest.raises(StoreLockedError, match="the control block was deleted"):
            open_small(path)
        assert store.put("T", b"1").queue_offset == 0
    with open_small(path) as store:
        assert bodies(store) == [b"1"]


@pytest.mark.parametrize("damage", [b"", b"x" * 100, bytes(100_000)])
def test_control_block_replaced_under_live_processes(path, damage):
    with open_small(path) as store:
        (path / "control").unlink()
        (path / "control").write_bytes(damage)
        with pytest.raises(StoreFormatError, match="control"):
            open_small(path)
        store.put("T", b"1")


def test_overwritten_block_poisons_every_handle_and_the_files_recover(path):
    store = open_small(path)
    store.put("T", b"1")
    with open(path / "control", "r+b") as file:
        file.write(bytes(4096))
    uses = [
        lambda: store.put("T", b"2"),
        lambda: store.put_many([cystore.Message(topic="T", body=b"2")]),
        lambda: store.get("T", 0, 0),
        lambda: store.query("T", "k"),
        lambda: store.read(0),
        lambda: list(store.scan()),
        lambda: store.topics(),
        lambda: store.stats(),
        lambda: store.flush(),
        lambda: store.dispatch(),
        lambda: store.wait("T", 0, 5, 0.0),
        lambda: store.offset_by_time("T", 0, 5),
        lambda: store.set_writable(False),
    ]
    for use in uses:
        with pytest.raises(StoreFormatError, match="overwritten"):
            use()
    with pytest.raises(StoreFormatError, match="another layout"):
        open_small(path)
    store.close()
    assert (path / "abort").exists()
    with open_small(path) as store:
        assert bodies(store) == [b"1"]


# ---------------------------------------------------------------------------------------------------- read only


def test_reading_beside_writers_sees_what_they_put_dispatched_or_not(path):
    with open_small(path) as writer, open_small(path, read_only=True) as reader:
        writer.put("T", b"1", keys=("k",))
        for _ in range(2):
            assert bodies(reader) == [b"1"]
            assert len(reader.query("T", "k")) == 1
            writer.dispatch()
        assert [m.body for m in reader.scan()] == [b"1"]
        assert reader.wait("T", 0, 0, 0.0)
        assert not reader.wait("T", 0, 1, 0.0)
        writer.close()
        assert bodies(reader) == [b"1"]


def test_reading_alone_changes_nothing_on_disk(path):
    with joined(path) as other:
        other.do("store.put_many([cystore.Message(topic='T', body=bytes(3000), keys=('k',))] * 20)")
        other.kill()
    before = contents(path)
    with open_small(path, read_only=True) as reader:
        assert len(list(reader.scan())) == 20
        assert len(reader.query("T", "k")) == 20
        assert reader.topics() == {"T": {0: (0, 20)}}
    assert contents(path) == before


def test_writing_methods_of_a_reader_are_refused(path):
    open_small(path).close()
    for live in (False, True):
        writer = open_small(path) if live else None
        with open_small(path, read_only=True) as reader:
            for write in (
                lambda: reader.put("T", b""),
                lambda: reader.put_many([]),
                lambda: reader.put_many([cystore.Message(topic="T", body=b"")]),
                reader.flush,
                reader.dispatch,
                lambda: reader.set_writable(False),
            ):
                with pytest.raises(StoreNotWritableError, match="for reading only"):
                    write()
        if writer is not None:
            writer.close()


# --------------------------------------------------------------------------------------------- answers and numbers


@pytest.mark.parametrize("at", [-1, 1, 5, 10**12, 2**63 - 1])
def test_place_where_no_record_begins_is_an_error(store, at):
    store.put("T", b"1")
    with pytest.raises(StoreError) as caught:
        store.read(at)
    assert caught.value.offset == at


@pytest.mark.parametrize("at", [None, "0", 1.0, True])
def test_place_that_is_no_number_is_an_error(store, at):
    with pytest.raises(OffsetError, match="whole number"):
        store.read(at)


def test_blank_is_no_record(store):
    first = store.put("T", body_for(LOG_BYTES - 1000))
    store.put("T", body_for(2000))
    with pytest.raises(OffsetError, match="a blank at the end of a file"):
        store.read(first.size_bytes)


def test_numbers_tell_what_happened(store):
    results = store.put_many([cystore.Message(topic="T", body=b"x" * n, keys=("k",)) for n in range(5)])
    store.put("T", b"y", flush="sync")
    stats = store.stats()
    assert stats["put_count"] == 6
    assert stats["wrote"] == stats["put_bytes"] == stats["flushed"]
    assert stats["put_size_average_bytes"] == stats["put_bytes"] / 6
    assert sum(stats["put_latency"].values()) == 6
    assert list(stats["put_latency"])[:4] == ["<=0ms", "0~10ms", "10ms~50ms", "50ms~100ms"]
    assert list(stats["put_latency"])[-2:] == ["5s~10s", "10s~"]
    assert stats["dispatch_behind_bytes"] == stats["wrote"]
    assert store.dispatch() == stats["wrote"]
    assert store.dispatch() == 0
    assert store.stats()["dispatch_count"] == 6
    assert (stats["queues"], stats["holes"]) == (1, [])
    assert stats["last_store_timestamp_ms"] >= results[-1].store_timestamp_ms
    assert store.get("T", 0, 6).status is GetStatus.OFFSET_OVERFLOW_ONE


@pytest.mark.parametrize(
    ("call", "named"),
    [
        *((call, "timeout_s") for call in (
            "wait('T', 0, 5, timeout_s={})", "wait_log(10**9, timeout_s={})", "dispatch(timeout_s={})")),
        ("next_queue_offset('T', {})", "queue_id"),
        ("wait('T', {}, 5)", "queue_id"), ("wait('T', 0, {})", "queue_offset"), ("wait_log({}, 0)", "offset"),
        ("dispatch(max_bytes={})", "max_bytes"), ("scan({})", "offset"), ("scan(0, {})", "offset"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("wrong", ["'1'", "True", "float('nan')", "[]"])
def test_wrong_numbers_are_refused_by_name_and_waited_for_by_nobody(store, call, named, wrong):
    store.put("T", b"1")
    with pytest.raises(cystore.StoreError, match=named):
        eval(f"store.{call.format(wrong)}", {"store": store})


def test_the_next_queue_offset_counts_what_is_not_dispatched(store):
    assert store.next_queue_offset("T", 3) == 0
    for number in range(5):
        store.put("T", b"", queue_id=3)
        assert store.next_queue_offset("T", 3) == number + 1
    assert store.stats()["dispatched"] == 0
    assert store.next_queue_offset("T", 0) == store.next_queue_offset("U", 3) == 0
    with pytest.raises(cystore.MessageIllegalError, match="topic"):
        store.next_queue_offset(b"T", 3)


def test_timeouts_without_an_end_and_those_that_are_over(store):
    store.put("T", b"1")
    for timeout_s in (None, float("inf"), 10**400):
        assert store.wait("T", 0, 0, timeout_s)
        assert store.wait_log(0, timeout_s)
        store.dispatch(timeout_s=timeout_s)
    for timeout_s in (0, -1, float("-inf")):
        assert not store.wait("T", 0, 1, timeout_s)
        assert not store.wait_log(store.wrote_position, timeout_s)


def test_services_run_in_threads_and_end_with_the_store(path):
    before = {thread.name for thread in threading.enumerate()}
    with open_small(
        path, services="all", flush_interval_commit_log_ms=1, flush_commit_log_least_pages=0
    ) as store:
        names = {thread.name for thread in threading.enumerate()} - before
        assert names == {
            "cystore-flush",
            "cystore-flush-queues",
            "cystore-allocate",
            "cystore-reput",
            "cystore-schedule",
            "cystore-clean",
            "cystore-compact",
        }
        store.put("T", b"1", keys=("k",))
        slot = store._parts.control.find_queue("T", 0)
        ticks = threading.Event()
        while store._parts.control.queue_dispatched(slot) == 0 or store.stats()["flushed"] == 0:
            ticks.wait(0.002)
    assert {thread.name for thread in threading.enumerate()} <= before  # a thread of the test before may end


def test_process_that_ends_closes_its_stores(path):
    code = "import sys; from tests.support.small_stores import open_small; open_small(sys.argv[1]).put('T', b'1')"
    subprocess.run([sys.executable, "-c", code, str(path)], check=True)
    assert not (path / "abort").exists()
    with open_small(path) as store:
        assert bodies(store) == [b"1"]


def test_process_that_is_terminated_in_a_put_leaves_a_store_that_opens(path):
    with joined(path) as other:
        other.send("while True: store.put('T', bytes(2000))")
        with open_small(path) as store:
            while store.stats()["put_count"] < 20:
                store.wait("T", 0, 20, 5)
            other.signal(signal.SIGTERM)
            assert other.wait() == -signal.SIGTERM
            count = len(list(store.scan()))
            assert store.put("T", b"next").queue_offset == count


def test_method_that_fails_in_another_process_names_its_error(path):
    with joined(path) as other, pytest.raises(Failed, match="MessageIllegalError: topic"):
        other.do("store.put('', b'')")
