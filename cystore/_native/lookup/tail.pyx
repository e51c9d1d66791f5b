"""The tail of the log that dispatch has not entered yet, for a process that opened the store read-only: it may not
dispatch.

The walk goes from the dispatched position to the wrote position. The services of any process keep that distance short.
Searches for keys share one walk (`TailKeys`): it reads each record once, however many searches there are.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memcmp, memmove, memset

from cystore._native.derived.index cimport index_key_hash, index_key_matches, index_topic_seed
from cystore._native.derived.queue cimport queue_put, queue_put_holes
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, control_block, takes_index_entry, takes_queue_offset
from cystore._native.lookup.tail_walk cimport tail_record
from cystore._native.memory.atomics cimport (
    load_i64, pthread_mutex_lock, pthread_mutex_t, pthread_mutex_unlock
)
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.message cimport found_message
from cystore._native.record.property_read cimport derive_begin, derive_next_key, derived, light_name, light_offset
from cystore._native.record.record_read cimport record_intact
from cystore._native.record.record_view cimport RECORD_OK, record_view
from cystore._native.record.window cimport (
    LogWindow, WINDOW_BEYOND, WINDOW_GONE, WINDOW_NEED_SEGMENT, log_window, record_expired, window_record
)

from cystore.errors import OffsetError

cdef extern from "<pthread.h>" nogil:
    int pthread_mutex_init(pthread_mutex_t* mutex, void* kind)
    int pthread_mutex_destroy(pthread_mutex_t* mutex)

cdef enum:
    BEHIND_ROOM = 3         # records of a queue behind the room for entries: so many do not all have a wrong offset
    FOUND_AT_ONCE = 1024
    MOST = 4194304          # keys: 96 MiB with the heads of their chains
    FIRST_ROOM = 1024
    PIECE_BYTES = 4194304   # of log in one walk under the lock

cdef enum KeysStatus:           # beside RecordStatus and WindowStatus
    KEYS_PIECE = 64             # a piece of the log is done; now other threads may use the keys
    KEYS_FULL = 65
    KEYS_NO_MEMORY = 66
    KEYS_BEHIND = 67            # another thread read a higher dispatched position; the keys begin there

# A key of a record that dispatch has not entered. Keys are numbered in the order of the log.
cdef struct tail_key:
    int64_t position
    uint32_t hash
    uint32_t back               # distance to the previous key of the same chain, in numbers; 0: none

cdef struct tail_keys:
    pthread_mutex_t lock
    tail_key* keys              # keys before `first` were dropped
    int64_t number              # of keys[0]
    int64_t first
    int64_t count
    int64_t room
    int64_t most
    int64_t* heads              # number of the last key of each chain; -1: empty
    int64_t chains              # a power of two
    int64_t begin               # `keys` has all keys of the log [begin, reached)
    int64_t reached
    int64_t walked              # records read since the handle was opened

# A walk over the records of one topic.
cdef struct tail_walk:
    int64_t at              # log position that the walk has reached
    const uint8_t* topic
    int topic_len
    int32_t queue_id
    const uint8_t* key      # NULL: messages with any key
    int key_len
    int64_t begin_ms
    int64_t end_ms
    int64_t end             # messages end at or before this log position
    int64_t first           # queue offset of entry 0
    int64_t count           # entries written, or messages found
    int64_t room
    bint is_light           # the queue has records of other topics too
    bint jumped             # the last entry does not continue the one before it
    int64_t jumped_from     # `count` before that entry
    int behind_room         # records behind the room since the last entry


cdef int64_t _number(const tail_walk* t, const record_view* v) noexcept nogil:
    """Queue offset of the record in the walk's queue; -1: the record is not in that queue."""
    if not takes_queue_offset(v.sys_flag):
        return -1
    if v.queue_id == t.queue_id and v.topic_len == t.topic_len and memcmp(v.topic, t.topic, t.topic_len) == 0:
        return v.queue_offset
    return light_offset(v, t.topic, t.topic_len) if t.is_light else -1


