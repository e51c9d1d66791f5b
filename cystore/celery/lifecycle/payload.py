"""The messages of tasks as sent, for `rerun`: `cystore_lifecycle_payload = "message"`.

The SENT event contains the message: headers, properties, and the body as its serializer made it. Celery's signal comes
after the sending, and does not name the serializer. So the sending function is wrapped, and the body is serialized once
more for the log. A message is left out, with the reason, if `cystore_lifecycle_redact` would hide anything in it, or if
it is too large for a record.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from celery import Celery
from celery.exceptions import ImproperlyConfigured
from kombu import Queue
from kombu.serialization import dumps

from cystore.celery.lifecycle.redaction import Redaction
from cystore.celery.lifecycle.senders import Send, stand_around
from cystore.errors import did_you_mean

SETTING, MESSAGE = "cystore_lifecycle_payload", "message"
FIELD, LEFT_OUT = "message", "message_left_out"
ROOM_BYTES = 64 * 1024  # room in a record for the other fields, keys and properties
NAMES = {"headers": dict, "properties": dict, "body": str, "content_type": str, "content_encoding": str,
         "exchange": str, "routing_key": str}  # fmt: skip

# Options that `publish` sets itself.
_GIVEN = {*NAMES, "compression", "declare", "retry", "retry_policy", "serializer"}

_sending: ContextVar[Mapping[str, Any] | None] = ContextVar("cystore_sending", default=None)


def is_wanted(conf: Any) -> bool:
    """Whether messages are kept. Raises ImproperlyConfigured for another value than "message" and none."""
    value = conf.get(SETTING)
    if value not in (None, "", False, MESSAGE):
        near = did_you_mean(value, (MESSAGE,))
        raise ImproperlyConfigured(f'{SETTING} must be "{MESSAGE}", or None, not {value!r}{near}')
    return value == MESSAGE


def watch(app: Celery) -> None:
    """Notes the options of each message while the app sends it."""
    stand_around(app, SETTING, _note)


def _note(send: Send, producer: Any, name: str, message: Any, *positional: Any, **options: Any) -> Any:
    token = _sending.set({**options, "properties": message.properties})
    try:
        return send(producer, name, message, *positional, **options)
    finally:
        _sending.reset(token)


def details(
    conf: Any,
    kept: Redaction,
    name: str,
    body: Any,
    headers: Mapping[str, Any],
    exchange: str,
    routing_key: str | None,
) -> dict[str, Any]:
    """The fields of a SENT event that keep its message, or say why it is not kept."""
    reason = kept.hides(name, body)
    if reason:
        return {LEFT_OUT: reason}
    options = _sending.get()
    if options is None:
        return {LEFT_OUT: "it was not sent through the app"}
    properties = {key: value for key, value in options["properties"].items() if value is not None}
    try:
        content_type, encoding, data = properties.pop("content_type", None), None, body
        if content_type is None:
            content_type, encoding, data = dumps(
                body, serializer=options.get("serializer") or conf.task_serializer
            )
        if options.get("delivery_mode") is not None:
            properties["delivery_mode"] = options["delivery_mode"]
        fields = {
            "headers": dict(headers),
            "properties": properties,
            "content_type": content_type,
            "content_encoding": encoding or properties.pop("content_encoding", "binary"),
            "compression": options.get("compression") or conf.task_compression,
            "exchange": exchange,
            "routing_key": routing_key or "",
            **_text_of(data),
        }
        json.dumps(fields)  # unchanged, or not at all
    except Exception as error:  # noqa: BLE001 - a serializer may raise anything, and the message is out already
        return {LEFT_OUT: f"it cannot be kept as text: {type(error).__name__}: {str(error)[:200]}"}
    return {FIELD: fields}


def _text_of(data: bytes | str) -> dict[str, Any]:
    if isinstance(data, str):
        return {"body": data}
    try:
        return {"body": data.decode("ascii")}
    except UnicodeDecodeError:
        return {"body": base64.b64encode(data).decode(), "base64": True}


def publish(
    app: Celery, message: LoggedMessage, declare: Sequence[Queue], policy: Mapping[str, Any] | None = None
) -> None:
    """Gives a kept message to the broker, unchanged. `policy` of retries instead of the app's. Raises the broker's
    errors."""
    properties = {name: value for name, value in message.properties.items() if name not in _GIVEN}
    with app.producer_or_acquire(None) as producer:
        producer.publish(
            message.body, exchange=message.exchange, routing_key=message.routing_key, headers=dict(message.headers),
            content_type=message.content_type, content_encoding=message.content_encoding,
            compression=message.compression, declare=declare, retry=bool(policy) or app.conf.task_publish_retry,
            retry_policy=policy or app.conf.task_publish_retry_policy, **properties,
        )  # fmt: skip


def within(
    body: bytes, fields: dict[str, Any], limit_bytes: int, encode: Callable[[dict[str, Any]], bytes]
) -> bytes:
    """The body of the event; without the message if that is too large for a record."""
    if FIELD not in fields or len(body) <= limit_bytes - ROOM_BYTES:
        return body
    reason = f"the event would have {len(body)} bytes with it, and a record at most {limit_bytes}"
    return encode({**fields, FIELD: None, LEFT_OUT: reason})


def tasks_in(calls: Iterable[Any]) -> Iterator[Mapping[str, Any]]:
    """The tasks in signatures; those of chains, groups and chords instead of these."""
    waiting = list(calls)[::-1]
    while waiting:
        call = waiting.pop()
        if not isinstance(call, Mapping):
            continue
        inside, kind = call.get("kwargs") or {}, call.get("subtask_type")
        if kind in ("chain", "group"):
            waiting += list(inside.get("tasks") or ())[::-1]
        elif kind == "chord":
            header = inside.get("header")
            parts = header["kwargs"]["tasks"] if isinstance(header, Mapping) else header
            waiting += [inside.get("body"), *list(parts or ())[::-1]]
        else:
            yield call


class LoggedMessage(NamedTuple):
    """A message as it was sent. `body` are the bytes that its serializer made."""

    headers: dict[str, Any]
    properties: dict[str, Any]
    body: bytes
    content_type: str
    content_encoding: str
    compression: str | None
    exchange: str
    routing_key: str

    @classmethod
    def of(cls, fields: object) -> LoggedMessage:
        """The message in a field of an event. Raises ValueError for anything else."""
        if not isinstance(fields, dict):
            raise ValueError("there is no message")
        for field, kind in NAMES.items():
            if not isinstance(fields.get(field), kind):
                raise ValueError(f"its {field} is {type(fields.get(field)).__name__}")
        compression = fields.get("compression")
        try:
            body = (
                base64.b64decode(fields["body"], validate=True)
                if fields.get("base64")
                else fields["body"].encode("utf-8", "surrogatepass")
            )
        except binascii.Error as error:
            raise ValueError(f"its body is not base64: {error}") from error
        return cls(
            fields["headers"], fields["properties"], body, fields["content_type"], fields["content_encoding"],
            compression if isinstance(compression, str) else None, fields["exchange"], fields["routing_key"],
        )  # fmt: skip

    def as_json(self) -> dict[str, Any]:
        """The event's field that holds this message."""
        return {
            "headers": self.headers,
            "properties": self.properties,
            "content_type": self.content_type,
            "content_encoding": self.content_encoding,
            "compression": self.compression,
            "exchange": self.exchange,
            "routing_key": self.routing_key,
            **_text_of(self.body),
        }
