"""Holds: named places in the log from which on somebody still needs it, in config/holds.json.

Cleaning keeps the segment of each hold's physical offset and all behind it. A hold may say how old a record can get before the
hold means nothing for it any more, so that one whose owner is gone for good does not fill the disk. The file is written whole or
not at all, under the lock "clean" that cleaning takes too: a kill leaves the holds of before or of after.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from cystore._native.checksum import crc32c
from cystore._native.control import Control
from cystore._native.exact import any_text, whole
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.system import files
from cystore.system.reentry import undisturbed

FILE_NAME = "holds.json"
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


@dataclass(frozen=True, slots=True)
class Hold:
    """What begins at `physical_offset` is needed; of records older than `max_age_ms` (None: of any age) it is not any more."""

    physical_offset: int
    max_age_ms: int | None = None

    def keeps(self, end: int, newest_ms: int | None, now_ms: int) -> bool:
        """Whether a segment that ends at `end` has to stay, whose newest record is of `newest_ms` (None: unknown)."""
        if end <= self.physical_offset:
            return False
        return self.max_age_ms is None or newest_ms is None or newest_ms > now_ms - self.max_age_ms


class Holds:
    """The holds of one store."""

    def __init__(self, root: Path, control: Control) -> None:
        self._root, self._control = root, control
        self._path = root / "config" / FILE_NAME

    def set(self, name: str, physical_offset: int, max_age_ms: int | None = None) -> Hold:
        """Sets or moves a hold, and returns it: it begins at the log's minimum where that is beyond `physical_offset`."""
        name = any_text("name of the hold", name, StoreConfigError)
        if not _NAME.fullmatch(name):
            raise StoreConfigError(
                f"a hold's name must be 1 to 64 letters, digits, '.', '_' or '-', not {name!r}"
            )
        physical_offset = whole("physical_offset of the hold", physical_offset, error=StoreConfigError)
        if max_age_ms is not None:
            max_age_ms = whole("max_age_ms of the hold", max_age_ms, error=StoreConfigError)
        return undisturbed(partial(self._set, name, physical_offset, max_age_ms))

    def _set(self, name: str, physical_offset: int, max_age_ms: int | None) -> Hold:
        with self._control.held("clean"):
            holds = dict(self.read())
            hold = Hold(max(physical_offset, self._control.min_physical_offset), max_age_ms)
            if holds.get(name) != hold:
                self._write({**holds, name: hold})
            return hold

    def release(self, name: str) -> bool:
        """Ends a hold; False when there was none of that name."""
        return undisturbed(partial(self._release, name))

    def _release(self, name: str) -> bool:
        with self._control.held("clean"):
            holds = dict(self.read())
            if holds.pop(name, None) is None:
                return False
            self._write(holds)
            return True

    def read(self) -> Mapping[str, Hold]:
        """All holds. Raises StoreFormatError when neither the file nor its last good copy can be read."""
        problem: Exception | None = None
        for candidate in (self._path, self._path.with_name(self._path.name + ".bak")):
            if not candidate.exists():
                continue
            try:
                return parse_holds(files.read_all(candidate))
            except ValueError as error:
                problem = problem or error
        if problem is not None:
            raise StoreFormatError(
                f"the holds cannot be read, nothing is cleaned: {problem}; remove the file if nobody needs old records",
                path=self._path,
            ) from problem
        return {}

    def _write(self, holds: Mapping[str, Hold]) -> None:
        files.write_whole(self._root, self._path, render_holds(holds))


def parse_holds(data: bytes) -> dict[str, Hold]:
    """The holds in the bytes of holds.json. Raises ValueError."""
    try:
        content = json.loads(data)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(content, dict) or not isinstance(content.get("holds"), dict):
        raise ValueError("there is no map of holds")
    holds = {}
    for name, entry in content["holds"].items():
        offset, age = (
            (entry.get("physicalOffset"), entry.get("maxAgeMs")) if isinstance(entry, dict) else (None, None)
        )
        if type(offset) is not int or offset < 0 or not (age is None or (type(age) is int and age >= 0)):
            raise ValueError(f"{name!r} is {entry!r}, no hold")
        holds[name] = Hold(offset, age)
    if content.get("checksum") != _checksum(holds):
        raise ValueError("the checksum is that of other holds")
    return holds


def render_holds(holds: Mapping[str, Hold]) -> bytes:
    """The bytes of holds.json."""
    listed = {
        name: {"physicalOffset": hold.physical_offset, "maxAgeMs": hold.max_age_ms}
        for name, hold in sorted(holds.items())
    }
    return json.dumps({"holds": listed, "checksum": _checksum(holds)}, indent=1).encode() + b"\n"


def _checksum(holds: Mapping[str, Hold]) -> int:
    rows = [(name, hold.physical_offset, hold.max_age_ms) for name, hold in sorted(holds.items())]
    return crc32c(repr(rows).encode())
