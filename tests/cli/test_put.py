"""Goal: `cystore put` appends what it is given and says where it went. Method: read it back with the library."""

from __future__ import annotations

import json

import pytest

import cystore
from tests.support.cli.command import SMALL, settings

SETTINGS = settings(SMALL)


def stored(path, topic, queue_id=0):
    with cystore.open(path, read_only=True) as store:
        return [
            (bytes(m.body), m.keys, m.tags, {k: v for k, v in m.properties.items() if k.islower()})
            for m in store.get(topic, queue_id, 0, 1000).messages
        ]


def test_one_message_with_everything(command, store_path):
    body = bytes(range(256)) * 10
    arguments = [
        "--queue",
        3,
        "--key",
        "k1",
        "--key",
        "k2",
        "--tag",
        "t",
        "--property",
        "a=b=c",
        "--property",
        "d=e",
    ]
    (put,) = command.json_lines("put", store_path, "orders", "--create", *arguments, *SETTINGS, stdin=body)
    assert sorted(put) == ["physical_offset", "queue_offset", "size_bytes", "store_timestamp_ms"]
    with cystore.open(store_path, read_only=True) as store:
        (message,) = store.get("orders", 3, 0).messages
        assert put == {name: getattr(message, name) for name in put}
    assert stored(store_path, "orders", 3) == [(body, ("k1", "k2"), "t", {"a": "b=c", "d": "e"})]


def test_a_new_store_is_announced(command, store_path):
    first = command.run("put", store_path, "orders", "--create", *SETTINGS, stdin=b"one")
    assert first.stderr == f"cystore: made a new store in {store_path}\n"
    second = command.run("put", store_path, "orders", *SETTINGS, stdin=b"two")
    assert (second.returncode, second.stderr) == (0, "")
    assert second.stdout.startswith("orders/0@1  20")
    assert [body for body, *_ in stored(store_path, "orders")] == [b"one", b"two"]


@pytest.mark.parametrize("arguments", [(), ("--lines",), ("--json", "--set", "create=true")])
@pytest.mark.parametrize("there", ["nothing", "an empty folder", "a file", "a folder of others"])
def test_a_path_without_a_store_is_refused_and_stays(command, tmp_path, arguments, there):
    path = tmp_path / "misspelt" / "store"
    path.parent.mkdir()
    if there == "a file":
        path.write_bytes(b"mine")
    elif there != "nothing":
        path.mkdir()
    if there == "a folder of others":
        (path / "notes").write_bytes(b"mine")
    before = sorted(tmp_path.rglob("*"))
    done = command.run("put", path, "orders", *arguments, *SETTINGS, stdin=b"one\n")
    assert (done.returncode, done.stdout, done.stderr.count("\n")) == (2, "", 1)
    assert str(path) in done.stderr
    assert ("there is no store here; --create makes one" in done.stderr) is (
        there in ("nothing", "an empty folder")
    )
    assert sorted(tmp_path.rglob("*")) == before


def test_create_makes_folders_too(command, tmp_path):
    path = tmp_path / "new" / "store"
    command.ok("put", path, "orders", "--create", *SETTINGS, stdin=b"one")
    assert [body for body, *_ in stored(path, "orders")] == [b"one"]


def test_empty_input_is_refused_unless_it_is_wanted(command, store_path):
    refused = command.run("put", store_path, "orders", "--create", *SETTINGS)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "standard input is empty, nothing is appended; --allow-empty" in refused.stderr
    assert not store_path.exists()
    command.ok("put", store_path, "orders", "--create", "--allow-empty", *SETTINGS)
    assert [body for body, *_ in stored(store_path, "orders")] == [b""]
    assert command.run("put", store_path, "orders", *SETTINGS).returncode == 2
    assert command.json_lines("put", store_path, "orders", "--lines", *SETTINGS) == []
    assert len(stored(store_path, "orders")) == 1


def test_each_line_is_a_message(command, store_path):
    lines = [b"first", b"", b"\xff\x00\r", "letzte Zeile ä".encode()]
    puts = command.json_lines(
        "put", store_path, "orders", "--create", "--lines", "--tag", "t", *SETTINGS, stdin=b"\n".join(lines)
    )
    assert [put["queue_offset"] for put in puts] == [0, 1, 2, 3]
    assert [body for body, *_ in stored(store_path, "orders")] == lines


def test_many_long_lines(command, store_path):
    lines = [str(number).encode() * (number % 3000) for number in range(2000)]
    puts = command.json_lines(
        "put", store_path, "orders", "--create", "--lines", *SETTINGS, stdin=b"\n".join(lines) + b"\n"
    )
    assert len(puts) == 2000
    with cystore.open(store_path, read_only=True) as store:
        assert [bytes(m.body) for m in store.scan()] == lines


def test_a_line_is_appended_when_it_comes(command, store_path):
    with command.start("put", store_path, "orders", "--create", "--lines", "--json", *SETTINGS) as process:
        for number in range(3):
            process.stdin.write(f"line {number}\n".encode())
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["queue_offset"] == number
            with cystore.open(store_path) as store:  # beside the command
                (message,) = store.get("orders", 0, number).messages
                assert message.body == f"line {number}".encode()
        process.stdin.close()
        assert process.wait(60) == 0


def test_into_a_store_in_use(command, store_path):
    with cystore.open(store_path, **SMALL) as store:
        store.put("orders", b"mine")
        (put,) = command.json_lines("put", store_path, "orders", "--flush", "sync", stdin=b"theirs")
        assert put["queue_offset"] == 1
        assert [bytes(m.body) for m in store.get("orders", 0, 0).messages] == [b"mine", b"theirs"]
        assert store.stats()["flushed"] == store.stats()["wrote"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["no topic"], "topic"),
        (["orders", "--key", "a b"], "key"),
        (["orders", "--property", "KEYS=x"], "KEYS"),
        (["orders", "--set", "max_message_size_bytes=3"], "max_message_size_bytes = 3"),
        (["orders", "--lines", "--set", "max_message_size_bytes=3"], "max_message_size_bytes"),
    ],
)
def test_what_cannot_be_stored(command, store_path, arguments, says):
    done = command.run("put", store_path, "--create", *arguments, *SETTINGS, stdin=b"body")
    assert (done.returncode, done.stdout) == (2, "")
    error = done.stderr.splitlines()[-1]
    assert error.startswith("cystore put: error: ")
    assert says in error


def test_lines_before_one_that_is_too_long_are_kept_and_reported(command, store_path):
    with command.start(
        "put", store_path, "orders", "--create", "--lines", "--set", "max_message_size_bytes=10", *SETTINGS
    ) as process:
        process.stdin.write(b"short\n")
        process.stdin.flush()
        assert process.stdout.readline().startswith(b"orders/0@0 ")
        process.stdin.write(b"x" * 11)
        process.stdin.close()
        assert process.wait(60) == 2
        assert b"a line has more than max_message_size_bytes = 10" in process.stderr.read()
    assert [body for body, *_ in stored(store_path, "orders")] == [b"short"]


def test_a_property_without_a_value_is_wrong_usage(command, store_path):
    done = command.run("put", store_path, "orders", "--property", "name", stdin=b"body")
    assert done.returncode == 2
    assert "'name' is not NAME=VALUE" in done.stderr
    assert not store_path.exists()
