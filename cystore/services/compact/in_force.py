"""The compacted file in force, and how far it can be trusted.

A file is sound if it covers everything that was cleaned and was made from the present log. Otherwise a newer record of
any of its keys may have left the log unseen, so its values are not given. The manifest says which file must be there.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from cystore._native.memory.control import Control
from cystore._native.record.message import Message
from cystore.engine.files.compacted_file import (
    CompactedFile,
    Header,
    numbers,
    open_file,
    open_newest,
    path_of,
)
from cystore.engine.log.commit_log import CommitLog
from cystore.engine.manifest.compaction_facts import (
    CompactionFacts,
    FileFacts,
    compaction_of,
    facts_of,
    with_compaction,
)
from cystore.engine.manifest.manifest import Manifest
from cystore.errors import CorruptRecordError, OffsetError, StoreError
from cystore.system.threads import os_threads

log = logging.getLogger("cystore")


class Standing(enum.Enum):
    """What is wrong with the file in force."""

    NONE = "nothing was compacted yet"
    SOUND = "nothing"
    CUT = "the log lost its end since the file was made"
    GAP = "a later part of the log was removed before it was compacted"
    DAMAGED = "its header cannot be read"
    LOST = "the file that the manifest names is missing, or another file has its name"


class Verdict(NamedTuple):
    """The file in force (None: there is none), its standing, and the manifest's facts, which were read before it."""

    file: CompactedFile | None
    standing: Standing
    facts: CompactionFacts

    @property
    def header(self) -> Header | None:
        """The header; None without a file, or with a damaged one."""
        return None if self.file is None else self.file.header

    @property
    def uncertain_below(self) -> int:
        """Values below this log offset may be outdated, as the file says, or the manifest for a damaged file."""
        if self.header is not None:
            return self.header.uncertain_below
        return 0 if self.facts.file is None else self.facts.file.uncertain_below

    @property
    def is_entered(self) -> bool:
        """Whether the manifest knows the file, or a newer one."""
        known = self.facts.file
        return self.file is not None and known is not None and self.file.number <= known.number

    def lacks(self, topics: tuple[str, ...]) -> bool:
        """Whether the file was made before one of the topics was compacted."""
        return self.header is None or not set(topics) <= set(self.header.topics.split(","))


