"""The supported Celery versions, and their differences.

The import of `cystore.celery` raises for any other version. Every use of a name that only some versions have belongs
here.
"""

from __future__ import annotations

import bz2
import lzma
import re
import zlib
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from importlib import import_module
from typing import Any

import celery
from celery.backends import asynchronous
from celery.utils.time import get_exponential_backoff_interval
from kombu.compression import decompress
from kombu.exceptions import DecodeError

from cystore.errors import StoreError

OLDEST, NEWEST = (5, 4), (5, 7)
# Celery 5.7 puts this, the content type and a NUL before the body of a compressed result.
COMPRESSED = b"\x00celery-compressed\x00"
DECOMPRESSED_BYTES_MAX = 64 << 20  # of one result
LZMA_BYTES_MAX = 128 << 20  # memory for its dictionary


class CeleryVersionError(StoreError, ImportError):
    """The installed Celery is older or newer than the supported ones."""

    path: Any


def check(version: str) -> None:
    """Raises CeleryVersionError, one line, for a version that cystore is not tested with."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found is None or not OLDEST <= (int(found[1]), int(found[2])) <= NEWEST:
        oldest, newest = ".".join(map(str, OLDEST)), ".".join(map(str, NEWEST))
        raise CeleryVersionError(
            f"cystore supports Celery {oldest} to {newest}, and {version} is installed: pip install 'cystore[celery]'"
        )


def decompress_payload(payload: bytes) -> Any:
    """The payload of a result; decompressed if it is compressed, as since Celery 5.7. It may come from another host, so
    its size is bounded while it grows: Celery's own function makes gigabytes of a megabyte. Raises kombu's
    DecodeError."""
    if not payload.startswith(COMPRESSED):
        return payload
    content_type, _, body = payload[len(COMPRESSED) :].partition(b"\0")
    name = content_type.decode("ascii", "replace")
    try:
        found = _decompressed(body, name)
    except (LookupError, ValueError, OSError, EOFError, zlib.error, lzma.LZMAError) as error:
        raise DecodeError(f"a compressed result ({name[:40]!r}) cannot be read: {error}") from error
    if len(found) > DECOMPRESSED_BYTES_MAX:
        raise DecodeError(
            f"a compressed result of {len(payload)} bytes has more than {DECOMPRESSED_BYTES_MAX} bytes: it is refused. "
            "Store less, and return the place of the data instead"
        )
    return found


def _decompressed(body: bytes, content_type: str) -> bytes:
    """The content, or a byte more of it than is allowed."""
    most = DECOMPRESSED_BYTES_MAX + 1
    make = _DECOMPRESSORS.get(content_type)
    if make is None:  # an application's own method
        return bytes(decompress(body, content_type))
    worker = make()
    content: bytes = worker.decompress(body, most)
    if len(content) < most and not worker.eof:
        raise EOFError("it ends too early")
    return content


def _decompressors() -> dict[str, Callable[[], Any]]:
    """The methods that kombu has, and this Python too, each of which can stop at a number of bytes."""
    found: dict[str, Callable[[], Any]] = {
        "application/x-gzip": zlib.decompressobj,
        "application/x-bz2": bz2.BZ2Decompressor,
        "application/x-lzma": partial(lzma.LZMADecompressor, memlimit=LZMA_BYTES_MAX),
    }
    for name in ("compression.zstd", "backports.zstd"):
        with suppress(ImportError):
            found.setdefault("application/zstd", import_module(name).ZstdDecompressor)
    return found


def retrying(backend: Any, call: Callable[..., None], *args: Any, **kwargs: Any) -> None:
    """Makes `call`, repeated if the app has `result_backend_always_retry`: Celery's own way since 5.7, the same
    before."""
    if hasattr(backend, "_ensure_retryable"):
        backend._ensure_retryable(call, *args, **kwargs)
        return
    retries = 0
    while True:
        try:
            return call(*args, **kwargs)
        except Exception as error:
            if (
                not (backend.always_retry and backend.exception_safe_to_retry(error))
                or retries >= backend.max_retries
            ):
                raise
        retries += 1
        pause_ms = get_exponential_backoff_interval(
            backend.base_sleep_between_retries_ms, retries, backend.max_sleep_between_retries_ms, True
        )
        backend._sleep(pause_ms / 1000)


def publish(app: Any, send: Callable[..., Any], *args: Any) -> None:
    """Makes `send` with retries. Since Celery 5.7 it gets a wait between them."""
    if hasattr(app.amqp, "_retry_publish"):
        app.amqp._retry_publish(send, *args)
    else:
        send(*args)


check(celery.__version__)

_DECOMPRESSORS = _decompressors()
# Since Celery 5.7 several result objects of a process may wait for one task.
waiting_on: Callable[[Any, str], list[Any]] | None = getattr(asynchronous, "_waiting_on", None)
