"""A broker's message as the body of a store's message: the length of its head, the head (JSON: content type, headers,
properties), and the body's bytes as they are."""

from __future__ import annotations

import struct
from typing import Any

from kombu.utils.json import dumps, loads

from cystore.errors import CorruptRecordError

_LENGTH = struct.Struct("<I")
TEXT = "text"  # in the head: the body was a text


def encode(message: dict[str, Any]) -> bytes:
    """Raises TypeError, ValueError for headers or properties that JSON cannot say."""
    body, head = message["body"], {name: value for name, value in message.items() if name != "body"}
    if isinstance(body, str):
        body, head[TEXT] = body.encode(), True
    said = dumps(head).encode()
    return b"".join((_LENGTH.pack(len(said)), said, body or b""))


def decode(frame: bytes) -> dict[str, Any]:
    """The message of `encode`. Raises CorruptRecordError for another one."""
    try:
        (length,) = _LENGTH.unpack_from(frame)
        head, body = frame[4 : 4 + length], frame[4 + length :]
        message = loads(head.decode())
        message["body"] = body.decode() if message.pop(TEXT, False) else body
        if not isinstance(message["properties"], dict) or not isinstance(message["headers"], dict):
            raise ValueError("headers or properties are no object")
    except (struct.error, ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptRecordError(f"this is no message of the broker: {error}") from error
    return dict(message)
