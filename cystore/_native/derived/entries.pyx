"""Makes the queue and index entries of a part of the log in memory, for a rebuild in parallel.

`EntryReader` walks records and gathers their queue entries by queue, and their key hashes in log order. `put_keys`
enters such hashes into an index file.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcpy, memset

from cystore._native.derived.index cimport (
    INDEX_FULL, index_key_hash, index_prefetch, index_put, index_slot_number, index_topic_seed,
    index_view, index_view_of
)
from cystore._native.derived.queue cimport queue_put
from cystore._native.layout cimport QUEUE_ENTRY_BYTES, takes_index_entry, takes_queue_offset
from cystore._native.memory.local_queues cimport fill_local_queue, find_local_queue, link_local_queue, queue_key
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport (
    LIGHT_QUEUES_READ, derive_begin, derive_next_key, derived, light_next, light_of, light_place, light_queues
)
from cystore._native.record.record_read cimport fetch_ahead, record_at, walk_begin
from cystore._native.record.record_view cimport (
    RECORD_BAD_LENGTH, RECORD_BLANK, RECORD_OK, RECORD_SHORT, record_view
)

cdef enum:
    BUCKETS = 1024
    KEYS_A_RECORD = 16384   # properties have at most 32767 bytes, a key takes two

# One record in its queue.
cdef struct gathered:
    int32_t queue
    int32_t size
    int64_t queue_offset
    int64_t position
    int64_t tags_code
    int64_t store_timestamp

cdef struct gathered_key:
    int64_t position
    int64_t store_timestamp
    int32_t hash
    int32_t unused

cdef struct known_queue:
    queue_key key
    int64_t count

cdef enum:
    ENTRIES_LIMIT = 0       # `limit` is reached
    ENTRIES_FULL = 1        # the caller calls `take`, then `run` again
    ENTRIES_BLANK = 2
    ENTRIES_INVALID = 3

cdef struct entries_state:
    known_queue* queues
    int32_t queue_count
    int32_t queue_room
    uint32_t[BUCKETS] buckets
    gathered* rows
    int64_t row_count
    int64_t row_room
    gathered_key* keys
    int64_t key_count
    int64_t key_room
    bint with_keys
    const int64_t* delay_ms
    int delay_levels
    int64_t position
    int reason


cdef inline int32_t _queue_of(entries_state* s, const uint8_t* topic, int topic_len, int32_t queue_id) noexcept nogil:
    """Number of a queue. Adds a new queue: `queues` has room for all queues of one more record."""
    cdef uint32_t link = find_local_queue(
        s.queues, sizeof(known_queue), &s.buckets[0], BUCKETS - 1, topic, topic_len, queue_id)
    if link:
        return <int32_t>(link - 1)
    fill_local_queue(&s.queues[s.queue_count].key, topic, topic_len, queue_id)
    s.queues[s.queue_count].count = 0
    link_local_queue(s.queues, sizeof(known_queue), &s.buckets[0], BUCKETS - 1, <uint32_t>s.queue_count)
    s.queue_count += 1
    return s.queue_count - 1


cdef inline void _add_row(entries_state* s, const record_view* v, int32_t queue, int64_t queue_offset,
                          int64_t tags_code) noexcept nogil:
    cdef gathered* row = &s.rows[s.row_count]
    row.queue = queue
    row.size = v.total_size
    row.queue_offset = queue_offset
    row.position = s.position
    row.tags_code = tags_code
    row.store_timestamp = v.store_timestamp
    s.row_count += 1
    s.queues[queue].count += 1


cdef int entries_run(const uint8_t* p, int64_t begin, int64_t limit, int64_t file_end, entries_state* s) noexcept nogil:
    """Continues at `position`; `p` holds the log's bytes [begin, file_end)."""
    cdef record_view v
    cdef derived found
    cdef light_queues light
    cdef light_place place
    cdef gathered_key* entered
    cdef const uint8_t* key
    cdef const uint8_t* at
    cdef size_t length
    cdef int32_t seed
    cdef int status
    cdef int64_t fetched = 0
    walk_begin(&v)
    while s.position < limit:
        if s.row_count >= s.row_room or s.key_count + KEYS_A_RECORD > s.key_room or s.queue_count >= s.queue_room:
            return ENTRIES_FULL
        at = p + (s.position - begin)
        fetched = fetch_ahead(p, s.position - begin, fetched, limit - begin)
        status = record_at(at, <size_t>(file_end - s.position), s.position, file_end, True, &v)
        if status == RECORD_BLANK:
            return ENTRIES_BLANK
        if status == RECORD_SHORT:
            status = RECORD_BAD_LENGTH
        if status != RECORD_OK:
            s.reason = status
            return ENTRIES_INVALID
        derive_begin(&v, s.delay_ms, s.delay_levels, &found)
        if takes_queue_offset(v.sys_flag):
            _add_row(s, &v, _queue_of(s, v.topic, v.topic_len, v.queue_id), v.queue_offset, found.tags_code)
            if light_of(&v, &found.light, &found.light_offsets, &light):
                while light_next(&light, &place):
                    _add_row(s, &v, _queue_of(s, place.name, place.name_len, 0), place.queue_offset, found.tags_code)
        if s.with_keys and takes_index_entry(v.sys_flag):
            seed = 0
            length = 0
            while derive_next_key(&found, &key, &length):
                if seed == 0:
                    seed = index_topic_seed(v.topic, v.topic_len)
                entered = &s.keys[s.key_count]
                entered.hash = index_key_hash(seed, key, length)
                entered.position = s.position
                entered.store_timestamp = v.store_timestamp
                entered.unused = 0
                s.key_count += 1
        s.position += v.total_size
    return ENTRIES_LIMIT


