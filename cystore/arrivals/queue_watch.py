"""One thread that watches many queues, and calls back when new messages of a queue can be read.

It sleeps until the next append of any process. After each it compares the ends of the watched queues; a queue without
a new message costs a look at one word. The thread begins with the first entry, and ends some seconds after the last
one.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from cystore.arrivals.interruptible_sleep import InterruptibleSleep
from cystore.attachment.attachment import Attachment
from cystore.clock import monotonic_s
from cystore.errors import StoreError, StoreMovedError
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")

PLACE_S = 0.5  # the longest sleep: then the thread looks whether the store's directory is still at its path
IDLE_S = 5.0  # the thread ends after this time without an entry
BETWEEN_S = 0.001  # between two looks that found nothing, while processes append
BEHIND_S = 0.02  # while dispatch has not reached the log's end


class Watched:
    """An entry: a queue, or all queues of a topic for `queue_id` None. The watching thread calls `arrived(queue_id,
    end)` when new messages of a queue can be read, all below the queue offset `end`; new since the last call, or since
    the beginning. It calls `ended(error)` when the store is closed; and with a StoreMovedError, now and then, while the
    store's directory is not at its path. Both must be short."""

    def __init__(
        self,
        topic: str,
        queue_id: int | None,
        arrived: Callable[[int, int], object],
        ended: Callable[[StoreError], object],
    ) -> None:
        self.topic, self.queue_id, self.arrived, self.ended = topic, queue_id, arrived, ended
        self.ends: dict[int, int] = {}  # by queue id: the end at the last call


class _Queue:
    """A watched queue, its entries, and the lowest end that one of them knows."""

    __slots__ = ("entries", "least", "queue_id")

    def __init__(self, queue_id: int) -> None:
        self.queue_id, self.least = queue_id, 0
        self.entries: dict[int, Watched] = {}

    def count(self) -> None:
        """Recomputes the lowest end, after an entry came or was called."""
        self.least = min(entry.ends.get(self.queue_id, 0) for entry in self.entries.values())


