"""Goal: `cystore topics` lists every queue with what can be read of it, and changes nothing. Method: a closed, a
crashed and an open store beside what the library says."""

from __future__ import annotations

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import settings

SETTINGS = settings(stores.SMALL)
EXPECTED = [
    {"topic": topic, "queue_id": queue_id, "min_offset": 0, "max_offset": 10, "count": 10}
    for topic in stores.TOPICS
    for queue_id in (0, 1)
]


@pytest.mark.parametrize("left", ["closed", "crashed", "open"])
def test_every_queue_is_listed(command, store_path, left):
    if left == "crashed":
        stores.write_and_crash(store_path, 40)
    else:
        stores.write(store_path, 40)
    before = stores.snapshot(store_path)
    if left == "open":
        with cystore.open(store_path, **stores.SMALL):
            assert command.json_lines("topics", store_path) == EXPECTED
        return
    assert command.json_lines("topics", store_path, *SETTINGS) == EXPECTED
    text = command.ok("topics", store_path, *SETTINGS)
    assert text.endswith("topics: 2, queues: 4\n") and text.count("\n") == 6
    assert stores.snapshot(store_path) == before


def test_what_is_no_store_is_refused(command, tmp_path):
    done = command.run("topics", tmp_path)
    assert done.returncode == 2 and "the directory is not a store" in done.stderr
