"""The fuzzer that runs everywhere: seeded mutations of a corpus, which grows by what takes new branches in the
kernels of the `fuzz` build. In any other build nothing guides it."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from dataclasses import dataclass
from pathlib import Path

from tests.fuzz.target import Target

LONGEST = 4096
NUMBERS = [
    (value & ((1 << bits) - 1)).to_bytes(bits // 8, order)
    for bits in (8, 16, 32, 64)
    for value in (0, 1, -1, -2, 20, 91, 127, 1 << (bits - 1), (1 << (bits - 1)) - 1)
    for order in ("big", "little")
]
WORDS = [
    *(bytes.fromhex("daa320a7"), bytes.fromhex("43595331"), bytes.fromhex("cbd43194")),
    *(
        b"KEYS\x01",
        b"TAGS\x01",
        b"UNIQ_KEY\x01",
        b"\x02",
        b"\x01",
        b'"offsetTable":{',
        b"{",
        b"}",
        b"[",
        b"\\u",
    ),
]


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """A few small changes, or the beginning of one input and the end of another."""
    out = bytearray(data)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 6))):
        at, kind = rng.randrange(len(out) + 1), rng.randrange(9)
        if kind == 0 and out:
            out[at % len(out)] ^= 1 << rng.randrange(8)
        elif kind == 1 and out:
            out[at % len(out)] = rng.randrange(256)
        elif kind == 2:
            number = rng.choice(NUMBERS)
            out[at : at + len(number)] = number
        elif kind == 3:
            out[at:at] = rng.choice(WORDS)
        elif kind == 4:
            out[at : at + rng.randrange(1, 30)] = b""
        elif kind == 5:
            out[at:at] = rng.randbytes(rng.randrange(1, 12))
        elif kind == 6:
            out[at:at] = out[at : at + rng.randrange(1, 60)]
        elif kind == 7 and out:
            place = at % len(out)
            width = rng.choice((1, 2, 4, 8))
            number = int.from_bytes(out[place : place + width], "big") + rng.choice((-1, 1, -20, 20))
            piece = (number % (1 << 8 * width)).to_bytes(width, "big")
            out[place : place + width] = piece
        else:
            out[at:] = other[rng.randrange(len(other) + 1) :]
    return bytes(out[:LONGEST])


class Coverage:
    """The branches that inputs took, in a process of the `fuzz` build."""

    def __init__(self) -> None:
        library = ctypes.CDLL(None)
        self._begin = getattr(library, "coverage_begin", None)
        self._is_new, self._edges = (
            getattr(library, name, None) for name in ("coverage_is_new", "coverage_edges")
        )

    @property
    def there(self) -> bool:
        return self._begin is not None

    def begin(self) -> None:
        if self._begin is not None:
            self._begin()

    def is_new(self) -> bool:
        return self._is_new is not None and bool(self._is_new())

    def edges(self) -> int:
        return self._edges() if self._edges is not None else 0


@dataclass
class Outcome:
    """The result of a run. `failed` is the failing input, with its error."""

    inputs: int = 0
    seconds: float = 0.0
    kept: int = 0
    edges: int = 0
    failed: tuple[bytes, BaseException] | None = None


class Notepad:
    """The input that is running, in a file that outlives a process that it kills."""

    def __init__(self, path: Path | None) -> None:
        self._map: mmap.mmap | None = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
            os.ftruncate(fd, 4 + LONGEST)
            self._map = mmap.mmap(fd, 4 + LONGEST)
            os.close(fd)

    def note(self, data: bytes) -> None:
        if self._map is not None:
            self._map[: 4 + len(data)] = len(data).to_bytes(4, "big") + data

    @staticmethod
    def read(path: Path) -> bytes:
        found = path.read_bytes()
        return found[4 : 4 + int.from_bytes(found[:4], "big")]


def run(
    target: Target,
    *,
    seed: str,
    seconds: float | None = None,
    inputs: int | None = None,
    notepad: Path | None = None,
) -> Outcome:
    """The corpus, then mutations of it until the time is over or there were so many inputs. Stops at the first
    failure."""
    rng, coverage, pad = random.Random(f"{target.name} {seed}"), Coverage(), Notepad(notepad)
    corpus, outcome, begin = target.corpus(), Outcome(), time.monotonic()
    fixed = len(corpus)
    while (inputs is None or outcome.inputs < max(inputs, fixed)) and (
        seconds is None or outcome.inputs < fixed or time.monotonic() - begin < seconds
    ):
        if outcome.inputs < fixed:
            data = corpus[outcome.inputs]
        else:
            data = mutated(rng.choice(corpus), rng.choice(corpus), rng)
            if target.repair is not None and rng.random() < 0.6:
                data = target.repair(data)[:LONGEST]
        pad.note(data)
        coverage.begin()
        try:
            target.run(data)
        except Exception as error:  # noqa: BLE001 - handed on in the outcome
            outcome.failed = data, error
            break
        if coverage.is_new() and outcome.inputs >= fixed:
            corpus.append(data)
            outcome.kept += 1
        outcome.inputs += 1
    outcome.seconds, outcome.edges = time.monotonic() - begin, coverage.edges()
    return outcome
