"""The filters of groups that dispatch knows: they give extended units their bitmaps, and readers rely on those
(ConsumerFilterManager, CommitLogDispatcherCalcBitMap).

A bitmap must never hide a message that matches. So each unit behind a filter's birth has to be written by a process
that knew the filter, whatever is killed and when:

* A registration first enters the filter unborn. From then on every dispatcher that begins a turn finds a newer
  manifest, and reads it. Then the registration takes the dispatch lock once: turns that began before are over. Only now
  the filter is born, at the log's end. A kill in between leaves it unborn.
* A dispatcher that cannot read the newest manifest writes units without bitmaps. So does one of an earlier version.
* A reader looks at the manifest after it learned which entries there are. If the filter is the same, they were written
  for it.
* The first process in a store believes the births only if the last close was clean and ours. Otherwise all filters are
  born anew at the log's end: another program may have written units, or a power cut may have left old ones.
"""

from __future__ import annotations

import logging
from functools import lru_cache
from pathlib import Path

from cystore._native.filters.bitmap import FilterTable, GroupBits
from cystore._native.filters.program import FilterProgram
from cystore._native.memory.control import Control
from cystore._native.system.failpoint import failpoint
from cystore.config import StoreConfig
from cystore.engine.manifest.group_filters import (
    SECTION,
    UNBORN,
    GroupFilter,
    GroupFilters,
    group_filters_of,
    section_of,
)
from cystore.engine.manifest.manifest import Facts, Manifest
from cystore.errors import FilterError, StoreConfigError, StoreError, StoreLockedError, StoreTimeoutError
from cystore.filters.sql import SqlFilter
from cystore.system.store_lock import LOCK_NAME

log = logging.getLogger("cystore")

FILTERS_MAX = 256
LOCK_WAIT_MS = 5_000
NO_TABLE = -1


class KnownFilters:
    """The filters of one store with extended units, as this process sees them."""

    def __init__(self, control: Control, manifest: Manifest, config: StoreConfig) -> None:
        self._control, self._manifest = control, manifest
        self._bits = config.bit_map_length_consume_queue_ext
        self._parsed: tuple[Facts, GroupFilters] = (Facts(), GroupFilters())
        self._table: tuple[tuple[GroupFilter, ...], FilterTable | None] = ((), None)

    def rows(self) -> tuple[GroupFilter, ...]:
        """All filters, by group and topic."""
        return self._known(self._manifest.snapshot()).rows

    def _known(self, facts: Facts) -> GroupFilters:
        parsed = self._parsed
        if parsed[0] is not facts:
            parsed = self._parsed = (facts, group_filters_of(facts.sections))
        return parsed[1]

    # ------------------------------------------------------------------------------------------ for dispatch

    def table(self, manifest_seq: int) -> tuple[int, FilterTable | None]:
        """Under the dispatch lock: `manifest_seq` and the filters of that manifest, or of a newer one. NO_TABLE and
        None if it cannot be read."""
        try:
            facts = self._manifest.snapshot()
            if facts.sequence > self._control.manifest_seq:
                # Its writer was killed before it told the others, who would take their old filter for the present one.
                facts = self._manifest.update(lambda newest: newest)
        except StoreError as error:
            log.info("units are written without bitmaps: %s", error)
            return NO_TABLE, None
        if facts.sequence < manifest_seq:
            return NO_TABLE, None
        rows = self._known(facts).rows
        if rows != self._table[0]:
            self._table = rows, _table_of(rows, self._bits)
        return manifest_seq, self._table[1]

    # ------------------------------------------------------------------------------------------- for readers

    def bits_of(self, group: str, topic: str, expression: str) -> tuple[GroupBits, int] | None:
        """A group's bits, and the birth of its filter; None if the group has not this filter, or if it is unborn.
        For entries that are known already."""
        facts = self._manifest.snapshot()
        if facts.sequence < self._control.manifest_seq:
            return None
        row = self._known(facts).find(group, topic)
        if row is None or row.born <= UNBORN or row.expression != expression:
            return None
        return _bits(group.encode(), topic.encode(), self._bits), row.born

    # ---------------------------------------------------------------------------------------------- changing

    def add(self, group: str, topic: str, expression: str) -> GroupFilter:
        """Registers a filter; one with another expression is replaced, and born anew. Raises StoreConfigError for too
        many, StoreTimeoutError."""
        entered = self._enter(group, topic, expression)
        if entered.born > UNBORN:
            return entered
        failpoint("filters.entered")
        try:
            with self._control.held("dispatch", timeout_ms=LOCK_WAIT_MS):
                end = self._control.wrote
        except StoreLockedError as error:
            raise StoreTimeoutError(f"the filter is registered, but not in use yet: {error}") from error
        failpoint("filters.dispatched")

        def give_birth(facts: Facts) -> Facts:
            known = group_filters_of(facts.sections)
            if known.find(group, topic) != entered:  # another call replaced it meanwhile
                return facts
            return _with_filters(facts, known.with_row(entered._replace(born=end)))

        facts = self._manifest.update(give_birth)
        failpoint("filters.born")
        return self._known(facts).find(group, topic) or entered

    def _enter(self, group: str, topic: str, expression: str) -> GroupFilter:
        """Enters the filter unborn, unless it is born already."""

        def change(facts: Facts) -> Facts:
            known = group_filters_of(facts.sections)
            old = known.find(group, topic)
            if old is not None and old.expression == expression and old.born > UNBORN:
                return facts
            if old is None and len(known.rows) >= FILTERS_MAX:
                raise StoreConfigError(
                    f"the store has {FILTERS_MAX} filters, which is the most; remove one",
                    path=self._manifest.path,
                )
            unborn = GroupFilter(group, topic, expression, UNBORN - 1 - facts.sequence)
            return _with_filters(facts, known.with_row(unborn))

        found = group_filters_of(self._manifest.update(change).sections).find(group, topic)
        assert found is not None
        return found

    def remove(self, group: str, topic: str) -> bool:
        """Removes a filter; False if there was none."""
        if not any(row[:2] == (group, topic) for row in self.rows()):
            return False
        self._manifest.update(
            lambda facts: _with_filters(facts, group_filters_of(facts.sections).without(group, topic))
        )
        return True


