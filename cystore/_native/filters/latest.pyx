"""Compaction: selects the newest record of each key, and makes and reads the index of a compacted file.

`LatestTable` takes records in log order. For each (topic, key) it remembers the place of the newest record and a
fingerprint of 128 bits with random seeds, not the key: 24 bytes an entry. Once it has grown, the table is at least
three eighths full. `sort` puts the places in log order. `copy` copies those records verbatim and enters their new
places. `slots` makes the index of the new file. A record with several keys stays while it is the newest of any of them.

A record with an empty body deletes its keys, and so does an expired record. Compaction leaves such a record out, unless
an older record with the same key stays: without the deletion that record would become the newest.
"""

cimport cython
from cpython.buffer cimport PyBUF_SIMPLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport INT64_MAX, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc, qsort
from libc.string cimport memcmp, memcpy, memset

from cystore._native.layout cimport (
    PROPERTY_KEYS, PROPERTY_KEYS_BYTES, RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ, RECORD_SYS_FLAG_AT, load_be64,
    record_magic, record_physical_offset, store_be64, takes_queue_offset
)
from cystore._native.memory.atomics cimport prefetch_for_write
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport key_next, property_find, property_view
from cystore._native.record.record_read cimport record_intact, record_read, walk_begin
from cystore._native.record.record_view cimport (
    RECORD_BAD_CHECKSUM, RECORD_BAD_POSITION, RECORD_BLANK, RECORD_OK, RECORD_SHORT, record_view
)
from cystore._native.record.window cimport record_expiry

from cystore._native.record.record import STATUS_NAMES
from cystore.errors import CorruptRecordError, StoreResourceError

cdef extern from "key_print.h" nogil:
    ctypedef struct key_print:
        uint64_t first
        uint64_t second
    key_print print_begin(const uint64_t* seeds)
    void print_text(key_print* fingerprint, const uint64_t* seeds, const uint8_t* text, size_t length)

cdef enum:
    TOPICS_MAX = 1024
    WAITING = 32            # keys whose table entries are being prefetched
    SEEDS = 4
    SLOT_BYTES = 16         # first half of the fingerprint, position; position 0: free
    FIRST_ROOM = 1024
    GONE = 1                # place of a key whose newest record was left out
    NO_MEMORY = 100

cdef int64_t LOG = <int64_t>1 << 62         # a place in the log; else in the old compacted file
cdef int64_t WRITTEN = <int64_t>1 << 61     # the record was copied: a position in the new file
cdef int64_t SHADOW = <int64_t>1 << 60      # an older record that stays has the key too
cdef int64_t POSITIONS_END = <int64_t>1 << 60

IN_LOG = 1 << 62
BYTES_OF_SLOT = SLOT_BYTES
PIECE_BYTES = 16 << 20
OK = RECORD_OK
BLANK = RECORD_BLANK
SHORT = RECORD_SHORT

cdef struct latest_entry:
    key_print fingerprint
    int64_t place           # 0: free

cdef struct topic_name:
    const uint8_t* text
    int length
    bint prefix             # any topic with this prefix

# A deleted topic: its records below log position `end` were deleted.
cdef struct deleted_topic:
    const uint8_t* topic
    int topic_len
    int64_t end

cdef struct latest_state:
    latest_entry* entries
    uint64_t mask
    int64_t count
    uint64_t[SEEDS] seeds
    topic_name* topics
    int topic_count
    deleted_topic* deleted
    int deleted_count
    latest_entry[WAITING] waiting
    int waiting_count
    key_print topic_print   # fingerprint of `topic`
    uint8_t[256] topic      # of the previous record
    int topic_len           # -1: none
    bint topic_wanted
    int64_t looked_at
    int64_t taken           # records with a key of a compacted topic
    int64_t offset_end      # records of a compacted file from this log offset on are left out
    int64_t last_record     # position and checksum of the last record from the log
    uint32_t last_checksum


