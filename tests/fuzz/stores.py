"""Targets for what runs over several files: queues, index and dispatch beside a log, the control block, and whole
stores."""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import sys
import tempfile
from functools import cache
from pathlib import Path

import cystore
from cystore import StoreError, layout
from cystore._native.derived import queue as queue_kernel
from cystore._native.derived.queue import BatchLimits, TagFilter
from cystore._native.filters.text_walk import next_containing
from cystore._native.lookup import sequence, tail, tail_table
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.key_reader import KeyReader
from cystore._native.lookup.many_keys import query_many
from cystore._native.lookup.tail import TailKeys
from cystore._native.lookup.visible import has_expired, is_visible
from cystore._native.memory.control import WROTE, Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.window import LogWindow
from cystore.errors import CorruptRecordError, MessageIllegalError, StoreFormatError
from tests.fuzz import records
from tests.fuzz.target import Target, Wrong, edit, overlay, same
from tests.oracle import index as oracle_index
from tests.oracle.log import Log
from tests.oracle.queue import encode_entry, entries_of
from tests.oracle.record import NotValid, Record, parse
from tests.support import parts
from tests.support.parts import QueueInMemory

logging.getLogger("cystore").setLevel(logging.CRITICAL)  # reports of damage, by the thousand
MEMORY = Path("/dev/shm")
_folder = tempfile.TemporaryDirectory(dir=MEMORY if os.access(MEMORY, os.W_OK) else None)
ROOT = Path(_folder.name)

LOG_BYTES = 4096
WROTE_AT, DISPATCHED_AT = (
    next(at for field, at in layout.CONTROL_FIELDS if field.name == name) for name in ("wrote", "dispatched")
)
SLOTS, CAPACITY = 11, 40
TEXTS = [cystore.Contains(text) for text in ("T", "body", (b"u1", b"none"), b"none")]
LIMITS = BatchLimits(
    memory_bytes=1 << 20, bytes_in_memory=1 << 16, count_in_memory=32, bytes_in_disk=1 << 14, count_in_disk=8
)
SETTINGS = {
    "mapped_file_size_commit_log_bytes": LOG_BYTES,
    "mapped_file_size_consume_queue_bytes": 400,
    "max_hash_slot_num": SLOTS,
    "max_index_num": CAPACITY,
    "max_queues": 64,
    "allocate_ahead_bytes": 4096,
    "populate_ahead_bytes": 0,
    "services": "none",
}


def _mapped(data: bytes, base: int = 0) -> MappedFile:
    file = MappedFile.anonymous(base, max(len(data), 1))
    file.write(0, data)
    return file


@cache
def _log() -> Log:
    return records.log_of(LOG_BYTES)


@cache
def _sound() -> tuple[bytes, bytes, bytes]:
    """Log, entries of queue T/0, index file, as dispatch would make them."""
    log = _log()
    rows = log.records()
    entries = entries_of(rows)["T", 0]
    file = oracle_index.IndexFile(SLOTS, CAPACITY)
    for row in rows:
        for key in row.index_keys:
            file.put(f"{row.topic}#{key}", row.physical_offset, row.store_timestamp_ms)
    return log.files[0], b"".join(encode_entry(entries[n]) for n in sorted(entries)), bytes(file.data)


def _edited(data: bytes) -> tuple[bytearray, bytearray, bytearray]:
    log, entries, index = map(bytearray, _sound())
    overlay(data, [log, entries, index])
    return log, entries, index


def _check(message: cystore.Message, log: bytes) -> None:
    """I8: what is served is a valid record of the log, at its place, whole."""
    try:
        expected = parse(log, message.physical_offset)
    except NotValid as error:
        raise Wrong(f"served from {message.physical_offset}: {error}") from None
    if not isinstance(expected, Record):
        raise Wrong(f"a blank is served from {message.physical_offset}")
    same("body", bytes(message.body), expected.body)
    same("topic", message.topic, expected.topic)
    same("queue", (message.queue_id, message.queue_offset), (expected.queue_id, expected.queue_offset))


@cache
def _queue() -> QueueInMemory:
    return QueueInMemory(LOG_BYTES, LIMITS)


