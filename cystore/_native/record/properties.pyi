from collections.abc import Iterable, Mapping

from _typeshed import ReadableBuffer

from cystore._native.record.message import RESERVED_PROPERTIES as RESERVED_PROPERTIES
from cystore._native.record.message import Message

def find_property(properties: ReadableBuffer, name: bytes) -> bytes | None: ...
def changed_properties(
    stored: bytes | None, new: Mapping[str, str], without: Iterable[str] = ()
) -> bytes: ...
def message_for_topic(message: Message, topic: str, queue_id: int, notes: bytes, host: bytes) -> Message: ...
