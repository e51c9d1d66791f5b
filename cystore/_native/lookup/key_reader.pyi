from collections.abc import Callable, Iterable
from typing import Any, final

from cystore._native.derived.dispatch import DispatchKernel
from cystore._native.lookup.counts import ReadCounts
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

def find_messages(
    window: LogWindow,
    control: Control,
    files: list[Any],
    topic: bytes,
    key: bytes,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    *,
    any_key: bool = False,
) -> QueryResult: ...

@final
class KeyReader:
    def __init__(
        self,
        control: Control,
        shapes: Callable[[], list[Any]],
        windows: list[LogWindow],
        new_window: Callable[[], LogWindow],
        general: Callable[..., QueryResult],
        counts: ReadCounts,
        report: Callable[[list[CorruptRecordError]], None],
        dispatcher: DispatchKernel | None = None,
        *,
        bounded: bool = False,
    ) -> None: ...

def query_function(reader: KeyReader, owner: object = None) -> Callable[..., QueryResult]: ...
