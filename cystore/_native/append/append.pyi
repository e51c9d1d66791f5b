from typing import Final

from cystore._native.memory.control import Control
from cystore._native.memory.mapping import MappedFile

LATENCY_BOUNDS_MS: Final[tuple[int, ...]]

def end_segment(control: Control, file: MappedFile) -> bool: ...
