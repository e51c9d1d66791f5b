from collections.abc import Sequence
from typing import Final, final

from _typeshed import ReadableBuffer

from cystore._native.memory.mapping import MappedFile

LIMIT: Final[int]
FULL: Final[int]
BLANK: Final[int]
INVALID: Final[int]
KEY_BYTES: Final[int]

@final
class EntryReader:
    def __new__(
        cls, *, delay_levels_ms: Sequence[int] = (), with_keys: bool = True, rows: int = 200_000
    ) -> EntryReader: ...
    def run(self, data: ReadableBuffer, begin: int, position: int, limit: int) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def reason(self) -> int: ...
    def take(
        self, with_timestamps: bool = False
    ) -> tuple[list[tuple[bytes, int, int, int, int, bytes, bytes]], bytes]: ...

def put_keys(file: MappedFile, slots: int, capacity: int, keys: ReadableBuffer, first: int) -> int: ...
