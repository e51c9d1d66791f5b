from typing import Final

from _typeshed import ReadableBuffer

STATUS_NAMES: Final[tuple[str, ...]]

def hash_code(text: ReadableBuffer, seed: int = 0) -> int: ...
def parse(data: ReadableBuffer) -> tuple[str, dict[str, int | bytes]]: ...
