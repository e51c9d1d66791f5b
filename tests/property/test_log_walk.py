"""Goal: a walk over the log stops where the format says, whatever the bytes and however they are read in
pieces, and finds the next good record behind damage. Method: valid logs whole, cut at every byte of their
last 4 KiB, damaged, and arbitrary bytes; the scan kernel, fed piece by piece, against the oracle's walk."""

import os
from dataclasses import dataclass, replace
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.oracle.log import Log, lay_out, read_log
from tests.oracle.record import Blank, NotValid, Record
from tests.oracle.recovery import next_valid
from tests.support.golden.stores import NAMES
from tests.support.property.strategies import damage, logs

log_walk = pytest.importorskip("cystore._native.scan.log_walk", reason="the kernels are not built")

EVERYTHING = 2**62
TAIL_BYTES = 4096
FILLERS = (b"\0", b"\xff", b"\x01\x02")


@dataclass(frozen=True)
class Walk:
    """Where a walk stopped and what it had seen by then."""

    position: int
    count: int
    last_record: int
    last_checksum: int


def oracle_walk(log: Log, begin: int) -> Walk:
    position, last, count = begin, None, 0
    for offset, found in log.walk(begin):
        if isinstance(found, Record):
            last, count = found, count + 1
        if isinstance(found, Blank) and offset + found.size not in log.files:
            break
        position = offset + found.size
    return Walk(position, count, last.physical_offset if last else -1, last.checksum if last else 0)


def pieces(data: bytes, base: int, position: int, needed: int, piece_bytes: int) -> tuple[bytes, int]:
    """Bytes from `position` on: as many as a reader with a small buffer would have, but what is needed at
    least."""
    at = position - base
    return data[at : at + max(needed, piece_bytes)], position


def kernel_walk(log: Log, begin: int, piece_bytes: int = 1 << 20) -> Walk:
    scanner = log_walk.LogWalker(follow_queues=False)
    scanner.limit = EVERYTHING
    base = begin - begin % log.file_size
    scanner.move(begin, base + log.file_size)
    needed = 0
    while True:
        base = scanner.position - scanner.position % log.file_size
        data, at = pieces(log.files[base], base, scanner.position, needed, piece_bytes)
        status = scanner.run(data, len(data), at)
        needed = scanner.needed if status == log_walk.MORE else 0
        if status == log_walk.MORE and scanner.position == at:
            assert needed > len(data), "asked for bytes that were at hand"
        if status == log_walk.BLANK and base + log.file_size in log.files:
            scanner.move(base + log.file_size, base + 2 * log.file_size)
        elif status != log_walk.MORE:
            assert status in (log_walk.INVALID, log_walk.BLANK)
            checksum = scanner.last_checksum if scanner.record_count else 0
            return Walk(scanner.position, scanner.record_count, scanner.last_record, checksum)


def kernel_find(log: Log, offset: int, piece_bytes: int = 1 << 20) -> int | None:
    """The next valid record at or behind `offset`, in any file."""
    base = offset - offset % log.file_size
    while base in log.files:
        scanner = log_walk.LogWalker(follow_queues=False)
        scanner.move(max(offset, base), base + log.file_size)
        needed = 0
        while scanner.position < base + log.file_size:
            data, at = pieces(log.files[base], base, scanner.position, needed, piece_bytes)
            found = scanner.find(data, len(data), at)
            if found >= 0:
                return found
            needed = scanner.needed
            if not needed:
                break
            assert scanner.position > at or needed > len(data), "asked for bytes that were at hand"
        base += log.file_size
    return None


piece_sizes = st.sampled_from([40, 91, 112, 500, 1 << 20])


@given(logs(), piece_sizes)
def test_a_sound_log_is_walked_to_its_end(written, piece_bytes):
    walk = kernel_walk(written.log, 0, piece_bytes)
    assert (walk.position, walk.count) == (written.end, len(written.records))
    assert walk == oracle_walk(written.log, 0)


@given(logs(begin_file=5), piece_sizes, st.data())
def test_a_damaged_log(written, piece_bytes, data):
    base = data.draw(st.sampled_from(sorted(written.log.files)))
    damaged = {**written.log.files, base: data.draw(damage(written.log.files[base]))}
    log = Log(written.log.file_size, damaged)
    assert kernel_walk(log, log.minimum, piece_bytes) == oracle_walk(log, log.minimum)


@given(logs(begin_file=2, max_records=12), piece_sizes, st.data())
def test_the_next_record_behind_damage(written, piece_bytes, data):
    base = data.draw(st.sampled_from(sorted(written.log.files)))
    log = Log(
        written.log.file_size,
        {**written.log.files, base: data.draw(damage(written.log.files[base]))},
    )
    ends = [r.physical_offset for r in written.records] + [log.minimum]
    for offset in (data.draw(st.sampled_from(ends)), log.minimum + 1):
        assert kernel_find(log, offset + 1, piece_bytes) == next_valid(log, offset)


