"""A target for imports: the directory of a DLedger broker, any file of it wrong."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import cystore
from cystore.config import StoreConfig
from cystore.dledger.entries import Bad
from cystore.dledger.messages import messages
from cystore.dledger.place import find
from cystore.dledger.source import Source
from cystore.dledger.verify import verify
from cystore.errors import StoreError
from cystore.operate.ledger_import import import_ledger
from tests.fuzz import records
from tests.fuzz.stores import LOG_BYTES, ROOT, SETTINGS
from tests.fuzz.target import Target, Wrong, edit, overlay, same
from tests.oracle.ledger import HEAD, INDEX_BYTES, INDEX_ENTRY
from tests.oracle.record import ROCKETMQ_MAGIC, NotValid, Record, encode, parse

BLANK_BYTES = 8
OLD_RECORDS = 5  # in the commit log from before the DLedger
UNCOMMITTED = 3  # entries behind the committed index
_numbers = itertools.count()


def _rows() -> list[Record]:
    """Records of a broker, in the order of the log."""
    rows, counts = [], dict[tuple[str, int], int]()
    for at, one in enumerate(records.samples() * 6):
        queue = one.topic, one.queue_id
        place = counts.get(queue, 0) if one.in_queue else 0
        counts[queue] = counts.get(queue, 0) + one.in_queue
        more = {"magic": ROCKETMQ_MAGIC, "queue_offset": place, "store_timestamp_ms": records.NOW + at}
        rows.append(replace(one, **more))
    return rows


@cache
def _sound() -> dict[str, bytes]:
    """Each file of the broker's directory, by its path there."""
    rows, old, files, index = _rows(), b"", dict[str, bytearray](), b""
    for row in rows[:OLD_RECORDS]:
        old += encode(replace(row, physical_offset=len(old))).raw
    old += (LOG_BYTES - len(old)).to_bytes(4, "big") + b"\xcb\xd4\x31\x94"  # a blank
    base = pos = LOG_BYTES
    for number, row in enumerate(rows[OLD_RECORDS:]):
        size = HEAD.size + len(encode(row).raw)
        if pos + size + BLANK_BYTES > base + LOG_BYTES:
            left = base + LOG_BYTES - pos
            files[f"{base:020}"][pos - base : pos - base + 8] = b"\xff" * 4 + left.to_bytes(4, "big")
            base = pos = base + LOG_BYTES
        data = files.setdefault(f"{base:020}", bytearray(LOG_BYTES))
        body = encode(replace(row, physical_offset=pos + HEAD.size)).raw
        entry = HEAD.pack(1, size, number, 2, pos, 0, 0, 0, len(body)) + body
        data[pos - base : pos - base + size] = entry
        index += INDEX_ENTRY.pack(1, pos, size, number, 2)
        pos += size
    committed = len(rows) - OLD_RECORDS - 1 - UNCOMMITTED
    folder = "dledger-n0/"
    return {
        **{f"{folder}data/{name}": bytes(data) for name, data in files.items()},
        f"{folder}index/{0:020}": index,
        f"{folder}checkpoint": b"endIndex=%d\ncommittedIndex=%d\n" % (committed, committed),
        f"{folder}currterm": b"currTerm=2\nvoteLeader=n0\n",
        f"commitlog/{0:020}": old.ljust(LOG_BYTES, b"\0"),
        "config/consumerOffset.json": b'{"offsetTable":{"T@g":{0:1}}}',
        "config/delayOffset.json": b'{"offsetTable":{3:1}}',
    }


def run_ledger(data: bytes) -> None:
    """What is read and imported is sound records of their places; all else is damage or a typed error."""
    files = {name: bytearray(content) for name, content in _sound().items()}
    overlay(data, list(files.values()))
    root = ROOT / f"ledger-{next(_numbers)}"
    broker, made = root / "broker", root / "store"
    try:
        for name, content in files.items():
            path = broker / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
            if "index" in name:
                with open(path, "r+b") as file:
                    file.truncate(INDEX_BYTES)
        whole = _read(broker)
        _import(broker, made, uncommitted=bool(len(data) % 2), whole=whole)
    finally:
        shutil.rmtree(root, ignore_errors=True)


def _read(broker: Path) -> int:
    """Reads the DLedger in all ways; returns the number of its records, -1 if it cannot be read."""
    with contextlib.suppress(StoreError):
        source = Source(find(broker), LOG_BYTES)
        with contextlib.closing(source):
            found = [one for one in source.records(uncommitted=True) if not isinstance(one, Bad)]
            for one in found:
                _check_record(one.body, one.physical_offset)
        source = Source(find(broker), LOG_BYTES)
        with contextlib.closing(source):
            for message in messages(source, lambda _: True, 0, lambda _: None):
                if not message.topic or message.queue_offset < 0:
                    raise Wrong(f"{message} is no message of a queue")
        source = Source(find(broker), LOG_BYTES)
        with contextlib.closing(source):
            list(verify(source))
        return len(found)
    return -1


def _check_record(body: bytes, physical_offset: int) -> None:
    try:
        expected = parse(body, 0)
    except NotValid as error:
        raise Wrong(f"read from {physical_offset}: {error}") from None
    if not isinstance(expected, Record):
        raise Wrong(f"a blank is read from {physical_offset}")
    same("the place", expected.physical_offset, physical_offset)


def _import(broker: Path, target: Path, *, uncommitted: bool, whole: int) -> None:
    config = StoreConfig.from_mapping(SETTINGS)
    try:
        done = import_ledger(broker, target, config, uncommitted=uncommitted, skip_damaged=True)
    except StoreError:
        same("left behind", list(target.parent.glob(f"{target.name}*")), [])
        return
    if whole >= 0 and done.records > whole:
        raise Wrong(f"{done.records} records of {whole}")
    with cystore.open(target, **SETTINGS) as store:
        same("records", sum(1 for _ in store.scan()), done.records)
        for topic, queues in store.topics().items():
            for queue_id, there in queues.items():
                for message in store.get(topic, queue_id, there.min_offset).messages:
                    same("the queue", (message.topic, message.queue_id), (topic, queue_id))


LEDGER_EDITS = [
    b"",
    edit(0, 4, (1 << 22).to_bytes(4, "big")),  # of the first entry: its size
    edit(0, 24, b"\xff" * 8) + edit(0, HEAD.size, b"\xff" * 4),  # its place, and its record's size
    edit(0, 8, b"\0" * 8 + b"\x07" * 8) + edit(2, 0, b"\xff" * 20),  # its term, and the index
    edit(1, 0, b"\0" * 24),
    edit(3, 12, b"9" * 12) + edit(4, 9, b"x"),  # checkpoint and term
    edit(5, 100, b"\xff" * 3),  # the old log
    edit(6, 20, b"\x80") + edit(7, 12, b"]"),  # the tables of offsets
]
TARGETS = (Target("ledger", run_ledger, lambda: LEDGER_EDITS, None, 8, python=True),)
