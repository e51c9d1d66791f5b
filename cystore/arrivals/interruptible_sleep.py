"""A thread's sleep until the next append. Another thread of the process may end it."""

from __future__ import annotations

import threading

from cystore._native.memory.control import Control
from cystore.services.service_waits import RING_S, Sleepers
from cystore.system.threads import os_threads

SLICE_S = 0.25  # the longest sleep on the store's own word, which `wake` cannot end


class InterruptibleSleep:
    """The sleep of one thread; any other thread may wake it."""

    def __init__(self) -> None:
        self._bell: threading.Lock | None = None
        self._woken = False

    def sleep(self, control: Control, sleepers: Sleepers, seen: int, longest_s: float) -> None:
        """Sleeps until `append_seq` is not `seen` any more, or until `wake`, at most for `longest_s`; may return early.
        If a thread of this attachment sleeps until the next append, it rings; otherwise this thread sleeps on the
        store's word, for a slice."""
        bell = os_threads.Lock()
        bell.acquire()
        self._bell = bell
        if self._woken:
            self._woken = False
            return
        if not sleepers.ring(lambda: _ring(bell), watches=False):
            control.wait_append(seen, max(1, int(min(longest_s, SLICE_S) * 1000)))
        elif control.append_seq == seen:  # else the ring came before this thread had a bell
            bell.acquire(timeout=min(longest_s, RING_S))
        self._bell, self._woken = None, False

    def nap(self, longest_s: float) -> None:
        """Sleeps for a time, or until `wake`."""
        bell = os_threads.Lock()
        bell.acquire()
        self._bell = bell
        if not self._woken:
            bell.acquire(timeout=longest_s)
        self._bell, self._woken = None, False

    def wake(self) -> None:
        """Ends the sleep, or the next one."""
        self._woken = True
        bell = self._bell
        if bell is not None:
            _ring(bell)


def _ring(bell: threading.Lock) -> None:
    try:
        bell.release()
    except RuntimeError:
        return  # it was rung
