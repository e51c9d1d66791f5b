"""Compares the bitmaps of extended units with the registered filters: a matching message must have its group's bits."""

from __future__ import annotations

from collections.abc import Iterable

from cystore._native.filters.bitmap import GroupBits
from cystore._native.filters.program import FilterProgram
from cystore.engine.manifest.group_filters import UNBORN, GroupFilter
from cystore.errors import FilterError
from cystore.filters.sql import SqlFilter


class FilterMarks:
    """The filters that are born, for bitmaps of `bits` bits. A filter that this process cannot compile is left out."""

    def __init__(self, rows: Iterable[GroupFilter], bits: int) -> None:
        self._by_topic: dict[str, list[tuple[GroupFilter, GroupBits, FilterProgram]]] = {}
        for row in rows:
            try:
                program = SqlFilter(row.expression).program
            except (FilterError, ImportError):
                continue
            if row.born > UNBORN:
                marks = GroupBits(row.group.encode(), row.topic.encode(), bits)
                self._by_topic.setdefault(row.topic, []).append((row, marks, program))

    def concern(self, topic: str) -> bool:
        """Whether a topic has filters."""
        return topic in self._by_topic

    def problem(self, topic: str, physical_offset: int, properties: bytes, bitmap: bytes) -> str:
        """Says which group's bits are missing from the unit of a record; empty if none are."""
        for row, marks, program in self._by_topic.get(topic, ()):
            if row.born <= physical_offset and not marks.is_in(bitmap) and program.matches(properties):
                return f"points to an extended unit that hides the message from {row.group}"
        return ""
