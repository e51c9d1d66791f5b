"""Writes consume queue entries and selects the messages of a batch (ConsumeQueue, DefaultMessageStore.getMessage)."""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.list cimport PyList_New, PyList_SET_ITEM
from cpython.mem cimport PyMem_Free, PyMem_Malloc
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from cpython cimport array

import array

from cystore._native.derived.queue_ext cimport EXT_OK, ext_is_address, ext_position, ext_read, ext_view
from cystore._native.filters.bitmap cimport GroupBits, bitmap_lacks
from cystore._native.filters.program cimport filter_takes
from cystore._native.layout cimport (
    HOLE_ENTRY_SIZE, PROPERTY_TAGS, PROPERTY_TAGS_BYTES, QUEUE_ENTRY_BYTES, TOPIC_BYTES_MAX,
    control_block, queue_entry, queue_entry_disk_physical_offset, queue_entry_disk_set_physical_offset,
    queue_entry_disk_set_size, queue_entry_disk_set_tags_code, queue_entry_disk_size, queue_entry_disk_tags_code
)
from cystore._native.memory.atomics cimport CACHE_LINE_BYTES, load_i64, load_u32, prefetch_for_read
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_find_queue, control_slot
from cystore._native.record.message cimport Message, found_message, message_in, seen_message, stored_message
from cystore._native.record.property_read cimport light_offset, property_find, property_view
from cystore._native.record.record cimport java_hash
from cystore._native.record.record_read cimport parts_of, record_at, record_intact
from cystore._native.record.record_view cimport RECORD_BAD_CHECKSUM, RECORD_OK, record_view, same_text
from cystore._native.record.window cimport (
    LogWindow, WINDOW_GONE, WINDOW_NEED_SEGMENT, log_window, record_expired, segment_view, window_bytes,
    window_prefetch
)
from cystore._native.record.record import STATUS_NAMES as _STATUS_NAMES
from cystore.errors import CorruptRecordError, MessageIllegalError

cdef enum:
    # The processor does not foresee where the records of a queue lie. The kernel fetches the record so many entries
    # ahead. The window looks a record up if it is that many bytes away.
    AHEAD = 4
    AHEAD_BYTES = 2048

cdef array.array _POSITIONS = array.array("q")


cdef void queue_put(uint8_t* p, int64_t physical_offset, int32_t size, int64_t tags_code) noexcept nogil:
    queue_entry_disk_set_physical_offset(p, physical_offset)
    queue_entry_disk_set_size(p, size)
    queue_entry_disk_set_tags_code(p, tags_code)


cdef void queue_put_holes(uint8_t* p, int64_t count) noexcept nogil:
    """Writes hole entries: they stand for queue offsets without a message."""
    cdef int64_t i
    for i in range(count):
        queue_put(p + i * <int64_t>QUEUE_ENTRY_BYTES, 0, <int32_t>HOLE_ENTRY_SIZE, 0)


cdef bint queue_is_hole(const uint8_t* p) noexcept nogil:
    return queue_entry_disk_size(p) == <int32_t>HOLE_ENTRY_SIZE


cdef inline bint _batch_full(const selection* s, int32_t size, bint in_disk) noexcept nogil:
    """The first message always fits, whatever its size."""
    if s.found == 0:
        return False
    if s.found >= s.limits.max_count:
        return True
    if in_disk:
        return s.found_bytes + size > s.limits.bytes_in_disk or s.found >= s.limits.count_in_disk
    return s.found_bytes + size > s.limits.bytes_in_memory or s.found >= s.limits.count_in_memory


cdef inline bint _code_wanted(const tag_filter* filter, int64_t tags_code) noexcept nogil:
    cdef int i
    for i in range(filter.count):
        if filter.codes[i] == <int32_t>tags_code:
            return True
    return False


cdef inline bint _tag_wanted(const tag_filter* filter, const record_view* v) noexcept nogil:
    """Compares the tags as text: two tags may share a hash."""
    cdef property_view tags
    cdef int i
    if not property_find(v.properties, v.properties_len, PROPERTY_TAGS, PROPERTY_TAGS_BYTES, &tags):
        return False
    for i in range(filter.count):
        if filter.lengths[i] == tags.value_len and memcmp(filter.tags[i], tags.value, tags.value_len) == 0:
            return True
    return False


cdef inline bint _in_light_queue(const selection* s, const record_view* v) noexcept nogil:
    return s.queue_id == 0 and light_offset(v, s.topic, s.topic_len) == s.first + s.at


