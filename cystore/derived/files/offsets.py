"""The offset tables in config/: small JSON files as RocketMQ's ConfigManager writes them through fastjson.

Integer keys have no quotes in them (checked_json.py reads both). A file is written completely or not at
all; if it is damaged, the last good copy beside it (NAME.bak) is read.
"""

from __future__ import annotations

import heapq
import re
from collections.abc import Callable, Iterable
from dataclasses import field
from pathlib import Path
from typing import Any, TypeVar

from cystore._native.memory.control import Control
from cystore._native.record.checksum import crc32c
from cystore.engine.manifest.topic_names import is_topic
from cystore.errors import StoreFormatError
from cystore.system import files
from cystore.system.checked_json import parse_bare_keys, text_of
from cystore.system.small_files import reserve_room, write_in_room
from cystore.value_class import value_class

DELAY_OFFSETS = "delayOffset.json"
CONSUMER_OFFSETS = "consumerOffset.json"
QUEUE_OFFSETS = "queueOffset.json"
RESERVED_BYTES = 64 * 1024  # for a table of queue offsets at least
ROW_BYTES = 30  # of a queue in one of the two tables, beside its topic
NAMES_LOOKED_AT = 1024  # topics whose lengths tell how long a table of many queues gets
ROWS_AT_ONCE = 2048  # of a table, in one call that holds up other threads
END_BYTES = 256  # of a table: its log position and its checksum

T = TypeVar("T")
OFFSET_MAX = (1 << 63) - 1
QUEUE_ID, QUEUE_ID_MAX = re.compile(r"[0-9]{1,10}\Z", re.ASCII), (1 << 31) - 1


@value_class(frozen=True)
class OffsetFile:
    """An offset table and the other values at its top level."""

    table: dict[str, Any] = field(default_factory=dict)
    rest: dict[str, Any] = field(default_factory=dict)


def parse_offsets(text: str) -> OffsetFile:
    """The content of an offset file; keys are text, offsets whole numbers ≥ 0, nested at most once. Raises
    ValueError."""
    data = parse_bare_keys(text)
    table = check_table("offsetTable", data.pop("offsetTable", {}))
    return OffsetFile(table, data)


def check_table(name: str, table: Any) -> dict[str, Any]:
    """`table` if it maps names to offsets, or to maps of offsets. Raises ValueError."""
    if not isinstance(table, dict):
        raise ValueError(f"there is no {name}")
    for key, value in table.items():
        inner = value if isinstance(value, dict) else {"": value}
        for number, offset in inner.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or not 0 <= offset <= OFFSET_MAX:
                raise ValueError(
                    f"{name}[{key!r}]{f'[{number!r}]' if number else ''} is {offset!r}, not an offset"
                )
    return table


def render_offsets(table: dict[Any, Any], **rest: Any) -> str:
    """JSON that fastjson reads into maps with integer keys: numbers as keys stay without quotes."""
    lines = [f'\t"offsetTable":{{{_pairs(table)}\n\t}}'] + [
        f'\t"{name}":{_value(value)}' for name, value in rest.items()
    ]
    return "{\n" + ",\n".join(lines) + "\n}"


def _pairs(entries: dict[Any, Any]) -> str:
    return ",".join(
        f"{key if isinstance(key, int) else text_of(key)}:{_value(value)}" for key, value in entries.items()
    )


def _value(value: Any) -> str:
    return "{" + _pairs(value) + "}" if isinstance(value, dict) else str(int(value))


def read_offsets(root: Path, name: str) -> OffsetFile:
    """The offset file `name` of a store; empty without one.

    The last good copy replaces a damaged file; StoreFormatError if neither can be read.
    """
    return _first_good(root, name, lambda found: found, OffsetFile())


def _first_good(
    root: Path, name: str, convert: Callable[[OffsetFile], T], nothing: T, damaged: list[Path] | None = None
) -> T:
    """The result of `convert` for an offset file, or for its copy if it raises ValueError; files with that error are
    added to `damaged`."""
    path = root / "config" / name
    problem: Exception | None = None
    try:
        for candidate in (path, path.with_name(path.name + ".bak")):
            data = files.read_if_there(candidate)
            if data is None:
                continue
            try:
                return convert(parse_offsets(data.decode()))
            except ValueError as error:
                problem = problem or error
                if damaged is not None:
                    damaged.append(candidate)
        if problem is not None:
            raise StoreFormatError(f"no offset table can be read: {problem}", path=path) from problem
        return nothing
    finally:
        problem = None  # drops the reference to this frame, which would keep every caller's open files alive


