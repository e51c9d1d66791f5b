"""The messages of a topic, newest first, decoded."""

from __future__ import annotations

from typing import Any

from cystore import Message, MessageStore
from cystore.celery.base import records
from cystore.celery.base.events import EVENTS
from cystore.celery.base.reading import of_queues
from cystore.celery.eta import waiting
from cystore.celery.lifecycle.payload import FIELD
from cystore.celery.schedules import entries
from cystore.clock import monotonic_s
from cystore.layout import SCHEDULE_TOPIC
from cystore.operate.output import decoded, message_object, time_text
from cystore.web.answers.pages import numbers_of, word_of
from cystore.web.answers.task_rows import Texts

TIME_S = 2.0
BODY_BYTES_MOST = 16 << 10  # of a body that is shown whole
BEGIN_BYTES = 1 << 10  # of a longer one
# Messages of tasks as they were sent, and what comes after them: no redaction has seen their arguments.
UNREDACTED = (waiting.TOPIC, entries.TOPIC, records.CHORDS, records.GROUPS)
FIELDS = ("topic", "queue_id", "queue_offset", "physical_offset", "size_bytes", "keys", "tags", "properties")


class UnknownTopicError(ValueError):
    """The store has no such topic."""


def messages_page(
    store: MessageStore, topic: str, queue_id: int | None, limit: int, after: str | None, texts: Texts
) -> tuple[list[dict[str, Any]], str | None]:
    """At most `limit` messages of a topic, or of one of its queues, and the cursor of the next page. Raises ValueError
    for a cursor of something else, UnknownTopicError."""
    if topic not in store.topics():
        raise UnknownTopicError(f"{store.path} has no topic {topic!r}")
    before, end_ms = (None, None) if after is None else numbers_of(after, 2)
    rows: list[dict[str, Any]] = []
    last = (0, 0)
    until_s = monotonic_s() + TIME_S
    for message in of_queues(store, topic, None if queue_id is None else (queue_id,), end_ms=end_ms):
        if before is not None and message.physical_offset >= before:
            continue
        if len(rows) == limit or (rows and monotonic_s() > until_s):
            return rows, word_of(last)
        rows.append(_row(message, texts))
        last = (message.physical_offset, message.store_timestamp_ms)
    return rows, None


def _row(message: Message, texts: Texts) -> dict[str, Any]:
    known = message_object(message, "none")
    row = {name: known[name] for name in FIELDS}
    row["properties"] = texts.shown(row["properties"])
    return {**row, "time": time_text(message.store_timestamp_ms), **_body(message, texts)}


def _body(message: Message, texts: Texts) -> dict[str, Any]:
    """The body as far as it may be shown; `body_encoding` says how it was decoded: "json", "text", "base64", "hidden".
    Of a long one its beginning."""
    topic, body = message.topic, message.body
    if topic == SCHEDULE_TOPIC:
        topic = message.properties.get("REAL_TOPIC", "")
    if topic in UNREDACTED:
        return {"body": None, "body_encoding": "hidden", "body_cut": False}
    is_cut = len(body) > BODY_BYTES_MOST
    value, encoding = (_beginning(body), "text") if is_cut else decoded(body)
    if topic == EVENTS and isinstance(value, dict):
        value.pop(FIELD, None)
    if encoding == "base64" and texts.redaction is not None and texts.redaction.redact:
        return {"body": None, "body_encoding": "hidden", "body_cut": False}
    return {"body": texts.shown(value), "body_encoding": encoding, "body_cut": is_cut}


def _beginning(body: memoryview | bytes) -> str:
    return bytes(body[:BEGIN_BYTES]).decode("utf-8", "backslashreplace")
