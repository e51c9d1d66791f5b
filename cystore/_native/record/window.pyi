from collections.abc import Callable, Sequence
from typing import final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile

@final
class Drops:
    @property
    def count(self) -> int: ...
    def empties(self, windows: list[LogWindow]) -> None: ...
    def dropped(self) -> None: ...

@final
class LogWindow:
    def __new__(
        cls,
        segment_for: Callable[[int], MappedFile],
        holes: Sequence[tuple[int, int]] = (),
        control: Control | None = None,
        segment_bytes: int = 0,
        drops: Drops | None = None,
    ) -> LogWindow: ...
