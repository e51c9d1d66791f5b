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

from cystore._native.lookup.get_result import GetResult
from cystore._native.record.message import Message, PutResult
from cystore.config import StoreConfig
from cystore.engine.inspect.message_id import MessageId
from cystore.engine.inspect.stats import QueueRange
from cystore.errors import (
    CorruptRecordError,
    ElectionError,
    FencedError,
    FilterError,
    FlushFailedError,
    FlushSlaveTimeoutError,
    MessageIllegalError,
    NotAcknowledgingError,
    NotDurableError,
    OffsetError,
    PageCacheBusyError,
    ReplicationError,
    SlaveNotAvailableError,
    StoreClosedError,
    StoreConfigError,
    StoreError,
    StoreFormatError,
    StoreFullError,
    StoreIOError,
    StoreIsSlaveError,
    StoreLockedError,
    StoreMovedError,
    StoreNotWritableError,
    StorePermissionError,
    StoreResourceError,
    StoreTimeoutError,
    TransactionError,
)
from cystore.filters.sql import SqlFilter
from cystore.layout import RELEASE
from cystore.results import GetStatus
from cystore.store import MessageStore, close_all, open  # noqa: A004 - the surface's name

if TYPE_CHECKING:
    from cystore.arrivals.dispatcher import Dispatcher as Dispatcher
    from cystore.columns.arrow import to_arrow as to_arrow
    from cystore.columns.dataset import scan as scan
    from cystore.consumers.consumer import Consumer as Consumer
    from cystore.transactions.half import HalfMessage as HalfMessage

__version__ = RELEASE

# Pickles that an earlier release made name these modules: processes of both releases exchange them during an upgrade.
_EARLIER = {
    "cystore._native.message": "cystore._native.record.message",
    "cystore._native.read.get_result": "cystore._native.lookup.get_result",
    "cystore.result": "cystore.results",
    "cystore.stats": "cystore.engine.inspect.stats",
}
for _name, _now in _EARLIER.items():
    sys.modules.setdefault(_name, sys.modules[_now])

# Names that need pyarrow or that few programs use, with their modules.
_LAZY = {
    "Consumer": "cystore.consumers.consumer",
    "Dispatcher": "cystore.arrivals.dispatcher",
    "HalfMessage": "cystore.transactions.half",
    "scan": "cystore.columns.dataset",
    "to_arrow": "cystore.columns.arrow",
}

# Without the names of `_LAZY`: `from cystore import *` works where pyarrow is not installed.
__all__ = [
    "CorruptRecordError",
    "ElectionError",
    "FencedError",
    "FilterError",
    "FlushFailedError",
    "FlushSlaveTimeoutError",
    "GetResult",
    "GetStatus",
    "Message",
    "MessageId",
    "MessageIllegalError",
    "MessageStore",
    "NotAcknowledgingError",
    "NotDurableError",
    "OffsetError",
    "PageCacheBusyError",
    "PutResult",
    "QueueRange",
    "ReplicationError",
    "SlaveNotAvailableError",
    "SqlFilter",
    "StoreClosedError",
    "StoreConfig",
    "StoreConfigError",
    "StoreError",
    "StoreFormatError",
    "StoreFullError",
    "StoreIOError",
    "StoreIsSlaveError",
    "StoreLockedError",
    "StoreMovedError",
    "StoreNotWritableError",
    "StorePermissionError",
    "StoreResourceError",
    "StoreTimeoutError",
    "TransactionError",
    "open",
]


def __getattr__(name: str) -> Any:
    """Loads a name of `_LAZY` at its first use."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        return getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(f"cystore.{name} needs pyarrow: pip install 'cystore[arrow]'") from error


atexit.register(close_all)
