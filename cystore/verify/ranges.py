"""Verification in independent parts: ranges of the log, index files, queues; together they find the damage that
`verify` finds.

A range begins and ends where `boundary` says, so the border for one place is always the same, and neighbours meet. The
findings of each range (`SeenQueue`) show how a queue's records follow each other across a border. Changes nothing;
reads with pread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cystore._native.read import scan as kernel
from cystore.config import StoreConfig
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.manifest import read_holes
from cystore.recovery.walk.index_reader import IndexReader, list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_pass import Key
from cystore.recovery.walk.log_reader import Finder, LogReader
from cystore.recovery.walk.model import Damage
from cystore.recovery.walk.queue_reader import QueueReader, open_queue
from cystore.verify.verifier import UNKEYED, Bounds, QueueSpan, Verifier


class SeenQueue(NamedTuple):
    """One queue in one range [begin, end): the findings, and the amount of damage behind its last record in the
    range."""

    key: Key
    begin: int
    end: int
    span: QueueSpan
    swallowed_behind: int


@dataclass(frozen=True)
class RangeFindings:
    """The findings of a range. `position`: the end of the walk. If it lies behind `end`, `end` is not a border of
    records, because a body contains bytes like a record: the range must be examined again, together with the next.
    `jumps`: some queue offset in it was not the next one, damaged or not."""

    begin: int
    end: int
    position: int
    records: int
    damage: tuple[Damage, ...]
    broken: tuple[tuple[int, int], ...]
    queues: tuple[SeenQueue, ...]
    jumps: bool


def cut(bounds: Bounds, range_bytes: int) -> list[tuple[int, int]]:
    """The log in parts of about `range_bytes`; none lies on both sides of the dispatched position."""
    border = min(bounds.dispatched, bounds.end)
    ends = [*range(bounds.begin + range_bytes, border, range_bytes), border]
    ends += [*range(border + range_bytes, bounds.end, range_bytes), bounds.end]
    begins = [bounds.begin, *ends]
    return [(first, last) for first, last in zip(begins, ends, strict=False) if first < last]


def boundary(reader: LogReader, holes: DamagedRanges, bounds: Bounds, position: int) -> int:
    """The begin of the first valid record at or behind `position`, in any segment; steps over holes that recovery
    reported."""
    if position <= bounds.begin:
        return bounds.begin
    known = holes.covering(position)
    position = position if known is None else known[1]
    found = Finder(reader, check_checksum=True).find(position, bounds.end) if position < bounds.end else None
    return bounds.end if found is None else found[0]


def verify_range(root: Path, config: StoreConfig, bounds: Bounds, first: int, last: int) -> RangeFindings:
    """Compares the records that begin between the borders at or behind `first` and `last` with queues and index.

    `bounds` are those of the whole comparison. Raises StoreIOError for unreadable bytes.
    """
    reader, holes = LogReader(root, config.mapped_file_size_commit_log_bytes), read_holes(root)
    try:
        begin, end = (boundary(reader, holes, bounds, at) for at in (first, last))
        part = replace(bounds, begin=begin, end=end)
        return _RangeVerifier(root, config, reader, part, None).seen(follow=last <= bounds.dispatched)
    finally:
        reader.close()


class _RangeVerifier(Verifier):
    _jumps = False

    def _list_queues(self) -> Mapping[Key, QueueReader]:
        return {}

    def _queue(self, key: Key) -> QueueReader | None:
        return open_queue(self._root, *key, self._config.mapped_file_size_consume_queue_bytes)

    def seen(self, *, follow: bool) -> RangeFindings:
        """`follow`: the records are dispatched, so queues and index must know them."""
        begin, end = self._bounds.begin, self._bounds.end
        scanner = kernel.LogScanner(compare_tags=True, follow_queues=follow)
        if follow and self._config.message_index_enable:
            readers, strange = list_readable_index(self._root, self._config)
            if not strange:
                self._stream = IndexStream([reader for reader in readers if reader.sound])
                scanner.compare_keys(self._stream.near(begin), self._stream.limit, self._stream.files)
        damage = list(self._walk(scanner, begin, end)) if begin < end else []
        damage += self._wrong.values()
        if self._unkeyed is not None:
            damage.append(self._unkeyed)
        queues = tuple(
            SeenQueue(key, begin, end, span, scanner.swallowed_since(self._slots[key]))
            for key, span in self._spans(scanner).items()
        )
        position = max(scanner.position, end) if begin < end else end
        return RangeFindings(
            begin,
            end,
            position,
            scanner.record_count,
            tuple(damage),
            tuple(self._broken),
            queues,
            self._jumps,
        )

    def _out_of_sequence(self, scanner: kernel.LogScanner) -> Iterator[Damage]:
        self._jumps = True
        yield from super()._out_of_sequence(scanner)


def without_false_borders(seen: Iterable[RangeFindings]) -> tuple[list[RangeFindings], list[tuple[int, int]]]:
    """The final ranges, in order, and the ranges to examine anew: one that overran its end, and the next one that this
    cut in two."""
    ordered, kept, again = sorted(seen, key=lambda part: (part.begin, part.end)), [], []
    while ordered:
        part = ordered.pop(0)
        if part.position > part.end and ordered:
            end = ordered.pop(0).end
            while ordered and ordered[0].begin < part.position:
                end = ordered.pop(0).end
            again.append((part.begin, end))
        else:
            kept.append(part)
    return kept, again


def verify_index_file(root: Path, config: StoreConfig, bounds: Bounds, name: str) -> list[Damage]:
    """The damage that one index file shows by itself; for the last file also entries of missing records."""
    readers, _ = list_readable_index(root, config)
    return [
        damage
        for reader in readers
        if reader.path.name == name
        for damage in _Ends(root, config, bounds, ()).index_file(reader, readers)
    ]


def verify_queue(
    root: Path,
    config: StoreConfig,
    bounds: Bounds,
    broken: Sequence[tuple[int, int]],
    key: Key,
    seen: Sequence[SeenQueue],
) -> list[Damage]:
    """The damage of a queue that no range can see: gaps between records of different ranges, and entries without
    records.

    `broken` are all damaged ranges of the log, `seen` are the ranges' findings about the queue, in the log's order.
    """
    return list(_Ends(root, config, bounds, broken).queue(key, seen))


class _Ends(Verifier):
    def __init__(
        self, root: Path, config: StoreConfig, bounds: Bounds, broken: Iterable[tuple[int, int]]
    ) -> None:
        reader = LogReader(root, config.mapped_file_size_commit_log_bytes)
        super().__init__(root, config, reader, bounds, None)
        self._broken = list(broken)

    def _list_queues(self) -> Mapping[Key, QueueReader]:
        return {}

    def index_file(self, reader: IndexReader, readers: list[IndexReader]) -> Iterator[Damage]:
        yield from self._index_file(reader)
        if reader is readers[-1]:
            self._stream = IndexStream([each for each in readers if each.sound])
            yield from self._past_the_end(self._stream.near(self._bounds.end))

    def queue(self, key: Key, seen: Sequence[SeenQueue]) -> Iterator[Damage]:
        reader = open_queue(self._root, *key, self._config.mapped_file_size_consume_queue_bytes)
        try:
            yield from self._over_borders(key, reader, seen)
        finally:
            self._reader.close()
        yield from self._wrong.values()
        yield from self._queue_end(key, reader, _joined([one.span for one in seen]))

    def _over_borders(
        self, key: Key, reader: QueueReader | None, seen: Sequence[SeenQueue]
    ) -> Iterator[Damage]:
        known = bool(seen) and seen[0].span.first_offset == self._removed.end(key)
        if (
            self._bounds.begin == 0 and seen and seen[0].begin > 0 and not known
        ):  # otherwise the first range has reported it
            yield from self._border(reader, 0, self._swallowed(0, seen[0]), seen[0])
        following = -1
        for before, after in pairwise(seen):
            following = max(following, before.span.following)
            swallowed = before.swallowed_behind + self._swallowed(before.end, after)
            yield from self._border(reader, following, swallowed, after)

    def _swallowed(self, begin: int, after: SeenQueue) -> int:
        """Bytes of damage from a border to the first record of the queue behind it."""
        return sum(last - at for at, last in self._broken if begin <= at < after.span.first_physical)

    def _border(
        self, reader: QueueReader | None, following: int, swallowed: int, after: SeenQueue
    ) -> Iterator[Damage]:
        (topic, queue_id), offset, position = after.key, after.span.first_offset, after.span.first_physical
        if offset == following:
            return
        record = self._reader.record(position)
        end = position + (record["total_size"] if record is not None else 0)
        reason = f"queue offset {offset} of {topic}/{queue_id} where {following} is next"
        path = self._reader.path(self._reader.base_of(position))
        place = Damage("record", path, position, end, reason)
        yield from self._gap(0, reader, (following, offset), swallowed, place)


def _joined(spans: Sequence[QueueSpan]) -> QueueSpan | None:
    """The findings of one walk over all ranges."""
    if not spans:
        return None
    missing = min((span for span in spans if span.missing >= 0), key=lambda span: span.missing, default=None)
    last = spans[-1] if missing is None else missing
    return QueueSpan(
        spans[0].first_offset,
        spans[0].first_physical,
        max(span.following for span in spans),
        -1 if missing is None else missing.missing,
        last.entries_limit,
    )


def joined_damage(reader: LogReader, found: Iterable[Damage]) -> list[Damage]:
    """Sorts damage, drops repetitions, and joins ranges that a border cut in two."""
    kept: list[Damage] = []
    for damage in sorted(set(found), key=_order):
        last = kept[-1] if kept else None
        if last is not None and _goes_on(reader, last, damage):
            kept[-1] = replace(last, end=damage.end)
        else:
            kept.append(damage)
    return kept


def _order(damage: Damage) -> tuple[str, str, str, int, int, str]:
    runs = damage.reason == UNKEYED
    return (
        damage.kind,
        damage.reason if runs else "",
        "" if runs else str(damage.path),
        damage.begin,
        damage.end,
        damage.reason,
    )


def _goes_on(reader: LogReader, last: Damage, damage: Damage) -> bool:
    if (last.kind, last.reason) != (damage.kind, damage.reason):
        return False
    if damage.reason == UNKEYED:
        return last.end == damage.begin or reader.blank_fills(last.end)
    return damage.kind == "consume_queue" and last.path == damage.path and 0 < last.end == damage.begin
