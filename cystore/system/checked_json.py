"""Small JSON files: the only module that reads and writes a store's JSON.

Most files hold a map whose entry `checksum` is the CRC-32C of all other entries. A flipped bit can turn one valid
number into another, which JSON alone does not show. RocketMQ's files have keys without quotes, because fastjson writes
integer keys so; `parse_bare_keys` reads those as well.
"""

from __future__ import annotations

import json
import re
from typing import Any

from cystore._native.record.checksum import crc32c

Separators = tuple[str, str]
# How the other entries are written for the checksum. Files of earlier releases use both.
SPACED: Separators = (", ", ": ")
COMPACT: Separators = (",", ":")
# A string (stays as it is), or a key without quotes after a brace or a comma.
_BARE_KEY = re.compile(r'"(?:[^"\\]|\\.)*"|(?<=[{,])(\s*)(-?\w+)(?=\s*:)')


def checksum_of(content: Any, separators: Separators = SPACED) -> int:
    """The CRC-32C of a value, with the keys of maps in order."""
    return crc32c(json.dumps(content, sort_keys=True, separators=separators).encode())


def render(content: dict[str, Any], separators: Separators = SPACED) -> bytes:
    """The bytes of a file."""
    return render_with(content, checksum_of(content, separators))


def render_with(content: dict[str, Any], checksum: int) -> bytes:
    """The bytes of a file whose checksum the caller has computed."""
    return json.dumps({**content, "checksum": checksum}, indent=1).encode() + b"\n"


def render_compact(content: dict[str, Any]) -> bytes:
    """The bytes of content whose checksum is stored somewhere else."""
    return json.dumps(content, separators=COMPACT).encode() + b"\n"


def text_of(value: Any) -> str:
    """A value as JSON text, for a file that the caller lays out as RocketMQ does."""
    return json.dumps(value)


def parse(data: bytes, separators: Separators = SPACED) -> dict[str, Any]:
    """The map in the bytes of a file, without its checksum. Raises ValueError."""
    content = parse_unchecked(data)
    if content.pop("checksum", None) != checksum_of(content, separators):
        raise ValueError("the checksum does not match the content")
    return content


def parse_unchecked(data: bytes) -> dict[str, Any]:
    """The map in the bytes of a file, with its checksum; the caller compares it. Raises ValueError."""
    return _map_in(data)


def parse_bare_keys(text: str) -> dict[str, Any]:
    """The map in the text of RocketMQ's file or ours. Keys may lack quotes; numbers must be whole. Raises
    ValueError."""
    quoted = _BARE_KEY.sub(lambda m: m[0] if m[2] is None else f'{m[1]}"{m[2]}"', text)
    return _map_in(quoted, parse_float=_refuse, parse_constant=_refuse)


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a whole number")


def _map_in(data: bytes | str, **hooks: Any) -> dict[str, Any]:
    try:
        content = json.loads(data, **hooks)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it does not contain a map")
    return content
