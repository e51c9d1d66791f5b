"""Leaving a store: completely or not at all, whatever signal interrupts it. No thread waits for itself.

Signal handlers run in the main thread, and an exception there could leave a store half closed. So the main thread
starts another thread that leaves, and waits for it. A handler's exception ends the wait and not the leaving. A handler,
or a finalizer, that interrupts a call of the same thread does not wait at all: the store is left when that call
returns.
"""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable
from functools import partial
from types import FrameType
from typing import Any

from cystore.attachment.attach import Attachment
from cystore.attachment.detach import detach
from cystore.attachment.release_thread import housekeeper
from cystore.clock import monotonic_s
from cystore.errors import NotDurableError, StoreClosedError, StoreResourceError
from cystore.services.threads import ServiceThread
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import is_inside

log = logging.getLogger("cystore")

# Functions of the store that lead to a `Leaving`.
CLOSING = ("close", "_begin_to_leave", "close_all", "__exit__", "__del__")


class Leaving:
    """Detaches one attachment once, after its services."""

    def __init__(self, parts: Attachment, threads: list[ServiceThread]) -> None:
        self._parts: Attachment | None = parts
        self._threads = threads
        self._done = os_threads.Flag()
        self._claim = os_threads.Lock()  # the call that runs it keeps it for good
        self._error: BaseException | None = None

    @property
    def done(self) -> bool:
        """Whether the store is left."""
        return self._done.is_set()

    def start(self) -> None:
        """Leaves the store, in this thread or in a new one. A second call does nothing if the first one has begun to
        leave."""
        if self._claim.locked():
            return
        if threading.current_thread() is threading.main_thread() or self.is_below():
            try:
                os_threads.Thread(self._run, "cystore-leave")
                return
            except StoreResourceError:  # no more threads: then here, if this thread can
                if self.is_below():
                    raise
        self._run()

    def here(self) -> None:
        """Leaves the store in this thread."""
        self._run()

    def settle(self) -> None:
        """Waits until the store is left. For the end of the process: errors are only logged."""
        try:
            self.wait()
        except NotDurableError:
            return  # `detach` has logged it
        except Exception:
            log.exception("a store could not be closed")

    def wait(self) -> None:
        """Waits until the store is left, and raises its error, once."""
        self._done.wait()
        error, self._error = self._error, None
        if error is not None:
            raise error

    def is_below(self) -> bool:
        """Whether this thread is inside of a call of the store: then it would wait for itself."""
        parts = self._parts
        if parts is not None and parts.appender is not None and parts.appender.called_by_this_thread:
            return True
        if (
            parts is not None
            and not parts.control.closed
            and parts.control.intact
            and parts.control.held_by_this_thread
        ):
            return True
        frame: FrameType | None = sys._getframe(1)
        while frame is not None:
            name = frame.f_globals.get("__name__", "")
            if (
                is_inside(name)
                and name != __name__
                and not (name == "cystore.store" and frame.f_code.co_name in CLOSING)
            ):
                return True
            frame = frame.f_back
        return False

    def _run(self) -> None:
        if not self._claim.acquire(blocking=False):
            return
        parts, self._parts = self._parts, None
        try:
            if parts is not None:
                self._leave(parts)
        except BaseException as error:  # noqa: BLE001 - `wait` raises it
            self._error = error
        finally:
            del parts
            self._done.set()

    def _leave(self, parts: Attachment) -> None:
        begun_s = monotonic_s()
        housekeeper.unwatch(parts)
        for thread in self._threads:
            thread.stop()
        for stop in list(parts.at_stop):
            stop()
        if not parts.control.closed and not parts.control.read_only and parts.control.intact:
            parts.control.wake_append()
        for thread in self._threads:
            thread.join()
        if parts.appender is not None:
            parts.appender.detach()
            while parts.appender.active_calls:
                os_threads.pause(0.001)  # each leaves within its own bounded wait
        detach(parts, begun_s)  # includes the time that the threads waited for another process's flush


def keeping(owner: object, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that keeps an object, as a method does, and is called without Python code."""
    kept = partial(function)
    kept.__dict__["owner"] = owner
    return kept


def weakly(owner: object, method: Callable[..., Any]) -> Callable[..., Any]:
    """A method of an object, without a reference to the object. Raises StoreClosedError when the object is gone."""
    reference = weakref.ref(owner)

    def call(*arguments: Any, **named: Any) -> Any:
        owner = reference()
        if owner is None:
            raise StoreClosedError("the store is closed")
        return method(owner, *arguments, **named)

    return call