cdef latest_entry* _entry(latest_state* s, const key_print* fingerprint) noexcept nogil:
    """The entry of a key, or the free entry for it."""
    cdef uint64_t i = fingerprint.first & s.mask
    cdef latest_entry* entry
    while True:
        entry = &s.entries[i]
        if entry.place == 0 or (entry.fingerprint.first == fingerprint.first
                                and entry.fingerprint.second == fingerprint.second):
            return entry
        i = (i + 1) & s.mask


cdef int _grow(latest_state* s) noexcept nogil:
    cdef uint64_t count = 2 * (s.mask + 1)
    cdef latest_entry* old = s.entries
    cdef uint64_t old_count = s.mask + 1
    cdef uint64_t i
    cdef latest_entry* grown = <latest_entry*>calloc(count, sizeof(latest_entry))
    if grown == NULL:
        return NO_MEMORY
    s.entries = grown
    s.mask = count - 1
    for i in range(old_count):
        if old[i].place:
            _entry(s, &old[i].fingerprint)[0] = old[i]
    free(old)
    return RECORD_OK


cdef int _settle(latest_state* s) noexcept nogil:
    """Enters the waiting keys in their order, so that a later record replaces an earlier record."""
    cdef latest_entry* entry
    cdef int i
    if 4 * (s.count + WAITING) > 3 * <int64_t>(s.mask + 1) and _grow(s) != RECORD_OK:
        return NO_MEMORY
    for i in range(s.waiting_count):
        entry = _entry(s, &s.waiting[i].fingerprint)
        if entry.place == 0:
            s.count += 1
            entry.fingerprint = s.waiting[i].fingerprint
        entry.place = s.waiting[i].place
    s.waiting_count = 0
    return RECORD_OK


cdef bint _topic_wanted(latest_state* s, const record_view* v) noexcept nogil:
    """Whether the record's topic is compacted. If so, `topic_print` is its fingerprint."""
    cdef int i
    if s.topic_len == v.topic_len and memcmp(&s.topic[0], v.topic, v.topic_len) == 0:
        return s.topic_wanted
    s.topic_len = v.topic_len
    memcpy(&s.topic[0], v.topic, v.topic_len)
    s.topic_wanted = False
    for i in range(s.topic_count):
        if (s.topics[i].length == v.topic_len or (s.topics[i].prefix and s.topics[i].length < v.topic_len)) \
                and memcmp(s.topics[i].text, v.topic, s.topics[i].length) == 0:
            s.topic_wanted = True
            break
    if s.topic_wanted:
        s.topic_print = print_begin(&s.seeds[0])
        print_text(&s.topic_print, &s.seeds[0], v.topic, v.topic_len)
    return s.topic_wanted


cdef bint _was_deleted(const latest_state* s, const record_view* v) noexcept nogil:
    cdef int i
    for i in range(s.deleted_count):
        if v.physical_offset < s.deleted[i].end and s.deleted[i].topic_len == v.topic_len \
                and memcmp(s.deleted[i].topic, v.topic, v.topic_len) == 0:
            return True
    return False


cdef inline bint _keys_of(const record_view* v, const uint8_t** at, const uint8_t** end) noexcept nogil:
    cdef property_view keys
    if not property_find(v.properties, v.properties_len, PROPERTY_KEYS, PROPERTY_KEYS_BYTES, &keys):
        return False
    at[0] = keys.value
    end[0] = keys.value + keys.value_len
    return True


cdef int _take(latest_state* s, const record_view* v, int64_t place) noexcept nogil:
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* key
    cdef size_t length
    cdef latest_entry* waiting
    if not takes_queue_offset(v.sys_flag) or not _topic_wanted(s, v) or not _keys_of(v, &at, &end) \
            or (s.deleted_count and _was_deleted(s, v)):
        return RECORD_OK
    s.taken += at < end
    while key_next(&at, end, &key, &length):
        if s.waiting_count == WAITING and _settle(s) != RECORD_OK:
            return NO_MEMORY
        waiting = &s.waiting[s.waiting_count]
        waiting.fingerprint = s.topic_print
        print_text(&waiting.fingerprint, &s.seeds[0], key, length)
        waiting.place = place
        prefetch_for_write(&s.entries[waiting.fingerprint.first & s.mask])
        s.waiting_count += 1
    return RECORD_OK


