"""Goal: a name's lock excludes other threads and processes, and ends with its owner. Method: real processes, forked
children, SIGKILL."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from cystore.system.key_lock import KeyLock, is_taken
from tests.support.process import Process

pytestmark = pytest.mark.unsanitized  # Python alone

HELD = """
from pathlib import Path
from cystore.system.key_lock import KeyLock, is_taken
lock = KeyLock(Path(path), name)
lock.take(lambda: None)
"""
FORKED = """
import os, signal
begun, beginning = os.pipe()
child = os.fork()
if child == 0: os.write(beginning, b"x"); signal.pause()
os.read(begun, 1)  # the child has let the lock's file go before its first line
child
"""


class InUseError(Exception):
    pass


def refuse() -> None:
    raise InUseError


def test_names_exclude_others_of_the_same_name_only(tmp_path):
    path = tmp_path / "config" / "locks"
    assert not is_taken(path, "a")
    one, two, other = KeyLock(path, "a"), KeyLock(path, "a"), KeyLock(path, "b")
    one.take(refuse)
    other.take(refuse)
    assert is_taken(path, "a") and is_taken(path, "b") and not is_taken(path, "c")
    with pytest.raises(InUseError):
        KeyLock(path, "a").take(refuse)
    waits, through = threading.Event(), threading.Event()
    thread = threading.Thread(target=lambda: (two.take(waits.set), through.set()))
    thread.start()
    assert waits.wait(60) and not through.is_set()
    one.give()
    assert through.wait(60)
    thread.join()
    two.give()
    two.give()
    assert not is_taken(path, "a")
    assert path.stat().st_size == 0


def test_a_killed_owner_gives_it_back_though_its_child_lives(tmp_path):
    path = tmp_path / "locks"
    with Process() as owner:
        owner.do(HELD, path=str(path), name="a")
        child = owner.do(FORKED)
        try:
            assert is_taken(path, "a")
            owner.kill()
            lock = KeyLock(path, "a")
            lock.take(refuse)
            lock.give()
        finally:
            os.kill(child, signal.SIGKILL)


def test_a_child_that_ends_does_not_give_back_what_its_parent_has(tmp_path):
    path = tmp_path / "locks"
    with Process() as owner:
        owner.do(HELD, path=str(path), name="a")
        owner.do(
            "import os\nchild = os.fork()\nif child == 0: lock.give(); del lock; os._exit(0)\nos.waitpid(child, 0)[1]"
        )
        assert is_taken(path, "a")
        assert owner.do("lock.give(); is_taken(Path(path), name)") is False
