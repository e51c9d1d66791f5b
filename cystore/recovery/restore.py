"""The folder quarantine/: lists the copies of damaged bytes of the log, reads them, and restores their records in the
log.

A copy's name contains its range of the log. A restore writes the valid records of a copy, or of a repaired one, back
into the damaged range. It needs the store exclusively, because no other process may still count the range as damaged,
or have a mapping of it. The order makes a kill harmless: the bytes are written while the range still counts as damaged,
the store is marked so that the next load walks its whole log, and the range is removed from the list last.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cystore._native.scan import log_walk
from cystore.config import StoreConfig
from cystore.engine.files.log_folders import make_segment
from cystore.engine.files.quarantine import QuarantinedCopy, copy_named, quarantined_copies
from cystore.engine.manifest.damaged_ranges import DamagedRange, DamagedRanges
from cystore.engine.manifest.manifest import read_facts, record_damaged_ranges
from cystore.errors import CorruptRecordError, OffsetError, StoreFormatError
from cystore.layout import BLANK_SIZE_MIN, MAGIC, RECORD_MAGIC_BLANK, TOTAL_SIZE
from cystore.recovery.walk.abort_file import mark_undispatched
from cystore.recovery.walk.log_reader import LogReader
from cystore.system import files, ownership, platform
from cystore.system.ranges import file_ranges
from cystore.system.store_lock import StoreLocks


@dataclass(frozen=True)
class Listed:
    """A file in quarantine/ with the manifest's facts of its range. `state`: "damaged" while a part of the range is
    stepped over, else "cut": recovery truncated the bytes, or they were put back. `found_ms` is the time of the damage,
    else of the file."""

    name: str
    begin: int
    end: int
    size_bytes: int
    state: str
    reason: str
    found_ms: int


@dataclass(frozen=True)
class Part:
    """Log bytes [begin, end) as a copy has them: a whole record at its own place, a blank that fills its file, or
    other bytes."""

    kind: str
    begin: int
    end: int
    data: bytes


@dataclass(frozen=True)
class Restored:
    """The result of a restore: (begin, end) of each run of records, their number, and the parts of the range that stay
    damaged."""

    ranges: tuple[tuple[int, int], ...]
    records: int
    left: tuple[tuple[int, int], ...]


def listed(root: Path) -> list[Listed]:
    """The copies in quarantine/, in the order of the log, and damaged ranges without a copy (with an empty name, or
    that of the missing file)."""
    damaged, copies = read_facts(root)[0].damaged_ranges, quarantined_copies(root)
    found = []
    for copy in copies:
        touched = list(damaged.within(copy.begin, copy.end))
        first = touched[0] if touched else DamagedRange(copy.begin, copy.end, "", "", copy.modified_ms)
        state = "damaged" if touched else "cut"
        found.append(
            Listed(copy.name, copy.begin, copy.end, copy.size_bytes, state, first.reason, first.found_ms)
        )
    for each in damaged:
        if not any(copy.begin < each.end and each.begin < copy.end for copy in copies):
            found.append(Listed(each.copy, each.begin, each.end, 0, "damaged", each.reason, each.found_ms))
    return sorted(found, key=lambda one: (one.begin, one.end, one.name))


def parts(root: Path, name: str, config: StoreConfig, source: Path | None = None) -> Iterator[Part]:
    """The parts of the copy `name`, or of the file `source` instead of it, in the order of the log. Raises
    StoreFormatError."""
    copy = copy_named(name)
    path = _source(root, copy, source)
    file_bytes = LogReader(root, config.mapped_file_size_commit_log_bytes).file_bytes
    with files.opened(path) as fd:
        length = file_ranges.length_of(fd, path)
        if length != copy.end - copy.begin:
            raise StoreFormatError(
                f"it has {length} bytes, the range {copy.begin}..{copy.end} of the log has {copy.end - copy.begin}",
                path=path,
            )
        begin = copy.begin
        while begin < copy.end:
            file_end = begin - begin % file_bytes + file_bytes
            end = min(file_end, copy.end)
            yield from _parts(
                files.pread_full(fd, begin - copy.begin, end - begin, path), begin, end, file_end
            )
            begin = end


def _source(root: Path, copy: QuarantinedCopy, source: Path | None) -> Path:
    """The file to read. It must be a regular file, because an open of a pipe would wait."""
    path = copy.path(root) if source is None else source
    if not path.is_file() or (source is None and path.is_symlink()):
        raise StoreFormatError("there is no such file", path=path)
    return path


def _parts(data: bytes, begin: int, end: int, file_end: int) -> Iterator[Part]:
    """The parts of one file of the log."""
    scanner = log_walk.LogWalker(check_checksum=True, follow_queues=False)
    at = begin
    while at < end:
        scanner.move(at, file_end)
        found = scanner.find(memoryview(data)[at - begin :], end - at, at)
        place = end if found < 0 else found
        if place > at:
            yield from _between(data, begin, at, place, file_end)
        at = place
        if found >= 0:
            size = TOTAL_SIZE.read(data, at - begin)
            yield Part("record", at, at + size, data[at - begin : at - begin + size])
            at += size


def _between(data: bytes, begin: int, at: int, until: int, file_end: int) -> Iterator[Part]:
    head = data[at - begin : at - begin + BLANK_SIZE_MIN]
    blank = TOTAL_SIZE.form.pack(file_end - at) + MAGIC.form.pack(RECORD_MAGIC_BLANK)
    kind = "blank" if until == file_end and head == blank else "bytes"
    yield Part(kind, at, until, data[at - begin : until - begin])


# ------------------------------------------------------------------------------------------------ restore


def restore(root: Path, name: str, config: StoreConfig, source: Path | None = None) -> Restored:
    """Writes the valid records of the copy `name`, or of the repaired file `source` instead of it, back into the
    damaged range of the log. The places of these records then no longer count as damaged. The next open walks the log
    and mends queues and index.

    No other process may have the store open. Raises StoreLockedError; OffsetError if the log is not, or no longer,
    damaged at that range, CorruptRecordError if no valid record stands at its own place, StoreFormatError for a file
    that does not fit, StoreFullError, StoreIOError. Nothing else changes before all bytes are durable.
    """
    platform.check_writable_file_system(root, allow_any=config.allow_any_file_system)
    if not config.allow_any_owner:
        ownership.check(root, ownership.group_id(config.group))
    locks = StoreLocks(root, read_only=False)
    try:
        with locks.gate():
            locks.take_alone()
            return _restore(root, name, config, source)
    finally:
        locks.close()


def _restore(root: Path, name: str, config: StoreConfig, source: Path | None) -> Restored:
    copy, damaged = copy_named(name), read_facts(root)[0].damaged_ranges
    log = LogReader(root, config.mapped_file_size_commit_log_bytes)
    if not list(damaged.within(copy.begin, copy.end)):
        raise OffsetError(
            f"the log is not damaged from {copy.begin} to {copy.end}: there is nothing to restore",
            path=log.directory,
            offset=copy.begin,
        )
    if not log.bases or copy.begin < log.bases[0] or copy.end > log.bases[-1] + log.file_bytes:
        raise OffsetError(
            "the log does not contain this offset any more", path=log.directory, offset=copy.begin
        )
    found = [part for part in parts(root, name, config, source) if _fits(part, damaged)]
    records = sum(part.kind == "record" for part in found)
    if records == 0:
        raise CorruptRecordError(
            f"no valid record stands at its own place in the damaged part of {copy.begin}..{copy.end}: the "
            "bytes are still damaged",
            path=_source(root, copy, source),
            offset=copy.begin,
        )
    for part in found:
        base = part.begin - part.begin % log.file_bytes
        path = log.path(base)
        if base not in log.lengths:
            path = make_segment(root, base, log.file_bytes, config)
        elif log.lengths[base] < log.file_bytes:
            file_ranges.extend(path, log.file_bytes)
        file_ranges.write_at(path, [(part.begin - base, part.data)])
    mark_undispatched(root)
    left = _without(damaged, [(part.begin, part.end) for part in found])
    record_damaged_ranges(root, left)
    return Restored(
        _joined([(part.begin, part.end) for part in found]),
        records,
        tuple(left.within(copy.begin, copy.end).ranges()),
    )


def _fits(part: Part, damaged: DamagedRanges) -> bool:
    """Whether a part lies in the log and in one damaged range: intact bytes are never overwritten."""
    return part.kind != "bytes" and any(each.begin <= part.begin and part.end <= each.end for each in damaged)


def _joined(ranges: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    out: list[tuple[int, int]] = []
    for begin, end in sorted(ranges):
        if out and out[-1][1] == begin:
            out[-1] = out[-1][0], end
        else:
            out.append((begin, end))
    return tuple(out)


def _without(damaged: DamagedRanges, ranges: list[tuple[int, int]]) -> DamagedRanges:
    """The damaged ranges without the restored ones."""
    left: list[DamagedRange] = []
    for each in damaged:
        at = each.begin
        for begin, end in _joined([one for one in ranges if each.begin <= one[0] < each.end]):
            if at < begin:
                left.append(dataclasses.replace(each, begin=at, end=begin))
            at = end
        if at < each.end:
            left.append(dataclasses.replace(each, begin=at))
    return DamagedRanges(left)
