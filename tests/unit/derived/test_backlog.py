"""Goal: what waits to be dispatched stays small where any service runs, and a read-only handle sees all that was
acknowledged. Method: a writer that never reads, beside real processes that only read."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from typing import Any

import pytest

import cystore
from cystore import clock
from cystore.attachment.service_threads import DISPATCH_WAIT_MS
from cystore.derived.dispatch import backlog
from cystore.derived.dispatch.backlog import BOUND_BYTES, BacklogKeeper
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.engine.files.progress import Progress
from cystore.results import GetStatus
from tests.support.process import Process
from tests.unit.derived.test_online_damage import BODY_AT, FILE_BYTES, flip, open_store

MIB = 1024 * 1024
OPEN = "import cystore; store = cystore.open(path, read_only=True)"


def read_all(process: Process, topic: str, **more: object) -> list[str]:
    return process.do(
        """
found, offset = [], 0
while True:
    result = store.get(topic, 0, offset, count, raw=False)
    if result.status is not cystore.GetStatus.FOUND:
        break
    found += [bytes(m.body).decode() for m in result.messages]
    offset = result.next_offset
found
""",
        topic=topic,
        count=more.get("count", 32),
    )


@pytest.mark.parametrize("services", [("flush",), ("allocate",), ("flush", "allocate")])
def test_a_writer_with_any_service_dispatches_what_it_wrote(tmp_path, services):
    """Seen: the default services never dispatched, so cleaning removed nothing and the first reader paid for the
    whole backlog."""
    with cystore.open(
        tmp_path,
        mapped_file_size_commit_log_bytes=FILE_BYTES,
        flush_interval_commit_log_ms=50,
        services=services,
    ) as store:
        for n in range(100):
            store.put("T", b"%d" % n)
        until = time.monotonic() + 30
        while store.stats()["dispatch_behind_bytes"]:
            assert time.monotonic() < until
            store.wait_log(store.wrote_position, 0.05)


def test_a_writer_that_is_faster_than_its_services_helps_to_dispatch(tmp_path, monkeypatch):
    """Seen: nothing slowed a writer that was faster than the service thread. Here that thread does nothing at all."""
    monkeypatch.setattr(BacklogKeeper, "run_once", lambda self: Progress(0))
    with cystore.open(tmp_path, services="allocate", mapped_file_size_commit_log_bytes=32 * MIB) as store:
        worst, body = 0, bytes(256 * 1024)
        for _ in range(640):
            store.put("T", body)
            worst = max(worst, store.stats()["dispatch_behind_bytes"])
        assert worst <= BOUND_BYTES + 2 * MIB


def test_a_writer_does_not_wait_for_a_dispatcher_that_stands_still(tmp_path, monkeypatch):
    monkeypatch.setattr(BacklogKeeper, "run_once", lambda self: Progress(0))
    with cystore.open(tmp_path, services="allocate", mapped_file_size_commit_log_bytes=32 * MIB) as store:
        body = bytes(256 * 1024)
        with Process() as other:
            other.do(
                "import cystore; store = cystore.open(path, services='none')\n"
                "held = store._attached().control.held('dispatch'); held.__enter__()",
                path=str(tmp_path),
            )
            for _ in range(300):
                store.put("T", body)
            assert store.stats()["dispatch_behind_bytes"] > BOUND_BYTES + 2 * MIB
            other.do("held.__exit__(None, None, None); store.close()")
        store.dispatch()
        assert store.topics()["T"][0].max_offset == 300


class Recorder:
    """A dispatcher beside a fast writer: after each turn there is another message. `waits` are the waits of its turns
    for another dispatcher, in ms."""

    def __init__(self, store: cystore.MessageStore) -> None:
        self.store = store
        self.waits: list[int] = []

    def run_once(self, budget_bytes: int, *, timeout_ms: int, one_turn: bool) -> Progress:
        self.waits.append(timeout_ms)
        done = self.store.dispatch()
        self.store.put("T", bytes(2000))
        return Progress(done)


def test_the_service_waits_for_a_writer_of_its_process_and_continues_at_once(tmp_path, monkeypatch):
    """Seen: it paused for 20 ms whenever a writer was dispatching, so the writer dispatched nearly all by itself."""
    for name in ("MAX_BYTES", "HELP_BYTES"):
        monkeypatch.setattr(backlog, name, 1000)
    with cystore.open(tmp_path, services=()) as store:
        store.put("T", bytes(2000))
        dispatcher = Recorder(store)
        keeper = BacklogKeeper(store._attached().control, dispatcher)  # type: ignore[arg-type]
        assert keeper.run_once().more
        keeper.relieve()
        assert keeper.run_once().more
        assert keeper.run_once().more
        assert dispatcher.waits == [0, backlog.HELP_WAIT_MS, backlog.TURN_WAIT_MS, 0]


def test_the_thread_that_dispatches_sleeps_while_another_one_has_the_lock(tmp_path, monkeypatch):
    """Seen: beside a stopped process that was dispatching, the thread asked for the lock all the time, and took a whole
    processor."""
    waits: list[int] = []
    asked, run_once = threading.Event(), Dispatcher.run_once

    def watched(self: Dispatcher, *arguments: Any, timeout_ms: int = 0) -> Progress:
        waits.append(timeout_ms)
        if self._control.dispatched < self._control.wrote:
            asked.set()
        return run_once(self, *arguments, timeout_ms=timeout_ms)

    monkeypatch.setattr(Dispatcher, "run_once", watched)
    with cystore.open(tmp_path, services="reput") as store:
        with store._attached().control.held("dispatch"):
            store.put("T", b"")
            assert asked.wait(30)
        assert set(waits) == {DISPATCH_WAIT_MS}


@pytest.mark.parametrize("count", [1, 7, 32])
def test_a_read_only_handle_reads_what_nobody_dispatched(tmp_path, count):
    """Seen: beside pure writers a read-only handle saw NO_MESSAGE_IN_QUEUE for ever."""
    with open_store(tmp_path) as store, Process() as reader:
        for n in range(10):
            store.put("T", b"%d" % n)
        store.dispatch()
        reader.do(OPEN, path=str(tmp_path))
        for n in range(10, 300):
            store.put("other", b"x" * 500)
            store.put("T", b"%d" % n, keys=(f"k{n}", "all"), tags="even" if n % 2 == 0 else "odd")
        assert store.wrote_position > 2 * FILE_BYTES
        assert read_all(reader, "T", count=count) == [str(n) for n in range(300)]
        assert reader.do("store.get('T', 0, 300).behind") is False
        for n in range(300, 310):
            store.put("T", b"%d" % n, keys="all")
        assert reader.do("[bytes(m.body).decode() for m in store.get('T', 0, 300).messages]") == [
            str(n) for n in range(300, 310)
        ]
        assert reader.do("[bytes(m.body).decode() for m in store.query('T', 'all', 3)]") == [
            "309",
            "308",
            "307",
        ]
        assert reader.do("[bytes(m.body).decode() for m in store.query('T', 'k20')]") == ["20"]
        assert reader.do(
            "[bytes(m.body).decode() for m in store.get('T', 0, 11, 2, tags='even').messages]"
        ) == [
            "12",
            "14",
        ]
        assert reader.do("store.wait('T', 0, 309, 0)") and not reader.do("store.wait('T', 0, 310, 0)")
        assert reader.do("list(store.topics()['T'][0])") == [0, 310]
        assert store.stats()["dispatch_behind_bytes"] > 0
        store.dispatch()
        assert read_all(reader, "T", count=count) == [str(n) for n in range(310)]


def test_a_read_only_handle_finds_times_that_nobody_dispatched(tmp_path):
    """Seen: `offset_by_time` gave the last dispatched message for every later time, and `catch_up` the dispatched
    position."""
    with open_store(tmp_path) as store, Process() as reader:
        reader.do(OPEN, path=str(tmp_path))
        assert reader.do("store.offset_by_time('T', 0, 0)") == 0
        stamps: list[int] = []
        for n in range(12):
            while stamps and clock.now_ms() <= stamps[-1] + 3:
                pass
            stamps.append(store.put("T", b"%d" % n).store_timestamp_ms)
            store.put("other", b"x" * 1500)
            if n == 5:
                store.dispatch()
        assert store.stats()["dispatched"] < store.wrote_position
        asked = [ms + more for ms in stamps for more in (-1, 0, 1)] + [0, stamps[-1] + 10_000]
        found = reader.do("[store.offset_by_time('T', 0, ms) for ms in asked]", asked=asked)
        bound = (
            "[store.offset_by_time('T', 0, ms, boundary=one) for one in ('lower', 'upper') for ms in asked]"
        )
        bounds = reader.do(bound, asked=asked)
        assert reader.do("store.catch_up()") == store.wrote_position
        assert reader.do("store.offset_by_time('other', 0, ms)", ms=stamps[-1] + 10_000) == 11
        assert store.stats()["dispatched"] < store.wrote_position
        store.dispatch()
        assert found == [store.offset_by_time("T", 0, ms) for ms in asked]
        assert found[1::3][:12] == list(range(12))
        lower = [sum(one < ms for one in stamps) for ms in asked]
        upper = [max(sum(one <= ms for one in stamps) - 1, 0) for ms in asked]
        assert bounds == [*lower, *upper]


def test_damage_in_the_tail_does_not_hide_what_stands_before_it(tmp_path: Path):
    """A read-only handle cannot list damage; a process that dispatches does, and then all of them step over it."""
    with open_store(tmp_path) as store, Process() as reader:
        reader.do(OPEN, path=str(tmp_path))
        puts = [store.put("T", b"%d" % n) for n in range(6)]
        flip(tmp_path, puts[3].physical_offset + BODY_AT)
        assert read_all(reader, "T")[:3] == ["0", "1", "2"]
        store.dispatch()
        assert store.get("T", 0, 0).status is GetStatus.FOUND
        assert read_all(reader, "T") == ["0", "1", "2", "4", "5"]


def test_dispatch_on_a_full_disk_is_told_in_one_line(tmp_path, monkeypatch, caplog):
    """Seen: each reader, and each put that needed room, logged a traceback every time."""
    turns = []

    def refuse(*_, **__):
        turns.append(len(turns))
        raise cystore.StoreFullError(f"{len(turns)} bytes are free")

    with cystore.open(tmp_path / "store", services=()) as store:
        store.put("T", b"body")
        parts = store._attached()
        monkeypatch.setattr("cystore.derived.dispatch.dispatcher.Dispatcher.run_once", refuse)
        monkeypatch.setattr("cystore.derived.dispatch.backlog.HELP_BYTES", 0)
        keeper = BacklogKeeper(parts.control, parts.dispatcher)
        for _ in range(3):
            keeper.relieve()
            assert list(store.query("T", "none")) == []
        monkeypatch.undo()
    assert len(turns) == 6
    assert [record.exc_info for record in caplog.records] == [None, None]
    assert caplog.messages[0] == "dispatch failed and will be tried again: 1 bytes are free"
    assert caplog.messages[1].endswith("reading only dispatched messages: 2 bytes are free")
