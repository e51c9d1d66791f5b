"""The filters of consumer groups in the manifest: which expression each group has for a topic, and since when dispatch
marks the messages that match it (ConsumerFilterManager's config/consumerFilter.json).

A filter is born at a log position: each unit of a record at or behind it was written by a process that knew the
filter. Until that position is known the filter is unborn, and no reader relies on it. A number that no other
registration has stands in its place, so that a registration that took long cannot give birth to a later one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from cystore.engine.manifest.given_up_offsets import OFFSET_LIMIT
from cystore.engine.manifest.topic_names import is_topic
from cystore.value_class import value_class

SECTION = "filters"  # in the manifest
UNBORN = -1  # this number and all below


class GroupFilter(NamedTuple):
    """A group's filter for a topic: an SQL92 expression, and the log position `born`; below 0: unborn."""

    group: str
    topic: str
    expression: str
    born: int = UNBORN


@value_class(frozen=True)
class GroupFilters:
    """The section. `closed` describes the last close, if it was clean and all units were written by then; None while
    the store is open."""

    rows: tuple[GroupFilter, ...] = ()
    closed: tuple[int, int] | None = None

    def find(self, group: str, topic: str) -> GroupFilter | None:
        """The filter of a group for a topic."""
        return next((row for row in self.rows if row[:2] == (group, topic)), None)

    def without(self, group: str, topic: str) -> GroupFilters:
        """Drops the filter of a group for a topic."""
        return GroupFilters(tuple(row for row in self.rows if row[:2] != (group, topic)), self.closed)

    def with_row(self, row: GroupFilter) -> GroupFilters:
        """Adds a filter, or replaces that of the same group and topic."""
        kept = self.without(row.group, row.topic)
        return GroupFilters(tuple(sorted([*kept.rows, row])), self.closed)


def group_filters_of(sections: Mapping[str, Any]) -> GroupFilters:
    """The content of the section, among those of a manifest. Entries that cannot be understood are left out."""
    found = sections.get(SECTION)
    if not isinstance(found, dict):
        return GroupFilters()
    rows, closed = found.get("rows"), found.get("closed")
    return GroupFilters(
        tuple(GroupFilter(*row) for row in (rows if isinstance(rows, list) else ()) if _is_row(row)),
        _close_of(closed),
    )


def _is_row(row: object) -> bool:
    if not isinstance(row, list) or [type(part) for part in row] != [str, str, str, int]:
        return False
    return row[0].isascii() and is_topic(row[1]) and abs(row[3]) <= OFFSET_LIMIT


def _close_of(found: object) -> tuple[int, int] | None:
    if not isinstance(found, list) or [type(part) for part in found] != [int, int]:
        return None
    return found[0], found[1]


def section_of(content: GroupFilters) -> dict[str, Any] | None:
    """The section with this content; None: the manifest needs none."""
    if not content.rows:
        return None
    section: dict[str, Any] = {"rows": [list(row) for row in content.rows]}
    if content.closed is not None:
        section["closed"] = list(content.closed)
    return section


def doubted(sections: Mapping[str, Any]) -> dict[str, Any]:
    """Sections that may be older than the lost ones: their filters are unborn, because a unit may have been written
    for another expression."""
    found = sections.get(SECTION)
    if not isinstance(found, dict) or not isinstance(found.get("rows"), list):
        return dict(sections)
    rows = [[*row[:3], UNBORN] for row in found["rows"] if _is_row(row)]
    return {**sections, SECTION: {"rows": rows}}
