from collections.abc import Callable
from typing import final

from cystore._native.control import Control
from cystore._native.dispatch import DispatchKernel
from cystore._native.get_result import GetResult
from cystore._native.mapping import MappedFile
from cystore._native.message import Message
from cystore._native.queue import BatchLimits
from cystore._native.window import LogWindow

@final
class QueueReader:
    cleaned_below: int
    found: int
    missed: int
    messages: int
    def __init__(
        self,
        control: Control,
        dispatcher: DispatchKernel,
        limits: BatchLimits,
        windows: list[LogWindow],
        file_of: Callable[[int, int], MappedFile | None],
        new_window: Callable[[], LogWindow],
        general: Callable[..., GetResult],
        general_read: Callable[..., Message],
    ) -> None: ...
    def forget_files(self) -> None: ...

def get_function(reader: QueueReader, owner: object = None) -> Callable[..., GetResult]: ...
def read_function(reader: QueueReader, owner: object = None) -> Callable[..., Message]: ...
