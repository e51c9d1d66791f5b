from collections.abc import Callable
from typing import final

from cystore._native.derived.dispatch import DispatchKernel
from cystore._native.derived.queue import BatchLimits
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.tail_table import TailTable
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow

@final
class QueueReader:
    cleaned_below: int
    def __init__(
        self,
        control: Control,
        dispatcher: DispatchKernel,
        limits: BatchLimits,
        windows: list[LogWindow],
        counts: ReadCounts,
        file_of: Callable[[int, int], MappedFile | None],
        new_window: Callable[[], LogWindow],
        general: Callable[..., GetResult],
        general_read: Callable[..., Message],
        filter_class: type,
        tail: TailTable | None = None,
        *,
        bounded: bool = False,
    ) -> None: ...
    def forget_files(self) -> None: ...

def get_function(reader: QueueReader, owner: object = None) -> Callable[..., GetResult]: ...
def read_function(reader: QueueReader, owner: object = None) -> Callable[..., Message]: ...
