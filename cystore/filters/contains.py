"""Contains: texts within messages."""

from __future__ import annotations

from collections.abc import Sequence

from cystore._native.filters.program import STEP_KINDS, FilterProgram
from cystore._native.record.argument_checks import any_text
from cystore._native.record.message import Message
from cystore.errors import FilterError

TEXTS_MAX, TEXT_BYTES_MAX = 16, 65_536


class Contains:
    """Messages that contain a text, or one of several, anywhere in the body or in the properties, byte by byte:
    ``Contains("order 17")``, ``Contains(("order 17", b"order 18"))``. A str stands for its UTF-8 bytes. Keys and tags
    are among the properties. Give it to `get` or `scan` as the `filter`, or call it with a message.

    A body that RocketMQ compressed is not searched: such a message always matches. Raises FilterError for a text that
    is empty or too long, and for more than 16 texts.
    """

    __slots__ = ("program", "texts")

    def __init__(self, texts: str | bytes | Sequence[str | bytes]) -> None:
        several = texts if isinstance(texts, (tuple, list)) else (texts,)
        if not 0 < len(several) <= TEXTS_MAX:
            raise FilterError(f"filter: Contains takes 1 to {TEXTS_MAX} texts, not {len(several)}")
        self.texts = tuple(map(_encoded, several))
        self.program = FilterProgram([], [(STEP_KINDS["true"], 0, 0, None)], self.texts)

    def __call__(self, message: Message) -> bool:
        """Whether a stored message matches."""
        return self.program.matches_message(message)

    def __repr__(self) -> str:
        return f"Contains({self.texts[0]!r})" if len(self.texts) == 1 else f"Contains({self.texts!r})"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Contains) and other.texts == self.texts

    def __hash__(self) -> int:
        return hash(self.texts)

    def __reduce__(self) -> tuple[type[Contains], tuple[tuple[bytes, ...]]]:
        return Contains, (self.texts,)


def _encoded(text: object) -> bytes:
    if isinstance(text, str):
        try:
            found = any_text("filter", text, FilterError).encode()
        except UnicodeEncodeError:
            raise FilterError("filter: Contains takes no text that UTF-8 cannot encode") from None
    elif isinstance(text, bytes):
        found = memoryview(text).tobytes()
    else:
        raise FilterError(f"filter: Contains takes str or bytes, not {type(text).__name__}")
    if not 0 < len(found) <= TEXT_BYTES_MAX:
        raise FilterError(
            f"filter: Contains takes texts of 1 to {TEXT_BYTES_MAX} bytes, not of {len(found)} bytes"
        )
    return found
