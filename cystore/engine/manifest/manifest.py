"""The manifest: the one durable place for facts about a store that cannot be recomputed from its other files.

It holds the store's identity, the settings that shape its files, its retention policy, damaged ranges of the log,
given-up queue offsets, the copies in quarantine/, and sections of parts above the engine (holds, archive mark, progress
of the scrub).

Any attached process may update it: read, change and write under the lock "manifest" of the control block, which is a
leaf in the lock order. The control block carries the newest sequence number, so each process notices updates of the
others. A process that is alone in the store (recovery) needs no control block. Fields of a newer minor version are kept
unchanged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import field, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from cystore import clock
from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.engine.manifest import manifest_file
from cystore.engine.manifest.damaged_ranges import (
    DamagedRange,
    DamagedRanges,
    damaged_range_fields,
    damaged_range_of,
    read_range_list,
    write_damaged_ranges,
)
from cystore.engine.manifest.given_up_offsets import GivenUp, GivenUpRange, range_of
from cystore.engine.manifest.group_filters import doubted
from cystore.engine.manifest.manifest_file import FILE_NAME, Slot
from cystore.engine.manifest.removed_queues import Removed, RemovedQueue, removed_of
from cystore.engine.manifest.topic_names import is_topic
from cystore.errors import StoreError, StoreFormatError, StoreNotWritableError
from cystore.system.checked_json import parse_unchecked, render_compact
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed
from cystore.value_class import value_class

log = logging.getLogger("cystore")

MAJOR, MINOR = 2, 0
PLAIN_MAJOR = 1  # of a store in which no message has ever waited for a time of its own
TIMER_MAJOR = 2  # an earlier version would deliver those messages early, so it is refused
SHOWN_MAX = 200  # characters of a name
READS = 16  # a reader that meets two updates at once looks again


@value_class(frozen=True)
class Facts:
    """The content of a manifest; immutable.

    `settings`: values of StoreConfig that are the store's. `sections`: JSON of parts above the engine, and of newer
    versions, by name. `rebuilt`: the reason why the earlier facts are lost, empty otherwise. `paused`: the reason why
    cleaning is paused, empty otherwise. `log_begin`: the log's minimum, -1 before any process has entered it. `major`:
    the format that a process must know.
    """

    sequence: int = 0
    store_id: str = ""
    settings: Mapping[str, Any] = field(default_factory=dict)
    damaged_ranges: DamagedRanges = field(default_factory=DamagedRanges)
    given_up: GivenUp = field(default_factory=GivenUp)
    removed: Removed = field(default_factory=Removed)
    sections: Mapping[str, Any] = field(default_factory=dict)
    rebuilt: str = ""
    paused: str = ""
    log_begin: int = -1
    major: int = PLAIN_MAJOR

    def with_section(self, name: str, value: Any) -> Facts:
        """These facts with another value of a section; None removes it."""
        kept = {key: old for key, old in self.sections.items() if key != name}
        return replace(self, sections=kept if value is None else {**kept, name: value})


# ------------------------------------------------------------------------------------------------ as JSON


def render(facts: Facts) -> bytes:
    """The payload that contains `facts`."""
    content = {
        **facts.sections,
        "format": {"minor": MINOR, **facts.sections.get("format", {}), "major": facts.major},
        "store_id": facts.store_id,
        "settings": dict(facts.settings),
        "damaged": [damaged_range_fields(each) for each in facts.damaged_ranges],
        "given_up": [list(one) for one in facts.given_up],
        "removed": [list(one) for one in facts.removed],
        "rebuilt": facts.rebuilt,
        "paused": facts.paused,
        "log_begin": facts.log_begin,
    }
    return render_compact(content)


def parse(payload: bytes, sequence: int = 0) -> Facts:
    """The facts of a payload. Raises ValueError; StoreFormatError for a newer major version."""
    content = parse_unchecked(payload)
    version = content.pop("format", None)
    major, minor = (version.get("major"), version.get("minor")) if isinstance(version, dict) else (None, None)
    if type(major) is not int or type(minor) is not int:
        raise ValueError(f"the format is {version!r}")
    if major > MAJOR:
        raise StoreFormatError(
            f"written by a newer version of cystore: format {major}, this one knows {MAJOR}; use the newer version"
        )
    taken = {name: content.pop(name, default) for name, default in _DEFAULTS.items()}
    for name, default in _DEFAULTS.items():
        if type(taken[name]) is not type(default):
            raise ValueError(f"{name} is {taken[name]!r}")
    sections = content if minor <= MINOR else {**content, "format": version}
    return Facts(
        sequence,
        taken["store_id"],
        {name: value for name, value in taken["settings"].items() if type(value) in (int, bool, str)},
        DamagedRanges(damaged_range_of(entry) for entry in taken["damaged"]),
        GivenUp(row for row in map(range_of, taken["given_up"]) if is_topic(row.topic)),
        Removed(row for row in map(removed_of, taken["removed"]) if is_topic(row.topic)),
        sections,
        taken["rebuilt"],
        taken["paused"],
        max(taken["log_begin"], -1),
        max(major, PLAIN_MAJOR),
    )


_DEFAULTS: dict[str, Any] = {
    "store_id": "",
    "settings": {},
    "damaged": [],
    "given_up": [],
    "removed": [],
    "rebuilt": "",
    "paused": "",
    "log_begin": -1,
}


# ------------------------------------------------------------------------------------------------ reading


class Found(NamedTuple):
    """The content of the file: `facts` and the slot that holds them. Both are None if there is no file or neither slot
    can be read; `problem` then has the reason."""

    facts: Facts | None = None
    slot: Slot | None = None
    problem: str = ""


def look(root: Path) -> Found:
    """The newest readable facts. Raises StoreFormatError for facts of a newer major version."""
    path = root / FILE_NAME
    if path.exists() and not path.is_symlink() and not path.is_file():
        return Found(problem="its place has a folder, or something else that is not a file")
    data = manifest_file.slot_bytes(path)
    if data is None:
        return Found()
    slots = manifest_file.parse_slots(data)
    problem = "neither of its slots has the right checksum"
    for slot in slots:
        try:
            return Found(parse(slot.payload, slot.sequence), slot)
        except ValueError as error:
            if isinstance(error, StoreFormatError):
                raise StoreFormatError(str(error), path=path) from error
            problem = str(error)
    return Found(problem=problem)


def read_facts(root: Path) -> tuple[Facts, bool]:
    """The facts of a store that no other process changes, and whether its list of damage is the newest. Writes nothing.

    Without a manifest the list in quarantine/ counts. Raises StoreFormatError if only that list exists, and is
    damaged.
    """
    found = look(root)
    if found.facts is not None:
        return found.facts, True
    damaged, newest = read_range_list(root)
    return Facts(damaged_ranges=damaged), newest and not found.problem


def read_damaged_ranges(root: Path) -> DamagedRanges:
    """The damaged ranges of the log that are known. Raises StoreFormatError when the only list of them cannot be
    read."""
    return read_facts(root)[0].damaged_ranges


def read_damaged_ranges_or_copy(root: Path) -> tuple[DamagedRanges, bool]:
    """`read_damaged_ranges`, and whether that is the newest list."""
    facts, newest = read_facts(root)
    return facts.damaged_ranges, newest


def skipped_entries(root: Path) -> list[str]:
    """The entries of the manifest that have no effect, because no topic can have their name: what each one is."""
    slot = look(root).slot
    return [] if slot is None else _skipped(parse_unchecked(slot.payload))


def _skipped(content: dict[str, Any]) -> list[str]:
    compaction, filters = content.get("compaction"), content.get("filters")
    deleted = compaction.get("deleted") if isinstance(compaction, dict) else None
    rows = filters.get("rows") if isinstance(filters, dict) else None
    named = [
        *(("a deletion of topic", topic) for topic in (deleted if isinstance(deleted, dict) else ())),
        *(("a removed queue of topic", row[0]) for row in content.get("removed", ())),
        *(("given-up offsets of topic", row[0]) for row in content.get("given_up", ())),
        *(("a filter for topic", row[1]) for row in (rows if isinstance(rows, list) else ()) if row[1:]),
    ]
    return [
        f"{what} {ascii(topic)[:SHOWN_MAX]}"
        for what, topic in named
        if isinstance(topic, str) and not is_topic(topic)
    ]


def read_given_up(root: Path) -> GivenUp:
    """The given-up queue offsets; none if no manifest can be read."""
    return (look(root).facts or Facts()).given_up


def read_removed(root: Path) -> Removed:
    """The removed queues; none if no manifest can be read."""
    return (look(root).facts or Facts()).removed


def record_given_up(root: Path, given_up: GivenUp) -> None:
    """For recovery, which is alone in the store: replaces the list of given-up offsets."""
    manifest = Manifest.load(root, None, lambda: read_facts(root)[0])
    manifest.update(lambda facts: replace(facts, given_up=given_up))


def record_damaged_ranges(root: Path, damaged: DamagedRanges) -> None:
    """For recovery, which is alone in the store: writes `damaged` to the manifest and to the list for people."""
    Manifest.load(root, None, lambda: Facts(damaged_ranges=damaged)).set_damaged_ranges(damaged)
    write_damaged_ranges(root, damaged)


def _added(newest: Facts, known: Facts) -> Facts:
    """Adds the earlier facts to `newest`, which were made anew. The earlier settings win: files are shaped by them."""
    return replace(
        newest,
        store_id=known.store_id or newest.store_id,
        settings={**newest.settings, **known.settings},
        damaged_ranges=newest.damaged_ranges.merged(known.damaged_ranges),
        given_up=newest.given_up.merged(known.given_up),
        removed=newest.removed.merged(known.removed),
        sections={**doubted(known.sections), **newest.sections},
        paused=known.paused,
        log_begin=max(known.log_begin, newest.log_begin),
        major=max(known.major, newest.major),
    )


# ------------------------------------------------------------------------------------------------ one store


class Manifest:
    """The manifest of one store, as this process sees it.

    `control` is that of the attachment; None while the process is alone in the store. Without `durable` updates stay in
    this process, for private recovery, which writes nothing.
    """

    def __init__(
        self, root: Path, facts: Facts, control: Control | None = None, *, durable: bool = True
    ) -> None:
        self._root, self._control, self._durable = root, control, durable
        self._facts = facts
        self._missed = -1  # the sequence number at which the file could not be read
        self._lock = os_threads.RLock()  # a signal handler of the same thread reads, too

    @classmethod
    def load(cls, root: Path, control: Control | None, carried_over: Callable[[], Facts] = Facts) -> Manifest:
        """The store's manifest. If there is none, or none that can be read, a process that is alone in the store makes
        it from `carried_over`. Beside others it makes it from the store's other files, and each of the others adds the
        facts that it knows (`snapshot`)."""
        found = look(root)
        manifest = cls(root, found.facts or Facts(), control)
        if found.facts is None and control is None:
            manifest._make(carried_over(), found.problem)
        elif found.facts is None:
            manifest._make_beside_others(found.problem)
        return manifest

    @classmethod
    def private(cls, root: Path, damaged: DamagedRanges, given_up: GivenUp) -> Manifest:
        """The store's manifest for a reader that is alone and writes nothing, with the result of its recovery."""
        facts = look(root).facts or Facts()
        return cls(root, replace(facts, damaged_ranges=damaged, given_up=given_up), durable=False)

    def _make(self, facts: Facts, problem: str) -> None:
        path = self._root / FILE_NAME
        if problem:
            log.error(
                "%s cannot be read (%s): making it anew from the store's other files; changed settings of the "
                "store are "
                "lost: see `cystore config`. The holds are unknown, so cleaning is paused until `cystore config PATH "
                "--resume-cleaning`, or the archive job with --restore, ends the pause",
                path,
                problem,
            )
        facts = replace(
            facts,
            store_id=facts.store_id or manifest_file.random_name(),
            rebuilt=problem,
            paused=f"the manifest could not be read ({problem})" if problem else facts.paused,
            sequence=1,
        )
        manifest_file.create(self._root, facts.sequence, render(facts))
        self._facts = facts

    def _make_beside_others(self, problem: str) -> None:
        control = self._control
        assert control is not None
        log.error(
            "%s was damaged or removed under live processes (%s): making it anew; the processes add what they "
            "know of the store",
            self._root / FILE_NAME,
            problem or "there is none",
        )
        try:
            damaged = read_range_list(self._root)[0]
        except StoreFormatError:
            damaged = DamagedRanges()
        self._facts = Facts(
            sequence=control.manifest_seq,
            store_id=manifest_file.random_name(),
            damaged_ranges=damaged,
            rebuilt=f"{problem or 'it was removed'}, under live processes, {clock.now_ms()}",
            paused=f"the manifest could not be read ({problem or 'it was removed'})",
        )
        if not control.read_only:
            self.update(lambda facts: facts)

    @property
    def root(self) -> Path:
        """The directory of the store."""
        return self._root

    def share(self, control: Control) -> None:
        """From now on other processes may attach: `control` is the new control block."""
        if self._durable:
            control.manifest_seq = self._facts.sequence
            self._control = control

    def snapshot(self) -> Facts:
        """The present facts, with entries of other processes. Costs a look at shared memory."""
        control = self._control
        if control is None or control.manifest_seq == self._facts.sequence:
            return self._facts
        for _ in range(READS):
            found = look(self._root)
            if found.facts is not None and found.facts.sequence >= control.manifest_seq:
                return self._taken(found.facts)
        if self._missed != control.manifest_seq:
            self._missed = control.manifest_seq
            log.error(
                "%s was damaged or removed under live processes; the next update writes it again",
                self._root / FILE_NAME,
            )
        return self._facts

    def _taken(self, newest: Facts) -> Facts:
        """Makes `newest` the facts. If another process made them anew, adds the facts that this process knows."""
        known = self._facts
        self._facts = newest
        if newest.rebuilt and newest.rebuilt != known.rebuilt:
            self._facts = _added(newest, known)
            if self._durable and self._control is not None and not self._control.read_only:
                try:
                    self.update(lambda facts: _added(facts, known))
                except StoreError:
                    log.exception("%s: cannot add the facts that this process knows", self._root / FILE_NAME)
        return self._facts

    def update(self, change: Callable[[Facts], Facts]) -> Facts:
        """Applies `change` to the newest facts, makes the result durable, and returns it. Writes nothing if nothing
        changes.

        Raises StoreNotWritableError, StoreIOError, StoreFullError (for facts that outgrow their room on a full disk).
        """
        control = self._control
        if control is not None and control.read_only:
            raise StoreNotWritableError("the store is open for reading only", path=self._root)
        return undisturbed(partial(self._update, control, change))

    def _update(self, control: Control | None, change: Callable[[Facts], Facts]) -> Facts:
        with self._locked(control), self._lock:
            found = look(self._root) if self._durable else Found(self._facts)
            before = found.facts or self._facts  # restores the facts of this process if the file was removed
            published = 0 if control is None else control.manifest_seq
            lost = found.facts is None or before.sequence < published
            if lost:
                sequence = max(before.sequence, published)  # a number stands for one content only
                before = replace(before, sequence=sequence, sections=doubted(before.sections))
            after = change(before)
            if after != before or lost:
                after = self._write(found.slot, after, before.sequence)
                failpoint("manifest.written")
            if control is not None:
                control.manifest_seq = after.sequence
            self._facts = after
            return after

    @staticmethod
    def _locked(control: Control | None) -> AbstractContextManager[object]:
        return (
            nullcontext() if control is None else control.held("manifest")
        )  # the file is read again: no repair

    def _write(self, slot: Slot | None, facts: Facts, sequence: int) -> Facts:
        if not self._durable:
            return replace(facts, sequence=sequence + 1)
        if slot is None:
            written = manifest_file.create(self._root, sequence + 1, render(facts))
        else:
            newest = slot._replace(sequence=sequence)
            written = manifest_file.replace(self._root, newest, render(facts))
        return replace(facts, sequence=written.sequence)

    # ------------------------------------------------------------------------------------ entries of the engine

    def add_damage(self, begin: int, end: int, reason: str, copy: str = "") -> DamagedRanges:
        """Enters [begin, end) of the log as damaged; returns all damaged ranges. `copy` names the file in
        quarantine/."""
        each = DamagedRange(begin, end, reason, copy, clock.now_ms())
        return self.update(
            lambda facts: replace(facts, damaged_ranges=facts.damaged_ranges.merged([each]))
        ).damaged_ranges

    def give_up(self, topic: str, queue_id: int, begin: int, end: int) -> None:
        """Enters queue offsets [begin, end) as lost for good."""
        self.give_up_many([(topic, queue_id, begin, end)])

    def give_up_many(self, ranges: Iterable[tuple[str, int, int, int]]) -> None:
        """`give_up` for many (topic, queue id, begin, end) with one write."""
        listed = [GivenUpRange(*one) for one in ranges]
        if listed:
            self.update(lambda facts: replace(facts, given_up=facts.given_up.merged(listed)))

    def remove_queues(
        self, rows: Iterable[RemovedQueue], with_them: Callable[[Facts], Facts] = lambda facts: facts
    ) -> None:
        """Enters queues as removed, and what belongs to that, by one write."""
        listed = list(rows)
        self.update(lambda facts: with_them(replace(facts, removed=facts.removed.merged(listed))))

    def forget_removed(self, minimum: int) -> None:
        """Drops removed queues whose records are all below the log's minimum, if there are very many."""
        if self.snapshot().removed.has_too_many(minimum):
            self.update(lambda facts: replace(facts, removed=facts.removed.without_expired(minimum)))

    def set_section(self, name: str, value: Any) -> None:
        """Sets the value of a section; None removes it."""
        self.update(
            lambda facts: facts if facts.sections.get(name) == value else facts.with_section(name, value)
        )

    def set_log_begin(self, minimum: int) -> None:
        """Records the log's begin. Called before the first file of the log is removed."""
        self.update(lambda facts: replace(facts, log_begin=minimum))

    def begin_timer(self) -> None:
        """Called before the first message waits until a time of its own: from then on earlier versions are refused."""
        if self.snapshot().major < TIMER_MAJOR:
            self.update(lambda facts: replace(facts, major=max(facts.major, TIMER_MAJOR)))

    def pause_cleaning(self, why: str) -> None:
        """Pauses cleaning until an operator ends the pause."""
        self.update(lambda facts: replace(facts, paused=facts.paused or why))

    def resume_cleaning(self) -> bool:
        """Ends the pause, when an operator, or the archive, has set the holds. False when cleaning was not paused."""
        paused = bool(self.snapshot().paused)
        if paused:
            self.update(lambda facts: replace(facts, paused=""))
        return paused

    @property
    def path(self) -> Path:
        """The file."""
        return self._root / FILE_NAME

    @property
    def durable(self) -> bool:
        """Whether updates reach the disk."""
        return self._durable

    def set_damaged_ranges(self, damaged: DamagedRanges) -> None:
        """Replaces the list of damaged ranges."""
        self.update(
            lambda facts: facts if facts.damaged_ranges == damaged else replace(facts, damaged_ranges=damaged)
        )