@given(st.integers(-(2**31), 2**31 - 1), st.integers(-9, 9), st.integers(0, 2000))
def test_a_blank_of_another_size_is_damage(size, near, body_bytes):
    """It must fill its file to the last byte, or what it hides could not be found again."""
    bodies = [Record("T", body=bytes(body_bytes)), Record("T", body=bytes(3000))]
    log, (first, _), end = lay_out(bodies, 4096)
    room = 4096 - first.end
    assert kernel_walk(log, 0) == oracle_walk(log, 0)
    assert kernel_walk(log, 0).position == end
    for wrong in {size, room + near} - {room}:
        damaged = bytearray(log.files[0])
        damaged[first.end : first.end + 4] = wrong.to_bytes(4, "big", signed=True)
        other = Log(4096, {**log.files, 0: bytes(damaged)})
        assert kernel_walk(other, 0) == oracle_walk(other, 0)
        assert kernel_walk(other, 0).position == first.end


@given(st.lists(st.binary(min_size=200, max_size=200), min_size=1, max_size=3), piece_sizes)
def test_arbitrary_bytes(files, piece_bytes):
    log = Log(200, {200 * n: data for n, data in enumerate(files)})
    assert kernel_walk(log, 0, piece_bytes) == oracle_walk(log, 0)
    assert kernel_find(log, 1, piece_bytes) == next_valid(log, 0)


def cuts(log: Log, end: int, filler: bytes):
    """The log's last file, cut at every byte of its last 4 KiB before `end`; behind the cut stands
    `filler`."""
    base = (end - 1) - (end - 1) % log.file_size
    data = log.files[base]
    for cut in range(max(base, end - TAIL_BYTES), end + 1):
        tail = (filler * (log.file_size // len(filler) + 1))[: log.file_size - (cut - base)]
        yield cut, Log(log.file_size, {base: data[: cut - base] + tail})


def assert_every_cut(log: Log, end: int, filler: bytes, first: int = 0, step: int = 1) -> None:
    base = (end - 1) - (end - 1) % log.file_size
    items = list(log.walk(base, end))
    # Both walk from the last record that no cut touches; the oracle continues behind the records that this cut left
    # whole.
    near = max(
        (at + found.size for at, found in items if at + found.size <= max(base, end - TAIL_BYTES)),
        default=base,
    )
    whole = [found for at, found in items if at >= near and isinstance(found, Record)]
    seen = Walk(near, 0, -1, 0)
    for at, cut in islice(cuts(log, end, filler), first, None, step):
        while seen.count < len(whole) and whole[seen.count].end <= at:
            last = whole[seen.count]
            seen = Walk(last.end, seen.count + 1, last.physical_offset, last.checksum)
        rest = oracle_walk(cut, seen.position)
        expected = (
            replace(rest, count=seen.count + rest.count)
            if rest.count
            else replace(seen, position=rest.position)
        )
        assert kernel_walk(cut, near) == expected


@pytest.mark.sampled(4)
@pytest.mark.parametrize("filler", FILLERS, ids=["zeros", "ones", "bytes"])
@pytest.mark.parametrize("golden", NAMES, indirect=True)
def test_every_golden_log_cut_at_every_byte_of_its_last_4_kib(golden, filler):
    """Each byte with each filler; in a quick run (the sanitizers') the fillers share the bytes among them."""
    log = read_log(golden.store)
    quick = os.environ.get("CYSTORE_HYPOTHESIS") == "quick"
    share = (FILLERS.index(filler), len(FILLERS)) if quick else (0, 1)
    assert_every_cut(log, oracle_walk(log, log.minimum).position, filler, *share)


@given(logs(max_records=10))
@settings(max_examples=5)
def test_any_log_cut_at_every_byte_of_its_last_4_kib(written):
    if written.records:
        assert_every_cut(written.log, written.end, b"\0")


@given(logs(max_records=10), st.data())
@settings(max_examples=20)
def test_stale_records_behind_a_cut_are_no_records_of_another_place(written, data):
    """A record from elsewhere in the log does not count, because its physical offset is not its own."""
    if not written.records:
        return
    stale = data.draw(st.sampled_from(written.records)).raw
    base = (written.end - 1) - (written.end - 1) % written.log.file_size
    behind = bytearray(written.log.files[base])
    at = written.end - base
    behind[at : at + len(stale)] = stale[: len(behind) - at]
    log = Log(written.log.file_size, {**written.log.files, base: bytes(behind)})
    assert kernel_walk(log, 0).position == written.end
    with pytest.raises(NotValid):
        log.item(written.end)
