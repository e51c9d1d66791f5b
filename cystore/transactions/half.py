"""The records of a transaction, as RocketMQ's TransactionalMessageBridge writes them.

A *half message* is in RMQ_SYS_TRANS_HALF_TOPIC; its properties REAL_TOPIC and REAL_QID name the queue that it goes to
when it is committed. An *op message* says that a half message is ended: its body is the queue offset of the half
message. Op messages of cystore also have the transaction's id as a key, and the outcome as a property.
"""

from __future__ import annotations

from typing import NamedTuple

from cystore._native.record.message import Message, PutResult, due_message
from cystore._native.record.properties import changed_properties, message_for_topic
from cystore.errors import MessageIllegalError
from cystore.layout import (
    CONSTANTS,
    DISCARDED_TOPIC,
    HALF_TOPIC,
    OP_TOPIC,
    OWN_TOPICS,
    SCHEDULE_TOPIC,
    refuse_own_topic,
)
from cystore.services.delay.delivery_progress import DUE
from cystore.services.delay.timer import TIMER_QUEUE_ID

OUTCOME = "TRANSACTION_OUTCOME"
COMMITTED, ROLLED_BACK, ASKED_AGAIN, DISCARDED = "commit", "rollback", "again", "discard"
CHECK_TIMES = "TRANSACTION_CHECK_TIMES"
REAL_TOPIC, REAL_QUEUE = "REAL_TOPIC", "REAL_QID"
PREPARED, PRODUCER_GROUP = "TRAN_MSG", "PGROUP"
RESERVED = (PREPARED, PRODUCER_GROUP, CHECK_TIMES)  # `put` refuses REAL_TOPIC and REAL_QID
ENDED_TAG = "d"  # TransactionalMessageUtil.REMOVETAG
MARK_TAG = "m"  # of a record that ends no half message: notes before it are lost, and later half messages have theirs
OFFSET_DIGITS_MAX = 19
DUE_DIGITS_MAX = 17  # as of EXPIRES_AT_MS
PROPERTIES_BYTES_MAX = CONSTANTS["PROPERTIES_BYTES_MAX"][0]


class HalfMessage(NamedTuple):
    """An open transaction, wherever its half message stands now. It can be sent to another process, which may end the
    transaction.

    `id` names the transaction; `topic` and `queue_id` are those of the message when it is committed; `queue_offset` and
    `physical_offset` are the place of the half message when this was made; `begun_ms` is its store timestamp.
    """

    id: str
    topic: str
    queue_id: int
    queue_offset: int
    physical_offset: int
    begun_ms: int


def half_of(message: Message, host: bytes, producer_group: str, due_ms: int | None = None) -> Message:
    """The half message for a message that is to be put, and to wait until then. Raises MessageIllegalError."""
    refuse_own_topic(message.topic)
    notes = {
        PREPARED: "true",
        PRODUCER_GROUP: producer_group,
        REAL_TOPIC: message.topic,
        REAL_QUEUE: str(message.queue_id),
    }
    if due_ms is not None:
        notes[DUE] = str(due_ms)
    half = message_for_topic(message, HALF_TOPIC, 0, changed_properties(b"", notes), host)
    given = {} if message.properties is None else dict(message.properties.items())
    if "INNER_MULTI_DISPATCH" in given:
        raise MessageIllegalError("properties: the message of a transaction has no INNER_MULTI_DISPATCH")
    for name in RESERVED:
        if name in given:
            raise MessageIllegalError(f"properties: {name} is reserved for transactions")
    return half


def handle_of(transaction: str, message: Message, put: PutResult) -> HalfMessage:
    """The handle of a half message that was just put."""
    return HalfMessage(
        transaction,
        message.topic,
        message.queue_id,
        put.queue_offset,
        put.physical_offset,
        put.store_timestamp_ms,
    )


