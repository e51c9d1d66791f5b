"""Goal: a delivery that dispatch keeps from its messages says so, with the cause, and delivers the others. Method: a
queue whose folder gives dispatch an error, and a process that holds the dispatch lock."""

from __future__ import annotations

import pytest

from tests.support.checks import check_closed
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

LEVELS = {"message_delay_level": "1s"}


def fill(store):
    for n in range(4):
        store.put("T", b"%d" % n, queue_id=n % 2, delay_level=1)


def refused(folder):
    folder.chmod(0o500)


def strange(folder):
    (folder / "New").mkdir()
    (folder / "New" / "0").mkdir()
    (folder / "New" / "0" / "strange").write_bytes(b"")


def a_file(folder):
    (folder / "New").write_bytes(b"")


@pytest.mark.parametrize("stop", [refused, strange, a_file])
def test_what_stops_dispatch_is_told_and_stops_nothing_else(path, late, caplog, unprivileged, stop):
    """Seen: `deliver` returned 0 without a word. Where access was refused, or a name was strange, it delivered nothing
    and every query failed, because of one queue's folder."""
    with open_small(path, **LEVELS) as store:
        fill(store)
        store.put("T", b"dispatched", queue_id=2, keys=("k",))
        store.dispatch()
        stop(path / "consumequeue")
        store.put("New", b"")
        store.put("T", b"late", queue_id=0, delay_level=1)
        assert [bytes(m.body) for m in store.query("T", "k")] == [b"dispatched"]
        assert store.get("New", 0, 0).messages == []
        caplog.clear()
        late(1_000)
        try:
            assert store.deliver() == 4
            assert f"{path}/commitlog: dispatch failed; delivering only dispatched messages: " in caplog.text
            assert f"[path {path}/consumequeue/New" in caplog.text
        finally:
            (path / "consumequeue").chmod(0o700)
        if stop is a_file:
            (path / "consumequeue" / "New").unlink()
        elif stop is strange:
            (path / "consumequeue" / "New" / "0" / "strange").unlink()
        assert store.deliver() == 1
        assert sorted(len(store.get("T", n, 0).messages) for n in range(3)) == [1, 2, 3]
    check_closed(path, {**SETTINGS, **LEVELS})


def test_who_holds_the_dispatch_lock_is_told(path, late, caplog, monkeypatch):
    monkeypatch.setattr("cystore.derived.reading.dispatch_help.HELP_WAIT_MS", 10)
    with open_small(path, **LEVELS) as store, Process() as holder:
        fill(store)
        holder.do(
            "import cystore; store = cystore.open(path, **settings); "
            "lock = store._attached().control.held('dispatch')",
            path=str(path),
            settings={**SETTINGS, **LEVELS},
        )
        holder.do("lock.__enter__()")
        late(1_000)
        assert store.deliver() == 0
        assert f"thread {holder.pid} has held the dispatch lock" in caplog.text
        holder.do("lock.__exit__(None, None, None)")
        assert store.deliver() == 4