# ------------------------------------------------------------------------------------------------------ for Python

LIMIT = ENTRIES_LIMIT
FULL = ENTRIES_FULL
BLANK = ENTRIES_BLANK
INVALID = ENTRIES_INVALID
KEY_BYTES = sizeof(gathered_key)


cdef class EntryReader:
    """Gathers at most `rows` records at a time. The caller calls `run` with a segment's bytes until it returns LIMIT,
    and `take` after each call."""

    cdef entries_state s
    cdef int64_t* delay_ms

    def __cinit__(self, *, delay_levels_ms=(), bint with_keys=True, int64_t rows=200_000):
        cdef int i
        if rows < 1:
            raise ValueError(f"rows must be at least 1, not {rows}")
        memset(&self.s, 0, sizeof(entries_state))
        self.s.row_room = rows
        self.s.key_room = 4 * rows + KEYS_A_RECORD
        self.s.queue_room = <int32_t>min(rows, 1 << 16)
        self.s.with_keys = with_keys
        self.s.rows = <gathered*>PyMem_Malloc((rows + LIGHT_QUEUES_READ) * sizeof(gathered))
        self.s.keys = <gathered_key*>PyMem_Malloc(self.s.key_room * sizeof(gathered_key))
        self.s.queues = <known_queue*>PyMem_Malloc((self.s.queue_room + LIGHT_QUEUES_READ) * sizeof(known_queue))
        self.delay_ms = <int64_t*>PyMem_Malloc(max(len(delay_levels_ms), 1) * sizeof(int64_t))
        if self.s.rows == NULL or self.s.keys == NULL or self.s.queues == NULL or self.delay_ms == NULL:
            raise MemoryError
        for i, delay in enumerate(delay_levels_ms):
            self.delay_ms[i] = delay
        self.s.delay_ms = self.delay_ms
        self.s.delay_levels = <int>len(delay_levels_ms)

    def __dealloc__(self):
        PyMem_Free(self.s.rows)
        PyMem_Free(self.s.keys)
        PyMem_Free(self.s.queues)
        PyMem_Free(self.delay_ms)

    def run(self, const uint8_t[::1] data, int64_t begin, int64_t position, int64_t limit):
        """Continues at `position`; `data` is a segment that begins at `begin` in the log. Returns LIMIT, FULL, BLANK or
        INVALID."""
        cdef int status
        if not begin <= position <= limit or data.shape[0] == 0 or position >= begin + data.shape[0]:
            raise ValueError(f"position {position} is not in {data.shape[0]} bytes at {begin}, or is behind {limit}")
        self.s.position = position
        with nogil:
            status = entries_run(&data[0], begin, min(limit, begin + data.shape[0]), begin + data.shape[0], &self.s)
        return status

    @property
    def position(self):
        """Log position that the walk has reached."""
        return self.s.position

    @property
    def reason(self):
        """RecordStatus of an invalid record."""
        return self.s.reason

    def take(self, bint with_timestamps=False):
        """(runs, keys) gathered since the last call. A run has consecutive queue offsets: (topic, queue id, first queue
        offset, physical offset of its first record, end of its last record, entries as stored, store timestamps)."""
        cdef int64_t* places = <int64_t*>PyMem_Calloc(self.s.queue_count + 1, sizeof(int64_t))
        cdef int64_t* order = <int64_t*>PyMem_Malloc(max(self.s.row_count, 1) * sizeof(int64_t))
        cdef int64_t i, first, last, count
        cdef int32_t number
        cdef gathered* row
        cdef bytes entries, stamps
        if places == NULL or order == NULL:
            PyMem_Free(places)
            PyMem_Free(order)
            raise MemoryError
        try:
            for number in range(self.s.queue_count):
                places[number + 1] = places[number] + self.s.queues[number].count
            for i in range(self.s.row_count):
                number = self.s.rows[i].queue
                order[places[number]] = i
                places[number] += 1
            runs = []
            first = 0
            while first < self.s.row_count:
                last = first + 1
                while last < self.s.row_count and self._follows(order[last - 1], order[last]):
                    last += 1
                count = last - first
                entries = PyBytes_FromStringAndSize(NULL, count * <int64_t>QUEUE_ENTRY_BYTES)
                stamps = PyBytes_FromStringAndSize(NULL, count * 8 if with_timestamps else 0)
                for i in range(count):
                    row = &self.s.rows[order[first + i]]
                    queue_put(<uint8_t*>PyBytes_AS_STRING(entries) + i * <int64_t>QUEUE_ENTRY_BYTES, row.position,
                              row.size, row.tags_code)
                    if with_timestamps:
                        memcpy(PyBytes_AS_STRING(stamps) + 8 * i, &row.store_timestamp, 8)
                row = &self.s.rows[order[last - 1]]
                runs.append(self._run(order[first], row.position + row.size, entries, stamps))
                first = last
            keys = (<const char*>self.s.keys)[:self.s.key_count * sizeof(gathered_key)]
        finally:
            PyMem_Free(places)
            PyMem_Free(order)
        self.s.row_count = self.s.key_count = 0
        self.s.queue_count = 0
        memset(self.s.buckets, 0, sizeof(self.s.buckets))
        return runs, keys

    cdef bint _follows(self, int64_t before, int64_t after) noexcept:
        return self.s.rows[before].queue == self.s.rows[after].queue \
            and self.s.rows[before].queue_offset + 1 == self.s.rows[after].queue_offset

    cdef tuple _run(self, int64_t first, int64_t end, bytes entries, bytes stamps):
        cdef gathered* row = &self.s.rows[first]
        cdef queue_key* queue = &self.s.queues[row.queue].key
        topic = (<const char*>&queue.topic[0])[:queue.topic_len]
        return topic, queue.queue_id, row.queue_offset, row.position, end, entries, stamps


