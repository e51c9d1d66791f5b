"""Goal: a free lock that is taken inline is the C library's in every respect: to itself, to waiters, and to the
kernel when its owner dies (I5). Method: the header compiled into a library of its own; the bytes of a mutex after
each step of both; a kill after each instruction."""

from __future__ import annotations

import ctypes
import errno
import itertools
import mmap
import os
import platform
import signal
import struct
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from cystore._native.append import put
from tests.support.processes.shifted import COMPILER

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "cystore" / "_native"
MUTEX_BYTES = 40
OWNER, WAITERS, OWNER_DIED = 0x3FFFFFFF, 0x80000000, 0x40000000

pytestmark = [
    pytest.mark.unsanitized,  # compiles a library of its own
    pytest.mark.skipif(
        platform.libc_ver()[0] != "glibc" or platform.machine() not in ("x86_64", "aarch64"),
        reason="locks are taken inline with glibc alone, on x86-64 and ARM64",
    ),
]


class Lock:
    """A robust mutex in memory that forked processes share, and what can be done to it: `take`, `give`, ... give an
    errno or 0."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._memory = mmap.mmap(-1, mmap.PAGESIZE)
        self._mutex = ctypes.c_char.from_buffer(self._memory)
        self._library = library
        assert self("init") == 0

    def __call__(self, what: str) -> int:
        return int(getattr(self._library, what)(ctypes.byref(self._mutex)))

    @property
    def bytes(self) -> bytes:
        return self._memory[:MUTEX_BYTES]

    @property
    def word(self) -> int:
        return int(struct.unpack_from("=I", self._memory)[0])


@pytest.fixture(scope="module")
def library(tmp_path_factory) -> ctypes.CDLL:
    built = tmp_path_factory.mktemp("free_lock") / "free_lock.so"
    command = [
        COMPILER,
        "-shared",
        "-fPIC",
        "-O3",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-D_GNU_SOURCE",
        f"-I{NATIVE}",
        f"-I{NATIVE / 'memory'}",
        "-o",
        built,
    ]
    subprocess.run([*command, HERE / "free_lock.c"], check=True)
    loaded = ctypes.CDLL(str(built))
    assert loaded.known() == 1
    return loaded


@pytest.fixture
def lock(library) -> Iterator[Lock]:
    lock = Lock(library)
    yield lock
    lock("library_give")  # of a test that failed: its memory goes, and the thread's list must not lead there


@pytest.fixture
def killed(lock) -> Iterator[list[int]]:
    """Process ids; nobody outlives the test."""
    started: list[int] = []
    yield started
    for child in started:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def child_that(lock: Lock, what: str) -> int:
    """A forked process that does it, says so, and waits to be killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writing, b"%d" % lock(what))
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    with open(reading, "rb", buffering=0) as told:
        assert told.read(8) == b"0"
    return child


def test_puts_take_locks_inline_here():
    assert put.takes_locks_inline is True


@pytest.mark.parametrize("take", ["inline_take", "library_take", "library_wait"])
@pytest.mark.parametrize("give", ["inline_give", "library_give"])
def test_both_leave_the_same_bytes(lock, take, give):
    free = lock.bytes
    assert lock("library_take") == 0
    taken = lock.bytes
    assert lock("library_give") == 0
    given = lock.bytes
    assert lock.word == 0 and taken not in (free, given)
    for _ in range(2):
        assert lock(take) == 0
        assert lock.bytes == taken and lock.word == threading.get_native_id()
        assert lock(give) == 0
        assert lock.bytes == given


def test_what_is_not_free_is_not_taken(lock):
    assert lock("inline_take") == 0
    found = []
    for what in ("inline_take", "library_take", "inline_give"):
        other = threading.Thread(target=lambda what=what: found.append(lock(what)))
        other.start()
        other.join()
    assert found == [errno.EBUSY, errno.EBUSY, errno.EPERM]
    assert lock("inline_take") == errno.EBUSY and lock("library_take") == errno.EDEADLK
    assert lock("inline_give") == 0 and lock.word == 0
    assert lock("inline_give") == errno.EPERM


@pytest.mark.parametrize("first_back", [0, 1])
def test_a_thread_that_holds_another_one_is_the_librarys(lock, library, first_back):
    other = Lock(library)
    assert other("library_take") == 0
    assert lock("inline_take") == errno.EBUSY and lock.word == 0
    assert lock("library_take") == 0
    assert other("inline_give") == errno.EPERM and lock("inline_give") == errno.EPERM
    for one in ((lock, other), (other, lock))[first_back]:
        assert one("library_give") == 0
    assert lock("inline_take") == 0 and lock("inline_give") == 0


def test_who_waits_is_woken(lock):
    assert lock("inline_take") == 0
    found = []
    waiting = threading.Thread(target=lambda: found.extend((lock("library_wait"), lock("library_give"))))
    waiting.start()
    while not lock.word & WAITERS:
        os.sched_yield()
    assert lock("inline_give") == 0
    waiting.join(timeout=20)
    assert found == [0, 0] and lock.word == 0


def test_a_forked_process_takes_it_by_its_own_name(lock, killed):
    assert lock("inline_take") == 0 and lock("inline_give") == 0
    killed.append(child_that(lock, "inline_take"))
    assert lock.word & OWNER == killed[0]


def test_i5_the_death_of_an_owner_is_noticed(lock, killed):
    child = child_that(lock, "inline_take")
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert lock.word & OWNER_DIED
    assert lock("inline_take") == errno.EBUSY
    assert lock("library_take") == errno.EOWNERDEAD
    assert lock("library_mend") == 0 and lock("inline_give") == 0
    assert lock("inline_take") == 0 and lock("inline_give") == 0


def killed_after(lock: Lock, library: ctypes.CDLL, steps: int) -> bool:
    """A process that takes the lock and gives it back is killed after so many instructions. False when it was done
    before."""
    child = os.fork()
    if child == 0:
        os._exit(lock("inline_in_steps"))
    _, status = os.waitpid(child, 0)
    if os.WIFEXITED(status):
        pytest.skip(f"a process cannot be traced here: {os.strerror(os.WEXITSTATUS(status))}")
    for _ in range(steps):
        assert library.step(child) == 0
        _, status = os.waitpid(child, 0)
        if os.WSTOPSIG(status) == signal.SIGSTOP:
            break
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return os.WSTOPSIG(status) == signal.SIGTRAP or steps == 0


@pytest.mark.may_skip("not every container lets processes be traced")
def test_i5_a_kill_between_any_two_instructions_leaves_no_lock_behind(lock, library):
    found = []
    for steps in itertools.count():
        if not killed_after(lock, library, steps):
            break
        found.append(lock("library_take"))
        if found[-1] == errno.EOWNERDEAD:
            assert lock("library_mend") == 0
        assert lock("library_give") == 0
    assert set(found) == {0, errno.EOWNERDEAD}
    died = [steps for steps, status in enumerate(found) if status]
    assert died == list(range(died[0], died[-1] + 1)) and len(died) > 10
