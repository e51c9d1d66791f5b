"""Goal: `cystore dump` and `cystore query` read any RocketMQ store, also one that nobody recovered, and one
in a directory that may not be written. Method: the commands as a user runs them, on every golden store,
against the oracle."""

import base64
import json
import os
import subprocess
import sys

import pytest

from tests.oracle import store as oracle
from tests.support.golden.answers import java_host
from tests.support.golden.cystore_config import cystore_config
from tests.support.golden.dump import java_host as java_host_of_bytes
from tests.support.golden.stores import REPOSITORY

# Root writes where it likes; without its capabilities the permissions bind it as they bind everybody.
AS_ANYBODY = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.geteuid() == 0 else ()


def cystore_command(*arguments: str, prefix: tuple[str, ...] = ()) -> list[dict]:
    done = subprocess.run(
        [*prefix, sys.executable, "-m", "cystore", *arguments, "--json"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


def settings(golden, **more) -> list[str]:
    pairs = {**cystore_config(golden.spec), **more}
    return [word for name, value in pairs.items() for word in ("--set", f"{name}={value}")]


def assert_dump(lines: list[dict], view: oracle.View) -> None:
    wanted = [
        (key, offset, record)
        for key in sorted(view.queues)
        for offset, record in sorted(view.queue_messages(key).items())
    ]
    assert [(d["topic"], d["queue_id"], d["queue_offset"]) for d in lines] == [(*k, o) for k, o, _ in wanted]
    for line, (_, _, record) in zip(lines, wanted, strict=True):
        assert base64.b64decode(line["body"]) == record.body
        assert line["size_bytes"] == record.size
        assert line["body_crc"] == record.checksum
        assert line["properties"] == record.properties
        assert line["tags"] == record.tags
        assert tuple(line["keys"]) == record.keys
        assert java_host(line["born_host"]) == java_host_of_bytes(record.born_host)
        assert java_host(line["store_host"]) == java_host_of_bytes(record.store_host)
        for name in (
            "physical_offset",
            "flag",
            "sys_flag",
            "born_timestamp_ms",
            "store_timestamp_ms",
            "reconsume_times",
            "prepared_transaction_offset",
        ):
            assert line[name] == getattr(record, name), name


@pytest.mark.sampled(2)
@pytest.mark.parametrize("damaged_range", ["truncate", "keep"])
def test_dump_of_every_store(golden, damaged_range):
    view = oracle.recover(oracle.read_directory(golden.store), damaged_range)
    lines = cystore_command("dump", str(golden.store), *settings(golden, damaged_range=damaged_range))
    assert_dump(lines, view)


def test_dump_of_a_part(unpack_golden):
    golden = unpack_golden("a_clean")
    arguments = ["--topic", "TopicTest", "--queue", "0", "--from", "295", "--count", "10"]
    lines = cystore_command("dump", str(golden.store), *arguments, *settings(golden))
    assert [(d["topic"], d["queue_id"], d["queue_offset"]) for d in lines] == [
        ("TopicTest", 0, offset) for offset in range(295, 305)
    ]


@pytest.fixture
def write_protected(golden):
    """A store without one write permission, and the words before a command that make it obey them."""
    paths = [golden.store, *golden.store.rglob("*")]
    for path in paths:
        path.chmod(0o555 if path.is_dir() else 0o444)
    try_to_write = [*AS_ANYBODY, sys.executable, "-c", f"open({str(golden.store / 'new')!r}, 'w')"]
    assert subprocess.run(try_to_write, stderr=subprocess.DEVNULL).returncode == 1
    yield golden.store
    for path in paths:
        path.chmod(0o755 if path.is_dir() else 0o644)


@pytest.mark.sampled(1)
def test_a_read_only_directory_is_dumped_and_queried(golden, write_protected):
    view = oracle.recover(oracle.read_directory(golden.store), "keep")
    before = {path: path.stat().st_mtime_ns for path in golden.store.rglob("*")}
    arguments = [str(write_protected), *settings(golden)]
    assert_dump(cystore_command("dump", *arguments, prefix=AS_ANYBODY), view)
    for row in golden.rows_of("query")[:1]:
        topic, key = row["topic"], row["key"]
        found = cystore_command(
            "query", arguments[0], topic, key, "--max", "64", *arguments[1:], prefix=AS_ANYBODY
        )
        assert [line["physical_offset"] for line in found] == [
            record.physical_offset for record in view.query(topic, key, 64)
        ]
    assert {path: path.stat().st_mtime_ns for path in golden.store.rglob("*")} == before
