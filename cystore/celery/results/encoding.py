"""A result as the bytes of a record: encoded by the app's serializer, within the store's limit, and always some state.

A task must not stay STARTED because its result cannot be stored. A refused result raises kombu's EncodeError, which
Celery turns into the task's failure. A refused failure is replaced by a shorter one that says so.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping
from typing import Any

from celery import states
from kombu.exceptions import DecodeError, EncodeError
from kombu.utils.encoding import ensure_bytes

from cystore.celery.versions import COMPRESSED, DECOMPRESSED_BYTES_MAX, decompress_payload
from cystore.config import StoreConfig

TRACEBACK_CHARACTERS = 8_000  # kept of a replaced failure: its first and last lines
LIMIT = "max_message_size_bytes"
RECORD_ROOM = 64 * 1024  # for the parts of a record beside its body, and for its segment's end


def largest_bytes(config: StoreConfig) -> int:
    """The most bytes of a record, by the setting and by the room of a segment."""
    segment_bytes = config.mapped_file_size_commit_log_bytes
    return min(config.max_message_size_bytes, max(segment_bytes - RECORD_ROOM, segment_bytes // 2))


def encode_meta(
    meta: Mapping[str, Any],
    encode: Callable[[Any], str | bytes],
    prepare_exception: Callable[[BaseException], Any],
    *,
    name: str | None,
    limit_bytes: int,
) -> bytes:
    """The body of a record; `name` is the task's. Raises EncodeError, which names the task, for a state other than a
    failure."""
    try:
        return _within(ensure_bytes(encode(meta)), limit_bytes)
    except Exception as error:
        reason = _reason(error, f"{name or 'task'}[{meta['task_id']}]")
        if meta["status"] not in states.EXCEPTION_STATES:
            raise EncodeError(reason) from error
    return ensure_bytes(encode(_replacement(meta, reason, prepare_exception, limit_bytes)))


class _TooLargeError(ValueError):
    """More bytes than a record may hold."""


def _within(body: bytes, limit_bytes: int) -> bytes:
    if len(body) > limit_bytes:
        raise _TooLargeError(
            f"has {len(body)} bytes with its meta, more than the store's {limit_bytes}: raise {LIMIT} in "
            "result_backend "
            "(a segment must have room for it, see mapped_file_size_commit_log_bytes), "
            "or store less (return the place of the data instead; result_compression helps)"
        )
    if body.startswith(COMPRESSED):
        _check_readable(body)
    return body


def _check_readable(body: bytes) -> None:
    """Raises for a compressed body that no reader takes."""
    try:
        decompress_payload(body)
    except DecodeError as error:
        raise _TooLargeError(
            f"has more than {DECOMPRESSED_BYTES_MAX} bytes before its compression: store less (return the place of the "
            "data instead)"
        ) from error


def _reason(error: Exception, task: str) -> str:
    what = str(error) if isinstance(error, _TooLargeError) else f"is refused by result_serializer: {error}"
    return f"the result of {task} {what}".encode("ascii", "backslashreplace").decode()


def _replacement(
    meta: Mapping[str, Any], reason: str, prepare_exception: Callable[[BaseException], Any], limit_bytes: int
) -> dict[str, Any]:
    """The failure without its large parts, as an EncodeError that shows the beginning of the real one."""
    text = f"{reason}; it was {reprlib.repr(meta['result'])}"
    traceback = _shortened(str(meta.get("traceback") or ""), min(TRACEBACK_CHARACTERS, limit_bytes // 8))
    return {
        "status": meta["status"],
        "result": prepare_exception(EncodeError(text.encode("ascii", "backslashreplace").decode())),
        "traceback": traceback.encode("ascii", "backslashreplace").decode() or None,
        "children": None,
        "date_done": meta.get("date_done"),
        "task_id": meta["task_id"],
    }


def _shortened(text: str, characters: int) -> str:
    half = characters // 2
    return text if len(text) <= characters else f"{text[:half]}\n...\n{text[-half:]}"
