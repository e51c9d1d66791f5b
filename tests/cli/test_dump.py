"""Goal: `cystore dump` writes every message once, in order, with all fields, and changes nothing. Method: the command
on stores in every state, compared with what the library wrote."""

from __future__ import annotations

import base64
import json
import subprocess
import sys

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import golden_settings

FIELDS = [
    *(
        "topic",
        "queue_id",
        "queue_offset",
        "physical_offset",
        "size_bytes",
        "body",
        "keys",
        "tags",
        "properties",
    ),
    *("flag", "sys_flag", "born_timestamp_ms", "store_timestamp_ms", "born_host", "store_host"),
    *("reconsume_times", "prepared_transaction_offset", "body_crc"),
]


def place(row):
    return row["topic"], row["queue_id"], row["queue_offset"]


@pytest.mark.parametrize("dispatched", [True, False])
def test_a_message_in_light_queues_is_written_once(command, store_path, dispatched):
    with cystore.open(store_path, services=(), enable_lmq=True, enable_multi_dispatch=True) as store:
        for number in range(3):
            store.put("T", b"%d" % number, properties={"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"})
        if dispatched:
            store.dispatch()
    assert [place(row) for row in command.json_lines("dump", store_path)] == [("T", 0, n) for n in range(3)]
    assert len(command.json_lines("dump", store_path, "--topic", "%LMQ%a")) == 3


def test_all_fields_in_order(command, store_path):
    puts = stores.write(store_path, 200)
    rows = command.json_lines("dump", store_path)
    assert [list(row) for row in rows] == [FIELDS] * 200
    assert [place(row) for row in rows] == sorted(place(row) for row in rows)
    by_offset = {row["physical_offset"]: row for row in rows}
    for message, put in zip(stores.messages(200), puts, strict=True):
        row = by_offset[put.physical_offset]
        assert (row["topic"], row["queue_id"], row["queue_offset"]) == (
            message.topic,
            message.queue_id,
            put.queue_offset,
        )
        assert base64.b64decode(row["body"]) == message.body
        assert row["size_bytes"] == put.size_bytes
        assert row["store_timestamp_ms"] == put.store_timestamp_ms
        assert (row["keys"], row["tags"], row["flag"]) == (list(message.keys), message.tags, message.flag)
        assert row["properties"]["number"] == message.properties["number"]
        assert row["properties"]["KEYS"] == " ".join(message.keys)
    with cystore.open(store_path, read_only=True) as store:
        stored = store.read(puts[7].physical_offset)
        row = by_offset[puts[7].physical_offset]
        for name in FIELDS[5:]:
            value = getattr(stored, name)
            if name == "body":
                assert base64.b64decode(row[name]) == value
            elif name == "keys":
                assert tuple(row[name]) == value
            else:
                assert row[name] == value, name


def test_filters(command, store_path):
    stores.write(store_path, 200)
    everything = command.json_lines("dump", store_path)
    assert command.json_lines("dump", store_path, "--topic", "beta") == [
        r for r in everything if r["topic"] == "beta"
    ]
    one = [r for r in everything if (r["topic"], r["queue_id"]) == ("beta", 1)]
    assert command.json_lines("dump", store_path, "--topic", "beta", "--queue", 1) == one
    assert (
        command.json_lines("dump", store_path, "--topic", "beta", "--queue", 1, "--from", 10, "--count", 5)
        == one[10:15]
    )
    assert command.json_lines("dump", store_path, "--topic", "beta", "--queue", 1, "--from", len(one)) == []
    late = [r for r in everything if r["queue_offset"] >= 40]
    assert command.json_lines("dump", store_path, "--from", 40) == late
    assert command.json_lines("dump", store_path, "--count", 60) == everything[:60]


@pytest.mark.parametrize("asked", [("--topic", "gamma"), ("--topic", "beta", "--queue", 9)])
def test_a_queue_that_is_not_there(command, store_path, asked):
    stores.write(store_path, 4)
    done = command.run("dump", store_path, *asked, "--json")
    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.startswith("cystore: there is no queue ")
    assert ("there is no such topic" in done.stderr) == ("gamma" in asked)


def test_a_queue_without_its_topic_is_wrong_usage(command, store_path):
    done = command.run("dump", store_path, "--queue", 1)
    assert done.returncode == 2
    assert "--queue needs --topic" in done.stderr


