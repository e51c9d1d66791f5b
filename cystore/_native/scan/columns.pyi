from collections.abc import Sequence
from typing import Final, final

from _typeshed import ReadableBuffer

LIMIT: Final[int]
FULL: Final[int]
BLANK: Final[int]
INVALID: Final[int]
COLUMN_BITS: Final[dict[str, int]]

@final
class ColumnBuffer:
    def __len__(self) -> int: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...

@final
class ColumnReader:
    def __new__(
        cls,
        wanted: int,
        rows_max: int,
        bytes_max: int,
        *,
        check_checksum: bool = True,
        in_queue: bool = False,
        physical_begin: int = ...,
        physical_end: int = ...,
        offsets: tuple[int, int] | None = None,
        times_ms: tuple[int, int] | None = None,
        queue_ids: Sequence[int] = (),
        tags: Sequence[bytes] = (),
        keys: Sequence[bytes] = (),
        rules: Sequence[tuple[bytes, int, int, int, int, int]] = (),
    ) -> ColumnReader: ...
    def run(
        self, data: ReadableBuffer, begin: int, position: int, limit: int, file_end: int, stop: int = ...
    ) -> int: ...
    def take(self) -> tuple[int, dict[str, ColumnBuffer | tuple[ColumnBuffer, ColumnBuffer]]]: ...
    @property
    def rows(self) -> int: ...
    @property
    def position(self) -> int: ...
    @property
    def reason(self) -> int: ...
    @property
    def looked_at(self) -> int: ...
