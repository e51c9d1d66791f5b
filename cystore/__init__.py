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
    PoolDeficientError,
    QueuesFullError,
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
from cystore.filters.contains import Contains
from cystore.filters.sql import SqlFilter
from cystore.layout import RELEASE
from cystore.results import GetStatus

if TYPE_CHECKING:
    from cystore.arrivals.dispatcher import Dispatcher as Dispatcher
    from cystore.columns.arrow import to_arrow as to_arrow
    from cystore.columns.dataset import scan as scan
    from cystore.consumers.consumer import Consumer as Consumer
    from cystore.store import MessageStore as MessageStore
    from cystore.store import open as open  # noqa: A004 - the surface's name
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

# Names with the modules that are imported at their first use: a program that opens no store imports half as much.
_LAZY = {
    "Consumer": "cystore.consumers.consumer",
    "Dispatcher": "cystore.arrivals.dispatcher",
    "HalfMessage": "cystore.transactions.half",
    "MessageStore": "cystore.store",
    "open": "cystore.store",
    "scan": "cystore.columns.dataset",
    "to_arrow": "cystore.columns.arrow",
}

# Without `scan` and `to_arrow`: `from cystore import *` works where pyarrow is not installed.
__all__ = [
    "Contains",
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
    "PoolDeficientError",
    "PutResult",
    "QueueRange",
    "QueuesFullError",
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
    """Loads a name of `_LAZY` at its first use, and keeps it."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = getattr(importlib.import_module(_LAZY[name]), name)
    except ModuleNotFoundError as error:
        if error.name != "pyarrow":
            raise
        raise ImportError(f"cystore.{name} needs pyarrow: pip install 'cystore[arrow]'") from error
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    """The public names. Tools ask for each of them, so those that need pyarrow are left out where it is missing."""
    from importlib.util import find_spec

    needs_pyarrow = () if find_spec("pyarrow") else ("scan", "to_arrow")
    return sorted({*__all__, *_LAZY, "__version__"}.difference(needs_pyarrow))


def _close_stores() -> None:
    """Closes the stores of this process, if it ever loaded the module that opens them. A process may end while another
    thread loads it; no store is open then."""
    close_all = getattr(sys.modules.get("cystore.store"), "close_all", None)
    if close_all is not None:
        close_all()


# Registered here, not in `cystore.store`: a handler that the program registers later runs earlier, and may use a store.
atexit.register(_close_stores)