cdef int _next(log_window* window, tail_walk* t, record_view* v, const uint8_t** p) noexcept nogil:
    """Moves `t.at` to the next record of the topic. RECORD_OK; WINDOW_BEYOND at the end; WINDOW_NEED_SEGMENT; or the
    RecordStatus of a damaged record at `t.at`."""
    cdef int status
    while True:
        status = tail_record(window, &t.at, v, p)
        if status != RECORD_OK or v.topic_len == t.topic_len and memcmp(v.topic, t.topic, t.topic_len) == 0:
            return status
        if t.is_light and light_offset(v, t.topic, t.topic_len) >= 0:
            return RECORD_OK
        t.at += v.total_size


cdef void _fill_with_holes(tail_walk* t, uint8_t* entries) noexcept nogil:
    queue_put_holes(entries + t.count * <int64_t>QUEUE_ENTRY_BYTES, t.room - t.count)
    t.count = t.room
    t.jumped = False


cdef int _enter(log_window* window, tail_walk* t, uint8_t* entries) noexcept nogil:
    """Writes the entries that dispatch will make for a queue, from `t.first` on, while there is room.

    No checksum of RocketMQ's format covers a queue offset. If a record's offset leaves some out and the queue's next
    record has one of these, or the same, the first of the two gets no entry."""
    cdef record_view v
    cdef const uint8_t* p
    cdef derived found
    cdef int status
    cdef int64_t place
    while t.count < t.room or t.jumped:
        status = _next(window, t, &v, &p)
        if status != RECORD_OK:
            return status
        place = _number(t, &v) - t.first
        if place >= (t.jumped_from if t.jumped else t.count) and record_intact(p, &v):
            if place < t.count:
                t.count = t.jumped_from
            if place < t.room:
                t.jumped = place > t.count and not t.is_light
                t.jumped_from = t.count
                t.behind_room = 0
                queue_put_holes(entries + t.count * <int64_t>QUEUE_ENTRY_BYTES, place - t.count)
                derive_begin(&v, NULL, 0, &found)
                queue_put(entries + place * <int64_t>QUEUE_ENTRY_BYTES, t.at, v.total_size, found.tags_code)
                t.count = place + 1
            else:
                t.behind_room += 1
                if t.is_light or place == t.count or t.behind_room == BEHIND_ROOM:
                    _fill_with_holes(t, entries)
                    return RECORD_OK
        t.at += v.total_size
    return RECORD_OK


cdef inline bint _has_key(const tail_walk* t, const record_view* v) noexcept nogil:
    return t.begin_ms <= v.store_timestamp <= t.end_ms and takes_index_entry(v.sys_flag) \
        and (t.key == NULL or index_key_matches(v, t.key, t.key_len))


