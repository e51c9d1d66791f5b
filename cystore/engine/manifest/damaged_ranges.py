"""Holes: damaged ranges of the log with good records behind them.

Recovery, or the dispatcher of an open store, finds them and enters them in the manifest. From then on scans, dispatch
and reads step over them. The bytes in the log do not change. quarantine/holes.json is a list for people, and for
versions from before the manifest: recovery writes it beside the copies that it names. It is read only if the manifest
is missing.
"""

from __future__ import annotations

import dataclasses
import json
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from cystore.engine.files.quarantine import QUARANTINE as QUARANTINE
from cystore.errors import StoreFormatError
from cystore.system import checked_json, files

FILE_NAME = "holes.json"
NO_OFFSET = OFFSET_MAX = (1 << 63) - 1


@dataclass(frozen=True, order=True)
class DamagedRange:
    """[begin, end) of the log: `reason` describes the damage at `begin`, `copy` names the file in quarantine/."""

    begin: int
    end: int
    reason: str = ""
    copy: str = ""
    found_ms: int = 0


class DamagedRanges:
    """The holes of a log, ascending and apart from each other; immutable."""

    def __init__(self, holes: Iterable[DamagedRange] = ()) -> None:
        self._holes = tuple(sorted(holes))
        for before, after in zip(self._holes, self._holes[1:], strict=False):
            if after.begin < before.end:
                raise ValueError(f"holes overlap at {after.begin}")
        if any(not 0 <= hole.begin < hole.end for hole in self._holes):
            raise ValueError("a hole ends before it begins")
        self._begins = [hole.begin for hole in self._holes]
        self._ranges = [(hole.begin, hole.end) for hole in self._holes]

    def __iter__(self) -> Iterator[DamagedRange]:
        return iter(self._holes)

    def __len__(self) -> int:
        return len(self._holes)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DamagedRanges) and self._holes == other._holes

    def __hash__(self) -> int:
        return hash(self._holes)

    def __repr__(self) -> str:
        return f"DamagedRanges({list(self._holes)})"

    def covering(self, offset: int) -> tuple[int, int] | None:
        """(begin, end) of the hole that holds physical offset `offset`."""
        place = bisect_right(self._begins, offset) - 1
        if place < 0 or offset >= self._holes[place].end:
            return None
        return self._holes[place].begin, self._holes[place].end

    def next_begin(self, offset: int) -> int:
        """The begin of the first hole behind physical offset `offset`; the highest possible offset if there is none."""
        place = bisect_right(self._begins, offset)
        return self._begins[place] if place < len(self._begins) else NO_OFFSET

    def ranges(self) -> list[tuple[int, int]]:
        """(begin, end) of each hole, ascending."""
        return list(self._ranges)

    def within(self, begin: int, end: int) -> DamagedRanges:
        """Those that touch [begin, end): a log that lost its start or its end has no holes there."""
        return DamagedRanges(hole for hole in self._holes if hole.end > begin and hole.begin < end)

    def merged(self, more: Iterable[DamagedRange]) -> DamagedRanges:
        """Adds `more`: holes that overlap or touch become one hole with the first one's reason and copy."""
        out: list[DamagedRange] = []
        for hole in sorted([*self._holes, *more]):
            if out and hole.begin <= out[-1].end:
                if hole.end > out[-1].end:
                    out[-1] = dataclasses.replace(out[-1], end=hole.end)
            else:
                out.append(hole)
        return DamagedRanges(out)


def read_hole_list(root: Path) -> tuple[DamagedRanges, bool]:
    """quarantine/holes.json or its last good copy, and whether that is the newest list: the copy may lack the holes
    that were found last. Empty without both. StoreFormatError if both are damaged."""
    path = root / QUARANTINE / FILE_NAME
    problem: Exception | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not candidate.exists():
            continue
        try:
            return parse_holes(files.read_all(candidate, most=files.SMALL_FILE_BYTES_MAX)), problem is None
        except ValueError as error:
            problem = problem or error
    if problem is not None:
        raise StoreFormatError(f"the list of holes cannot be read: {problem}", path=path) from problem
    return DamagedRanges(), True


def parse_holes(data: bytes) -> DamagedRanges:
    """The holes in the bytes of holes.json. Raises ValueError."""
    content = checked_json.parse_unchecked(data)
    if not isinstance(content.get("holes"), list):
        raise ValueError("there is no list of holes")
    holes = DamagedRanges(hole_of(entry) for entry in content["holes"])
    if content.get("checksum", _checksum(holes)) != _checksum(holes):
        raise ValueError("the checksum does not match the content")
    return holes


def hole_of(entry: object) -> DamagedRange:
    """The hole that an entry in JSON describes. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r} is no hole")
    kinds = {"begin": int, "end": int, "reason": str, "copy": str, "found_ms": int}
    for name, kind in kinds.items():
        if not isinstance(entry.get(name), kind) or isinstance(entry.get(name), bool):
            raise ValueError(f"{name} is {entry.get(name)!r}")
    if entry["end"] > OFFSET_MAX:
        raise ValueError(f"end is {entry['end']!r}")
    return DamagedRange(**{name: entry[name] for name in kinds})


def hole_fields(hole: DamagedRange) -> dict[str, object]:
    """The entry in JSON that describes a hole."""
    return dataclasses.asdict(hole)


def render_holes(holes: DamagedRanges) -> bytes:
    """The bytes of holes.json."""
    listed = [hole_fields(hole) for hole in holes]
    return json.dumps({"holes": listed, "checksum": _checksum(holes)}, indent=1).encode() + b"\n"


def _checksum(holes: DamagedRanges) -> int:
    """A flipped bit often makes another number of a number, and a longer hole hides good records."""
    return checked_json.checksum_of([dataclasses.astuple(hole) for hole in holes])


def write_holes(root: Path, holes: DamagedRanges) -> None:
    """Writes quarantine/holes.json whole or not at all."""
    files.write_whole(root, root / QUARANTINE / FILE_NAME, render_holes(holes))
