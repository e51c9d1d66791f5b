"""Threads and locks of the operating system, even where gevent or eventlet have patched `threading`.

The store's code must not switch to another greenlet: a lock of the operating system belongs to the thread, so another
greenlet of the thread would hold it too. A flush must not stop every greenlet, so the services run in real threads.
Locks and threads come from a second copy of the module `_thread`, which is never patched.
"""

from __future__ import annotations

import _thread
import contextlib
import mmap
import os
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType
from typing import Any

from cystore.errors import StoreResourceError


def _pristine() -> Any:
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SLICE_S = 1.0
BEGIN_S = 10.0
LOOK_S = 0.01  # between two looks whether a thread died before it began
ROOM_BYTES = 2 << 20  # a thread that begins takes an arena of Python's memory, of 1 MiB
_native = _pristine()
start: Callable[..., int] = _native.start_new_thread
native_id: Callable[[], int] = _native.get_native_id


def is_ours(thread_id: int) -> bool:
    """Whether a thread of this process has this native id, according to /proc."""
    return os.path.isdir(f"/proc/self/task/{thread_id}")


def Lock() -> threading.Lock:
    """A lock of the operating system. Raises MemoryError if there is no memory for it; Python itself would raise
    RuntimeError."""
    return _made(_native.allocate_lock)


def RLock() -> Any:
    """A lock that its owner thread may take again. Raises MemoryError if there is no memory for it."""
    return _made(_native.RLock)


def _made(kind: Callable[[], Any]) -> Any:
    try:
        return kind()
    except RuntimeError as error:
        raise MemoryError(str(error)) from None


def patched() -> bool:
    """True if `threading` starts greenlets."""
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def patched_by() -> str:
    """ "gevent" or "eventlet", if `threading` starts their greenlets; "" if it starts threads."""
    return _thread.start_new_thread.__module__.partition(".")[0] if patched() else ""


_idents: set[int] = set()
before_native: list[Callable[[], None]] = []  # a greenlet calls these before it starts a native thread


@contextmanager
def as_native() -> Iterator[None]:
    """Marks the calling thread as one in which no hub runs greenlets."""
    ident = _native.get_ident()
    known = ident in _idents
    _idents.add(ident)
    try:
        yield
    finally:
        if not known:
            _idents.discard(ident)


def is_native() -> bool:
    """True in a thread of the store, and in a thread of a hub's pool that works for the store."""
    return _native.get_ident() in _idents


def among_greenlets() -> bool:
    """True in a native thread of a process that runs greenlets. Such a thread must not use a lock of `threading`."""
    return _native.get_ident() in _idents and patched()


def work_in_background() -> None:
    """The calling thread never interrupts another one that runs on its processor when it wakes up (SCHED_BATCH). So a
    put does not stop for a step of the services that may take a millisecond. A process that chose its policy, and one
    that may not choose, keeps its own."""
    with contextlib.suppress(OSError):
        if os.sched_getscheduler(0) == os.SCHED_OTHER:
            os.sched_setscheduler(0, os.SCHED_BATCH, os.sched_param(0))


class Flag:
    """Set once; waiters sleep in the operating system."""

    def __init__(self) -> None:
        self._set = False
        self._lock = Lock()
        self._lock.acquire()

    def is_set(self) -> bool:
        """True after `set`."""
        return self._set

    def set(self) -> None:
        """Ends all waits, present and later. Called once, by one thread."""
        if not self._set:
            self._set = True
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleeps until the flag is set, and returns True; returns False after `timeout_s`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._set:
            left_s = SLICE_S if until_s is None else min(until_s - time.monotonic(), SLICE_S)
            if self._lock.acquire(timeout=max(left_s, 0)):
                # a signal handler's exception may prevent this release: then the other waiters check after a slice
                self._lock.release()
            elif left_s < SLICE_S:
                break
        return self._set


