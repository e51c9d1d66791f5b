"""The open transactions: the queue of half messages, without those that the queue of op messages names.

Both queues only grow, so a table continues where it stopped. The offsets of RocketMQ's group CID_RMQ_SYS_TRANS give the
first half message that may be open; a table begins there.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Callable, Iterator

from cystore._native.lookup.get_result import GetResult
from cystore._native.record.message import Message
from cystore.errors import CorruptRecordError
from cystore.layout import HALF_TOPIC, OP_TOPIC
from cystore.system.threads import os_threads
from cystore.transactions.half import HalfMessage, ended_offset, read_half

log = logging.getLogger("cystore")

GROUP = "CID_RMQ_SYS_TRANS"  # TransactionalMessageUtil.buildConsumerGroup
BATCH = 32
OPS_IN_RUN = 1024  # a transaction that is never ended keeps these runs in memory

Get = Callable[[str, int, int, int], GetResult]


class _Ops:
    """A run of op messages: the queue offset of the first one, their number, and the highest half message that they
    end."""

    __slots__ = ("begin", "count", "last_half")

    def __init__(self, begin: int) -> None:
        self.begin, self.count, self.last_half = begin, 0, -1


class TransactionTable:
    """The open transactions of a store, as this attachment knows them. Safe for threads."""

    def __init__(self, get: Get, half_offset: int, op_offset: int) -> None:
        self._get = get
        self._half_next, self._op_next = half_offset, op_offset
        self._open: dict[int, HalfMessage] = {}  # by queue offset
        self._by_id: dict[str, int] = {}
        # Runs of op messages from the first one on that a new table would have to read.
        self._ops: deque[_Ops] = deque()
        self._ended: set[int] = set()  # half messages that are not read yet
        self.lock = os_threads.RLock()

    def catch_up(self) -> None:
        """Reads the messages that came since the last time."""
        with self.lock:
            # An op follows its half message. So an op that is read here may name a half message that is read below.
            # An op that comes after this loop is read the next time; until then its half message counts as open.
            for op in self._messages(OP_TOPIC, self._op_next):
                self._op_next = op.queue_offset + 1
                ended = ended_offset(op)
                if ended is None:
                    log.warning("%s: op message %d names no half message; it is ignored", op, op.queue_offset)
                    continue
                self._note(op.queue_offset, ended)
                half = self._open.pop(ended, None)
                if half is not None:
                    self._forget(half)
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
            self._trim()

    def _note(self, op_offset: int, ended: int) -> None:
        if not self._ops or self._ops[-1].count == OPS_IN_RUN:
            self._ops.append(_Ops(op_offset))
        run = self._ops[-1]
        run.count, run.last_half = run.count + 1, max(run.last_half, ended)

    def _trim(self) -> int:
        """Forgets op messages whose half messages no table reads any more; returns the first half message that a table
        reads. Half messages are entered in the order of their offsets."""
        first = next(iter(self._open), self._half_next)
        while self._ops and self._ops[0].last_half < first:
            self._ops.popleft()
        return first

    def _forget(self, half: HalfMessage) -> None:
        if self._by_id.get(half.id) == half.queue_offset:
            del self._by_id[half.id]

    def _messages(self, topic: str, offset: int) -> Iterator[Message]:
        """The messages of a queue from an offset on. Messages that cannot be read any more are left out."""
        while True:
            try:
                found = self._get(topic, 0, offset, BATCH)
            except CorruptRecordError as error:
                log.warning(
                    "%s/0: message %d is damaged, so its transaction is lost: %s", topic, offset, error
                )
                offset += 1
                continue
            yield from found.messages
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
            return None if offset is None else self._open[offset]

    def still(self, half: HalfMessage) -> HalfMessage | None:
        """A half message if it is open, else None."""
        with self.lock:
            return half if self._open.get(half.queue_offset) == half else None

    def open(self) -> list[HalfMessage]:
        """All open transactions, in the order in which they were put."""
        with self.lock:
            return list(self._open.values())

    def drop(self, half: HalfMessage) -> None:
        """Forgets a half message that cleaning removed."""
        with self.lock:
            if self._open.get(half.queue_offset) == half:
                del self._open[half.queue_offset]
                self._forget(half)

    def begins(self) -> tuple[int, int]:
        """The first half message and the first op message that a new table has to read."""
        with self.lock:
            first = self._trim()
            return first, self._ops[0].begin if self._ops else self._op_next
