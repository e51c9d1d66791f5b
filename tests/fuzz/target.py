"""Fuzz targets, and their common parts: bytes with nothing behind them, and edits of valid ones."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

CORPUS = Path(__file__).resolve().parent / "corpus"


@dataclass(frozen=True)
class Target:
    """`run` takes any bytes and raises what must not happen; what the code under test may raise it catches itself.

    `seeds` makes the inputs of the corpus; `repair` gives an input the checksums that lead deeper; `per_second` is
    about how many inputs an uninstrumented build runs.
    """

    name: str
    run: Callable[[bytes], None]
    seeds: Callable[[], Sequence[bytes]]
    repair: Callable[[bytes], bytes] | None = None
    per_second: int = 20_000
    python: bool = False  # the code under test is Python, so atheris sees its branches

    def corpus(self) -> list[bytes]:
        """The inputs in the repository."""
        return [path.read_bytes() for path in sorted((CORPUS / self.name).iterdir())]


class Wrong(AssertionError):
    """The code under test gave a wrong answer."""


def same(what: str, found: object, expected: object) -> None:
    """Raises Wrong unless both are equal."""
    if found != expected:
        raise Wrong(f"{what}: {found!r}, expected {expected!r}")


def exact(data: bytes) -> memoryview:
    """The bytes in memory that ends with them, so that the address sanitizer sees a read behind them."""
    return memoryview((ctypes.c_ubyte * len(data)).from_buffer_copy(data)).cast("B")


def overlay(data: bytes, parts: Sequence[bytearray]) -> None:
    """Writes over valid parts what the input says: part, place (3 bytes), how many bytes, those bytes; again and
    again."""
    at = 0
    while at + 5 < len(data):
        part = parts[data[at] % len(parts)]
        count = data[at + 4] % 24 + 1
        piece = data[at + 5 : at + 5 + count]
        if part:
            place = int.from_bytes(data[at + 1 : at + 4], "big") % len(part)
            piece = piece[: len(part) - place]
            part[place : place + len(piece)] = piece
        at += 5 + count


def edit(part: int, place: int, piece: bytes) -> bytes:
    """One step of `overlay`."""
    return bytes([part]) + place.to_bytes(3, "big") + bytes([len(piece) - 1]) + piece
