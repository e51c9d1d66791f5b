from typing import Any

from cystore._native.lookup.key_reader import QueryResult
from cystore._native.memory.control import Control
from cystore._native.record.window import LogWindow

def distinct_ascii(keys: list[Any]) -> dict[str, Any] | None: ...
def find_many(
    window: LogWindow,
    control: Control,
    files: list[Any],
    topic: bytes,
    found: dict[str, QueryResult | None],
    max_count: int,
) -> int: ...
