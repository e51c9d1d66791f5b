"""Goal: a store in use is read and written from any PID namespace. Method: real namespaces, made by unshare: the first
process of each has thread id 1."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import cystore
from tests.crash.faults.containers import NAMESPACE, UNSHARE, obstacle
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


def test_writers_of_two_pid_namespaces_write_one_store(path, elsewhere):
    """Seen: the second one was refused."""
    with open_small(path) as store:
        elsewhere.do("store = open_small(path); import os", path=str(path))
        for number in range(0, 40, 2):
            assert store.put("T", str(number).encode(), keys=(f"k{number}",)).queue_offset == number
            there = "store.put('T', str(n).encode(), keys=(f'k{n}',), flush='sync').queue_offset"
            assert elsewhere.do(there, n=number + 1) == number + 1
        wanted = [str(number) for number in range(40)]
        assert [bytes(m.body).decode() for m in store.scan()] == wanted
        assert elsewhere.do("[bytes(m.body).decode() for m in store.scan()]") == wanted
        assert elsewhere.do("[bytes(m.body).decode() for m in store.query('T', 'k20')]") == ["20"]
        assert [bytes(m.body) for m in store.query("T", "k21")] == [b"21"]
        mine, its = store._attached().control.process, elsewhere.do("store._attached().control.process")
        assert mine != its and {mine, its} <= {one for one, *_ in store._attached().control.processes()}
        elsewhere.do("store.close()")
        assert its not in {one for one, *_ in store._attached().control.processes()}


def test_a_wait_ends_with_a_put_of_another_writers_namespace(path, elsewhere):
    with open_small(path) as store:
        elsewhere.do("store = open_small(path)", path=str(path))
        elsewhere.send("bool(store.wait('T', 0, 0, 60.0))")
        store.put("T", b"1")
        assert elsewhere.answer() is True


@pytest.mark.parametrize("dies", ["alone", "with its namespace"])
def test_a_writer_that_dies_under_locks_is_noticed_in_another_namespace(path, elsewhere, dies):
    """The next owner repairs what it left, at once. A writer of a third namespace stays."""
    with open_small(path) as store, Process(through=ELSEWHERE) as third:
        third.do(
            "from tests.support.small_stores import open_small; store = open_small(path)", path=str(path)
        )
        elsewhere.do("store = open_small(path); store.put('T', b'1', keys=('k',)); import os", path=str(path))
        elsewhere.do(
            "control = store._attached().control; turns = [control.held(n) for n in ('dispatch', 'append')]; "
            "[turn.__enter__().held for turn in turns]"
        )
        assert store._attached().control.owner("append") == 1
        assert third.do("store._attached().control.owner('append')") == 1, "the owner's own thread id too"
        if dies == "alone":
            elsewhere.send("os._exit(9)")
            elsewhere.wait()
        else:
            elsewhere.kill()
        assert third.do("store.put('T', b'2', keys=('k',)).queue_offset") == 1
        assert [bytes(message.body) for message in store.query("T", "k")] == [b"2", b"1"]


FORKS_AND_DIES = """
import os, signal
pid = os.fork()
if pid == 0:
    try:
        store = open_small(path)
        turn = store._attached().control.held("append")
        turn.__enter__()
        if os.fork() == 0:
            signal.pause()
        os.kill(os.getpid(), signal.SIGKILL)
    finally:
        os._exit(1)
os.WTERMSIG(os.waitpid(pid, 0)[1])
"""
EXECS = """
pid = os.fork()
if pid == 0:
    try:
        store = open_small(path)
        turn = store._attached().control.held("append")
        turn.__enter__()
        os.execlp("sleep", "sleep", "60")
    finally:
        os._exit(1)
while os.readlink(f"/proc/{pid}/exe") == os.readlink("/proc/self/exe"):
    os.sched_yield()
"""


def test_a_child_keeps_no_lock_of_its_dead_parent(path, elsewhere):
    """It was forked under the lock, and had the parent's byte of `lock` until its hook closed the descriptors."""
    with open_small(path) as store:
        assert elsewhere.do(FORKS_AND_DIES, path=str(path)) == signal.SIGKILL
        assert store.put("T", b"1").queue_offset == 0


def test_a_process_that_becomes_another_program_keeps_no_lock(path, elsewhere):
    with open_small(path) as store:
        elsewhere.do(f"import os\n{EXECS}", path=str(path))
        assert store.put("T", b"1").queue_offset == 0


def test_a_stopped_writer_keeps_its_locks(path, elsewhere):
    """For the others it is slow, not dead, even when nobody of its namespace is left to ask."""
    with open_small(path) as store, Process(through=[*ELSEWHERE, "--kill-child"]) as third:
        third.do(
            "from tests.support.small_stores import open_small; store = open_small(path)", path=str(path)
        )
        elsewhere.do("store = open_small(path); control = store._attached().control", path=str(path))
        elsewhere.do("turn = control.held('append'); turn.__enter__().held")
        with pytest.raises(cystore.PageCacheBusyError):
            store.put("T", b"1", busy_timeout_ms=300)
        with pytest.raises(Failed, match="PageCacheBusyError"):
            third.do("store.put('T', b'1', busy_timeout_ms=300)")
        elsewhere.do("turn.__exit__(None, None, None)")
        assert third.do("store.put('T', b'1').queue_offset") == 0
        assert store.put("T", b"1").queue_offset == 1


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


def test_namespaces_come_and_go_beside_a_reader(path, elsewhere):
    """The store is written from either, and both, until nobody is left."""
    with Process() as first, Process() as reader:
        for process in (first, reader):
            process.do("from tests.support.small_stores import open_small")
        first.do("store = open_small(path); store.put('T', b'0'); store.close()", path=str(path))
        reader.do("store = open_small(path, read_only=True)", path=str(path))
        elsewhere.do("store = open_small(path); store.put('T', b'1')", path=str(path))
        first.do("store = open_small(path); store.put('T', b'2')")
        elsewhere.kill()
        first.do("store.put('T', b'3'); store.close()")
        with Process(through=ELSEWHERE) as back:
            back.do("from tests.support.small_stores import open_small")
            back.do("store = open_small(path); store.put('T', b'4')", path=str(path))
            assert reader.do("[bytes(m.body).decode() for m in store.scan()]") == list("01234")
            back.do("store.close()")


def test_writers_with_locks_of_the_c_library_share_a_namespace(path, elsewhere):
    """As with another C library: it knows an owner by the thread id alone. Its writers do not join those with our
    locks."""
    ours = "from cystore.system import platform; from cystore._native.memory import control; "
    theirs = f"{ours}control.locks_inline = platform.locks_inline = False; "
    with open_small(path) as store:
        store.put("T", b"1")
        with pytest.raises(Failed, match=r"C library: theirs glibc .*, ours glibc .*its own locks"):
            elsewhere.do(f"{theirs}open_small(path)", path=str(path))
    with Process() as process:
        process.do(f"{theirs}from tests.support.small_stores import open_small")
        process.do("store = open_small(path)", path=str(path))
        with pytest.raises(Failed) as refused:
            elsewhere.do("open_small(path)")
        for words in ("StoreFormatError", "PID namespace", "--pid=host", "shareProcessNamespace"):
            assert words in str(refused.value)
        with open_small(path, read_only=True) as reader:
            assert [bytes(m.body) for m in reader.scan()] == [b"1"]
        with pytest.raises(cystore.StoreFormatError, match="C library"):
            open_small(path)
