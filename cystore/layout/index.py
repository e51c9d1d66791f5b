"""Index files: header, hash slots, entries."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field

HEADER = DiskStruct(
    "index_header",
    "Index file header",
    (
        Field("begin_timestamp", 0, 8, "ms"),
        Field("end_timestamp", 8, 8, "ms"),
        Field("begin_physical_offset", 16, 8, ""),
        Field("end_physical_offset", 24, 8, ""),
        Field("used_slots", 32, 4, ""),
        Field("next_entry", 36, 4, "number of the next entry; the first is 1"),
    ),
)

ENTRY = DiskStruct(
    "index_entry",
    "Index entry",
    (
        Field("key_hash", 0, 4, "|Java hashCode of topic#key|"),
        Field("physical_offset", 4, 8, "of the record"),
        Field("seconds", 12, 4, "store time since the header's begin, s"),
        Field("previous", 16, 4, "entry number of the slot's previous entry, 0 = none"),
    ),
)

CONSTANTS: Constants = {
    "INDEX_HEADER_BYTES": (40, ""),
    "INDEX_SLOT_BYTES": (4, ""),
    "INDEX_ENTRY_BYTES": (20, ""),
}
