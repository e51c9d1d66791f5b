from collections.abc import Callable
from typing import final

from _typeshed import WriteableBuffer

from cystore._native.filters.bitmap import GroupBits
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile

@final
class TagFilter:
    @property
    def tags(self) -> tuple[str, ...]: ...
    def __new__(cls, expression: str) -> TagFilter: ...

@final
class UnitReader:
    def __new__(
        cls, bits: GroupBits, born: int, file_of: Callable[[int], MappedFile | None]
    ) -> UnitReader: ...
    @property
    def bits(self) -> GroupBits: ...
    @property
    def born(self) -> int: ...

@final
class BatchLimits:
    def __new__(
        cls,
        *,
        memory_bytes: int,
        bytes_in_memory: int,
        count_in_memory: int,
        bytes_in_disk: int,
        count_in_disk: int,
    ) -> BatchLimits: ...

def queue_state(
    control: Control, topic: bytes, queue_id: int
) -> tuple[int, int, int, int, int, int] | None: ...
def put_entry(
    data: WriteableBuffer, position: int, physical_offset: int, size: int, tags_code: int
) -> None: ...
def entry_at(file: MappedFile, position: int) -> tuple[int, int, int] | None: ...
def put_holes(file: MappedFile, position: int, count: int) -> None: ...
def step_over_holes(file: MappedFile, begin: int, end: int, backwards: bool = False) -> int: ...
def queues_to_flush(control: Control) -> list[int]: ...

NO_FILES: int

def queues_unused(control: Control) -> list[int]: ...
def queues_behind(control: Control) -> list[int]: ...
