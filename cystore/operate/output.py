"""How commands write: one JSON object a line for programs, short lines for people."""

from __future__ import annotations

import binascii
import json
import sys
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from cystore import Message

BODY_CHARACTERS = 60
BODIES = ("full", "text", "base64", "none")  # what --body of the commands takes
TABLE_ROWS = 40
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_encode = json.JSONEncoder(separators=(",", ":")).encode  # plain ASCII: right in any locale
_encode_shown = json.JSONEncoder(separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode


def write_line(text: str) -> None:
    """One line for people, on standard output."""
    sys.stdout.write(text + "\n")


def write_json(value: object) -> None:
    """One JSON value on a line of its own."""
    sys.stdout.write(_encode(value) + "\n")


def write_note(text: str) -> None:
    """One line on standard error."""
    sys.stdout.flush()
    sys.stderr.write(f"cystore: {one_line(text)}\n")


def message_object(message: Message, body: str | None = None) -> dict[str, Any]:
    """All fields of a message under their names. `body` is one of BODIES; by default the body is in base64."""
    return {
        "topic": message.topic,
        "queue_id": message.queue_id,
        "queue_offset": message.queue_offset,
        "physical_offset": message.physical_offset,
        "size_bytes": message.size_bytes,
        **_body_fields(message, body),
        "keys": list(message.keys),
        "tags": message.tags,
        "properties": dict(message.properties),
        "flag": message.flag,
        "sys_flag": message.sys_flag,
        "born_timestamp_ms": message.born_timestamp_ms,
        "store_timestamp_ms": message.store_timestamp_ms,
        "born_host": message.born_host,
        "store_host": message.store_host,
        "reconsume_times": message.reconsume_times,
        "prepared_transaction_offset": message.prepared_transaction_offset,
        "body_crc": message.body_crc,
    }


def _body_fields(message: Message, body: str | None) -> dict[str, Any]:
    """The body for programs. A decoded one says how it was decoded."""
    if body == "none":
        return {}
    if body in ("full", "text"):
        value, encoding = decoded(message.body)
        return {"body": value, "body_encoding": encoding}
    return {"body": _base64(message.body)}


def decoded(body: bytes | memoryview) -> tuple[Any, str]:
    """A body and how it was decoded: "json" for an object or a list, "text" for other UTF-8, else "base64"."""
    try:
        text = bytes(body).decode()
    except UnicodeDecodeError:
        return _base64(body), "base64"
    if text[:1].isspace() or text.startswith(("{", "[")):
        try:
            value = json.loads(text)
            _encode_shown(value)  # not NaN or Infinity, which only Python reads
        except (ValueError, RecursionError):
            return text, "text"
        if isinstance(value, (dict, list)):
            return value, "json"
    return text, "text"


def _base64(body: bytes | memoryview) -> str:
    return binascii.b2a_base64(body, newline=False).decode("ascii")


def message_line(message: Message, body: str | None = None) -> str:
    """The place of a message and its body: by default, and for "text", the beginning of it."""
    words = [
        f"{message.topic}/{message.queue_id}@{message.queue_offset}",
        time_text(message.store_timestamp_ms),
        *([f"tag {one_line(message.tags)}"] if message.tags else []),
        *([f"keys {one_line(','.join(message.keys))}"] if message.keys else []),
        *([] if body == "none" else [one_line(_shown_body(message, body))]),
    ]
    return "  ".join(words)


def _shown_body(message: Message, body: str | None) -> str:
    if body == "base64":
        return _base64(message.body)
    if body == "full":
        value, encoding = decoded(message.body)
        if encoding == "json":
            return _encode_shown(value)
        return value if encoding == "text" else bytes(message.body).decode("utf-8", "backslashreplace")
    shown = bytes(message.body[: 4 * BODY_CHARACTERS]).decode("utf-8", "replace")[:BODY_CHARACTERS]
    return shown + ("..." if len(message.body) > len(shown.encode()) else "")


def write_message(message: Message, *, as_json: bool, body: str | None = None) -> None:
    """One message on one line; `body` is one of BODIES."""
    if as_json:
        write_json(message_object(message, body))
    else:
        write_line(message_line(message, body))


def one_line(text: str) -> str:
    """The text with everything that could move the cursor written as an escape."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode("ascii") for c in text)


def time_text(timestamp_ms: int) -> str:
    """A time in UTC to the millisecond. A time outside of the calendar stays a number, and so does 0 for "never"."""
    if timestamp_ms <= 0:
        return str(timestamp_ms)
    try:
        moment = _EPOCH + timedelta(milliseconds=timestamp_ms)
    except OverflowError:
        return str(timestamp_ms)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def size_text(size_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    value, unit = float(size_bytes), "B"
    for larger in ("KiB", "MiB", "GiB", "TiB"):
        if value < 1024:
            break
        value, unit = value / 1024, larger
    return f"{size_bytes} B" if unit == "B" else f"{value:.1f} {unit}"


def write_table(head: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """Writes columns of text, with numbers to the right. Without rows it writes nothing, of very many rows the first
    and last."""
    if not rows:
        return
    shown = [*rows[:TABLE_ROWS], rows[-1]] if len(rows) > TABLE_ROWS + 1 else rows
    cells = [[one_line(str(cell)) for cell in row] for row in shown]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    is_number = [all(cell.isdecimal() for cell in column) for column in zip(*cells, strict=True)]
    for number, row in enumerate([list(head), *cells]):
        if number == TABLE_ROWS + 1 and len(rows) > len(shown):
            write_line(f"  ... {len(rows) - len(shown)} more; --json has all")
        columns = zip(row, widths, is_number, strict=True)
        write_line(
            ("  " + "  ".join(c.rjust(w) if right else c.ljust(w) for c, w, right in columns)).rstrip()
        )
