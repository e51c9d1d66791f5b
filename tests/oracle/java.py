"""Functions of the Java library that RocketMQ uses: string hashes, and text from bytes."""

import re

_SURROGATE = re.compile(rb"\xed[\xa0-\xbf][\x80-\xbf]?")


def text(data: bytes) -> str:
    """`new String(bytes, UTF_8)`: one U+FFFD for each longest piece that could have begun a character, as
    Python has it too; but Java gives one for the two or three bytes of an encoded surrogate, Python one for
    each byte."""
    return _SURROGATE.sub("\ufffd".encode(), data).decode("utf-8", "replace")


def string_hash(value: str) -> int:
    """`String.hashCode`: over UTF-16 code units, a signed 32-bit number."""
    units = value.encode("utf-16-be", "surrogatepass")
    total = 0
    for at in range(0, len(units), 2):
        total = (31 * total + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return total - 2**32 if total >= 2**31 else total


def index_hash(value: str) -> int:
    """`IndexFile.indexKeyHashMethod`: the absolute value, and 0 where Java's `Math.abs` stays negative."""
    absolute = abs(string_hash(value))
    return 0 if absolute == 2**31 else absolute


def truncated_division(dividend: int, divisor: int) -> int:
    """Java's `/` for a positive divisor: towards zero."""
    return dividend // divisor if dividend >= 0 else -(-dividend // divisor)