cdef int _walk(latest_state* s, const uint8_t* p, int64_t base, int64_t* at, int64_t end, int64_t stop) noexcept nogil:
    """Takes consecutive records from `at` on, and moves `at`. `base`: log position of the file's begin; -1: a compacted
    file."""
    cdef record_view v
    cdef int status
    walk_begin(&v)
    while at[0] < stop:
        status = record_read(p + at[0], <size_t>(end - at[0]), &v)
        if status != RECORD_OK:
            return status
        if base >= 0 and v.physical_offset != base + at[0]:
            return RECORD_BAD_POSITION
        if not record_intact(p + at[0], &v):
            return RECORD_BAD_CHECKSUM
        if base >= 0:
            s.last_record = base + at[0]
            s.last_checksum = v.checksum
        if (base >= 0 or v.physical_offset < s.offset_end) \
                and _take(s, &v, LOG | (base + at[0]) if base >= 0 else at[0]) != RECORD_OK:
            return NO_MEMORY
        s.looked_at += 1
        at[0] += v.total_size
    return RECORD_OK


cdef int64_t _find_record(const uint8_t* p, int64_t base, int64_t at, int64_t end) noexcept nogil:
    """The next place with an intact record, -1: none. `base` as in `_walk`."""
    cdef record_view v
    cdef int64_t i = at
    while i + <int64_t>RECORD_SYS_FLAG_AT <= end:
        if (record_magic(p + i) == RECORD_MAGIC_CYSTORE or record_magic(p + i) == RECORD_MAGIC_ROCKETMQ) \
                and (base < 0 or record_physical_offset(p + i) == base + i):
            walk_begin(&v)
            if record_read(p + i, <size_t>(end - i), &v) == RECORD_OK and record_intact(p + i, &v):
                return i
        i += 1
    return -1


cdef bint _deletes_keys(const record_view* v, int64_t now_ms) noexcept nogil:
    """Whether a record deletes its keys: it has an empty body, or it expired."""
    return v.body_len == 0 or 0 < record_expiry(v) <= now_ms


cdef bint _keep(latest_state* s, const record_view* v, int64_t place, int64_t position, int64_t now_ms) noexcept nogil:
    """Whether the newest record of a key stays. Enters its `position` in the new file, or GONE, for its keys."""
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* key
    cdef const uint8_t* first
    cdef size_t length
    cdef key_print fingerprint
    cdef latest_entry* entry
    cdef bint deletes = _deletes_keys(v, now_ms)
    cdef bint keeps = not deletes
    if not _topic_wanted(s, v) or not _keys_of(v, &first, &end):
        return False
    at = first
    while deletes and key_next(&at, end, &key, &length):
        fingerprint = s.topic_print
        print_text(&fingerprint, &s.seeds[0], key, length)
        entry = _entry(s, &fingerprint)
        keeps = keeps or entry.place == (place | SHADOW)
    at = first
    while key_next(&at, end, &key, &length):
        fingerprint = s.topic_print
        print_text(&fingerprint, &s.seeds[0], key, length)
        entry = _entry(s, &fingerprint)
        if entry.place & ~SHADOW == place:
            entry.place = WRITTEN | position if keeps else GONE
        elif keeps and entry.place and not entry.place & WRITTEN:
            entry.place |= SHADOW
    return keeps


cdef int _ascending(const void* a, const void* b) noexcept nogil:
    cdef int64_t left = (<const int64_t*>a)[0]
    cdef int64_t right = (<const int64_t*>b)[0]
    return (left > right) - (left < right)


cdef object _damaged(MappedFile file, int64_t at, int status):
    return CorruptRecordError(f"the record is damaged: {STATUS_NAMES[status]}", path=file.path, offset=at)


