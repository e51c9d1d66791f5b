"""cystore: Apache RocketMQ 4.9.3's message store as an embedded library.

import cystore

with cystore.open("/var/lib/app/store") as store:
    store.put("orders", b"...", keys=("order-1",), tags="new")
    print(store.query("orders", "order-1"))
"""

import atexit
import importlib
from typing import TYPE_CHECKING, Any

from cystore._native.message import Message, PutResult
from cystore.config import StoreConfig
from cystore.errors import (
    CorruptRecordError,
    FencedError,
    FlushFailedError,
    MessageIllegalError,
    NotDurableError,
    OffsetError,
    PageCacheBusyError,
    StoreClosedError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreLockedError,
    StoreMovedError,
    StoreNotWritableError,
    StorePermissionError,
    StoreResourceError,
    StoreTimeoutError,
)
from cystore.layout import RELEASE
from cystore.result import GetResult, GetStatus
from cystore.stats import QueueRange
from cystore.store import MessageStore, close_all, open  # noqa: A004 - the surface's name

if TYPE_CHECKING:
    from cystore.arrow import to_arrow as to_arrow

__version__ = RELEASE

# Without to_arrow: `from cystore import *` works where pyarrow is not installed.
__all__ = [
    "CorruptRecordError",
    "FencedError",
    "FlushFailedError",
    "GetResult",
    "GetStatus",
    "Message",
    "MessageIllegalError",
    "MessageStore",
    "NotDurableError",
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
    "StoreMovedError",
    "StoreNotWritableError",
    "StorePermissionError",
    "StoreResourceError",
    "StoreTimeoutError",
    "open",
]


def __getattr__(name: str) -> Any:
    """`to_arrow` is loaded when it is used: it needs pyarrow."""
    if name != "to_arrow":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return importlib.import_module("cystore.arrow").to_arrow
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError("cystore.to_arrow needs pyarrow: pip install 'cystore[arrow]'") from error


atexit.register(close_all)
