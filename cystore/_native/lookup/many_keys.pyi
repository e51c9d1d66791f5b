from typing import Any

from cystore._native.lookup.key_reader import QueryResult
from cystore._native.memory.control import Control
from cystore._native.record.window import LogWindow

def find_many(
    window: LogWindow,
    control: Control,
    files: list[Any],
    topic: bytes,
    keys: list[Any],
    max_count: int,
) -> tuple[dict[str, QueryResult | None], int]: ...
