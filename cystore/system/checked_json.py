"""Small JSON files with a checksum: a map whose entry `checksum` is the CRC-32C of all others.

A flipped bit can turn one valid number into another, which JSON alone does not show.
"""

from __future__ import annotations

import json
from typing import Any

from cystore._native.record.checksum import crc32c

Separators = tuple[str, str]
# Both are in files of earlier releases: how the other entries are written for their checksum.
SPACED: Separators = (", ", ": ")
COMPACT: Separators = (",", ":")


def checksum_of(content: Any, separators: Separators = SPACED) -> int:
    """The CRC-32C of a value, with the keys of maps in order."""
    return crc32c(json.dumps(content, sort_keys=True, separators=separators).encode())


def render(content: dict[str, Any], separators: Separators = SPACED) -> bytes:
    """The bytes of a file."""
    return json.dumps({**content, "checksum": checksum_of(content, separators)}, indent=1).encode() + b"\n"


def parse(data: bytes, separators: Separators = SPACED) -> dict[str, Any]:
    """The map in the bytes of a file, without its checksum. Raises ValueError."""
    content = parse_unchecked(data)
    if content.pop("checksum", None) != checksum_of(content, separators):
        raise ValueError("the checksum does not match the content")
    return content


def parse_unchecked(data: bytes) -> dict[str, Any]:
    """The map in the bytes of a file, with its checksum, which the caller compares. Raises ValueError."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict):
        raise ValueError("it does not contain a map")
    return content
