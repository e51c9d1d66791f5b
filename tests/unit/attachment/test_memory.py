"""Goal: a process that recovered a store does not keep the memory that recovery took. Method: a process of its own
opens a store whose index has its default size, and reads its own anonymous memory before and after."""

from __future__ import annotations

import subprocess
import sys

import pytest

import cystore

pytestmark = pytest.mark.unsanitized  # a sanitizer keeps memory that was given back

SLOT_BYTES = 4
OPEN = """
import sys, cystore
def anonymous():
    (line,) = [line for line in open("/proc/self/status") if line.startswith("RssAnon")]
    return int(line.split()[1]) * 1024
before = anonymous()
with cystore.open(sys.argv[1]) as store:
    assert store.recovery is not None
    print(anonymous() - before)
"""


def test_memory_of_recovery_is_given_back(tmp_path):
    with cystore.open(tmp_path / "s") as store:
        store.put("T", b"x", keys=("k",))
        store.dispatch()
        slots_bytes = SLOT_BYTES * store.config.max_hash_slot_num
    done = subprocess.run(
        [sys.executable, "-c", OPEN, str(tmp_path / "s")], text=True, capture_output=True, check=True
    )
    assert int(done.stdout) < 0.7 * slots_bytes
