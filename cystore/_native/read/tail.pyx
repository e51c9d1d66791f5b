"""The tail of the log that dispatch has not entered yet, read by a process that may not dispatch: one that opened the
store for reading only.

The walk goes from the dispatched position to the wrote position. Whoever runs a service keeps that distance short.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcmp

from cystore._native.derived.index cimport index_key_matches
from cystore._native.derived.queue cimport queue_put, queue_put_holes
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, takes_index_entry, takes_queue_offset
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.message cimport found_message
from cystore._native.record.property_read cimport derive_begin, derived
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_BLANK, RECORD_OK, record_view
from cystore._native.record.window cimport (
    LogWindow, WINDOW_BEYOND, WINDOW_GONE, WINDOW_NEED_SEGMENT, log_window, record_expired, window_behind,
    window_record
)

cdef enum:
    FOUND_AT_ONCE = 1024

# A walk over the records of one topic.
cdef struct tail_walk:
    int64_t at              # log position that it has come to
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    const uint8_t* key
    int key_len
    int64_t begin_ms
    int64_t end_ms
    int64_t first           # queue offset of entry 0
    int64_t count           # entries written, or messages found
    int64_t room


cdef int _next(log_window* window, tail_walk* t, record_view* v, const uint8_t** p) noexcept nogil:
    """The next record of the topic, at `t.at`: RECORD_OK; WINDOW_BEYOND at the end, WINDOW_NEED_SEGMENT, or what is
    wrong at `t.at`."""
    cdef int status
    while True:
        status = window_record(window, t.at, v, p)
        if status == WINDOW_GONE:
            t.at = window_behind(window, t.at)
        elif status == RECORD_BLANK:
            t.at = window.segments[window.latest].end
        elif status != RECORD_OK:
            return status
        elif v.topic_len == t.topic_len and memcmp(v.topic, t.topic, t.topic_len) == 0:
            return RECORD_OK
        else:
            t.at += v.total_size


cdef int _enter(log_window* window, tail_walk* t, uint8_t* entries) noexcept nogil:
    """Writes the entries of a queue from `t.first` on, as dispatch will, until there is no room for more."""
    cdef record_view v
    cdef const uint8_t* p
    cdef derived found
    cdef int status
    cdef int64_t place
    while t.count < t.room:
        status = _next(window, t, &v, &p)
        if status != RECORD_OK:
            return status
        if v.queue_id == t.queue_id and v.queue_offset >= t.first + t.count \
                and takes_queue_offset(v.sys_flag) and record_intact(p, &v):
            place = v.queue_offset - t.first
            if place >= t.room:
                queue_put_holes(entries + t.count * <int64_t>QUEUE_ENTRY_BYTES, t.room - t.count)
                t.count = t.room
                return RECORD_OK
            queue_put_holes(entries + t.count * <int64_t>QUEUE_ENTRY_BYTES, place - t.count)
            derive_begin(&v, NULL, 0, &found)
            queue_put(entries + place * <int64_t>QUEUE_ENTRY_BYTES, t.at, v.total_size, found.tags_code)
            t.count = place + 1
        t.at += v.total_size
    return RECORD_OK


cdef int _find(log_window* window, tail_walk* t, int64_t* offsets) noexcept nogil:
    """Notes where messages with the key stand, until there is no room for more."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int status
    while t.count < t.room:
        status = _next(window, t, &v, &p)
        if status != RECORD_OK:
            return status
        if t.begin_ms <= v.store_timestamp <= t.end_ms \
                and takes_index_entry(v.sys_flag) \
                and index_key_matches(&v, t.key, t.key_len) and record_intact(p, &v) \
                and not record_expired(window, &v):
            offsets[t.count] = t.at
            t.count += 1
        t.at += v.total_size
    return RECORD_OK


cdef void _begin(tail_walk* t, int64_t position, bytes topic) noexcept:
    t.at = position
    t.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    t.topic_len = <int>len(topic)
    t.count = 0


def entries_into(MappedFile out not None, LogWindow window not None, int64_t minimum, int64_t wrote, int64_t position,
                 bytes topic not None, int32_t queue_id):
    """Fills `out`, memory with a consume queue file's interface, with the entries that dispatch will make of the
    records in [position, wrote); gives how many, and the log position that the walk came to. It ends before damage.

    Raises OffsetError when a segment goes meanwhile.
    """
    cdef tail_walk t
    cdef uint8_t* entries = out.address
    cdef int status
    if not out.writable:
        raise ValueError(f"{out!r} is mapped for reading only")
    _begin(&t, position, topic)
    t.queue_id = queue_id
    t.first = out.base // <int64_t>QUEUE_ENTRY_BYTES
    t.room = out.length // <int64_t>QUEUE_ENTRY_BYTES
    window.move(minimum, wrote)
    while True:
        with nogil:
            status = _enter(&window.c, &t, entries)
        if status != WINDOW_NEED_SEGMENT:
            return t.count, t.at
        window.need(t.at)


def find_messages(LogWindow window not None, int64_t minimum, int64_t wrote, int64_t position, bytes topic not None,
                  bytes key not None, int64_t max_count, int64_t begin_ms, int64_t end_ms):
    """(messages, end): the newest `max_count` messages in [position, wrote) with the key, newest first, and where the
    walk ended: the wrote position, or damage. Raises OffsetError when a segment goes meanwhile."""
    cdef tail_walk t
    cdef int64_t* offsets = window.room(FOUND_AT_ONCE)
    cdef int64_t i, at
    cdef int status
    cdef list found = []
    _begin(&t, position, topic)
    t.key = <const uint8_t*>PyBytes_AS_STRING(key)
    t.key_len = <int>len(key)
    t.begin_ms = begin_ms
    t.end_ms = end_ms
    t.room = FOUND_AT_ONCE
    window.move(minimum, wrote)
    while True:
        with nogil:
            status = _find(&window.c, &t, offsets)
        found += [offsets[i] for i in range(t.count)]
        del found[:max(len(found) - max_count, 0)]
        t.count = 0
        if status == WINDOW_NEED_SEGMENT:
            window.need(t.at)
        elif status != RECORD_OK:
            break
    messages = []
    for at in reversed(found):
        if window.place_of(at) < 0:
            window.need(at)
        messages.append(found_message(window, at, None))
    return messages, wrote if status == WINDOW_BEYOND else t.at
