"""A record of the commit log: its fixed prefix, the parts after it, and the sizes computed from them."""

from __future__ import annotations

from cystore.layout.shapes import Constants, DiskStruct, Field, Part

RECORD_MAGIC_ROCKETMQ = 0xDAA320A7
RECORD_MAGIC_BLANK = 0xCBD43194
RECORD_MAGIC_CYSTORE = 0x43595331

RECORD = DiskStruct(
    "record",
    "Fixed prefix of a record in the commit log; hosts and what follows them vary in length",
    (
        Field("total_size", 0, 4, "bytes of the whole record"),
        Field("magic", 4, 4, "record format", unsigned=True),
        Field(
            "checksum_field",
            8,
            4,
            "RocketMQ: CRC-32 of the body, top bit 0; cystore: CRC-32C of all but this field",
            True,
        ),
        Field("queue_id", 12, 4, ""),
        Field("flag", 16, 4, "the user's"),
        Field("queue_offset", 20, 8, "position in the consume queue; 0 for prepared and rollback"),
        Field("physical_offset", 28, 8, "position of this record in the commit log"),
        Field(
            "sys_flag",
            36,
            4,
            "1 compressed, 2 multi tags, 4/8/12 transaction, 16/32 IPv6 born/store host",
        ),
        Field("born_timestamp", 40, 8, "ms"),
    ),
)

HOST_V4_BYTES, HOST_V6_BYTES = 8, 20  # address and port, four bytes
RECORD_PARTS = (
    Part("born_host", "address and port of the producer", v6_flag="SYS_FLAG_BORN_HOST_V6"),
    Part("store_timestamp", "ms", width=8),
    Part("store_host", "address and port of the store", v6_flag="SYS_FLAG_STORE_HOST_V6"),
    Part("reconsume_times", "how often a consumer sent the message back", width=4),
    Part("prepared_transaction_offset", "physical offset of the half message", width=8),
    Part("body", "", length_width=4),
    Part("topic", "1 to 127 of letters, digits, `%` `|` `_` `-`", length_width=1),
    Part("properties", "at most 32,767 bytes: `name 0x01 value`, pairs separated by `0x02`", length_width=2),
)
PREFIX_BYTES = max(field.at + field.width for field in RECORD.fields)
_BODY = [part.name for part in RECORD_PARTS].index("body")
_BODY_AT = PREFIX_BYTES + sum(part.width + part.length_width for part in RECORD_PARTS[: _BODY + 1])
_FIXED_BYTES = _BODY_AT + sum(part.width + part.length_width for part in RECORD_PARTS[_BODY + 1 :])
_CHECKSUM_FIELD = next(field for field in RECORD.fields if field.name == "checksum_field")
PROPERTY_NAME_END, PROPERTY_END = 1, 2
# Names of properties that have a meaning: RocketMQ's (MessageConst), then our own.
PROPERTIES = {
    "KEYS": "keys of the message, separated by spaces",
    "TAGS": "the tag that consumers filter by",
    "UNIQ_KEY": "the producer's unique key",
    "WAIT": "whether a producer waits until the message is stored",
    "DELAY": "delay level",
    "REAL_TOPIC": "topic of a message that waits in another one",
    "REAL_QID": "queue id of that message",
    "TRAN_MSG": "`true` in a half message",
    "PGROUP": "producer group of a half message",
    "INNER_MULTI_DISPATCH": "light queues of the message, with commas",
    "INNER_MULTI_QUEUE_OFFSET": "its queue offsets there",
    "DELAY_SOURCE": "of a delivered message: the record that waited",
    "DELAY_DUE": "due time of a delayed message that was put with one or carried forward, ms",
    "EXPIRES_AT_MS": "time from which on reads leave the message out, ms",
}
# A record with these properties also settles a claimed message: its queue offset, and the light queue of such records.
SETTLES, LIGHT = "SETTLES", "INNER_MULTI_DISPATCH"

CONSTANTS: Constants = {
    "RECORD_MAGIC_ROCKETMQ": (RECORD_MAGIC_ROCKETMQ, "record of RocketMQ 4.9.3 (MESSAGE_MAGIC_CODE)"),
    "RECORD_MAGIC_BLANK": (RECORD_MAGIC_BLANK, "end-of-file filler (CommitLog.BLANK_MAGIC_CODE)"),
    "RECORD_MAGIC_CYSTORE": (RECORD_MAGIC_CYSTORE, "record whose checksum covers all of it, 'CYS1'"),
    "BLANK_SIZE_MIN": (8, "total size and magic"),
    "PROPERTIES_BYTES_MAX": (32767, "the length is a signed short"),
    "HOST_V4_BYTES": (HOST_V4_BYTES, "of a host in a record: IPv4 address and port"),
    "HOST_V6_BYTES": (HOST_V6_BYTES, "IPv6 address and port"),
    "RECORD_PREFIX_BYTES": (PREFIX_BYTES, "before the first host"),
    "RECORD_BODY_AT": (_BODY_AT, "where the body begins, but for the hosts before it"),
    "RECORD_TAIL_FIXED_BYTES": (_FIXED_BYTES - _BODY_AT, "behind the body: lengths of topic and properties"),
    "RECORD_FIXED_BYTES": (_FIXED_BYTES, "but for hosts, body, topic and properties"),
    "RECORD_HEAD_BYTES_MAX": (_BODY_AT + 2 * HOST_V6_BYTES, "up to the body, whatever the hosts"),
    "RECORD_SIZE_MIN": (_FIXED_BYTES + 2 * HOST_V4_BYTES, "IPv4 hosts, and nothing that varies in length"),
    "RECORD_CHECKED_AT": (_CHECKSUM_FIELD.at + _CHECKSUM_FIELD.width, "behind the checksum: checked"),
    **{
        f"RECORD_{part.name.upper()}_{'LENGTH_' if part.length_width else ''}BYTES": (
            part.width or part.length_width,
            f"of the {'length of the ' if part.length_width else ''}{part.name.replace('_', ' ')}",
        )
        for part in RECORD_PARTS
        if not part.v6_flag
    },
    "PROPERTY_NAME_END": (PROPERTY_NAME_END, "ends a name"),
    "PROPERTY_END": (PROPERTY_END, "separates pairs"),
    **{f"PROPERTY_{name}_BYTES": (len(name), "") for name in PROPERTIES},
}
