"""Verification in independent parts: ranges of the log, index files, queues; together they find the damage that
`verify` finds.

`boundary` gives the begin and the end of each range. It always gives the same border for the same position, so
neighbours meet. The findings of each range (`QueueInRange`) show how a queue's records follow each other across a
border. Changes nothing; reads with pread.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cystore.config import StoreConfig
from cystore.engine.manifest.damaged_ranges import DamagedRanges
from cystore.engine.manifest.manifest import read_damaged_ranges, read_removed
from cystore.recovery.walk import rules
from cystore.recovery.walk.findings import Damage
from cystore.recovery.walk.index_reader import list_readable_index
from cystore.recovery.walk.index_stream import IndexStream
from cystore.recovery.walk.log_reader import Finder, LogReader
from cystore.recovery.walk.log_visitor import Key
from cystore.recovery.walk.queue_reader import QueueReader, open_queue
from cystore.verify.bounds import Bounds
from cystore.verify.index_comparison import UNKEYED, index_file_damage, past_the_end
from cystore.verify.queue_comparison import QueueEntries, QueueSpan
from cystore.verify.record_walk import Comparison


class QueueInRange(NamedTuple):
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
    `jumps`: some queue offset in it was not the next one, whether that counts as damage or not."""

    begin: int
    end: int
    position: int
    records: int
    damage: tuple[Damage, ...]
    broken: tuple[tuple[int, int], ...]
    queues: tuple[QueueInRange, ...]
    jumps: bool


def split(bounds: Bounds, range_bytes: int) -> list[tuple[int, int]]:
    """The log in parts of about `range_bytes`; none lies on both sides of the dispatched position."""
    border = min(bounds.dispatched, bounds.end)
    ends = [*range(bounds.begin + range_bytes, border, range_bytes), border]
    ends += [*range(border + range_bytes, bounds.end, range_bytes), bounds.end]
    begins = [bounds.begin, *ends]
    return [(first, last) for first, last in zip(begins, ends, strict=False) if first < last]


def boundary(reader: LogReader, damaged: DamagedRanges, bounds: Bounds, position: int) -> int:
    """The begin of the first valid record at or behind `position`, in any segment; steps over holes that recovery
    reported."""
    if position <= bounds.begin:
        return bounds.begin
    known = damaged.covering(position)
    position = position if known is None else known[1]
    found = Finder(reader, check_checksum=True).find(position, bounds.end) if position < bounds.end else None
    return bounds.end if found is None else found[0]


def verify_range(root: Path, config: StoreConfig, bounds: Bounds, first: int, last: int) -> RangeFindings:
    """Compares the records that begin between the borders at or behind `first` and `last` with queues and index.

    `bounds` are those of the whole comparison. Raises StoreIOError for unreadable bytes.
    """
    reader, damaged = LogReader(root, config.mapped_file_size_commit_log_bytes), read_damaged_ranges(root)
    try:
        begin, end = (boundary(reader, damaged, bounds, at) for at in (first, last))
        part = replace(bounds, begin=begin, end=end)
        return _findings(root, config, reader, part, follow=last <= bounds.dispatched)
    finally:
        reader.close()


def _findings(
    root: Path, config: StoreConfig, reader: LogReader, bounds: Bounds, *, follow: bool
) -> RangeFindings:
    """`follow`: the records are dispatched, so queues and index must know them."""
    begin, end = bounds.begin, bounds.end
    file_bytes = config.mapped_file_size_consume_queue_bytes
    compared = Comparison(root, reader, bounds, lambda key: open_queue(root, *key, file_bytes), follow=follow)
    if follow and config.message_index_enable:
        readers, strange = list_readable_index(root, config)
        if not strange:
            stream = IndexStream([each for each in readers if each.sound])
            compared.compare_keys(stream, stream.near(begin))
    damage = tuple(compared.run())
    queues = tuple(
        QueueInRange(key, begin, end, span, compared.scanner.swallowed_since(compared.slots[key]))
        for key, span in compared.spans().items()
    )
    position = max(compared.position, end)
    broken = tuple(compared.broken)
    return RangeFindings(begin, end, position, compared.records, damage, broken, queues, compared.jumps)


def without_false_borders(seen: Iterable[RangeFindings]) -> tuple[list[RangeFindings], list[tuple[int, int]]]:
    """The final ranges, in order, and the ranges to examine anew. Each of these joins a range whose walk overran its
    end with the next ranges up to that place."""
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
    found: list[Damage] = []
    for reader in readers:
        if reader.path.name == name:
            found += index_file_damage(reader, bounds)
            if reader is readers[-1]:
                stream = IndexStream([each for each in readers if each.sound])
                found += past_the_end(stream, stream.near(bounds.end), bounds)
    return found


def verify_queue(
    root: Path,
    config: StoreConfig,
    bounds: Bounds,
    broken: Sequence[tuple[int, int]],
    key: Key,
    seen: Sequence[QueueInRange],
) -> list[Damage]:
    """The damage of a queue that no range can see: gaps between records of different ranges, and entries without
    records.

    `broken` are all damaged ranges of the log, `seen` are the ranges' findings about the queue, in the log's order.
    """
    reader = open_queue(root, *key, config.mapped_file_size_consume_queue_bytes)
    log = LogReader(root, config.mapped_file_size_commit_log_bytes)
    try:
        entries = QueueEntries(root, log, bounds, read_removed(root), list(broken))
        found = list(_over_borders(entries, log, bounds, reader, seen))
    finally:
        log.close()
    return [*found, *entries.runs(), *entries.end(key, reader, _joined([one.span for one in seen]))]


def _over_borders(
    entries: QueueEntries,
    log: LogReader,
    bounds: Bounds,
    reader: QueueReader | None,
    seen: Sequence[QueueInRange],
) -> Iterator[Damage]:
    """Gaps between the records of one range and those of the next."""

    def swallowed(begin: int, after: QueueInRange) -> int:
        """Bytes of damage from a border to the first record of the queue behind it."""
        return sum(last - at for at, last in entries.broken if begin <= at < after.span.first_physical)

    if bounds.begin == 0 and seen and seen[0].begin > 0:  # else the first range has reported the gap
        first = seen[0]
        if first.span.first_offset != entries.removed.end(first.key):
            yield from _border(entries, log, reader, 0, swallowed(0, first), first)
    following = -1
    for before, after in pairwise(seen):
        following = max(following, before.span.following)
        lost = before.swallowed_behind + swallowed(before.end, after)
        yield from _border(entries, log, reader, following, lost, after)


def _border(
    entries: QueueEntries,
    log: LogReader,
    reader: QueueReader | None,
    following: int,
    swallowed: int,
    after: QueueInRange,
) -> Iterator[Damage]:
    (topic, queue_id), offset, position = after.key, after.span.first_offset, after.span.first_physical
    if offset == following:
        return
    record = log.record(position)
    end = position + (record["total_size"] if record is not None else 0)
    reason = f"queue offset {offset} of {topic}/{queue_id} where {following} is next"
    place = Damage("record", log.path(log.base_of(position)), position, end, reason)
    proven = record is None or rules.header_is_proven(record["magic"])
    yield from entries.gap(reader, (following, offset), swallowed, place, proven=proven)


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
