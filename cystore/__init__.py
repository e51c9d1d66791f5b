"""cystore: Apache RocketMQ 4.9.3's message store as an embedded library.

import cystore

with cystore.open("/var/lib/app/store") as store:
    store.put("orders", b"...", keys=("order-1",), tags="new")
    print(store.query("orders", "order-1"))
"""

import atexit

from cystore._native.message import Message, PutResult
from cystore.config import StoreConfig
from cystore.errors import (
    CorruptRecordError,
    FlushFailedError,
    MessageIllegalError,
    OffsetError,
    PageCacheBusyError,
    StoreClosedError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StoreNotWritableError,
    StorePermissionError,
    StoreTimeoutError,
)
from cystore.result import GetResult, GetStatus
from cystore.stats import QueueRange
from cystore.store import MessageStore, close_all, open  # noqa: A004 - the surface's name

__version__ = "0.1.0"

__all__ = [
    "CorruptRecordError",
    "FlushFailedError",
    "GetResult",
    "GetStatus",
    "Message",
    "MessageIllegalError",
    "MessageStore",
    "OffsetError",
    "PageCacheBusyError",
    "PutResult",
    "QueueRange",
    "StoreClosedError",
    "StoreConfig",
    "StoreConfigError",
    "StoreError",
    "StoreFormatError",
    "StoreFullError",
    "StoreIOError",
    "StoreLockedError",
    "StoreNotWritableError",
    "StorePermissionError",
    "StoreTimeoutError",
    "open",
]

atexit.register(close_all)
