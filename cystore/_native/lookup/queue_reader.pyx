"""`get` and `read`: the messages of a queue from a queue offset on, and the record at a place of the log.

One call dispatches if dispatch is behind, looks at the queue, selects its messages and verifies them, and releases the
GIL once. If something is missing (a mapping, an entry, a turn of another dispatcher), the kernel ends with a status
that names it. `QueueObstacles` (derived/reading/by_offset.py) removes the obstacle, and the kernel looks again.

A read-only handle does not dispatch: it takes the missing entries from its table of the log's tail.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from cpython.list cimport PyList_GET_SIZE
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcmp

import sys

from cystore._native.append.arguments cimport (
    KEYWORDS_UNKNOWN, METH_FASTCALL, METH_KEYWORDS, PyCFunction, PyCFunction_NewEx, PyMethodDef, call_python,
    known_callers, place_defaults, place_keywords, whole_argument
)
from cystore._native.derived.dispatch cimport DispatchKernel
from cystore._native.derived.queue cimport (
    ANSWER_LEAVE, ANSWER_NONE, ANSWER_TAKE, BatchLimits, SELECT_ASK, SELECT_BAD_ENTRY, SELECT_DAMAGED, SELECT_DONE,
    SELECT_NEED_SEGMENT, SELECT_NEED_UNITS, TagFilter, UnitReader, asked_message, chosen_record, queue_look,
    queue_select, selected_messages, selected_records, selection, selection_behind, selection_damage, selection_room
)
from cystore._native.filters.program cimport FilterProgram
from cystore._native.layout cimport (
    QUEUE_ENTRY_BYTES, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT, TOPIC_BYTES_MAX, control_block
)
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64, load_u32, prefetch_for_read
from cystore._native.memory.control cimport Control, PLACE_LOOK_MS
from cystore._native.memory.locks cimport control_intact
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_find_queue, control_slot
from cystore._native.lookup.get_call cimport (
    GET_CLEANED, GET_GONE, GET_IN_TAIL, GET_NEED_BITS, GET_NEED_DISPATCH, GET_NEED_END, GET_NEED_FILE, GET_OUTSIDE,
    examined_by, get_call, get_look, get_select, queue_place
)
from cystore._native.lookup.get_result cimport GetResult, get_result
from cystore._native.lookup.counts cimport ReadCounts
from cystore._native.lookup.tail_table cimport TailTable
from cystore._native.record.message cimport Message, found_message
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_BAD_CHECKSUM, RECORD_OK, record_view
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
    LEAST_EXAMINED = 800    # entries that one filtered batch examines (16,000 bytes in RocketMQ)
    OFFSET_MAX = 0x400000000000000  # 2^58: the position of a higher offset is no int64_t
    LOOKS_MAX = 100         # so often a get looks again when a cleaner removes what it is about to read

FILTERED_ENTRIES = LEAST_EXAMINED

cdef object FOUND = GetStatus.FOUND
cdef object REMOVING = GetStatus.MESSAGE_WAS_REMOVING
cdef object NO_MATCH = GetStatus.NO_MATCHED_MESSAGE
cdef object NO_QUEUE = GetStatus.NO_MATCHED_LOGIC_QUEUE
cdef object NO_MESSAGE = GetStatus.NO_MESSAGE_IN_QUEUE
cdef object FOUND_NULL = GetStatus.OFFSET_FOUND_NULL
cdef object TOO_SMALL = GetStatus.OFFSET_TOO_SMALL
cdef object OVERFLOW_ONE = GetStatus.OFFSET_OVERFLOW_ONE
cdef object OVERFLOW_BADLY = GetStatus.OFFSET_OVERFLOW_BADLY

cdef GetResult _outside(const get_call* c):
    """The answer for an offset without an entry. Offsets below `following` are acknowledged, and get their entries when
    dispatch has caught up; offsets behind a confirmed end may get there."""
    cdef const queue_look* q = &c.state
    cdef int64_t end = q.dispatched, following = max(end, q.following)
    if c.is_cut and c.offset >= end:
        following = c.offset
    if following == 0:
        return get_result(NO_MESSAGE, None, 0, 0, 0)
    if c.offset < q.minimum:
        return get_result(TOO_SMALL, None, q.minimum, q.minimum, end)
    if c.offset <= following:
        return get_result(OVERFLOW_ONE, None, c.offset, q.minimum, end)
    # RocketMQ starts over if nothing was removed yet.
    return get_result(OVERFLOW_BADLY, None, following if q.minimum else 0, q.minimum, end)


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
    """`get` and `read` of one attached store. Safe for threads.

    `obstacles` removes the obstacles of a get: see QueueObstacles in derived/reading/by_offset.py. `windows`
    holds spare windows. `filter_class` has a FilterProgram as its attribute `program`.
    """

    cdef Control control
    cdef DispatchKernel dispatcher
    cdef BatchLimits limits
    cdef object obstacles, general, general_read
    cdef type filter_class
    cdef TailTable tail             # None: this process may dispatch
    cdef list windows
    cdef list files                 # mappings of `places`; they keep the addresses valid
    cdef queue_place* places
    cdef uint32_t place_count       # a power of two
    cdef int64_t file_entries       # all queue files of a store have the same length
    cdef int64_t manifest_seq       # of the manifest whose damage the spare windows know
    cdef int64_t cleaned_below      # the log's minimum when cleaned files were last unmapped
    cdef ReadCounts counts
    cdef int which_end              # a ReadEnd, for calls that name none

    def __cinit__(self):
        self.make_places(PLACES)

    def __dealloc__(self):
        free(self.places)

    def __init__(self, Control control not None, obstacles not None, DispatchKernel dispatcher,
                 BatchLimits limits not None, list windows not None, ReadCounts counts not None,
                 type filter_class not None, TailTable tail, int which_end):
        self.control, self.obstacles, self.dispatcher, self.limits = control, obstacles, dispatcher, limits
        self.windows, self.counts, self.filter_class, self.tail = windows, counts, filter_class, tail
        self.which_end = which_end
        self.manifest_seq = -1
        self.file_entries = FILE_ENTRIES

    def forget_cleaned(self):
        """Ends the mappings of segments that were cleaned since the last look: their disk space is free when no process
        maps them."""
        cdef int64_t minimum = load_i64(&self.control.checked().min_physical_offset)
        if minimum != self.cleaned_below:
            self.cleaned_below = minimum
            self.forget_files()
            self.obstacles.forget_cleaned()

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
        return self.windows.pop() if PyList_GET_SIZE(self.windows) else self.obstacles.window()

    cdef int give_back(self, LogWindow window, int64_t seq) except -1:
        if PyList_GET_SIZE(self.windows) < SPARE_WINDOWS and seq == self.manifest_seq:
            self.windows.append(window)
        return 0

    cdef uint32_t place_of(self, uint32_t slot, int64_t offset) noexcept:
        """Index of a queue file in `places`. The files of a large queue have different indexes."""
        return (slot + <uint32_t>(offset // self.file_entries)) & (self.place_count - 1)

    cdef MappedFile file_at(self, get_call* c):
        """Maps the queue file that holds the offset; None without such a file."""
        cdef uint32_t removals = load_u32(&c.entry.removals)
        cdef MappedFile file = self.obstacles.file_of(c.slot, c.offset)
        cdef queue_place* place
        if file is None:
            return None
        self.file_entries = max(file.length // <Py_ssize_t>QUEUE_ENTRY_BYTES, 1)
        place = &self.places[self.place_of(c.slot, c.offset)]
        if place.queue != 0 and place.queue != c.slot + 1 and self.place_count < PLACES_MAX:
            self.make_places(4 * self.place_count)
            place = &self.places[self.place_of(c.slot, c.offset)]
        c.place.queue = c.slot + 1
        c.place.removals = removals
        c.place.base = file.base
        c.place.end = file.base + file.length
        c.place.address = file.address
        place[0] = c.place
        self.files[self.place_of(c.slot, c.offset)] = file
        return file

    cdef MappedFile begin(self, get_call* c):
        """Sets the selection to its begin, with the queue's file if it is mapped. Returns that file."""
        cdef uint32_t at = self.place_of(c.slot, c.offset)
        cdef selection* s = &c.select
        s.entries = NULL
        s.units.bits = NULL
        s.answer = ANSWER_NONE
        s.at = s.found = s.found_bytes = s.missing = s.wanted = 0
        s.passed = -1
        c.place = self.places[at]
        if c.place.queue != c.slot + 1:
            c.place.address = NULL
            return None
        if c.place.base <= c.position < c.place.end:
            prefetch_for_read(c.place.address + (c.position - c.place.base))
        return <MappedFile>self.files[at]

    cdef int from_tail(self, get_call* c, LogWindow window, int64_t wanted) except -1:
        """Selects from the entries that dispatch has not written yet, at most `wanted` of them."""
        cdef int64_t room = c.select.limits.max_count * <int64_t>(sizeof(chosen_record) // sizeof(int64_t))
        cdef int64_t* numbers = window.room(room + wanted * <int64_t>QUEUE_ENTRY_BYTES // <int64_t>sizeof(int64_t) + 1)
        cdef uint8_t* entries = <uint8_t*>(numbers + room)
        cdef int status
        c.select.chosen = <chosen_record*>numbers
        try:
            status = self.tail.copy(c.block, window, c.slot, c.offset, wanted, entries, &c.select.count)
        except OffsetError:  # a segment was removed
            return GET_OUTSIDE
        if status != RECORD_OK:  # dispatch may have entered the message meanwhile
            return GET_CLEANED if load_i64(&c.entry.dispatched) > c.offset else GET_OUTSIDE
        c.select.entries = entries
        with nogil:
            status = queue_select(&c.select, &window.c)
        return status

    cdef MappedFile look(self, get_call* c, LogWindow window):
        """One look at the queue, with a turn of dispatch if need be. Sets the status, and returns the queue's file if
        it is mapped: the caller keeps it while the selection goes on."""
        cdef MappedFile file
        c.log_minimum = load_i64(&c.block.min_physical_offset)
        if c.log_minimum != self.cleaned_below:
            self.forget_cleaned()
        file = self.begin(c)
        selection_room(&c.select, window)
        window.move(c.log_minimum, load_i64(&c.block.wrote))
        c.turn = NULL
        c.awaited = 0
        if c.waits and load_i64(&c.entry.dispatched) < load_i64(&c.entry.next):
            c.awaited = load_i64(&c.block.wrote)
            if self.dispatcher is not None and self.dispatcher.take_turn():
                c.turn = self.dispatcher.d
        with nogil:  # no code that can fail stands between `take_turn`, which took the lock, and `get_look`
            c.status = get_look(c, &window.c)
        return file

    cdef GetResult get(self, const uint8_t* topic, int topic_len, int32_t queue_id, int64_t offset, int32_t max_count,
                       bint raw, TagFilter tags, FilterProgram program, object predicate, tuple registered,
                       int which_end, int64_t since_ms):
        """Looks at the queue, and answers if nothing is missing."""
        cdef get_call c
        cdef selection* s = &c.select
        cdef LogWindow window
        cdef MappedFile keep_block, file
        c.raw, c.since_ms = raw, since_ms
        c.block = self.control.block
        if c.block == NULL or not control_intact(c.block):
            self.control.checked()  # raises
        keep_block = self.control.file
        c.entry = NULL
        if topic_len <= <int>TOPIC_BYTES_MAX:
            c.entry = control_find_queue(c.block, topic, topic_len, queue_id)
        if c.entry == NULL:
            return self.nothing(&c, get_result(NO_QUEUE, None, 0, 0, 0))
        c.slot = <uint32_t>(c.entry - control_slot(c.block, 0))
        c.offset = offset
        c.position = offset * <int64_t>QUEUE_ENTRY_BYTES if 0 <= offset <= <int64_t>OFFSET_MAX else -1
        c.examined = max(LEAST_EXAMINED, max_count)
        c.is_filtered = program is not None or tags is not None or predicate is not None
        c.has_tail = self.tail is not None
        c.waits = not c.has_tail
        c.needs_bits = registered is not None
        c.which_end, c.end, c.made = which_end, -1, NULL
        s.first, s.topic, s.topic_len, s.queue_id = offset, topic, topic_len, queue_id
        s.filter.count = 0
        if tags is not None:
            s.filter = tags.c
            s.codes_are_hashes = topic_len != <int>SCHEDULE_TOPIC_BYTES \
                or memcmp(topic, SCHEDULE_TOPIC_TEXT, topic_len) != 0
        s.program = NULL if program is None else &program.c
        s.asks = predicate is not None
        s.limits = self.limits.c
        s.limits.max_count = min(max_count, max(s.limits.count_in_memory, s.limits.count_in_disk))
        window = self.window(c.block)
        c.manifest_seq = self.manifest_seq
        file = self.look(&c, window)
        if c.status != SELECT_DONE:
            return self.look_again(&c, window, file, predicate, registered)
        return self.found(&c, window, c.state.dispatched)

    cdef GetResult look_again(self, get_call* c, LogWindow window, MappedFile file, predicate, tuple registered):
        """Removes what is missing after the first look, and looks again, until nothing is missing for an answer."""
        cdef selection* s = &c.select
        cdef UnitReader units = None
        cdef GetResult result
        cdef object failed = None, damage = None, made = None
        cdef int64_t from_tail
        cdef int status, look, healed = 0, walks = 0
        for look in range(LOOKS_MAX):
            if look:
                if window is None:
                    window = self.window(c.block)
                    c.manifest_seq = self.manifest_seq
                file = self.look(c, window)
            status = c.status
            from_tail = 0
            if status == GET_IN_TAIL:
                from_tail = min(c.state.following - c.offset, examined_by(c))
                status = self.from_tail(c, window, from_tail)
            while True:
                if status == GET_NEED_FILE:
                    file = self.file_at(c)
                    if file is None or not c.place.base <= c.position < c.place.end:
                        status = GET_GONE
                        break
                elif status == GET_NEED_BITS:
                    c.needs_bits = False
                    units = self.obstacles.units(c.slot, registered)
                    if units is not None:
                        units.begin(s)
                elif status == SELECT_ASK:
                    s.answer = ANSWER_TAKE if predicate(asked_message(s, window)) else ANSWER_LEAVE
                elif status == SELECT_NEED_UNITS:
                    units.need(&s.units, s.wanted)
                elif status == SELECT_NEED_SEGMENT and not (s.found and window.is_full(s.wanted)):
                    try:
                        window.need(s.wanted, s.found != 0)
                    except OffsetError:
                        status = GET_GONE
                        break
                    except CorruptRecordError as error:  # its file is missing
                        status, s.status, failed = SELECT_DAMAGED, SELECT_BAD_ENTRY, error
                        break
                    except StoreResourceError:
                        if s.found == 0:
                            raise
                        break
                elif from_tail and status == SELECT_DONE and s.found < s.limits.max_count \
                        and s.at == from_tail < min(c.state.following - c.offset, c.examined):
                    self.begin(c)  # expired messages were left out: more entries are needed
                    from_tail = min(c.state.following - c.offset, c.examined)
                    status = self.from_tail(c, window, from_tail)
                    continue
                else:
                    break
                with nogil:
                    status = get_select(c, &window.c) if s.entries == NULL else queue_select(s, &window.c)
            if status == GET_CLEANED:
                continue
            if status == GET_NEED_DISPATCH:
                c.waits = False
                self.obstacles.dispatch()
                c.block = self.control.checked()
                continue
            if status == GET_NEED_END:
                c.end = self.obstacles.end_below(c.slot, c.readable)
                continue
            if status == GET_OUTSIDE:
                self.give_back(window, c.manifest_seq)
                return self.outside(c)
            if status == SELECT_DAMAGED and failed is None:
                # Damage behind messages that a filter refused ends the batch; the next batch begins with the damage.
                if s.found or (s.at and (s.program != NULL or s.asks)):
                    status = SELECT_DONE
                else:
                    failed = selection_damage(s, window, file)
            if status != SELECT_DAMAGED and status != GET_GONE:
                result = self.found(c, window, c.offset + s.count if from_tail else c.state.dispatched)
                if made is not None:
                    self.obstacles.read_on(made, s.at)
                return result
            # The entry, or what it leads to, is missing or wrong.
            window = None
            self.places[self.place_of(c.slot, c.offset)].queue = 0
            if failed is not None:
                damage, failed = failed, None
                if from_tail or s.status == RECORD_BAD_CHECKSUM:
                    break
            elif from_tail:
                return self.outside(c)
            elif load_i64(&c.entry.minimum) != c.state.minimum \
                    or load_i64(&c.block.min_physical_offset) != c.log_minimum:
                continue  # a cleaner published a new minimum and removed the file
            if made is None and self.obstacles.heal(c.slot, c.offset, healed):
                healed += 1
                damage = None
                continue
            made = self.obstacles.from_log(c.slot, c.offset, c.examined, walks)
            if made is None:
                break
            walks += 1
            c.made, c.made_count = (<MappedFile?>made.file).address, made.number
        if damage is not None:
            raise damage
        return self.nothing(c, get_result(FOUND_NULL, None, self.obstacles.behind_file(c.slot, c.offset),
                                          c.state.minimum, c.state.dispatched))

    cdef GetResult found(self, get_call* c, LogWindow window, int64_t end):
        """The answer with the selected messages, of a queue that ends at `end`."""
        cdef selection* s = &c.select
        cdef GetResult result = get_result(FOUND, None, c.offset + s.at, c.state.minimum, end)
        result.suggest_pulling_from_slave = selection_behind(s, &window.c)
        if s.found == 0:
            result.status = REMOVING if s.missing == s.at else NO_MATCH
        if c.state.dispatched < c.state.following:
            self.show_more(c, result)
        if c.raw:
            result.messages = []
            result.raw, result.record_offsets = selected_records(s)
        else:
            result.messages = selected_messages(s, window)
        self.counts.got(c.since_ms, s.found)
        self.give_back(window, c.manifest_seq)
        return result

    cdef GetResult outside(self, get_call* c):
        cdef GetResult result = _outside(c)
        if c.state.dispatched < c.state.following:
            self.show_more(c, result)
        return self.nothing(c, result)

    cdef GetResult nothing(self, get_call* c, GetResult result):
        """An answer without messages. Counts the get."""
        result.messages = []
        if c.raw:
            c.select.found = c.select.found_bytes = 0
            result.raw, result.record_offsets = selected_records(&c.select)
        self.counts.got(c.since_ms, 0)
        return result

    cdef GetResult show_more(self, const get_call* c, GetResult result):
        """Sets `behind` and the queue's end where dispatch is behind. A read-only handle reads undispatched messages by
        itself, so for it the queue ends behind them; with a pool of buffers the next offset counts what is not
        committed."""
        result.behind = (not self.control.read_only or c.block.pooled != 0
                         or (result.status is OVERFLOW_ONE and c.offset < c.state.following))
        if not result.behind:
            result.max_offset = c.state.following
        return result

    def batch(self, bytes topic not None, int32_t queue_id, int64_t offset, int32_t max_count, bint raw, TagFilter tags,
              FilterProgram program, predicate, tuple registered, int which_end):
        """Messages of a queue from an offset on: `get` for arguments that were read in Python.

        A message passes if it has one of the `tags` and if `program`, and then `predicate(message)`, is true for it. A
        record is not read if the bitmaps of the group `registered` say that `program` is not true."""
        return self.get(<const uint8_t*>PyBytes_AS_STRING(topic), <int>min(len(topic), INT32_MAX), queue_id, offset,
                        max_count, raw, tags, program, predicate, registered, which_end, clock_coarse_ms())

    cdef Message read(self, int64_t offset):
        """The message, or None if `general_read` has to answer."""
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
    cdef int keywords = KEYWORDS_UNKNOWN
    cdef int64_t now = clock_coarse_ms()
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
        and whole_argument(given[1], 0, INT32_MAX, &queue_id)
        and whole_argument(given[2], 0, <int64_t>OFFSET_MAX, &offset)
        and whole_argument(values[GET_MAX_COUNT], 1, INT32_MAX, &max_count)
        # False after a fork or a close, and if it is time to look at the store's place: the store sees to that first.
        and self.control.block != NULL and now - load_i64(&self.control.place_ms) < PLACE_LOOK_MS
    ):
        return self.get(<const uint8_t*>PyUnicode_DATA(<object>topic), <int>PyUnicode_GET_LENGTH(<object>topic),
                        <int32_t>queue_id, offset, <int32_t>max_count, values[GET_RAW] == Py_True, None, program, None,
                        None, self.which_end, now)
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


def get_function(QueueReader reader not None, general not None, owner=None):
    """`get` as a function for programs. It keeps a reference to `owner`. `general` answers calls with other arguments,
    calls that look at the store's place, and all calls after a fork or a close."""
    reader.general = general
    return PyCFunction_NewEx(&_get_definition, reader, owner)


def read_function(QueueReader reader not None, general not None, owner=None):
    """`read` as a function for programs, as `get_function`. `general` also reads records that this cannot."""
    reader.general_read = general
    return PyCFunction_NewEx(&_read_definition, reader, owner)
