"""RocketMQ's id of a stored message: its place, in hexadecimal digits (MessageDecoder.createMessageId,
decodeMessageId)."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from cystore._native.record.argument_checks import any_text, instance
from cystore._native.record.message import Message, decode_host, encode_host
from cystore.errors import MessageIllegalError, OffsetError, shown
from cystore.layout import HOST_V4_BYTES, HOST_V6_BYTES

if TYPE_CHECKING:
    from cystore.engine.log.commit_log import CommitLog

OFFSET_BYTES = 8
DIGITS_MIN = 2 * (HOST_V4_BYTES + OFFSET_BYTES)


class MessageId(NamedTuple):
    """The store host and the physical offset of a record. `str` of it is the id: 32 hexadecimal digits, 56 of an IPv6
    host."""

    store_host: str
    physical_offset: int

    @classmethod
    def of(cls, message: Message) -> MessageId:
        """The id of a message that was read from a store. Raises MessageIllegalError for any other message."""
        instance("message", message, Message)
        if message.physical_offset is None or message.store_host is None:
            raise MessageIllegalError("message: it was not read from a store, so it has no message id")
        return cls(message.store_host, message.physical_offset)

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """The id in hexadecimal digits, upper or lower case. Raises MessageIllegalError."""
        text = any_text("message id", text)
        try:
            data = bytes.fromhex(text)
        except ValueError:
            data = b""
        offset = int.from_bytes(data[-OFFSET_BYTES:], "big", signed=True)
        host = data[:-OFFSET_BYTES]
        if len(host) not in (HOST_V4_BYTES, HOST_V6_BYTES) or 2 * len(data) != len(text) or offset < 0:
            raise MessageIllegalError(
                f"message id: {shown(text)} is not 32 or 56 hexadecimal digits of a host and an offset"
            )
        return cls(decode_host(host), offset)

    def __str__(self) -> str:
        host = encode_host(self.store_host, "store_host")
        return (host + self.physical_offset.to_bytes(OFFSET_BYTES, "big")).hex().upper()


def read_by_id(commit_log: CommitLog, message_id: MessageId | str) -> Message:
    """The record with a message id. Raises MessageIllegalError, OffsetError, CorruptRecordError."""
    wanted = message_id if isinstance(message_id, MessageId) else MessageId.parse(message_id)
    message = commit_log.read(wanted.physical_offset)
    if MessageId.of(message) != wanted:
        raise OffsetError(
            f"the record there was stored by {message.store_host}, and the message id names {wanted.store_host}",
            path=commit_log.files.root,
            offset=wanted.physical_offset,
        )
    return message
