"""A named dispatcher: it gives a program every record of the log, in order, at least once (CommitLogDispatcher).

One process at a time runs a name. Other processes that added it look once a second whether its lock is free. A separate
thread reads the log behind the cursor and calls the program's function. When the function returns, the cursor moves, so
a kill in between gives the batch once more. Appends, the store's own dispatch and other dispatchers never wait for the
function.
"""

from __future__ import annotations

import logging
import os
import zlib
from collections.abc import Callable
from functools import partial
from types import TracebackType

from cystore._native.record.argument_checks import choice, whole, yes_or_no
from cystore._native.record.message import Message
from cystore._native.scan.log_walk import trailing_zeros
from cystore._native.system.failpoint import failpoint
from cystore.arrivals.cursor import PREFIX, RUNNING, Cursor, State, checked_name
from cystore.arrivals.interruptible_sleep import InterruptibleSleep
from cystore.arrivals.user_calls import call, checked_function
from cystore.attachment.attachment import Attachment
from cystore.clock import monotonic_s, wait_s
from cystore.derived.dispatch.resume import DamageSearch
from cystore.engine.files.progress import Progress
from cystore.errors import CorruptRecordError, OffsetError, StoreClosedError, StoreConfigError
from cystore.layout import BLANK_SIZE_MIN, MAGIC, RECORD_MAGIC_BLANK
from cystore.services.service_waits import RING_S
from cystore.services.threads import ServiceThread
from cystore.system.key_lock import PlaceLocks
from cystore.system.threads import os_threads
from cystore.system.threads.repeated_errors import Trouble

log = logging.getLogger("cystore")

FIRST, LAST = "first", "last"
LOOK_S = 1.0  # between two tries to take the lock that another process has
BEHIND_S = 0.05  # while dispatch, or the flush, has not reached the log's end
SYNC_S = 5.0
BATCH_BYTES = 32 << 20  # of the log, from which on a batch ends: a batch is in memory as a whole
RETRY_S, RETRY_MAX_S = 0.1, 60.0
WAIT_SLICE_S = 0.5

Work = Callable[[list[Message]], object]


