"""`query_many`: messages of many keys. A lookup is a chain of cache misses, and each miss depends on the previous. So a
group of lookups takes turns, one step each, and prefetches the memory for the next step of each lookup.

The lookups answer ASCII keys with few messages, all of them intact. Other keys are searched one after the other.
"""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.dict cimport PyDict_SetItem
from cpython.list cimport PyList_Append
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT64_MAX, int32_t, int64_t, uint8_t

from cystore._native.memory.atomics cimport load_i64, prefetch_for_read
from cystore._native.derived.index cimport (
    QUERY_DONE, QUERY_FULL, QUERY_NEED_SEGMENT, index_entry, index_key_hash, index_linked, index_may_hold, index_query,
    index_slot_prefetch, index_time, index_topic_seed, index_view, index_walk, index_walk_begin, key_query
)
from cystore._native.layout cimport (
    INDEX_ENTRY_BYTES, index_entry_key_hash, index_entry_physical_offset, index_entry_previous
)
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.lookup.key_reader cimport (
    KeyReader, QueryResult, is_compared_as_text, key_moment, key_request, request_for, view_index
)
from cystore._native.record.argument_checks cimport exact_text
from cystore._native.record.message cimport Message, found_message, seen_message
from cystore._native.record.record_view cimport record_parts
from cystore._native.record.window cimport LogWindow, log_window, window_address

from cystore.errors import CorruptRecordError, MessageIllegalError, OffsetError

