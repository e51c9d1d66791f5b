from typing import final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow

ENTRIES_MAX: int

@final
class TailTable:
    def __new__(cls, most: int = ...) -> TailTable: ...
    @property
    def entries(self) -> int: ...
    def entries_into(
        self,
        out: MappedFile,
        control: Control,
        window: LogWindow,
        minimum: int,
        wrote: int,
        slot: int,
    ) -> int | None: ...
