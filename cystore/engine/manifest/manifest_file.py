"""The bytes of the manifest: two slots of equal length in one file, whose space is written, and so allocated, from
the start.

An update overwrites the older slot and syncs the file; it needs no new block, so a full disk cannot stop it. An
update that a crash interrupts leaves the other slot, which is whole. Only a payload that no longer fits makes a new,
larger file.
"""

from __future__ import annotations

import contextlib
import os
from pathlib import Path
from typing import NamedTuple

from cystore._native.record.checksum import crc32c
from cystore.engine.files.quarantine import QUARANTINE
from cystore.errors import StoreError, StoreFullError
from cystore.layout import DISK_STRUCTS
from cystore.system import files
from cystore.system.ranges import file_ranges

FILE_NAME = "manifest"
MAGIC = int.from_bytes(b"CYSMANI1", "big")
HEADER_BYTES = 32
FIRST_SLOT_BYTES = 64 * 1024
SLOT_BYTES_MAX = 1 << 27

_FIELDS = {f.name: f for struct_ in DISK_STRUCTS if struct_.name == "manifest_slot" for f in struct_.fields}


class Slot(NamedTuple):
    """One slot whose checksum is right; `place` is 0 or 1."""

    place: int
    sequence: int
    slot_bytes: int
    payload: bytes


def read_slots(path: Path) -> list[Slot]:
    """The slots with the right checksum, newest first. Raises StoreIOError (of a FileNotFoundError) for a missing
    file."""
    return parse_slots(slot_bytes(path) or b"")


def slot_bytes(path: Path) -> bytes | None:
    """The bytes of both slots, or the whole file if the first slot does not contain its length; None without a file."""
    while True:
        head = files.read_if_there(path, first=HEADER_BYTES) or b""
        fields = {name: _number(head, name) for name in _FIELDS} if len(head) == HEADER_BYTES else {}
        known = fields.get("magic") == MAGIC and HEADER_BYTES <= fields["slot_bytes"] <= SLOT_BYTES_MAX
        data = files.read_if_there(path, first=2 * fields["slot_bytes"] if known else None)
        if (
            data is None or data[:HEADER_BYTES] == head
        ):  # else another process changed it between the two reads
            return data


def parse_slots(data: bytes) -> list[Slot]:
    """The slots in the bytes of a manifest whose checksum is right, newest first."""
    places = {0: 0, 1: len(data) // 2}
    first = _slot(data, 0, 0)
    if first is not None:  # the file may have grown a tail, or lost one
        places[1] = first.slot_bytes
    found = [first, _slot(data, 1, places[1])]
    return sorted((slot for slot in found if slot is not None), key=lambda slot: -slot.sequence)


def _slot(data: bytes, place: int, at: int) -> Slot | None:
    header = data[at : at + HEADER_BYTES]
    if len(header) < HEADER_BYTES:
        return None
    fields = {name: _number(header, name) for name in _FIELDS}
    payload = data[at + HEADER_BYTES : at + HEADER_BYTES + fields["payload_bytes"]]
    sound = (
        fields["magic"] == MAGIC
        and 0 <= fields["payload_bytes"] == len(payload)
        and HEADER_BYTES + len(payload) <= fields["slot_bytes"] <= SLOT_BYTES_MAX
        and fields["sequence"] > 0
        and fields["checksum"] == _checksum(header, payload)
    )
    return Slot(place, fields["sequence"], fields["slot_bytes"], payload) if sound else None


def _number(header: bytes, name: str) -> int:
    field = _FIELDS[name]
    return int.from_bytes(header[field.at : field.at + field.width], "big", signed=not field.unsigned)


def _checksum(header: bytes, payload: bytes) -> int:
    return crc32c(header[: _FIELDS["checksum"].at] + payload)


def render_slot(sequence: int, payload: bytes, slot_bytes: int) -> bytes:
    """Header and payload of a slot."""
    header = bytearray(HEADER_BYTES)
    values = {
        "magic": MAGIC,
        "sequence": sequence,
        "slot_bytes": slot_bytes,
        "payload_bytes": len(payload),
    }
    for name, value in (*values.items(), ("checksum", None)):
        field = _FIELDS[name]
        number = _checksum(bytes(header), payload) if value is None else value
        header[field.at : field.at + field.width] = number.to_bytes(field.width, "big")
    return bytes(header) + payload


def random_name() -> str:
    """32 hexadecimal digits that no other process or store chooses."""
    return os.urandom(16).hex()


def create(root: Path, sequence: int, payload: bytes, slot_bytes: int = FIRST_SLOT_BYTES) -> Slot:
    """Makes the file, or replaces it, whole or not at all; both slots hold `payload`. A folder in its place is moved
    to quarantine/. Raises StoreFullError."""
    _make_way(root)
    data = whole(sequence, payload, slot_bytes)
    files.write_whole(root, root / FILE_NAME, data, keep_last=False)
    return Slot(0, sequence, len(data) // 2, payload)


def whole(sequence: int, payload: bytes, slot_bytes: int = FIRST_SLOT_BYTES) -> bytes:
    """The bytes of a file whose slots both hold `payload`; they are longer than `slot_bytes` if it needs that."""
    while HEADER_BYTES + len(payload) > slot_bytes:
        slot_bytes *= 2
    return 2 * render_slot(sequence, payload, slot_bytes).ljust(slot_bytes, b"\0")


def _make_way(root: Path) -> None:
    """Moves away a folder, or anything but a file, from the file's place."""
    path = root / FILE_NAME
    if path.exists() and not path.is_file() and not path.is_symlink():
        files.move(path, root / QUARANTINE / f"{FILE_NAME}.{random_name()}")


def replace(root: Path, newest: Slot, payload: bytes) -> Slot:
    """Makes `payload` the manifest's content, durably. The file grows when half of a slot is in use, so that the disk
    may be full when the rest is needed. Raises StoreIOError; StoreFullError only for a payload that does not fit."""
    sequence, slot_bytes = newest.sequence + 1, newest.slot_bytes
    needed = HEADER_BYTES + len(payload)
    if 2 * needed > slot_bytes:
        try:
            return create(root, sequence, payload, slot_bytes * 2)
        except StoreFullError:
            if needed > slot_bytes:
                raise
    path, place = root / FILE_NAME, 1 - newest.place
    try:
        file_ranges.write_at(path, [(place * slot_bytes, render_slot(sequence, payload, slot_bytes))])
    except BaseException:
        # The new slot may or may not be on disk. It must not count, or the next update would overwrite the slot that is
        # on disk.
        with contextlib.suppress(StoreError):
            file_ranges.write_at(path, [(place * slot_bytes, bytes(HEADER_BYTES))])
        raise
    return Slot(place, sequence, slot_bytes, payload)