def put_keys(MappedFile file not None, uint32_t slots, uint32_t capacity, const uint8_t[::1] keys, int64_t first):
    """Enters keys from `EntryReader.take` into an index file, from number `first` on, until the file is full or the
    keys end. Returns the number of the next key. The file's bytes must be allocated."""
    cdef index_view index = index_view_of(file, slots, capacity)
    cdef gathered_key key
    cdef gathered_key ahead
    cdef int64_t count = keys.shape[0] // <int64_t>sizeof(gathered_key)
    cdef int64_t at = first
    if not file.writable:
        raise ValueError(f"{file!r} is mapped for reading only")
    if first < 0 or keys.shape[0] % <int64_t>sizeof(gathered_key):
        raise ValueError(f"{keys.shape[0]} bytes are no keys, or {first} is below 0")
    with nogil:
        while at < count:
            if at + 8 < count:
                memcpy(&ahead, &keys[(at + 8) * <int64_t>sizeof(gathered_key)], sizeof(gathered_key))
                index_prefetch(&index, ahead.hash)
            memcpy(&key, &keys[at * <int64_t>sizeof(gathered_key)], sizeof(gathered_key))
            if key.hash < 0 or index_put(&index, key.hash, index_slot_number(&index, key.hash), key.position,
                                         key.store_timestamp) == INDEX_FULL:
                break
            at += 1
    return at
