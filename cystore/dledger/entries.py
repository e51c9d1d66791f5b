"""One entry of a DLedger: its head, its checks, and the record in it."""

from __future__ import annotations

from dataclasses import dataclass

from cystore._native.record import record
from cystore.layout import FOREIGN_CONSTANTS, codec

HEAD = codec("ledger_entry")
INDEX_ENTRY = codec("ledger_index_entry")
HEAD_BYTES = FOREIGN_CONSTANTS["LEDGER_HEAD_BYTES"][0]
MAGIC = FOREIGN_CONSTANTS["LEDGER_MAGIC"][0]
BLANK_MAGIC = FOREIGN_CONSTANTS["LEDGER_BLANK_MAGIC"][0]
BLANK_SIZE_MIN = FOREIGN_CONSTANTS["LEDGER_BLANK_SIZE_MIN"][0]
ENTRY_BYTES_MAX = FOREIGN_CONSTANTS["LEDGER_ENTRY_BYTES_MAX"][0]
MAGIC_BYTES = MAGIC.to_bytes(4, "big")


@dataclass(frozen=True, slots=True)
class Entry:
    """A valid entry with the fields of its record. `body` holds the record's bytes."""

    index: int
    term: int
    pos: int
    body: bytes
    fields: dict[str, int | bytes]

    @property
    def size(self) -> int:
        return HEAD_BYTES + len(self.body)

    @property
    def end(self) -> int:
        return self.pos + self.size

    @property
    def physical_offset(self) -> int:
        return self.pos + HEAD_BYTES

    def index_bytes(self) -> bytes:
        """The bytes of this entry in the index files."""
        return INDEX_ENTRY.pack(MAGIC, self.pos, self.size, self.index, self.term)


@dataclass(frozen=True, slots=True)
class Bad:
    """A range of the log in which no valid entry or record begins."""

    begin: int
    end: int
    reason: str


class InvalidEntry(ValueError):
    """The bytes are no entry; the text gives the reason."""


def size_of(head: bytes, pos: int, room: int) -> int:
    """The size of the entry with this `head` at `pos`, which is `room` bytes before the end of its file. Raises
    InvalidEntry."""
    if len(head) < HEAD_BYTES:
        raise InvalidEntry(f"an entry has {HEAD_BYTES} bytes at least, the file has {len(head)} left")
    magic, size, _, _, its_pos, channel, chain_crc, body_crc, body_bytes = HEAD.unpack_from(head)
    if magic != MAGIC:
        raise InvalidEntry(f"magic is {magic}, not {MAGIC}")
    if not HEAD_BYTES < size <= min(ENTRY_BYTES_MAX, room - BLANK_SIZE_MIN):
        raise InvalidEntry(f"size is {size}, the file has {room} bytes left")
    if body_bytes != size - HEAD_BYTES:
        raise InvalidEntry(f"body size is {body_bytes}, but size is {size}")
    if its_pos != pos:
        raise InvalidEntry(f"pos is {its_pos}")
    for name, value in (("channel", channel), ("chain CRC", chain_crc), ("body CRC", body_crc)):
        if value != 0:
            raise InvalidEntry(f"{name} is {value}; DLedger writes 0")
    return int(size)


def parsed(data: bytes, pos: int) -> Entry:
    """The entry in `data`; the caller has checked its size. Raises InvalidEntry for a record that is not valid at this
    position."""
    _, _, index, term, *_ = HEAD.unpack_from(data)
    if index < 0 or term < 0:
        raise InvalidEntry(f"index is {index}, term is {term}")
    body = data[HEAD_BYTES:]
    return Entry(index, term, pos, body, record_in(body, pos + HEAD_BYTES))


def record_in(body: bytes, physical_offset: int) -> dict[str, int | bytes]:
    """The fields of the record in `body`. Raises InvalidEntry."""
    status, fields = record.parse(body)
    if status != "ok":
        raise InvalidEntry(f"the record is not valid: {status}")
    size, place = int(fields["total_size"]), int(fields["physical_offset"])
    if size != len(body):
        raise InvalidEntry(f"the record has {size} bytes, the body {len(body)}")
    if place != physical_offset:
        raise InvalidEntry(f"the record says physical offset {place}")
    for name in ("queue_id", "queue_offset"):  # its checksum is that of the body alone
        if int(fields[name]) < 0:
            raise InvalidEntry(f"the record's {name} is {fields[name]!r}")
    return fields
