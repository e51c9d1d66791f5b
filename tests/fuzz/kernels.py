"""Targets for the kernels: any bytes, compared with the oracle where it has an answer."""

from __future__ import annotations

import struct

from cystore._native.derived import entries, index, index_chains, queue_ext
from cystore._native.derived.queue import TagFilter
from cystore._native.filters.bitmap import FilterTable, GroupBits
from cystore._native.record import checksum
from cystore._native.record import message as message_kernel
from cystore._native.record import record as record_kernel
from cystore._native.record.properties import find_property
from cystore.errors import CorruptRecordError, MessageIllegalError
from cystore.filters.sql import SqlFilter
from tests.fuzz import records
from tests.fuzz.target import Target, Wrong, exact, same
from tests.oracle import index as oracle_index
from tests.oracle import java, properties
from tests.oracle import queue as oracle_queue
from tests.oracle.columns import Wanted, rows_of_file
from tests.oracle.log import Log
from tests.oracle.record import Blank, NotValid, Record, parse
from tests.oracle.recovery import next_valid
from tests.property.test_ext import oracle_read
from tests.property.test_log_walk import kernel_find, kernel_walk, oracle_walk
from tests.property.test_transfer import check_copies
from tests.support.property.column_rows import NAMES, read_file

NUMBERS = (
    *("queue_id", "queue_offset", "physical_offset", "flag", "sys_flag", "born_timestamp_ms"),
    *("store_timestamp_ms", "reconsume_times", "prepared_transaction_offset"),
)
SCAN_FILE_BYTES = 512
# Expressions over the property `a`, and what each says of its value.
FILTERS = {
    "a IS NULL": lambda value: value is None,
    "a = 'x'": lambda value: value == "x",
    "a IN ('x', '12')": lambda value: value in ("x", "12"),
    "a > 3 AND a IS NOT NULL OR a < 1.5": None,  # numbers: tests/interop/test_filter.py compares them with RocketMQ
    "a BETWEEN 2 AND 9223372036854775807 OR a <= b": None,
}
PROGRAMS = {expression: SqlFilter(expression).program for expression in FILTERS}
GROUPS = {expression: GroupBits(b"G%d" % number, b"T", 112) for number, expression in enumerate(FILTERS)}
TABLE = FilterTable(
    [(b"T", b"G%d" % number, PROGRAMS[expression]) for number, expression in enumerate(FILTERS)], 112
)
SLOTS, CAPACITY = 7, 24
SURROGATE = b"\xed"  # of an encoded surrogate Java makes one U+FFFD and Python three
KEYS = [f"T#{number}" for number in range(12)]


def _parsed(data: bytes) -> Record | Blank | None:
    try:
        return parse(data)
    except NotValid:
        return None


def run_record(data: bytes) -> None:
    status, fields = record_kernel.parse(exact(data))
    expected = _parsed(data)
    if expected is None:
        if status == "ok":
            raise Wrong(f"taken for a record: {fields}")
    elif isinstance(expected, Blank):
        same("blank", (status, fields), ("blank", {"total_size": expected.size}))
    else:
        same("status", status, "ok")
        same("size", fields["total_size"], expected.size)
        same("topic", fields["topic"].decode(), expected.topic)
        same("body", fields["body"], expected.body)
        same("properties", fields["properties"], expected.raw_properties)
        same("checksum", fields["checksum"], expected.checksum)


def run_message(data: bytes) -> None:
    expected = _parsed(data)
    try:
        found = message_kernel.message_of(data)
    except CorruptRecordError:
        if isinstance(expected, Record):
            raise Wrong("a valid record is refused") from None
        return
    if not isinstance(expected, Record):
        raise Wrong(f"taken for a message: {found!r}")
    for name in NUMBERS:
        same(name, getattr(found, name), getattr(expected, name))
    same("body", bytes(found.body), expected.body)
    if SURROGATE not in expected.raw_properties:
        same("properties", dict(found.properties), expected.properties)
        same("keys", found.keys, expected.keys)
    same("hosts", len(found.born_host) > 0 and len(found.store_host) > 0, True)
    if SURROGATE not in expected.raw_properties:
        check_copies(found, expected)


def run_filter(data: bytes) -> None:
    """Expressions over a property string, and the bitmap that leads groups to the messages that match."""
    value, bitmap = properties.parse(data).get("a"), TABLE.bitmap(b"T", data)
    for expression, program in PROGRAMS.items():
        found, expected = program.matches(data), FILTERS[expression]
        if expected is not None and SURROGATE not in data and value != "":
            same(expression, found, expected(value))
        if found:
            same(f"bits of {expression}", GROUPS[expression].is_in(bitmap), True)


def run_properties(data: bytes) -> None:
    if SURROGATE in data:
        message_kernel.parse_properties(data)
        return
    expected = properties.parse(data)
    same("properties", message_kernel.parse_properties(data), expected)
    for name in {"KEYS", "TAGS", "UNIQ_KEY", *list(expected)[:2]}:
        if "\ufffd" in name:  # what stands there is something else
            continue
        found = find_property(exact(data), name.encode())
        same(name, java.text(found) if found is not None else None, expected.get(name))