class QueueWatch:
    """Watches queues of one store for this process. `attached()` gives the parts, and raises StoreClosedError."""

    def __init__(self, attached: Callable[[], Attachment], name: str) -> None:
        self._attached, self._name, self.pid = attached, f"cystore-{name}", os.getpid()
        self._lock = os_threads.RLock()
        # Under the lock: the entries by identity, the entries by the queue that they watch, and the thread.
        self._entries: dict[int, Watched] = {}
        self._wanted: dict[tuple[str, int | None], dict[int, Watched]] = {}
        self._thread: os_threads.Thread | None = None
        self._sleeper = InterruptibleSleep()
        self._parts: Attachment | None = None
        self._topics: dict[str, dict[int, int]] = {}  # queue id, slot
        self._queues: dict[int, _Queue] = {}  # by slot: the watched queues
        self._queues_seen, self._looked_s, self._used_s = 0, 0.0, monotonic_s()

    def add(self, entry: Watched, *, from_end: int | None = None) -> None:
        """Watches from now on. The caller gives the end that it knows of a single queue; by default only messages that
        can be read later count."""
        parts = self._attached()
        with self._lock:
            self._follow(parts)
            slots = self._slots(entry)
            if from_end is not None and entry.queue_id is not None:
                entry.ends[entry.queue_id] = from_end
            else:
                entry.ends.update({queue_id: parts.reader.end_of(slot) for queue_id, slot in slots.items()})
            self._entries[id(entry)] = entry
            self._wanted.setdefault((entry.topic, entry.queue_id), {})[id(entry)] = entry
            try:
                for queue_id, slot in slots.items():
                    self._enter(queue_id, slot, entry)
                if self._thread is None:
                    self._used_s = monotonic_s()
                    with os_threads.works_for(parts.root):
                        self._thread = os_threads.Thread(self._run, self._name)
                else:
                    self._sleeper.wake()
            except BaseException:  # no room for the thread, or a handler's exception
                self.remove(entry)
                raise

    def remove(self, entry: Watched) -> None:
        """Ends the watch of an entry. A call that has begun runs to its end. Safe to call twice."""
        with self._lock:
            if self._entries.pop(id(entry), None) is None:
                return
            wanted = self._wanted[entry.topic, entry.queue_id]
            del wanted[id(entry)]
            if not wanted:
                del self._wanted[entry.topic, entry.queue_id]
            for slot in self._slots(entry).values():
                queue = self._queues.get(slot)
                if queue is not None and queue.entries.pop(id(entry), None) is not None and not queue.entries:
                    del self._queues[slot]

    def queues(self, topic: str) -> list[int]:
        """The queue ids of a topic, in order."""
        with self._lock:
            self._follow(self._attached())
            return sorted(self._topics.get(topic, ()))

    def stop(self) -> None:
        """Wakes the thread when an attachment of the store is left: it ends if the store is closed."""
        self._sleeper.wake()

    def __len__(self) -> int:
        return len(self._entries)

    # ----------------------------------------------------------------------------------------- the thread

    def _run(self) -> None:
        error: StoreError
        try:
            while self._turn_if_there():
                pass
            return
        except StoreError as raised:
            error = raised
        except Exception as raised:
            log.exception("%s failed", self._name)
            error = StoreError(f"the thread that watches queues failed: {raised!r}")
            error.__cause__ = raised
        with self._lock:
            entries, self._entries, self._thread = list(self._entries.values()), {}, None
            self._wanted, self._queues = {}, {}
            self._parts = None
        for entry in entries:
            entry.ended(error)

    def _turn_if_there(self) -> bool:
        """`_turn`; tells the entries while the store's directory is away."""
        try:
            return self._turn()
        except StoreMovedError as error:
            with self._lock:
                entries = list(self._entries.values())
            for entry in entries:
                entry.ended(error)
            self._sleeper.nap(PLACE_S)
            return True

    def _turn(self) -> bool:
        """One look, then a sleep; False when no entry is left."""
        parts = self._attached()
        if self.stop not in parts.at_stop:
            parts.at_stop.append(self.stop)
        control = parts.control
        seen = control.append_seq
        found, behind = self._look(parts)
        now_s = monotonic_s()
        hurried, self._looked_s = now_s - self._looked_s < BETWEEN_S and not found, now_s
        if behind:
            self._sleeper.nap(BEHIND_S)
        elif hurried and control.append_seq != seen:
            self._sleeper.nap(BETWEEN_S)
        else:
            self._sleeper.sleep(control, parts.sleepers, seen, PLACE_S)
        with self._lock:
            if self._entries:
                self._used_s = monotonic_s()
            if monotonic_s() - self._used_s < IDLE_S:
                return True
            self._thread = None
            if self.stop in parts.at_stop:
                parts.at_stop.remove(self.stop)
            return False

    def _look(self, parts: Attachment) -> tuple[int, bool]:
        """Calls the entries whose messages have come. Returns their number, and whether messages are appended that
        cannot be read yet."""
        control, reader = parts.control, parts.reader
        with self._lock:
            self._follow(parts)
            following = control.queue_end
            moved = [slot for slot, queue in self._queues.items() if following(slot) > queue.least]
        if not moved:
            return 0, False
        reader.help_dispatch()
        calls, behind = [], False
        with self._lock:
            for slot in moved:
                queue, end = self._queues.get(slot), reader.end_of(slot)
                if queue is None:
                    continue
                behind = behind or end <= queue.least
                for entry in queue.entries.values():
                    if end > entry.ends.get(queue.queue_id, 0):
                        entry.ends[queue.queue_id] = end
                        calls.append((entry, queue.queue_id, end))
                queue.count()
        for entry, queue_id, end in calls:
            if id(entry) in self._entries:
                entry.arrived(queue_id, end)
        return len(calls), behind

    # ------------------------------------------------------------------------------------ under the lock

    def _follow(self, parts: Attachment) -> None:
        """Takes in new queues, and their entries. If a handle that reads alone got other parts because another process
        came, takes in all queues. If the handle followed its path to another directory, the ends that entries know
        mean nothing: all messages there count as new."""
        before = self._parts
        if parts is not before:
            if before is not None and self.stop in before.at_stop:
                before.at_stop.remove(self.stop)
            if before is not None and before.followed != parts.followed:
                for entry in self._entries.values():
                    entry.ends.clear()
            self._parts, self._topics, self._queues, self._queues_seen = parts, {}, {}, 0
        control = parts.control
        for slot in range(self._queues_seen, control.queue_count):
            name, queue_id, *_ = control.queue(slot)
            self._topics.setdefault(name, {})[queue_id] = slot
            self._queues_seen = slot + 1
            for wanted in ((name, queue_id), (name, None)):
                for entry in self._wanted.get(wanted, {}).values():
                    self._enter(queue_id, slot, entry)

    def _enter(self, queue_id: int, slot: int, entry: Watched) -> None:
        queue = self._queues.get(slot)
        if queue is None:
            queue = self._queues[slot] = _Queue(queue_id)
        end = entry.ends.get(queue_id, 0)
        queue.least = min(queue.least, end) if queue.entries else end
        queue.entries[id(entry)] = entry

    def _slots(self, entry: Watched) -> dict[int, int]:
        """The queues of an entry that exist: queue id, slot."""
        found = self._topics.get(entry.topic, {})
        if entry.queue_id is None:
            return found
        slot = found.get(entry.queue_id, -1)
        return {} if slot < 0 else {entry.queue_id: slot}