def run_queue(data: bytes) -> None:
    """A batch through entries and a log that may both be wrong."""
    log, entries, _ = _edited(data)
    segment = _mapped(log)
    window, queue = LogWindow(lambda _: segment), _queue()
    queue.fill(entries)
    tags = TagFilter("red || t") if data[:1] > b"\x80" else None
    first, count = 0, len(entries) // 20
    while first < count:
        try:
            result, done = queue.get(first, 32, window=window, tags=tags)
        except CorruptRecordError:
            first += 1
            continue
        for message in result.messages:
            _check(message, bytes(log))
            same("queue", (message.topic, message.queue_id), ("T", 0))
        first += max(done, 1)
    with contextlib.suppress(CorruptRecordError):
        queue.get(0, 32, window=window, tags=tags, raw=True)
    queue_kernel.step_over_holes(_mapped(entries), 0, len(entries), True)


class _Near:
    """What a search by key needs besides the log: one index file. Nothing is dispatched meanwhile."""

    def __init__(self, window: LogWindow, file: MappedFile) -> None:
        self._window, self._file = window, file

    def index_files(self) -> list[tuple[MappedFile, int, int]]:
        return [(self._file, SLOTS, CAPACITY)]

    def window(self) -> LogWindow:
        return self._window

    def dispatch(self) -> None:
        """The rest of the log stays undispatched."""

    def undispatched_damage(self, position: int) -> CorruptRecordError:
        return CorruptRecordError("not valid", path=ROOT, offset=position)

    def report(self, damaged: list[CorruptRecordError]) -> None:
        """Damage is expected here."""


def run_text(data: bytes) -> None:
    """The walk to a record that contains a text, over a log of which any byte may be wrong: in one call, and record by
    record."""
    log = bytes(_edited(data)[0])
    file, end = _mapped(log), len(log)
    for contains in TEXTS:
        at = 0
        while at < end:
            found, step = next_containing(file, at, end, end, contains.program), at
            while step < end:
                following = next_containing(file, step, step + 1, end, contains.program)
                if following == step:
                    break
                same("goes on", following > step, True)
                step = following
            same("found", found, step)
            try:
                row = parse(log[found:]) if found < end else None
            except NotValid:
                break
            if not isinstance(row, Record) or row.physical_offset != found:
                break  # a record of another place stops the walk
            if row.sys_flag & layout.CONSTANTS["SYS_FLAG_COMPRESSED"][0]:
                break
            same("taken", any(text in row.raw for text in contains.texts), True)
            at = found + row.size