def run_host(data: bytes) -> None:
    """Addresses out of records, and texts of users."""
    if len(data) in (8, 20):
        text = message_kernel.decode_host(data)
        if data[-4] < 128:  # a port below 0 can stand there; nobody may give one
            same("host", message_kernel.encode_host(text)[-4:], data[-4:])
    try:
        packed = message_kernel.encode_host(data.decode("utf-8", "surrogateescape"))
    except MessageIllegalError:
        return
    same("length", len(packed) in (8, 20), True)


def run_tags(data: bytes) -> None:
    """A filter of the user's, and the hash that it is compared by."""
    text = data.decode("utf-8", "replace")
    same("hash", record_kernel.hash_code(exact(data)), java.string_hash(java.text(data)))
    same("key", index.key_hash(b"T", exact(data)), java.index_hash(f"T#{java.text(data)}"))
    try:
        TagFilter(text)
    except MessageIllegalError:
        pass


def run_checksum(data: bytes) -> None:
    whole = checksum.crc32c(exact(data))
    same("as read", checksum.crc32c_as_read(exact(data)), whole)
    same("of a copy", checksum.crc32c_of_copy(exact(data)), (data, whole))
    for cut in {0, len(data) // 3, len(data)}:
        first, second = data[:cut], data[cut:]
        same("in two steps", checksum.crc32c(exact(second), checksum.crc32c(exact(first))), whole)
        parts = checksum.crc32c(first), checksum.crc32c(second)
        same("joined", checksum.crc32c_of_two(*parts, len(second)), whole)


def _log(data: bytes) -> Log:
    padded = data + bytes(-len(data) % SCAN_FILE_BYTES)
    return Log(
        SCAN_FILE_BYTES,
        {at: padded[at : at + SCAN_FILE_BYTES] for at in range(0, len(padded), SCAN_FILE_BYTES)},
    )


def run_scan(data: bytes) -> None:
    """The walk of recovery, in pieces whose length is the first byte, and the search for the next record behind
    damage."""
    if len(data) < 2 or len(data) > 2048:
        return
    log, piece_bytes = _log(data[1:]), 40 + 4 * data[0]
    walk = kernel_walk(log, 0, piece_bytes)
    same("walk", walk, oracle_walk(log, 0))
    same("next", kernel_find(log, 1, piece_bytes), next_valid(log, 0))


def repair_scan(data: bytes) -> bytes:
    log = _log(data[1:])
    return data[:1] + b"".join(records.repaired(part, base=at) for at, part in sorted(log.files.items()))


def run_columns(data: bytes) -> None:
    """Records as columns, in batches whose size the first two bytes say."""
    if len(data) < 3 or len(data) > 2048:
        return
    log = _log(data[2:])
    read = Log(log.file_size, {base: exact(part) for base, part in log.files.items()})
    for base in log.files:
        found = read_file(read, base, Wanted(), NAMES, data[0] % 30 + 1, 1 + 20 * data[1])
        same("rows", found, rows_of_file(log, base, Wanted()))


def repair_columns(data: bytes) -> bytes:
    return data[:1] + repair_scan(data[1:])


def run_entries(data: bytes) -> None:
    """The entries that a rebuild gathers from the records of one file, as many at a time as the first byte says."""
    if len(data) < 2 or len(data) > 2048:
        return
    file = exact((data[1:] + bytes(SCAN_FILE_BYTES))[:SCAN_FILE_BYTES])
    reader, status, position = entries.EntryReader(rows=1 + data[0] % 30), entries.FULL, 0
    found: list[tuple[str, int, int, int, int]] = []
    while status == entries.FULL:
        status = reader.run(file, 0, position, len(file))
        position = reader.position
        for topic, queue_id, offset, _, _, stored, _ in reader.take()[0]:
            for number, (at, size, _) in enumerate(struct.iter_unpack(">qiq", stored)):
                found.append((topic.decode("latin-1"), queue_id, offset + number, at, size))
    wanted, at = [], 0
    try:
        while at < len(file):
            record = parse(bytes(file), at)
            if isinstance(record, Blank) or record.physical_offset != at:
                break
            if record.sys_flag & 0xC in (0, 8):
                wanted.append((record.topic, record.queue_id, record.queue_offset, at, len(record.raw)))
            at += len(record.raw)
    except NotValid:
        pass
    same("entries", sorted(found, key=lambda one: one[3]), wanted)
    same("position", position, at)


def repair_entries(data: bytes) -> bytes:
    return data[:1] + records.repaired(data[1:][:SCAN_FILE_BYTES], base=0)


def run_ext(data: bytes) -> None:
    for position in {0, len(data) // 2, len(data)}:
        same(f"unit at {position}", queue_ext.read(exact(data), position), oracle_read(data, position))
    buffer = bytearray(data)
    status, _ = queue_ext.put(buffer, len(data) // 2, len(data), -1, data[:30]) if data else ("full", 0)
    if status == "ok":
        unit = oracle_queue.parse_ext(bytes(buffer), len(data) // 2)
        same("unit written", (unit.tags_code, unit.bitmap), (len(data), data[:30]))


def run_index(data: bytes) -> None:
    """A whole file of any bytes: chains, new entries, entries taken back."""
    whole = bytearray(data[: oracle_index.file_bytes(SLOTS, CAPACITY)])
    whole += bytes(oracle_index.file_bytes(SLOTS, CAPACITY) - len(whole))
    file = oracle_index.IndexFile(SLOTS, CAPACITY, bytes(whole))
    for key in KEYS:
        chain = [entry.physical_offset for entry in file.chain(key)]
        found = index.lookup(exact(bytes(whole)), SLOTS, CAPACITY, java.index_hash(key), 0, 2**63 - 1, 3)
        rest = iter(chain)
        if not all(offset in rest for offset in found):
            raise Wrong(f"{key}: {found} is not in {chain}")
    cut = int.from_bytes(data[16:24], "big", signed=True)
    copy = bytearray(whole)
    left = index.trim(copy, SLOTS, CAPACITY, cut)
    same("left", 0 <= left < CAPACITY, True)
    index.put(copy, SLOTS, CAPACITY, java.index_hash("T#new"), cut, 2**62)
    index.put(whole, SLOTS, CAPACITY, java.index_hash("T#new"), 1, -1)


def run_mend(data: bytes) -> None:
    """Recovery's treatment of slots and entries of which any sector may be old."""
    if len(data) < 8:
        return
    first, keep = struct.unpack_from(">hh", data)
    middle = 4 + data[0] * 4 % max(len(data) - 4, 1)
    slots, entries = bytearray(data[4:middle]), data[middle:]
    stored = bytes(slots)
    for step in (
        lambda: index_chains.mend_slots(slots, exact(entries), first, keep),
        lambda: index_chains.relink(slots, exact(entries), first),
        lambda: index_chains.settle(slots),
        lambda: index_chains.chain(slots, exact(entries), first),
        lambda: index_chains.other_slot(slots, exact(stored), keep),
        lambda: index_chains.heads(exact(entries)),
        lambda: index_chains.used(exact(bytes(slots)), exact(stored), first),
        lambda: index_chains.newest(exact(stored)),
    ):
        try:
            step()
        except ValueError:
            pass


def _index_files() -> list[bytes]:
    few, full = oracle_index.IndexFile(SLOTS, CAPACITY), oracle_index.IndexFile(SLOTS, CAPACITY)
    for number in range(CAPACITY - 1):
        full.put(KEYS[number % 5], number * 100, records.NOW + 700 * number)
        if number < 4:
            few.put(KEYS[0], number * 100, records.NOW + 700 * number)
    return [bytes(few.data), bytes(full.data), bytes(40)]


def _mends() -> list[bytes]:
    whole = _index_files()[1]
    slots, entries = whole[40 : 40 + 4 * SLOTS], whole[40 + 4 * SLOTS + 20 :]
    return [struct.pack(">hh", 1, 9) + slots + entries, struct.pack(">hh", 0x0701, 3) + slots + entries]


def _hosts() -> list[bytes]:
    return [
        bytes([127, 0, 0, 1, 0, 0, 42, 159]),
        bytes(20),
        *(b"127.0.0.1:10911", b"[2001:db8::1]:80", b"[::ffff:1.2.3.4]:1"),
    ]


PROPERTIES = [one.raw_properties for one in records.samples() if one.raw_properties]
TARGETS = (
    Target("record", run_record, records.encoded, records.repaired),
    Target("message", run_message, records.encoded, records.repaired, 15_000),
    Target("properties", run_properties, lambda: sorted({*PROPERTIES, b"a\xed\xa0\x80\x01\xff\x02\x01"})),
    Target(
        "filter",
        run_filter,
        lambda: sorted(
            {
                *PROPERTIES,
                b"a\x01x\x02b\x0117\x02",
                b"a\x0112\x02a\x01x",
                b"a\x019223372036854775808\x02",
                b"a\x01-1e308",
            }
        ),
    ),
    Target("host", run_host, _hosts),
    Target("tags", run_tags, lambda: [b"a || b", b"*", "键|| x".encode(), b"folvslpu"]),
    Target("checksum", run_checksum, lambda: [b"", b"123456789", bytes(range(200))]),
    Target(
        "scan",
        run_scan,
        lambda: [bytes([n]) + b"".join(records.log_of(512).files.values())[:1536] for n in (0, 60, 255)],
        repair_scan,
        300,
    ),
    Target(
        "columns",
        run_columns,
        lambda: [bytes([n, n]) + b"".join(records.log_of(512).files.values())[:1536] for n in (0, 29, 255)],
        repair_columns,
        300,
    ),
    Target(
        "entries",
        run_entries,
        lambda: [bytes([n]) + b"".join(records.log_of(512).files.values())[:512] for n in (0, 29)],
        repair_entries,
        1000,
    ),
    Target(
        "ext",
        run_ext,
        lambda: [
            oracle_queue.encode_ext(5, records.NOW, b"\x01\x02") * 2,
            bytes(20),
            b"\x7f\xff" + bytes(30),
        ],
    ),
    Target("index", run_index, _index_files, None, 3_000),
    Target("mend", run_mend, _mends),
)
