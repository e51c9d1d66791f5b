from collections.abc import Sequence

from _typeshed import ReadableBuffer, WriteableBuffer

from cystore._native.control import Control
from cystore._native.mapping import MappedFile
from cystore._native.message import Message
from cystore._native.window import LogWindow

def find_messages(
    window: LogWindow,
    control: Control,
    files: Sequence[tuple[MappedFile, int, int]],
    topic: bytes,
    key: bytes,
    max_count: int,
    begin_ms: int,
    end_ms: int,
    *,
    any_key: bool = False,
) -> list[Message]: ...
def trim_file(file: MappedFile, slots: int, capacity: int, physical_offset: int) -> int: ...
def key_hash(topic: ReadableBuffer, key: ReadableBuffer) -> int: ...
def put(
    data: WriteableBuffer, slots: int, capacity: int, hash: int, physical_offset: int, store_timestamp: int
) -> bool: ...
def trim(data: WriteableBuffer, slots: int, capacity: int, physical_offset: int) -> int: ...
def lookup(
    data: ReadableBuffer, slots: int, capacity: int, hash: int, begin_ms: int, end_ms: int, room: int = 16
) -> list[int]: ...
