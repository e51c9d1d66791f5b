"""Goal: `cystore topics` lists every queue with what can be read of it, and changes nothing. Method: a closed, a
crashed and an open store beside what the library says."""

from __future__ import annotations

import pytest

import cystore
from cystore.engine.manifest.compaction_facts import compaction_of, with_compaction
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


def test_a_name_of_no_topic_deletes_nothing(command, store_path):
    stores.write(store_path, 40)
    done = command.run("topics", "delete", store_path, stores.TOPICS[0], "\udcff")
    assert done.returncode == 2 and r"topic: '\udcff' must be 1 to 127 characters" in done.stderr
    assert command.json_lines("topics", store_path, *SETTINGS) == EXPECTED


def test_info_tells_of_a_kept_name_of_no_topic(command, store_path):
    stores.write(store_path, 40)
    with cystore.open(store_path, services="none", compacted_topics="orders", **stores.SMALL) as store:
        manifest = store._attached().manifest
        manifest.update(lambda facts: with_compaction(facts, compaction_of(facts).with_deleted("\ud800", 1)))
    (told,) = command.json_lines("info", store_path)[0]["skipped"]
    assert told == r"a deletion of topic '\ud800'"
    assert f"SKIPPED: {told} in the manifest has no effect" in command.ok("info", store_path)
    done = command.run("verify", store_path)
    assert done.returncode == 1 and rf"manifest {store_path}/manifest 0..0: {told}" in done.stdout