@lru_cache(256)
def _bits(group: bytes, topic: bytes, bits: int) -> GroupBits:
    return GroupBits(group, topic, bits)


def _with_filters(facts: Facts, content: GroupFilters) -> Facts:
    return facts.with_section(SECTION, section_of(content))


def _table_of(rows: tuple[GroupFilter, ...], bits: int) -> FilterTable | None:
    if not rows:
        return None
    return FilterTable([(row.topic.encode(), row.group.encode(), _program(row)) for row in rows], bits)


def _program(row: GroupFilter) -> FilterProgram | None:
    """The compiled expression; None if this process cannot compile it: then each message may match."""
    try:
        return SqlFilter(row.expression).program
    except (FilterError, ImportError) as error:
        log.warning("the filter of %s for %s marks every message: %s", row.group, row.topic, error)
        return None


# -------------------------------------------------------------------------- the first process, and the last one


def _lock_ns(root: Path) -> int:
    """The time at which a program wrote to the file `lock`: RocketMQ does so at each start, cystore only once."""
    try:
        return (root / LOCK_NAME).lstat().st_mtime_ns
    except OSError:
        return 0


def begin_filters(manifest: Manifest, root: Path, wrote: int, *, abnormal: bool) -> None:
    """For the first process, before it dispatches: all filters are born at the log's end `wrote`, except those of
    which all units are known to be right."""
    known = group_filters_of(manifest.snapshot().sections)
    if not known.rows:
        return
    believed = not abnormal and known.closed == (wrote, _lock_ns(root))
    rows = [row if believed and row.born > UNBORN else row._replace(born=wrote) for row in known.rows]
    manifest.update(lambda facts: _with_filters(facts, GroupFilters(tuple(rows))))


def end_filters(manifest: Manifest, root: Path, control: Control) -> None:
    """For the last process, when everything is dispatched and durable."""
    known = group_filters_of(manifest.snapshot().sections)
    if not known.rows or control.dispatched < control.wrote:
        return
    closed = control.wrote, _lock_ns(root)
    try:
        manifest.update(
            lambda facts: _with_filters(facts, GroupFilters(group_filters_of(facts.sections).rows, closed))
        )
    except StoreError as error:
        log.warning("%s: the next open believes no bitmap of earlier messages: %s", root, error)
