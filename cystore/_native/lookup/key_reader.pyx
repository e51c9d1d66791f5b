"""`query`: finds the messages that hold a key, through the index files and a window on the log.

A query takes about ten cache misses, as long as one call through Python. So `query_function` answers ordinary queries
by itself. All others (times, odd arguments, an index behind the log, a detached store) go to the reader's `general`
function.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint32_t

from cystore._native.append.arguments cimport (
    KEYWORDS_UNKNOWN, METH_FASTCALL, METH_KEYWORDS, PyCFunction, PyCFunction_NewEx, PyMethodDef, call_python,
    known_callers, place_keywords, whole_argument
)
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64, load_u32
from cystore._native.memory.control cimport Control, PLACE_LOOK_MS
from cystore._native.derived.dispatch cimport DispatchKernel
from cystore._native.derived.index cimport (
    QUERY_DONE, QUERY_FULL, QUERY_NEED_SEGMENT, index_key_hash, index_may_hold, index_query, index_slot_prefetch,
    index_time, index_topic_seed, index_view, index_view_of, index_walk_begin, key_query
)
from cystore._native.layout cimport control_block
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.lookup.counts cimport ReadCounts
from cystore._native.record.message cimport Message, found_message, seen_message
from cystore._native.record.window cimport LogWindow

import sys
from weakref import ref

from cystore._native.record.record import STATUS_NAMES as _STATUS_NAMES
from cystore.errors import CorruptRecordError, OffsetError

cdef extern from "Python.h":
    bint PyUnicode_CheckExact(object text)
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    SPARE_WINDOWS = 8


@cython.final
cdef class QueryResult(list):
    """The result of `query`: a list of messages, newest first.

    `damaged` holds a CorruptRecordError for each place that the index names for the key but that has no intact record:
    the record may have held the key.
    """

    def __init__(self, messages=(), damaged=()):
        list.__init__(self, messages)
        self._damaged = list(damaged)

    @property
    def damaged(self):
        if self._damaged is None:  # most results never need the list
            self._damaged = []
        return self._damaged

    def __reduce__(self):
        return QueryResult, (list(self), self.damaged)


cdef MappedFile view_index(list files, Py_ssize_t place, index_view* index):
    cdef tuple row = <tuple>files[place]
    cdef MappedFile file = row[0] if len(row) == 3 else row[0]()
    if file is None:  # not mapped
        file = row[3]()
        if file is None:
            return None
        files[place] = (ref(file), row[1], row[2], row[3])
    index[0] = index_view_of(file, row[1], row[2])
    return file


cdef QueryResult _find(LogWindow window, control_block* block, list files, key_query* q, const uint8_t* key,
                       int64_t max_count, int64_t begin_ms, int64_t end_ms):
    """Messages with the topic of `q` and a key with the hash of `key`, newest first. If `q.key` is set, a message must
    hold that key."""
    cdef index_view index
    cdef MappedFile file
    cdef int64_t i
    cdef int status = QUERY_DONE
    cdef bint begun, may_hold
    cdef QueryResult messages = None
    cdef Message only = None
    cdef list missing = None
    cdef Py_ssize_t place
    q.walk.hash = index_key_hash(index_topic_seed(q.topic, q.topic_len), key, q.key_len)
    q.walk.begin_ms = begin_ms = index_time(begin_ms)
    q.walk.end_ms = end_ms = index_time(end_ms)
    q.found_count = q.damaged_count = 0
    q.room = min(max_count, 64)
    for place in range(len(files)):
        file = view_index(files, place, &index)
        if file is None:
            continue
        index_slot_prefetch(&index, q.walk.hash)  # it comes while this thread prepares, and gives the interpreter up
        if messages is None:
            messages = QueryResult.__new__(QueryResult)
            q.found = window.room(q.room)
            # acquire of `wrote`; release in append.pxd: move_wrote
            window.move(load_i64(&block.min_physical_offset), load_i64(&block.wrote))
        q.candidate_at = q.candidate_count = 0
        begun = False
        while True:
            with nogil:
                may_hold = begun or index_may_hold(&index, begin_ms, end_ms)
                if may_hold and not begun:
                    index_walk_begin(&index, &q.walk)
                    begun = True
                status = index_query(&index, q, &window.c) if may_hold else QUERY_DONE
            if status == QUERY_NEED_SEGMENT:
                try:
                    window.need(q.wanted)
                except OffsetError:  # the segment was removed after `window.move`
                    q.candidate_at += 1
                except CorruptRecordError as error:  # the segment's file is missing
                    missing = [] if missing is None else missing
                    missing.append(error)
                    q.candidate_at += 1
            elif status == QUERY_FULL and q.room < max_count:
                q.room = min(max_count, 2 * q.room)
                q.found = window.room(q.room)
            else:
                break
        if status == QUERY_FULL:
            break
    if messages is None:
        return QueryResult.__new__(QueryResult)
    if q.found_count == 1:
        only = seen_message(window, q.found[0], q.start, &q.parts)
    if only is not None:
        PyList_Append(messages, only)
    else:
        for i in range(q.found_count):
            if window.place_of(q.found[i]) < 0:
                try:
                    window.need(q.found[i])
                except OffsetError:  # the segment was removed meanwhile
                    continue
            PyList_Append(messages, found_message(window, q.found[i]))
    if q.damaged_count != 0 or missing is not None:
        messages._damaged = _damaged(window, q, [] if missing is None else missing)
    return messages


cdef list _damaged(LogWindow window, key_query* q, list errors):
    cdef MappedFile segment
    cdef int i
    for i in range(q.damaged_count):
        segment = window.file_of(q.damaged[i])
        errors.append(CorruptRecordError(
            f"the index names this place for the key, but it has no valid record: {_STATUS_NAMES[q.damaged_status[i]]}",
            path=None if segment is None else segment.path, offset=q.damaged[i]))
    return errors


def find_messages(LogWindow window not None, Control control not None, list files not None, bytes topic not None,
                  bytes key not None, int64_t max_count, int64_t begin_ms, int64_t end_ms, *, bint any_key=False):
    """At most `max_count` messages of a topic that hold the key, newest first, with store timestamps from `begin_ms` to
    `end_ms`. `any_key`: all messages with a key of that hash.

    `files`: the index files, newest first, as (mapped file, slots, capacity), or as (weak reference to the mapped file,
    slots, capacity, function that maps it). The function replaces the reference in the list after it maps a file.
    """
    cdef key_query q
    cdef const uint8_t* key_bytes = <const uint8_t*>PyBytes_AS_STRING(key)
    q.topic = <const uint8_t*>PyBytes_AS_STRING(topic)
    q.topic_len = <int>min(len(topic), INT32_MAX)
    q.key = NULL
    if not any_key:
        q.key = key_bytes
    q.key_len = <int>min(len(key), INT32_MAX)
    return _find(window, control.checked(), files, &q, key_bytes, max_count, begin_ms, end_ms)


@cython.auto_pickle(False)
@cython.final
cdef class KeyReader:
    """`query` of one attached store. Safe for threads.

    `shapes()` returns the index files for `find_messages`; the reader calls it again when the index files change.
    `new_window()` makes a window; `windows` holds spare windows. `general` answers all other queries, those that look
    at the store's place, and all queries after a fork or `close` detached this object. The reader calls
    `report(errors)` when a query meets damage.
    """

    cdef Control control
    cdef DispatchKernel dispatcher
    cdef object shapes, new_window, general, report
    cdef list windows           # spare windows
    cdef list files             # result of `shapes`; None: not called yet
    cdef uint32_t files_seq     # index_seq before that call
    cdef ReadCounts counts
    cdef bint bounded           # while the store confirms, `general` answers every query

    def __init__(self, Control control not None, shapes not None, list windows not None, new_window not None,
                 general not None, ReadCounts counts not None, report not None, DispatchKernel dispatcher=None, *,
                 bint bounded=False):
        self.bounded = bounded
        self.dispatcher, self.counts, self.report = dispatcher, counts, report
        self.control, self.shapes, self.new_window, self.general = control, shapes, new_window, general
        self.windows = windows

    cdef QueryResult find(self, PyObject* topic, PyObject* key, int64_t max_count):
        """The newest messages of a topic with a key, both plain ASCII text, or None if `general` has to answer."""
        cdef key_query q
        cdef control_block* block = self.control.block
        cdef LogWindow window
        cdef QueryResult found
        cdef uint32_t seq
        if block == NULL or clock_coarse_ms() - load_i64(&self.control.place_ms) >= PLACE_LOOK_MS:
            return None
        block = self.control.checked()
        if self.bounded and load_u32(&block.confirming):
            return None
        if load_i64(&block.dispatched) < load_i64(&block.wrote) \
                and (self.dispatcher is None or not self.dispatcher.make_turn()):
            return None
        keep_block = self.control.file
        seq = load_u32(&block.index_seq)
        if self.files is None or seq != self.files_seq:
            self.files, self.files_seq = self.shapes(), seq
        q.topic = <const uint8_t*>PyUnicode_DATA(<object>topic)
        q.topic_len = <int>PyUnicode_GET_LENGTH(<object>topic)
        q.key = <const uint8_t*>PyUnicode_DATA(<object>key)
        q.key_len = <int>PyUnicode_GET_LENGTH(<object>key)
        self.counts.asked(1)
        window = self.windows.pop() if PyList_GET_SIZE(self.windows) else self.new_window()
        found = _find(window, block, self.files, &q, q.key, max_count, 0, INT64_MAX)
        if PyList_GET_SIZE(self.windows) < SPARE_WINDOWS:
            self.windows.append(window)
        if found._damaged is not None:
            self.report(found._damaged)
        return found


# ------------------------------------------------------------------------------------------------- as a function

cdef enum:
    QUERY_POSITIONAL = 2

cdef object DEFAULT_COUNT = 32
cdef tuple _keywords = (sys.intern("max_count"),)
cdef PyObject* _keyword_names = <PyObject*>_keywords  # a call takes no reference to it
cdef known_callers _callers


cdef inline bint _is_text(PyObject* value) noexcept:
    return PyUnicode_CheckExact(<object>value) and PyUnicode_IS_COMPACT_ASCII(<object>value) \
        and PyUnicode_GET_LENGTH(<object>value) <= INT32_MAX


cdef object _query_call(object reader, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef KeyReader self = <KeyReader>reader
    cdef PyObject* wanted = <PyObject*>DEFAULT_COUNT
    cdef int64_t max_count = 0
    cdef int keywords = KEYWORDS_UNKNOWN
    cdef QueryResult found
    if positional == QUERY_POSITIONAL or (positional == QUERY_POSITIONAL + 1 and names == NULL):
        keywords = place_keywords(given + positional, names, _keyword_names, &_callers, &wanted)
        if positional > QUERY_POSITIONAL:
            wanted = given[QUERY_POSITIONAL]
    if keywords != KEYWORDS_UNKNOWN and _is_text(given[0]) and _is_text(given[1]) \
            and whole_argument(wanted, 1, INT32_MAX, &max_count):
        found = self.find(given[0], given[1], max_count)
        if found is not None:
            return found
    return call_python(self.general, given, positional, names)


cdef PyMethodDef _query_definition
_query_definition.ml_name = "query"
_query_definition.ml_meth = <PyCFunction><void*>_query_call
_query_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_query_definition.ml_doc = (
    "query($self, topic, key, max_count=32, *, begin_ms=0, end_ms=None)\n--\n\n"
    "Messages of a topic by key; see MessageStore.query.")


def query_function(KeyReader reader not None, owner=None):
    """`query` as a function for programs. It keeps a reference to `owner`."""
    return PyCFunction_NewEx(&_query_definition, reader, owner)
