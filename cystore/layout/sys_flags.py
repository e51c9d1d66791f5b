"""The system flag of a message, and what its transaction bits decide."""

from __future__ import annotations

from cystore.layout.shapes import Constants

CONSTANTS: Constants = {
    "SYS_FLAG_COMPRESSED": (1, "body is compressed"),
    "SYS_FLAG_MULTI_TAGS": (2, ""),
    "SYS_FLAG_TRANSACTION_MASK": (12, ""),
    "SYS_FLAG_PREPARED": (4, "half message: indexed, no queue entry"),
    "SYS_FLAG_COMMIT": (8, ""),
    "SYS_FLAG_ROLLBACK": (12, "no index entry, no queue entry"),
    "SYS_FLAG_BORN_HOST_V6": (16, ""),
    "SYS_FLAG_STORE_HOST_V6": (32, ""),
    "SYS_FLAG_EXPIRES": (65536, "our own: reads look at the property EXPIRES_AT_MS"),
}

# Transaction bits of the sys flag (SYS_FLAG_TRANSACTION_MASK): of messages in a consume queue, and of messages that are
# not in the index.
IN_QUEUE = (0, CONSTANTS["SYS_FLAG_COMMIT"][0])
NOT_IN_INDEX = (CONSTANTS["SYS_FLAG_ROLLBACK"][0],)


def takes_queue_offset(sys_flag: int) -> bool:
    """Whether a message has a place in its consume queue: prepared and rolled back messages have none."""
    return sys_flag & CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0] in IN_QUEUE


def takes_index_entry(sys_flag: int) -> bool:
    """Whether the index holds a message's keys: it leaves out rolled back messages."""
    return sys_flag & CONSTANTS["SYS_FLAG_TRANSACTION_MASK"][0] not in NOT_IN_INDEX
