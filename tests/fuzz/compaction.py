"""Targets of compaction: the newest record of each key, and a compacted file with any index."""

from __future__ import annotations

import struct

from cystore._native.filters import latest
from cystore._native.memory.mapping import MappedFile
from cystore.errors import CorruptRecordError
from tests.fuzz import records
from tests.fuzz.target import Target, Wrong, exact, same
from tests.oracle.record import Blank, NotValid, Record, parse

FILE_BYTES = 1024
SEEDS = bytes(range(32))
FAR_FUTURE_MS = 1 << 60


def _mapped(data: bytes) -> MappedFile:
    file = MappedFile.anonymous(0, len(data))
    file.write(0, data)
    return file


def _whole(data: bytes) -> bytes:
    return (data + bytes(FILE_BYTES))[:FILE_BYTES]


def _records(data: bytes) -> tuple[dict[int, Record], int]:
    """The records that stand one behind the other from the beginning on, and where they end."""
    found: dict[int, Record] = {}
    at = 0
    try:
        while at < len(data):
            record = parse(data, at)
            if isinstance(record, Blank) or record.physical_offset != at:
                break
            found[at] = record
            at += len(record.raw)
    except NotValid:
        pass
    return found, at


def run_latest(data: bytes) -> None:
    """The newest records of a file of the log, copied into a compacted file, and found there again. The first byte
    chooses the time: at its odd values everything that may expire has expired."""
    if not 2 <= len(data) <= 2 * FILE_BYTES:
        return
    whole = _whole(data[1:])
    file = _mapped(exact(whole))
    table = latest.LatestTable([b"*"], SEEDS)
    reached, _ = table.take(file, 0, FILE_BYTES, in_log=True)
    known, end = _records(whole)
    if any("\ufffd" in key for record in known.values() for key in (record.topic, *record.keys)):
        return  # bytes that are no text: several keys look alike to the oracle
    same("end of the walk", reached, end)
    newest: dict[tuple[str, str], int] = {}
    for at, record in known.items():
        if record.sys_flag & 0xC in (0, 8) and record.topic:
            newest.update({(record.topic, key): at for key in record.keys})
    same("number of keys", table.keys, len(newest))
    count = table.sort()
    places = [table.place(number) ^ latest.IN_LOG for number in range(count)]
    same("places", places, sorted(set(newest.values())))
    out, filled = bytearray(FILE_BYTES), 0
    filled, needed = table.copy(
        file, FILE_BYTES, out, 16, 16, FAR_FUTURE_MS if data[0] & 1 else 0, in_log=True
    )
    same("what does not fit", needed if filled + needed <= FILE_BYTES else 0, 0)
    if needed:
        return
    slots = table.slots()
    made = _mapped(bytes(out[:filled]) + bytes(-filled % 16) + bytes(slots))
    slots_at = filled + -filled % 16
    for (topic, key), at in newest.items():
        found = latest.find_newest(made, slots_at, len(slots) // 16, SEEDS, topic.encode(), key.encode())
        if found >= 0 and bytes(out[found : found + len(known[at].raw)]) != known[at].raw:
            raise Wrong(f"key {key!r} of {topic!r}: found at {found}, wanted the record of {at}")
        if found < 0 and known[at].body and not data[0] & 1:
            raise Wrong(f"key {key!r} of {topic!r}: the record of {at} is not found")


def repair_latest(data: bytes) -> bytes:
    return data[:1] + records.repaired(data[1:][:FILE_BYTES], base=0)


def run_compacted_file(data: bytes) -> None:
    """A compacted file of any bytes: records, and an index that leads anywhere. What is found is a record."""
    if not 1 <= len(data) <= 2 * FILE_BYTES:
        return
    slots_at, count = 16 * (data[0] & 63), 1 << (data[0] >> 6)
    whole = exact(_whole(data[1:]) + data[1:65].ljust(64, b"\0") * 4)
    file = _mapped(whole)
    for topic, key in ((b"T", b"k"), (b"", b""), (b"T", bytes(300))):
        try:
            found = latest.find_newest(file, slots_at, count, SEEDS, topic, key)
        except CorruptRecordError:
            continue
        if found >= 0:
            parse(bytes(whole), found)
    at = latest.next_record(file, 0, len(whole), in_log=False)
    if at >= 0:
        parse(bytes(whole), at)
    table = latest.LatestTable([b"T", b"%*"], SEEDS, [(b"T", struct.unpack_from(">h", whole)[0])])
    place, status = 0, latest.OK
    while status == latest.OK and place < len(whole):
        place, status = table.take(file, place, len(whole), in_log=False)
    table.sort()


TARGETS = (
    Target(
        "latest",
        run_latest,
        lambda: [
            bytes([n]) + b"".join(records.log_of(FILE_BYTES).files.values())[:FILE_BYTES] for n in (0, 1)
        ],
        repair_latest,
        1000,
    ),
    Target(
        "compacted",
        run_compacted_file,
        lambda: [
            bytes([n]) + b"".join(records.log_of(FILE_BYTES).files.values())[:FILE_BYTES] for n in (0, 190)
        ],
        repair_latest,
        1000,
    ),
)
