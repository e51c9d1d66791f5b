"""Threads and locks of the operating system, also where gevent or eventlet put their own into `threading`.

Inside the store nothing may switch to another greenlet: a lock of the operating system belongs to the thread, so a
greenlet that came in between would find it its own. And a flush must not stop every greenlet: the services run in
threads that are real. Both come from a second copy of the module `_thread`, which no patch has reached.
"""

from __future__ import annotations

import _thread
import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.machinery import BuiltinImporter
from importlib.util import module_from_spec
from types import BuiltinFunctionType
from typing import Any


def _pristine() -> Any:
    spec = BuiltinImporter.find_spec("_thread")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SLICE_S = 1.0
BEGIN_S = 10.0
_native = _pristine()
start: Callable[..., int] = _native.start_new_thread
native_id: Callable[[], int] = _native.get_native_id


def is_ours(thread_id: int) -> bool:
    """Whether a thread of this process has that number of the system, as far as /proc tells."""
    return os.path.isdir(f"/proc/self/task/{thread_id}")


def Lock() -> threading.Lock:
    """A lock of the operating system. Raises MemoryError where there is no memory for one; Python itself raises
    RuntimeError."""
    return _made(_native.allocate_lock)


def RLock() -> Any:
    """A lock that its own thread may take again. Raises MemoryError where there is no memory for one."""
    return _made(_native.RLock)


def _made(kind: Callable[[], Any]) -> Any:
    try:
        return kind()
    except RuntimeError as error:
        raise MemoryError(str(error)) from None


def patched() -> bool:
    """True where `threading` starts greenlets."""
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def patched_by() -> str:
    """ "gevent" or "eventlet", if `threading` starts their greenlets; "" if it starts threads."""
    return _thread.start_new_thread.__module__.partition(".")[0] if patched() else ""


_idents: set[int] = set()
before_native: list[
    Callable[[], None]
] = []  # a greenlet calls them before a native thread begins to work for it


@contextmanager
def as_native() -> Iterator[None]:
    """Says of the calling thread that no hub's greenlets run in it."""
    ident = _native.get_ident()
    known = ident in _idents
    _idents.add(ident)
    try:
        yield
    finally:
        if not known:
            _idents.discard(ident)


def is_native() -> bool:
    """True in a thread of the store, and in one of a hub's pool that works for the store."""
    return _native.get_ident() in _idents


def among_greenlets() -> bool:
    """True in a native thread of a process whose other threads are greenlets: a lock of `threading` is not for it."""
    return _native.get_ident() in _idents and patched()


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
        """From now on no wait waits. Called once, by one thread."""
        if not self._set:
            self._set = True
            self._lock.release()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleeps until it is set: True; False after `timeout_s`."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._set:
            left_s = SLICE_S if until_s is None else min(until_s - time.monotonic(), SLICE_S)
            if self._lock.acquire(timeout=max(left_s, 0)):
                # a handler's exception may come before it: then the others look again after a slice
                self._lock.release()
            elif left_s < SLICE_S:
                break
        return self._set


class Thread:
    """A daemon thread that runs `target` once; it starts when made. Raises RuntimeError if it cannot begin, or not
    within `begin_s`: a thread without memory to begin never reports that."""

    def __init__(self, target: Callable[[], None], name: str, begin_s: float = BEGIN_S) -> None:
        self.name = name
        self._targets = [target]
        try:
            self._begun, self._done = Flag(), Flag()
        except MemoryError as error:
            raise RuntimeError(f"can't start new thread: {error}") from None
        self._ident = -1
        try:
            if patched():
                for function in before_native:
                    function()
                start(self._run, ())
            elif threading.current_thread() is threading.main_thread():
                # A handler's exception inside of Thread.start would leave a thread that waits for ever for a lock of
                # `threading`.
                start(self._start_from_here, ())
                if not self._begun.wait(begin_s) and self._taken_back():
                    raise RuntimeError(f"can't start new thread: it did not begin within {begin_s:g} s")
            else:
                self._start()
        except BaseException:
            self._targets.clear()  # it may run already; else it never does
            raise

    def _taken_back(self) -> bool:
        """Takes the work from a thread that has not begun; False if it has begun meanwhile."""
        try:
            self._targets.pop()
        except IndexError:
            return False
        return True

    def _start(self) -> None:
        threading.Thread(target=self._run, name=self.name, daemon=True).start()

    def _start_from_here(self) -> None:
        try:
            self._start()
        except Exception:  # noqa: BLE001 - no more threads, or no memory for one: then this thread does the work
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
            del (
                target
            )  # its objects may close files when they are freed: that ends before anybody is notified
            self._done.set()

    def join(self, timeout_s: float | None = None) -> bool:
        """Waits until it has ended: True; False after `timeout_s`. At once for the thread itself."""
        return self._ident == _native.get_ident() or self._done.wait(timeout_s)


def pause(seconds: float) -> None:
    """Lets other threads run for this time; no other greenlet."""
    Flag().wait(seconds)
