"""`query`: finds the messages that hold a key: through the index files and a window on the log, and in the part of the
log that the index does not cover yet.

A query takes about ten cache misses, as long as one call through Python. So `query_function` reads ordinary arguments
by itself. All others are read in Python (Reader.query), which then calls `KeyReader.query`.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_Append, PyList_GET_SIZE
from cpython.object cimport PyObject
from libc.stdint cimport INT32_MAX, INT64_MAX, int64_t, uint8_t, uint32_t

from cystore._native.append.arguments cimport (
    KEYWORDS_UNKNOWN, METH_FASTCALL, METH_KEYWORDS, PyCFunction, PyCFunction_NewEx, PyMethodDef, call_python,
    known_callers, place_keywords, whole_argument
)
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64, load_u32
from cystore._native.memory.control cimport Control, PLACE_LOOK_MS, read_end
from cystore._native.derived.dispatch cimport DispatchKernel
from cystore._native.derived.index cimport (
    QUERY_DONE, QUERY_FULL, QUERY_NEED_SEGMENT, index_key_hash, index_may_hold, index_query, index_slot_prefetch,
    index_time, index_topic_seed, index_view, index_view_of, index_walk_begin, key_query
)
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


cdef QueryResult _in_index(LogWindow window, const key_moment* m, list files, key_query* q, const key_request* r):
    """Messages of the index files, newest first."""
    cdef index_view index
    cdef MappedFile file
    cdef int64_t i
    cdef int status = QUERY_DONE
    cdef bint begun, may_hold
    cdef QueryResult messages = None
    cdef Message only = None
    cdef list missing = None
    cdef Py_ssize_t place
    cdef int64_t max_count = INT64_MAX if r.as_text else r.max_count
    q.topic, q.topic_len, q.key_len, q.end = r.topic, r.topic_len, r.key_len, m.end
    q.key = NULL
    if not r.as_text:
        q.key = r.key
    q.walk.hash = index_key_hash(index_topic_seed(q.topic, q.topic_len), r.key, q.key_len)
    q.walk.begin_ms = index_time(r.begin_ms)
    q.walk.end_ms = index_time(r.end_ms)
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
            window.move(load_i64(&m.block.min_physical_offset), load_i64(&m.block.wrote))
        q.candidate_at = q.candidate_count = 0
        begun = False
        while True:
            with nogil:
                may_hold = begun or index_may_hold(&index, q.walk.begin_ms, q.walk.end_ms)
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


cdef void request_for(key_request* r, bytes topic, bytes key, int64_t max_count) noexcept:
    r.topic, r.topic_len = <const uint8_t*>PyBytes_AS_STRING(topic), <int>min(len(topic), INT32_MAX)
    r.key, r.key_len = <const uint8_t*>PyBytes_AS_STRING(key), <int>min(len(key), INT32_MAX)
    r.max_count, r.begin_ms, r.end_ms, r.as_text = max_count, 0, INT64_MAX, False


cdef bint is_compared_as_text(str key) except -1:
    """Bytes of a stored key that are not UTF-8 are U+FFFD for programs."""
    return not PyUnicode_IS_COMPACT_ASCII(key) and u"\N{REPLACEMENT CHARACTER}" in key


cdef bint _holds(Message message, str key) except -1:
    return key in message.keys or key == message.properties.get("UNIQ_KEY")


cdef QueryResult _those_with(QueryResult found, str key, int64_t max_count):
    """The messages whose key is this text, with U+FFFD for bytes that are not UTF-8."""
    cdef QueryResult kept = QueryResult([message for message in found if _holds(message, key)][:max_count])
    kept._damaged = found._damaged
    return kept


@cython.auto_pickle(False)
@cython.final
cdef class KeyReader:
    """`query` and `query_many` of one attached store. Safe for threads.

    `obstacles` removes the obstacles of a search: see KeyObstacles in derived/reading/by_key.py. `windows` holds spare
    windows. `tail` has the keys behind the part of the log that the index covers.
    """

    def __init__(self, Control control not None, obstacles not None, list windows not None, ReadCounts counts not None,
                 tail not None, DispatchKernel dispatcher, int which_end):
        self.control, self.obstacles, self.windows, self.counts = control, obstacles, windows, counts
        self.tail, self.dispatcher, self.which_end = tail, dispatcher, which_end

    cdef MappedFile begin(self, key_moment* m, int which_end):
        """Dispatches what is appended by now, as far as that goes. Returns the mapping that holds the control block:
        another thread may close the store. The order of the acquire loads matters: the index has all keys below
        `dispatched` (release in dispatch.pyx)."""
        cdef MappedFile keep_block
        cdef uint32_t seq
        m.block = self.control.checked()
        m.wrote = load_i64(&m.block.wrote)
        if load_i64(&m.block.dispatched) < m.wrote and (self.dispatcher is None or not self.dispatcher.make_turn()):
            self.obstacles.dispatch()
            m.block = self.control.checked()
        keep_block = self.control.file
        m.dispatched = load_i64(&m.block.dispatched)
        m.end = read_end(m.block, m.wrote, which_end)
        seq = load_u32(&m.block.index_seq)
        if self.files is None or seq != self.files_seq:
            self.files, self.files_seq = self.obstacles.index_files(), seq
        return keep_block

    cdef LogWindow window(self):
        return self.windows.pop() if PyList_GET_SIZE(self.windows) else self.obstacles.window()

    cdef int give_back(self, LogWindow window) except -1:
        if PyList_GET_SIZE(self.windows) < SPARE_WINDOWS:
            self.windows.append(window)
        return 0

    cdef QueryResult find(self, LogWindow window, const key_moment* m, const key_request* r, str text):
        """The newest messages of a topic with a key at one moment. `text` is the key, if it is compared as text."""
        cdef key_query q
        cdef QueryResult found = _in_index(window, m, self.files, &q, r)
        if r.as_text:
            found = _those_with(found, text, r.max_count)
        if m.dispatched < m.end:
            found = self.with_undispatched(found, window, m, r, text)
        return found

    cdef QueryResult with_undispatched(self, QueryResult older, LogWindow window, const key_moment* m,
                                       const key_request* r, str text):
        """The same result with the messages that dispatch has not entered into the index. Damage there may hide all
        messages behind it, so it is reported for any key."""
        cdef bytes topic = PyBytes_FromStringAndSize(<const char*>r.topic, r.topic_len)
        cdef bytes key = PyBytes_FromStringAndSize(<const char*>r.key, r.key_len)
        cdef int64_t minimum = load_i64(&m.block.min_physical_offset)
        cdef object error = None
        cdef QueryResult found
        newer, end = [], m.end
        try:
            newer, end = self.tail.find_messages(
                self.control, window, minimum, m.wrote, m.dispatched, topic, key,
                INT64_MAX if r.as_text else r.max_count, r.begin_ms, r.end_ms, below=m.end, any_key=r.as_text)
        except CorruptRecordError as missing:  # a segment's file is missing
            error = missing
        if end < m.end:
            error = self.obstacles.undispatched_damage(end)
        if r.as_text:
            newer = [message for message in newer if _holds(message, text)]
        if error is None and not newer:
            return older
        # Meanwhile dispatch may have entered these messages, and newer ones.
        by_offset = {message.physical_offset: message for message in [*newer, *older]}
        found = QueryResult([by_offset[at] for at in sorted(by_offset, reverse=True)][:r.max_count], older.damaged)
        if error is not None:
            found._damaged.append(error)
        return found

    cdef int report(self, QueryResult found) except -1:
        if found._damaged is not None and PyList_GET_SIZE(found._damaged):
            self.obstacles.report(found._damaged)
        return 0

    cdef QueryResult answer(self, const key_request* r, str text, bint with_expired, int which_end):
        cdef key_moment m
        cdef MappedFile keep_block = self.begin(&m, which_end)
        cdef LogWindow window = self.obstacles.window(with_expired=True) if with_expired else self.window()
        cdef QueryResult found
        self.counts.asked(1)
        found = self.find(window, &m, r, text)
        if not with_expired:
            self.give_back(window)
        self.report(found)
        return found

    def query(self, bytes topic not None, str key not None, int64_t max_count, int64_t begin_ms, int64_t end_ms,
              bint with_expired, int which_end):
        """At most `max_count` messages of a topic that hold the key, newest first, with store timestamps from
        `begin_ms` to `end_ms`."""
        cdef key_request r
        cdef bytes encoded = key.encode()
        request_for(&r, topic, encoded, max_count)
        r.begin_ms, r.end_ms = begin_ms, end_ms
        r.as_text = is_compared_as_text(key)
        return self.answer(&r, key, with_expired, which_end)


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


cdef inline bint _is_at_hand(KeyReader self) noexcept:
    """False after a fork or a close, and if it is time to look at the store's place: the store sees to that first."""
    return self.control.block != NULL and clock_coarse_ms() - load_i64(&self.control.place_ms) < PLACE_LOOK_MS


