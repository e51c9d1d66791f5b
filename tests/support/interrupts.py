"""Something that happens at a chosen instruction inside of a call: what a signal handler, or a finalizer, does there.

Python runs handlers when a function begins and behind a call. The interpreter's profile function is called at the
same places, so that each of them can be counted and chosen. The callbacks of weak sets are left out, and so is what the
cyclic collector would run there: Python prints the exceptions of both and goes on, and the objects may be another
test's.
"""

from __future__ import annotations

import _weakrefset
import gc
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from cystore.system.threads import os_threads

PLACES = ("call", "return", "c_return", "c_exception")


class Interrupted(Exception):
    """The exception of a handler."""


def raise_interrupted() -> None:
    """For `happens_at`."""
    raise Interrupted


def profiled(call: Callable[[], Any], at_place: Callable[[], None]) -> None:
    """Runs `call`, and `at_place` at each place inside of it."""

    def look(frame: FrameType, event: str, argument: Any) -> None:
        if event in PLACES and frame is not outside and frame.f_code.co_filename != _weakrefset.__file__:
            at_place()

    outside, collects = sys._getframe(), gc.isenabled()
    gc.disable()
    sys.setprofile(look)
    try:
        call()
    finally:
        sys.setprofile(None)
        if collects:
            gc.enable()


def happens_at(place: int, call: Callable[[], Any], what: Callable[[], Any]) -> bool:
    """Runs `call`, and `what` at the place of that number inside of it, from 1 on. False when the call has not so
    many places."""
    left = place

    def count() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            sys.setprofile(None)
            what()

    profiled(call, count)
    return left <= 0


def places_in(call: Callable[[], Any]) -> int:
    """How many places a call has."""
    count = 0

    def one_more() -> None:
        nonlocal count
        count += 1

    profiled(call, one_more)
    return count


def descriptors() -> list[str]:
    """The open descriptors of this process, sorted."""
    found = []
    for name in os.listdir("/proc/self/fd"):
        fd = Path("/proc/self/fd", name)
        if fd.is_symlink():  # the listing's own is gone
            found.append(os.readlink(fd))
    return sorted(found)


def mapped(path: Path) -> list[str]:
    """Mappings of files below a folder."""
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if str(path) in line]


def left_mapped(path: Path) -> list[str]:
    """Mappings of files below a folder that stay for a minute: the thread that lets go of what was dropped may wait
    for a processor."""
    until = time.monotonic() + 60
    while mapped(path) and time.monotonic() < until:
        gc.collect()
        os_threads.pause(0.001)
    return mapped(path)


def threads() -> frozenset[int]:
    """The operating system's ids of this process's threads, also of those that Python does not know.

    Ids, because a count is wrong when a thread that is about to end was counted before: one that began later makes up
    for it.
    """
    return frozenset(map(int, os.listdir("/proc/self/task")))


def alone_again(threads_before: frozenset[int]) -> bool:
    """Waits for threads that still do what a call began that was broken off. False when they do not end within a
    minute."""
    until = time.monotonic() + 60
    while not threads() <= threads_before:
        if time.monotonic() > until:
            return False
        os_threads.pause(0.001)
    return True