cdef int _find(log_window* window, tail_walk* t, int64_t* offsets) noexcept nogil:
    """Collects the positions of messages with the key, while there is room."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int status
    while t.count < t.room:
        status = _next(window, t, &v, &p)
        if status != RECORD_OK:
            return status
        if _has_key(t, &v) and v.total_size <= t.end - t.at and record_intact(p, &v) \
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
    t.is_light = t.jumped = False
    t.jumped_from = 0
    t.behind_room = 0


def entries_into(MappedFile out not None, LogWindow window not None, int64_t minimum, int64_t wrote, int64_t position,
                 bytes topic not None, int32_t queue_id):
    """Fills `out`, memory with a consume queue file's interface, with the entries that dispatch will make of the
    records in [position, wrote); returns (number of entries, log position that the walk reached). The walk ends before
    damage.

    Raises OffsetError if a segment is removed meanwhile.
    """
    cdef tail_walk t
    cdef uint8_t* entries = out.address
    cdef int status
    if not out.writable:
        raise ValueError(f"{out!r} is mapped for reading only")
    _begin(&t, position, topic)
    t.queue_id = queue_id
    t.is_light = queue_id == 0 and light_name(t.topic, t.topic_len)
    t.first = out.base // <int64_t>QUEUE_ENTRY_BYTES
    t.room = out.length // <int64_t>QUEUE_ENTRY_BYTES
    window.move(minimum, wrote)
    while True:
        with nogil:
            status = _enter(&window.c, &t, entries)
        if status != WINDOW_NEED_SEGMENT:
            if status == WINDOW_BEYOND and t.behind_room:
                _fill_with_holes(&t, entries)
            return t.count, t.at
        window.need(t.at)


def find_messages(LogWindow window not None, int64_t minimum, int64_t wrote, int64_t position, bytes topic not None,
                  bytes key not None, int64_t max_count, int64_t begin_ms, int64_t end_ms, *, int64_t below=INT64_MAX,
                  bint any_key=False):
    """(messages, end): the newest `max_count` messages in [position, wrote) with the key, newest first, and the walk's
    end: the wrote position, or the position of damage. Only messages that end at or before `below`. `any_key`: messages
    with any key. Raises OffsetError if a segment is removed meanwhile."""
    cdef tail_walk t
    cdef int64_t* offsets = window.room(FOUND_AT_ONCE)
    cdef int64_t i, at
    cdef int status
    cdef list found = []
    _begin(&t, position, topic)
    t.key = NULL
    if not any_key:
        t.key = <const uint8_t*>PyBytes_AS_STRING(key)
    t.key_len = <int>len(key)
    t.begin_ms, t.end_ms, t.end = begin_ms, end_ms, below
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
        messages.append(found_message(window, at))
    return messages, wrote if status == WINDOW_BEYOND else t.at


# ------------------------------------------------------------------------------------------------- the keys of the tail


cdef bint _chains(tail_keys* t) noexcept nogil:
    """Makes chains for twice the number of keys; False without memory."""
    cdef int64_t chains = FIRST_ROOM, place
    cdef int64_t* heads
    while chains < 2 * (t.count - t.first):
        chains *= 2
    heads = <int64_t*>malloc(chains * sizeof(int64_t))
    if heads == NULL:
        return False
    free(t.heads)
    memset(heads, 0xFF, chains * sizeof(int64_t))
    t.heads, t.chains = heads, chains
    for place in range(t.first, t.count):
        _link(t, place)
    return True


cdef inline void _link(tail_keys* t, int64_t place) noexcept nogil:
    """Appends a key to its chain."""
    cdef int64_t* head = &t.heads[t.keys[place].hash & (t.chains - 1)]
    cdef int64_t number = t.number + place
    t.keys[place].back = <uint32_t>(number - head[0]) if head[0] >= t.number + t.first else 0
    head[0] = number


cdef int _room_for_key(tail_keys* t) noexcept nogil:
    """Makes room for one key: RECORD_OK, KEYS_FULL or KEYS_NO_MEMORY."""
    cdef int64_t room
    cdef void* grown
    if t.count == t.room and t.first > 0:
        memmove(t.keys, t.keys + t.first, (t.count - t.first) * sizeof(tail_key))
        t.number += t.first
        t.count -= t.first
        t.first = 0
    if t.count - t.first >= t.most:
        return KEYS_FULL
    if t.count == t.room:
        room = max(<int64_t>FIRST_ROOM, 2 * t.room)
        grown = realloc(t.keys, room * sizeof(tail_key))
        if grown == NULL:
            return KEYS_NO_MEMORY
        t.keys = <tail_key*>grown
        t.room = room
    if t.count - t.first >= t.chains and not _chains(t):
        return KEYS_NO_MEMORY
    return RECORD_OK


cdef void _begin_anew(tail_keys* t, int64_t dispatched) noexcept nogil:
    t.number += t.count  # chains end before keys with lower numbers
    t.first = t.count = 0
    t.begin = t.reached = dispatched


cdef int _add_keys(tail_keys* t, const record_view* v) noexcept nogil:
    """Adds the keys of the record at `t.reached`, all of them or none."""
    cdef derived found
    cdef const uint8_t* key
    cdef size_t length
    cdef int32_t seed = index_topic_seed(v.topic, v.topic_len)
    cdef int64_t before = t.number + t.count
    cdef int status
    derive_begin(v, NULL, 0, &found)
    while derive_next_key(&found, &key, &length):
        status = _room_for_key(t)
        if status != RECORD_OK:
            t.count = before - t.number
            if not _chains(t):  # the old chains name keys that were just removed
                _begin_anew(t, t.reached)
            return status
        t.keys[t.count].position = t.reached
        t.keys[t.count].hash = <uint32_t>index_key_hash(seed, key, length)
        _link(t, t.count)
        t.count += 1
    return RECORD_OK


cdef int _advance(tail_keys* t, control_block* block, log_window* window, int64_t dispatched) noexcept nogil:
    """Continues the walk to the end of `window`, under the lock: WINDOW_BEYOND there, else the status that stopped
    it."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int64_t until
    cdef int status
    if load_i64(&block.wrote) < t.reached or dispatched >= t.reached:
        _begin_anew(t, dispatched)
    if dispatched < t.begin:
        return KEYS_BEHIND
    while t.first < t.count and t.keys[t.first].position < dispatched:
        t.first += 1
    t.begin = dispatched
    until = t.reached + PIECE_BYTES
    while t.reached < until:
        status = tail_record(window, &t.reached, &v, &p)
        if status != RECORD_OK:
            return status
        t.walked += 1
        if takes_index_entry(v.sys_flag) and record_intact(p, &v):
            status = _add_keys(t, &v)
            if status != RECORD_OK:
                return status
        t.reached += v.total_size
    return KEYS_PIECE