class InForce:
    """Judges the compacted file of one store. Safe for threads."""

    def __init__(self, root: Path, control: Control, commit_log: CommitLog, manifest: Manifest) -> None:
        self._root, self._control, self._log, self._manifest = root, control, commit_log, manifest
        self._known: CompactedFile | None = None
        self._entered: CompactedFile | None = None
        self._lock = os_threads.RLock()

    @property
    def version(self) -> int:
        """A number that changes with every turn."""
        return self._manifest.snapshot().sequence

    def facts(self) -> CompactionFacts:
        """The manifest's facts."""
        return compaction_of(self._manifest.snapshot())

    def enter(self, change: Callable[[CompactionFacts], CompactionFacts]) -> None:
        """Changes the manifest's facts, durably."""
        self._manifest.update(lambda facts: with_compaction(facts, change(compaction_of(facts))))

    def newest(self) -> CompactedFile | None:
        """The file in force; None without one."""
        with self._lock:
            self._known = open_newest(self._root, self._known)
            return self._known

    def forget(self) -> None:
        """Ends the mappings."""
        self._known = self._entered = None

    def verdict(self) -> Verdict:
        """The file and its standing. The facts and the log's minimum are read first: a turn changes them last."""
        facts, minimum = self.facts(), self._control.min_physical_offset
        found = self._trusted(facts.file)
        return Verdict(found, self._standing(found, facts.file, minimum), facts)

    def _trusted(self, known: FileFacts | None) -> CompactedFile | None:
        """The newest file. If it is not the one in the manifest, a killed turn made it, and the log still has the last
        record that the turn read; else it is another store's, and the one in the manifest counts."""
        found = self.newest()
        if found is None or found.header is None or known is None or found.number <= known.number:
            return found
        if self._is_of_this_log(found.header):
            return found
        with self._lock:
            if self._entered is None or self._entered.number != known.number:
                self._entered = open_file(self._root, known.number)
            return found if self._entered is None or self._entered.header is None else self._entered

    def _is_of_this_log(self, header: Header) -> bool:
        """Whether the log has the last record that the turn of a file read."""
        if not self._control.min_physical_offset <= header.last_record < self._control.wrote:
            return False
        try:
            return self._is_last(self._log.read(header.last_record), header)
        except (OffsetError, CorruptRecordError):
            return False

    @staticmethod
    def _is_last(message: Message, header: Header) -> bool:
        return (message.body_crc or 0) & 0xFFFFFFFF == header.last_checksum & 0xFFFFFFFF

    def _standing(self, found: CompactedFile | None, known: FileFacts | None, minimum: int) -> Standing:
        if found is None:
            return Standing.NONE if known is None else Standing.LOST
        if found.header is None:
            if known is not None and known.number != found.number:
                return Standing.LOST
            return Standing.DAMAGED if known is None or known.covered >= minimum else Standing.GAP
        covered = found.header.covered
        if known is not None and known.number == found.number:
            if not known.describes(found.header):
                return Standing.LOST
            covered = min(covered, known.covered)  # the log was shorter at an open since
        if covered >= minimum:
            cut = covered < found.header.covered or self.log_was_truncated(found.header)
            return Standing.CUT if cut else Standing.SOUND
        return Standing.LOST if known is not None and found.number < known.number else Standing.GAP

    def log_was_truncated(self, header: Header) -> bool:
        """Whether the log lost its end since the file was made: a slave that follows another master, for example."""
        control = self._control
        if header.covered > control.wrote:
            return True
        if header.last_record < control.min_physical_offset:
            return False
        try:
            last = self._log.read(header.last_record)
        except OffsetError:
            return header.last_record >= control.min_physical_offset
        except CorruptRecordError:
            return False
        return not self._is_last(last, header)

    def covered(self, topics: tuple[str, ...]) -> int:
        """The offset up to which cleaning may rely on the file. 0 without one, or unless it is sound and has all of
        the topics. A file that a killed turn did not enter in the manifest counts as the one before it."""
        verdict = self.verdict()
        if verdict.standing is not Standing.SOUND or verdict.header is None or verdict.lacks(topics):
            return 0
        if verdict.is_entered:
            return verdict.header.covered
        known = verdict.facts.file
        return 0 if known is None else min(known.covered, verdict.header.covered)

    def uncertain_below(self, verdict: Verdict) -> int:
        """Values that stood in the log below this offset may be outdated."""
        unknown = verdict.standing is Standing.DAMAGED and verdict.facts.file is None
        lost_below = self._control.min_physical_offset if verdict.standing is Standing.LOST or unknown else 0
        return max(verdict.uncertain_below, self._end_of_damage(), lost_below)

    def uncertain_in(self, facts: CompactionFacts, *, missing: bool) -> int:
        """The same by the facts alone, and by whether the file is missing; reads no file."""
        lost_below = self._control.min_physical_offset if missing else 0
        known = 0 if facts.file is None else facts.file.uncertain_below
        return max(known, self._end_of_damage(), lost_below)

    def _end_of_damage(self) -> int:
        listed = self._log.damaged_ranges.ranges()
        return listed[-1][1] if listed else 0

    def missing(self) -> Path | None:
        """The path of the file that must be there, if it is not."""
        known = self.facts().file
        if known is None or max(numbers(self._root), default=-1) >= known.number:
            return None
        return path_of(self._root, known.number)

    def look_at_open(self) -> None:
        """Logs that the file is missing. Enters that the log is shorter than the file covers, before it grows."""
        known = self.facts().file
        try:
            missing = self.missing()
            if not self._control.read_only:
                self._enter_cut(known)
        except StoreError as error:
            log.error("the compacted file cannot be examined: %s", error)
            return
        if missing is not None:
            log.error(
                "%s: the compacted file is missing, and with it the newest records of keys that left the log. Put it "
                "back from a copy, or let `cystore compact PATH` begin anew",
                missing,
            )

    def _enter_cut(self, known: FileFacts | None) -> None:
        """A killed turn may have left a file that the manifest does not know: then that is the one that is cut."""
        number = -1 if known is None else known.number
        if max(numbers(self._root), default=-1) > number:
            found = self.newest()
            if (
                found is not None
                and found.number > number
                and found.header is not None
                and (known is None or self._is_of_this_log(found.header))
            ):
                known = facts_of(found.number, found.header)
        wrote = self._control.wrote  # read last: other processes may append and compact
        if known is not None and wrote < known.covered:
            cut = known
            self.enter(lambda facts: replace(facts, file=cut).cut_at(wrote))
