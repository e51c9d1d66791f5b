"""`query_many`: messages of many keys. A lookup is a chain of cache misses, and each miss depends on the previous. So a
group of lookups takes turns, one step each, and prefetches the memory for the next step of each lookup.

It answers only ASCII keys with few messages, all of them intact. The caller looks up the other keys.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from cystore._native.memory.atomics cimport load_i64, prefetch_for_read
from cystore._native.memory.control cimport Control
from cystore._native.derived.index cimport (
    QUERY_CANDIDATES, QUERY_DONE, QUERY_FULL, QUERY_NEED_SEGMENT, index_key_hash, index_may_hold, index_query,
    index_entry, index_slot, index_slot_number, index_time, index_topic_seed, index_view, index_walk_begin,
    index_walk_step, key_query
)
from cystore._native.layout cimport INDEX_ENTRY_BYTES, control_block
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.lookup.key_reader cimport QueryResult, view_index
from cystore._native.record.argument_checks cimport exact_text
from cystore._native.record.message cimport Message, found_message, viewed_message
from cystore._native.record.record_view cimport record_view
from cystore._native.record.window cimport LogWindow, log_window, window_address

from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError

cdef extern from * nogil:
    """
    static inline void load_byte(const unsigned char *place) { (void)*(const volatile unsigned char *)place; }
    """
    void load_byte(const uint8_t* place)

cdef extern from "Python.h":
    PyObject* PyDict_SetDefault(dict found, object key, object value) except NULL  # borrowed
    dict new_dict "__Pyx_PyDict_NewPresized"(Py_ssize_t count)
    bint PyUnicode_CheckExact(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    GROUP = 64
    AHEAD = 4       # lookups between the fetch of a record's lines and their use
    ROOM = 8        # messages of one key

# A group of lookups. `unanswered`: the caller has to look the key up. `full`: the key has `room` messages or more.
cdef struct lookups:
    int count
    key_query[GROUP] queries
    int64_t[GROUP * ROOM] found
    const uint8_t* places[GROUP]    # of the first candidate of each; NULL: none, or unknown
    PyObject* names[GROUP]          # the keys, and a result for each; the dictionary holds references
    PyObject* results[GROUP]
    record_view[GROUP] views        # the first message of each
    bint[GROUP] unanswered
    bint[GROUP] full


cdef inline const uint8_t* _address(const log_window* window, int64_t offset) noexcept nogil:
    """Where a record is in memory; NULL if the window does not have it. NULL also beside holes: their bytes may be
    unreadable."""
    if window.hole_count:
        return NULL
    return window_address(window, offset)


cdef inline void _fetch(const uint8_t** places, int count) noexcept nogil:
    """The page of a slot, an entry or a record is in no TLB. The processor waits for the page's address before it goes
    on behind a prefetch, or it drops the prefetch. It goes on behind a load, so the loads overlap."""
    cdef int i
    for i in range(count):
        load_byte(places[i])


cdef void _walk(const index_view* index, lookups* g, const log_window* window) noexcept nogil:
    """Collects the candidates of all lookups in one index file. Fetches slots, entries and records a step ahead."""
    cdef key_query* q
    cdef const uint8_t* places[2 * GROUP]
    cdef const uint8_t* place
    cdef int i, count
    for i in range(g.count):
        places[i] = index_slot(index, index_slot_number(index, g.queries[i].walk.hash))
    _fetch(places, g.count)
    for i in range(g.count):
        q = &g.queries[i]
        q.candidate_at = q.candidate_count = 0
        g.places[i] = NULL
        index_walk_begin(index, &q.walk)
    while True:
        count = 0
        for i in range(g.count):
            q = &g.queries[i]
            if q.walk.entry != 0 and q.candidate_count < QUERY_CANDIDATES:
                places[count] = index_entry(index, q.walk.entry)
                places[count + 1] = places[count] + INDEX_ENTRY_BYTES - 1  # it may lie in two lines
                count += 2
        if count == 0:
            return
        _fetch(places, count)
        count = 0
        for i in range(g.count):
            q = &g.queries[i]
            if q.walk.entry == 0 or q.candidate_count == QUERY_CANDIDATES:
                continue
            if index_walk_step(index, &q.walk, &q.candidates[q.candidate_count]):
                place = _address(window, q.candidates[q.candidate_count])
                if q.candidate_count == 0:
                    g.places[i] = place
                if place != NULL:
                    places[count] = place
                    count += 1
                q.candidate_count += 1
        _fetch(places, count)


cdef int _check_candidates(const index_view* index, lookups* g, int* at, log_window* window) noexcept nogil:
    """Adds the candidates that are messages of their keys, from lookup `at` on. QUERY_NEED_SEGMENT: lookup `at` needs a
    segment."""
    cdef key_query* q
    cdef int status
    while at[0] < g.count:
        q = &g.queries[at[0]]
        if at[0] + AHEAD < g.count and g.places[at[0] + AHEAD] != NULL:
            prefetch_for_read(g.places[at[0] + AHEAD] + 64)
            prefetch_for_read(g.places[at[0] + AHEAD] + 128)
            prefetch_for_read(g.places[at[0] + AHEAD] + 192)
        if not g.unanswered[at[0]] and not g.full[at[0]]:
            status = index_query(index, q, window)
            if status == QUERY_NEED_SEGMENT:
                return status
            g.full[at[0]] = status == QUERY_FULL
            g.unanswered[at[0]] = q.damaged_count != 0
        at[0] += 1
    return QUERY_DONE


cdef int _search(LogWindow window, list files, lookups* g) except -1:
    """Searches all index files for a group of keys, newest file first."""
    cdef index_view index
    cdef MappedFile file
    cdef Py_ssize_t place
    cdef int at, status
    for place in range(len(files)):
        file = view_index(files, place, &index)
        if file is None:
            continue
        at = 0
        with nogil:
            if not index_may_hold(&index, 0, index_time(INT64_MAX)):
                at = g.count
            else:
                _walk(&index, g, &window.c)
            status = _check_candidates(&index, g, &at, &window.c)
        while status == QUERY_NEED_SEGMENT:
            try:
                window.need(g.queries[at].wanted)
            except (OffsetError, CorruptRecordError):
                g.unanswered[at] = True
            with nogil:
                status = _check_candidates(&index, g, &at, &window.c)
    return 0


cdef bint _add_messages(LogWindow window, const key_query* q, QueryResult messages) except -1:
    """Adds the messages of a key to its result. False if a segment was removed meanwhile."""
    cdef Message before = None
    cdef int64_t i
    if q.found_count == 1 and window.place_of(q.found[0]) >= 0:
        PyList_Append(messages, viewed_message(window, q.found[0], q.view_start, q.view))
        return True
    for i in range(q.found_count):
        if window.place_of(q.found[i]) < 0:
            try:
                window.need(q.found[i])
            except (OffsetError, CorruptRecordError):
                return False
        before = found_message(window, q.found[i], before)
        PyList_Append(messages, before)
    return True


def find_many(LogWindow window not None, Control control not None, list files not None, bytes topic not None,
              list keys not None, int64_t max_count):
    """A dictionary of the keys in their order, each once, with their messages, newest first; and how many values are
    None: the caller looks those keys up with `find_messages`. No other thread may change the list meanwhile."""
    cdef control_block* block
    cdef lookups g
    cdef key_query* q
    cdef PyObject* result
    cdef dict found = new_dict(len(keys))
    cdef QueryResult messages
    cdef object key
    cdef Py_ssize_t at = 0, unanswered = 0, count = len(keys)
    cdef const uint8_t* topic_bytes = <const uint8_t*>PyBytes_AS_STRING(topic)
    cdef int topic_len = <int>min(len(topic), INT32_MAX)
    cdef int32_t seed = index_topic_seed(topic_bytes, topic_len)
    cdef int i
    while at < count:
        g.count = 0
        while g.count < GROUP and at < count:
            key = keys[at]
            at += 1
            if not (PyUnicode_CheckExact(key) and PyUnicode_IS_COMPACT_ASCII(key)
                    and PyUnicode_GET_LENGTH(key) <= INT32_MAX):
                key = exact_text("key", key, MessageIllegalError)
                unanswered += key not in found
                PyDict_SetDefault(found, key, None)
                continue
            messages = QueryResult.__new__(QueryResult)
            result = PyDict_SetDefault(found, key, messages)
            if result != <PyObject*>messages:  # the key came before
                continue
            g.results[g.count] = result
            g.names[g.count] = <PyObject*>key
            q = &g.queries[g.count]
            q.topic, q.topic_len = topic_bytes, topic_len
            q.key, q.key_len = <const uint8_t*>PyUnicode_DATA(key), <int>PyUnicode_GET_LENGTH(key)
            q.walk.hash = index_key_hash(seed, q.key, q.key_len)
            q.walk.begin_ms, q.walk.end_ms = 0, index_time(INT64_MAX)
            q.found = &g.found[g.count * ROOM]
            q.found_count = q.damaged_count = 0
            q.room = min(max_count, ROOM)
            q.view = &g.views[g.count]
            g.unanswered[g.count] = g.full[g.count] = False
            g.count += 1
        block = control.checked()  # for each group: another thread may have closed the store
        keep_block = control.file
        window.move(load_i64(&block.min_physical_offset), load_i64(&block.wrote))
        _search(window, files, &g)
        for i in range(g.count):
            if g.unanswered[i] or (g.full[i] and max_count > ROOM) \
                    or not _add_messages(window, &g.queries[i], <QueryResult>g.results[i]):
                unanswered += 1
                PyDict_SetItem(found, <object>g.names[i], None)
    return found, unanswered
