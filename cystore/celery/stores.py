"""One open store for each path and process: `cystore://` URLs, and the stores that they open when first used."""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

from celery import signals
from celery.exceptions import ImproperlyConfigured

import cystore
from cystore import MessageStore, StoreConfig, StoreConfigError

SCHEME = "cystore"
EXAMPLE = "cystore:///var/lib/app/store"
MIB = 1 << 20

# A result is small: files that suit a laptop, where RocketMQ's would reserve a gigabyte. They hold for a store that is new.
DEFAULTS: dict[str, Any] = {
    "mapped_file_size_commit_log_bytes": 64 * MIB,
    "mapped_file_size_consume_queue_bytes": 20 * 50_000,
    "allocate_ahead_bytes": 8 * MIB,
    "populate_ahead_bytes": 4 * MIB,
    # A client of RocketMQ's tries again elsewhere; here a task that has done its work would fail because its host is busy.
    "os_page_cache_busy_timeout_ms": 30_000,
}


@dataclass(frozen=True)
class Location:
    """Where a store is and how it is opened: a parsed ``cystore:///path?option=value``.

    Options are fields of `cystore.StoreConfig`, and ``flush=sync`` (a result is durable on disk before its task is
    acknowledged) for ``flush_disk_type=sync``.
    """

    path: str
    settings: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, url: str | None) -> Location:
        """Raises ImproperlyConfigured, which names what is wrong in the URL."""
        parts = urlsplit(url or "")
        if parts.scheme != SCHEME or parts.netloc or parts.fragment or not parts.path.strip("/"):
            raise ImproperlyConfigured(
                f"result_backend must look like {EXAMPLE} (three slashes), not {url!r}"
            )
        settings: dict[str, Any] = {}
        try:
            for name, value in parse_qsl(
                parts.query, keep_blank_values=True, strict_parsing=bool(parts.query)
            ):
                name, typed = StoreConfig.parse_setting(
                    f"{'flush_disk_type' if name == 'flush' else name}={value}"
                )
                settings[name] = typed
            StoreConfig.from_mapping({**DEFAULTS, **settings})
        except ValueError as error:
            raise ImproperlyConfigured(f"result_backend {url!r}: {error}") from error
        return cls(os.path.realpath(unquote(parts.path)), settings)


_open: dict[str, tuple[Location, MessageStore]] = {}
_lock = threading.Lock()


def open_shared(location: Location) -> MessageStore:
    """This process's store at a location, opened by the first call. Raises StoreError where it cannot be opened."""
    held = _open.get(location.path)
    if held is None or held[1].closed:
        with _lock:
            held = _open.get(location.path)
            if held is None or held[1].closed:
                store = cystore.open(location.path, **{**DEFAULTS, **location.settings})
                held = _open[location.path] = (location, store)
    if held[0] != location:
        raise StoreConfigError(
            f"this process has the store open with the options {held[0].settings}, not {location.settings}",
            path=location.path,
        )
    return held[1]


def close_shared(**_signal: object) -> None:
    """Closes what `open_shared` opened; a later use opens it again."""
    with _lock:
        while _open:
            _, (_, store) = _open.popitem()
            store.close()


def _forked() -> None:
    """A store attaches again by itself; the lock may have been held by a thread that the child does not have."""
    global _lock
    _lock = threading.Lock()


os.register_at_fork(after_in_child=_forked)
# Pool processes end without Python's own exit handlers.
signals.worker_process_shutdown.connect(close_shared, weak=False)
