from typing import final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.system.descriptor import Descriptor

@final
class GroupCommit:
    enabled: bool
    slice_ms: int
    gather_max_us: int
    gather_pause_us: int
    sync_us: float
    @property
    def base(self) -> int: ...
    def __new__(
        cls,
        control: Control,
        checkpoint: MappedFile,
        home: tuple[str, int, int] | None,
        *,
        behind_max: int,
        wanted: int,
        reported: int,
        gather_max_us: int = 1000,
        gather_pause_us: int = 100,
    ) -> GroupCommit: ...
    def name_segment(self, base: int, folder: Descriptor | None, folder_fd: int, name: str) -> None: ...
    def gather(self) -> None: ...
    def release(self) -> None: ...
