"""Goal: whoever must be alone in a store is alone, whatever kind of program the others are and whatever was done to
the `lock` file. Method: other processes take, keep and lose the locks, RocketMQ's JVM played by the system call that
it makes."""

from __future__ import annotations

import fcntl
import os
import threading

import pytest

from cystore.errors import StoreLockedError
from cystore.system import store_lock
from cystore.system.store_lock import StoreLocks
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # Python alone

# FileChannel.tryLock(0, 1, false) of RocketMQ's BrokerStartup is fcntl(F_SETLK) with a write lock on one byte.
AS_JAVA = """
import fcntl, os
java = os.open(path, os.O_RDWR | os.O_CREAT)
def java_locks():
    try:
        fcntl.lockf(java, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
    except BlockingIOError:
        return False
    return True
"""
ATTACHED = """
from pathlib import Path
from cystore.system.store_lock import StoreLocks
locks = StoreLocks(Path(root), read_only=False)
locks.share()
locks.claim_directory(alone=False)
"""


@pytest.fixture
def short_wait(monkeypatch):
    """How long an exiting process is waited for: no time at all here."""
    monkeypatch.setattr(store_lock, "_DIRECTORY_WAIT_S", 0.0)


@pytest.fixture
def store(tmp_path):
    held = StoreLocks(tmp_path, read_only=False)
    yield held
    held.close()


def test_lock_file_is_rocketmqs(tmp_path, store):
    assert (tmp_path / "lock").read_bytes() == b"lock"
    (tmp_path / "lock").write_bytes(b"other")
    StoreLocks(tmp_path, read_only=False).close()
    assert (tmp_path / "lock").read_bytes() == b"other"


def test_alone_then_shared_then_not_alone(tmp_path, store):
    other = StoreLocks(tmp_path, read_only=False)
    assert store.try_alone()
    assert other.holder() == "exclusive"
    assert not other.share()
    assert store.share()
    assert other.holder() == "shared"
    assert other.share()
    assert not store.try_alone()
    assert store.holder() == "shared"
    other.close()
    assert store.try_alone()
    other = StoreLocks(tmp_path, read_only=True)
    assert other.holder() == "exclusive"
    other.close()


def test_closing_another_descriptor_of_the_file_gives_nothing_up(tmp_path, store):
    """The behaviour of fcntl's ordinary locks: any close of the file by the process ends them."""
    store.share()
    os.close(os.open(tmp_path / "lock", os.O_RDWR))
    other = StoreLocks(tmp_path, read_only=False)
    assert not other.try_alone()
    other.close()


def test_a_jvm_and_we_keep_each_other_out(tmp_path, store):
    with Process() as jvm:
        jvm.do(AS_JAVA, path=str(tmp_path / "lock"))
        assert store.try_alone()
        assert not jvm.do("java_locks()")
        assert store.share()
        assert not jvm.do("java_locks()")
        store.close()
        assert jvm.do("java_locks()")
        late = StoreLocks(tmp_path, read_only=False)
        assert not late.try_alone()
        assert not late.share()
        assert late.holder() == "exclusive"
        jvm.kill()
        assert late.try_alone()
        late.close()


def test_killed_process_holds_nothing(tmp_path, store):
    with Process() as other:
        other.do(ATTACHED, root=str(tmp_path))
        assert not store.try_alone()
        other.kill()
        assert store.try_alone()
        store.claim_directory(alone=True)


def test_gate_lets_one_in_at_a_time(tmp_path, store):
    with Process() as other:
        other.do(ATTACHED + "gate = locks.gate()\ngate.__enter__()", root=str(tmp_path))
        with Process() as third:
            third.do(ATTACHED, root=str(tmp_path))
            third.send("with locks.gate(): order.append('in')", order=[])
            other.do("gate.__exit__(None, None, None)")
            third.answer()
            assert third.do("order") == ["in"]


def pass_the_gate(store):
    with store.gate():
        pass


