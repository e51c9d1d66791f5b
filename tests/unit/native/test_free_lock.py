"""Goal: the kernel notices the death of an owner of a lock that was taken inline, and nobody takes the lock from an
owner that runs, whatever the kernel says (I5). Method: the header compiled into a library of its own; kills after each
instruction; owners and waiters with equal thread ids, in PID namespaces of their own."""

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
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cystore._native.memory import locks
from cystore.layout import PROCESS_SLOTS
from tests.crash.faults.containers import obstacle
from tests.support.processes.shifted import COMPILER

HERE = Path(__file__).resolve().parent
NATIVE = HERE.parents[2] / "cystore" / "_native"
CLONE_NEWPID, CLONE_NEWUSER = 0x20000000, 0x10000000
MUTEX_BYTES = 40
SLOT = struct.Struct("=IIQ")
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
    def word(self) -> int:
        return int(struct.unpack_from("=I", self._memory)[0])

    def overwrite(self, fill: bytes) -> None:
        self._memory[:MUTEX_BYTES] = MUTEX_BYTES * fill

    @property
    def process(self) -> int:
        return int(struct.unpack_from("=I", self._memory, 4)[0])


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
    lock("inline_give")  # of a test that failed: its memory goes, and the thread's list must not lead there


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


def test_locks_are_taken_inline_here():
    assert locks.locks_inline is True


def test_what_is_not_free_is_not_taken(lock):
    assert lock("inline_take") == 0 and lock.word == threading.get_native_id()
    found = []
    for what in ("inline_take", "inline_wait_briefly", "inline_give"):
        other = threading.Thread(target=lambda what=what: found.append(lock(what)))
        other.start()
        other.join()
    assert found == [errno.EBUSY, errno.ETIMEDOUT, errno.EPERM]
    assert lock("inline_take") == lock("inline_wait") == errno.EDEADLK
    assert lock("inline_give") == 0 and lock.word == 0
    assert lock("inline_give") == errno.EPERM


@pytest.mark.parametrize("given_back", list(itertools.permutations(range(3))))
def test_a_thread_holds_several_at_once_the_librarys_too(lock, library, given_back):
    others = [Lock(library), Lock(library)]
    held = [(lock, "inline"), (others[0], "library"), (others[1], "inline")]
    for _ in range(2):
        for one, kind in held:
            assert one(f"{kind}_take") == 0
        for number in given_back:
            one, kind = held[number]
            assert one(f"{kind}_give") == 0 and one.word == 0


@pytest.mark.parametrize("overwritten", [(2,), (1, 2), (0, 1), (0, 1, 2)])
@pytest.mark.parametrize("fill", [b"\0", b"\x55"])
def test_locks_that_were_overwritten_do_not_lead_their_owner_astray(lock, library, overwritten, fill):
    """As a foreign program does it to a control block."""
    held = [lock, Lock(library), Lock(library)]
    for one in held:
        assert one("inline_take") == 0
    for number in overwritten:
        held[number].overwrite(fill)
    given = [one("inline_give") for one in reversed(held)]
    assert errno.EINVAL in given and set(given) <= {0, errno.EINVAL, errno.EPERM}
    for one in held:
        one.overwrite(b"\0")
        assert one("init") == 0
    for one in held:
        assert one("inline_take") == 0
    for one in held:
        assert one("inline_give") == 0


def test_who_waits_is_woken(lock):
    assert lock("inline_take") == 0
    found = []
    waiting = threading.Thread(target=lambda: found.extend((lock("inline_wait"), lock("inline_give"))))
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
    assert lock("inline_take") == errno.EOWNERDEAD
    assert lock("inline_give") == 0 and lock.word == 0
    assert lock("inline_take") == 0 and lock("inline_give") == 0


def test_i5_who_waits_is_woken_by_the_death_of_the_owner(lock, killed):
    child = child_that(lock, "inline_take")
    found = []
    waiting = threading.Thread(target=lambda: found.extend((lock("inline_wait"), lock("inline_give"))))
    waiting.start()
    while not lock.word & WAITERS:
        os.sched_yield()
    os.kill(child, signal.SIGKILL)
    waiting.join(timeout=20)
    assert found == [errno.EOWNERDEAD, 0]


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
        found.append(lock("inline_take"))
        assert lock("inline_give") == 0
    assert set(found) == {0, errno.EOWNERDEAD}
    died = [steps for steps, status in enumerate(found) if status]
    assert died == list(range(died[0], died[-1] + 1)) and len(died) > 10


# ------------------------------------------------------------------------------------------ equal thread ids


