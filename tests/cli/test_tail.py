"""Goal: `cystore tail` shows the newest messages in the order of appending, and misses none that comes. Method: the
command follows what this process appends; each line is awaited, no time is."""

from __future__ import annotations

import contextlib
import json
import shutil
import signal

import pytest

import cystore
from tests.support.cli import stores


def number(line):
    return int(json.loads(line)["properties"]["number"])


def put(store, start, count=1):
    store.put_many(stores.messages(count, start))


@contextlib.contextmanager
def following(command, *arguments):
    """The command with -f --json; it must end by Ctrl-C with 130 and without a word."""
    with command.start("tail", *arguments, "-f", "--json") as process:
        yield process
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130
        assert process.stdout.read() == b""
        assert process.stderr.read() == b""


def test_the_newest_in_the_order_of_appending(command, store_path):
    stores.write(store_path, 100)
    even = list(range(0, 100, 2))
    assert [int(r["properties"]["number"]) for r in command.json_lines("tail", store_path, "alpha")] == even[
        -10:
    ]
    rows = command.json_lines("tail", store_path, "alpha", "-n", 100)
    assert [int(r["properties"]["number"]) for r in rows] == even
    rows = command.json_lines("tail", store_path, "alpha", "-n", 3, "--queue", 1)
    assert [int(r["properties"]["number"]) for r in rows] == [90, 94, 98]
    assert command.json_lines("tail", store_path, "alpha", "-n", 0) == []


