"""Goal: a store in use is read from any PID namespace, and written from one at a time. Method: real namespaces, made
by unshare."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

import cystore
from tests.crash.faults.namespace import NAMESPACE, UNSHARE, obstacle
from tests.support.process import Failed, Process
from tests.support.small_stores import open_small

# With a /proc of its own, as a container has it.
ELSEWHERE = [*UNSHARE, "--mount-proc"]

pytestmark = [
    pytest.mark.unsanitized,  # about namespaces of processes
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
        process.do("import cystore; from tests.support.small_stores import open_small")
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


def reader_beside(path):
    """A reader of this namespace; the store's only writer is elsewhere."""
    return open_small(path, read_only=True)


def test_a_new_namespace_writes_beside_readers_when_the_old_writers_are_gone(path, elsewhere):
    """Seen: a container of writers that restarts was refused as long as a reader of another container stayed
    attached. The old writer dies with locks in its hands, in the middle of an append; the new one repairs what it
    left."""
    elsewhere.do("store = open_small(path); store.put('T', b'1', keys=('k',))", path=str(path))
    with reader_beside(path) as reader:
        with pytest.raises(Failed, match="PID namespace"), Process() as here:
            here.do("from tests.support.small_stores import open_small; open_small(path)", path=str(path))
        elsewhere.send(
            "import os; control = store._attached().control; turns = [control.held(n) for n in ('dispatch', "
            "'append')]; "
            "[turn.__enter__() for turn in turns]; os._exit(9)"
        )
        elsewhere.wait()
        with open_small(path) as store:
            assert store._attached().control.repair_is_due("append")
            store.put("T", b"2", keys=("k",))
            assert store._attached().control.owner("append") == 0
            assert reader.wait("T", 0, 1, 60.0)
            assert [bytes(message.body) for message in reader.query("T", "k")] == [b"2", b"1"]
            with Process() as here:
                here.do(
                    "from tests.support.small_stores import open_small; store = open_small(path)",
                    path=str(path),
                )
                here.do("store.put('T', b'3')")
            with Process(through=ELSEWHERE) as back, pytest.raises(Failed, match="PID namespace"):
                back.do("from tests.support.small_stores import open_small; open_small(path)", path=str(path))
        assert [bytes(message.body) for message in reader.scan()] == [b"1", b"2", b"3"]


def test_one_writer_that_stays_keeps_the_other_namespace_out(path, elsewhere):
    """Two writers of one namespace, one leaves in order, then a stopped one still counts; readers of both namespaces
    are no reason."""
    with Process() as first, Process() as second, Process() as reader:
        for process, settings in ((first, {}), (second, {}), (reader, {"read_only": True})):
            process.do("from tests.support.small_stores import open_small", path=str(path), settings=settings)
            process.do("store = open_small(path, **settings)")
        first.do("store.close()")
        second.stop()
        with pytest.raises(Failed, match="PID namespace"):
            elsewhere.do("open_small(path)", path=str(path))
        second.go_on()
        second.do("store.put('T', b'1')")
        second.kill()
        elsewhere.do("store = open_small(path); store.put('T', b'2')", path=str(path))
        assert reader.do("[bytes(m.body).decode() for m in store.scan()]") == ["1", "2"]
        with pytest.raises(Failed, match="PID namespace"):
            first.do("open_small(path)")
        elsewhere.do("store.close()")
        assert first.do("store = open_small(path); store.put('T', b'3').queue_offset") == 2


def test_two_namespaces_never_write_at_once(path):
    """Writers of two namespaces come and go beside a reader. Whoever gets in writes its namespace into the log, and
    looks, as long as it stays, for records of the other one behind its own first."""
    rounds = (
        "import random, cystore\nfrom tests.support.small_stores import open_small\n"
        "def turns(path, mark, seed, count):\n"
        "    chance, entered = random.Random(seed), 0\n"
        "    for _ in range(count):\n"
        "        try:\n"
        "            store = open_small(path)\n"
        "        except (cystore.StoreFormatError, cystore.StoreLockedError):\n"
        "            continue\n"
        "        entered += 1\n"
        "        first = store.put('T', mark.encode()).physical_offset\n"
        "        for _ in range(chance.randrange(20)):\n"
        "            store.put('T', mark.encode())\n"
        "        assert {bytes(m.body).decode() for m in store.scan(first)} == {mark}\n"
        "        store.close()\n"
        "    return entered\n"
    )
    with open_small(path) as store:
        store.put("T", b"-")
    with (
        Process() as reader,
        Process() as here,
        Process(through=ELSEWHERE) as there,
    ):
        reader.do(
            "from tests.support.small_stores import open_small; store = open_small(path, read_only=True)",
            path=str(path),
        )
        for process in (here, there):
            process.do(rounds)
        for seed, process in enumerate((here, there)):
            process.send("turns(path, mark, seed, 25)", path=str(path), mark="ab"[seed], seed=seed)
        assert here.answer() + there.answer() > 0
        assert reader.do("len(list(store.scan()))") >= 1
