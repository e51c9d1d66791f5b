"""cystore: Apache RocketMQ 4.9.3's message store as an embedded library.

import cystore

with cystore.open("/var/lib/app/store") as store:
    store.put("orders", b"...", keys=("order-1",), tags="new")
    print(store.query("orders", "order-1"))
"""

import atexit
import importlib
import sys
from typing import TYPE_CHECKING, Any

from cystore._native.read.get_result import GetResult
from cystore._native.record.message import Message, PutResult
from cystore.config import StoreConfig
from cystore.engine.inspect.stats import QueueRange
from cystore.errors import (
    CorruptRecordError,
    FencedError,
    FilterError,
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
from cystore.filters.sql import SqlFilter
from cystore.layout import RELEASE
from cystore.results import GetStatus
from cystore.store import MessageStore, close_all, open  # noqa: A004 - the surface's name

if TYPE_CHECKING:
    from cystore.columns.arrow import to_arrow as to_arrow
    from cystore.columns.dataset import scan as scan

__version__ = RELEASE

# Pickles that an earlier release made name these modules: processes of both releases exchange them during an upgrade.
_EARLIER = {
    "cystore._native.message": "cystore._native.record.message",
    "cystore.result": "cystore.results",
    "cystore.stats": "cystore.engine.inspect.stats",
}
for _name, _now in _EARLIER.items():
    sys.modules.setdefault(_name, sys.modules[_now])

# Names that need pyarrow, and their modules.
_LAZY = {"to_arrow": "cystore.columns.arrow", "scan": "cystore.columns.dataset"}

# Without these: `from cystore import *` works where pyarrow is not installed.
__all__ = [
    "CorruptRecordError",
    "FencedError",
    "FilterError",
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
    "SqlFilter",
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
    """Loads `to_arrow` and `scan` at first use, because they need pyarrow."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(f"cystore.{name} needs pyarrow: pip install 'cystore[arrow]'") from error


atexit.register(close_all)