class Dispatcher:
    """A named dispatcher as this process added it; made by `store.dispatchers.add`. Safe for threads.

    It runs without a reference to it, until `close` or until the store is closed. A forked child does not inherit it:
    the child adds its own.
    """

    def __init__(
        self,
        parts: Attachment,
        name: str,
        work: Work,
        *,
        begin: str,
        max_count: int,
        durable_only: bool,
        hold: bool,
        hold_max_age_ms: int | None,
    ) -> None:
        self.name = checked_name(name)
        checked_function(work, f"dispatcher {self.name}")
        self._work, self._begin = work, choice("begin", begin, (FIRST, LAST), StoreConfigError)
        self._max_count = whole("max_count", max_count, 1, 1 << 20, StoreConfigError)
        self._durable_only = yes_or_no("durable_only", durable_only, StoreConfigError)
        hold = yes_or_no("hold", hold, StoreConfigError)
        self._pid = os.getpid()
        self._parts, self._closed = parts, False
        self._runs, self._position = False, -1
        self._pause_s, self._failures, self._trouble = 0.0, 0, Trouble()
        self._error: BaseException | None = None
        self._sync_at_s, self._synced = 0.0, True
        self._seen, self._behind = 0, False
        self._sleeper, self._stopping, self._key = InterruptibleSleep(), os_threads.Flag(), _key(self.name)
        self._hold = _Hold(parts, self.name) if hold else None
        with os_threads.works_for(parts.root):
            self._thread = ServiceThread(
                f"dispatcher-{self.name}", self._turn, lambda: self._pause_s, self._sleep,
                flag=lambda: self._stopping, at_end=self._leave, prepare=partial(self._make, hold_max_age_ms),
            )  # fmt: skip

    def _make(self, hold_max_age_ms: int | None) -> None:
        """Makes the cursor and the hold. A dispatcher does not begin if there is no room for its thread."""
        parts = self._parts
        self._cursor, self._locks = _begun(parts, self.name, self._begin)
        try:
            if self._hold is not None:
                self._hold.set(self._state().durable, hold_max_age_ms)
            elif PREFIX + self.name in parts.cleaner.holds.read():
                parts.cleaner.holds.release(PREFIX + self.name)
        except BaseException:
            self._leave()
            raise

    # ------------------------------------------------------------------------------------------- the program

    @property
    def runs(self) -> bool:
        """Whether this process runs it now."""
        return self._runs

    @property
    def position(self) -> int:
        """The physical offset from which it continues, whichever process runs it."""
        self._usable()
        return self._state().position

    @property
    def lag_bytes(self) -> int:
        """The bytes of log behind the position that can still be got."""
        return lag_bytes(self._parts, self.position)

    @property
    def error(self) -> BaseException | None:
        """The last error of the function in this process; None after a batch without an error."""
        return self._error

    def wait(self, timeout_s: float | None = None) -> bool:
        """Sleeps until the function, in any process, has got everything that is in the log now: True; False after
        `timeout_s`."""
        until_s = monotonic_s() + wait_s(timeout_s)
        self._usable()
        target = self._parts.control.wrote
        while True:
            self._usable()
            control = self._parts.control
            seen = control.key_seq(self._key)
            if self._state().position >= target:
                return True
            left_s = min(WAIT_SLICE_S, until_s - monotonic_s())
            if left_s <= 0:
                return False
            control.wait_key(self._key, seen, max(1, int(left_s * 1000)))

    def close(self, timeout_s: float | None = None) -> bool:
        """Ends it in this process; another process that added it takes over. Waits up to `timeout_s` for the end of the
        batch that the function has now; False if that has not ended. If the function itself calls it, it does not wait.
        Safe to call twice."""
        longest_s = wait_s(timeout_s)
        if self._pid != os.getpid():
            return True
        self.stop()
        self._thread.join(longest_s)
        return self._closed

    def __enter__(self) -> Dispatcher:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Dispatcher {self.name!r}{' closed' if self._stopping.is_set() else ''}>"

    # -------------------------------------------------------------------------------------------- inside

    def stop(self) -> None:
        """Asks the thread to end."""
        self._thread.stop()
        self._sleeper.wake()

    @property
    def stopped(self) -> bool:
        """Whether its thread has ended."""
        return self._closed

    def _usable(self) -> None:
        if self._pid != os.getpid():
            raise StoreClosedError(
                f"dispatcher {self.name} belongs to process {self._pid}, which forked this one"
            )
        if self._parts.control.closed:
            raise StoreClosedError("the store is closed", path=self._parts.root)
        if self._closed:
            raise StoreClosedError(f"dispatcher {self.name} is closed")
        self._parts.look_at_place()

    def _state(self) -> State:
        minimum = self._parts.control.min_physical_offset
        return self._cursor.read() or State(0, "", minimum, minimum, 0)

    def _turn(self) -> Progress:
        """A turn of the thread: one batch."""
        if self._parts.control.closed:
            raise StoreClosedError("the store is closed", path=self._parts.root)
        self._parts.look_at_place()
        self._pause_s = 0.0
        if not self._runs and not self._take():
            self._pause_s = LOOK_S
            return Progress(0)
        messages, following = self._batch()
        count = len(messages)  # the function may take them out of the list
        if messages and not self._give(messages):
            return Progress(0)
        if following > self._position:
            self._move(following)
        else:
            self._settle()
        return Progress(count, more=bool(count) and not self._stopping.is_set())

    def _take(self) -> bool:
        """Makes this process run the dispatcher, if no other process does."""
        if not self._locks.try_take(RUNNING):
            return False
        if not self._cursor.is_there():  # removed, and perhaps made anew
            cursor, locks = self._cursor, self._locks
            self._cursor, self._locks = _begun(self._parts, self.name, self._begin)
            locks.close()
            cursor.close()
            return False
        if self._cursor.read() is None:  # the process that made it was killed
            _write_begin(self._parts, self._cursor, self._begin)
        self._position, self._runs = self._state().position, True
        failpoint("dispatcher.taken")
        return True

    def _batch(self) -> tuple[list[Message], int]:
        """The next messages, and the position behind them. Damage and cleaned records are logged and stepped over."""
        parts, control = self._parts, self._parts.control
        self._seen = control.append_seq
        wrote = control.wrote
        parts.reader.help_dispatch()  # damage below the dispatched position is a known hole
        end = control.dispatched
        limit = min(end, parts.reader.log_end)
        if self._durable_only:
            limit = min(limit, control.flushed)
        self._behind = end < wrote or limit < end
        at, minimum = self._position, control.min_physical_offset
        if at < minimum:
            log.warning(
                "dispatcher %s: the log from %d to %d was cleaned before the dispatcher came to it", self.name, at,
                minimum
            )  # fmt: skip
            at = minimum
        found: list[Message] = []
        try:
            for message in parts.commit_log.scan(at, limit):
                behind = (message.physical_offset or 0) + (message.size_bytes or 0)
                if behind > limit:
                    return found, at
                found.append(message)
                at = behind
                if len(found) == self._max_count or at - self._position >= BATCH_BYTES:
                    return found, at
        except OffsetError:
            if at >= control.min_physical_offset:
                raise
            return found, at  # cleaned meanwhile: the next turn says so
        except CorruptRecordError as error:
            if not found:
                at = self._behind_damage(at, end, error)
            return found, at
        return found, max(at, limit) if limit == end else at

    def _behind_damage(self, at: int, end: int, error: CorruptRecordError) -> int:
        search = DamageSearch(self._parts.commit_log, at, str(error))
        while not search.step(end):
            if self._stopping.is_set():
                return at
        log.error(
            "dispatcher %s steps over %d damaged bytes at %d: %s", self.name, search.end - at, at, error
        )
        return search.end

    def _give(self, messages: list[Message]) -> bool:
        """Calls the program's function. After an error the batch waits, longer after each in a row."""
        failpoint("dispatcher.give")
        first = messages[0].physical_offset
        try:
            call(self._work, messages)
        except BaseException as error:  # noqa: BLE001 - whatever it raises is the program's, and this thread tells it
            self._failures += 1
            self._error = error
            self._pause_s = min(RETRY_S * 2 ** min(self._failures - 1, 20), RETRY_MAX_S)
            self._trouble.tell(
                log, logging.ERROR, error, f"dispatcher {self.name} failed at {first} and tries again"
            )
            self._cursor.move(self._position, self._failures)
            return False
        failpoint("dispatcher.gave")
        self._error, self._failures = None, 0
        self._trouble.over()
        return True

    def _move(self, position: int) -> None:
        state = self._cursor.move(position)
        failpoint("dispatcher.moved")
        self._position, self._synced = position, False
        if self._hold is not None:
            self._hold.move(state.durable)
        if not self._parts.control.closed:
            self._parts.control.wake_key(self._key)
        if monotonic_s() >= self._sync_at_s:
            self._settle()

    def _settle(self) -> None:
        """Makes the cursor and the hold on the disk follow, now and then and when no record is left."""
        if self._synced or monotonic_s() < self._sync_at_s:
            return
        state = self._cursor.move(self._position)
        self._cursor.sync()
        if self._hold is not None:
            self._hold.move(state.durable)
        self._sync_at_s, self._synced = monotonic_s() + SYNC_S, state.durable == state.position

    def _sleep(self, pause_s: float) -> None:
        parts = self._parts
        if pause_s or self._behind:
            self._sleeper.nap(pause_s or BEHIND_S)
        elif not self._stopping.is_set():
            self._sleeper.sleep(parts.control, parts.sleepers, self._seen, RING_S if self._synced else SYNC_S)

    def _leave(self) -> None:
        """At the end of the thread: lets other processes run the dispatcher."""
        self._runs, self._closed = False, True
        self._locks.close()
        self._cursor.close()