class Containers:
    """Processes that share a lock and a table of slots. Each is the first process of a PID namespace of its own, so
    all of them have thread id 1."""

    def __init__(self, lock: Lock, library: ctypes.CDLL, path: Path) -> None:
        self.lock, self._library, self._path = lock, library, path
        self._slots = mmap.mmap(-1, SLOT.size * PROCESS_SLOTS)
        self._table = ctypes.c_char.from_buffer(self._slots)
        self._libc = ctypes.CDLL(None, use_errno=True)
        path.write_bytes(b"lock")

    def enter(self, slot: int) -> None:
        """This process has a slot from now on. Its descriptor of `lock` stays open until it ends."""
        fd = os.open(self._path, os.O_RDWR)
        pid_namespace = os.stat("/proc/self/ns/pid").st_ino
        status = self._library.enter(ctypes.byref(self._table), slot, ctypes.c_uint64(pid_namespace), fd)
        assert status == 0, os.strerror(status)

    def start(self, run: Callable[[], object]) -> int:
        """Starts a process in a namespace of its own that calls `run`, and is killed at the latest when the test
        ends. Gives the id of the process that waits for it: it ends with it."""
        keeper = os.fork()
        if keeper:
            return keeper
        try:
            _die_with_parent(self._libc)
            kind = CLONE_NEWPID | (0 if os.geteuid() == 0 else CLONE_NEWUSER)
            if self._libc.unshare(kind):
                os._exit(3)
            first = os.fork()
            if first == 0:
                _die_with_parent(self._libc)
                run()
                os._exit(0)
            os.waitpid(first, 0)
            os._exit(0)
        finally:
            os._exit(2)

    def owner(self, slot: int) -> Owner:
        return Owner(self, slot)

    def killed_while_pending(self, slot: int) -> None:
        """A process with thread id 1 announces the lock as pending, and is killed before it can look at it."""
        reading, writing = os.pipe()

        def pend() -> None:
            self.enter(slot)
            self._library.pause_when_pending(writing)
            self.lock("inline_take")

        keeper = self.start(pend)
        os.close(writing)
        with open(reading, "rb", buffering=0) as told:
            assert told.read(1) == b"p"
            (first,) = Path(f"/proc/{keeper}/task/{keeper}/children").read_text().split()
            os.kill(int(first), signal.SIGKILL)
            os.waitpid(keeper, 0)


class Owner:
    """A process with thread id 1 that takes the lock and gives it back when it is told to."""

    def __init__(self, containers: Containers, slot: int) -> None:
        asked, self._ask = os.pipe()
        self._told, telling = os.pipe()

        def obey() -> None:
            containers.enter(slot)
            while what := os.read(asked, 1):
                os.write(telling, bytes([containers.lock({b"t": "inline_take", b"g": "inline_give"}[what])]))

        self._keeper = containers.start(obey)
        os.close(asked)
        os.close(telling)

    def does(self, what: str) -> int:
        os.write(self._ask, what[:1].encode())
        return os.read(self._told, 1)[0]

    def kill(self) -> None:
        (first,) = Path(f"/proc/{self._keeper}/task/{self._keeper}/children").read_text().split()
        os.kill(int(first), signal.SIGKILL)
        os.waitpid(self._keeper, 0)


def _die_with_parent(libc: ctypes.CDLL) -> None:
    libc.prctl(1, signal.SIGKILL, 0, 0, 0)


@pytest.fixture
def containers(lock, library, tmp_path) -> Iterator[Containers]:
    if obstacle():
        pytest.skip(obstacle())
    found = Containers(lock, library, tmp_path / "lock")
    yield found
    library.believe_the_kernel()


@pytest.mark.may_skip("no PID namespace can be made")
@pytest.mark.parametrize("rounds", [25, pytest.param(1000, marks=pytest.mark.slow)])
def test_i5_a_false_death_takes_no_lock_from_its_owner(containers, lock, rounds):
    """A waiter with the owner's thread id is killed while the lock is pending: the kernel calls it ownerless."""
    owner = containers.owner(1)
    containers.enter(0)
    for number in range(rounds):
        assert owner.does("take") == 0
        mine = lock.process
        containers.killed_while_pending(2 + number)
        assert lock.word == OWNER_DIED and lock.process == mine, "the false death was made"
        assert lock("inline_take") == errno.EBUSY
        if number % 10 == 0:
            assert lock("inline_wait_briefly") == errno.ETIMEDOUT
        assert owner.does("give") == 0 and lock.word == 0
        assert lock("inline_take") == 0 and lock("inline_give") == 0
    owner.kill()


@pytest.mark.may_skip("no PID namespace can be made")
def test_i5_without_the_check_the_lock_would_be_taken(containers, library, lock):
    owner = containers.owner(1)
    containers.enter(0)
    assert owner.does("take") == 0
    containers.killed_while_pending(2)
    library.believe_the_kernel()
    assert lock("inline_take") == errno.EOWNERDEAD
    assert lock("inline_give") == 0
    owner.kill()


@pytest.mark.may_skip("no PID namespace can be made")
def test_i5_the_death_of_an_owner_that_was_called_dead_before_is_noticed(containers, lock):
    owner = containers.owner(1)
    containers.enter(0)
    assert owner.does("take") == 0
    containers.killed_while_pending(2)
    found = []
    waiting = threading.Thread(target=lambda: found.extend((lock("inline_wait"), lock("inline_give"))))
    waiting.start()
    while not lock.word & WAITERS:
        os.sched_yield()
    assert not found
    owner.kill()
    waiting.join(timeout=20)
    assert found == [errno.EOWNERDEAD, 0]


@pytest.mark.may_skip("no PID namespace can be made")
def test_an_equal_thread_id_is_not_the_owner(containers, lock):
    """Seen with the C library: the waiter was told that it holds the lock itself."""
    first, second = containers.owner(1), containers.owner(2)
    assert first.does("take") == 0 and lock.word == 1
    assert second.does("take") == errno.EBUSY
    assert second.does("give") == errno.EPERM
    assert first.does("give") == 0
    assert second.does("take") == 0 and second.does("give") == 0
    first.kill()
    second.kill()


@pytest.mark.may_skip("no PID namespace can be made")
def test_a_slot_that_is_used_again_says_nothing_about_its_last_user(containers, lock):
    first = containers.owner(1)
    assert first.does("take") == 0
    first.kill()
    second = containers.owner(1)
    assert second.does("take") == errno.EOWNERDEAD
    second.kill()
    containers.enter(0)
    assert lock("inline_take") == errno.EOWNERDEAD and lock("inline_give") == 0
