"""Goal: a sync waits for the puts that the last syncs woke, and for nobody else. Method: a leader that expects three
puts, and a single writer; syncs are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import cystore
from cystore.engine.log import flush
from tests.support.small_stores import open_small


@pytest.fixture
def store(tmp_path) -> Iterator[cystore.MessageStore]:
    with open_small(tmp_path / "s") as opened:
        yield opened


@pytest.fixture
def synced(store, monkeypatch) -> list[int]:
    """The flushed position after each sync."""
    flusher, found = store._parts.flusher, []
    lead = flusher._lead

    def watched(appended) -> None:
        lead(appended)
        found.append(store.stats()["flushed"])

    monkeypatch.setattr(flusher, "_lead", watched)
    return found


def test_a_sync_waits_for_the_puts_that_the_last_one_woke(store, synced, monkeypatch):
    """Seen: the first of 16 woken threads synced its put alone, and the 15 others waited for the next sync."""
    flusher, control = store._parts.flusher, store._parts.control
    for name in ("GATHER_PAUSE_US", "GATHER_MAX_US"):
        monkeypatch.setattr(flush, name, 30_000_000)
    flusher._groups, flusher._sync_us = (1, 3), 1e9
    flusher._gathered = control.put_count
    begun = threading.Event()
    gather = flusher._gather
    monkeypatch.setattr(flusher, "_gather", lambda: (begun.set(), gather()))
    first = threading.Thread(target=lambda: store.put("T", b"1", flush="sync"))
    first.start()
    assert begun.wait(30)
    for _ in range(2):
        store.put("T", b"beside", flush="async")
    first.join()
    assert synced == [store.wrote_position]
    assert flusher._groups == (3, 3)


def test_a_sync_of_a_single_writer_waits_for_nobody(store, synced, monkeypatch):
    monkeypatch.setattr(flush, "GATHER_PART", None)  # of the last sync's time: a wait needs it
    for _ in range(3):
        store.put("T", b"1", flush="sync")
    assert len(synced) == 3
