from collections.abc import Iterable, Mapping
from typing import Any, final

from cystore._native.append.append_loop import AppendLoop
from cystore._native.append.group_commit import GroupCommit
from cystore._native.memory.control import Control
from cystore._native.record.message import Message, PutResult

SCHEDULE_TOPIC: str

@final
class Appender(AppendLoop):
    def __init__(
        self,
        control: Control,
        policy: Any,
        *,
        record_format: str,
        store_host: str,
        file_bytes: int,
        max_body_bytes: int,
        busy_timeout_ms: int,
        sync_by_default: bool,
        delay_levels: int,
        replicated_by_default: bool = False,
        light_queues_max: int = 0,
        commits: GroupCommit | None = None,
        delay_max_ms: int = ...,
    ) -> None: ...
    @property
    def active_calls(self) -> int: ...
    @property
    def called_by_this_thread(self) -> bool: ...
    def detach(self) -> None: ...
    def release(self) -> None: ...
    def put(
        self,
        topic: str,
        body: Any,
        *,
        queue_id: int = 0,
        keys: str | Iterable[str] | None = (),
        tags: str | None = None,
        properties: Mapping[str, str] | None = None,
        flag: int = 0,
        flush: str | None = None,
        unique_key: str | None = None,
        delay_level: int = 0,
        busy_timeout_ms: int | None = None,
        expires_at_ms: int | None = None,
        deliver_at_ms: int | None = None,
        delay_ms: int | None = None,
    ) -> PutResult: ...
    def put_many(
        self, messages: Iterable[Message], *, flush: str | None = None, batch: bool = False
    ) -> list[PutResult]: ...
    def put_with(
        self, policy: Any, messages: Iterable[Message], *, makes_space: bool = False, together: bool = False
    ) -> list[PutResult]: ...
