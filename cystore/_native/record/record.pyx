"""Text in a record as Java reads it, and one record for Python.

Source of the format: CommitLog.DefaultAppendMessageCallback and CommitLog.checkMessageAndReturnSize of RocketMQ 4.9.3.
"""

from libc.stdint cimport int32_t, uint8_t, uint32_t

from cystore._native.record.record_read cimport record_intact, record_read, walk_begin
from cystore._native.record.record_view cimport RECORD_BAD_CHECKSUM, RECORD_BLANK, RECORD_OK, record_view

STATUS_NAMES: tuple[str, ...] = (
    "ok", "blank", "zero", "short", "bad magic", "bad length", "bad topic", "bad checksum", "bad position",
)


cdef uint32_t text_character(const uint8_t* text, size_t length, size_t* at) noexcept nogil:
    """The character at `at`; moves `at` behind it. Bytes that are not UTF-8 become U+FFFD, one for each longest piece
    that could begin a character. An encoded surrogate is one such piece, as in Java."""
    cdef uint32_t point = text[at[0]]
    cdef uint8_t low = 0x80
    cdef uint8_t high = 0xBF
    cdef int more
    at[0] += 1
    if point < 0x80:
        return point
    more = 1 if 0xC2 <= point < 0xE0 else 2 if 0xE0 <= point < 0xF0 else 3 if 0xF0 <= point < 0xF5 else 0
    if more == 0:
        return 0xFFFD
    if point == 0xE0:
        low = 0xA0
    elif point == 0xF0:
        low = 0x90
    elif point == 0xF4:
        high = 0x8F
    point &= 0x3Fu >> more
    while more:
        if at[0] == length or not low <= text[at[0]] <= high:
            return 0xFFFD
        point = (point << 6) | (text[at[0]] & 0x3Fu)
        at[0] += 1
        more -= 1
        low, high = 0x80, 0xBF
    return 0xFFFD if 0xD800 <= point < 0xE000 else point


cdef int32_t java_hash_rest(uint32_t h, const uint8_t* text, size_t length, size_t at) noexcept nogil:
    cdef uint32_t point
    while at < length:
        point = text_character(text, length, &at)
        if point >= 0x10000:
            point -= 0x10000
            h = 31 * h + (0xD800u + (point >> 10))
            point = 0xDC00u + (point & 0x3FFu)
        h = 31 * h + point
    return <int32_t>h


# ------------------------------------------------------------------------------------- for Python: tests and tools


def hash_code(const uint8_t[::1] text, int32_t seed=0):
    """Java's String.hashCode of UTF-8 `text`, continued from `seed`."""
    return java_hash(seed, &text[0] if text.shape[0] else NULL, text.shape[0])


def parse(const uint8_t[::1] data):
    """Status name and fields of the record at the start of `data`; the checksum is checked too."""
    cdef record_view v
    cdef int status
    cdef const uint8_t* p = &data[0] if data.shape[0] else NULL
    walk_begin(&v)
    status = record_read(p, data.shape[0], &v)
    if status == RECORD_BLANK:
        return STATUS_NAMES[status], {"total_size": v.total_size}
    if status != RECORD_OK:
        return STATUS_NAMES[status], {}
    fields = {
        "total_size": v.total_size, "magic": v.magic, "checksum": v.checksum, "queue_id": v.queue_id, "flag": v.flag,
        "queue_offset": v.queue_offset, "physical_offset": v.physical_offset, "sys_flag": v.sys_flag,
        "born_timestamp": v.born_timestamp, "born_host": v.born_host[:v.born_host_len],
        "store_timestamp": v.store_timestamp, "store_host": v.store_host[:v.store_host_len],
        "reconsume_times": v.reconsume_times, "prepared_transaction_offset": v.prepared_transaction_offset,
        "body": v.body[:v.body_len], "topic": v.topic[:v.topic_len], "properties": v.properties[:v.properties_len],
    }
    if not record_intact(p, &v):
        status = RECORD_BAD_CHECKSUM
    return STATUS_NAMES[status], fields
