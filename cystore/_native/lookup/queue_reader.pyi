from collections.abc import Callable
from typing import Any, final

from cystore._native.derived.dispatch import DispatchKernel
from cystore._native.derived.queue import BatchLimits, TagFilter
from cystore._native.filters.program import FilterProgram
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.tail_table import TailTable
from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow

FILTERED_ENTRIES: int

@final
class QueueReader:
    def __init__(
        self,
        control: Control,
        obstacles: Any,
        dispatcher: DispatchKernel | None,
        limits: BatchLimits,
        windows: list[LogWindow],
        counts: ReadCounts,
        filter_class: type,
        tail: TailTable | None,
        which_end: int,
    ) -> None: ...
    def forget_cleaned(self) -> None: ...
    def forget_files(self) -> None: ...
    def batch(
        self,
        topic: bytes,
        queue_id: int,
        offset: int,
        max_count: int,
        raw: bool,
        tags: TagFilter | None,
        program: FilterProgram | None,
        predicate: Callable[[Message], object] | None,
        registered: tuple[str, str, str] | None,
        which_end: int,
    ) -> GetResult: ...

def get_function(
    reader: QueueReader, general: Callable[..., GetResult], owner: object = None
) -> Callable[..., GetResult]: ...
def read_function(
    reader: QueueReader, general: Callable[..., Message], owner: object = None
) -> Callable[..., Message]: ...