class _Hold:
    """The hold of a dispatcher: it keeps the log from the segment of the durable position on."""

    def __init__(self, parts: Attachment, name: str) -> None:
        self._holds, self._files, self._name = parts.cleaner.holds, parts.commit_log.files, PREFIX + name
        self._at = -1
        self._max_age_ms: int | None = None

    def set(self, position: int, max_age_ms: int | None) -> None:
        self._max_age_ms = max_age_ms
        self._at = self._files.base_of(self._holds.set(self._name, position, max_age_ms).physical_offset)

    def move(self, position: int) -> None:
        """Cleaning removes whole segments, so the hold moves with them."""
        if self._files.base_of(position) > self._at:
            self.set(position, self._max_age_ms)


def _begun(parts: Attachment, name: str, begin: str) -> tuple[Cursor, PlaceLocks]:
    """The cursor of a dispatcher, and its lock. A dispatcher that no process has begun begins now."""
    cursor = Cursor.make(parts, name)
    try:
        locks = cursor.locks()
        try:
            if cursor.read() is None and locks.try_take(RUNNING) and cursor.read() is None:
                _write_begin(parts, cursor, begin)
        except BaseException:
            locks.close()
            raise
    except BaseException:
        cursor.close()
        raise
    return cursor, locks


def _write_begin(parts: Attachment, cursor: Cursor, begin: str) -> None:
    """Writes the first position. Under the lock."""
    position = last_position(parts) if begin == LAST else parts.control.min_physical_offset
    write_position(parts, cursor, position)


def lag_bytes(parts: Attachment, position: int) -> int:
    """The bytes of log behind a position that can still be got: cleaning may have removed some."""
    return max(parts.reader.log_end - max(position, parts.control.min_physical_offset), 0)


def last_position(parts: Attachment) -> int:
    """The position behind the last record that readers see. Where the master is elected, the bound of readers may be in
    the blank at the end of a file. No record begins there, and each member in sync has the whole blank as soon as it
    has a part: then the position is the end of the file."""
    end, control = parts.reader.log_end, parts.control
    if end >= control.wrote:
        return end
    try:
        parts.commit_log.read(end)
    except (OffsetError, CorruptRecordError):
        base = end - end % parts.commit_log.file_bytes
        rest = parts.commit_log.piece(end, base + parts.commit_log.file_bytes)
        if rest is not None and trailing_zeros(rest) == len(rest):
            return end + len(rest)
        if rest is not None and MAGIC.read(bytes(rest[:BLANK_SIZE_MIN])) == RECORD_MAGIC_BLANK:
            return end  # another master may put a record here instead
        begin = max(base, control.min_physical_offset)
        behind = [
            (one.physical_offset or 0) + (one.size_bytes or 0) for one in parts.commit_log.scan(begin, end)
        ]
        return max((one for one in behind if one <= end), default=begin)
    return end


def write_position(parts: Attachment, cursor: Cursor, position: int) -> None:
    """Sets the position from which a dispatcher continues, durably; first makes the log durable up to there. Under the
    lock."""
    parts.flusher.flush_to(position)
    cursor.move(position)
    cursor.sync()


def _key(name: str) -> int:
    """The number under which waits for a dispatcher are woken."""
    return zlib.crc32((PREFIX + name).encode())
