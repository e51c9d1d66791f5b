"""Fast path of `get` and `read`. It answers nearly every call and releases the GIL once: it dispatches if dispatch is
behind, selects the messages and verifies them.

A read-only handle does not dispatch: it takes the missing entries from its table of the log's tail.

The general path (reader.py) answers all other calls: tags, a callable, another dispatcher at work, a cleaned queue,
damage. Results of the fast path are FOUND, NO_MATCHED_MESSAGE and MESSAGE_WAS_REMOVING.
"""

cimport cython
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free

import sys

from cystore._native.append.arguments cimport (
    KEYWORDS_UNKNOWN, METH_FASTCALL, METH_KEYWORDS, PyCFunction, PyCFunction_NewEx, PyMethodDef, call_python,
    known_callers, place_defaults, place_keywords, whole_argument
)
from cystore._native.derived.dispatch cimport DispatchKernel, dispatch_turn
from cystore._native.derived.gather cimport dispatch_state
from cystore._native.derived.queue cimport (
    ANSWER_NONE, BatchLimits, SELECT_DAMAGED, SELECT_DONE, SELECT_NEED_SEGMENT, chosen_record, queue_select,
    selected_messages, selected_records, selection, selection_behind, selection_room
)
from cystore._native.filters.program cimport FilterProgram
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, TOPIC_BYTES_MAX, control_block, queue_entry
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64, load_u32, prefetch_for_read
from cystore._native.memory.control cimport Control, PLACE_LOOK_MS
from cystore._native.memory.locks cimport control_intact
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_find_queue, control_slot
from cystore._native.lookup.get_result cimport GetResult, get_result
from cystore._native.lookup.counts cimport ReadCounts
from cystore._native.lookup.tail_table cimport TailTable
from cystore._native.record.message cimport Message, found_message
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_OK, record_view
from cystore._native.record.window cimport LogWindow, WINDOW_NEED_SEGMENT, log_window, window_record
from cystore.errors import CorruptRecordError, OffsetError, StoreResourceError
from cystore.results import GetStatus

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    PyObject* Py_False
    PyObject* Py_True

cdef enum:
    SPARE_WINDOWS = 8
    PLACES = 64             # mapped consume queue files; more when queues need the same place
    PLACES_MAX = 16384
    FILE_ENTRIES = 300000   # RocketMQ's default, until the first file is mapped
    FILTERED_ENTRIES = 800  # as in reader.py
    NEED_FILE = 64          # beside SelectStatus: the queue's file is not mapped
    NOT_HERE = 65           # the general path has to answer
    IN_TAIL = 66            # the message is not dispatched, and this process may not dispatch

cdef object FOUND = GetStatus.FOUND
cdef object REMOVING = GetStatus.MESSAGE_WAS_REMOVING
cdef object NO_MATCH = GetStatus.NO_MATCHED_MESSAGE

# A mapped consume queue file.
cdef struct queue_place:
    uint32_t queue          # slot + 1; 0: none
    uint32_t removals       # of the queue, before the file was mapped
    int64_t base
    int64_t end
    const uint8_t* address

# The state of one `get`.
cdef struct get_call:
    control_block* block
    queue_entry* entry
    dispatch_state* turn    # NULL: no turn of dispatch. Else the call holds the dispatch lock until the turn is made
    queue_place place
    selection select
    bint has_tail
    int64_t wrote           # at the begin, if dispatch was behind: the result must include earlier messages; else 0
    int64_t offset
    int64_t examined        # the most entries that the call examines
    int64_t minimum
    int64_t dispatched
    int64_t following
    int64_t log_minimum


cdef inline int64_t _examined(const get_call* c) noexcept nogil:
    """How many entries the call examines if each of them stands for a message."""
    return c.select.limits.max_count if c.select.program == NULL else c.examined


