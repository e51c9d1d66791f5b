"""Calls of the store inside another call of the same thread: from a signal handler, or a finalizer.

A thread cannot wait for itself. So Python code that runs under a lock shared by processes runs `undisturbed`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from types import FrameType
from typing import TypeVar

from cystore.errors import StoreResourceError
from cystore.system.threads import os_threads

Answer = TypeVar("Answer")

TURN_BEGIN_S = 0.25  # if the thread has not begun by then, the caller makes the call itself

# The rooms of the store itself, up to `MessageStore`, without the rooms that are built on it. A test compares them with
# the table of rooms.
INSIDE = frozenset(
    {
        "_native",
        "arrivals",
        "attachment",
        "clock",
        "config",
        "config_sources",
        "consumers",
        "derived",
        "dledger",
        "engine",
        "errors",
        "filters",
        "ha",
        "layout",
        "once",
        "recovery",
        "results",
        "services",
        "store",
        "surface",
        "system",
        "transactions",
        "value_class",
        "verify",
    }
)


def is_inside(module: str) -> bool:
    """Whether a module belongs to the store itself."""
    package, _, rest = module.partition(".")
    return package == "cystore" and rest.partition(".")[0] in INSIDE


def undisturbed(call: Callable[[], Answer]) -> Answer:
    """Makes a call that no signal handler can interrupt. Handlers run in the main thread; there, another thread makes
    the call.

    A handler that uses the store meanwhile waits for that thread as for any other. The handler's exception ends the
    wait, not the call. A handler itself makes the call at once: the interrupted call may hold a lock of this process,
    and another thread would wait for that lock.
    """
    if os_threads.native_id() != os.getpid() or _is_nested(sys._getframe(1)):
        return call()
    outcome: list[Answer] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            outcome.append(call())
        except BaseException as error:  # noqa: BLE001 - raised below, in the thread that asked
            errors.append(error)

    try:
        thread = os_threads.Thread(run, "cystore-turn", TURN_BEGIN_S)
    except StoreResourceError:  # no more threads
        return call()
    thread.join()
    if errors:
        raise errors[0]
    if not outcome:
        raise MemoryError(f"no memory for the thread that makes the call {call!r}")
    return outcome[0]


def _is_nested(frame: FrameType | None) -> bool:
    """Whether this frame's call was made inside another call of the store."""
    left = False
    while frame is not None:
        inside = is_inside(frame.f_globals.get("__name__", ""))
        if inside and left:
            return True
        left = left or not inside
        frame = frame.f_back
    return False
