from cystore._native.record.message import RESERVED_PROPERTIES as RESERVED_PROPERTIES
from cystore._native.record.message import Message

def message_kept(message: Message, topic: str, queue_id: int, notes: bytes, host: bytes) -> Message: ...