@cython.final
@cython.auto_pickle(False)
cdef class LatestTable:
    """The newest record of each (topic, key). `topics`: names; a trailing ``*`` stands for any ending. `deleted`:
    (topic, end): the topic's records below that log offset are left out. `seeds`: 32 random bytes. Only one thread at
    a time may use it."""

    cdef latest_state s
    cdef object held                # the bytes that the state points into
    cdef int64_t* places
    cdef int64_t place_count
    cdef int64_t next_place
    cdef int64_t copied
    cdef int64_t keys_written

    def __cinit__(self, list topics not None, bytes seeds not None, list deleted not None=[]):
        cdef int i
        cdef bytes name
        memset(&self.s, 0, sizeof(latest_state))
        if len(seeds) != SEEDS * 8:
            raise ValueError(f"seeds: {len(seeds)} bytes, not {SEEDS * 8}")
        memcpy(&self.s.seeds[0], <const uint8_t*><const char*>seeds, SEEDS * 8)
        self.s.topic_len = -1
        self.s.last_record = -1
        self.s.offset_end = INT64_MAX
        self.s.mask = FIRST_ROOM - 1
        self.s.entries = <latest_entry*>calloc(FIRST_ROOM, sizeof(latest_entry))
        self.s.topics = <topic_name*>calloc(max(len(topics), 1), sizeof(topic_name))
        self.s.deleted = <deleted_topic*>calloc(max(len(deleted), 1), sizeof(deleted_topic))
        if self.s.entries == NULL or self.s.topics == NULL or self.s.deleted == NULL:
            raise MemoryError
        self.held = [list(topics), list(deleted)]
        for i, name in enumerate(topics):
            self.s.topics[i].text = <const uint8_t*><const char*>name
            self.s.topics[i].prefix = name.endswith(b"*")
            self.s.topics[i].length = <int>len(name) - self.s.topics[i].prefix
        self.s.topic_count = <int>len(topics)
        for i, (name, end) in enumerate(deleted):
            self.s.deleted[i].topic = <const uint8_t*><const char*>name
            self.s.deleted[i].topic_len = <int>len(name)
            self.s.deleted[i].end = end
        self.s.deleted_count = <int>len(deleted)

    def __dealloc__(self):
        free(self.s.entries)
        free(self.s.topics)
        free(self.s.deleted)
        free(self.places)

    @property
    def keys(self):
        """Number of keys."""
        return self._settled()

    cdef int64_t _settled(self) except -1:
        if _settle(&self.s) != RECORD_OK:
            raise self._no_memory()
        return self.s.count

    cdef object _no_memory(self):
        return StoreResourceError(f"no memory for the table of {self.s.count} keys")

    @property
    def looked_at(self):
        """Number of records read."""
        return self.s.looked_at

    @property
    def taken(self):
        """Number of read records that have a key and belong to a compacted topic."""
        return self.s.taken

    def leave_out_from(self, int64_t offset):
        """From now on, `take` leaves out records of a compacted file with this or a higher log offset."""
        self.s.offset_end = offset

    @property
    def last_record(self):
        """(log position, checksum field) of the last record taken from the log; the position -1: none."""
        return self.s.last_record, self.s.last_checksum

    def take(self, MappedFile file not None, int64_t at, int64_t end, *, bint in_log):
        """Takes the records in [at, end) of a log file or a compacted file, about PIECE_BYTES at most. Returns (end of
        the taken records, status). After OK the caller continues until `end`. Any other status but BLANK and SHORT is
        damage."""
        cdef int status
        cdef int64_t base = file.base if in_log else -1
        cdef int64_t place = at
        cdef int64_t stop
        if not 0 <= at <= end <= file.length or base + end >= POSITIONS_END or self.places != NULL:
            raise ValueError(f"cannot take [{at}, {end}) of {file!r}, or `sort` was called before")
        stop = min(end, at + <int64_t>PIECE_BYTES)
        with nogil:
            status = _walk(&self.s, file.address, base, &place, end, stop)
        if status == NO_MEMORY:
            raise self._no_memory()
        return place, status

    def sort(self):
        """Ends the taking: puts the places of the newest records in log order and returns their number."""
        cdef uint64_t i
        cdef int64_t count = 0
        cdef int64_t unique = 0
        if self.places != NULL:
            return self.place_count
        self._settled()
        self.places = <int64_t*>malloc(max(self.s.count, 1) * sizeof(int64_t))
        if self.places == NULL:
            raise self._no_memory()
        with nogil:
            for i in range(self.s.mask + 1):
                if self.s.entries[i].place:
                    self.places[count] = self.s.entries[i].place
                    count += 1
            qsort(self.places, <size_t>count, sizeof(int64_t), _ascending)
            for i in range(<uint64_t>count):
                if unique == 0 or self.places[unique - 1] != self.places[i]:
                    self.places[unique] = self.places[i]
                    unique += 1
        self.place_count = unique
        return unique

    def place(self, int64_t number):
        """Place `number` in the order of `sort`: a position in the compacted file, or IN_LOG and a log offset."""
        if self.places == NULL or not 0 <= number < self.place_count:
            raise IndexError(number)
        return self.places[number]

    @property
    def next(self):
        """The place of the next record for `copy`, -1: none."""
        return self.places[self.next_place] if self.next_place < self.place_count else -1

    def copy(self, MappedFile file not None, int64_t end, out not None, int64_t filled, int64_t position,
             int64_t now_ms, *, bint in_log):
        """Copies records from a file's first `end` bytes into `out`, from `filled` on; that byte is at `position` of
        the new file. Returns (filled, bytes that the next record needs; 0: the next record is in another file, or there
        is none). Raises CorruptRecordError."""
        cdef Py_buffer buffer
        cdef record_view v
        cdef int64_t shift = LOG | file.base if in_log else 0
        cdef int64_t at, needed = 0
        cdef int status = RECORD_OK
        cdef uint8_t* to
        if self.places == NULL or not 0 <= end <= file.length:
            raise ValueError(f"cannot copy from {end} bytes of {file!r}, or `sort` was not called before")
        PyObject_GetBuffer(out, &buffer, PyBUF_SIMPLE | 1)
        try:
            if not 0 <= filled <= buffer.len:
                raise ValueError(f"filled: {filled}, not 0 to {buffer.len}")
            to = <uint8_t*>buffer.buf
            at = 0
            with nogil:
                walk_begin(&v)
                while self.next_place < self.place_count:
                    at = self.places[self.next_place] - shift
                    if not 0 <= at < end:
                        break
                    status = record_read(file.address + at, <size_t>(end - at), &v)
                    if status == RECORD_OK and not record_intact(file.address + at, &v):
                        status = RECORD_BAD_CHECKSUM
                    if status != RECORD_OK:
                        break
                    if v.total_size > buffer.len - filled:
                        needed = v.total_size
                        break
                    if _keep(&self.s, &v, self.places[self.next_place], position, now_ms):
                        memcpy(to + filled, file.address + at, <size_t>v.total_size)
                        filled += v.total_size
                        position += v.total_size
                        self.copied += 1
                    self.next_place += 1
        finally:
            PyBuffer_Release(&buffer)
        if status != RECORD_OK:
            raise _damaged(file, file.base + at if in_log else at, status)
        return filled, needed

    @property
    def records(self):
        """Number of records that `copy` copied."""
        return self.copied

    def slots(self):
        """The index of the new file: slots of (first half of the fingerprint, position), at most two thirds used."""
        cdef uint64_t i, at
        cdef uint64_t count = 8
        cdef int64_t written = 0
        cdef bytearray made
        cdef uint64_t* out
        for i in range(self.s.mask + 1):
            written += (self.s.entries[i].place & WRITTEN) != 0 and self.s.entries[i].place < LOG
        while 2 * count < 3 * <uint64_t>written:
            count *= 2
        try:
            made = bytearray(count * SLOT_BYTES)
        except MemoryError:
            raise self._no_memory() from None
        out = <uint64_t*><char*>made
        with nogil:
            for i in range(self.s.mask + 1):
                if self.s.entries[i].place & WRITTEN and self.s.entries[i].place < LOG:
                    at = self.s.entries[i].fingerprint.first & (count - 1)
                    while out[2 * at + 1]:
                        at = (at + 1) & (count - 1)
                    store_be64(<uint8_t*>&out[2 * at], self.s.entries[i].fingerprint.first)
                    store_be64(<uint8_t*>&out[2 * at + 1],
                               <uint64_t>(self.s.entries[i].place & ~(WRITTEN | SHADOW)))
        self.keys_written = written
        return made

    @property
    def keys_found(self):
        """Number of keys in the index that `slots` made."""
        return self.keys_written


