"""The waits of a service thread: while there is work, for its interval; after a quiet time, for the next append.

So a hundred idle attached processes hardly wake up, and the first append after a quiet time wakes them. While appends
continue no thread sleeps on them, because a wake-up costs the append a system call. One thread of each process sleeps
on the store's word, and rings for the others.
"""

from __future__ import annotations

from collections.abc import Callable

from cystore._native.memory.control import Control
from cystore.clock import monotonic_s
from cystore.system.threads import os_threads

QUIET_S = 1.0  # without an append, before a thread sleeps until the next one
SLEEP_MS = (
    5000  # of the watching thread: it also looks for appends whose process was killed before it woke a thread
)
RING_S = 60.0  # the longest sleep of a thread that another one rings for
LITTLE_BYTES = (
    256 << 10
)  # appended in an interval; the room ahead of the writers lasts for many times as much
LITTLE_OF_OTHERS_BYTES = 4 << 20  # the same, where other processes made all appends: they make room, too
SPECTATOR_S = 0.5  # of such a process: each turn takes the interpreter and a core from threads that work
NAP_S = 0.002  # of the thread that dispatches, between two turns; RocketMQ's ReputMessageService sleeps 1 ms
LOOK_S = 0.05  # how often a thread looks whether its work is due before the interval is over


class Sleepers:
    """The threads of one attachment that sleep until the next append. The first one watches the store's word, and rings
    for the others: whatever wakes it, it first rings for all."""

    def __init__(self, control: Control) -> None:
        self._control = control
        self._lock = os_threads.Lock()
        self._watched = False  # under the lock: a thread watches, and will ring
        self._rings: list[Callable[[], None]] = []  # under the lock

    def sleep(self, seen: int, stopping: os_threads.Flag, look_around: Callable[[], None]) -> None:
        """Sleeps until `append_seq` is not `seen` any more; may return early. The watching thread calls `look_around`
        now and then, and raises its errors."""
        bell = os_threads.Lock()
        bell.acquire()
        if self.ring(bell.release):
            if self._control.append_seq == seen:  # else the ring came before this thread had a bell
                bell.acquire(timeout=RING_S)
            return
        try:
            self._watch(seen, stopping, look_around)
        finally:
            with self._lock:
                self._watched, rings, self._rings = False, self._rings, []
            for ring in rings:
                ring()

    def ring(self, ring: Callable[[], None], *, watches: bool = True) -> bool:
        """Makes the watching thread call `ring` once, with the next append. False if no thread watches: then `ring` is
        not kept, and a caller with `watches` has to watch."""
        with self._lock:
            if self._watched:
                self._rings.append(ring)
                return True
            self._watched = watches
            return False

    def _watch(self, seen: int, stopping: os_threads.Flag, look_around: Callable[[], None]) -> None:
        control = self._control
        wrote = control.wrote
        while not stopping.is_set():
            control.wait_append(seen, SLEEP_MS)
            if control.append_seq != seen or control.wrote != wrote:
                break
            look_around()


class QuietWait:
    """Waits for one service thread. `idle()` says that the service has nothing left to do; `stopping` ends the thread.
    `due()` says that it cannot wait for the end of its interval. In a quiet time it sleeps among `sleepers`. After an
    interval with few appends the next one is `slow_s`, if that is longer. `spectates()` says that other processes made
    all recent appends. While these are not many, nothing is due, and SPECTATOR_S takes the place of `slow_s`."""

    def __init__(
        self,
        control: Control,
        sleepers: Sleepers,
        look_around: Callable[[], None],
        idle: Callable[[], bool],
        stopping: os_threads.Flag,
        due: Callable[[], bool] | None = None,
        slow_s: float = 0.0,
        spectates: Callable[[], bool] = lambda: False,
    ) -> None:
        self._control, self._idle, self._stopping, self._due = control, idle, stopping, due
        self._sleepers, self._look_around = sleepers, look_around
        self._seen, self._since_s = control.append_seq, monotonic_s()
        self._slow_s, self._wrote = slow_s, control.wrote
        self._spectates = spectates

    def __call__(self, interval_s: float) -> None:
        """Returns after the interval, or in a quiet time with the next append."""
        seen, now_s = self._control.append_seq, monotonic_s()
        if seen != self._seen or not self._idle():
            self._seen, self._since_s = seen, now_s
        wrote = self._control.wrote
        grown, self._wrote = wrote - self._wrote, wrote
        if now_s - self._since_s < QUIET_S:
            if grown < LITTLE_OF_OTHERS_BYTES and self._spectates():
                self._stopping.wait(max(interval_s, SPECTATOR_S) if self._slow_s else interval_s)
            else:
                self._nap(max(interval_s, self._slow_s) if grown < LITTLE_BYTES else interval_s)
        elif not self._stopping.is_set():  # a thread that stops this one changes the word after that
            self._sleepers.sleep(seen, self._stopping, self._look_around)

    def _nap(self, interval_s: float) -> None:
        """Sleeps for an interval, or until the work is due."""
        if self._due is None:
            self._stopping.wait(interval_s)
            return
        until_s = monotonic_s() + interval_s
        while (left_s := until_s - monotonic_s()) > 0:
            if self._stopping.wait(min(left_s, LOOK_S)) or self._due():
                break


class AppendWait:
    """Waits for the thread that dispatches: until the next append in any process."""

    def __init__(
        self,
        control: Control,
        sleepers: Sleepers,
        look_around: Callable[[], None],
        stopping: os_threads.Flag,
    ) -> None:
        self._control, self._stopping = control, stopping
        self._sleepers, self._look_around = sleepers, look_around

    def __call__(self, interval_s: float) -> None:
        """Returns with the next append, at once while something is not dispatched, or after a while. It may return
        early. It naps first: while appends continue, a turn dispatches many of them, and none has to wake this thread.
        A reader does not wait for the nap, because it dispatches what it lacks."""
        self._stopping.wait(NAP_S)
        seen = self._control.append_seq
        if self._control.dispatched >= self._control.wrote and not self._stopping.is_set():
            self._sleepers.sleep(seen, self._stopping, self._look_around)
