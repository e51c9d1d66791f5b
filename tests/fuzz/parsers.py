"""Targets for what Python parses: the small files of a store."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from cystore.config import StoreConfig
from cystore.derived.files.offsets import (
    DELAY_OFFSETS,
    OFFSET_MAX,
    QUEUE_OFFSETS,
    DelayOffsets,
    QueueOffsets,
    parse_offsets,
    read_delay_offsets,
    read_queue_offsets,
    render_offsets,
    write_delay_offsets,
    write_queue_offsets,
)
from cystore.engine.files.checkpoint import parse_checkpoint
from cystore.engine.manifest.damaged_ranges import (
    DamagedRange,
    DamagedRanges,
    parse_damaged_ranges,
    render_damaged_ranges,
)
from cystore.errors import StoreConfigError, StoreFormatError
from tests.fuzz.target import Target, Wrong, same
from tests.oracle import checkpoint as oracle

_folder = tempfile.TemporaryDirectory()
ROOT = Path(_folder.name)


def run_checkpoint(data: bytes) -> None:
    found = parse_checkpoint(data)
    expected = oracle.parse(data[: oracle.FILE_BYTES].ljust(oracle.FILE_BYTES, b"\0"))
    known = list(vars(expected).values())  # the fields that the oracle knows come first
    same("checkpoint", list(found)[: len(known)], known)


def run_offsets(data: bytes) -> None:
    """Delay, consumer and queue offsets: one dialect of JSON."""
    try:
        found = parse_offsets(data.decode())
    except ValueError:
        return
    for value in found.table.values():
        for offset in value.values() if isinstance(value, dict) else [value]:
            if type(offset) is not int or not 0 <= offset <= OFFSET_MAX:
                raise Wrong(f"{offset!r} is taken for an offset")
    again = parse_offsets(render_offsets(found.table))
    same("written and read again", again.table, found.table)


def run_queue_offsets(data: bytes) -> None:
    path = ROOT / "config" / QUEUE_OFFSETS
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    try:
        found = read_queue_offsets(ROOT)
    except StoreFormatError:
        return
    for (topic, queue_id), offset in [*found.next.items(), *found.minimum.items()]:
        if type(topic) is not str or type(queue_id) is not int or not 0 <= offset <= OFFSET_MAX:
            raise Wrong(f"{topic!r}/{queue_id!r}: {offset!r}")
    if found.physical_offset < 0:
        raise Wrong(f"physical offset {found.physical_offset}")


def run_delay_offsets(data: bytes) -> None:
    """Whole, or as its copy: nothing that is no table of offsets is taken for one, and what is right is read again."""
    path = ROOT / "config" / DELAY_OFFSETS
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(data)
    damaged: list[Path] = []
    try:
        found = read_delay_offsets(ROOT, lambda offsets: None, damaged)
    except StoreFormatError:
        same("damaged", damaged[0], path)
        return
    for level, offset in found.table.items():
        if type(level) is not int or not 0 <= offset <= OFFSET_MAX or found.physical_offset < 0:
            raise Wrong(f"{found}")
    again = Path(tempfile.mkdtemp(dir=ROOT))
    write_delay_offsets(again, found)
    same("written and read again", read_delay_offsets(again, lambda offsets: None, []), found)
    shutil.rmtree(again)


def run_holes(data: bytes) -> None:
    try:
        found = parse_damaged_ranges(data)
    except ValueError:
        return
    end = 0
    for hole in found:
        if not end <= hole.begin < hole.end:
            raise Wrong(f"{hole} behind {end}")
        end = hole.end
    same("written and read again", parse_damaged_ranges(render_damaged_ranges(found)), found)


def run_config(data: bytes) -> None:
    """A settings file and a setting from a command line: not stored by us, but read from where others write."""
    path = ROOT / "store.toml"
    path.write_bytes(data)
    for read in (
        lambda: StoreConfig.from_toml(path),
        lambda: StoreConfig.from_mapping(
            dict([StoreConfig.parse_setting(data.decode("utf-8", "surrogateescape"))])
        ),
    ):
        try:
            read()
        except StoreConfigError:
            pass


def _checkpoints() -> list[bytes]:
    whole = oracle.encode(
        oracle.Checkpoint(1_700_000_000_000, 1_699_999_999_000, 1, 4096, 4000, 0xFFFFFFFF, 9)
    )
    return [whole[:64], whole[:24], b"", bytes(56), b"\xff" * 56]


def _offsets() -> list[bytes]:
    root = Path(tempfile.mkdtemp(dir=ROOT))
    write_queue_offsets(root, QueueOffsets({("T", 0): 5, ("T", 1): 6}, {("T", 0): 1, ("T", 1): 0}, 1000))
    return [
        (root / "config" / QUEUE_OFFSETS).read_bytes(),
        b'{"offsetTable":{1:6,2:5}}',
        b'{\n\t"offsetTable":{"T@g":{0:1,1:9223372036854775807}}\n}',
        b'{"offsetTable":{"a\\u0041\\"{,x:":3},"x":[1]}',
        b'{"offsetTable":{-1:1.5e3,"":NaN}}',
    ]


def _delay_offsets() -> list[bytes]:
    root = Path(tempfile.mkdtemp(dir=ROOT))
    write_delay_offsets(root, DelayOffsets({1: 5, 18: 600}, 4711))
    return [
        (root / "config" / DELAY_OFFSETS).read_bytes(),
        b'{\n\t"offsetTable":{1:6,2:5\n\t}\n}',
        b'{"offsetTable":{"1":{"2":3}},"physicalOffset":-1}',
        b'{"offsetTable":{"x":1}}',
    ]


def _holes() -> list[bytes]:
    return [
        render_damaged_ranges(
            DamagedRanges([DamagedRange(0, 10, "checksum", "0-10", 1), DamagedRange(50, 61)])
        ),
        render_damaged_ranges(DamagedRanges()),
        json.dumps({"holes": [{"begin": -1, "end": 5, "reason": None}]}).encode(),
    ]


def _configs() -> list[bytes]:
    return [
        b'[cystore]\nflush_disk_type = "sync"\nmax_queues = 100\nservices = ["flush"]\ngroup = "root"\n',
        b"max_queues=1_000",
        b"services=flush,reput",
        b"message_delay_level=1s 5s 1d",
        b"read_only=yes",
    ]


TARGETS = (
    Target("checkpoint", run_checkpoint, _checkpoints, python=True),
    Target("offsets", run_offsets, _offsets, python=True),
    Target("queue_offsets", run_queue_offsets, _offsets, per_second=8_000, python=True),
    Target("delay_offsets", run_delay_offsets, _delay_offsets, per_second=1_500, python=True),
    Target("holes", run_holes, _holes, python=True),
    Target("config", run_config, _configs, per_second=5_000, python=True),
)
