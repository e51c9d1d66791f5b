"""The entries of all queues that dispatch has not written yet, for a process that opened the store read-only: it may
not dispatch.

One walk over the log serves every queue. It continues from its last position, so it reads each record once, however
many queues and reads there are. The table drops entries that dispatch has written. The number of entries has a limit:
when it is reached, the table drops all and continues with the next record.

A lock serialises the threads. The holder runs no Python code, so no signal handler runs in between.
"""

cimport cython
from libc.stdint cimport int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from cystore._native.derived.queue cimport queue_put, queue_put_holes
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, control_block, queue_entry, takes_queue_offset
from cystore._native.lookup.tail_walk cimport tail_record
from cystore._native.memory.atomics cimport load_i64, load_u32, pthread_mutex_lock, pthread_mutex_unlock
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_find_queue, control_slot
from cystore._native.record.property_read cimport (
    derive_begin, derived, light_begin, light_next, light_place, light_queues
)
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_OK, record_view
from cystore._native.record.window cimport LogWindow, WINDOW_BEYOND, WINDOW_NEED_SEGMENT, log_window

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, void* kind)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)

cdef enum:
    MOST = 4194304          # entries: 80 MiB. The 64 MiB of log that may be undispatched have fewer
    FIRST_ROOM = 32         # entries of a queue
    PIECE_BYTES = 4194304   # of log in one walk under the lock
    JUMP_MOST = 1048576     # offsets that a record may leave out and that its queue did not give
    DROP_AT = 4096          # new entries that make a pass over all queues worth its cost

ENTRIES_MAX = MOST


cdef inline bint _has(const tail_state* t, uint32_t slot, int64_t offset) noexcept nogil:
    return slot < t.queue_room and t.queues[slot].first <= offset < t.queues[slot].first + t.queues[slot].count


cdef void _forget_all(tail_state* t) noexcept nogil:
    cdef tail_queue* q
    cdef uint32_t i
    for i in range(t.used_count):
        q = &t.queues[t.used[i]]
        free(q.entries)
        memset(q, 0, sizeof(tail_queue))
    t.used_count = 0
    t.total = t.last_total = 0
    t.whole = False


cdef void _begin(tail_state* t, int64_t dispatched) noexcept nogil:
    _forget_all(t)
    t.reached = dispatched
    t.whole = True


cdef void _drop_dispatched(tail_state* t, control_block* block) noexcept nogil:
    """Drops the entries that dispatch has written."""
    cdef tail_queue* q
    cdef uint32_t i, remaining = 0
    cdef int64_t drop
    for i in range(t.used_count):
        q = &t.queues[t.used[i]]
        drop = min(max(load_i64(&control_slot(block, t.used[i]).dispatched) - q.first, 0), q.count)
        t.total -= drop
        q.first += drop
        q.count -= drop
        q.jumped = q.jumped and q.jumped_from >= q.first
        if q.count == 0:
            free(q.entries)
            memset(q, 0, sizeof(tail_queue))
            continue
        if drop:
            memmove(q.entries, q.entries + drop * <int64_t>QUEUE_ENTRY_BYTES, q.count * <int64_t>QUEUE_ENTRY_BYTES)
        t.used[remaining] = t.used[i]
        remaining += 1
    t.used_count = remaining
    t.last_total = t.total


cdef bint _make_slot(tail_state* t, control_block* block, uint32_t slot) noexcept nogil:
    """Makes room for the slot of a queue; False without memory."""
    cdef uint32_t slots = min(max(slot + 1, 2 * t.queue_room), block.max_queues)
    cdef void* grown
    if slot < t.queue_room:
        return True
    grown = realloc(t.used, slots * sizeof(uint32_t))
    if grown == NULL:
        return False
    t.used = <uint32_t*>grown
    grown = realloc(t.queues, slots * sizeof(tail_queue))
    if grown == NULL:
        return False
    t.queues = <tail_queue*>grown
    memset(&t.queues[t.queue_room], 0, (slots - t.queue_room) * sizeof(tail_queue))
    t.queue_room = slots
    return True


