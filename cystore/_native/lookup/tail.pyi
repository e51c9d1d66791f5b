from typing import final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow

def entries_into(
    out: MappedFile,
    window: LogWindow,
    minimum: int,
    wrote: int,
    position: int,
    topic: bytes,
    queue_id: int,
) -> tuple[int, int]: ...
def find_messages(
    window: LogWindow,
    minimum: int,
    wrote: int,
    position: int,
    topic: bytes,
    key: bytes,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    *,
    below: int = ...,
    any_key: bool = False,
) -> tuple[list[Message], int]: ...

@final
class TailKeys:
    def __new__(cls, most: int = ...) -> TailKeys: ...
    @property
    def count(self) -> int: ...
    @property
    def walked(self) -> int: ...
    def find_messages(
        self,
        control: Control,
        window: LogWindow,
        minimum: int,
        wrote: int,
        position: int,
        topic: bytes,
        key: bytes,
        max_count: int,
        begin_ms: int,
        end_ms: int,
        *,
        below: int = ...,
        any_key: bool = False,
    ) -> tuple[list[Message], int]: ...
