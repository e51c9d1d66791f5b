from typing import final

from cystore._native.record.message import Message

STACK_MAX: int
PROPERTY_NAMES_MAX: int
STEP_KINDS: dict[str, int]

@final
class FilterProgram:
    # Each step: (kind, first, number, text or texts).
    def __new__(
        cls,
        names: list[bytes],
        steps: list[tuple[int, int, float, bytes | list[bytes] | None]],
        contained: tuple[bytes, ...] = ...,
    ) -> FilterProgram: ...
    def matches(self, properties: bytes) -> bool: ...
    def matches_message(self, message: Message) -> bool: ...
