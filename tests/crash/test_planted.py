"""Goal: a row of the fault matrix that sees nothing wrong has looked. Method: each row gets a fault of its own
planted into one of its processes, and must find it."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import pytest

from tests.crash import matrix
from tests.crash.faults import (
    FAULTS,
    PIECES,
    SHAPED,
    clean_beside_flush,
    clock_retention,
    full_disk_clean,
    live_damage,
    many,
    resources,
    signals,
)

LOST = "w.acknowledged.append(('shared', 0, 10**6, 'lost', 10**12, 100))"
READ_ONLY = (
    "from cystore.engine.log.flush import SYNC_FAILED; w.store._attached().control.set_flag(SYNC_FAILED)"
)
KEPT_LOCK = "w.kept = w.store._attached().control.held('dispatch'); w.kept.__enter__()"
HALF_OPEN = "left = w.open(); left_too = [left]"
MORE = "store.put('orders', b'999')"
EARLY = "w.store.put('late', b'', keys=('late',))"
ROT = (
    "file = sorted((w.path / 'commitlog').iterdir())[0]; data = bytearray(file.read_bytes()); "
    "data[99] ^= 1; file.write_bytes(data)"
)

OTHERS = {fault.name: fault for fault in (*PIECES, *SHAPED)}
PLANTED = [
    (signals.FAULT, LOST, "IndexError|KeyError|1000000"),
    (signals.FAULT, KEPT_LOCK, "keeps the dispatch lock"),
    (signals.FAULT, HALF_OPEN, "keeps the store open"),
    (resources.DESCRIPTORS, READ_ONLY, "FlushFailedError"),
    (resources.MEMORY, LOST, "IndexError|KeyError|1000000"),
    (full_disk_clean.FAULT, LOST, "IndexError|KeyError|1000000"),
    (clock_retention.FAULT, EARLY, "delivered early"),
    (live_damage.FAULT, ROT, "AssertionError"),
    (many.MANY_QUEUES, True, "IndexError|KeyError|1000000"),
    (many.MANY_SEGMENTS, True, "IndexError|KeyError|1000000"),
    (clean_beside_flush.FAULT, READ_ONLY, "FlushFailedError"),
    (OTHERS["signals-folders"], LOST, "IndexError|KeyError|1000000"),
    (OTHERS["clean-beside-flush-pool"], READ_ONLY, "FlushFailedError"),
    (OTHERS["transactions"], MORE, "assert committed =="),
    (OTHERS["consumers"], MORE, r"assert set\(last\)"),
    (OTHERS["light-queues"], "store.put('T', b'more')", "== expected|assert given =="),
    (OTHERS["filters"], "store.put('T', b'', properties={'a': '9'})", "assert offsets"),
    (OTHERS["compaction"], "store.put('state', b'newer', keys=('k0',))", r'assert \(b"" if found'),
    (OTHERS["dispatchers"], MORE, "are left out|assert done == count"),  # 999 alone, or in a batch
    (OTHERS["timer"], "store.put('T', b'9999999')", "9999999"),
    (OTHERS["once"], MORE, "== KEYS"),
    (OTHERS["claims"], "cystore.open(path, **settings).put('T', b'9999999', queue_id=0)", "9999999"),
]


@pytest.mark.may_skip
@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("fault", "planted", "seen"),
    [one for one in PLANTED if one[0] in (*FAULTS, *PIECES, *SHAPED)],
    ids=lambda value: getattr(value, "name", ""),
)
def test_a_planted_fault_is_found(fault, planted, seen, seed, tmp_path):
    planted_row = replace(fault, run=partial(fault.run, planted=planted))
    row = matrix.run(planted_row, seed=seed, count=1, folder=tmp_path)
    if row.not_run:
        pytest.skip(row.not_run)
    assert row.failures
    assert all(re.search(seen, failure) for failure in row.failures), row.failures
