"""Goal: a reader gets a true answer beside a dispatcher that stands still, beside a cleaner, and where records are
damaged. Method: another process holds the dispatch lock; a clean runs between the steps of a `get`; bytes of the log
are changed under a live store."""

from __future__ import annotations

import logging

import pytest

from cystore.results import GetStatus
from tests.support.clock import turn
from tests.support.process import Process
from tests.unit.derived.test_online_damage import AT, BODY_AT, change, flip, open_store

# ------------------------------------------------------------------ a dispatcher that stands still


def test_behind_a_dispatcher_that_stands_still_no_reader_is_sent_back(tmp_path, monkeypatch):
    """Seen: a reader was told `next_offset` 0 with OFFSET_OVERFLOW_BADLY or NO_MESSAGE_IN_QUEUE for acknowledged
    offsets, and began again at the start of its queue."""
    monkeypatch.setattr("cystore.derived.reading.dispatch_help.HELP_WAIT_MS", 10)
    with open_store(tmp_path) as store, Process() as other:
        for n in range(3):
            store.put("T", b"%d" % n)
        store.dispatch()
        other.do(
            "import cystore; store = cystore.open(path, services=()); turn = "
            "store._parts.control.held('dispatch'); turn.__enter__()",
            path=str(tmp_path),
        )
        for n in range(3, 6):
            store.put("T", b"%d" % n)
        store.put("new", b"0")
        result = store.get("T", 0, 0)
        assert (result.status, len(result.messages), result.behind) == (GetStatus.FOUND, 3, True)
        for asked in (3, 4, 5, 6):
            result = store.get("T", 0, asked)
            assert (result.status, result.next_offset) == (GetStatus.OFFSET_OVERFLOW_ONE, asked)
            assert result.behind
        result = store.get("new", 0, 0)
        assert (result.status, result.next_offset, result.behind) == (
            GetStatus.OFFSET_OVERFLOW_ONE,
            0,
            True,
        )
        assert store.get("T", 0, 7).status is GetStatus.OFFSET_OVERFLOW_BADLY
        other.kill()
        result = store.get("T", 0, 3)
        assert (result.status, result.next_offset, result.behind) == (GetStatus.FOUND, 6, False)
        assert store.get("T", 0, 6).behind is False


# ------------------------------------------------------------------------------- a query meets damage


@pytest.mark.parametrize("what", ["body", "key", "magic"])
def test_a_query_gives_the_whole_records_and_names_the_damaged_one(tmp_path, caplog, what):
    """Seen: one old damaged record of a key made `query` raise CorruptRecordError, although four records were whole."""
    with open_store(tmp_path) as store:
        puts = [store.put("T", b"%d" % n, keys="key") for n in range(5)]
        store.dispatch()
        at = puts[2].physical_offset
        match what:
            case "body":
                flip(tmp_path, at + BODY_AT)
            case "key":
                flip(tmp_path, at + puts[2].size_bytes - 1)
            case "magic":
                change(tmp_path, at + AT["magic"], b"\0")
        with caplog.at_level(logging.ERROR, "cystore"):
            for found in (store.query("T", "key"), store.query("T", "key", 10)):
                assert isinstance(found, list)
                assert [bytes(message.body) for message in found] == [b"4", b"3", b"1", b"0"]
                assert [error.offset for error in found.damaged] == [at]
        assert str(at) in caplog.text
        assert store.query("T", "other").damaged == []
        assert len(store.query("T", "key", 4)) == 4


# ----------------------------------------------------------------------------------------- a cleaner


@pytest.mark.parametrize("raw", [False, True])
def test_get_beside_a_clean_says_that_messages_were_removed(tmp_path, monkeypatch, raw):
    """The cleaner comes when the get has looked at the queue and asks for its file. Seen: OffsetError, or
    OFFSET_FOUND_NULL."""
    passed_ms = [0]
    turn(monkeypatch, lambda: passed_ms[0])
    with open_store(tmp_path) as store:
        puts = [store.put("T", b"x" * 1000) for _ in range(400)]
        store.dispatch()
        store.flush()
        queues = store._parts.queues
        get = queues.get

        def and_then_clean(slot: int) -> object:
            monkeypatch.setattr(queues, "get", get)
            passed_ms[0] += 1000 * 3600 * 1000
            assert store.clean().segments > 0
            return get(slot)

        monkeypatch.setattr(queues, "get", and_then_clean)
        result = store.get("T", 0, 5, raw=raw)
        assert queues.get == get
        assert result.status in (GetStatus.OFFSET_TOO_SMALL, GetStatus.MESSAGE_WAS_REMOVING)
        assert result.next_offset > 5
        assert store.get("T", 0, len(puts) - 1, raw=raw).status is GetStatus.FOUND