cdef inline bint _leaves_out(const unit_view* units, int64_t position) noexcept nogil:
    """Whether the unit at a position, in the file at hand, says that the record does not match the group's filter. A
    unit that is damaged, or has no bitmap of the right length, says nothing."""
    cdef ext_view unit
    return (units.address != NULL
            and ext_read(units.address + (position - units.base), <size_t>(units.end - position), &unit) == EXT_OK
            and unit.bitmap_len == units.bitmap_bytes and bitmap_lacks(unit.bitmap, units.bits))


cdef inline void _fetch_record(const selection* s, const log_window* window, int64_t at, int64_t here) noexcept nogil:
    """Fetches the record of entry `at` if it is far from `here`."""
    cdef int64_t there = queue_entry_disk_physical_offset(s.entries + at * <int64_t>QUEUE_ENTRY_BYTES)
    if there > here + AHEAD_BYTES:
        window_prefetch(window, there)


cdef inline void _fetch_ahead(const selection* s, const log_window* window, int64_t here,
                              const uint8_t* place) noexcept nogil:
    """Fetches the record AHEAD entries behind the one that is read now, at `place`."""
    cdef const uint8_t* entry = s.entries + (s.at + AHEAD) * <int64_t>QUEUE_ENTRY_BYTES
    cdef int64_t away = queue_entry_disk_physical_offset(entry) - here
    if 0 < away <= AHEAD_BYTES:  # a prefetch may go past the segment
        prefetch_for_read(place + away)
        prefetch_for_read(place + away + CACHE_LINE_BYTES)
        prefetch_for_read(place + away + 2 * CACHE_LINE_BYTES)
        prefetch_for_read(place + away + 3 * CACHE_LINE_BYTES)
    elif away > AHEAD_BYTES:
        window_prefetch(window, here + away)


cdef inline void _fetch_first(const selection* s, const log_window* window) noexcept nogil:
    """Fetches the records behind the first one that the selection does not fetch while it reads others."""
    cdef int64_t here = queue_entry_disk_physical_offset(s.entries)
    cdef int64_t at
    for at in range(1, min(AHEAD, min(s.count, s.limits.max_count))):
        _fetch_record(s, window, at, here)


cdef int queue_select(selection* s, log_window* window) except -1 nogil:
    """Selects from `s.at` on. SELECT_DONE: the batch is full or the entries end. Any other status is the reason to
    stop."""
    cdef const uint8_t* entry
    cdef const uint8_t* at
    cdef record_view v
    cdef chosen_record* chosen
    cdef int64_t physical_offset, tags_code
    cdef size_t available
    cdef int32_t size
    cdef bint refused
    # The queue table has this topic, so the characters of a record's equal topic need no check.
    memset(&v, 0, sizeof(v))
    v.topic = s.topic
    v.topic_len = s.topic_len
    if s.at == 0 and s.count > 1:
        _fetch_first(s, window)
    while s.at < s.count:
        entry = s.entries + s.at * <int64_t>QUEUE_ENTRY_BYTES
        physical_offset = queue_entry_disk_physical_offset(entry)
        size = queue_entry_disk_size(entry)
        tags_code = queue_entry_disk_tags_code(entry)
        if size <= 0 or physical_offset < 0:  # size 0: the entry was never written
            s.status = SELECT_BAD_ENTRY
            return SELECT_DAMAGED
        if size == <int32_t>HOLE_ENTRY_SIZE or physical_offset < window.minimum:
            s.missing += 1
            s.at += 1
            continue
        if size > window.wrote - physical_offset:
            s.status = SELECT_BAD_ENTRY
            return SELECT_DAMAGED
        s.passed = physical_offset
        if _batch_full(s, size, window.wrote - physical_offset > s.limits.memory_bytes):
            return SELECT_DONE
        if s.filter.count and s.codes_are_hashes and not ext_is_address(tags_code) \
                and not _code_wanted(&s.filter, tags_code):
            s.at += 1
            continue
        if s.units.bits != NULL and physical_offset >= s.units.born and ext_is_address(tags_code):
            if not s.units.base <= ext_position(tags_code) < s.units.end:
                s.wanted = ext_position(tags_code)
                return SELECT_NEED_UNITS
            if _leaves_out(&s.units, ext_position(tags_code)):
                s.at += 1
                continue
        s.wanted = physical_offset
        s.status = window_bytes(window, physical_offset, &at, &available)
        if s.status == WINDOW_NEED_SEGMENT:
            return SELECT_NEED_SEGMENT
        if s.status == WINDOW_GONE:
            s.missing += 1
            s.at += 1
            continue
        if s.status == RECORD_OK:
            if s.at + AHEAD < s.count and s.found + AHEAD < s.limits.max_count:
                _fetch_ahead(s, window, physical_offset, at)
            s.status = record_at(at, available, physical_offset, window.segments[window.latest].end, False, &v)
        if s.status != RECORD_OK:
            return SELECT_DAMAGED
        if v.total_size != size or not ((v.queue_id == s.queue_id and v.queue_offset == s.first + s.at
                                         and v.topic_len == s.topic_len
                                         and same_text(v.topic, s.topic, s.topic_len))
                                        or _in_light_queue(s, &v)):
            s.status = SELECT_OTHER_RECORD
            return SELECT_DAMAGED
        if s.filter.count and not _tag_wanted(&s.filter, &v):
            s.at += 1
            continue
        if not record_intact(at, &v):
            s.status = RECORD_BAD_CHECKSUM
            return SELECT_DAMAGED
        if record_expired(window, &v):
            s.at += 1
            continue
        if s.program != NULL and not filter_takes(s.program, &v):
            s.at += 1
            continue
        if s.asks:
            if s.answer == ANSWER_NONE:
                return SELECT_ASK
            refused = s.answer == ANSWER_LEAVE
            s.answer = ANSWER_NONE
            if refused:
                s.at += 1
                continue
        chosen = &s.chosen[s.found]
        chosen.physical_offset = physical_offset
        chosen.start = at
        chosen.parts = parts_of(at, &v)
        s.found += 1
        s.found_bytes += size
        s.at += 1
    return SELECT_DONE


