"""The queue offsets of a queue's next records, in the order of the log. Dispatch compares a queue offset with them: no
checksum of RocketMQ's format covers it."""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from cystore._native.layout cimport takes_queue_offset
from cystore._native.lookup.tail_walk cimport tail_record
from cystore._native.record.property_read cimport light_name, light_offset
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_OK, record_view
from cystore._native.record.window cimport LogWindow, WINDOW_NEED_SEGMENT, log_window

from cystore.errors import CorruptRecordError, OffsetError

cdef enum:
    MOST = 8
    LOOK_AHEAD_BYTES = 4194304      # of log; some 3 ms

# The records of one queue, from a log position on.
cdef struct queue_sequence:
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    bint is_light           # records of other topics are in it, too
    int64_t least
    int64_t at              # log position that the search has reached
    int64_t until
    int64_t[MOST] found     # their queue offsets
    int count
    int most


cdef inline int64_t _number(const queue_sequence* q, const record_view* v) noexcept nogil:
    """Queue offset of a record in the queue; -1: it is not in it."""
    if not takes_queue_offset(v.sys_flag):
        return -1
    if v.queue_id == q.queue_id and v.topic_len == q.topic_len and memcmp(v.topic, q.topic, q.topic_len) == 0:
        return v.queue_offset
    return light_offset(v, q.topic, q.topic_len) if q.is_light else -1


cdef int _search(queue_sequence* q, log_window* window) noexcept nogil:
    """WINDOW_NEED_SEGMENT for the position `at`; any other status ends the search."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int64_t number
    cdef int status
    while q.count < q.most and q.at < q.until:
        status = tail_record(window, &q.at, &v, &p)
        if status != RECORD_OK:
            return status
        number = _number(q, &v)
        if number >= q.least and record_intact(p, &v):
            q.found[q.count] = number
            q.count += 1
        q.at += v.total_size
    return RECORD_OK


def next_offsets(LogWindow window not None, int64_t minimum, int64_t wrote, int64_t position, bytes topic not None,
                 int32_t queue_id, int64_t least, int most):
    """(queue offsets, log position): the offsets, at least `least`, of the next `most` (at most 8) records of a queue
    from `position` on, and the end of the search. It steps over the window's holes. It ends before other damage, at
    `wrote`, and 4 MiB behind `position`."""
    cdef queue_sequence q
    cdef int status
    q.topic, q.topic_len = <const uint8_t*>PyBytes_AS_STRING(topic), <int>len(topic)
    q.queue_id, q.least = queue_id, max(least, 0)
    q.is_light = queue_id == 0 and light_name(q.topic, q.topic_len)
    q.at, q.until = position, position + LOOK_AHEAD_BYTES
    q.count = 0
    q.most = min(most, <int>MOST)
    window.move(minimum, wrote)
    while True:
        with nogil:
            status = _search(&q, &window.c)
        if status != WINDOW_NEED_SEGMENT:
            break
        try:
            window.need(q.at)
        except (CorruptRecordError, OffsetError):  # a missing or cleaned segment
            break
    return [q.found[i] for i in range(q.count)], q.at
