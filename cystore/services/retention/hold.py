"""Holds: named positions in the log, in the manifest. A user of the store needs the log from there on.

Cleaning keeps the segment of each hold's physical offset and all later ones. A hold may name a maximum age of records,
so that a hold whose owner is gone for good does not fill the disk. Holds change under the lock "clean", which cleaning
takes too: after a kill the old or the new holds are there. Earlier versions had config/holds.json; carry_over.py moves
its content.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import partial
from typing import NamedTuple

from cystore._native.memory.control import Control
from cystore._native.record.argument_checks import any_text, whole
from cystore._native.record.checksum import crc32c
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import StoreConfigError, StoreFormatError
from cystore.system.checked_json import parse_unchecked
from cystore.system.threads.reentry import undisturbed

SECTION = "holds"  # in the manifest
_NAME = re.compile(r"[A-Za-z0-9_.-]{1,64}")


class Hold(NamedTuple):
    """The log from `physical_offset` on is needed, except records older than `max_age_ms` (None: of any age). With 0 it
    keeps nothing, and only notes a place."""

    physical_offset: int
    max_age_ms: int | None = None

    @property
    def keeps_nothing(self) -> bool:
        """Whether it only notes a place."""
        return self.max_age_ms == 0

    def keeps(self, end: int, newest_ms: int | None, now_ms: int) -> bool:
        """Whether a segment has to stay. It ends at `end`, and its newest record is of `newest_ms` (None: unknown)."""
        if end <= self.physical_offset:
            return False
        return self.max_age_ms is None or newest_ms is None or newest_ms > now_ms - self.max_age_ms


class HoldTable:
    """The holds of one store."""

    def __init__(self, control: Control, manifest: Manifest) -> None:
        self._control, self._manifest = control, manifest

    def set(self, name: str, physical_offset: int, max_age_ms: int | None = None) -> Hold:
        """Sets or moves a hold, and returns it. It begins at the log's minimum if that is beyond `physical_offset`."""
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
                self._manifest.set_section(SECTION, hold_fields({**holds, name: hold}))
            return hold

    def release(self, name: str) -> bool:
        """Ends a hold; False if there is none of that name."""
        return undisturbed(partial(self._release, name))

    def _release(self, name: str) -> bool:
        with self._control.held("clean"):
            holds = dict(self.read())
            if holds.pop(name, None) is None:
                return False
            self._manifest.set_section(SECTION, hold_fields(holds) or None)
            return True

    def read(self) -> Mapping[str, Hold]:
        """All holds. Raises StoreFormatError if the manifest's entry is invalid."""
        try:
            return hold_map(self._manifest.snapshot().sections.get(SECTION, {}))
        except ValueError as error:
            raise StoreFormatError(
                f"cannot read the holds: {error}; cleaning is paused", path=self._manifest.path
            ) from error


def hold_map(listed: object) -> dict[str, Hold]:
    """The holds that a map in JSON names. Raises ValueError."""
    if not isinstance(listed, dict):
        raise ValueError("there is no map of holds")
    holds = {}
    for name, entry in listed.items():
        offset, age = (
            (entry.get("physicalOffset"), entry.get("maxAgeMs")) if isinstance(entry, dict) else (None, None)
        )
        if type(offset) is not int or offset < 0 or not (age is None or (type(age) is int and age >= 0)):
            raise ValueError(f"{name!r} is {entry!r}, not a hold")
        holds[name] = Hold(offset, age)
    return holds


def hold_fields(holds: Mapping[str, Hold]) -> dict[str, dict[str, int | None]]:
    """The map in JSON that names holds."""
    return {
        name: {"physicalOffset": hold.physical_offset, "maxAgeMs": hold.max_age_ms}
        for name, hold in sorted(holds.items())
    }


def parse_hold_map(data: bytes) -> dict[str, Hold]:
    """The holds in the bytes of holds.json, as earlier versions wrote it. Raises ValueError."""
    content = parse_unchecked(data)
    holds = hold_map(content.get("holds"))
    rows = [(name, hold.physical_offset, hold.max_age_ms) for name, hold in sorted(holds.items())]
    if content.get("checksum") != crc32c(repr(rows).encode()):
        raise ValueError("the checksum does not match the content")
    return holds
