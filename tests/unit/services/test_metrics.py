"""Goal: each exported number is the store's. Method: a store with known content, its text read by Prometheus's own
parser."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from unittest import mock

import pytest

import cystore
from cystore._native.memory.mapping import mapped_files
from cystore.cli.program import main
from cystore.consumers.table import OffsetTable
from cystore.errors import MessageIllegalError, StoreNotWritableError
from cystore.metrics import Collector, Metric, exposition, listener, metrics
from cystore.services.duty_table import DutyRun, Outcome
from tests.support.process import Process
from tests.support.small_stores import open_small

pytestmark = pytest.mark.unsanitized  # about what is counted, which no kernel does


@pytest.fixture
def path(tmp_path):
    with open_small(tmp_path / "s") as store:
        for number in range(7):
            store.put("orders", b"x" * 100, queue_id=number % 2)
        store.put("bills", b"y", delay_level=3)
        store.groups.commit("team", "orders", 0, 1)
        store.get("orders", 0, 0, group="team")
        yield store.path


def by_name(found: list[Metric]) -> dict[str, dict[str, float]]:
    return {
        metric.name: {" ".join(labels.values()): value for labels, value in metric.samples}
        for metric in found
    }


def test_numbers_are_the_stores_in_every_process(path):
    with cystore.open(path, read_only=True) as other:  # whoever counted
        found, stats = by_name(metrics(other)), other.stats()
    assert found["cystore_put_messages_total"] == {"": 8}
    assert (
        found["cystore_topic_messages"]["orders"] == found["cystore_topic_put_messages_total"]["orders"] == 7
    )
    assert found["cystore_group_lag_messages"] == {"team": 3}
    assert found["cystore_group_get_total"] == {"team": 1}
    assert found["cystore_group_get_messages_total"] == {"team": 4}
    assert found["cystore_delayed_messages"] == {"3": 1}
    assert found["cystore_log_end_offset_bytes"] == {"": stats["wrote"]}
    assert 0 < found["cystore_disk_used_ratio"][""] <= 1
    buckets = list(found["cystore_put_duration_seconds"].items())
    assert buckets[0][0] == "0.001" and buckets[1][0] == "0.01" and buckets[-1] == ("+Inf", 8)
    assert [value for _, value in buckets] == sorted(value for _, value in buckets)


def test_groups_fall_behind_in_bytes_messages_and_time(tmp_path):
    with open_small(tmp_path / "s") as store:
        results = [store.put("T", b"x") for _ in range(5)]
        store.groups.commit("team", "T", 0, 0)
        for raw in (False, True):
            store.get("T", 0, 0, 2, group="team", raw=raw)
            reads = store.groups.reads("team")["T", 0]
            assert reads.behind_messages == 3
            assert reads.behind_bytes == store.wrote_position - results[2].physical_offset
            assert 0 <= reads.behind_ms < 60_000
            found = by_name(metrics(store))
            assert found["cystore_group_behind_messages"] == {"team": 3}
            assert found["cystore_group_behind_seconds"] == pytest.approx({"team": reads.behind_ms / 1000})
            store.get("T", 0, 0, 2, tags="none", group="team")  # which says nothing about where the group is
            assert store.groups.reads("team")["T", 0][3:] == reads[3:]
            store.get("T", 0, 2, 3, group="team", raw=raw)
            assert store.groups.reads("team")["T", 0][3:] == (0, 0, 0)
    with open_small(tmp_path / "s", disk_fall_recorded=False) as store:
        store.get("T", 0, 0, 2, group="other")
        assert store.groups.reads("other")["T", 0][3:] == (0, 0, 0)


def test_bytes_are_counted_by_topic(path):
    with cystore.open(path, read_only=True) as store:
        sizes: dict[str, int] = {}
        for message in store.scan():
            sizes[message.topic] = sizes.get(message.topic, 0) + message.size_bytes
        assert by_name(metrics(store))["cystore_topic_put_bytes_total"] == sizes
        assert store.put_bytes_by_topic() == sizes


READS = """
import sys, cystore
with cystore.open(sys.argv[1]) as store:
    for _ in range(int(sys.argv[2])):
        assert len(store.get("orders", 0, 0).messages) == 4
    store.get("orders", 0, 1000)
    store.query("orders", "none")
