"""Goal: the command delays messages and shows what waits. Method: put with it, deliver with the library, ask it
before and after."""

from __future__ import annotations

import cystore
from tests.support.cli import stores
from tests.support.cli.command import SMALL, golden_settings, settings
from tests.support.golden.stores import unpack_or_skip

LEVELS = "0s 1m 2h"
SETTINGS = settings({**SMALL, "message_delay_level": LEVELS})


def delayed(command, path):
    (found,) = command.json_lines("info", path, *SETTINGS)
    return [(d["level"], d["delay_ms"], d["pending"]) for d in found["delayed"]]


def test_a_delayed_message_waits_and_info_says_so(command, store_path):
    where = command.ok(
        "put", store_path, "orders", "--create", "--delay-level", 2, "--queue", 3, *SETTINGS, stdin=b"later"
    )
    assert where.startswith("SCHEDULE_TOPIC_XXXX/1@0")
    command.ok("put", store_path, "orders", "--delay-level", 3, "--lines", *SETTINGS, stdin=b"a\nb\n")
    refused = command.run("put", store_path, "orders", "--delay-level", 9, *SETTINGS, stdin=b"x")
    assert refused.returncode == 2 and "levels 1 to 3" in refused.stderr
    command.ok("put", store_path, "orders", "--delay-level", 1, *SETTINGS, stdin=b"now")
    assert delayed(command, store_path) == [(1, 0, 1), (2, 60_000, 1), (3, 7_200_000, 2)]
    assert "waiting delayed messages: 4" in command.ok("info", store_path, *SETTINGS)
    with cystore.open(store_path, **SMALL, message_delay_level=LEVELS, services="none") as store:
        assert store.deliver() == 1
        assert delayed(command, store_path) == [(2, 60_000, 1), (3, 7_200_000, 2)]
    assert delayed(command, store_path) == [(2, 60_000, 1), (3, 7_200_000, 2)]
    found = command.json_lines("dump", store_path, "--topic", "orders", *SETTINGS)
    assert [(m["queue_offset"], m["properties"]["DELAY"]) for m in found] == [(0, "1")]


def test_what_rocketmq_delivered_does_not_wait(command, tmp_path):
    """Its table is behind; nobody has the store open, and nothing in it is changed."""
    golden = unpack_or_skip("c_delay", tmp_path)
    before = stores.snapshot(golden.store)
    (found,) = command.json_lines("info", golden.store, *golden_settings(golden))
    assert [(d["level"], d["pending"]) for d in found["delayed"]] == [(2, 2), (4, 4), (18, 5)]
    assert stores.snapshot(golden.store) == before


def test_wrong_levels_are_refused_in_a_line(command, store_path):
    for arguments in (("--delay-level", "-1"), ("--delay-level", "x"), ("--set", "message_delay_level=1y")):
        done = command.run("put", store_path, "orders", *arguments, stdin=b"x")
        assert done.returncode == 2
        assert "delay" in done.stderr
        assert not store_path.exists()
