"""Goal: the command gives messages a time of their own, lists them, withdraws them and delivers them now. Method: put
with it, ask it, deliver with the library."""

from __future__ import annotations

import base64
import time

import pytest

import cystore
from tests.support.cli.command import SMALL, settings

SETTINGS = settings(SMALL)
HOUR_MS = 3_600_000


def put(command, path, body, *more):
    return command.ok("put", path, "reminders", "--create", *more, *SETTINGS, stdin=body)


def test_messages_with_a_time_are_listed_withdrawn_and_fired(command, store_path):
    began_ms = int(time.time() * 1000)
    where = put(command, store_path, b"later", "--key", "a", "--deliver-in", "2h", "--queue", 3)
    assert where.startswith("SCHEDULE_TOPIC_XXXX/255@0")
    in_a_year = time.strftime("%Y-%m-%dT%H:%M+00:00", time.gmtime(time.time() + 300 * 86_400))
    put(command, store_path, b"much later", "--key", "b", "--deliver-at", in_a_year)
    assert put(command, store_path, b"at once", "--deliver-at", "1971-01-01T00:00Z").startswith(
        "reminders/0@0"
    )
    first, second = command.json_lines("delayed", store_path, "--json", *SETTINGS)
    assert (first["topic"], first["queue_id"], first["keys"]) == ("reminders", 3, ["a"])
    assert base64.b64decode(first["body"]) == b"later"
    assert began_ms + 2 * HOUR_MS <= first["deliver_at_ms"] <= int(time.time() * 1000) + 1 + 2 * HOUR_MS
    assert second["keys"] == ["b"]
    lines = command.ok(
        "delayed", store_path, "--topic", "reminders", "--before", in_a_year, *SETTINGS
    ).splitlines()
    assert len(lines) == 1 and "reminders/3" in lines[0] and "keys a" in lines[0]
    assert command.run("delayed", store_path, "--topic", "other", *SETTINGS).returncode == 1
    (found,) = command.json_lines("info", store_path, *SETTINGS)
    assert [(d["level"], d["pending"]) for d in found["delayed"]] == [(0, 2)]

    assert command.ok("cancel", store_path, "reminders", "b", *SETTINGS) == "cancelled\n"
    again = command.run("cancel", store_path, "reminders", "b", *SETTINGS)
    assert again.returncode == 1 and "no such message waits" in again.stderr
    assert command.ok("fire", store_path, "reminders", "a", *SETTINGS) == "delivered\n"
    assert command.run("fire", store_path, "reminders", "a", *SETTINGS).returncode == 1
    with cystore.open(store_path, **SMALL) as store:
        (message,) = store.get("reminders", 3, 0).messages
        assert bytes(message.body) == b"later"
        put_ = store.put("reminders", b"x", delay_ms=HOUR_MS)
    assert "NOBODY DELIVERS" not in command.ok("info", store_path, *SETTINGS)
    command.ok("cancel", store_path, "--physical-offset", put_.physical_offset, *SETTINGS)
    assert command.run("delayed", store_path, *SETTINGS).returncode == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--deliver-in", "soon"), "is not a length of time"),
        (("--deliver-in=-5s",), "is not a length of time"),
        (("--deliver-in", "5"), "is not a length of time"),
        (("--deliver-at", "tomorrow"), "is not a time"),
        (("--deliver-at", "2027-01-01T09:00"), "names no zone"),
        (("--deliver-in", "1h", "--deliver-at", "2027-01-01T09:00Z"), "not both"),
        (("--deliver-in", "1h", "--delay-level", "1"), "not both"),
        (("--deliver-in", "500w"), "timer_max_delay_s"),
        (("--every", "1ms"), "every_ms"),
        (("--until", "2027-01-01T09:00Z"), "goes with every_ms"),
    ],
    ids=str,
)
def test_wrong_times_are_refused_in_a_line(command, store_path, arguments, said):
    done = command.run("put", store_path, "T", "--create", *arguments, *SETTINGS, stdin=b"x")
    assert done.returncode == 2 and said in done.stderr


def test_a_message_that_comes_again_is_listed_and_cancelled(command, store_path):
    put(command, store_path, b"x", "--key", "k", "--every", "1h", "--missed", "skip")
    (found,) = command.json_lines("delayed", store_path, "--json", *SETTINGS)
    assert found["every_ms"] == HOUR_MS
    assert "again after 3600 s" in command.ok("delayed", store_path, *SETTINGS)
    assert command.ok("cancel", store_path, "reminders", "k", *SETTINGS) == "cancelled\n"
    assert command.run("delayed", store_path, *SETTINGS).returncode == 1


@pytest.mark.parametrize("name", ["cancel", "fire"])
def test_a_command_that_names_no_message_is_refused(command, store_path, name):
    put(command, store_path, b"x")
    for arguments in ((), ("T",), ("T", "k", "--physical-offset", "0")):
        done = command.run(name, store_path, *arguments, *SETTINGS)
        assert done.returncode == 2 and "--physical-offset" in done.stderr