def run_query(data: bytes) -> None:
    """Messages by key through an index and a log that may both be wrong."""
    log, _, index = _edited(data)
    segment, file = _mapped(log), _mapped(index)
    control = _control()
    dispatched = 0 if data[:1] > b"\x80" else len(log)  # 0: the log is searched beside the index
    for at, value in ((WROTE_AT, len(log)), (DISPATCHED_AT, dispatched)):
        control.file.write(at, value.to_bytes(8, sys.byteorder))  # back, too, which no setter does
    window = LogWindow(lambda _: segment)
    reader = KeyReader(
        control, _Near(window, file), [], ReadCounts(control, lambda: None), TailKeys(), None, WROTE
    )
    for text in ("a", "u1", "none"):
        try:
            found = reader.query(b"T", text, 5, 0, 2**63 - 1, False, WROTE)
        except CorruptRecordError:
            continue
        same("repeats", len({message.physical_offset for message in found}), len(found))
        for message in found:
            _check(message, bytes(log))
            visible = is_visible(control, message)
            same("visible", visible and has_expired(control, message), False)
            if text not in (*message.keys, message.unique_key) or message.topic != "T":
                raise Wrong(f"{text!r} is no key of {message!r}")
    for text, answer in query_many(reader, b"T", ["a", "u1", "none"], 5, WROTE).items():
        alone = reader.query(b"T", text, 5, 0, 2**63 - 1, False, WROTE)
        same("places", [m.physical_offset for m in answer], [m.physical_offset for m in alone])
    for key in (b"a", b"u1", b"none"):
        for message in tail.find_messages(window, 0, len(log), 0, b"T", key, 5, 0, 2**63 - 1)[0]:
            _check(message, bytes(log))
            if key.decode() not in (*message.keys, message.unique_key) or message.topic != "T":
                raise Wrong(f"{key!r} is no key of {message!r}")
    for position in (0, len(log) // 3, len(log) - 1):
        following, _ = sequence.next_offsets(window, 0, len(log), position, b"T", 0, 1, 3)
        if len(following) > 3 or min(following, default=1) < 1:
            raise Wrong(f"{following} are not the next three queue offsets from 1 on")
    made = MappedFile.anonymous(0, 20 * 40)
    count, _ = tail.entries_into(made, window, 0, len(log), 0, b"T", 0)
    for number in range(count):
        entry = queue_kernel.entry_at(made, 20 * number)
        if entry is not None:
            record = parse(bytes(log), entry[0])
            same("queue offset", record.queue_offset, number)
    for most in (3, tail_table.ENTRIES_MAX):  # the second has room for every jump that a record may make
        _check_table(tail_table.TailTable(most), window, log, made, count if most > count else 0)


def _check_table(
    table: tail_table.TailTable, window: LogWindow, log: bytearray, expected: MappedFile, count: int
) -> None:
    """The table of all queues has what the walk for one queue found, as far as it goes: it ends before more holes than
    it has room for, so the holes at the end are not asked for."""
    while count and queue_kernel.entry_at(expected, 20 * (count - 1)) is None:
        count -= 1
    made = MappedFile.anonymous(0, expected.length)
    found = table.entries_into(made, _reading_control(), window, 0, len(log), 0)
    if found is None or found < count:
        raise Wrong(f"{found} entries instead of {count}")
    for number in range(found):
        entry = queue_kernel.entry_at(made, 20 * number)
        if entry is not None:
            record = parse(bytes(log), entry[0])
            same("queue offset", (record.queue_id, record.queue_offset), (0, number))


@cache
def _reading_control() -> Control:
    """Knows the queue T/0, of which nothing is dispatched."""
    control = parts.control_block(cystore.StoreConfig(**SETTINGS), 64)
    control.add_queue("T", 0)
    return control


@cache
def _control() -> Control:
    return parts.control_block(cystore.StoreConfig(**SETTINGS), 64)


@cache
def _control_image() -> bytes:
    control = parts.control_block(cystore.StoreConfig(**SETTINGS), 64)
    for number in range(20):
        control.add_queue(f"T{number}", number % 3, next=9, dispatched=5, minimum=1)
    control.wrote, control.flushed, control.dispatched, control.last_record = 5000, 4000, 4500, 4900
    return control.file.read(0, control.file.length)


def run_control(data: bytes) -> None:
    """A control block of somebody else's bytes: it is refused, or nothing that reads it leaves it."""
    image = _control_image()
    regions = [
        bytearray(image[: layout.CONTROL_BUCKETS_AT]),
        bytearray(image[layout.CONTROL_BUCKETS_AT : layout.CONTROL_QUEUES_AT]),
        bytearray(image[layout.CONTROL_QUEUES_AT :]),
    ]
    overlay(data, regions)
    try:
        control = Control.attach(_mapped(b"".join(regions)), **parts.HOST)
    except StoreFormatError:
        return
    for slot in range(min(control.queue_count, 70)):
        try:
            control.queue(slot)
        except IndexError:
            break
    for number in (0, 5, 19, 99):
        slot = control.find_queue(f"T{number}", number % 3)
        state = queue_kernel.queue_state(control, b"T%d" % number, number % 3)
        same("slot", state[0] if state else -1, slot)
        if not -1 <= slot < 64:
            raise Wrong(f"slot {slot}")
    queue_kernel.queues_to_flush(control)
    control.counters()
    _ = control.intent, control.more_queue_bytes(), control.intact, control.flags, control.last_record


@cache
def _template() -> dict[str, bytes]:
    """The files of a small store that was closed."""
    root = ROOT / "template"
    with cystore.open(root, **SETTINGS) as store:
        for number in range(60):
            store.put(
                f"T{number % 3}", b"x" * (number * 7 % 90), keys=(f"k{number % 9}",), tags="red", flush="sync"
            )
        store.dispatch()
    found = {
        str(path.relative_to(root)): path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file()
    }
    shutil.rmtree(root)
    return found


def _written(data: bytes) -> tuple[Path, dict[str, bytes]]:
    """A store with some of its bytes changed; by the first byte's bits also one that was not closed."""
    names = sorted(_template())
    contents = [bytearray(_template()[name]) for name in names]
    overlay(data[1:], contents)
    root = ROOT / "store"
    shutil.rmtree(root, ignore_errors=True)
    for name, content in zip(names, contents, strict=True):
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    if data[:1] >= b"\x80":
        (root / "abort").touch()
    return root, {name: bytes(content) for name, content in zip(names, contents, strict=True)}


def _look(store: cystore.MessageStore, log: dict[int, bytes]) -> None:
    """Everything that can be read is right (I8); what cannot be read says so."""
    for topic, queues in store.topics().items():
        for queue_id, (minimum, maximum) in queues.items():
            at = minimum
            while at < maximum:
                try:
                    got = store.get(topic, queue_id, at)
                except CorruptRecordError:
                    at += 1
                    continue
                for message in got.messages:
                    _check_in(message, log)
                at = max(got.next_offset, at + 1)
    for number in range(9):
        for topic in ("T0", "T1", "T2"):
            with contextlib.suppress(CorruptRecordError):
                for message in store.query(topic, f"k{number}"):
                    _check_in(message, log)
                    same("key", f"k{number}" in message.keys, True)


def _check_in(message: cystore.Message, log: dict[int, bytes]) -> None:
    base = message.physical_offset - message.physical_offset % LOG_BYTES
    data = log[base]
    expected = parse(data, message.physical_offset - base)
    if not isinstance(expected, Record):
        raise Wrong(f"a blank is served from {message.physical_offset}")
    same("body", bytes(message.body), expected.body)
    same("place", expected.physical_offset, message.physical_offset)


def run_store(data: bytes) -> None:
    """Recovery in private memory, then every read."""
    root, contents = _written(data)
    try:
        with cystore.open(root, read_only=True, **SETTINGS) as store:
            _look(store, _logs(contents))
    except StoreError:
        pass
    same("files", {name: (root / name).read_bytes() for name in contents}, contents)


def run_recovery(data: bytes) -> None:
    """Recovery in place, puts behind it, and a second open that finds nothing to do."""
    root, contents = _written(data)
    try:
        store = cystore.open(root, **SETTINGS)
    except StoreError:
        return
    with store:
        _look(store, _logs(contents))
        put = store.put("T0", b"after", keys=("after",), flush="sync")
        store.put("T0", b"later", flush="sync")  # this sync is led by the kernel, which knows the segment now
    with cystore.open(root, **SETTINGS) as store:
        found = [bytes(message.body) for message in store.query("T0", "after")]
        same("what was put behind the damage", found, [b"after"])
        same("its place", store.read(put.physical_offset).queue_offset, put.queue_offset)
        same("cut again", store.recovery.cut_bytes if hasattr(store.recovery, "cut_bytes") else 0, 0)


def _logs(contents: dict[str, bytes]) -> dict[int, bytes]:
    return {
        int(name.rpartition("/")[2]): data
        for name, data in contents.items()
        if name.startswith("commitlog/0")
    }


class _Renewed:
    """A store that is made anew after some thousand puts."""

    def __init__(self, name: str, **settings: object) -> None:
        self._name, self._settings, self._puts = name, settings, 0
        self._store: cystore.MessageStore | None = None
        atexit.register(self.close)  # before the folder is removed

    def store(self) -> cystore.MessageStore:
        if self._store is None or self._puts % 3000 == 0:
            self.close()
            shutil.rmtree(ROOT / self._name, ignore_errors=True)
            settings = {**SETTINGS, "mapped_file_size_commit_log_bytes": 1 << 20, **self._settings}
            self._store = cystore.open(ROOT / self._name, **settings)
        self._puts += 1
        return self._store

    def is_full(self) -> None:
        """Every queue is taken: the next put begins anew."""
        self._puts = 0

    def close(self) -> None:
        if self._store is not None:
            self._store.close()


_puts = _Renewed("puts", message_delay_level="0s")
_light = _Renewed("light", enable_lmq=True, enable_multi_dispatch=True)


def run_light(data: bytes) -> None:
    """Names of light queues: a put refuses them, or the message is in each of them at the offset that it says."""
    store, value = _light.store(), data.decode("utf-8", "surrogateescape")
    try:
        put = store.put("T", b"body", properties={"INNER_MULTI_DISPATCH": value})
    except MessageIllegalError:
        return
    except cystore.StoreFullError:
        return _light.is_full()
    offsets = store.read(put.physical_offset).properties.get("INNER_MULTI_QUEUE_OFFSET", "")
    store.dispatch()
    for name, offset in zip(filter(None, value.split(",")), filter(None, offsets.split(",")), strict=True):
        found = store.get(name, 0, int(offset), 1).messages
        same("place", [message.physical_offset for message in found], [put.physical_offset])


def run_put(data: bytes) -> None:
    """Arguments of users: a put refuses them, or the message comes back unchanged; a delayed one reaches its topic
    unchanged."""
    store = _puts.store()
    body, *rest = data.split(b"\0")
    topic, key, tag, name, value = (
        *(part.decode("utf-8", "surrogateescape") for part in rest[:5]),
        *("T", "k", "", "n", "v")[len(rest[:5]) :],
    )
    try:
        given = {"keys": (key,), "tags": tag, "properties": {name: value} if name else None}
        put = store.put(topic, body, **given)
        plain = store.put(topic, body, keys=(key,), tags=tag)
        waiting = store.put(topic, body, **given, delay_level=1 + len(data) % 3)
    except MessageIllegalError:
        return
    except cystore.StoreFullError:
        return _puts.is_full()
    same("delivered", store.deliver(), 1)
    _, delivered = store.scan(waiting.physical_offset)
    same("its level", delivered.delay_level, 1)
    plainly = store.read(plain.physical_offset)
    for found in (store.read(put.physical_offset), plainly, delivered):
        same("message", (found.topic, bytes(found.body), found.keys), (topic, body, (key,) if key else ()))
        same("tag", found.tags or "", tag)
        if name and found is not plainly:
            same("property", found.properties.get(name, ""), value)  # an empty one is as good as none


EDITS = [
    b"",
    edit(0, 20, b"\0\0\0\0\0\0\0\1"),
    edit(1, 8, b"\x7f\xff\xff\xff"),
    edit(1, 0, bytes(20)),
    edit(2, 36, b"\x7f\xff\xff\xff"),
    edit(2, 44, b"\0\0\0\1"),
]
WHOLE = [b"\0", b"\x80", *(bytes([128 * (n % 2)]) + edit(n, 8 + 40 * n, b"\xff" * 8) for n in range(8))]
LIGHT = [b"%LMQ%a", b"%LMQ%a,%LMQ%b,%LMQ%c", b"%LMQ%a,%LMQ%a", b"a,%LMQ%", b",", b"%LMQ%" + b"x" * 122]
PUTS = [
    b"body",
    b"body\0T\0key\0tag\0name\0value",
    b"\xff\0%RETRY%g\0\xc3\xa9\0\0KEYS\0x",
    b"\0T\0a b\0t\0\x01\0y",
]
TARGETS = (
    Target("queue", run_queue, lambda: EDITS, None, 8_000),
    Target("query", run_query, lambda: EDITS, None, 8_000),
    Target("text", run_text, lambda: EDITS, None, 3_000),
    Target("control", run_control, lambda: EDITS, None, 3_000),
    Target("light", run_light, lambda: LIGHT, None, 3_000),
    Target("put", run_put, lambda: PUTS, None, 15_000),
    Target("store", run_store, lambda: WHOLE, None, 100, python=True),
    Target("recovery", run_recovery, lambda: WHOLE, None, 30, python=True),
)