cdef bint _make_room(tail_state* t, uint32_t slot, int64_t count) noexcept nogil:
    """Makes room for `count` entries of a queue; False without memory."""
    cdef tail_queue* q = &t.queues[slot]
    cdef int64_t room = max(count, 2 * q.room, FIRST_ROOM)
    cdef void* grown
    if count <= q.room:
        return True
    grown = realloc(q.entries, room * <int64_t>QUEUE_ENTRY_BYTES)
    if grown == NULL:
        return False
    if q.room == 0:
        t.used[t.used_count] = slot
        t.used_count += 1
    q.entries = <uint8_t*>grown
    q.room = room
    return True


cdef int _add(tail_state* t, control_block* block, uint32_t slot, const record_view* v, int64_t number,
              bint is_light) noexcept nogil:
    """Adds the entry that dispatch will make of the record at `t.reached`, and hole entries for the offsets before. A
    jump that the queue's next record contradicts is taken back: no checksum of RocketMQ's format covers the number."""
    cdef tail_queue* q
    cdef derived found
    cdef int64_t first, place, dispatched
    if not _make_slot(t, block, slot):
        return TAIL_NO_MEMORY
    q = &t.queues[slot]
    first = q.first
    if q.count == 0:
        dispatched = load_i64(&control_slot(block, slot).dispatched)
        if number < dispatched:
            return RECORD_OK  # dispatch skips such a record, and one with a number below zero
        first = dispatched if t.whole else number
    place = number - first
    if place < q.count:
        if not q.jumped or number < q.jumped_from:
            return RECORD_OK  # dispatch skips such a record
        t.total -= first + q.count - q.jumped_from
        q.count = q.jumped_from - first
        q.jumped = False
    if place - q.count > JUMP_MOST and number >= load_i64(&control_slot(block, slot).next):
        return RECORD_OK  # the queue did not give that offset
    if place - q.count >= t.most - t.total:
        return TAIL_FULL
    if not _make_room(t, slot, place + 1):
        return TAIL_NO_MEMORY
    q.first = first
    q.jumped = place > q.count and not is_light
    q.jumped_from = first + q.count
    queue_put_holes(q.entries + q.count * <int64_t>QUEUE_ENTRY_BYTES, place - q.count)
    derive_begin(v, NULL, 0, &found)
    queue_put(q.entries + place * <int64_t>QUEUE_ENTRY_BYTES, t.reached, v.total_size, found.tags_code)
    t.total += place + 1 - q.count
    q.count = place + 1
    return RECORD_OK


cdef int _add_all(tail_state* t, control_block* block, const record_view* v) noexcept nogil:
    """Adds the record's entries in its own queue and in its light queues. Skips queues without a slot."""
    cdef light_queues light
    cdef light_place place
    cdef queue_entry* entry = control_find_queue(block, v.topic, v.topic_len, v.queue_id)
    cdef int status = RECORD_OK
    if entry != NULL:
        status = _add(t, block, <uint32_t>(entry - control_slot(block, 0)), v, v.queue_offset, False)
    if status != RECORD_OK or not light_begin(v, &light):
        return status
    while status == RECORD_OK and light_next(&light, &place):
        entry = control_find_queue(block, place.name, place.name_len, 0)
        if entry != NULL and place.queue_offset >= load_i64(&entry.dispatched):
            status = _add(t, block, <uint32_t>(entry - control_slot(block, 0)), v,
                          place.queue_offset, True)
    return status