def write_offsets(root: Path, name: str, table: dict[Any, Any], **rest: Any) -> None:
    """Writes the offset file `name` of a store whole or not at all."""
    files.write_whole(root, root / "config" / name, render_offsets(table, **rest).encode())


@value_class(frozen=True)
class QueueOffsets:
    """Next and minimum queue offset of each (topic, queue id), taken when the log ended at `physical_offset`.

    Every record below `physical_offset` is counted; records above it may be too. A queue whose minimum is its next
    offset has no message left.
    """

    next: dict[tuple[str, int], int] = field(default_factory=dict)
    minimum: dict[tuple[str, int], int] = field(default_factory=dict)
    physical_offset: int = 0

    @classmethod
    def of(cls, queues: Iterable[tuple[str, int, int, int, int]], physical_offset: int) -> QueueOffsets:
        """From rows of the queue table (topic, queue id, next, dispatched, minimum)."""
        rows = list(queues)
        return cls(
            {(topic, queue_id): next_ for topic, queue_id, next_, _, _ in rows},
            {(topic, queue_id): minimum for topic, queue_id, _, _, minimum in rows},
            physical_offset,
        )


def read_queue_offsets(root: Path) -> QueueOffsets:
    """config/queueOffset.json; empty without one. StoreFormatError if it and its copy are damaged."""
    return _first_good(root, QUEUE_OFFSETS, _queue_offsets, QueueOffsets())


def _queue_offsets(found: OffsetFile) -> QueueOffsets:
    """Raises ValueError."""
    position = found.rest.get("physicalOffset", 0)
    if isinstance(position, bool) or not isinstance(position, int) or position < 0:
        raise ValueError(f"physicalOffset is {position!r}")
    minimums = check_table("minimumTable", found.rest.get("minimumTable", {}))
    offsets = QueueOffsets(_by_queue(found.table), _by_queue(minimums), position)
    if found.rest.get("checksum", _checksum(offsets)) != _checksum(offsets):
        raise ValueError("the checksum does not match the content")
    return offsets


def saved_position(root: Path) -> int:
    """The log position of the table of queue offsets on disk; 0 if none can be read. Reads only the end of a large
    table, because parsing all of it would delay every other thread."""
    data = (files.read_if_there(root / "config" / QUEUE_OFFSETS) or b"").rstrip(b" \0")
    if len(data) > RESERVED_BYTES:
        match = re.search(rb'"physicalOffset":([0-9]{1,19})\b', data[-END_BYTES:])
        if match is not None:
            return int(match[1])
    try:
        return read_queue_offsets(root).physical_offset
    except StoreFormatError:
        return 0  # it and its copy are damaged: write a new one


def _checksum(offsets: QueueOffsets) -> int:
    """CRC-32C of the numbers: a flipped bit can turn one valid number into another. It is computed piece by piece, so
    that other threads run."""
    value = crc32c(b"[")
    for table in (offsets.next, offsets.minimum):
        rows = _in_order(table)
        value = crc32c(b"[", value)
        for at in range(0, len(rows), ROWS_AT_ONCE):
            piece = repr(rows[at : at + ROWS_AT_ONCE])[1:-1]
            value = crc32c(f"{', ' if at else ''}{piece}".encode(), value)
        value = crc32c(b"], ", value)
    return crc32c(f"{offsets.physical_offset}]".encode(), value)


def _in_order(table: dict[tuple[str, int], int]) -> list[tuple[tuple[str, int], int]]:
    """The rows of a table, sorted. A large one is sorted piece by piece: one sort would hold up every other thread."""
    rows = list(table.items())
    if len(rows) <= ROWS_AT_ONCE:
        return sorted(rows)
    pieces = (sorted(rows[at : at + ROWS_AT_ONCE]) for at in range(0, len(rows), ROWS_AT_ONCE))
    return list(heapq.merge(*pieces))


def _by_queue(table: dict[str, Any]) -> dict[tuple[str, int], int]:
    return {
        (_topic(topic), _queue_id(queue_id)): offset
        for topic, queues in table.items()
        for queue_id, offset in _queues(queues).items()
    }


