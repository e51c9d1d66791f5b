from collections.abc import Callable, Iterable
from typing import Any, final

from cystore._native.derived.dispatch import DispatchKernel
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.tail import TailKeys
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow
from cystore.errors import CorruptRecordError

@final
class QueryResult(list[Message]):
    @property
    def damaged(self) -> list[CorruptRecordError]: ...
    def __init__(
        self, messages: Iterable[Message] = (), damaged: Iterable[CorruptRecordError] = ()
    ) -> None: ...

@final
class KeyReader:
    def __init__(
        self,
        control: Control,
        obstacles: Any,
        windows: list[LogWindow],
        counts: ReadCounts,
        tail: TailKeys,
        dispatcher: DispatchKernel | None,
        which_end: int,
    ) -> None: ...
    def query(
        self,
        topic: bytes,
        key: str,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        with_expired: bool,
        which_end: int,
    ) -> QueryResult: ...

def query_function(
    reader: KeyReader, general: Callable[..., QueryResult], owner: object = None
) -> Callable[..., QueryResult]: ...
