"""The open transactions: the queue of half messages, without those that the queue of op messages names.

Both queues only grow, so a table continues where it stopped. The offsets of RocketMQ's group CID_RMQ_SYS_TRANS give the
first half message that may be open; a table begins there.

Op messages are notes; the log has more facts (facts.py). A new table asks for them, because RocketMQ puts a message and
its note one after the other; so does a table that meets notes that it cannot read. A half message whose note may be
among these is *set aside*: nobody is asked about it, and nothing but a command ends it.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator
from typing import NamedTuple

from cystore._native.lookup.get_result import GetResult
from cystore._native.record.message import Message
from cystore.clock import monotonic_s
from cystore.errors import CorruptRecordError
from cystore.layout import HALF_TOPIC, OP_TOPIC, TRANSACTION_GROUP
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed
from cystore.transactions.facts import FOREVER, LOST_NOTE, LogFacts, MissingNotes
from cystore.transactions.half import MARK_TAG, HalfMessage, checks_of, ended_offset, read_half

log = logging.getLogger("cystore")

GROUP = TRANSACTION_GROUP
BATCH = 32
DOUBLINGS_MAX = 20  # of the time for which a transaction is set aside
OFFSET_MAX = (1 << 62) - 1
OPS_IN_RUN = 1024  # a transaction that is never ended keeps these runs in memory

Get = Callable[[str, int, int, int], GetResult]


class _Ops:
    """A run of op messages: the queue offset of the first one, their number, and the highest half message that they
    end."""

    __slots__ = ("begin", "count", "last_half")

    def __init__(self, begin: int) -> None:
        self.begin, self.count, self.last_half = begin, 0, -1


class SetAside(NamedTuple):
    """Why a transaction is not asked about now, and until when (None: until a command ends it). `times`: how often in a
    row its step could not be done."""

    reason: str
    until_s: float | None = None
    times: int = 0


class TransactionTable:
    """The open transactions of a store, as this attachment knows them. Safe for threads, and for signal handlers that
    use it inside of a call of their own thread, which has the lock."""

    def __init__(self, get: Get, half_offset: int, op_offset: int, facts: LogFacts) -> None:
        self._get, self._facts = get, facts
        self.needs_mark = False  # notes are missing at the end of their queue
        self._is_new = True  # until the log's facts were asked for once
        self._missing: list[tuple[MissingNotes, _Ops]] = []  # notes that are not judged yet
        self._aside: dict[int, SetAside] = {}  # by queue offset, of open half messages
        self._half_next, self._op_next = half_offset, op_offset
        self._open: dict[int, HalfMessage] = {}  # by queue offset
        self._by_id: dict[str, int] = {}
        # Runs of op messages from the first one on that a new table would have to read.
        self._ops: deque[_Ops] = deque()
        self._ended: set[int] = set()  # half messages that are not read yet
        self.lock = os_threads.RLock()

    def catch_up(self) -> None:
        """Reads the messages that came since the last time. A signal handler that comes meanwhile, and ends
        transactions, waits for that: the half messages that this has read may be those."""
        if self._is_behind():
            undisturbed(self._catch_up)

    def _is_behind(self) -> bool:
        """Whether there is something to read, or to judge. Costs little."""
        if self._is_new or self._missing:
            return True
        try:
            return any(
                self._get(topic, 0, offset, 1).max_offset > offset
                for topic, offset in ((OP_TOPIC, self._op_next), (HALF_TOPIC, self._half_next))
            )
        except CorruptRecordError:
            return True

    def _catch_up(self) -> None:
        with self.lock:
            # An op follows its half message. So an op that is read here may name a half message that is read below.
            # An op that comes after this loop is read the next time; until then its half message counts as open.
            for op in self._messages(OP_TOPIC, self._op_next):
                self._miss(op.queue_offset)
                if self._missing:
                    self._end_missing(op.physical_offset)
                self._op_next = op.queue_offset + 1
                ended = ended_offset(op)
                if ended is None and op.tags == MARK_TAG:
                    continue
                if ended is None:
                    log.warning("%s: op message %d names no half message; it is ignored", op, op.queue_offset)
                    continue
                self._note(op.queue_offset, ended)
                half = self._open.get(ended)
                if half is not None:
                    self.drop(half)
                elif ended >= self._half_next:
                    self._ended.add(ended)
            for stored in self._messages(HALF_TOPIC, self._half_next):
                self._half_next = stored.queue_offset + 1
                if stored.queue_offset in self._ended:
                    self._ended.discard(stored.queue_offset)
                    continue
                try:
                    half = read_half(stored)
                except ValueError as error:
                    log.warning("half message %d cannot be ended: %s", stored.queue_offset, error)
                    continue
                self._open[half.queue_offset] = half
                self._by_id[half.id] = half.queue_offset
            if self._missing or self._is_new:
                self._judge()  # an error leaves it to be done
                self._missing.clear()
                self._is_new = False
            self._trim()

    def _miss(self, end: int, place: int | None = None) -> None:
        """Enters the notes from the last one up to `end`, if there are any, as missing ones. No table may begin behind
        them while a half message depends on them."""
        if end <= self._op_next:
            return
        run = _Ops(self._op_next)
        run.count = OPS_IN_RUN  # no other note joins it
        run.last_half = OFFSET_MAX
        self._ops.append(run)
        self._missing.append((MissingNotes(self._op_next, end, place), run))
        self._op_next = end

    def _end_missing(self, until: int) -> None:
        """The missing notes so far are before this physical offset."""
        self._missing = [
            (part._replace(until=until) if part.until == FOREVER else part, run)
            for part, run in self._missing
        ]

    def _judge(self) -> None:
        """Closes the transactions that the log says are ended, and sets those aside of which nobody knows it."""
        facts, parts = self._facts, [part for part, _ in self._missing]
        verdicts = {}
        for half in list(self._open.values()):
            stored = facts.read(half)
            if stored is not None:
                verdicts[half] = facts.judge(half, checks_of(stored))
        attributed = frozenset(place for verdict in verdicts.values() for place in verdict.places)
        unknown, removed = facts.unknown_until(parts, attributed), facts.removed_until(parts)
        last = -1
        for half, verdict in verdicts.items():
            if half.queue_offset in self._aside and not verdict.is_ended:
                continue
            doubt = verdict.doubt
            if half.physical_offset < unknown or (
                half.physical_offset < removed and not facts.index_has_all_notes(half)
            ):
                doubt = doubt or LOST_NOTE
            if verdict.is_ended:
                self.drop(half)
                last = max(last, half.queue_offset)
            elif doubt:
                self.set_aside(half, SetAside(doubt))
                last = max(last, half.queue_offset)
        self.needs_mark = any(part.until == FOREVER and facts.lost(part) for part in parts)
        for _, run in self._missing:
            run.last_half = last

    def _note(self, op_offset: int, ended: int) -> None:
        if not self._ops or self._ops[-1].count == OPS_IN_RUN:
            self._ops.append(_Ops(op_offset))
        run = self._ops[-1]
        run.count, run.last_half = run.count + 1, max(run.last_half, ended)

    def _trim(self) -> int:
        """Forgets op messages whose half messages no table reads any more; returns the first half message that a table
        reads. Half messages are entered in the order of their offsets."""
        first = self._first_open()
        while self._ops and self._ops[0].last_half < first:
            self._ops.popleft()
        return first

    def _first_open(self) -> int:
        while True:
            try:
                return next(iter(self._open), self._half_next)
            except RuntimeError:  # a signal handler ended one just now
                continue

    def _forget(self, half: HalfMessage) -> None:
        at = self._by_id.pop(half.id, None)
        if at is not None and at != half.queue_offset:  # a producer of RocketMQ sent it twice
            self._by_id.setdefault(half.id, at)

    def _messages(self, topic: str, offset: int) -> Iterator[Message]:
        """The messages of a queue from an offset on. Messages that cannot be read any more are left out; notes among
        them are entered as missing."""
        while True:
            try:
                found = self._get(topic, 0, offset, BATCH)
            except CorruptRecordError as error:
                log.warning("%s/0: message %d is damaged: %s", topic, offset, error)
                offset += 1
                if topic == OP_TOPIC:
                    self._miss(offset - 1)
                    self._miss(offset, error.offset)
                continue
            yield from found.messages
            if topic == OP_TOPIC and found.next_offset <= found.max_offset:
                self._miss(found.next_offset)  # a hole, or a removed part
            if found.next_offset <= offset or (not found.messages and found.next_offset >= found.max_offset):
                return
            offset = found.next_offset

    def find(self, transaction: str, queue_offset: int | None = None) -> HalfMessage | None:
        """The present half message of a transaction; None if it is ended, or unknown. If several have one id (a
        producer of RocketMQ may send one twice), the one at `queue_offset`, else the last one."""
        with self.lock:
            half = None if queue_offset is None else self._open.get(queue_offset)
            if half is not None and half.id == transaction:
                return half
            offset = self._by_id.get(transaction)
            return None if offset is None else self._open.get(offset)

    def still(self, half: HalfMessage) -> HalfMessage | None:
        """A half message if it is open, else None."""
        with self.lock:
            return half if self._open.get(half.queue_offset) == half else None

    def open(self) -> list[HalfMessage]:
        """All open transactions, in the order in which they were put."""
        with self.lock:
            return list(self._open.values())

    def drop(self, half: HalfMessage) -> None:
        """Forgets a half message that is ended, or that cleaning removed."""
        with self.lock:
            ended = self._open.get(half.queue_offset) == half
            if ended and self._open.pop(half.queue_offset, None) is not None:  # else a signal handler did it
                self._aside.pop(half.queue_offset, None)
                self._forget(half)

    # ---------------------------------------------------------------------------------------------- set aside

    def set_aside(self, half: HalfMessage, why: SetAside) -> None:
        """Nobody is asked about an open transaction for a time. Reports it, unless it was set aside for the same reason
        before."""
        with self.lock:
            if half.queue_offset not in self._open:
                return
            before = self._aside.get(half.queue_offset)
            self._aside[half.queue_offset] = why
            if half.queue_offset not in self._open:  # a signal handler ended it just now
                self._aside.pop(half.queue_offset, None)
        if before is None or before.reason != why.reason:
            until = "a command ends it" if why.until_s is None else "later"
            log.warning("transaction %s is set aside until %s: %s", half.id, until, why.reason)

    def put_off(self, half: HalfMessage, reason: str, most_s: float) -> None:
        """Sets a transaction aside whose step could not be done: for a second, each time in a row for twice as long,
        and at most for `most_s`."""
        with self.lock:
            before = self._aside.get(half.queue_offset)
            times = before.times if before is not None else 0
        wait_s = min(2.0 ** min(times, DOUBLINGS_MAX), most_s)
        self.set_aside(half, SetAside(reason, monotonic_s() + wait_s, times + 1))

    def is_aside(self, half: HalfMessage) -> bool:
        """Whether nobody is asked about a transaction now."""
        with self.lock:
            why = self._aside.get(half.queue_offset)
            return why is not None and (why.until_s is None or monotonic_s() < why.until_s)

    def all_aside(self) -> dict[HalfMessage, str]:
        """The transactions that are set aside, with the reasons."""
        with self.lock:
            aside = dict(self._aside)
            return {half: aside[at].reason for at, half in list(self._open.items()) if at in aside}

    def begins(self) -> tuple[int, int]:
        """The first half message and the first op message that a new table has to read."""
        return undisturbed(self._begins)

    def _begins(self) -> tuple[int, int]:
        with self.lock:
            first = self._trim()
            return first, self._ops[0].begin if self._ops else self._op_next