def _topic(name: str) -> str:
    """A topic becomes the name of a folder: one like `../x` would lead out of the store. Raises ValueError."""
    if not is_topic(name):
        raise ValueError(f"{name!r} is not a topic")
    return name


def _queue_id(text: str) -> int:
    if not QUEUE_ID.match(text) or int(text) > QUEUE_ID_MAX:
        raise ValueError(f"{text!r} is not a queue id")
    return int(text)


def _queues(queues: Any) -> dict[str, int]:
    if not isinstance(queues, dict):
        raise ValueError(f"{queues!r} is not a map of queue ids")
    return queues


def _by_topic(offsets: dict[tuple[str, int], int]) -> dict[str, dict[int, int]]:
    table: dict[str, dict[int, int]] = {}
    for (topic, queue_id), offset in _in_order(offsets):
        table.setdefault(topic, {})[queue_id] = offset
    return table


def reserve_queue_offsets(root: Path, control: Control, queues: int) -> None:
    """Takes space for a table of so many queues, if their topics are as long as those that there are, so that a full
    disk does not stop a clean. Raises StoreFullError."""
    count = control.queue_count
    looked_at = range(0, count, max(count // NAMES_LOOKED_AT, 1))
    letters = sum(len(control.queue(slot)[0]) for slot in looked_at)
    row_bytes = 2 * (ROW_BYTES + letters // max(len(looked_at), 1))
    length = max(RESERVED_BYTES, queues * row_bytes if count else 0)
    reserve_room(root / "config" / QUEUE_OFFSETS, length)


def write_queue_offsets(root: Path, offsets: QueueOffsets) -> bool:
    """Saves each queue's next offset, so that a queue without messages continues to count. Needs no new space, unless
    there are many more queues than last time. False if there is no room reserved for the next table."""
    return write_in_room(root / "config" / QUEUE_OFFSETS, render_queue_offsets(offsets))


def render_queue_offsets(offsets: QueueOffsets) -> bytes:
    """The content of config/queueOffset.json."""
    text = render_offsets(
        _by_topic(offsets.next),
        minimumTable=_by_topic(offsets.minimum),
        physicalOffset=offsets.physical_offset,
        checksum=_checksum(offsets),
    )
    return text.encode()


@value_class(frozen=True)
class DelayOffsets:
    """The progress of each delay level's queue (level: next queue offset) when the log ended at `physical_offset`:
    every delivered message below that is counted. It is 0 for RocketMQ's file, which lacks the field."""

    table: dict[int, int] = field(default_factory=dict)
    physical_offset: int = 0

    @property
    def checksum(self) -> int:
        """A flipped bit can turn one valid number into another."""
        return crc32c(repr([sorted(self.table.items()), self.physical_offset]).encode())


def read_delay_offsets(
    root: Path, check: Callable[[DelayOffsets], None], damaged: list[Path]
) -> DelayOffsets:
    """config/delayOffset.json, RocketMQ's or ours, or its copy; empty without both.

    `check` raises ValueError for an impossible table. Damaged and impossible files are entered in `damaged`;
    StoreFormatError if both are.
    """

    def convert(found: OffsetFile) -> DelayOffsets:
        position = found.rest.get("physicalOffset", 0)
        if isinstance(position, bool) or not isinstance(position, int) or position < 0:
            raise ValueError(f"physicalOffset is {position!r}")
        for level, offset in found.table.items():
            if isinstance(offset, dict):
                raise ValueError(f"offsetTable[{level!r}] is {offset!r}, not an offset")
        offsets = DelayOffsets({int(level): offset for level, offset in found.table.items()}, position)
        if found.rest.get("checksum", offsets.checksum) != offsets.checksum:
            raise ValueError("the checksum does not match the content")
        check(offsets)
        return offsets

    return _first_good(root, DELAY_OFFSETS, convert, DelayOffsets(), damaged)


def write_delay_offsets(root: Path, offsets: DelayOffsets) -> None:
    """Saves the progress of each level in RocketMQ's format, without values that RocketMQ does not know."""
    table = dict(sorted(offsets.table.items()))
    write_offsets(
        root, DELAY_OFFSETS, table, physicalOffset=offsets.physical_offset, checksum=offsets.checksum
    )
