"""Goal: `cystore groups`, `lag` and `reset-offset` say and do what the library does. Method: the commands beside the
library."""

from __future__ import annotations

import pytest

import cystore
from tests.support.cli import stores


@pytest.fixture
def store_path_with_groups(store_path):
    stores.write(store_path, 20)
    with cystore.open(store_path) as store:
        topics = store.topics()
        for queue_id in topics["alpha"]:
            store.groups.commit("billing", "alpha", queue_id, 1)
        store.groups.commit("audit", "alpha", min(topics["alpha"]), 0)
    return store_path


def test_groups_and_lag(command, store_path_with_groups):
    path = store_path_with_groups
    with cystore.open(path, read_only=True) as store:
        lags, lag = store.groups.lags(), store.groups.lag("billing")
    rows = command.json_lines("groups", path)
    assert {row["group"]: row["lag"] for row in rows} == lags
    assert rows[1]["topics"] == ["alpha"]
    assert command.json_lines("lag", path, "billing") == [one._asdict() for one in lag]
    assert "billing" in command.run("groups", path).stdout
    assert "alpha" in command.run("lag", path, "billing").stdout
    nobody = command.run("lag", path, "nobody")
    assert (nobody.returncode, nobody.stdout) == (1, "")
    assert command.run("lag", path, "no@group").returncode == 2
    biling = command.run("lag", path, "biling")
    assert biling.returncode == 1 and "no such group; did you mean billing?" in biling.stderr


def test_a_store_without_groups(command, store_path):
    stores.write(store_path, 20)
    done = command.run("groups", store_path)
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "cystore: there is no consumer group\n"


def test_reset_offset_moves_the_group(command, store_path_with_groups):
    path = store_path_with_groups
    with cystore.open(path) as store:  # the command works beside the store's users
        ends = {queue_id: found.max_offset for queue_id, found in store.topics()["alpha"].items()}
        rows = command.json_lines("reset-offset", path, "billing", "alpha", "--last")
        assert {row["queue_id"]: row["offset"] for row in rows} == ends
        assert {row["old_offset"] for row in rows} == {1}
        assert store.groups.lags()["billing"] == 0
        command.json_lines("reset-offset", path, "billing", "alpha", "--first", "--queue", 0)
        assert store.groups.offset("billing", "alpha", 0) == 0
        command.json_lines("reset-offset", path, "billing", "alpha", "--last", "--only-back")
        assert store.groups.offset("billing", "alpha", 0) == 0
        assert command.run("reset-offset", path, "billing", "alpha", "--to-ms", 1).returncode == 0
        assert sum(store.groups.offsets("billing").values()) == 0
    missing = command.run("reset-offset", path, "biling", "alpha", "--first")
    assert (missing.returncode, missing.stdout) == (2, "")
    assert "no such group: biling; --create begins it" in missing.stderr
    assert "did you mean billing?" in missing.stderr
    with cystore.open(path) as store:
        assert "biling" not in store.groups.names()
        command.ok("reset-offset", path, "shipping", "alpha", "--last", "--create")
        assert store.groups.offsets("shipping")
        assert store.groups.lags()["shipping"] == 0
    unknown = command.run("reset-offset", path, "billing", "nothing", "--first")
    assert unknown.returncode == 2
    assert "no queue" in unknown.stderr
    assert command.run("reset-offset", path, "billing", "alpha").returncode == 2