def test_a_long_wait_at_the_gate_is_told_to_the_log(tmp_path, store, monkeypatch):
    told = threading.Event()
    monkeypatch.setattr(store_lock, "_REPORT_AFTER_S", 0.01)
    monkeypatch.setattr(store_lock.log, "warning", lambda *_: told.set())
    with Process() as other:
        other.do(ATTACHED + "gate = locks.gate()\ngate.__enter__()", root=str(tmp_path))
        other.stop()
        waiting = threading.Thread(target=pass_the_gate, args=(store,))
        waiting.start()
        assert told.wait(30)
        other.kill()
        waiting.join()


def test_gate_is_given_back_by_a_killed_process(tmp_path, store):
    with Process() as other:
        other.do(ATTACHED + "gate = locks.gate()\ngate.__enter__()", root=str(tmp_path))
        other.kill()
    with store.gate():
        assert fcntl.fcntl(store._fd, fcntl.F_GETFD) == fcntl.FD_CLOEXEC


def test_waiting_at_the_gate_can_be_broken_off(tmp_path):
    """Ctrl-C."""
    with Process() as inside, Process() as waiting:
        inside.do(ATTACHED + "gate = locks.gate()\ngate.__enter__()", root=str(tmp_path))
        waiting.do(ATTACHED, root=str(tmp_path))
        waiting.do(
            "import signal\n"
            "class Interrupted(Exception): pass\n"
            "def interrupt(*_): raise Interrupted\n"
            "signal.signal(signal.SIGALRM, interrupt)"
        )
        outcome = waiting.do(
            "signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)\n"
            "try:\n"
            "    with locks.gate(): got = 'in'\n"
            "except Interrupted:\n"
            "    got = 'interrupted'\n"
            "signal.setitimer(signal.ITIMER_REAL, 0)\n"
            "got"
        )
        assert outcome == "interrupted"


def test_readers_pass_the_gate_together(tmp_path, store):
    one, other = StoreLocks(tmp_path, read_only=True), StoreLocks(tmp_path, read_only=True)
    with one.gate(), other.gate():
        assert store.holder() == "nobody"
    one.close()
    other.close()


@pytest.mark.parametrize("replaced", [False, True])
def test_lock_file_taken_away_under_live_processes_is_noticed(tmp_path, short_wait, replaced):
    """A new file has no locks: only the directory still knows who is there."""
    with Process() as attached:
        attached.do(ATTACHED, root=str(tmp_path))
        (tmp_path / "lock").unlink()
        if replaced:
            (tmp_path / "lock").write_bytes(b"lock")
        late = StoreLocks(tmp_path, read_only=False)
        assert late.try_alone()
        with pytest.raises(StoreLockedError, match="deleted or replaced"):
            late.claim_directory(alone=True)
        attached.kill()
        late.claim_directory(alone=True)
        late.close()


def test_exiting_process_that_has_given_up_half_is_waited_for(tmp_path):
    """A killed process loses `lock` and the directory one after the other."""
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_SH)
    store = StoreLocks(tmp_path, read_only=False)
    assert store.try_alone()
    release = threading.Timer(0.05, os.close, [held])
    release.start()
    store.claim_directory(alone=True)
    release.join()
    store.close()


def test_link_in_place_of_the_lock_file_is_not_followed(tmp_path):
    (tmp_path / "elsewhere").touch()
    (tmp_path / "lock").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(OSError, match="lock"):
        StoreLocks(tmp_path, read_only=False)


def test_forked_child_closes_and_the_parents_locks_stay(tmp_path, store):
    store.share()
    store.claim_directory(alone=False)
    child = os.fork()
    if child == 0:
        os._exit(0 if (store._fd, store._directory) == (-1, -1) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    with Process() as jvm:
        jvm.do(AS_JAVA, path=str(tmp_path / "lock"))
        assert not jvm.do("java_locks()")


def test_closing_twice_is_fine(tmp_path):
    held = StoreLocks(tmp_path, read_only=False)
    held.close()
    held.close()