"""


def test_reads_of_all_processes_are_counted(path):
    with cystore.open(path) as store:
        before = store.stats()
        for count in (1, 100):
            subprocess.run([sys.executable, "-c", READS, str(path), str(count)], check=True)
        after = store.stats()
        assert after["get_count"] - before["get_count"] == 103
        assert after["get_found_count"] - before["get_found_count"] == 101
        assert after["get_message_count"] - before["get_message_count"] == 404
        assert after["query_count"] - before["query_count"] == 2
        assert sum(after["get_latency"].values()) == after["get_count"]
        found = by_name(metrics(store))
        assert (
            found["cystore_get_duration_seconds"]["+Inf"]
            == found["cystore_get_total"][""]
            == after["get_count"]
        )


def test_a_read_only_handle_reads_the_counters_and_adds_nothing(path):
    with cystore.open(path, read_only=True) as other:
        before = other.stats()
        other.get("orders", 0, 0)
        assert other.stats()["get_found"] == 1
        assert other.stats()["get_count"] == before["get_count"]


def test_a_forked_child_counts_its_own_reads_only(path):
    with cystore.open(path) as store:
        store.get("orders", 0, 0)
        before = store.stats()["get_count"]
        for _ in range(3):
            store.get("orders", 0, 0)
        child = os.fork()
        if child == 0:
            store.get("orders", 0, 0)
            store.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert store.stats()["get_count"] == before + 4


def test_failed_and_slow_puts_are_counted_and_told(tmp_path, caplog):
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x")
        with pytest.raises(MessageIllegalError):
            store.put("bad topic", b"x")
        assert store.stats()["put_failed"] == 0
        store.set_writable(False)
        for put in (
            lambda: store.put("T", b"x"),
            lambda: store.put_many([cystore.Message(topic="T", body=b"x")]),
        ):
            with pytest.raises(StoreNotWritableError):
                put()
        assert store.stats()["put_failed"] == 2
        store.set_writable(True)
        tell = store._attached().appender.policy.slow_put
        for took_ms in (600, 700):
            tell(took_ms, "was appended")
        assert by_name(metrics(store))["cystore_put_slow_total"] == {"": 2}
        assert [
            record.message.partition(": ")[2] for record in caplog.records if "a put was" in record.message
        ] == ["a put was appended after 600 ms"]


def test_a_put_that_waits_for_the_lock_is_slow(tmp_path, caplog):
    """Real: another thread has the append lock for longer than 500 ms."""
    with open_small(tmp_path / "s") as store:
        store.put("T", b"x")
        control, held, waits = store._attached().control, threading.Event(), threading.Event()

        def hold() -> None:
            with control.held("append"):
                held.set()
                waits.wait(0.7)

        holder = threading.Thread(target=hold)
        holder.start()
        held.wait()
        store.put("T", b"y")
        holder.join()
        stats = store.stats()
        assert stats["put_slow"] == 1 and stats["put_time_max_ms"] > 500
        latency = stats["put_latency"]
        slow = list(latency)[list(latency).index("500ms~1s") :]  # on a busy machine it may be a longer time
        assert sum(latency[label] for label in slow) == 1
        assert "a put was appended after" in caplog.text


def test_a_put_that_is_stopped_inside_is_slow(tmp_path):
    """Ordinary puts look at an exact clock only after a tick of a coarse one. The process is stopped at any place, so a
    few tries may be between two puts. It has all its room and pages, so no put waits for them."""
    size = 256 << 20
    settings = {
        "mapped_file_size_commit_log_bytes": size,
        "allocate_ahead_bytes": size,
        "populate_ahead_bytes": 0,
    }
    with open_small(tmp_path / "s", **settings) as store, Process() as writer:
        writer.do(
            "from tests.support.small_stores import open_small; store = open_small(path, **settings)",
            path=str(tmp_path / "s"),
            settings=settings,
        )
        writer.do("for _ in range(100): store.put('T', b'x' * 100)")

        def slow() -> int:
            stats = store.stats()
            return int(stats["put_count"] - stats["put_latency"]["<=0ms"])

        def ended() -> bool:
            return bool(select.select([writer.answers], [], [], 0)[0])

        before = slow()
        writer.send("for _ in range(1_000_000): store.put('T', b'x' * 100)")  # less than one file
        while slow() == before and not ended():
            writer.stop()
            count = store.stats()["put_count"]
            select.select([], [], [], 0.02)  # the time that a put takes is what is counted
            writer.go_on()
            while store.stats()["put_count"] < count + 2 and not ended():
                os.sched_yield()
        assert slow() > before


def test_puts_that_wait_for_room_are_counted(tmp_path):
    with open_small(tmp_path / "s", services=()) as store:
        before = store.stats()
        for _ in range(40):
            store.put("T", b"x" * 2000)
        stats = store.stats()
        assert stats["files_made"] > before["files_made"]
        assert stats["room_requests"] > before["room_requests"]
        assert 0 <= stats["room_wait_max_ms"] <= stats["room_wait_ms"]


def test_mappings_of_the_process_are_counted(path):
    with cystore.open(path) as store:
        message = store.read(0)
        stats = store.stats()
        assert stats["mapped_files"] >= 2 and stats["mapped_bytes"] >= 2 * 4096
    body = message.body
    held = mapped_files()
    assert held < stats["mapped_files"]
    del message, body
    assert mapped_files() == held - 1


def test_prometheus_reads_the_text(path, capsys):
    parser = pytest.importorskip("prometheus_client.parser", reason="pip install 'cystore[metrics]'")
    assert main(["metrics", str(path)]) == 0
    families = {
        family.name: family for family in parser.text_string_to_metric_families(capsys.readouterr().out)
    }
    assert families["cystore_put_messages"].type == "counter"
    assert families["cystore_put_duration_seconds"].type == "histogram"
    assert families["cystore_group_lag_messages"].samples[0].labels == {"group": "team"}


def test_prometheus_client_serves_the_store(path):
    client = pytest.importorskip("prometheus_client", reason="pip install 'cystore[metrics]'")
    registry = client.CollectorRegistry()
    with cystore.open(path, read_only=True) as store:
        registry.register(Collector(store))
        text = client.generate_latest(registry).decode()
        label = {"store": str(path)}
        assert registry.get_sample_value("cystore_put_messages_total", label) == 8
        assert registry.get_sample_value("cystore_put_duration_seconds_count", label) == 8
        assert {line for line in text.splitlines() if line.startswith("# TYPE")} >= {
            line for line in exposition(metrics(store)).splitlines() if line.startswith("# TYPE")
        }


@pytest.mark.parametrize("at_once", [True, False])
def test_one_process_serves_several_stores(path, tmp_path, at_once):
    """Seen: a second Collector ended in an error about a hundred names."""
    client = pytest.importorskip("prometheus_client", reason="pip install 'cystore[metrics]'")
    registry = client.CollectorRegistry(auto_describe=True)
    with cystore.open(path, read_only=True) as first, open_small(tmp_path / "other") as second:
        second.put("orders", b"1")
        for stores in [(first, second)] if at_once else [(first,), (second,)]:
            registry.register(Collector(*stores))
        for store, count in ((first, 8), (second, 1)):
            for name in ("cystore_put_messages_total", "cystore_put_duration_seconds_count"):
                assert registry.get_sample_value(name, {"store": str(store.path)}) == count
        text = client.generate_latest(registry).decode()
        assert text.count("# TYPE cystore_queues gauge") == (1 if at_once else 2)
    with pytest.raises(TypeError, match="needs a store"):
        Collector()


def test_labels_are_escaped():
    text = exposition([Metric("cystore_x", "gauge", "x", [({"topic": 'a"\\\n'}, 1.0)])])
    assert text.splitlines()[2] == r'cystore_x{topic="a\"\\\n"} 1'


def test_labels_that_prometheus_would_refuse():
    """It refuses a whole scrape for one label that is not UTF-8, or has a NUL."""
    text = exposition([Metric("cystore_x", "gauge", "x", [({"topic": "a\0\ud800ä"}, 1.0)])])
    assert text.encode().decode().splitlines()[2] == 'cystore_x{topic="a\ufffd?ä"} 1'


def test_a_histogram_with_its_sum():
    samples = [({"name": "a", "le": "1"}, 2.0), ({"name": "a", "le": "+Inf"}, 3.0)]
    metric = Metric("cystore_x", "histogram", "x", samples, [({"name": "a"}, 4.5)]).of_store("/s")
    assert exposition([metric]).splitlines()[2:] == [
        'cystore_x_bucket{store="/s",name="a",le="1"} 2',
        'cystore_x_bucket{store="/s",name="a",le="+Inf"} 3',
        'cystore_x_sum{store="/s",name="a"} 4.5',
        'cystore_x_count{store="/s",name="a"} 3',
    ]


def test_the_last_runs_of_duties(path):
    with cystore.open(path) as store:
        assert by_name(metrics(store))["cystore_duty_runs_total"] == {}
        store.duties.ran("clean_expired", DutyRun(1_500, 10, 0, Outcome.FAILED))
        found = by_name(metrics(store))
    assert found["cystore_duty_last_run_timestamp_seconds"] == {"clean_expired": 1.5}
    assert found["cystore_duty_failed"] == found["cystore_duty_runs_total"] == {"clean_expired": 1}


def test_the_command_writes_json(path, capsys):
    assert main(["metrics", str(path), "--json"]) == 0
    rows = {row["name"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}
    assert rows["cystore_group_lag_messages"]["samples"] == [{"labels": {"group": "team"}, "value": 3}]


def test_a_scrape_reads_the_table_of_groups_once(tmp_path, monkeypatch):
    """Seen: once for each queue of each group, after a look at every row: a third of a second for 1,000 groups."""
    with cystore.open(tmp_path / "s") as store:
        store.put("T", b"one")
        for number in range(20):
            store.get("T", 0, 0, group=f"team{number}")
            store.groups.commit(f"team{number}", "T", 0, 0)
        calls, real = [], OffsetTable._rows_from

        def counted(self, begin, end):
            calls.append((begin, end))
            return real(self, begin, end)

        monkeypatch.setattr(OffsetTable, "_rows_from", counted)
        found = {metric.name: metric.samples for metric in metrics(store)}
        assert len(calls) == 1
        assert len(found["cystore_group_get_total"]) == 20
        assert all(value == 1 for _, value in found["cystore_group_get_total"])


def test_a_damaged_cursor_fails_no_scrape(tmp_path):
    with cystore.open(tmp_path) as store:
        for name in ("sound", "damaged"):
            with store.dispatchers.add(name, lambda messages: None):
                pass
        path = tmp_path / "config" / "dispatcher.damaged"
        path.write_bytes(b"x" * path.stat().st_size)
        found = {metric.name: metric.samples for metric in metrics(store)}
        assert found["cystore_dispatcher_damaged"] == [({"dispatcher": "damaged"}, 1)]
        assert [labels for labels, _ in found["cystore_dispatcher_lag_bytes"]] == [{"dispatcher": "sound"}]
        with pytest.raises(cystore.StoreFormatError, match="damaged"):
            store.dispatchers.states()


def test_damaged_ranges_are_counted(path):
    """Seen: the metrics of a store with one raised AttributeError."""
    with cystore.open(path) as store:
        store._attached().manifest.add_damage(100, 200, "bad checksum")
        store._attached().manifest.add_damage(300, 350, "bad checksum")
        assert by_name(metrics(store))["cystore_hole_bytes"] == {"": 150}


def test_a_listener_without_a_descriptor_waits(monkeypatch, caplog):
    """Seen: 215,451 tries to accept in a second, without a word. The client waits, and gets its answer later."""
    monkeypatch.setattr(listener, "ACCEPT_S", 0.05)
    served = listener.Listener(listener.bound("127.0.0.1", 0, ""), lambda: "a 1\n")
    tries, accept = [], served._socket.accept

    def without_descriptors() -> object:
        tries.append(len(tries))
        if len(tries) <= 3:
            raise OSError(errno.EMFILE, "Too many open files")
        return accept()

    monkeypatch.setattr(served, "_socket", mock.Mock(wraps=served._socket, accept=without_descriptors))
    begun_s = time.monotonic()
    thread = threading.Thread(target=served.serve)
    thread.start()
    with urllib.request.urlopen(served.url, timeout=60) as answer:
        assert answer.read() == b"a 1\n"
    served.stop()
    thread.join()
    assert time.monotonic() - begun_s >= 3 * 0.05
    assert caplog.text.count("a client of the metrics waits") == 1


@pytest.mark.parametrize("says", [b"", b"GET /metrics HTTP/1.1\r\nslow: ", b"GET /metrics HTTP/1.1\r\n\r\n"])
def test_many_clients_that_hang_keep_nobody_out(monkeypatch, says):
    """They send nothing, half a request, or read no answer. Seen: 2,000 clients delayed a scrape by five minutes."""
    for name in ("HEAD_S", "SEND_S"):
        monkeypatch.setattr(listener, name, 600.0)  # so the time that a client has does not help
    monkeypatch.setattr(listener, "CONNECTIONS_MOST", 4)
    text = "a 1\n" * 3_000_000  # more than the buffers of a connection take
    served = listener.Listener(listener.bound("127.0.0.1", 0, ""), lambda: text)
    address = served._socket.getsockname()
    thread = threading.Thread(target=served.serve)
    thread.start()
    hanging = []
    try:
        for _ in range(12):
            hanging.append(socket.create_connection(address))
            hanging[-1].sendall(says)
        with urllib.request.urlopen(served.url, timeout=60) as answer:
            assert answer.read() == text.encode()
    finally:
        for client in hanging:
            client.close()
        served.stop()
        thread.join()
    for _ in range(4):
        assert served._free.acquire(timeout=60)  # all answers have ended
