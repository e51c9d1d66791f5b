from typing import final

from cystore._native.append.copied import CopiedRecords
from cystore._native.append.group_commit import GroupCommit
from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile

@final
class Inflow:
    data: bytearray
    begin: int
    end: int
    skip: int
    left: int
    epoch: int
    confirms: bool
    confirmed: int
    masters_end: int
    reported: int
    commits: GroupCommit | None
    prepared: int
    @property
    def file_bytes(self) -> int: ...
    @property
    def record_bytes_max(self) -> int: ...
    def __new__(
        cls, control: Control, records: CopiedRecords, file_bytes: int, record_bytes_max: int, data: bytearray
    ) -> Inflow: ...
    def append_to(self, file: MappedFile | None, ready: int, fd: int) -> None: ...
    def follow(self, socket: int, wait_ms: int, reports: bool) -> tuple[int, bool]: ...