# ------------------------------------------------------------------------------------------------------ for Python


@cython.final
cdef class TagFilter:
    """A tag expression: `A`, or `A || B`. Without any tag it is a MessageIllegalError (FilterAPI)."""

    def __cinit__(self, str expression not None):
        cdef int i
        cdef bytes tag
        # Java's trim removes every character up to the blank.
        blanks = "".join(map(chr, range(33)))
        self.tags = tuple(dict.fromkeys(t for t in (part.strip(blanks) for part in expression.split("||")) if t))
        if not self.tags:
            raise MessageIllegalError(f"tags: there is no tag in {expression!r}")
        try:
            self.encoded = tuple([text.encode() for text in self.tags])
        except UnicodeEncodeError as error:
            raise MessageIllegalError(f"tags: {expression!r} cannot be encoded: {error.reason}") from error
        self.c.codes = <int32_t*>PyMem_Malloc(len(self.encoded) * sizeof(int32_t))
        self.c.tags = <const uint8_t**>PyMem_Malloc(len(self.encoded) * sizeof(uint8_t*))
        self.c.lengths = <int*>PyMem_Malloc(len(self.encoded) * sizeof(int))
        if self.c.codes == NULL or self.c.tags == NULL or self.c.lengths == NULL:
            raise MemoryError
        self.c.count = <int>len(self.encoded)
        for i in range(self.c.count):
            tag = self.encoded[i]
            self.c.tags[i] = <const uint8_t*>PyBytes_AS_STRING(tag)
            self.c.lengths[i] = <int>len(tag)
            self.c.codes[i] = java_hash(0, self.c.tags[i], len(tag))

    def __dealloc__(self):
        PyMem_Free(self.c.codes)
        PyMem_Free(self.c.tags)
        PyMem_Free(self.c.lengths)


@cython.final
cdef class UnitReader:
    """The extended units of one queue for a reader whose group has a filter: its `bits`, and the log position at which
    the filter was `born`. `file_of(position)` gives the mapped file of a unit, or None. For one batch."""

    def __cinit__(self, GroupBits bits not None, int64_t born, file_of):
        self.bits, self.born, self.file_of = bits, born, file_of

    cdef int begin(self, selection* s) except -1:
        s.units.bits = &self.bits.bits[0]
        s.units.bitmap_bytes = self.bits.bitmap_bytes
        s.units.born = self.born
        s.units.base = s.units.end = 0
        s.units.address = NULL
        return 0

    cdef int need(self, unit_view* units, int64_t position) except -1:
        """Brings in the file of the unit at a position. Without a file, that unit alone is known to be missing."""
        cdef MappedFile file = self.file_of(position)
        self.file = file
        if file is None or not file.base <= position < file.base + file.length:
            units.address = NULL
            units.base = position
            units.end = position + 1
        else:
            units.address = file.address
            units.base = file.base
            units.end = file.base + file.length
        return 0


