from typing import Final, final

from _typeshed import ReadableBuffer

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile

STATUS_NAMES: Final[tuple[str, ...]]
DONE: Final[int]
NEED_SPACE: Final[int]
NEED_QUEUES: Final[int]
REFUSED: Final[int]
OVERWRITTEN: Final[int]
UNREADABLE: Final[int]
WRITTEN_BYTES: Final[int]
MARKER: Final[int]
TIMER: Final[int]

@final
class CopiedRecords:
    def __new__(cls, control: Control) -> CopiedRecords: ...
    @property
    def position(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def blank(self) -> int: ...
    @property
    def short(self) -> int: ...
    @property
    def needs(self) -> int: ...
    def forget(self) -> None: ...
    def check(self, data: ReadableBuffer, begin: int, end: int, position: int, file_end: int) -> int: ...
    def append(self, file: MappedFile, fd: int = -1) -> int: ...
    def wake(self) -> None: ...
