"""Fast path of `offset_by_time`: all steps of a search whose queue is sound, in one call.

The general path (derived/reading/by_time.py) searches a queue that has a hole, a removed or damaged message, or
messages of other topics.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

from cystore._native.derived.queue cimport queue_is_hole
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, queue_entry_disk_physical_offset, queue_entry_disk_size
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_OK, record_view, same_text
from cystore._native.record.window cimport LogWindow, WINDOW_NEED_SEGMENT, log_window, window_record
from cystore.errors import CorruptRecordError, OffsetError

cdef enum:
    TIME_FOUND = 0
    TIME_NEED_FILE = 1      # the queue's file with the entry at `wanted` is not mapped
    TIME_NEED_SEGMENT = 2   # the window does not have the segment of the log position `wanted`
    TIME_NOT_HERE = 3       # the general path has to answer

cdef enum:
    NEAREST = 0
    LOWER = 1
    UPPER = 2

# The answers that a caller may ask for, by name: the message nearest to a time, the first one at or after it, the last
# one at or before it (RocketMQ 5's BoundaryType has the last two).
BOUNDARIES = {"nearest": NEAREST, "lower": LOWER, "upper": UPPER}

# A binary search that can stop and continue. All messages before `low` are earlier, none from `high` on is. For UPPER a
# message of the very time counts as earlier, too.
cdef struct time_search:
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    const uint8_t* entries  # the mapped file of the queue; NULL: none yet
    int64_t base            # its positions in the queue, in bytes
    int64_t end
    int64_t minimum
    int64_t maximum
    int64_t low
    int64_t high
    int64_t earlier_ms      # of the message before `low`, if that is not the minimum
    int64_t later_ms        # of the message at `high`, if that is not the maximum
    int64_t ms
    int boundary
    int64_t wanted


cdef int _time_of(time_search* s, log_window* window, int64_t queue_offset, int64_t* ms) noexcept nogil:
    """Store timestamp of a message, whose record is verified."""
    cdef int64_t position = queue_offset * <int64_t>QUEUE_ENTRY_BYTES
    cdef const uint8_t* entry
    cdef const uint8_t* at
    cdef record_view v
    cdef int status
    if s.entries == NULL or not s.base <= position <= s.end - <int64_t>QUEUE_ENTRY_BYTES:
        s.wanted = queue_offset
        return TIME_NEED_FILE
    entry = s.entries + (position - s.base)
    if queue_is_hole(entry):
        return TIME_NOT_HERE
    status = window_record(window, queue_entry_disk_physical_offset(entry), &v, &at)
    if status == WINDOW_NEED_SEGMENT:
        s.wanted = queue_entry_disk_physical_offset(entry)
        return TIME_NEED_SEGMENT
    if (
        status != RECORD_OK or v.total_size != queue_entry_disk_size(entry) or v.queue_offset != queue_offset
        or v.queue_id != s.queue_id or v.topic_len != s.topic_len
        or not same_text(v.topic, s.topic, s.topic_len) or not record_intact(at, &v)
    ):
        return TIME_NOT_HERE
    ms[0] = v.store_timestamp
    return TIME_FOUND


cdef int _search(time_search* s, log_window* window) noexcept nogil:
    """Ends with the answer in `low`: the first message that is not earlier, or the one before, if that is as near or
    the boundary is UPPER."""
    cdef int64_t middle, ms
    cdef int status
    while s.low < s.high:
        middle = s.low + (s.high - s.low) // 2
        status = _time_of(s, window, middle, &ms)
        if status != TIME_FOUND:
            return status
        if ms < s.ms or (s.boundary == UPPER and ms == s.ms):
            s.low, s.earlier_ms = middle + 1, ms
        else:
            s.high, s.later_ms = middle, ms
    if s.boundary == LOWER or s.low == s.minimum:
        return TIME_FOUND
    # later_ms >= ms > earlier_ms for NEAREST: their distances fit into 64 bits without a sign
    if s.boundary == UPPER or (s.low == s.maximum or s.later_ms != s.ms and (
            <uint64_t>s.later_ms - <uint64_t>s.ms >= <uint64_t>s.ms - <uint64_t>s.earlier_ms)):
        s.low -= 1
    return TIME_FOUND


def search_time(LogWindow window not None, int64_t log_minimum, int64_t wrote, file_of, uint32_t slot,
                bytes topic not None, int32_t queue_id, int64_t minimum, int64_t maximum, int64_t timestamp_ms,
                int boundary=NEAREST):
    """The queue offset of the message of [minimum, maximum) that is nearest to a time, `minimum` if there is none; for
    another of BOUNDARIES see MessageStore.offset_by_time. None if the general path has to answer.
    `file_of(slot, queue_offset)` returns a mapped queue file, or None."""
    cdef time_search s
    cdef MappedFile file = None
    cdef int64_t wanted = -1
    cdef int status, before = TIME_FOUND
    if not 0 <= minimum <= maximum <= 1 << 58:
        return None
    s.topic, s.topic_len = <const uint8_t*>PyBytes_AS_STRING(topic), <int>len(topic)
    s.queue_id, s.ms, s.boundary = queue_id, timestamp_ms, boundary
    s.entries = NULL
    s.base = s.end = 0
    s.minimum = s.low = minimum
    s.earlier_ms = s.later_ms = 0
    s.maximum = s.high = maximum
    window.move(log_minimum, wrote)
    while True:
        with nogil:
            status = _search(&s, &window.c)
        if status == TIME_FOUND:
            return s.low
        if status == TIME_NOT_HERE or (status == before and s.wanted == wanted):
            return None
        before, wanted = status, s.wanted
        if status == TIME_NEED_FILE:
            file = file_of(slot, wanted)
            if file is None:
                return None
            s.entries, s.base, s.end = file.address, file.base, file.base + file.length
        else:
            try:
                window.need(wanted)
            except (CorruptRecordError, OffsetError):  # a missing or cleaned segment
                return None