@cython.final
cdef class BatchLimits:
    """RocketMQ's limits of one batch, in bytes and messages. The last `memory_bytes` of the log count as in memory."""

    def __cinit__(self, *, int64_t memory_bytes, int64_t bytes_in_memory, int32_t count_in_memory,
                  int64_t bytes_in_disk, int32_t count_in_disk):
        self.c.memory_bytes = memory_bytes
        self.c.bytes_in_memory = bytes_in_memory
        self.c.count_in_memory = count_in_memory
        self.c.bytes_in_disk = bytes_in_disk
        self.c.count_in_disk = count_in_disk


def queue_state(Control control not None, bytes topic not None, int32_t queue_id):
    """(slot, minimum, dispatched, next, log minimum, wrote) of a queue, None when it is unknown."""
    cdef control_block* block = control.checked()
    cdef queue_entry* entry = NULL
    cdef queue_look state
    if len(topic) <= <Py_ssize_t>TOPIC_BYTES_MAX:
        entry = control_find_queue(block, <const uint8_t*>PyBytes_AS_STRING(topic), <int>len(topic), queue_id)
    if entry == NULL:
        return None
    look_at_queue(block, entry, &state)
    return (entry - control_slot(block, 0), state.minimum, state.dispatched, state.following, state.log_minimum,
            state.wrote)


cdef Message asked_message(const selection* s, LogWindow window):
    cdef MappedFile segment = window.file_of(s.wanted)
    cdef int64_t end = min(segment.base + segment.length, window.c.wrote)
    return stored_message(segment, s.wanted - segment.base, end - s.wanted, True)


cdef object selection_damage(const selection* s, LogWindow window, MappedFile file):
    cdef MappedFile segment = window.file_of(s.wanted)
    number = s.first + s.at
    if s.status == SELECT_BAD_ENTRY or s.status == SELECT_OTHER_RECORD or segment is None:
        reason = "points to another record" if s.status == SELECT_OTHER_RECORD else "points outside the log"
        return CorruptRecordError(f"the consume queue entry of queue offset {number} {reason}",
                                  path=None if file is None else file.path, offset=number * QUEUE_ENTRY_BYTES)
    return CorruptRecordError(f"the record of queue offset {number} is not valid: {_STATUS_NAMES[s.status]}",
                              path=segment.path, offset=s.wanted)


cdef bint selection_behind(const selection* s, const log_window* window) noexcept nogil:
    """Whether the next messages lie so far behind the log's end that, by the settings, memory does not hold them."""
    return s.passed >= 0 and window.wrote - s.passed > s.limits.memory_bytes


