"""The supported Celery versions, and their differences.

The import of `cystore.celery` raises for any other version. Every use of a name that only some versions have belongs
here.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import celery
from celery.backends import asynchronous, base
from celery.utils.time import get_exponential_backoff_interval
from kombu.compression import decompress

from cystore.errors import StoreError

OLDEST, NEWEST = (5, 4), (5, 7)
# Celery 5.7 puts this, the content type and a NUL before the body of a compressed result.
COMPRESSED = b"\x00celery-compressed\x00"


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


def _decompressed(payload: bytes) -> Any:
    """Lets a Celery without compressed results read those of a newer Celery."""
    if not payload.startswith(COMPRESSED):
        return payload
    content_type, _, body = payload[len(COMPRESSED) :].partition(b"\0")
    return decompress(body, content_type.decode())


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

# Since Celery 5.7 results may be compressed, and several result objects of a process may wait for one task.
decompress_payload = getattr(base, "decompress_payload", _decompressed)
waiting_on: Callable[[Any, str], list[Any]] | None = getattr(asynchronous, "_waiting_on", None)