cdef int64_t _candidates(tail_keys* t, uint32_t hash, int64_t* number, int64_t* positions, int64_t room,
                         int64_t* copied) noexcept nogil:
    """Under the lock: copies positions of keys with the hash, newest first, from `number` down (-1: from the last key),
    and sets `number` to the next key. Returns `begin`: the table has all keys behind that position."""
    cdef tail_key* key
    cdef int64_t at = number[0]
    copied[0] = 0
    if at < 0 and t.chains:
        at = t.heads[hash & (t.chains - 1)]
    while copied[0] < room and t.number + t.first <= at < t.number + t.count:
        key = &t.keys[at - t.number]
        if key.hash == hash and (copied[0] == 0 or positions[copied[0] - 1] != key.position):
            positions[copied[0]] = key.position
            copied[0] += 1
        at = at - key.back if key.back else t.number + t.first - 1
    number[0] = at if at >= t.number + t.first else 0
    return t.begin


cdef int _look_at(log_window* window, tail_walk* t, int64_t at) noexcept nogil:
    """RECORD_OK: the record at `at` is a wanted message. WINDOW_NEED_SEGMENT; any other status: it is not."""
    cdef record_view v
    cdef const uint8_t* p
    cdef int status = window_record(window, at, &v, &p)
    if status != RECORD_OK:
        return status
    if v.topic_len == t.topic_len and memcmp(v.topic, t.topic, t.topic_len) == 0 and _has_key(t, &v) \
            and v.total_size <= t.end - at and record_intact(p, &v) and not record_expired(window, &v):
        return RECORD_OK
    return WINDOW_GONE