def read_half(stored: Message) -> HalfMessage:
    """The handle of a stored half message. Raises ValueError if it does not name its target queue."""
    properties = stored.properties
    topic, queue_id = properties.get(REAL_TOPIC), properties.get(REAL_QUEUE, "")
    if not topic or topic in OWN_TOPICS:
        raise ValueError(f"its {REAL_TOPIC} is {topic!r}")
    if not (queue_id.isascii() and queue_id.isdecimal() and int(queue_id) <= 0x7FFFFFFF):
        raise ValueError(f"its {REAL_QUEUE} is {queue_id!r}")
    transaction = stored.unique_key or f"half-{stored.queue_offset}"
    return HalfMessage(
        transaction,
        topic,
        int(queue_id),
        stored.queue_offset,
        stored.physical_offset,
        stored.store_timestamp_ms,
    )


def checks_of(stored: Message) -> int:
    """The number of checks that a transaction has had."""
    times = stored.properties.get(CHECK_TIMES, "")
    return int(times) if times.isascii() and times.isdecimal() and len(times) <= OFFSET_DIGITS_MAX else 0


def committed_of(stored: Message, half: HalfMessage, now_ms: int = 0) -> Message:
    """The message that consumers get (EndTransactionProcessor.endMessageTransaction), now or at the time that it waits
    for."""
    due = stored.properties.get(DUE, "")
    topic, queue_id = half.topic, half.queue_id
    left_out: tuple[str, ...] = (PREPARED, REAL_TOPIC, REAL_QUEUE, DUE)
    if due.isascii() and due.isdecimal() and len(due) <= DUE_DIGITS_MAX and int(due) > now_ms:
        topic, queue_id, left_out = SCHEDULE_TOPIC, TIMER_QUEUE_ID, (PREPARED,)
    properties = changed_properties(stored.properties_bytes, {}, left_out)
    expires = CONSTANTS["SYS_FLAG_EXPIRES"][0] if stored.expires_at_ms is not None else 0
    return due_message(
        stored,
        topic,
        queue_id,
        properties,
        sys_flag=stored.sys_flag & ~CONSTANTS["SYS_FLAG_PREPARED"][0]
        | CONSTANTS["SYS_FLAG_COMMIT"][0]
        | expires,
        prepared_transaction_offset=stored.physical_offset,
    )


def asked_again_of(stored: Message) -> Message:
    """The half message again, for the end of its queue, with one more check (putBackHalfMsgQueue). Leaves out
    properties that only a broker needs where its properties have no room for the check."""
    without = (PREPARED, PRODUCER_GROUP) if lacks_room_for_check(stored) else ()
    return due_message(stored, HALF_TOPIC, 0, _with_check(stored, without), sys_flag=stored.sys_flag)


def lacks_room_for_check(stored: Message) -> bool:
    """Whether the note of a check makes the properties too long."""
    return len(_with_check(stored)) > PROPERTIES_BYTES_MAX


def _with_check(stored: Message, without: tuple[str, ...] = ()) -> bytes:
    return changed_properties(stored.properties_bytes, {CHECK_TIMES: str(checks_of(stored) + 1)}, without)


def discarded_of(stored: Message) -> Message:
    """The half message, for the topic of discarded ones
    (DefaultTransactionalMessageCheckListener.resolveDiscardMsg)."""
    return due_message(stored, DISCARDED_TOPIC, 0, stored.properties_bytes or b"", sys_flag=stored.sys_flag)


def op_of(half: HalfMessage, outcome: str) -> Message:
    """The op message that ends a half message (addRemoveTagInTransactionOp)."""
    return Message(
        topic=OP_TOPIC,
        body=str(half.queue_offset).encode(),
        tags=ENDED_TAG,
        keys=(half.id,),
        properties={OUTCOME: outcome},
    )


def mark() -> Message:
    """The record behind lost notes: a half message that is put later has its note behind it."""
    return Message(topic=OP_TOPIC, body=b"", tags=MARK_TAG)


def ended_offset(op: Message) -> int | None:
    """The queue offset of the half message that an op message ends; None if it names none."""
    body = bytes(op.body[: OFFSET_DIGITS_MAX + 1])
    if op.tags != ENDED_TAG or not body.isdigit() or len(body) > OFFSET_DIGITS_MAX:
        return None
    return int(body)