cdef int _walk(tail_state* t, control_block* block, log_window* window, uint32_t slot, int64_t offset,
               int64_t upto) noexcept nogil:
    """Continues the walk until the queue's entries reach `upto`, and their end is no jump: RECORD_OK. Or returns
    TAIL_PIECE, or the status that stopped it, such as WINDOW_BEYOND at the log's end."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int64_t until = t.reached + PIECE_BYTES
    cdef int status
    while not (_has(t, slot, offset) and _has(t, slot, upto - 1)) or t.queues[slot].jumped:
        if slot < t.queue_room and t.queues[slot].count and offset < t.queues[slot].first:
            return WINDOW_BEYOND  # the earlier entries were dropped
        if t.reached >= until:
            return TAIL_PIECE
        status = tail_record(window, &t.reached, &v, &p)
        if status != RECORD_OK:
            return status
        if takes_queue_offset(v.sys_flag) and record_intact(p, &v):
            status = _add_all(t, block, &v)
            if status == TAIL_FULL and not _has(t, slot, offset):
                _forget_all(t)  # clears `whole`: each queue begins with its next record
                status = _add_all(t, block, &v)
            if status != RECORD_OK:
                return status
        t.reached += v.total_size
    return RECORD_OK


cdef int _look(tail_state* t, control_block* block, log_window* window, uint32_t slot, int64_t offset, int64_t count,
               uint8_t* out, int64_t* copied, bint* may_begin) noexcept nogil:
    """One step under the lock. `may_begin`: this call may still begin the table anew."""
    cdef int64_t dispatched = load_i64(&block.dispatched)
    cdef tail_queue* q
    cdef int status
    if t.reached <= dispatched:
        _begin(t, dispatched)
    elif t.total >= 2 * t.last_total + DROP_AT + t.used_count:
        _drop_dispatched(t, block)
    if load_i64(&control_slot(block, slot).dispatched) > offset:
        return TAIL_AGAIN
    status = _walk(t, block, window, slot, offset, offset + count)
    if _has(t, slot, offset) and status != TAIL_PIECE and status != WINDOW_NEED_SEGMENT:
        q = &t.queues[slot]
        copied[0] = min(count, q.first + q.count - offset)
        memcpy(out, q.entries + (offset - q.first) * <int64_t>QUEUE_ENTRY_BYTES,
               copied[0] * <int64_t>QUEUE_ENTRY_BYTES)
        return RECORD_OK
    if status == WINDOW_BEYOND and not t.whole and may_begin[0]:
        may_begin[0] = False
        _begin(t, dispatched)
        return TAIL_PIECE
    return status


@cython.auto_pickle(False)
@cython.final
cdef class TailTable:
    """The entries behind the dispatched position of one attached store, `most` at most. Safe for threads."""

    def __cinit__(self, int64_t most=MOST):
        memset(&self.c, 0, sizeof(self.c))
        self.c.most = most
        if most < 1 or pthread_mutex_init(&self.c.lock, NULL) != 0:
            raise ValueError(f"no table of {most} entries")

    def __dealloc__(self):
        _forget_all(&self.c)
        free(self.c.queues)
        free(self.c.used)
        pthread_mutex_destroy(&self.c.lock)

    @property
    def entries(self):
        """Number of entries of all queues."""
        return self.c.total

    cdef int copy(self, control_block* block, LogWindow window, uint32_t slot, int64_t offset, int64_t count,
                  uint8_t* out, int64_t* copied) except -1:
        cdef tail_state* t = &self.c
        cdef bint may_begin = True
        cdef int64_t wanted = 0
        cdef int status
        copied[0] = 0
        while True:
            with nogil:
                pthread_mutex_lock(&t.lock)
                status = _look(t, block, &window.c, slot, offset, count, out, copied, &may_begin)
                wanted = t.reached
                pthread_mutex_unlock(&t.lock)
            if status == WINDOW_NEED_SEGMENT:
                window.need(wanted)
            elif status == TAIL_NO_MEMORY:
                raise MemoryError
            elif status != TAIL_PIECE:
                return status

    def entries_into(self, MappedFile out not None, Control control not None, LogWindow window not None,
                     int64_t minimum, int64_t wrote, int64_t slot):
        """Fills `out`, memory with a consume queue file's interface, with a queue's entries; returns their number. It
        is lower at the log's end and before damage. None if dispatch has entered the first entry meanwhile.

        Raises OffsetError if a segment is removed meanwhile.
        """
        cdef control_block* block = control.checked()
        cdef int64_t copied = 0
        if not 0 <= slot < min(load_u32(&block.queue_count), block.max_queues):
            raise IndexError(f"no queue slot {slot}")
        if not out.writable:
            raise ValueError(f"{out!r} is mapped for reading only")
        keep_block = control.file
        window.move(minimum, wrote)
        status = self.copy(block, window, <uint32_t>slot, out.base // <int64_t>QUEUE_ENTRY_BYTES,
                           out.length // <int64_t>QUEUE_ENTRY_BYTES, out.address, &copied)
        return None if status == TAIL_AGAIN else copied