cdef extern from "Python.h":
    bint PyDict_Next(dict found, Py_ssize_t* at, PyObject** key, PyObject** value)
    bint PyObject_GC_IsTracked(object value)
    void PyObject_GC_Track(PyObject* value)
    void PyObject_GC_UnTrack(PyObject* value)
    PyObject* PyDict_SetDefault(dict found, object key, object value) except NULL  # borrowed
    dict new_dict "__Pyx_PyDict_NewPresized"(Py_ssize_t count)
    bint PyUnicode_CheckExact(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    GROUP = 128
    NEAR = 2        # candidates of one key in one index file that are collected beside those of other keys
    ROOM = 8        # messages of one key

# One of a group, as long as a cache line. `unanswered`: the key has to be searched alone. `full`: the key has `room`
# messages or more.
cdef struct lookup:
    const uint8_t* key
    int key_len
    int32_t hash
    int32_t entry               # the next of its chain; 0 at the end
    int candidate_count
    int64_t[NEAR] candidates
    const uint8_t* place        # of the first candidate; NULL: none, or unknown
    int found_count
    bint unanswered
    bint full

cdef struct lookups:
    int count
    lookup[GROUP] all
    int[GROUP] walking              # those whose chain goes on
    int64_t[GROUP * ROOM] found
    record_parts[GROUP] parts       # the first message of each, and its place
    const uint8_t* starts[GROUP]
    PyObject* names[GROUP]          # the keys, and a result for each; the dictionary holds references
    PyObject* results[GROUP]
    key_query q                     # the lookup whose candidates are checked
    bint begun                      # its check waits for a segment


cdef inline const uint8_t* _address(const log_window* window, int64_t offset) noexcept nogil:
    """Where a record is in memory; NULL if the window does not have it. NULL also beside holes: their bytes may be
    unreadable."""
    if window.hole_count:
        return NULL
    return window_address(window, offset)


cdef inline void _fetch_entry(const index_view* index, int32_t number) noexcept nogil:
    """Fetches an entry, which may lie in two lines. At the end of a chain that is entry 0, which every file has."""
    cdef const uint8_t* entry = index_entry(index, number)
    prefetch_for_read(entry)
    prefetch_for_read(entry + INDEX_ENTRY_BYTES - 1)


cdef void _walk(const index_view* index, lookups* g, const log_window* window) noexcept nogil:
    """Collects the first candidates of all lookups in one index file: fetches all slots, then the first entries of all
    chains, then the second ones, and so on, then the records.

    The page of a slot, an entry or a record is in no TLB, so most of the time is that of finding pages. The processor
    finds a few at once, but only for instructions that it has in hand: some hundred. So prefetches follow each other
    closely, and nothing else is done between them. A prefetch leaves its hands when its page is found; a load also
    waits for the bytes. No branch depends on what comes, so the processor foresees what follows."""
    cdef index_walk walk
    cdef lookup* one
    cdef const uint8_t* entry
    cdef int i, number, left
    cdef int count = 0
    for i in range(g.count):
        index_slot_prefetch(index, g.all[i].hash)
    for i in range(g.count):
        one = &g.all[i]
        walk.hash = one.hash
        index_walk_begin(index, &walk)
        one.entry = walk.entry
        one.candidate_count = 0
        one.place = NULL
        g.walking[count] = i
        count += one.entry != 0
        _fetch_entry(index, one.entry)
    while count:
        left = 0
        for i in range(count):
            number = g.walking[i]
            one = &g.all[number]
            entry = index_entry(index, one.entry)
            one.candidates[one.candidate_count] = index_entry_physical_offset(entry)
            one.candidate_count += index_entry_key_hash(entry) == one.hash  # at any time
            one.entry = index_linked(index_entry_previous(entry), one.entry)
            _fetch_entry(index, one.entry)
            g.walking[left] = number
            left += one.entry != 0 and one.candidate_count < NEAR
        count = left
    for i in range(g.count):
        one = &g.all[i]
        if one.candidate_count:
            one.place = _address(window, one.candidates[0])
    for i in range(g.count):
        if g.all[i].place != NULL:
            prefetch_for_read(g.all[i].place)
    for i in range(g.count):
        if g.all[i].place != NULL:
            prefetch_for_read(g.all[i].place + 64)
            prefetch_for_read(g.all[i].place + 128)
            prefetch_for_read(g.all[i].place + 192)
            prefetch_for_read(g.all[i].place + 256)


cdef inline void _begin_check(lookups* g, int at) noexcept nogil:
    """Makes a lookup the one that is checked."""
    cdef lookup* one = &g.all[at]
    cdef key_query* q = &g.q
    cdef int i
    q.key, q.key_len = one.key, one.key_len
    q.walk.hash, q.walk.entry = one.hash, one.entry
    for i in range(one.candidate_count):
        q.candidates[i] = one.candidates[i]
    q.candidate_at, q.candidate_count = 0, one.candidate_count
    q.found = &g.found[at * ROOM]
    q.found_count = one.found_count
    q.damaged_count = 0
    q.parts, q.start = g.parts[at], g.starts[at]


cdef inline void _end_check(lookups* g, int at, int status) noexcept nogil:
    cdef lookup* one = &g.all[at]
    one.found_count = <int>g.q.found_count
    one.full = status == QUERY_FULL
    one.unanswered = g.q.damaged_count != 0
    g.parts[at], g.starts[at] = g.q.parts, g.q.start


cdef int _check_candidates(const index_view* index, lookups* g, int* at, log_window* window) noexcept nogil:
    """Adds the candidates that are messages of their keys, from lookup `at` on. QUERY_NEED_SEGMENT: lookup `at` needs a
    segment."""
    cdef lookup* one
    cdef int status
    while at[0] < g.count:
        one = &g.all[at[0]]
        if not one.unanswered and not one.full and (one.candidate_count or one.entry):
            if not g.begun:
                _begin_check(g, at[0])
            status = index_query(index, &g.q, window)
            g.begun = status == QUERY_NEED_SEGMENT
            if g.begun:
                return status
            _end_check(g, at[0], status)
        g.begun = False
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
        g.begun = False
        with nogil:
            if not index_may_hold(&index, g.q.walk.begin_ms, g.q.walk.end_ms):
                at = g.count
            else:
                _walk(&index, g, &window.c)
            status = _check_candidates(&index, g, &at, &window.c)
        while status == QUERY_NEED_SEGMENT:
            try:
                window.need(g.q.wanted)
            except (OffsetError, CorruptRecordError):
                g.all[at].unanswered = True
            with nogil:
                status = _check_candidates(&index, g, &at, &window.c)
    return 0


cdef bint _add_messages(LogWindow window, const lookups* g, int at, QueryResult messages) except -1:
    """Adds the messages of lookup `at` to its result. False if a segment was removed meanwhile."""
    cdef const int64_t* found = &g.found[at * ROOM]
    cdef int i, count = g.all[at].found_count
    cdef Message message = None
    if count == 1:
        message = seen_message(window, found[0], g.starts[at], &g.parts[at])
        if message is not None:
            PyList_Append(messages, message)
            return True
    for i in range(count):
        if window.place_of(found[i]) < 0:
            try:
                window.need(found[i])
            except (OffsetError, CorruptRecordError):
                return False
        PyList_Append(messages, found_message(window, found[i]))
    return True


cdef int _show_to_collector(dict found) except -1:
    """The new results make the garbage collector run. Until the dictionary is complete it does not see them: else it
    looked at each of them and at all keys, although nothing leads back from a message to them."""
    cdef PyObject* key
    cdef PyObject* result
    cdef Py_ssize_t at = 0
    while PyDict_Next(found, &at, &key, &result):
        if result != <PyObject*>None and not PyObject_GC_IsTracked(<object>result):
            PyObject_GC_Track(result)
    if not PyObject_GC_IsTracked(found):
        PyObject_GC_Track(<PyObject*>found)
    return 0


cdef dict _together(LogWindow window, KeyReader reader, const key_moment* m, bytes topic, list keys, int64_t max_count,
                    bint* is_whole):
    """A dictionary of the keys in their order, each once, with their messages of the index, newest first; None for a
    key that has to be searched alone (then `is_whole` becomes False). No other thread may change the list meanwhile."""
    cdef lookups g
    cdef lookup* one
    cdef PyObject* result
    cdef dict found = new_dict(len(keys))
    cdef QueryResult messages
    cdef object key
    cdef Py_ssize_t at = 0, count = len(keys)
    cdef const uint8_t* topic_bytes = <const uint8_t*>PyBytes_AS_STRING(topic)
    cdef int topic_len = <int>min(len(topic), INT32_MAX)
    cdef int32_t seed = index_topic_seed(topic_bytes, topic_len)
    cdef int i
    g.q.end = m.end
    g.q.topic, g.q.topic_len = topic_bytes, topic_len
    g.q.walk.begin_ms, g.q.walk.end_ms = 0, index_time(INT64_MAX)
    g.q.room = min(max_count, ROOM)
    while at < count:
        g.count = 0
        while g.count < GROUP and at < count:
            key = keys[at]
            at += 1
            if not (PyUnicode_CheckExact(key) and PyUnicode_IS_COMPACT_ASCII(key)
                    and PyUnicode_GET_LENGTH(key) <= INT32_MAX):
                key = exact_text("key", key, MessageIllegalError)
                PyDict_SetDefault(found, key, None)
                is_whole[0] = False
                continue
            messages = QueryResult.__new__(QueryResult)
            PyObject_GC_UnTrack(<PyObject*>messages)
            result = PyDict_SetDefault(found, key, messages)
            PyObject_GC_UnTrack(<PyObject*>found)
            if result != <PyObject*>messages:  # the key came before
                continue
            g.results[g.count] = result
            g.names[g.count] = <PyObject*>key
            one = &g.all[g.count]
            one.key, one.key_len = <const uint8_t*>PyUnicode_DATA(key), <int>PyUnicode_GET_LENGTH(key)
            one.hash = index_key_hash(seed, one.key, one.key_len)
            one.found_count = 0
            one.unanswered = one.full = False
            g.count += 1
        reader.control.checked()  # for each group: another thread may have closed the store
        window.move(load_i64(&m.block.min_physical_offset), load_i64(&m.block.wrote))
        _search(window, reader.files, &g)
        for i in range(g.count):
            one = &g.all[i]
            if one.unanswered or (one.full and max_count > ROOM) \
                    or not _add_messages(window, &g, i, <QueryResult>g.results[i]):
                PyDict_SetItem(found, <object>g.names[i], None)
                is_whole[0] = False
    _show_to_collector(found)
    return found


def query_many(KeyReader reader not None, bytes topic not None, list keys not None, int64_t max_count, int which_end):
    """A dictionary of the keys in their order, each once, with the answer of `query` for each, all of one moment."""
    cdef key_moment m
    cdef key_request r
    cdef MappedFile keep_block = reader.begin(&m, which_end)
    cdef LogWindow window = reader.window()
    cdef bint is_whole = True
    cdef dict found = _together(window, reader, &m, topic, keys, max_count, &is_whole)
    cdef QueryResult messages
    cdef bytes encoded
    cdef dict damaged = {}
    cdef str key
    reader.counts.asked(len(found))
    if m.dispatched < m.end or not is_whole:
        for key in list(found):
            messages = found[key]
            if messages is not None and m.dispatched >= m.end:
                continue
            encoded = key.encode()
            request_for(&r, topic, encoded, max_count)
            r.as_text = is_compared_as_text(key)
            if messages is None:
                messages = reader.find(window, &m, &r, key)
            else:
                messages = reader.with_undispatched(messages, window, &m, &r, key)
            found[key] = messages
            if messages._damaged is not None:
                damaged.update({error.offset: error for error in messages._damaged})
    reader.give_back(window)
    if damaged:
        reader.obstacles.report(list(damaged.values()))
    return found
