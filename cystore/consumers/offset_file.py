"""config/consumerOffset.json: the offsets of all groups, in the bytes that RocketMQ's ConsumerOffsetManager writes.

Entries that cannot be a group's offsets here, for example because a name is too long, are kept as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from cystore.consumers.names import SEPARATOR, is_group
from cystore.derived.files.offsets import CONSUMER_OFFSETS, QUEUE_ID, QUEUE_ID_MAX, read_offsets
from cystore.engine.manifest.topic_names import is_topic
from cystore.system import files
from cystore.system.checked_json import text_of

Key = tuple[str, str, int]  # topic, group, queue id


@dataclass(frozen=True)
class ConsumerOffsets:
    """The offsets by (topic, group, queue id), and the entries that are only kept."""

    offsets: dict[Key, int] = field(default_factory=dict)
    others: dict[str, Any] = field(default_factory=dict)


def path_of(root: Path) -> Path:
    """The file of a store."""
    return root / "config" / CONSUMER_OFFSETS


def read_consumer_offsets(root: Path) -> ConsumerOffsets:
    """The file, or its last good copy; empty without both. Raises StoreFormatError if neither can be read."""
    found = ConsumerOffsets()
    for name, queues in read_offsets(root, CONSUMER_OFFSETS).table.items():
        topic, separator, group = name.partition(SEPARATOR)
        ours = bool(separator) and is_topic(topic) and is_group(group)
        if ours and isinstance(queues, dict) and all(_is_queue_id(text) for text in queues):
            found.offsets.update({(topic, group, int(text)): offset for text, offset in queues.items()})
        else:
            found.others[name] = queues
    return found


def _is_queue_id(text: str) -> bool:
    return QUEUE_ID.match(text) is not None and int(text) <= QUEUE_ID_MAX


def render(offsets: Mapping[Key, int], others: Mapping[str, Any]) -> bytes:
    """The file's bytes, as fastjson writes a map of maps in its pretty form."""
    table: dict[str, Any] = dict(others)
    for (topic, group, queue_id), offset in sorted(offsets.items()):
        table.setdefault(f"{topic}{SEPARATOR}{group}", {})[queue_id] = offset
    rows = ",".join(f"\n\t\t{text_of(name)}:{_queues(queues)}" for name, queues in table.items())
    return f'{{\n\t"offsetTable":{{{rows}{_end(rows, 1)}}}\n}}'.encode()


def _queues(queues: Any) -> str:
    if not isinstance(queues, dict):
        return text_of(queues)
    pairs = ",".join(f"{_queue_key(queue_id)}:{offset}" for queue_id, offset in queues.items())
    return f"{{{pairs}{_end(pairs, 2)}}}"


def _queue_key(queue_id: object) -> str:
    text = str(queue_id)
    return text if QUEUE_ID.match(text) else text_of(text)


def _end(content: str, depth: int) -> str:
    """The white space before the brace that ends a map."""
    return "\n" + "\t" * depth if content else ""


def write(root: Path, data: bytes) -> None:
    """Writes the file whole or not at all; the last good copy stays beside it as .bak."""
    files.write_whole(root, path_of(root), data)
