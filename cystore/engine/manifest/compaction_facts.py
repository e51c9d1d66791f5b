"""Compaction's facts in the manifest: which compacted file must exist, deleted topics, damage that turns met.

`file` is the file of the newest finished turn. Cleaning relies only on a file that is entered here: the file alone has
the values that left the log, so a file that is lost later is reported.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from cystore.engine.manifest.manifest import Facts
from cystore.engine.manifest.topic_names import is_topic
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore.engine.files.compacted_file import Header

SECTION = "compaction"  # in the manifest
FINDINGS_KEPT = 20
TEXT_MAX = 300  # characters of a finding


class FileFacts(NamedTuple):
    """A compacted file that must exist. It has the newest records below `covered`, an offset of the log. Values below
    `uncertain_below` may be outdated: damaged records with unknown keys stood between them and that offset. `records`
    and `keys` are the numbers of its records and keys; the records end at `records_end`. The turn read `examined`
    records of its topics, and made the file at `made_ms`."""

    number: int
    covered: int
    uncertain_below: int = 0
    records: int = 0
    keys: int = 0
    size_bytes: int = 0
    records_end: int = 0
    examined: int = 0
    made_ms: int = 0

    def describes(self, header: Header) -> bool:
        """Whether the file of that number has the header that a turn wrote. Earlier versions noted too little to
        tell."""
        return not self.size_bytes or self == facts_of(self.number, header)._replace(covered=self.covered)

    @property
    def dead_ratio(self) -> float:
        """The share of the examined records that the turn left out, because a newer one replaced them."""
        return 1 - self.records / self.examined if self.examined > self.records else 0.0


def facts_of(number: int, header: Header) -> FileFacts:
    """The facts of the file of that number."""
    return FileFacts(
        number, header.covered, header.uncertain_below, header.records, header.keys, header.length,
        header.records_end, header.examined, header.made_ms,
    )  # fmt: skip


class Finding(NamedTuple):
    """Damage that a turn stepped over, and when."""

    what: str
    found_ms: int


@value_class(frozen=True)
class CompactionFacts:
    """The section. `file` is None before the first turn ends. `deleted`: deleted topics, each with the log offset below
    which its records are deleted. `skipped`: deletions of names that no topic can have; earlier versions took them.
    `findings`: the newest ones of `damaged`, all damage that turns met."""

    file: FileFacts | None = None
    deleted: Mapping[str, int] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    damaged: int = 0
    skipped: Mapping[str, int] = field(default_factory=dict)

    def cut_at(self, wrote: int) -> CompactionFacts:
        """The file covers no more than the log that there is."""
        if self.file is None or self.file.covered <= wrote:
            return self
        return dataclasses.replace(self, file=self.file._replace(covered=wrote))

    def with_deleted(self, topic: str, end: int) -> CompactionFacts:
        """Adds a deletion."""
        return dataclasses.replace(
            self, deleted={**self.deleted, topic: max(end, self.deleted.get(topic, 0))}
        )

    def without(self, applied: Mapping[str, int]) -> CompactionFacts:
        """Drops deletions, if they are still the same."""
        deleted, skipped = (
            {topic: end for topic, end in listed.items() if applied.get(topic) != end}
            for listed in (self.deleted, self.skipped)
        )
        return dataclasses.replace(self, deleted=deleted, skipped=skipped)

    def with_findings(self, found: tuple[str, ...], now_ms: int) -> CompactionFacts:
        """Adds the damage of a turn. Damage that is listed already is not counted again."""
        known = {one.what for one in self.findings}
        new = tuple(Finding(what[:TEXT_MAX], now_ms) for what in found if what[:TEXT_MAX] not in known)
        kept = (*self.findings, *new)[-FINDINGS_KEPT:]
        return dataclasses.replace(self, findings=kept, damaged=self.damaged + len(new))


def compaction_of(facts: Facts) -> CompactionFacts:
    """The section's content; entries that cannot be understood are left out."""
    found = facts.sections.get(SECTION)
    if not isinstance(found, dict):
        return CompactionFacts()
    deleted = found.get("deleted")
    ends = (
        {name: end for name, end in deleted.items() if type(end) is int} if isinstance(deleted, dict) else {}
    )
    listed = found.get("findings")
    damaged = found.get("damaged")
    return CompactionFacts(
        _file_of(found.get("file")),
        {name: end for name, end in ends.items() if is_topic(name)},
        tuple(
            Finding(one["what"], one["found_ms"])
            for one in (listed if isinstance(listed, list) else ())
            if isinstance(one, dict) and isinstance(one.get("what"), str) and type(one.get("found_ms")) is int
        ),
        damaged if type(damaged) is int else 0,
        {name: end for name, end in ends.items() if not is_topic(name)},
    )


def _file_of(found: object) -> FileFacts | None:
    if not isinstance(found, dict):
        return None
    numbers = {name: found.get(name, 0) for name in FileFacts._fields}
    if any(type(value) is not int or value < 0 for value in numbers.values()) or "number" not in found:
        return None
    return FileFacts(**numbers)


def with_compaction(facts: Facts, content: CompactionFacts) -> Facts:
    """The manifest's facts with another content of the section."""
    section: dict[str, Any] = {}
    if content.file is not None:
        section["file"] = content.file._asdict()
    if content.deleted or content.skipped:
        section["deleted"] = {**content.deleted, **content.skipped}
    if content.damaged:
        section["damaged"] = content.damaged
        section["findings"] = [one._asdict() for one in content.findings]
    return facts.with_section(SECTION, section or None)
