from collections.abc import Callable

from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow

BOUNDARIES: dict[str, int]

def search_time(
    window: LogWindow,
    log_minimum: int,
    wrote: int,
    file_of: Callable[[int, int], MappedFile | None],
    slot: int,
    topic: bytes,
    queue_id: int,
    minimum: int,
    maximum: int,
    timestamp_ms: int,
    boundary: int = ...,
) -> int | None: ...
