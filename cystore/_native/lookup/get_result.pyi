from typing import Any, final

from cystore._native.record.message import Message
from cystore.results import GetStatus

@final
class GetResult:
    status: GetStatus
    messages: list[Message]
    next_offset: int
    min_offset: int
    max_offset: int
    raw: bytes | None
    record_offsets: Any
    behind: bool
    suggest_pulling_from_slave: bool
    def __init__(
        self,
        status: GetStatus,
        messages: list[Message] | None = None,
        next_offset: int = 0,
        min_offset: int = 0,
        max_offset: int = 0,
        raw: bytes | None = None,
        record_offsets: Any = None,
        behind: bool = False,
        suggest_pulling_from_slave: bool = False,
    ) -> None: ...