def no_thread(name: str, reason: object) -> StoreResourceError:
    """The error for a thread that cannot begin."""
    return StoreResourceError(
        f"no room for the thread {name}: {reason}; nothing was begun. End other threads or processes, or raise the "
        "limit (`ulimit -u`, the container's limits of processes and of memory), then try again"
    )


@contextmanager
def works_for(path: object) -> Iterator[None]:
    """The error for a thread that cannot begin within it names the store that the thread would have worked for."""
    try:
        yield
    except StoreResourceError as error:
        if error.path is not None:
            raise
        raise StoreResourceError(str(error), path=path) from error


def begin(target: Callable[[], None], name: str) -> threading.Thread:
    """Starts a daemon thread of `threading`, which may be a greenlet. Raises StoreResourceError if there is no room for
    it."""
    try:
        room()
        thread = threading.Thread(target=target, name=name, daemon=True)
        thread.start()
    except (RuntimeError, MemoryError) as error:
        raise no_thread(name, error) from error
    return thread


def room() -> None:
    """Raises MemoryError if there is no memory for a thread: one that begins without it dies and reports nothing."""
    try:
        mmap.mmap(-1, ROOM_BYTES, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # touches no page
    except OSError as error:
        raise MemoryError(error.strerror) from error


class _Alive:
    """Lives as long as the thread that got it."""


class Thread:
    """A daemon thread that runs `target` once; it starts when it is made. Raises StoreResourceError at once if there is
    no room for a thread, and if the thread does not begin within `begin_s`."""

    def __init__(self, target: Callable[[], None], name: str, begin_s: float = BEGIN_S) -> None:
        self.name = name
        self._targets = [target]
        self._ident = -1
        self._is_started = False  # the thread lives, though it may not have come to `_run`
        try:
            self._begun, self._done = Flag(), Flag()
            room()
            if patched():
                for function in before_native:
                    function()
                start(self._run, ())
                return
            # A handler's exception inside of Thread.start would leave a thread that waits for ever for a lock of
            # `threading`. And Thread.start waits for ever for a thread that died before it began.
            alive = _Alive()
            dies = weakref.ref(alive)
            start(self._start_from_here, (alive,))
            del alive
            reason = self._not_begun(dies, begin_s)
        except (RuntimeError, MemoryError) as error:
            self._targets.clear()
            raise no_thread(name, error) from error
        except BaseException:
            self._targets.clear()  # the target may run already; otherwise it never runs
            raise
        if reason and self._taken_back():
            raise no_thread(name, reason)

    def _not_begun(self, starter: weakref.ref[_Alive], begin_s: float) -> str:
        """Waits until the thread runs; returns the reason if it does not begin."""
        until_s = time.monotonic() + begin_s
        while not self._begun.wait(LOOK_S):
            if starter() is None and not self._is_started:
                return "can't start new thread: no memory" if not self._begun.is_set() else ""
            if time.monotonic() >= until_s:
                return f"can't start new thread: it did not begin within {begin_s:g} s"
        return ""

    def _taken_back(self) -> bool:
        """Takes the work from a thread that has not begun; False if it has begun meanwhile."""
        try:
            self._targets.pop()
        except IndexError:
            return False
        return True

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _start_from_here(self, alive: _Alive) -> None:
        try:
            self._start()
            self._is_started = True  # before this thread ends, and `alive` with it
        except Exception:  # noqa: BLE001 - no more threads, or no memory for one: this thread does the work
            self._run()

    def _run(self) -> None:
        self._ident = _native.get_ident()
        self._begun.set()
        try:
            target = self._targets.pop()
        except IndexError:  # the caller that started this thread has got an error
            return
        try:
            with as_native():
                target()
        finally:
            del target  # freeing its objects may close files: that ends before waiters are notified
            self._done.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until the thread has ended, and returns True; returns False after `timeout_s`. The thread itself gets
        True at once."""
        return self._ident == _native.get_ident() or self._done.wait(timeout_s)


def pause(seconds: float) -> None:
    """Sleeps for this time. Other threads run meanwhile; other greenlets of this thread do not."""
    Flag().wait(seconds)
