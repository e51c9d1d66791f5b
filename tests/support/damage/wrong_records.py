"""A store in RocketMQ's format whose records get other queue offsets, queue ids or topics: no checksum covers them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import cystore
from cystore._native.record.properties import queues_of
from cystore.config import StoreConfig
from cystore.layout import field_of
from cystore.recovery.walk.findings import Damage
from cystore.verify import verify
from tests.support.small_stores import LOG_BYTES, SETTINGS, open_small

CONFIG = StoreConfig(**{name: value for name, value in SETTINGS.items() if name != "services"})
LIGHT_OFFSETS = b"INNER_MULTI_QUEUE_OFFSET\x01"


def open_rocketmq(path: Path, **more: Any) -> cystore.MessageStore:
    return open_small(
        path, record_format="rocketmq", enable_lmq=True, enable_multi_dispatch=True, max_queues=64, **more
    )


def read_record(path: Path, put: cystore.PutResult) -> bytearray:
    at = put.physical_offset % LOG_BYTES
    file = path / "commitlog" / f"{put.physical_offset - at:020d}"
    return bytearray(file.read_bytes()[at : at + put.size_bytes])


def write_record(path: Path, put: cystore.PutResult, data: bytes) -> None:
    at = put.physical_offset % LOG_BYTES
    with (path / "commitlog" / f"{put.physical_offset - at:020d}").open("r+b") as file:
        file.seek(at)
        file.write(data)


def flip(path: Path, put: cystore.PutResult, field: str, bit: int) -> None:
    """Flips a bit of a number in a record; bit 0 is the lowest one."""
    place, record = field_of("record", field), read_record(path, put)
    number = place.read(record) ^ 1 << bit
    width = {"queue_id": 4, "queue_offset": 8}[field]
    record[place.at : place.at + width] = number.to_bytes(width, "big")
    write_record(path, put, record)


def set_light_offset(path: Path, put: cystore.PutResult, text: bytes) -> None:
    """Overwrites the first offset in a light queue."""
    record = read_record(path, put)
    at = record.index(LIGHT_OFFSETS) + len(LIGHT_OFFSETS)
    record[at : at + len(text)] = text
    write_record(path, put, record)


def served(store: cystore.MessageStore, topic: str, queue_id: int = 0) -> dict[int, bytes]:
    """The bodies of a queue by queue offset, over entries that lead to nothing."""
    found = {}
    for number in range(store.next_queue_offset(topic, queue_id)):
        try:
            messages = store.get(topic, queue_id, number, 1).messages
        except cystore.CorruptRecordError:
            continue
        if messages and (topic, queue_id, number) in queues_of(messages[0]):
            found[number] = bytes(messages[0].body)
    return found


def damage(path: Path) -> list[Damage]:
    """What `verify` reports about a store that nobody has open."""
    return list(verify(path, CONFIG))