def test_what_is_not_dispatched_counts_too(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        put(store, 0, 20)
        store.dispatch()
        put(store, 20, 20)
        rows = command.json_lines("tail", store_path, "beta", "-n", 15)
    assert [int(r["properties"]["number"]) for r in rows] == list(range(11, 40, 2))


def test_lines_for_people(command, store_path):
    stores.write(store_path, 3)
    first, second = command.ok("tail", store_path, "alpha").splitlines()
    assert first.startswith("alpha/0@0  ")
    assert second.startswith("alpha/1@0  ")


@pytest.mark.parametrize("asked", [("gamma",), ("alpha", "--queue", 7)])
def test_nothing_there(command, store_path, asked):
    stores.write(store_path, 3)
    done = command.run("tail", store_path, *asked)
    assert (done.returncode, done.stdout) == (1, "")
    assert "there is no message of topic" in done.stderr
    assert ("there is no such topic" in done.stderr) == ("gamma" in asked)


def test_a_misspelt_topic_is_told_before_it_is_followed(command, store_path):
    """Seen: it waited without a word."""
    stores.write(store_path, 3)
    with command.start("tail", store_path, "alhpa", "-f") as process:
        told = b"cystore: there is no message of topic alhpa: there is no such topic; did you mean alpha?\n"
        assert process.stderr.readline() == told
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130


def test_follows_a_store_in_use(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        put(store, 0, 4)
        with following(command, store_path, "alpha", "-n", 1) as process:
            assert number(process.stdout.readline()) == 2
            for start in range(4, 40, 4):
                put(store, start, 4)
                assert [number(process.stdout.readline()) for _ in range(2)] == [start, start + 2]
            store.put("alpha", b"in a new queue", queue_id=17, properties={"number": "1000"})
            assert number(process.stdout.readline()) == 1000


def test_follows_without_anybody_who_dispatches(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        put(store, 0)
        with following(command, store_path, "alpha") as process:
            assert number(process.stdout.readline()) == 0
            put(store, 2)
            assert number(process.stdout.readline()) == 2


def test_a_topic_that_does_not_exist_yet(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store, following(command, store_path, "new") as process:
        store.put("old", b"")
        store.put("new", b"", properties={"number": "7"})
        assert number(process.stdout.readline()) == 7


def test_waits_for_a_store_that_nobody_has_open(command, store_path):
    stores.write(store_path, 4)
    with following(command, store_path, "alpha") as process:
        assert [number(process.stdout.readline()) for _ in range(2)] == [0, 2]
        with cystore.open(store_path) as store:
            put(store, 4)
            assert number(process.stdout.readline()) == 4
            put(store, 6)
            assert number(process.stdout.readline()) == 6
        with cystore.open(store_path) as store:
            put(store, 8)
            assert number(process.stdout.readline()) == 8


def test_looking_at_a_closed_store_changes_nothing(command, store_path):
    stores.write(store_path, 4)
    before = stores.snapshot(store_path)
    with following(command, store_path, "alpha") as process:
        assert [number(process.stdout.readline()) for _ in range(2)] == [0, 2]
    assert stores.snapshot(store_path) == before


def test_prepared_and_rolled_back_messages_are_not_shown(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        for sys_flag in (4, 12, 8, 0):
            store.put_many([cystore.Message(topic="t", body=b"", sys_flag=sys_flag)])
        assert [r["sys_flag"] for r in command.json_lines("tail", store_path, "t")] == [8, 0]


def test_what_readers_do_not_see_any_more_is_not_shown(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        store.put("alpha", b"", properties={"number": "0"})
        store.put("alpha", b"", properties={"number": "1"}, expires_at_ms=1)
        assert [number(line) for line in command.ok("tail", store_path, "alpha", "--json").splitlines()] == [
            0
        ]
        with following(command, store_path, "alpha") as process:
            assert number(process.stdout.readline()) == 0
            store.put("alpha", b"", properties={"number": "2"}, expires_at_ms=1)
            store.put("alpha", b"", properties={"number": "3"})
            assert number(process.stdout.readline()) == 3
        store.delete_topic("alpha")
        store.put("alpha", b"", properties={"number": "4"})
        assert [number(line) for line in command.ok("tail", store_path, "alpha", "--json").splitlines()] == [
            4
        ]


@pytest.mark.parametrize("dispatched", [True, False])
@pytest.mark.parametrize("chosen", [(), ("--filter", "number IS NOT NULL")], ids=["all", "filter"])
def test_newest_messages_are_those_that_readers_get(command, store_path, dispatched, chosen):
    """Seen: a topic whose last messages had expired looked empty."""
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        for text in range(20):
            store.put("t", b"", queue_id=text % 2, properties={"number": str(text)})
        if dispatched:
            store.dispatch()
        for _ in range(30):
            store.put("t", b"", properties={"number": "-1"}, expires_at_ms=1)
        if dispatched:
            store.dispatch()
        rows = command.json_lines("tail", store_path, "t", "-n", 5, *chosen)
        assert [int(row["properties"]["number"]) for row in rows] == [15, 16, 17, 18, 19]
        rows = command.json_lines("tail", store_path, "t", "-n", 100, *chosen)
        assert [int(row["properties"]["number"]) for row in rows] == list(range(20))


def test_the_store_is_removed_meanwhile(command, store_path):
    stores.write(store_path, 1)
    with command.start("tail", store_path, "alpha", "-f", "--json") as process:
        assert number(process.stdout.readline()) == 0
        store_path.rename(store_path.with_name("elsewhere"))
        assert process.wait(60) == 2
        assert b"the store was removed" in process.stderr.read()


@pytest.mark.parametrize("used", [True, False], ids=["in use", "open nowhere"])
def test_a_backup_is_restored_meanwhile(command, store_path, used):
    """Seen: it never showed another message. The restored store has fewer messages than were shown; each one that is
    stored from then on is shown, and none twice."""
    stores.write(store_path, 4)
    backup, elsewhere = store_path.with_name("backup"), store_path.with_name("elsewhere")
    command.ok("snapshot", store_path, backup)
    with cystore.open(store_path) as store:
        put(store, 4, 4)
        if not used:
            store.close()
        with command.start("tail", store_path, "alpha", "-f", "--json") as process:
            assert [number(process.stdout.readline()) for _ in range(4)] == [0, 2, 4, 6]
            store_path.rename(elsewhere)
            command.ok("snapshot", backup, store_path)
            with cystore.open(store_path) as restored:
                put(restored, 100, 2)
                assert number(process.stdout.readline()) == 100
                put(restored, 102, 2)
                assert number(process.stdout.readline()) == 102
            with cystore.open(store_path) as restored:
                put(restored, 104, 2)
                assert number(process.stdout.readline()) == 104
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 130
            assert process.stdout.read() == b""
            assert b"is another directory now" in process.stderr.read()
        shutil.rmtree(store_path)
        elsewhere.rename(store_path)


def test_only_what_matches_a_filter(command, store_path):
    stores.write(store_path, 100)
    rows = command.json_lines("tail", store_path, "alpha", "-n", 3, "--filter", "number < 50")
    assert [int(r["properties"]["number"]) for r in rows] == [44, 46, 48]
    arguments = (store_path, "alpha", "-n", 1, "--filter", "TAGS = 'tag0'")
    with cystore.open(store_path, **stores.SMALL) as store, following(command, *arguments) as process:
        assert number(process.stdout.readline()) == 96
        put(store, 100, 10)
        assert [number(process.stdout.readline()) for _ in range(2)] == [102, 108]
    done = command.run("tail", store_path, "alpha", "--filter", "number <")
    assert done.returncode == 2 and "filter: the expression ends too early at position 8" in done.stderr
