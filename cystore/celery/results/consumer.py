"""The wake-up of `.get()`: a process that stores a state of a task wakes the waiters for its id, and they look.

A thread that waits for one id sleeps on a futex word that the id shares with few others (`MessageStore.wait_key`):
appends for other ids do not wake it. When it wakes it looks up only this id, so it reads nothing of others. A thread
that waits for several ids sleeps until the log grows, and if these are many, a moment longer: it takes a batch of
results with one look. If the result has parents, their failure ends its wait, too: a stored failure changes a number of
the store (`homes.FAILURES`), at which the thread looks now and then.

For several ids one position marks the end of the delivered part. Everything below it was compared with every awaited
id, either record by record or, for a new id, by a query that sees everything below the position. A thread waits from
the position, or the id's number, *that it knew before its last look for the result*. So it misses no append, and no
progress of another thread. The log is read in physical order, and contains a record from the moment of its commit,
dispatched or not.

A process may continue in another directory at the store's path, for example in a restored backup
(`MessageStore.followed`). Then no position of the log means anything, and all ids are looked up again.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from celery import states
from celery.backends.asynchronous import BaseResultConsumer
from celery.exceptions import TimeoutError as ResultTimeoutError

from cystore import Message, OffsetError, StoreMovedError
from cystore.celery.base import greenlets
from cystore.celery.base.identity import is_replica
from cystore.celery.base.records import RESULTS, fold, id_of, key_of, visible
from cystore.celery.homes import FAILURES, ids_of
from cystore.celery.routing.other_homes import HomeLooks
from cystore.celery.versions import waiting_on
from cystore.clock import monotonic_s

if TYPE_CHECKING:
    from cystore import MessageStore
    from cystore.celery.backend import CystoreBackend

log = logging.getLogger("cystore.celery")

NOWHERE = -1
BYTES_PER_QUERY = 1024  # reading this much log costs about as much as a query by key
GATHER_IDS = 10  # a waiter for more ids than this gathers
GATHER_EACH_S = 0.000_1
GATHER_MOST_S = 0.005
FAILURE_LOOK_S = 0.05
INTERVAL_S = 1.0  # between two calls of `on_interval`, as Celery's drainer has it where nothing comes
# The longest sleep of a wait for one id that has nothing else to do: it finds the state of a process that was killed
# between its append and the wake-up. Each look takes the interpreter, and perhaps dispatches.
IDLE_S = 5.0
AWAY_S = 0.5  # between two looks for a store whose directory is away
TICK_S = 0.002  # a sleep ends within this time of its end, and must not end before


class _LastLook(threading.local):
    """A thread's knowledge at its last look for its result: the position up to which all was delivered, and the number
    of failures when it began to wait."""

    position = NOWHERE
    followed = 0  # of the store, at that look
    failures = 0
    key: str | None = None  # the key of the only id that this thread waits for
    looked_to = NOWHERE  # the end of the log at the last look for that id alone
    woken = 0  # the store's number for that key before the last look
    has_parents = False  # a parent's failure ends the wait
    failed = 0  # the store's number of failures before the last look
    looks: HomeLooks | None = None  # of a long sleep, which they interrupt
    until = math.inf  # the end of the wait

    def of_a_wait(self) -> dict[str, Any]:
        """The attributes that belong to one wait. A wait inside of it has others."""
        names = ("key", "looked_to", "woken", "has_parents", "failed", "looks", "until")
        return {name: getattr(self, name) for name in names}


class ResultConsumer(BaseResultConsumer):
    """Delivers results to the waiters in this process. Safe for threads; callbacks run in the thread that read."""

    backend: CystoreBackend
    on_message: Callable[[dict[str, Any]], Any] | None

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._reset()

    def _reset(self) -> None:
        # Held while results are read *and* delivered: the next holder sees both done. Reentrant, for callbacks that
        # wait.
        self._reading = threading.RLock()
        self._seen = _LastLook()
        self._position = NOWHERE
        self._followed = 0  # of the store, when the position was known
        self._is_away = False  # at the last look: told once
        # Sets in dicts, whose single operations need no lock: `cancel_for` is called by the garbage collector at any
        # moment.
        self._awaited: dict[str, None] = {}
        self._new: dict[str, None] = {}
        # Listeners for every state of an id (the `on_message` of its `.get()`), and the place of the last delivered
        # one.
        self._listeners: dict[str, Callable[[dict[str, Any]], Any]] = {}
        self._notified: dict[str, int] = {}
        self._failures = 0  # how often a task was seen to fail, awaited or not
        self._undecodable: dict[str, Message] = {}  # of awaited ids: results that could not be decoded

    def on_after_fork(self) -> None:
        """After a fork: the lock's holder may be missing in the child, and no thread of the child waits yet."""
        self._reset()

    # ---------------------------------------------------------------------------------- what Celery calls

    def consume_from(self, task_id: str) -> None:
        """Begins to wait for a result. The next look reads the store's present records of it."""
        self._new[task_id] = None
        self._awaited[task_id] = None

    def cancel_for(self, task_id: str) -> None:
        """Ends the wait for a result."""
        self._awaited.pop(task_id, None)
        self._new.pop(task_id, None)
        self._undecodable.pop(task_id, None)

    def on_wait_for_pending(self, result: Any, timeout: float | None = None, **kwargs: Any) -> None:
        """Delivers existing results before the first wait, whatever the timeout."""
        seen = self._seen
        seen.failures, seen.key, seen.looks = self._failures, self._only_key(result), None
        seen.has_parents = getattr(result, "parent", None) is not None
        if seen.key is None:
            self._deliver()
        else:
            self._deliver_own(self.backend.store, seen.key)

    @staticmethod
    def _only_key(result: Any) -> str | None:
        """The key of a wait for one id."""
        return None if getattr(result, "results", None) is not None else key_of(result.id)

    def _wait_for_pending(
        self,
        result: Any,
        timeout: float | None = None,
        on_interval: Callable[[], Any] | None = None,
        on_message: Callable[[dict[str, Any]], Any] | None = None,
        **kwargs: Any,
    ) -> Iterator[None]:
        """Waits until the result is ready; gives the caller a turn after each look. Like Celery's own, without its
        `sleep(0)`: that only gives other greenlets a turn, which they have in `drain_events`, and costs a thread some
        75 µs of each `.get()`."""
        listens: tuple[str, ...] = ()
        if on_message is not None:
            listens = tuple(ids_of(result))
            for task_id in listens:
                self._notified.setdefault(task_id, NOWHERE)
                self._listeners[task_id] = on_message
                self._new[task_id] = None  # the listener wants its older states, too
        seen = self._seen
        before = seen.of_a_wait()  # of an outer wait of this thread, whose callback begins this wait
        try:
            self.on_wait_for_pending(result, timeout=timeout, **kwargs)
            self._raise_undecodable(result)
            for turn in self.drain_events_until(result.on_ready, timeout=timeout, on_interval=on_interval):
                self._raise_undecodable(result)
                yield turn
            if on_interval is not None and seen.has_parents and _has_failed(result):
                on_interval()  # as Celery's own: it raises the failure of a parent, the cause, not this one
        except TimeoutError as error:
            raise ResultTimeoutError("The operation timed out.") from error
        finally:
            for name, value in before.items():
                setattr(seen, name, value)
            for task_id in listens:
                self._listeners.pop(task_id, None)
                self._notified.pop(task_id, None)

    def _raise_undecodable(self, result: Any) -> None:
        """Raises the error of a result that this wait is for, and that some thread could not decode. Other waits of
        the process go on. The result is decoded again, because the program may have imported what it needs. An error
        that is kept would keep all frames that it came through, and the results in them."""
        if self._undecodable:
            for task_id in list(ids_of(result)):
                message = self._undecodable.get(task_id)
                if message is not None:
                    meta = self._meta_of(message)
                    with self._reading:
                        self._undecodable.pop(task_id, None)
                        self._give([(message, meta)])

    def on_state_change(self, meta: dict[str, Any], message: Any) -> None:
        """Gives a state to the waiters for it. Like Celery's own, without its `sleep(0)`."""
        if waiting_on is None or greenlets.in_use():
            super().on_state_change(meta, message)
            return
        if self.on_message is not None:
            self.on_message(meta)
        if meta["status"] not in states.READY_STATES:
            return
        waiting = waiting_on(self._pending_results, meta["task_id"])
        if not waiting:  # a thread may be about to wait for it
            self._pending_messages.put(meta["task_id"], meta)
        for result in waiting:
            result._maybe_set_cache(meta)
            bucket = self.buckets.pop(result, None)
            if bucket is not None:
                bucket.append(result)

    def drain_events_until(
        self, p: Any, timeout: float | None = None, on_interval: Callable[[], Any] | None = None
    ) -> Iterator[None]:
        """Drains until `p` is ready. In `on_interval`, `.get()` asks every parent of its result for a failure: fifty
        parents for the body of a chord of fifty. So it is called after a failure and once a second, not after each
        append."""
        if p.ready:  # Celery before 5.7 would sleep first, for a second
            return iter(())
        if timeout is not None and timeout <= 0:  # Celery before 5.7 would wait for ever
            raise TimeoutError
        if isinstance(on_interval, HomeLooks) and on_interval.is_alone and self._may_sleep_long():
            self._seen.looks = on_interval
            self._seen.until = math.inf if timeout is None else monotonic_s() + timeout
            long: Iterator[None] = self.drainer.drain_events_until(
                p, timeout=timeout, interval=IDLE_S, on_interval=self._through_absence(on_interval)
            )
            return long
        seldom = on_interval and self._seldom(p, on_interval)
        drained: Iterator[None] = super().drain_events_until(p, timeout=timeout, on_interval=seldom)
        return drained

    def _may_sleep_long(self) -> bool:
        """Whether this thread waits for one id of this store, and for nothing else."""
        seen = self._seen
        return not (seen.key is None or seen.has_parents or greenlets.in_use())

    def _seldom(self, p: Any, on_interval: Callable[[], Any]) -> Callable[[], None]:
        known, due = self._seen.failures, monotonic_s() + INTERVAL_S
        looks = self._through_absence(on_interval)

        def call() -> None:
            nonlocal known, due
            if p.ready:  # `_wait_for_pending` asks the parents once more if it failed
                return
            now = monotonic_s()
            if self._failures != known or now >= due:
                known, due = self._failures, now + INTERVAL_S
                looks()

        return call

    def drain_events(self, timeout: float | None = None) -> None:
        """Sleeps until the id that this thread waits for is woken (for several ids: until the log has grown) since
        the last look, and delivers. Raises TimeoutError. While the store's directory is away, perhaps because an
        operator restores a backup, it sleeps: the wait continues with the store that will be at the path."""
        try:
            self._drain(timeout)
        except StoreMovedError as error:
            self._tell_away(error)
            time.sleep(AWAY_S if timeout is None else min(timeout, AWAY_S))
            raise TimeoutError from error
        self._is_away = False

    def _tell_away(self, error: StoreMovedError) -> None:
        """Logs once that the store's directory is away."""
        if not self._is_away:
            log.warning("waits for results continue when a store is at its path again: %s", error)
        self._is_away = True

    def _through_absence(self, looks: Callable[[], Any]) -> Callable[[], None]:
        """`looks`, for a wait that continues while the store's directory is away: looks read the store, too."""

        def call() -> None:
            try:
                looks()
            except StoreMovedError as error:
                self._tell_away(error)

        return call

    def _drain(self, timeout: float | None) -> None:
        if not self.backend.location.path:  # Celery's own greenlet always drains; this waiter looks elsewhere
            time.sleep(INTERVAL_S if timeout is None else timeout)
            raise TimeoutError
        store, seen = self.backend.store, self._seen
        if seen.followed != store.followed:  # what this thread saw is in another directory
            if seen.key is None:
                self._deliver()
            else:
                self._deliver_own(store, seen.key)
            return
        if seen.looks is not None:
            longest_s = IDLE_S if timeout is None else timeout
            left_s = min(seen.looks.left_s(), seen.until - monotonic_s())
            timeout = min(longest_s, max(left_s, 0.0) + TICK_S)
        if seen.key is None:
            if not greenlets.off_the_hub(store.wait_log, seen.position, timeout):
                raise TimeoutError
            if (
                len(self._awaited) > GATHER_IDS
            ):  # each look interrupts the workers, and reads records of other ids too
                gather_s = min(GATHER_EACH_S * len(self._awaited), GATHER_MOST_S)
                time.sleep(gather_s if timeout is None else min(gather_s, timeout))
            self._deliver()
            return
        # The appending process may have been killed before it woke the waiters, or may be another program.
        if not self._sleep(store, timeout) and store.wrote_position <= seen.looked_to:
            raise TimeoutError
        self._deliver_own(store, seen.key)

    def _sleep(self, store: MessageStore, timeout: float | None) -> bool:
        """Sleeps until the id is woken, or a task failed that may be a parent: True; False after the timeout."""
        seen = self._seen
        assert seen.key is not None
        if not seen.has_parents:
            if timeout is not None and timeout > INTERVAL_S and is_replica(store):
                timeout = INTERVAL_S  # its master's processes wake nobody here
            return greenlets.off_the_hub(store.wait_key, seen.key, seen.woken, timeout)
        until = None if timeout is None else monotonic_s() + timeout
        while True:
            left_s = FAILURE_LOOK_S if until is None else min(FAILURE_LOOK_S, until - monotonic_s())
            if greenlets.off_the_hub(store.wait_key, seen.key, seen.woken, max(left_s, 0.0)):
                return True
            if store.key_seen(FAILURES) != seen.failed:
                self._failures += 1
                return True
            if left_s <= 0:
                return False

    def hand_over(
        self, meta: dict[str, Any], on_message: Callable[[dict[str, Any]], Any] | None = None
    ) -> None:
        """Gives the waiters for a task the state that another home has of it."""
        with self._reading:
            self.on_message = on_message
            try:
                self.on_state_change(meta, None)
            finally:
                self.on_message = None

    def hand_over_own(self, result: Any) -> None:
        """Delivers this store's results. Raises the error of one that a wait for `result` is for."""
        self._through_absence(self._deliver)()
        self._raise_undecodable(result)

    # ------------------------------------------------------------------------------------------- reading

    def _deliver_own(self, store: MessageStore, key: str) -> None:
        """Delivers the records of the only id that this thread waits for."""
        seen, task_id = self._seen, id_of(key)
        seen.woken, seen.failed = store.key_seen(key), store.key_seen(FAILURES)
        seen.followed = store.followed
        with self._reading:
            end = store.wrote_position
            if store.catch_up() < end:  # dispatch stands still
                self._deliver()
                return
            known = [message for message in self._known_of([task_id]) if self._ends_a_wait(message)]
            self._give([(message, self.backend.meta_of(message)) for message in known])
            self._new.pop(task_id, None)
            seen.looked_to = end

    def _deliver(self) -> None:
        with self._reading:
            try:
                found = [*self._decoded(self._read())]
            except BaseException:
                self._position = NOWHERE  # all ids are looked up again next time, so none can be lost
                raise
            self._give(found)
            self._seen.position = self._position

    def _decoded(self, found: list[Message]) -> Iterator[tuple[Message, dict[str, Any]]]:
        """Records with their metas. A record that cannot be decoded is kept for the waits for its id."""
        for message in found:
            try:
                meta = self._meta_of(message)
            except Exception:
                # If a second try succeeds, a handler of a signal raised: for example at a soft time limit.
                if not self._fails_again(message):
                    raise
                for task_id in map(id_of, message.keys):
                    if task_id in self._awaited:
                        self._undecodable[task_id] = message
            else:
                self._undecodable.pop(meta["task_id"], None)
                yield message, meta

    def _meta_of(self, message: Message) -> dict[str, Any]:
        meta = self.backend.meta_of(message)
        _ = meta["task_id"], meta["status"]  # the parts that `_give` needs
        return meta

    def _fails_again(self, message: Message) -> bool:
        try:
            self._meta_of(message)
        except Exception:  # noqa: BLE001 - a serializer may raise anything
            return True
        return False

    def _give(self, found: list[tuple[Message, dict[str, Any]]]) -> None:
        for message, meta in found:
            task_id = meta["task_id"]
            if task_id not in self._awaited:  # an earlier record was the answer
                continue
            listener = self._listeners.get(task_id)
            if listener is not None:
                if message.physical_offset <= self._notified.get(task_id, NOWHERE):
                    continue
                self._notified[task_id] = message.physical_offset
            self.on_message = listener
            try:
                self.on_state_change(meta, message)
            finally:
                self.on_message = None

    def _read(self) -> list[Message]:
        """Records that make awaited results ready, and all records of ids with a listener, in the order of the log for
        each id: from the position (for new ids: from the beginning) to the log's end."""
        store = self.backend.store
        wrote = store.wrote_position
        self._seen.followed = store.followed
        if self._followed != store.followed:
            self._followed, self._position = store.followed, NOWHERE
            self._notified = dict.fromkeys(self._notified, NOWHERE)
        if not self._awaited:
            self._position = wrote
            return []
        behind_bytes = wrote - self._position
        everything = self._position == NOWHERE or behind_bytes > BYTES_PER_QUERY * len(self._awaited)
        due = list(self._awaited if everything else self._new)
        found: list[Message] = []
        if due:
            covered = store.catch_up()
            for task_id in due:
                self._new.pop(task_id, None)
            found += self._known_of(due)
            # If dispatch stands still the log is read from there, some of it twice, because queries stop silently at
            # damage.
            self._position = covered if everything else min(covered, self._position)
        self._failures += everything  # records that are not read one by one may contain failures
        end = store.wrote_position
        try:
            found += self._scanned(store, end)
        except OffsetError:
            # Cleaning overtook a reader that was away for long: the index knows the rest.
            self._failures += 1
            found += self._known_of(list(self._awaited))
        self._position = end
        return [message for message in found if self._ends_a_wait(message)]

    def _scanned(self, store: MessageStore, end: int) -> list[Message]:
        """The states of awaited ids in the log from the position to `end`, in the order of the log."""
        read: dict[str, list[Message]] = {}
        for message in store.scan(self._position, end):
            if message.topic == RESULTS:
                self._failures += message.tags in states.PROPAGATE_STATES
                for task_id in map(id_of, message.keys):
                    if task_id in self._awaited:
                        read.setdefault(task_id, []).append(message)
                        break
        found: list[Message] = []
        is_valid = self.backend.expiry.is_valid
        for task_id, known in read.items():
            if task_id in self._listeners:
                found += visible(reversed(known), is_valid)
            else:
                state = fold(reversed(known), is_valid)
                found += () if state is None else (state,)
        return sorted(found, key=lambda message: message.physical_offset or 0)

    def _known_of(self, task_ids: list[str]) -> list[Message]:
        """The store's records of some ids, with one look for all: the valid one of each; for an id with a listener all
        records, oldest first."""
        found: list[Message] = []
        for task_id in task_ids:
            if task_id in self._listeners:
                found += self.backend.all_states(task_id)
        silent = [task_id for task_id in task_ids if task_id not in self._listeners]
        if len(silent) == 1:
            message = self.backend.latest(silent[0])
            return found if message is None else [*found, message]
        return [*found, *self.backend.latest_of(silent).values()] if silent else found

    def _ends_a_wait(self, message: Message) -> bool:
        """Whether a record makes a result ready, or a listener wants it."""
        if message.tags in states.READY_STATES:
            return True
        return bool(self._listeners) and any(id_of(key) in self._listeners for key in message.keys)


def _has_failed(result: Any) -> bool:
    """Whether a result that has arrived is a failure."""
    meta = getattr(result, "_cache", None)
    return meta is not None and meta["status"] in states.PROPAGATE_STATES
