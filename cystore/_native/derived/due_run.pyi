from collections.abc import Callable
from typing import final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.message import Message
from cystore._native.record.window import LogWindow

@final
class DueRuns:
    def __new__(cls, control: Control, window: LogWindow, now_ms: int) -> DueRuns: ...
    def take(
        self,
        file: MappedFile,
        first: int,
        end: int,
        queue_id: int,
        slot: int,
        until_ms: int,
        room: int,
        bytes_room: int,
    ) -> tuple[list[tuple[int, int, Message | None]], int, int, int | None]: ...
    def take_timed(
        self,
        file_of: Callable[[int], MappedFile | None],
        dues: list[tuple[int, int]],
        queue_id: int,
        slot: int,
        bytes_room: int,
    ) -> tuple[list[tuple[int, int, Message | None]], int]: ...
