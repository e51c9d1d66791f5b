"""Splits a verification into parts, runs them and merges their results.

The caller provides the workers (`Workers`). The end of a store at rest is the end that recovery would find, and
recovery walks a gigabyte or more to find it. So the workers get the end that the checkpoint or the consume queues name.
They examine every record. If they find no damage, `confirmed` can prove that recovery's walk would find the same end.
Otherwise this module makes that walk, and if it finds another end, everything is compared anew. Changes nothing; reads
with pread.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any

from cystore.config import StoreConfig
from cystore.engine.manifest.manifest import read_removed
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import list_readable_index
from cystore.recovery.walk.log_reader import LogReader
from cystore.recovery.walk.log_visitor import Key
from cystore.recovery.walk.queue_reader import list_queues
from cystore.verify.bounds import Bounds, bounds_at_rest, likely_bounds
from cystore.verify.index_comparison import unreadable_index
from cystore.verify.queue_comparison import begins_as_expected
from cystore.verify.ranges import (
    QueueInRange,
    RangeFindings,
    joined_damage,
    split,
    verify_index_file,
    verify_queue,
    verify_range,
    without_false_borders,
)

QUEUES_A_TASK = 64
# (a word for the work, parts, function for each part): the results in the order of the parts.
Workers = Callable[[str, Sequence[Any], Callable[[Any], Any]], list[Any]]
# The size of a part of the log, by the log's size.
RangeBytes = Callable[[int], int]


class VerifyParts:
    """One comparison of a store's files within `bounds`. `counts` has the numbers of examined things, `damage` the
    findings, not merged."""

    def __init__(
        self, root: Path, config: StoreConfig, bounds: Bounds, range_bytes: RangeBytes, workers: Workers
    ) -> None:
        self._root, self._workers, self.bounds = root, workers, bounds
        self._queues, queue_file_bytes = list_queues(root, config.mapped_file_size_consume_queue_bytes, [])
        self._config = dataclasses.replace(config, mapped_file_size_consume_queue_bytes=queue_file_bytes)
        self._removed = read_removed(root)
        self.counts = {"records": 0, "queues": 0, "index_files": 0, "tasks": 0}
        self.seen: list[RangeFindings] = []
        self.damage: list[Damage] = []
        size = range_bytes(bounds.end - bounds.begin)
        if bounds.begin < bounds.end:
            self._run(size)

    def _run(self, range_bytes: int) -> None:
        self.seen = self._ranges(range_bytes)
        self.counts["records"] = sum(part.records for part in self.seen)
        self.damage += [damage for part in self.seen for damage in part.damage]
        self.damage += self._ends()

    def _ranges(self, range_bytes: int) -> list[RangeFindings]:
        parts, seen = split(self.bounds, range_bytes), []
        while parts:
            self.counts["tasks"] += len(parts)
            work = partial(_verify_range, self._root, self._config, self.bounds)
            seen += self._workers("scrub", parts, work)
            seen, parts = without_false_borders(seen)
        return seen

    def _ends(self) -> Iterator[Damage]:
        """The damage of queues and index files beyond the records."""
        work: list[Any] = []
        if self._config.message_index_enable:
            readers, unreadable = list_readable_index(self._root, self._config)
            yield from map(unreadable_index, unreadable)
            work += [] if unreadable else [reader.path.name for reader in readers]
            self.counts["index_files"] = len(work)
        listed = sorted(self.queues_in_ranges().items())
        work += [listed[at : at + QUEUES_A_TASK] for at in range(0, len(listed), QUEUES_A_TASK)]
        self.counts["queues"], self.counts["tasks"] = len(listed), self.counts["tasks"] + len(work)
        broken = [each for part in self.seen for each in part.broken]
        whole = partial(_verify_end, self._root, self._config, self.bounds, broken)
        for found in self._workers("scrub queues and index", work, whole):
            yield from found

    def queues_in_ranges(self) -> dict[Key, list[QueueInRange]]:
        """The findings of the ranges about each queue, in the log's order; none for a queue that has only files."""
        queues: dict[Key, list[QueueInRange]] = {key: [] for key in self._queues}
        for part in self.seen:
            for one in part.queues:
                queues.setdefault(one.key, []).append(one)
        return queues

    def confirmed(self) -> bool:
        """Whether recovery's walk, wherever it begins, would end the log at the end of `bounds`, and would truncate
        nothing; `likely_end` named that end. False if this is unknown.

        Every byte up to the end belongs to a valid record or blank, and none of them is above the watermark. So only a
        queue offset can stop the walk, or make it jump. In the ranges every queue offset is the next one. So only the
        first one of a queue is left, which the walk compares with the entries of earlier records.
        """
        seen = self.seen
        if self.damage or not seen or any(part.jumps for part in seen):
            return False
        ends = [self.bounds.begin, *(part.position for part in seen)]
        if [part.begin for part in seen] != ends[:-1] or ends[-1] != self.bounds.end:
            return False
        for key, spans in self.queues_in_ranges().items():
            if any(before.span.following != after.span.first_offset for before, after in pairwise(spans)):
                return False
            if not spans:
                continue
            first_offset, reader = spans[0].span.first_offset, self._queues.get(key)
            if not begins_as_expected(self.bounds, self._removed, key, reader, first_offset):
                return False
        return True


def verify_at_rest(
    root: Path, config: StoreConfig, range_bytes: RangeBytes, workers: Workers, *, abnormal: bool
) -> tuple[VerifyParts, list[Damage]]:
    """Compares the files of a store that no process has open: (the examined amounts, all damage). `abnormal`: it was
    not closed cleanly.

    The damage is that of `verify`, merged. Raises StoreFormatError and StoreIOError.
    """
    reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        likely = likely_bounds(root, config, reader, abnormal=abnormal)
        work = None if likely is None else VerifyParts(root, config, likely, range_bytes, workers)
        if work is not None and work.confirmed():
            return work, []
        bounds, behind = bounds_at_rest(root, config, reader, abnormal=abnormal)
        if not reader.bases:
            bounds = dataclasses.replace(bounds, end=bounds.begin, dispatched=bounds.begin)
        if work is None or bounds != likely:
            work = VerifyParts(root, config, bounds, range_bytes, workers)
        return work, joined_damage(reader, [*behind, *work.damage])
    finally:
        reader.close()


def _verify_range(root: Path, config: StoreConfig, bounds: Bounds, part: tuple[int, int]) -> RangeFindings:
    return verify_range(root, config, bounds, *part)


def _verify_end(
    root: Path,
    config: StoreConfig,
    bounds: Bounds,
    broken: list[tuple[int, int]],
    part: str | list[tuple[Key, list[QueueInRange]]],
) -> list[Damage]:
    if isinstance(part, str):
        return verify_index_file(root, config, bounds, part)
    return [each for key, seen in part for each in verify_queue(root, config, bounds, broken, key, seen)]
