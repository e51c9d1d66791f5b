"""DLedger's files, which cystore only reads: entries of the data files, and the entries of the index files."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field

LEDGER_ENTRY = DiskStruct(
    "ledger_entry",
    "DLedger: head of an entry in dledger-ID/data; the body, a record of RocketMQ, follows at 48",
    (
        Field("magic", 0, 4, "1: an entry; -1: nothing follows in this file"),
        Field("size", 4, 4, "bytes of head and body; of a blank: up to the end of the file"),
        Field("index", 8, 8, "number of the entry, from 0 on, without a gap"),
        Field("term", 16, 8, "of the leader that appended it; never falls"),
        Field("pos", 24, 8, "position of this entry; its record's physical offset is 48 more"),
        Field("channel", 32, 4, "always 0"),
        Field("chain_crc", 36, 4, "always 0: no version of DLedger fills it"),
        Field("body_crc", 40, 4, "always 0, too"),
        Field("body_bytes", 44, 4, "bytes of the body"),
    ),
)

LEDGER_INDEX_ENTRY = DiskStruct(
    "ledger_index_entry",
    "DLedger: one entry of dledger-ID/index; that of entry n is at 32 n",
    (
        Field("magic", 0, 4, "the entry's"),
        Field("pos", 4, 8, "the entry's"),
        Field("size", 12, 4, "the entry's"),
        Field("index", 16, 8, "the entry's"),
        Field("term", 24, 8, "the entry's"),
    ),
)

# Files of other programs: only Python code reads them, so the kernels do not have their structs.
FOREIGN_STRUCTS = (LEDGER_ENTRY, LEDGER_INDEX_ENTRY)


def _bytes_of(disk: DiskStruct) -> int:
    return max(field.at + field.width for field in disk.fields)


FOREIGN_CONSTANTS: Constants = {
    "LEDGER_HEAD_BYTES": (_bytes_of(LEDGER_ENTRY), "of an entry, before its body"),
    "LEDGER_MAGIC": (1, "of an entry"),
    "LEDGER_BLANK_MAGIC": (-1, "of what fills the end of a data file"),
    "LEDGER_BLANK_SIZE_MIN": (8, "magic and size: every data file ends in so much at least"),
    "LEDGER_ENTRY_BYTES_MAX": (4 << 20, "DLedger encodes an entry in a buffer of so many"),
    "LEDGER_INDEX_ENTRY_BYTES": (_bytes_of(LEDGER_INDEX_ENTRY), ""),
    "LEDGER_INDEX_FILE_BYTES": (
        _bytes_of(LEDGER_INDEX_ENTRY) * (5 << 20),
        "no setting of RocketMQ changes it",
    ),
}
