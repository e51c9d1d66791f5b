"""Damaged ranges of the log with good records behind them.

Recovery, or the dispatcher of an open store, finds them and enters them in the manifest. From then on scans, dispatch
and reads step over them. The bytes in the log do not change. quarantine/holes.json is a list for people, and for
versions from before the manifest: recovery writes it beside the copies that it names. It is read only if the manifest
is missing.
"""

from __future__ import annotations

import dataclasses
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from pathlib import Path

from cystore.engine.files.quarantine import QUARANTINE as QUARANTINE
from cystore.errors import StoreFormatError
from cystore.system import checked_json, files
from cystore.value_class import value_class

FILE_NAME = "holes.json"
NO_OFFSET = OFFSET_MAX = (1 << 63) - 1


@value_class(frozen=True)
class DamagedRange:
    """[begin, end) of the log: `reason` describes the damage at `begin`, `copy` names the file in quarantine/."""

    begin: int
    end: int
    reason: str = ""
    copy: str = ""
    found_ms: int = 0

    def __lt__(self, other: DamagedRange) -> bool:
        return dataclasses.astuple(self) < dataclasses.astuple(other)


class DamagedRanges:
    """The damaged ranges of a log, ascending and apart from each other; immutable."""

    def __init__(self, damaged: Iterable[DamagedRange] = ()) -> None:
        self._listed = tuple(sorted(damaged))
        for before, after in zip(self._listed, self._listed[1:], strict=False):
            if after.begin < before.end:
                raise ValueError(f"damaged ranges overlap at {after.begin}")
        if any(not 0 <= each.begin < each.end for each in self._listed):
            raise ValueError("a damaged range ends before it begins")
        self._begins = [each.begin for each in self._listed]
        self._ranges = [(each.begin, each.end) for each in self._listed]

    def __iter__(self) -> Iterator[DamagedRange]:
        return iter(self._listed)

    def __len__(self) -> int:
        return len(self._listed)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, DamagedRanges) and self._listed == other._listed

    def __hash__(self) -> int:
        return hash(self._listed)

    def __repr__(self) -> str:
        return f"DamagedRanges({list(self._listed)})"

    def covering(self, offset: int) -> tuple[int, int] | None:
        """(begin, end) of the range that has physical offset `offset`."""
        place = bisect_right(self._begins, offset) - 1
        if place < 0 or offset >= self._listed[place].end:
            return None
        return self._listed[place].begin, self._listed[place].end

    def next_begin(self, offset: int) -> int:
        """The begin of the first range behind physical offset `offset`; without one the highest possible offset."""
        place = bisect_right(self._begins, offset)
        return self._begins[place] if place < len(self._begins) else NO_OFFSET

    def ranges(self) -> list[tuple[int, int]]:
        """(begin, end) of each range, ascending."""
        return list(self._ranges)

    def within(self, begin: int, end: int) -> DamagedRanges:
        """Those that touch [begin, end): a log that lost its start or its end has none there."""
        return DamagedRanges(each for each in self._listed if each.end > begin and each.begin < end)

    def merged(self, more: Iterable[DamagedRange]) -> DamagedRanges:
        """Adds `more`: ranges that overlap or touch become one range with the first one's reason and copy."""
        out: list[DamagedRange] = []
        for each in sorted([*self._listed, *more]):
            if out and each.begin <= out[-1].end:
                if each.end > out[-1].end:
                    out[-1] = dataclasses.replace(out[-1], end=each.end)
            else:
                out.append(each)
        return DamagedRanges(out)


def read_range_list(root: Path) -> tuple[DamagedRanges, bool]:
    """quarantine/holes.json or its last good copy, and whether that is the newest list: the copy may lack the ranges
    that were found last. Empty without both. StoreFormatError if both are damaged."""
    path = root / QUARANTINE / FILE_NAME
    problem: Exception | None = None
    for candidate in (path, path.with_name(path.name + ".bak")):
        if not candidate.exists():
            continue
        try:
            return parse_damaged_ranges(
                files.read_all(candidate, most=files.SMALL_FILE_BYTES_MAX)
            ), problem is None
        except ValueError as error:
            problem = problem or error
    if problem is not None:
        raise StoreFormatError(
            f"the list of damaged ranges cannot be read: {problem}", path=path
        ) from problem
    return DamagedRanges(), True


def parse_damaged_ranges(data: bytes) -> DamagedRanges:
    """The damaged ranges in the bytes of holes.json. Raises ValueError."""
    content = checked_json.parse_unchecked(data)
    if not isinstance(content.get("holes"), list):
        raise ValueError("there is no list of damaged ranges")
    damaged = DamagedRanges(damaged_range_of(entry) for entry in content["holes"])
    if content.get("checksum", _checksum(damaged)) != _checksum(damaged):
        raise ValueError("the checksum does not match the content")
    return damaged


def damaged_range_of(entry: object) -> DamagedRange:
    """The range that an entry in JSON describes. Raises ValueError."""
    if not isinstance(entry, dict):
        raise ValueError(f"{entry!r} is not a damaged range")
    kinds = {"begin": int, "end": int, "reason": str, "copy": str, "found_ms": int}
    for name, kind in kinds.items():
        if not isinstance(entry.get(name), kind) or isinstance(entry.get(name), bool):
            raise ValueError(f"{name} is {entry.get(name)!r}")
    if entry["end"] > OFFSET_MAX:
        raise ValueError(f"end is {entry['end']!r}")
    return DamagedRange(**{name: entry[name] for name in kinds})


def damaged_range_fields(each: DamagedRange) -> dict[str, object]:
    """The entry in JSON that describes a range."""
    return dataclasses.asdict(each)


def render_damaged_ranges(damaged: DamagedRanges) -> bytes:
    """The bytes of holes.json."""
    listed = [damaged_range_fields(each) for each in damaged]
    return checked_json.render_with({"holes": listed}, _checksum(damaged))


def _checksum(damaged: DamagedRanges) -> int:
    """A flipped bit can turn one valid number into another, and a range that is too long hides good records."""
    return checked_json.checksum_of([dataclasses.astuple(each) for each in damaged])


def write_damaged_ranges(root: Path, damaged: DamagedRanges) -> None:
    """Writes quarantine/holes.json whole or not at all."""
    files.write_whole(root, root / QUARANTINE / FILE_NAME, render_damaged_ranges(damaged))