def next_record(MappedFile file not None, int64_t at, int64_t end, *, bint in_log):
    """The next place in [at, end) of a file that holds an intact record, -1: none."""
    cdef int64_t found
    cdef int64_t base = file.base if in_log else -1
    if not 0 <= at <= end <= file.length:
        raise ValueError(f"[{at}, {end}) is not in {file!r}")
    with nogil:
        found = _find_record(file.address, base, at, end)
    return found


cdef bint _has_key(const record_view* v, const uint8_t* key, size_t length) noexcept nogil:
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* found
    cdef size_t found_length
    if not _keys_of(v, &at, &end):
        return False
    while key_next(&at, end, &found, &found_length):
        if found_length == length and memcmp(found, key, length) == 0:
            return True
    return False


def find_newest(MappedFile file not None, int64_t slots_at, int64_t slot_count, bytes seeds not None,
                bytes topic not None, bytes key not None):
    """The position of a key's newest record in a compacted file, -1: none. The file's index has `slot_count` slots and
    begins at `slots_at`. Raises CorruptRecordError."""
    cdef uint64_t[SEEDS] numbers
    cdef key_print fingerprint
    cdef record_view v
    cdef const uint8_t* slot
    cdef uint64_t word
    cdef int64_t position, step
    cdef uint64_t i
    cdef int status
    if slot_count <= 0 or slot_count & (slot_count - 1) or slots_at < 0 \
            or slot_count > (file.length - slots_at) // SLOT_BYTES or len(seeds) != SEEDS * 8:
        raise CorruptRecordError(f"an index of {slot_count} slots at {slots_at} is impossible", path=file.path)
    memcpy(&numbers[0], <const uint8_t*><const char*>seeds, SEEDS * 8)
    fingerprint = print_begin(&numbers[0])
    print_text(&fingerprint, &numbers[0], <const uint8_t*><const char*>topic, len(topic))
    print_text(&fingerprint, &numbers[0], <const uint8_t*><const char*>key, len(key))
    i = fingerprint.first & <uint64_t>(slot_count - 1)
    for step in range(slot_count):
        slot = file.address + slots_at + <int64_t>i * SLOT_BYTES
        word = load_be64(slot)
        position = <int64_t>load_be64(slot + 8)
        if position == 0:
            return -1
        if word == fingerprint.first:
            if not 0 < position < slots_at:
                raise CorruptRecordError(f"the index names position {position}, outside the records", path=file.path)
            walk_begin(&v)
            status = record_read(file.address + position, <size_t>(slots_at - position), &v)
            if status == RECORD_OK and not record_intact(file.address + position, &v):
                status = RECORD_BAD_CHECKSUM
            if status != RECORD_OK:
                raise _damaged(file, position, status)
            if v.topic_len == len(topic) and memcmp(v.topic, <const char*>topic, v.topic_len) == 0 \
                    and _has_key(&v, <const uint8_t*><const char*>key, len(key)):
                return position
        i = (i + 1) & <uint64_t>(slot_count - 1)
    return -1
