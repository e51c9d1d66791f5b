"""Goal: a process that is killed while it registers a filter leaves no bitmap that hides a message. Method: processes
of the build with failpoints, killed at each step beside a process that dispatches before and after; reads by bitmaps
are compared with the messages that match."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import cystore
from tests.unit.consumers.test_registered_filters import EXTENDED, MATCH, expected, offsets, put

KILLED = """
import sys, cystore, json
path, settings, expression = json.loads(sys.argv[1])
with cystore.open(path, **settings) as store:
    store.filters.add("g", "T", expression)
"""
PLACES = (
    "manifest.written:1",
    "filters.entered:1",
    "filters.dispatched:1",
    "manifest.written:2",
    "filters.born:1",
)


@pytest.mark.parametrize("place", PLACES)
def test_a_kill_inside_of_a_registration_hides_no_message(tmp_path, build_environment, place):
    environment = build_environment("failpoints")
    with cystore.open(tmp_path / "store", **EXTENDED) as store:
        store.filters.add("g", "T", "a < 2")
        put(store, range(10))
        store.dispatch()
        given = json.dumps([str(store.path), EXTENDED, MATCH])
        command = [sys.executable, "-c", KILLED, given]
        killed = subprocess.run(
            command, env={**environment, "CYSTORE_FAILPOINT": place}, check=False, timeout=60
        )
        assert killed.returncode == -9
        put(store, range(10, 20))
        store.dispatch()
        put(store, range(20, 30))
        with cystore.open(store.path, **EXTENDED) as late:  # reads the manifest as it stands on the disk
            late.dispatch()
            for handle in (store, late):
                assert offsets(handle) == expected(30)
                assert offsets(handle, expression="a < 2") == [n for n in range(30) if n % 10 < 2]
        row = store.filters.add("g", "T", MATCH)
        assert row.born is not None and store.filters.list() == [row]
        put(store, range(30, 40))
        assert offsets(store) == expected(40)
