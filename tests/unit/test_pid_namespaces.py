"""Goal: a store in use is read from any PID namespace, and written from one alone. Method: real namespaces, made by unshare."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cystore
from tests.crash.faults.namespace import NAMESPACE, UNSHARE, obstacle
from tests.process import Failed, Process
from tests.small import open_small

# With a /proc of its own, as a container has it.
ELSEWHERE = [*UNSHARE, "--mount-proc"]

pytestmark = [
    pytest.mark.skipif(bool(obstacle()), reason=obstacle()),
    pytest.mark.may_skip("no PID namespace can be made"),
    pytest.mark.may_skip("no unshare"),
]


@pytest.fixture
def path(tmp_path):
    return tmp_path / "store"


@pytest.fixture
def elsewhere():
    with Process(through=ELSEWHERE) as process:
        assert process.do(NAMESPACE) != os.stat("/proc/self/ns/pid").st_ino
        process.do("import cystore; from tests.small import open_small")
        yield process


def test_writer_of_another_pid_namespace_is_refused_and_told_how_to_share_one(path, elsewhere):
    with open_small(path) as store:
        with pytest.raises(Failed) as refused:
            elsewhere.do("open_small(path)", path=str(path))
        for words in (
            "StoreFormatError",
            "PID namespace",
            "--pid=host",
            "shareProcessNamespace",
            "read_only=True",
        ):
            assert words in str(refused.value)
        store.put("T", b"1")


def test_reader_of_another_pid_namespace_reads_beside_a_writer(path, elsewhere):
    """Seen: an open with read_only=True, and `cystore info`, were refused as a writer is."""
    with open_small(path) as store:
        store.put("T", b"1", keys=("k",))
        elsewhere.do("store = open_small(path, read_only=True)", path=str(path))
        store.put("T", b"2", keys=("k",))
        assert elsewhere.do("[bytes(m.body).decode() for m in store.scan()]") == ["1", "2"]
        assert elsewhere.do("[bytes(m.body).decode() for m in store.query('T', 'k')]") == ["2", "1"]
        assert elsewhere.do("[bytes(m.body).decode() for m in store.get('T', 0, 0).messages]") == ["1", "2"]
        with pytest.raises(Failed, match="StoreNotWritableError"):
            elsewhere.do("store.put('T', b'3')")
        elsewhere.do("store.close()")
        store.put("T", b"3")


def test_a_wait_in_another_pid_namespace_ends_with_a_put(path, elsewhere):
    with open_small(path) as store:
        elsewhere.do("store = open_small(path, read_only=True)", path=str(path))
        elsewhere.send("bool(store.wait('T', 0, 0, 60.0))")
        store.put("T", b"1")
        assert elsewhere.answer() is True


def test_reader_that_was_alone_follows_a_writer_of_another_namespace(path, elsewhere):
    with open_small(path) as store:
        store.put("T", b"1")
    with open_small(path, read_only=True) as reader:
        elsewhere.do("store = open_small(path); store.put('T', b'2')", path=str(path))
        assert reader.wait("T", 0, 1, 60.0)
        assert [bytes(message.body) for message in reader.scan()] == [b"1", b"2"]
        elsewhere.do("store.close()")


@pytest.mark.parametrize(
    "command", [["info"], ["info", "--json"], ["query", "T", "k"], ["topics"], ["verify"]]
)
def test_commands_read_from_another_pid_namespace(path, command):
    with open_small(path) as store:
        store.put("T", b"1", keys=("k",))
        name, *rest = command
        done = subprocess.run(
            [*ELSEWHERE, sys.executable, "-m", "cystore", name, str(path), *rest],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        assert done.stdout


def test_writer_comes_when_the_other_namespace_has_left(path, elsewhere):
    with open_small(path) as store:
        store.put("T", b"1")
    elsewhere.do("store = open_small(path); store.put('T', b'2'); store.close()", path=str(path))
    with cystore.open(path, read_only=True) as reader:
        assert [bytes(m.body) for m in reader.scan()] == [b"1", b"2"]