cdef int selection_room(selection* s, LogWindow window) except -1:
    s.chosen = <chosen_record*>window.room(s.limits.max_count * <int64_t>(sizeof(chosen_record) // sizeof(int64_t)))
    return 0


cdef list selected_messages(selection* s, LogWindow window):
    cdef int32_t i
    cdef const chosen_record* chosen
    cdef segment_view segment       # of the last message
    cdef int place
    cdef Message message
    cdef object view = None         # of that segment
    cdef list out = PyList_New(s.found)
    segment.base = segment.end = 0
    segment.address = NULL
    for i in range(s.found):
        chosen = &s.chosen[i]
        if segment.base <= chosen.physical_offset < segment.end \
                and segment.address + (chosen.physical_offset - segment.base) == chosen.start:
            message = message_in(view, chosen.start, &chosen.parts)
        else:
            place = window.place_of(chosen.physical_offset)
            if place >= 0:
                segment, view = window.c.segments[place], window.views[place]
            message = seen_message(window, chosen.physical_offset, chosen.start, &chosen.parts)
            if message is None:
                message = found_message(window, chosen.physical_offset)
        Py_INCREF(message)
        PyList_SET_ITEM(out, i, message)
    return out


cdef void _copy(const selection* s, uint8_t* to, int64_t* begins) noexcept nogil:
    """Copies the found records without gaps and sets the begin of each."""
    cdef int64_t end = 0
    cdef int32_t i
    for i in range(s.found):
        memcpy(to + end, s.chosen[i].start, s.chosen[i].parts.total_size)
        begins[i] = end
        end += s.chosen[i].parts.total_size


cdef tuple selected_records(selection* s):
    cdef bytes whole = PyBytes_FromStringAndSize(NULL, s.found_bytes)
    cdef array.array begins = array.clone(_POSITIONS, s.found, False)
    cdef uint8_t* to = <uint8_t*>PyBytes_AS_STRING(whole)
    if s.found:  # an empty array has no memory
        with nogil:
            _copy(s, to, <int64_t*>begins.data.as_longlongs)
    return whole, begins


def put_entry(uint8_t[::1] data, Py_ssize_t position, int64_t physical_offset, int32_t size, int64_t tags_code):
    """Writes an entry into a buffer. Tools and tests use it."""
    if not 0 <= position <= data.shape[0] - <Py_ssize_t>QUEUE_ENTRY_BYTES:
        raise ValueError(f"no room for an entry at {position} of {data.shape[0]} bytes")
    queue_put(&data[position], physical_offset, size, tags_code)


def entry_at(MappedFile file not None, Py_ssize_t position):
    """(physical offset, size, tags code) of the entry at a position in the file; None for a hole entry."""
    cdef const uint8_t* p
    cdef bint is_hole
    if not 0 <= position <= file.length - <Py_ssize_t>QUEUE_ENTRY_BYTES:
        raise ValueError(f"no entry at {position} of {file.length} bytes")
    p = file.address + position
    with nogil:  # the page may have to come from the disk
        is_hole = queue_is_hole(p)
    if is_hole:
        return None
    return queue_entry_disk_physical_offset(p), queue_entry_disk_size(p), queue_entry_disk_tags_code(p)


def put_holes(MappedFile file not None, Py_ssize_t position, Py_ssize_t count):
    """Writes `count` hole entries."""
    if not file.writable or position < 0 or count < 0 \
            or position + count * <Py_ssize_t>QUEUE_ENTRY_BYTES > file.length:
        raise ValueError(f"cannot write {count} entries at {position} of {file!r}")
    with nogil:
        queue_put_holes(file.address + position, count)


def step_over_holes(MappedFile file not None, Py_ssize_t begin, Py_ssize_t end, bint backwards=False):
    """Position of the first entry (`backwards`: the last entry) in [begin, end) of the file that is no hole, or -1."""
    cdef Py_ssize_t step = -<Py_ssize_t>QUEUE_ENTRY_BYTES if backwards else <Py_ssize_t>QUEUE_ENTRY_BYTES
    cdef Py_ssize_t at = end + step if backwards else begin
    if not 0 <= begin <= end <= file.length or begin % step or end % step:
        raise ValueError(f"[{begin}, {end}) are no whole entries in {file.length} bytes")
    with nogil:
        while begin <= at < end and queue_is_hole(file.address + at):
            at += step
    return at if begin <= at < end else -1


def queues_to_flush(Control control not None):
    """Slots of the queues with entries that may not be durable yet."""
    cdef control_block* block = control.checked()
    cdef queue_entry* entry
    cdef uint32_t slot
    slots = []
    for slot in range(min(load_u32(&block.queue_count), block.max_queues)):
        entry = control_slot(block, slot)
        if load_i64(&entry.flushed) < load_i64(&entry.dispatched):
            slots.append(slot)
    return slots


cdef enum:
    REMOVED = -2    # `allocated` of a queue whose files were all removed

NO_FILES = REMOVED


def queues_unused(Control control not None):
    """Slots of the queues that have no readable message but still have files. `allocated` of a queue without files is
    NO_FILES."""
    cdef control_block* block = control.checked()
    cdef queue_entry* entry
    cdef uint32_t slot
    slots = []
    for slot in range(min(load_u32(&block.queue_count), block.max_queues)):
        entry = control_slot(block, slot)
        if load_i64(&entry.minimum) >= load_i64(&entry.dispatched) and load_i64(&entry.allocated) != REMOVED:
            slots.append(slot)
    return slots


def queues_behind(Control control not None):
    """Slots of the queues with assigned queue offsets that have no entry yet."""
    cdef control_block* block = control.checked()
    cdef queue_entry* entry
    cdef uint32_t slot
    slots = []
    for slot in range(min(load_u32(&block.queue_count), block.max_queues)):
        entry = control_slot(block, slot)
        if load_i64(&entry.dispatched) < load_i64(&entry.next):
            slots.append(slot)
    return slots
