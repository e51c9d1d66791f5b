"""Goal: `cystore rebuild` gives the same queues and index from the log alone, also when it is killed half-way.
Method: bytes and answers before and after."""

from __future__ import annotations

import shutil
import signal
import sys

import pytest

import cystore
from tests.support.cli import stores
from tests.support.cli.command import golden_settings, settings

SETTINGS = settings(stores.SMALL)


def queue_bytes(path):
    return {
        str(p.relative_to(path)): p.read_bytes() for p in (path / "consumequeue").rglob("*") if p.is_file()
    }


def answers(path):
    with cystore.open(path, read_only=True) as store:
        return [
            [m.physical_offset for m in store.query(t, f"group-{n}", 1000)]
            for t in stores.TOPICS
            for n in range(10)
        ]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    "gone",
    [[], ["index"], ["consumequeue"], ["consumequeue/alpha/1"], ["consumequeue", "index", "checkpoint"]],
)
def test_same_bytes_and_same_answers(command, store_path, gone):
    stores.write(store_path, 1500)
    queues, found = queue_bytes(store_path), answers(store_path)
    assert len(queues) == 4
    for name in gone:
        path = store_path / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    (result,) = command.json_lines("rebuild", store_path, *SETTINGS)
    assert (result["records"], result["queues"]) == (1500, 4)
    assert queue_bytes(store_path) == queues
    assert answers(store_path) == found
    assert not (store_path / "abort").exists()


def test_wrong_entries_are_replaced(command, store_path):
    stores.write(store_path, 100)
    queues, found = queue_bytes(store_path), answers(store_path)
    with open(store_path / "consumequeue" / "alpha" / "0" / ("0" * 20), "r+b") as file:
        file.seek(20 * 3)
        file.write(b"\xff" * 20)
    for path in (store_path / "index").iterdir():
        path.write_bytes(path.read_bytes()[::-1])
    text = command.ok("rebuild", store_path, *SETTINGS)
    assert text.startswith("100 records in ")
    assert text.endswith(": 4 queues and the index rebuilt\n")
    assert queue_bytes(store_path) == queues
    assert answers(store_path) == found


# Dies right before its so-many-th change of a directory.
KILLED = """
import os, signal, sys
from cystore.cli import main
left = int(sys.argv[1])
def hook(event, arguments):
    global left
    if event in ("os.remove", "os.rmdir", "os.rename", "shutil.rmtree"):
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
sys.addaudithook(hook)
main(sys.argv[2:])
"""


@pytest.mark.sampled(3)
@pytest.mark.parametrize("change", range(1, 16, 2))
def test_killed_half_way(command, store_path, change):
    stores.write(store_path, 3000)  # some consume queues have several files
    queues, found = queue_bytes(store_path), answers(store_path)
    command.words = [sys.executable, "-c", KILLED, str(change)]
    assert command.run("rebuild", store_path, *SETTINGS).returncode == -signal.SIGKILL
    with cystore.open(store_path, **stores.SMALL):
        pass
    assert queue_bytes(store_path) == queues
    assert answers(store_path) == found


def test_a_store_in_use_is_left_alone(command, store_path):
    with cystore.open(store_path, **stores.SMALL) as store:
        store.put_many(stores.messages(10))
        store.dispatch()
        before = queue_bytes(store_path)
        done = command.run("rebuild", store_path, *SETTINGS)
        assert (done.returncode, done.stdout) == (2, "")
        assert "the store is in use" in done.stderr
        assert queue_bytes(store_path) == before


def test_no_store_is_left_alone(command, tmp_path):
    (tmp_path / "consumequeue.txt").write_text("mine")
    done = command.run("rebuild", tmp_path)
    assert done.returncode == 2
    assert "the directory is not a store" in done.stderr
    assert not (tmp_path / "abort").exists()


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", ["a_clean", "d_ext", "i_transaction", "j_expired_preblank"])
def test_golden_stores_read_the_same_afterwards(command, unpack_golden, name):
    golden = unpack_golden(name)
    arguments = golden_settings(golden)
    dump = command.ok("dump", golden.store, "--json", *arguments)
    command.ok("rebuild", golden.store, *arguments)
    assert command.ok("dump", golden.store, "--json", *arguments) == dump


@pytest.mark.sampled(2)
@pytest.mark.parametrize("change", range(2, 12, 3))
def test_killed_in_a_store_that_keeps_no_list_of_its_queues(command, store_path, change):
    """As RocketMQ leaves it; a queue whose messages are all in the first segments is not missed by the usual look at
    the last three."""
    with cystore.open(store_path, record_format="rocketmq", **stores.SMALL) as store:
        store.put_many([cystore.Message(topic=topic, body=b"early", keys=(topic,)) for topic in ("a", "z")])
        for _ in range(50):
            store.put_many([cystore.Message(topic="m", body=bytes(100_000))])
    shutil.rmtree(store_path / "config")
    (store_path / "checkpoint").write_bytes((store_path / "checkpoint").read_bytes()[:24].ljust(4096, b"\0"))
    queues = queue_bytes(store_path)
    command.words = [sys.executable, "-c", KILLED, str(change)]
    assert command.run("rebuild", store_path, *SETTINGS).returncode == -signal.SIGKILL
    with cystore.open(store_path, **stores.SMALL) as store:
        assert [len(store.query(topic, topic)) for topic in ("a", "z")] == [1, 1]
    assert queue_bytes(store_path) == queues
