"""The broker's commit log from before it had a DLedger; it ends where the DLedger begins."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from cystore.dledger.entries import Bad, InvalidEntry, record_in
from cystore.dledger.pieces import Pieces
from cystore.layout import BLANK_SIZE_MIN, CONSTANTS, MAGIC, RECORD_MAGIC_BLANK, TOTAL_SIZE
from cystore.recovery.walk.log_reader import Finder, LogReader

RECORD_SIZE_MIN = CONSTANTS["RECORD_SIZE_MIN"][0]


@dataclass(frozen=True, slots=True)
class OldRecord:
    """A valid record with its fields."""

    physical_offset: int
    body: bytes
    fields: dict[str, int | bytes]


def old_records(reader: LogReader, end: int) -> Iterator[OldRecord | Bad]:
    """Every record of the old log up to `end`, the begin of the DLedger, and every damaged range."""
    pieces, at = Pieces(reader), reader.begin
    while at < end and reader.has(reader.base_of(at)):
        file_end = pieces.file_end(at)
        try:
            body = _record(pieces, at, file_end)
            found = OldRecord(at, body, record_in(body, at)) if body else None
        except InvalidEntry as error:
            behind = Finder(reader, check_checksum=True).find(at + 1, end)
            resumed = end if behind is None else behind[0]
            yield Bad(at, resumed, str(error))
            at = resumed
            continue
        if found is None:
            at = file_end
        else:
            yield found
            at += len(found.body)
    if reader.bases and at < end:
        yield Bad(at, end, "the old commit log ends here, and the DLedger begins later")


def _record(pieces: Pieces, at: int, file_end: int) -> bytes:
    """The bytes of the record at `at`; empty for a blank. Raises InvalidEntry."""
    head = pieces.read(at, BLANK_SIZE_MIN)
    if len(head) < BLANK_SIZE_MIN:
        raise InvalidEntry(f"the file has {len(head)} bytes left")
    size, magic = TOTAL_SIZE.read(head), MAGIC.read(head)
    if magic == RECORD_MAGIC_BLANK:
        if size != file_end - at:
            raise InvalidEntry(f"a blank of {size} bytes, the file has {file_end - at} left")
        return b""
    if not RECORD_SIZE_MIN <= size <= file_end - at:
        raise InvalidEntry(f"the record's size is {size}, the file has {file_end - at} bytes left")
    return pieces.read(at, size)
