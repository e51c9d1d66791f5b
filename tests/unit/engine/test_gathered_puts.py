"""Goal: a sync waits for the puts that the last syncs woke, and for nobody else. Method: a leader that expects three
puts, a sync of another process before, and a single writer; syncs are counted."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

import cystore
from tests.support.process import Process
from tests.support.small_stores import SETTINGS, open_small

OPEN = "import cystore; store = cystore.open(path, **settings)"


@pytest.fixture(params=["module", "kernel"])
def store(tmp_path, request) -> Iterator[cystore.MessageStore]:
    """A store whose syncs are led by cystore/engine/log/flush.py, or by the kernel."""
    with open_small(tmp_path / "s") as opened:
        opened.put("T", b"names the segment", flush="sync")
        opened._parts.flusher.commits.enabled = request.param == "kernel"
        yield opened


def test_a_sync_waits_for_the_puts_that_the_last_one_woke(store):
    """Seen: the first of 16 woken threads synced its put alone, and the 15 others waited for the next sync."""
    commits, control = store._parts.flusher.commits, store._parts.control
    commits.gather_pause_us = commits.gather_max_us = 30_000_000
    control.group_before, control.group_last, commits.sync_us = 1, 3, 1e9
    control.gathered, syncs = control.put_count, control.flush_seq
    first = threading.Thread(target=lambda: store.put("T", b"1", flush="sync"))
    first.start()
    while not control.owner("flush"):
        pass
    for _ in range(2):
        store.put("T", b"beside", flush="async")
    first.join()
    assert control.flush_seq == syncs + 1
    assert control.flushed == store.wrote_position
    assert (control.group_before, control.group_last) == (3, 3)


def test_a_sync_waits_for_the_puts_that_the_sync_of_another_process_woke(store):
    """Seen: a sync was for 11 of 16 processes, and for 15 of 16 threads."""
    commits, control = store._parts.flusher.commits, store._parts.control
    with Process() as other:
        other.do(OPEN, path=str(store.path), settings=SETTINGS)
        other.do("for flush in ('async', 'sync'): store.put('T', b'x', flush=flush)")
    commits.gather_pause_us = commits.gather_max_us = 30_000_000
    commits.sync_us, syncs = 1e9, control.flush_seq
    first = threading.Thread(target=lambda: store.put("T", b"1", flush="sync"))
    first.start()
    while not control.owner("flush"):
        pass
    store.put("T", b"beside", flush="async")
    first.join()
    assert control.flush_seq == syncs + 1
    assert control.flushed == store.wrote_position


def test_a_sync_of_a_single_writer_waits_for_nobody(store):
    commits, control = store._parts.flusher.commits, store._parts.control
    commits.gather_pause_us = commits.gather_max_us = 1 << 60
    syncs = control.flush_seq
    for _ in range(3):
        commits.sync_us = 1e18  # the first wait would not end
        store.put("T", b"1", flush="sync")
    assert control.flush_seq == syncs + 3