def test_lines_for_people(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        store.put("notes", "Grüße\n\x1b[2J".encode() + b"x" * 200, keys=("k1", "k2"), tags="t")
    (line,) = command.ok("dump", store_path).splitlines()
    assert line.startswith("notes/0@0  20")
    assert "tag t  keys k1,k2  Grüße\\n\\x1b[2Jxxx" in line
    assert line.endswith("x...")


BODIES = {
    b'{"total": 7,\n "name": "gr\xc3\xbc\xc3\x9fe"}': ({"total": 7, "name": "grüße"}, "json"),
    b" [1, 2]": ([1, 2], "json"),
    b"17": ("17", "text"),
    b'{"total": NaN}': ('{"total": NaN}', "text"),
    b"[" * 20_000: ("[" * 20_000, "text"),
    b"two\nlines": ("two\nlines", "text"),
    b"\xff\x00": ("/wA=", "base64"),
    b"": ("", "text"),
}


@pytest.mark.parametrize("words", [("dump",), ("tail", "T", "-n", 100), ("query", "T", "k"), ("read", 0)])
def test_bodies_as_they_are_asked_for(command, store_path, words):
    """JSON as JSON, other text as text, all else in base64; lines stay single lines."""
    name, *more = words
    with cystore.open(store_path, **stores.SMALL) as store:
        for body in BODIES:
            store.put("T", body, keys=("k",))
    wanted = list(BODIES)[:1] if name == "read" else list(BODIES)[:: -1 if name == "query" else 1]
    for kind in ("full", "text"):
        rows = command.json_lines(name, store_path, *more, "--body", kind)
        assert [(row["body"], row["body_encoding"]) for row in rows] == [BODIES[body] for body in wanted]
    for kind in ((), ("--body", "base64")):
        rows = command.json_lines(name, store_path, *more, *kind)
        assert [base64.b64decode(row["body"]) for row in rows] == wanted
        assert "body_encoding" not in rows[0]
    assert "body" not in command.json_lines(name, store_path, *more, "--body", "none")[0]

    def line(kind, body):
        lines = command.ok(name, store_path, *more, "--body", kind).splitlines()
        assert len(lines) == len(wanted)
        return lines[wanted.index(body)]

    first = wanted[-1] if name == "query" else wanted[0]
    assert line("full", first).endswith('keys k  {"total":7,"name":"grüße"}')
    assert line("base64", first).endswith(base64.b64encode(first).decode())
    assert line("none", first).endswith("keys k")
    if len(wanted) > 1:
        assert line("full", b"[" * 20_000).endswith("[" * 20_000)
        assert line("text", b"[" * 20_000).endswith(" " + "[" * 60 + "...")
        assert line("full", b"two\nlines").endswith("two\\nlines")
        assert line("full", b"\xff\x00").endswith("\\xff\\x00")


def test_a_store_that_nobody_recovered_stays_as_it_is(command, store_path):
    stores.write(store_path, 50)
    stores.write_and_crash(store_path, 30, start=50)
    before = stores.snapshot(store_path)
    rows = command.json_lines("dump", store_path)
    assert sorted(int(r["properties"]["number"]) for r in rows) == list(range(80))
    assert stores.snapshot(store_path) == before
    assert command.json_lines("dump", store_path) == rows


def test_a_store_in_use_shows_what_is_not_dispatched_yet(command, store_path):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        store.put_many(stores.messages(20))
        rows = command.json_lines("dump", store_path)
        store.put_many(stores.messages(20, 20))
        more = command.json_lines("dump", store_path)
    assert sorted(int(r["properties"]["number"]) for r in rows) == list(range(20))
    assert sorted(int(r["properties"]["number"]) for r in more) == list(range(40))


@pytest.mark.parametrize("dispatched", [True, False])
def test_expired_messages_are_left_out_dispatched_or_not(command, store_path, dispatched):
    with cystore.open(store_path, services=(), **stores.SMALL) as store:
        for number, expires in enumerate((1, 1 << 45, None)):
            store.put("T", b"%d" % number, **({} if expires is None else {"expires_at_ms": expires}))
        if dispatched:
            store.dispatch()
        rows = command.json_lines("dump", store_path)
    assert [row["queue_offset"] for row in rows] == [1, 2]


def test_an_empty_store(command, store_path):
    stores.write(store_path, 0)
    assert command.json_lines("dump", store_path) == []


@pytest.mark.parametrize("name", ["a_clean", "b_crash", "k_edge"])  # tests/golden dumps them all
def test_golden_stores_are_dumped_as_rocketmq_reads_them(command, unpack_golden, name):
    golden = unpack_golden(name)
    rows = command.json_lines(
        "dump", golden.store, *golden_settings(golden), "--set", "damaged_range=truncate"
    )
    wanted = {(m["topic"], m["queueId"], m["queueOffset"]): m for m in golden.rows_of("msg")}
    assert [place(r) for r in rows] == sorted(wanted)
    for row in rows:
        theirs = wanted[place(row)]
        assert row["body"] == theirs["bodyB64"]
        assert row["properties"] == theirs["properties"]
        assert (row["physical_offset"], row["size_bytes"]) == (theirs["physicalOffset"], theirs["storeSize"])
        assert (row["body_crc"], row["tags"]) == (theirs["bodyCRC"], theirs["tags"])


def test_a_damaged_record_is_reported_and_stepped_over(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        puts = store.put_many(stores.messages(40))
        store.dispatch()
        stores.damage(store_path, puts[10].physical_offset + 100)
        done = command.run("dump", store_path, "--json")
    numbers = sorted(int(json.loads(line)["properties"]["number"]) for line in done.stdout.splitlines())
    assert numbers == [n for n in range(40) if n != 10]
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "alpha/1@" in line
    assert str(store_path / "commitlog") in line
    assert f"[offset {puts[10].physical_offset}]" in line


@pytest.mark.parametrize("recovered", [False, True])
def test_what_recovery_steps_over_or_cuts_is_reported(command, store_path, recovered):
    """In a store that nobody recovered yet, and in one where the hole is known."""
    puts = stores.write(store_path, 40)
    stores.damage(store_path, puts[10].physical_offset + 100)
    if recovered:
        command.run("recover", store_path)
    done = command.run("dump", store_path, "--json")
    assert (len(done.stdout.splitlines()), done.returncode) == (39, 0)
    assert (
        f"bytes {puts[10].physical_offset}..{puts[11].physical_offset} of the log are damaged" in done.stderr
    )
    stores.damage(store_path, puts[39].physical_offset + 100)
    done = command.run("dump", store_path, "--json")
    assert (len(done.stdout.splitlines()), done.returncode) == (38, 0)
    assert (
        f"bytes {puts[39].physical_offset}..{puts[39].physical_offset + puts[39].size_bytes} of the log"
        in done.stderr
    )


PEAK = """
import os, sys, tracemalloc
tracemalloc.start()
from cystore.cli import main
sys.stdout = open(os.devnull, "w")
tracemalloc.reset_peak()
status = main(sys.argv[1:])
print(status, tracemalloc.get_traced_memory()[1], file=sys.stderr)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_store(command, tmp_path):
    """Peak of what Python allocates, at the same batch size, for four times as many messages."""
    peaks = []
    for count in (2_000, 8_000):
        path = tmp_path / f"store{count}"
        with cystore.open(path, **stores.SMALL) as store:
            for start in range(0, count, 1_000):
                store.put_many(
                    [cystore.Message(topic="big", body=b"x" * 1_000) for _ in range(start, start + 1_000)]
                )
        done = subprocess.run(
            [sys.executable, "-c", PEAK, "dump", str(path), "--json"],
            env=command.environment, capture_output=True, text=True, timeout=120, check=True,
        )  # fmt: skip
        status, peak = map(int, done.stderr.split())
        assert status == 0
        peaks.append(peak)
    assert peaks[1] < 1.5 * peaks[0] + 1_000_000, peaks


def test_only_what_matches_a_filter(command, store_path):
    stores.write(store_path, 100)
    rows = command.json_lines("dump", store_path, "--filter", "number BETWEEN 10 AND 13 OR TAGS IN ('none')")
    assert sorted(int(row["properties"]["number"]) for row in rows) == [10, 11, 12, 13]
    rows = command.json_lines("dump", store_path, "--filter", "number > 10", "--count", 3)
    assert len(rows) == 3
