"""All named dispatchers of a store: added, listed, moved, removed."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from cystore._native.record.argument_checks import choice, instance, whole
from cystore.arrivals.cursor import PREFIX, RUNNING, Cursor, checked_name, names, path_of
from cystore.arrivals.dispatcher import (
    FIRST,
    LAST,
    Dispatcher,
    Work,
    lag_bytes,
    last_position,
    write_position,
)
from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.errors import (
    CorruptRecordError,
    OffsetError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreIOError,
)
from cystore.system import files
from cystore.system.key_lock import is_place_taken
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

OFFSET_MAX = (1 << 62) - 1


class DispatcherState(NamedTuple):
    """The progress of a dispatcher. `lag_bytes`: the bytes of log that it has still to get, without log that was
    cleaned away. `runs`: a process runs it now. `failures`: how often in a row its function has failed. `holds`:
    whether cleaning keeps the log for it."""

    name: str
    position: int
    lag_bytes: int
    runs: bool
    failures: int
    holds: bool


class Dispatchers:
    """The named dispatchers of a store; `store.dispatchers`. Safe for threads and processes."""

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def add(
        self,
        name: str,
        function: Work,
        *,
        begin: str = FIRST,
        max_count: int = 256,
        durable_only: bool = False,
        hold: bool = False,
        hold_max_age_ms: int | None = None,
    ) -> Dispatcher:
        """Calls `function(messages)` with every record of the log, in the log's order, up to `max_count` at a time.

        At least once: the cursor of `name` moves when the function returns, and outlives every process. After an
        exception the same messages come again, after 0.1 s and then after twice as long each time, at most 60 s. All
        processes may add a name; one of them runs it, and another one takes over when that one is closed or killed.
        The function runs in a thread of its own.

        `begin`: a name without a cursor begins at the log's "first" record or behind the "last". `durable_only`: gives
        no record that a power cut could still take away. `hold`: no clean removes records that the function did not
        get, except those older than `hold_max_age_ms`. Records of half messages and waiting delayed messages are given
        too, under RocketMQ's topics for them.

        Raises StoreConfigError (also for a name that this handle runs already), StoreNotWritableError,
        StoreFullError. Source: CommitLogDispatcher, DefaultMessageStore.getDispatcherList.
        """
        parts = self._store._writable()
        name = checked_name(name)
        if hold_max_age_ms is not None:
            hold_max_age_ms = whole("hold_max_age_ms", hold_max_age_ms, error=StoreConfigError)
        make = partial(
            Dispatcher, parts, name, function, begin=begin, max_count=max_count, durable_only=durable_only, hold=hold,
            hold_max_age_ms=hold_max_age_ms,
        )  # fmt: skip
        adding = _Adding(parts, name, make)
        try:
            return undisturbed(adding.add)
        except BaseException:
            adding.give_up()
            raise

    def states(self, damaged: dict[str, StoreError] | None = None) -> list[DispatcherState]:
        """All dispatchers that ever began and were not removed, by name. Raises StoreFormatError for a damaged cursor.
        With `damaged`, this enters the error there under the dispatcher's name instead, and lists the others."""
        if damaged is not None:
            instance("damaged", damaged, dict, StoreConfigError)
        parts, found = self._store._attached(), []
        held = parts.cleaner.holds.read()
        for name in names(parts.root):
            try:
                found.append(_state(parts, name, PREFIX + name in held))
            except (StoreFormatError, StoreIOError) as error:
                if damaged is None:
                    raise
                damaged[name] = error
        return found

    def reset(self, name: str, to: int | str) -> int:
        """Moves a dispatcher to the log's "first" record, behind the "last", or to the physical offset of a record;
        returns the position. Raises StoreLockedError while a process runs it, OffsetError, StoreConfigError for an
        unknown name."""
        parts, cursor = self._existing(name)
        try:
            position = _position(parts, to)
            cursor.own()
            write_position(parts, cursor, position)
        finally:
            cursor.close()
        return position

    def remove(self, name: str) -> bool:
        """Forgets a dispatcher, and ends its hold; False if there is none. Raises StoreLockedError while a process
        runs it."""
        parts = self._store._writable()
        name = checked_name(name)
        if not path_of(parts.root, name).exists():
            return parts.cleaner.holds.release(PREFIX + name)
        _, cursor = self._existing(name)
        try:
            cursor.own()
            files.remove(cursor.path)
        finally:
            cursor.close()
        parts.cleaner.holds.release(PREFIX + name)
        return True

    def _existing(self, name: str) -> tuple[Attachment, Cursor]:
        parts = self._store._writable()
        name = checked_name(name)
        if not path_of(parts.root, name).exists():
            raise StoreConfigError(f"there is no dispatcher {name}", path=parts.root)
        return parts, Cursor(parts, name, write=True)


class _Adding:
    """One `add`. The exception of a signal handler may end the wait for it: then the dispatcher does not stay."""

    def __init__(self, parts: Attachment, name: str, make: Callable[[], Dispatcher]) -> None:
        self._parts, self._name, self._make = parts, name, make
        self._made: Dispatcher | None = None
        self._given_up = False

    def add(self) -> Dispatcher:
        """Adds the dispatcher, and returns it."""
        parts, name = self._parts, self._name
        with _adding:
            known = parts.dispatchers.get(name)
            if isinstance(known, Dispatcher) and not known.stopped:
                raise StoreConfigError(f"dispatcher {name} is added to this store already: close it first")
            found = self._made = self._make()
            if isinstance(known, Dispatcher) and known.stop in parts.at_stop:
                parts.at_stop.remove(known.stop)
            parts.dispatchers[name] = found
            parts.at_stop.append(found.stop)
            if self._given_up:
                found.stop()
        return found

    def give_up(self) -> None:
        """Ends the dispatcher, whether it is made by now or not."""
        self._given_up = True
        if self._made is not None:
            self._made.stop()


def _state(parts: Attachment, name: str, holds: bool) -> DispatcherState:
    cursor = Cursor(parts, name, write=False)
    try:
        state = cursor.read()
        runs = is_place_taken(cursor.path, RUNNING)
    finally:
        cursor.close()
    position = parts.control.min_physical_offset if state is None else state.position
    failures = state.failures if state is not None and runs else 0
    return DispatcherState(name, position, lag_bytes(parts, position), runs, failures, holds)


def _position(parts: Attachment, to: int | str) -> int:
    control = parts.control
    if isinstance(to, str):
        first = choice("to", to, (FIRST, LAST), OffsetError) == FIRST
        return control.min_physical_offset if first else last_position(parts)
    position = whole("to", to, 0, OFFSET_MAX, OffsetError)
    if position != control.wrote:
        try:
            parts.commit_log.read(position)
        except CorruptRecordError as error:
            raise OffsetError("no sound record begins there", path=error.path, offset=position) from error
    return position


_adding = os_threads.RLock()  # a signal handler of the same thread adds, too


def _forked() -> None:
    global _adding
    _adding = os_threads.RLock()  # a thread of the parent may hold it


os.register_at_fork(after_in_child=_forked)
