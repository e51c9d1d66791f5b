from typing import final

from cystore._native.memory.mapping import MappedFile
from cystore._native.record.record import STATUS_NAMES as STATUS_NAMES

IN_LOG: int
BYTES_OF_SLOT: int
PIECE_BYTES: int
OK: int
BLANK: int
SHORT: int

@final
class LatestTable:
    def __new__(
        cls, topics: list[bytes], seeds: bytes, deleted: list[tuple[bytes, int]] = []
    ) -> LatestTable: ...
    @property
    def keys(self) -> int: ...
    @property
    def looked_at(self) -> int: ...
    def leave_out_from(self, offset: int) -> None: ...
    @property
    def last_record(self) -> tuple[int, int]: ...
    def take(self, file: MappedFile, at: int, end: int, *, in_log: bool) -> tuple[int, int]: ...
    def sort(self) -> int: ...
    def place(self, number: int) -> int: ...
    @property
    def next(self) -> int: ...
    def copy(
        self,
        file: MappedFile,
        end: int,
        out: bytearray,
        filled: int,
        position: int,
        now_ms: int,
        *,
        in_log: bool,
    ) -> tuple[int, int]: ...
    @property
    def records(self) -> int: ...
    def slots(self) -> bytearray: ...
    @property
    def keys_found(self) -> int: ...

def next_record(file: MappedFile, at: int, end: int, *, in_log: bool) -> int: ...
def find_newest(
    file: MappedFile, slots_at: int, slot_count: int, seeds: bytes, topic: bytes, key: bytes
) -> int: ...