@cython.auto_pickle(False)
@cython.final
cdef class TailKeys:
    """The keys behind the dispatched position of one attached store and their log positions, `most` at most. Safe for
    threads."""

    cdef tail_keys c

    def __cinit__(self, int64_t most=MOST):
        memset(&self.c, 0, sizeof(self.c))
        self.c.most = most
        self.c.number = 1
        if most < 1 or pthread_mutex_init(&self.c.lock, NULL) != 0:
            raise ValueError(f"no table of {most} keys")

    def __dealloc__(self):
        free(self.c.keys)
        free(self.c.heads)
        pthread_mutex_destroy(&self.c.lock)

    @property
    def count(self):
        """Number of keys."""
        return self.c.count - self.c.first

    @property
    def walked(self):
        """Number of records that all walks have read."""
        return self.c.walked

    cdef int _advance_all(self, control_block* block, LogWindow window, int64_t dispatched, int64_t* reached) except -1:
        cdef tail_keys* t = &self.c
        cdef int status
        while True:
            with nogil:
                pthread_mutex_lock(&t.lock)
                status = _advance(t, block, &window.c, dispatched)
                reached[0] = t.reached
                pthread_mutex_unlock(&t.lock)
            if status == WINDOW_NEED_SEGMENT:
                window.need(reached[0])
            elif status == KEYS_NO_MEMORY:
                raise MemoryError
            elif status != KEYS_PIECE:
                return status

    def find_messages(self, Control control not None, LogWindow window not None, int64_t minimum, int64_t wrote,
                      int64_t position, bytes topic not None, bytes key not None, int64_t max_count, int64_t begin_ms,
                      int64_t end_ms, *, int64_t below=INT64_MAX, bint any_key=False):
        """As the function of this name, except that `any_key` means messages with a key of the same hash. `position` is
        a dispatched position that the caller has read."""
        cdef control_block* block = control.checked()
        cdef tail_keys* t = &self.c
        cdef tail_walk wanted
        cdef uint32_t hash
        cdef int64_t number = -1, reached = 0, copied = 0, last = -1, begin, i
        cdef int64_t* positions
        cdef list found = []
        keep_block = control.file
        window.move(minimum, wrote)
        if self._advance_all(block, window, position, &reached) == KEYS_BEHIND:
            return find_messages(window, minimum, wrote, position, topic, key, max_count, begin_ms, end_ms,
                                 below=below, any_key=any_key)
        end = wrote
        if reached < wrote:  # the walk met damage or filled the table
            found, end = find_messages(window, minimum, wrote, reached, topic, key, max_count, begin_ms, end_ms,
                                       below=below, any_key=any_key)
        _begin(&wanted, position, topic)
        wanted.key, wanted.key_len = <const uint8_t*>PyBytes_AS_STRING(key), <int>len(key)
        wanted.begin_ms, wanted.end_ms, wanted.end = begin_ms, end_ms, below
        hash = <uint32_t>index_key_hash(index_topic_seed(wanted.topic, wanted.topic_len), wanted.key, wanted.key_len)
        if any_key:
            wanted.key = NULL
        positions = window.room(FOUND_AT_ONCE)
        while len(found) < max_count and number != 0:
            with nogil:
                pthread_mutex_lock(&t.lock)
                begin = _candidates(t, hash, &number, positions, FOUND_AT_ONCE, &copied)
                pthread_mutex_unlock(&t.lock)
            if begin > position:
                return find_messages(window, minimum, wrote, position, topic, key, max_count, begin_ms, end_ms,
                                     below=below, any_key=any_key)
            for at in [positions[i] for i in range(copied)]:
                if len(found) < max_count and at != last and position <= at < reached \
                        and self._is_wanted(window, &wanted, at):
                    found.append(found_message(window, at))
                last = at
        return found, end

    cdef bint _is_wanted(self, LogWindow window, tail_walk* t, int64_t at) except -1:
        """Whether the record at `at` is a wanted message. Maps its segment."""
        cdef int status
        with nogil:
            status = _look_at(&window.c, t, at)
        if status == WINDOW_NEED_SEGMENT:
            try:
                window.need(at)
            except OffsetError:  # the segment was cleaned meanwhile
                return False
            with nogil:
                status = _look_at(&window.c, t, at)
        return status == RECORD_OK
