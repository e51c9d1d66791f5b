from collections.abc import Callable
from typing import Any

from cystore._native.record.message import PutResult

SCHEDULE_TOPIC: str

class FastAppender:
    @property
    def policy(self) -> Any: ...
    @property
    def last_result(self) -> PutResult | None: ...

def put_function(
    appender: FastAppender, owner: object, store_put: Callable[..., PutResult]
) -> Callable[..., PutResult]: ...