cdef int _get(get_call* c, log_window* window) except -1 nogil:
    """Makes the turn of dispatch, then selects. The order of the acquire loads matters: entries below `dispatched`
    (release in dispatch.pyx: _put_queue) point below `wrote` (release in append.pxd: move_wrote)."""
    if c.turn != NULL:
        dispatch_turn(c.turn)
        c.turn = NULL
    c.following = load_i64(&c.entry.next)
    c.minimum = load_i64(&c.entry.minimum)
    c.dispatched = load_i64(&c.entry.dispatched)
    window.wrote = load_i64(&c.block.wrote)
    if c.offset < c.minimum or load_i64(&c.block.min_physical_offset) != c.log_minimum:
        return NOT_HERE
    if c.offset >= c.dispatched:
        return IN_TAIL if c.has_tail and c.offset < c.following else NOT_HERE
    if c.offset > c.dispatched - _examined(c) and load_i64(&c.block.dispatched) < c.wrote:
        return NOT_HERE
    return _select(c, window)


cdef int _select(get_call* c, log_window* window) except -1 nogil:
    cdef int64_t position = c.offset * <int64_t>QUEUE_ENTRY_BYTES
    if c.place.address == NULL or not c.place.base <= position < c.place.end \
            or c.place.removals != load_u32(&c.entry.removals):
        return NEED_FILE
    c.select.entries = c.place.address + (position - c.place.base)
    c.select.count = min(min(c.dispatched, c.place.end // <int64_t>QUEUE_ENTRY_BYTES) - c.offset, c.examined)
    return queue_select(&c.select, window)


cdef int _read(log_window* window, int64_t offset) noexcept nogil:
    cdef record_view v
    cdef const uint8_t* at
    cdef int status = window_record(window, offset, &v, &at)
    if status == WINDOW_NEED_SEGMENT:
        return SELECT_NEED_SEGMENT
    return SELECT_DONE if status == RECORD_OK and record_intact(at, &v) else SELECT_DAMAGED


@cython.auto_pickle(False)
@cython.final
cdef class QueueReader:
    """`get` and `read` of one attached store, for handles that follow live processes. Safe for threads.

    `filter_class` has a FilterProgram as its attribute `program`. `file_of(slot, queue_offset)` returns a consume
    queue's mapped file, or None. `new_window()` makes a window; `windows` holds spare windows. `general` and
    `general_read` answer all other calls, the calls that look at the store's place, and all calls after a fork or
    `close` detached this object.
    """

    cdef Control control
    cdef DispatchKernel dispatcher
    cdef BatchLimits limits
    cdef object file_of, new_window, general, general_read
    cdef type filter_class
    cdef TailTable tail             # None: this process may dispatch
    cdef list windows
    cdef list files                 # mappings of `places`; they keep the addresses valid
    cdef queue_place* places
    cdef uint32_t place_count       # a power of two
    cdef int64_t file_entries       # all queue files of a store have the same length
    cdef int64_t manifest_seq       # of the manifest whose damage the spare windows know
    cdef public int64_t cleaned_below  # the log's minimum when cleaned files were last unmapped
    cdef ReadCounts counts
    cdef bint bounded               # while the store confirms, `general` answers every `get`

    def __cinit__(self):
        self.make_places(PLACES)

    def __dealloc__(self):
        free(self.places)

    def __init__(self, Control control not None, DispatchKernel dispatcher not None, BatchLimits limits not None,
                 list windows not None, ReadCounts counts not None, file_of, new_window, general, general_read,
                 type filter_class not None, TailTable tail=None, *, bint bounded=False):
        self.tail = tail
        self.bounded = bounded
        self.filter_class = filter_class
        self.counts = counts
        self.control, self.dispatcher, self.limits, self.windows = control, dispatcher, limits, windows
        self.file_of, self.new_window, self.general, self.general_read = file_of, new_window, general, general_read
        self.manifest_seq = -1
        self.file_entries = FILE_ENTRIES

    def forget_files(self):
        """Forgets the mapped consume queue files."""
        cdef uint32_t i
        for i in range(self.place_count):
            self.places[i].queue = 0
            self.files[i] = None

    cdef int make_places(self, uint32_t count) except -1:
        """So many places; each file moves to its new one. A store with many queues would map or look up a file for each
        get."""
        cdef list files = self.files
        cdef queue_place* places = self.places
        cdef queue_place* made = <queue_place*>calloc(count, sizeof(queue_place))
        cdef uint32_t i, at, before = self.place_count
        if made == NULL:
            raise MemoryError
        self.places, self.place_count, self.files = made, count, [None] * count
        for i in range(before):
            if places[i].queue != 0:
                at = self.place_of(places[i].queue - 1, places[i].base // <int64_t>QUEUE_ENTRY_BYTES)
                made[at] = places[i]
                self.files[at] = files[i]
        free(places)
        return 0

    cdef LogWindow window(self, control_block* block):
        """A window for this call. It knows the damage in the current manifest."""
        cdef int64_t seq = load_i64(&block.manifest_seq)
        if seq != self.manifest_seq:
            self.windows.clear()
            self.manifest_seq = seq
        return self.windows.pop() if PyList_GET_SIZE(self.windows) else self.new_window()

    cdef int give_back(self, LogWindow window, int64_t seq) except -1:
        if PyList_GET_SIZE(self.windows) < SPARE_WINDOWS and seq == self.manifest_seq:
            self.windows.append(window)
        return 0

    cdef uint32_t place_of(self, uint32_t slot, int64_t offset) noexcept:
        """Index of a queue file in `places`. The files of a large queue have different indexes."""
        return (slot + <uint32_t>(offset // self.file_entries)) & (self.place_count - 1)

    cdef MappedFile file_at(self, get_call* c, uint32_t slot):
        """Maps the queue file that holds the offset; None without such a file."""
        cdef uint32_t removals = load_u32(&c.entry.removals)
        cdef MappedFile file = self.file_of(slot, c.offset)
        cdef queue_place* place
        if file is None:
            return None
        self.file_entries = max(file.length // <Py_ssize_t>QUEUE_ENTRY_BYTES, 1)
        place = &self.places[self.place_of(slot, c.offset)]
        if place.queue != 0 and place.queue != slot + 1 and self.place_count < PLACES_MAX:
            self.make_places(4 * self.place_count)
            place = &self.places[self.place_of(slot, c.offset)]
        c.place.queue = slot + 1
        c.place.removals = removals
        c.place.base = file.base
        c.place.end = file.base + file.length
        c.place.address = file.address
        place[0] = c.place
        self.files[self.place_of(slot, c.offset)] = file
        return file

    cdef int from_tail(self, get_call* c, LogWindow window, uint32_t slot) except -1:
        """Selects from the entries that dispatch has not written yet: a status of `queue_select`, or NOT_HERE."""
        cdef int64_t room = c.select.limits.max_count * <int64_t>(sizeof(chosen_record) // sizeof(int64_t))
        cdef int64_t wanted = min(c.following - c.offset, _examined(c))
        cdef int64_t* numbers = window.room(room + wanted * <int64_t>QUEUE_ENTRY_BYTES // <int64_t>sizeof(int64_t) + 1)
        cdef uint8_t* entries = <uint8_t*>(numbers + room)
        cdef int status
        c.select.chosen = <chosen_record*>numbers
        if self.tail.copy(c.block, window, slot, c.offset, wanted, entries, &c.select.count) != RECORD_OK:
            return NOT_HERE
        c.select.entries = entries
        with nogil:
            status = queue_select(&c.select, &window.c)
        if (status == SELECT_DONE and c.select.program == NULL and c.select.at == wanted
                and c.select.found < c.select.limits.max_count and wanted < c.following - c.offset):
            return NOT_HERE  # expired messages were skipped: more entries are needed
        return status

    cdef GetResult get(self, const uint8_t* topic, int topic_len, int32_t queue_id, int64_t offset, int32_t max_count,
                       FilterProgram program, bint raw):
        """The result, or None if the general path has to answer."""
        cdef control_block* block = self.control.block
        cdef get_call c
        cdef LogWindow window
        cdef MappedFile file
        cdef GetResult result
        cdef uint32_t slot, at
        cdef int64_t seq, since_ms = clock_coarse_ms()
        cdef int status
        if block == NULL or not control_intact(block) or (self.bounded and load_u32(&block.confirming)) \
                or since_ms - load_i64(&self.control.place_ms) >= PLACE_LOOK_MS:
            return None
        c.entry = control_find_queue(block, topic, topic_len, queue_id)
        if c.entry == NULL:
            return None
        keep_block = self.control.file
        c.block = block
        c.offset = offset
        c.examined = max(FILTERED_ENTRIES, max_count)
        c.log_minimum = load_i64(&block.min_physical_offset)
        if c.log_minimum != self.cleaned_below:
            return None
        slot = <uint32_t>(c.entry - control_slot(block, 0))
        at = self.place_of(slot, offset)
        c.place = self.places[at]
        file = None
        if c.place.queue == slot + 1:
            if c.place.base <= offset * <int64_t>QUEUE_ENTRY_BYTES < c.place.end:
                prefetch_for_read(c.place.address + (offset * <int64_t>QUEUE_ENTRY_BYTES - c.place.base))
            file = <MappedFile>self.files[at]
        else:
            c.place.address = NULL
        c.select.entries = NULL
        c.select.first = offset
        c.select.topic = topic
        c.select.topic_len = topic_len
        c.select.queue_id = queue_id
        c.select.codes_are_hashes = True  # unused: there are no tags
        c.select.filter.count = 0
        c.select.program = NULL if program is None else &program.c
        c.select.units.bits = NULL
        c.select.asks = False
        c.select.answer = ANSWER_NONE
        c.select.limits = self.limits.c
        c.select.limits.max_count = min(max_count, max(self.limits.c.count_in_memory, self.limits.c.count_in_disk))
        c.select.at = c.select.found = c.select.found_bytes = c.select.missing = c.select.wanted = 0
        c.select.passed = -1
        window = self.window(block)
        seq = self.manifest_seq
        selection_room(&c.select, window)
        window.move(c.log_minimum, load_i64(&block.wrote))
        c.turn = NULL
        c.wrote = 0
        c.has_tail = self.tail is not None
        if not c.has_tail and load_i64(&c.entry.dispatched) < load_i64(&c.entry.next):
            c.wrote = load_i64(&block.wrote)
            if self.dispatcher.take_turn():
                c.turn = self.dispatcher.d
        with nogil:  # no code that can fail stands between `take_turn`, which took the lock, and `_get`
            status = _get(&c, &window.c)
        if status == IN_TAIL:
            try:
                status = self.from_tail(&c, window, slot)
            except (OffsetError, CorruptRecordError):
                return None
        while status == NEED_FILE or status == SELECT_NEED_SEGMENT:
            if status == NEED_FILE:
                file = self.file_at(&c, slot)
                if file is None:
                    return None
            elif c.select.found and window.is_full(c.select.wanted):
                break  # one more segment would evict another
            else:
                try:
                    window.need(c.select.wanted, c.select.found != 0)
                except (OffsetError, CorruptRecordError):
                    return None
                except StoreResourceError:
                    if c.select.found == 0:
                        raise
                    break
            with nogil:
                status = _select(&c, &window.c) if c.select.entries == NULL else queue_select(&c.select, &window.c)
        if status == NOT_HERE:
            return None
        if status == SELECT_DAMAGED and c.select.found == 0:
            self.places[self.place_of(slot, offset)].queue = 0
            return None
        result = get_result(FOUND, None, offset + c.select.at, c.minimum, c.dispatched)
        if self.control.read_only:  # `general` reads undispatched messages too, so the queue ends behind them
            result.max_offset = max(c.dispatched, c.following)
        else:
            result.behind = c.dispatched < c.following
        result.suggest_pulling_from_slave = selection_behind(&c.select, &window.c)
        if c.select.found == 0:
            result.status = REMOVING if c.select.missing == c.select.at else NO_MATCH
        if raw:
            result.messages = []
            result.raw, result.record_offsets = selected_records(&c.select)
        else:
            result.messages = selected_messages(&c.select, window)
        self.counts.got(since_ms, c.select.found)
        self.give_back(window, seq)
        return result

    cdef Message read(self, int64_t offset):
        """The message, or None if the general path has to answer."""
        cdef control_block* block = self.control.block
        cdef LogWindow window
        cdef Message message
        cdef int64_t seq
        cdef int status
        if block == NULL or not control_intact(block) or load_i64(&block.min_physical_offset) != self.cleaned_below \
                or clock_coarse_ms() - load_i64(&self.control.place_ms) >= PLACE_LOOK_MS:
            return None
        keep_block = self.control.file
        window = self.window(block)
        seq = self.manifest_seq
        window.move(self.cleaned_below, load_i64(&block.wrote))
        with nogil:
            status = _read(&window.c, offset)
        if status == SELECT_NEED_SEGMENT:
            try:
                window.need(offset)
            except (OffsetError, CorruptRecordError):
                return None
            with nogil:
                status = _read(&window.c, offset)
        if status != SELECT_DONE:
            return None
        message = found_message(window, offset)
        self.give_back(window, seq)
        return message


# ------------------------------------------------------------------------------------------------- as functions

cdef enum:
    GET_MAX_COUNT
    GET_TAGS
    GET_GROUP
    GET_RAW
    GET_FILTER
    GET_KEYWORDS
    GET_POSITIONAL = 3

cdef tuple _keywords = tuple([sys.intern(name) for name in ("max_count", "tags", "group", "raw", "filter")])
cdef PyObject* _keyword_names = <PyObject*>_keywords  # a call takes no reference to it
cdef tuple _defaults = (32, None, None, False, None)
cdef known_callers _callers


cdef object _get_call(object reader, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef QueueReader self = <QueueReader>reader
    cdef PyObject* values[GET_KEYWORDS]
    cdef int64_t queue_id, offset, max_count
    cdef PyObject* topic
    cdef FilterProgram program = None
    cdef GetResult result
    cdef int keywords = KEYWORDS_UNKNOWN
    if positional == GET_POSITIONAL or positional == GET_POSITIONAL + 1:
        keywords = place_keywords(given + positional, names, _keyword_names, &_callers, values)
    if keywords == KEYWORDS_UNKNOWN or (positional > GET_POSITIONAL and keywords & 1 << GET_MAX_COUNT):
        return call_python(self.general, given, positional, names)
    place_defaults(_defaults, keywords, values)
    if positional > GET_POSITIONAL:
        values[GET_MAX_COUNT] = given[GET_POSITIONAL]
    topic = given[0]
    if type(<object>values[GET_FILTER]) is self.filter_class:
        program = (<object>values[GET_FILTER]).program
    if (
        (program is not None or values[GET_FILTER] == <PyObject*>None)
        and values[GET_TAGS] == <PyObject*>None and values[GET_GROUP] == <PyObject*>None
        and (values[GET_RAW] == Py_False or values[GET_RAW] == Py_True)
        and PyUnicode_CheckExact(<object>topic) and PyUnicode_IS_COMPACT_ASCII(<object>topic)
        and PyUnicode_GET_LENGTH(<object>topic) <= <Py_ssize_t>TOPIC_BYTES_MAX
        and whole_argument(given[1], 0, INT32_MAX, &queue_id) and whole_argument(given[2], 0, 1 << 58, &offset)
        and whole_argument(values[GET_MAX_COUNT], 1, INT32_MAX, &max_count)
    ):
        result = self.get(<const uint8_t*>PyUnicode_DATA(<object>topic), <int>PyUnicode_GET_LENGTH(<object>topic),
                          <int32_t>queue_id, offset, <int32_t>max_count, program, values[GET_RAW] == Py_True)
        if result is not None:
            return result
    return call_python(self.general, given, positional, names)


cdef object _read_call(object reader, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef QueueReader self = <QueueReader>reader
    cdef Message message
    cdef int64_t offset
    if positional == 1 and names == NULL and whole_argument(given[0], 0, 1 << 62, &offset):
        message = self.read(offset)
        if message is not None:
            return message
    return call_python(self.general_read, given, positional, names)


cdef PyMethodDef _get_definition
_get_definition.ml_name = "get"
_get_definition.ml_meth = <PyCFunction><void*>_get_call
_get_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_get_definition.ml_doc = (
    "get($self, topic, queue_id, queue_offset, max_count=32, *, tags=None, filter=None, group=None, raw=False)\n--\n\n"
    "Reads messages of a queue; see MessageStore.get.")

cdef PyMethodDef _read_definition
_read_definition.ml_name = "read"
_read_definition.ml_meth = <PyCFunction><void*>_read_call
_read_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_read_definition.ml_doc = "read($self, physical_offset)\n--\n\nThe record at a physical offset; see MessageStore.read."


def get_function(QueueReader reader not None, owner=None):
    """`get` as a function for programs. It keeps a reference to `owner`."""
    return PyCFunction_NewEx(&_get_definition, reader, owner)


def read_function(QueueReader reader not None, owner=None):
    """`read` as a function for programs. It keeps a reference to `owner`."""
    return PyCFunction_NewEx(&_read_definition, reader, owner)