cdef object _query_call(object reader, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef KeyReader self = <KeyReader>reader
    cdef key_request r
    cdef PyObject* wanted = <PyObject*>DEFAULT_COUNT
    cdef int keywords = KEYWORDS_UNKNOWN
    if positional == QUERY_POSITIONAL or (positional == QUERY_POSITIONAL + 1 and names == NULL):
        keywords = place_keywords(given + positional, names, _keyword_names, &_callers, &wanted)
        if positional > QUERY_POSITIONAL:
            wanted = given[QUERY_POSITIONAL]
    if keywords != KEYWORDS_UNKNOWN and _is_text(given[0]) and _is_text(given[1]) \
            and whole_argument(wanted, 1, INT32_MAX, &r.max_count) and _is_at_hand(self):
        r.topic, r.topic_len = <const uint8_t*>PyUnicode_DATA(<object>given[0]), \
            <int>PyUnicode_GET_LENGTH(<object>given[0])
        r.key, r.key_len = <const uint8_t*>PyUnicode_DATA(<object>given[1]), \
            <int>PyUnicode_GET_LENGTH(<object>given[1])
        r.begin_ms, r.end_ms, r.as_text = 0, INT64_MAX, False
        return self.answer(&r, None, False, self.which_end)
    return call_python(self.general, given, positional, names)


cdef PyMethodDef _query_definition
_query_definition.ml_name = "query"
_query_definition.ml_meth = <PyCFunction><void*>_query_call
_query_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_query_definition.ml_doc = (
    "query($self, topic, key, max_count=32, *, begin_ms=0, end_ms=None)\n--\n\n"
    "Messages of a topic by key; see MessageStore.query.")


def query_function(KeyReader reader not None, general not None, owner=None):
    """`query` as a function for programs. It keeps a reference to `owner`. `general` answers calls with other
    arguments, calls that look at the store's place, and all calls after a fork or a close."""
    reader.general = general
    return PyCFunction_NewEx(&_query_definition, reader, owner)
