"""Walking the log from record to record over bytes that were read, not mapped: recovery, verify and scrub.

`scan_run` checks every record and compares it with what its queue expects; whatever is not as expected stops it with a status,
and the caller judges (`LogScanner.accept`) and calls again. `scan_find` looks for the next record behind damage.
"""

from array import array

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memcmp, memcpy, memset

from cystore._native.record.derive cimport (derive_begin, derive_next_key, derived, due_time_possible)
from cystore._native.derived.ext cimport ext_is_address
from cystore._native.derived.index cimport index_key_hash, index_seconds, index_topic_seed
from cystore._native.layout cimport *
from cystore._native.memory.queue_table cimport queue_hash
from cystore._native.record.record cimport (RECORD_BAD_CHECKSUM, RECORD_BAD_LENGTH, RECORD_BAD_POSITION,
RECORD_BLANK, RECORD_OK, RECORD_SHORT, record_view)
from cystore._native.record.record_read cimport record_intact, record_read

# Hosts of 20 bytes instead of 8, the longest topic, the longest properties: what a record can have beside its body.
cdef int64_t BESIDE_BODY_MAX = RECORD_SIZE_MIN + 2 * (HOST_V6_BYTES - HOST_V4_BYTES) + TOPIC_BYTES_MAX + PROPERTIES_BYTES_MAX
# From here on the body length can be read, whatever the hosts.
cdef int64_t HEAD_BYTES = RECORD_HEAD_BYTES_MAX


# More entries than a consume queue can have: 20 bytes each in 63 bits.
cdef int64_t QUEUE_OFFSET_MAX = <int64_t>1 << 58


cdef inline int _short(const uint8_t* p, int64_t available, int64_t room, scan_state* s) noexcept nogil:
    """A record that runs past the bytes at hand: worth reading on for, or one whose size cannot be true?"""
    cdef int64_t size, body_at, body
    s.needed = HEAD_BYTES if room > HEAD_BYTES else room
    if available < s.needed:
        return SCAN_MORE
    if available < HEAD_BYTES:      # even of its size not all need be there
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    size = record_total_size(p)
    if size > room:
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    if record_physical_offset(p) != s.position:
        s.reason = RECORD_BAD_POSITION
        return SCAN_INVALID
    body_at = RECORD_BODY_AT + (HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_BORN_HOST_V6 else HOST_V4_BYTES)
    body_at += HOST_V6_BYTES if record_sys_flag(p) & SYS_FLAG_STORE_HOST_V6 else HOST_V4_BYTES
    body = <int32_t>load_be32(p + body_at - 4)
    if body < 0 or body > size or size - body > BESIDE_BODY_MAX:
        s.reason = RECORD_BAD_LENGTH
        return SCAN_INVALID
    s.needed = size
    return SCAN_MORE


cdef inline int _item(const uint8_t* p, int64_t available, scan_state* s, record_view* v) noexcept nogil:
    """What stands at `position`: SCAN_LIMIT for a valid record (in `v`), else the status to stop with."""
    cdef int64_t room = s.file_end - s.position
    cdef int status = record_read(p, <size_t>(available if available < room else room), v)
    if status == RECORD_SHORT:
        return _short(p, available, room, s)
    if status == RECORD_BLANK:
        if v.total_size == room:
            return SCAN_BLANK
        status = RECORD_BAD_LENGTH
    elif status == RECORD_OK:
        if v.physical_offset != s.position:
            status = RECORD_BAD_POSITION
        elif not s.check_checksum or record_intact(p, v):
            return SCAN_LIMIT
        else:
            status = RECORD_BAD_CHECKSUM
    s.reason = status
    return SCAN_INVALID


cdef inline scan_queue* _queue_of(scan_state* s) noexcept nogil:
    cdef uint32_t hash = queue_hash(s.v.topic, s.v.topic_len, s.v.queue_id)
    cdef uint32_t link = s.buckets[hash & s.bucket_mask]
    cdef scan_queue* queue
    while link:
        queue = &s.queues[link - 1]
        if queue.hash == hash and queue.queue_id == s.v.queue_id and queue.topic_len == s.v.topic_len \
                and memcmp(&queue.topic[0], s.v.topic, s.v.topic_len) == 0:
            s.slot = link - 1
            return queue
        link = queue.link
    return NULL


cdef inline bint _is_entry_of(scan_state* s, const uint8_t* entry) noexcept nogil:
    cdef derived found
    cdef int64_t tags_code
    if queue_entry_disk_physical_offset(entry) != s.position or queue_entry_disk_size(entry) != s.v.total_size:
        return False
    tags_code = queue_entry_disk_tags_code(entry)
    if not s.compare_tags or ext_is_address(tags_code):
        return True
    derive_begin(&s.v, NULL, 0, &found)
    if found.delayed:
        if found.due_ms and tags_code == found.due_ms:
            return True
        # RocketMQ, when it rebuilds a queue, knows nothing of the due time of a message that was carried forward.
        return due_time_possible(tags_code, s.v.store_timestamp)
    return found.tags_code == tags_code


cdef inline bint _is_in_time(scan_state* s, const uint8_t* entry, int64_t at) noexcept nogil:
    """Whether an entry's seconds are those of the record; the first one of a file counts from elsewhere."""
    while s.keys_file + 1 < s.keys_file_count and at >= s.keys_files[2 * s.keys_file + 2]:
        s.keys_file += 1
    while s.keys_file > 0 and at < s.keys_files[2 * s.keys_file]:
        s.keys_file -= 1
    if s.keys_file_count == 0 or at == s.keys_files[2 * s.keys_file]:
        return True
    return index_entry_seconds(entry) == index_seconds(s.keys_files[2 * s.keys_file + 1], s.v.store_timestamp)


cdef inline int _follow_keys(scan_state* s) noexcept nogil:
    """Compares a record's keys with the index entries that come next; SCAN_LIMIT when they are its keys."""
    cdef derived found
    cdef const uint8_t* key
    cdef const uint8_t* entry
    cdef size_t length
    cdef int32_t seed = 0
    cdef int64_t at = s.keys_at
    cdef bint seeded = False
    derive_begin(&s.v, NULL, 0, &found)
    while derive_next_key(&found, &key, &length):
        if not seeded:
            seed = index_topic_seed(s.v.topic, s.v.topic_len)
            seeded = True
        while True:
            s.wanted = at
            if at >= s.keys_limit:
                return SCAN_OTHER_KEY
            if not s.keys_begin <= at < s.keys_end:
                return SCAN_KEYS
            entry = s.keys + (at - s.keys_begin) * <int64_t>INDEX_ENTRY_BYTES
            # RocketMQ may enter the last record of a file twice.
            if index_entry_physical_offset(entry) >= s.position:
                break
            at += 1
        if index_entry_physical_offset(entry) != s.position \
                or index_entry_key_hash(entry) != index_key_hash(seed, key, length) or not _is_in_time(s, entry, at):
            return SCAN_OTHER_KEY
        at += 1
    s.keys_at = at
    return SCAN_LIMIT


cdef inline int _follow(scan_state* s) noexcept nogil:
    """Compares a record with its queue; SCAN_LIMIT when it fits."""
    cdef scan_queue* queue = _queue_of(s)
    cdef const uint8_t* entry
    cdef int64_t number = s.v.queue_offset
    if queue == NULL:
        return SCAN_NEW_QUEUE
    if (not 0 <= number < QUEUE_OFFSET_MAX or (number != queue.next and queue.next >= 0)) and s.accepted != s.position:
        return SCAN_OUT_OF_SEQUENCE
    if 0 <= number < queue.removed:
        queue.swallowed = s.swallowed
        if number >= queue.next:
            queue.next = number + 1
        return SCAN_LIMIT
    if 0 <= number < queue.entries_limit:
        if not queue.entries_begin <= number < queue.entries_end:
            s.wanted = number
            return SCAN_ENTRIES
        entry = queue.entries + (number - queue.entries_begin) * <int64_t>QUEUE_ENTRY_BYTES
        if s.accepted_entry != s.position and not _is_entry_of(s, entry):
            s.wanted = number
            return SCAN_OTHER_ENTRY
    elif queue.missing < 0:
        queue.missing = s.position
    if queue.first_physical < 0:
        queue.first_offset = number
        queue.first_physical = s.position
    queue.swallowed = s.swallowed
    if number >= queue.next:
        queue.next = number + 1
    return SCAN_LIMIT


cdef int scan_run(const uint8_t* p, int64_t begin, int64_t end, scan_state* s) noexcept nogil:
    """Goes on from `position`; `p` holds the log's bytes [begin, end), of the file that ends at `file_end`."""
    cdef int status
    cdef const uint8_t* at
    cdef record_view v      # of its own: what nobody asks for is not even read
    v.topic = NULL
    while s.position < s.limit:
        at = p + (s.position - begin)
        status = _item(at, end - s.position, s, &v)
        if status == SCAN_LIMIT and s.in_time_order and s.position >= s.watermark and v.store_timestamp < s.last_timestamp \
                and s.accepted != s.position:
            status = SCAN_BACK_IN_TIME
        if status != SCAN_LIMIT or s.follow_queues or s.compare_keys:
            s.v = v
        if status != SCAN_LIMIT:
            return status
        if s.follow_queues and takes_queue_offset(v.sys_flag):
            status = _follow(s)
            if status != SCAN_LIMIT:
                return status
        if s.compare_keys and takes_index_entry(v.sys_flag) and s.accepted_keys != s.position:
            status = _follow_keys(s)
            if status != SCAN_LIMIT:
                # The queue has taken the record already: what it said is not to be asked again.
                s.accepted = s.accepted_entry = s.position
                return status
        s.last_record = s.position
        s.last_checksum = v.checksum
        s.record_count += 1
        if v.store_timestamp > s.last_timestamp:
            s.last_timestamp = v.store_timestamp
        s.position += v.total_size
        if v.store_timestamp <= s.physic_timestamp:
            s.timed_end = s.position
    return SCAN_LIMIT


cdef int64_t scan_find(const uint8_t* p, int64_t begin, int64_t end, scan_state* s) noexcept nogil:
    """The lowest place at or behind `position` where a valid record stands at its own offset, -1 when there is none in
    these bytes. `needed` > 0: `position` is a place that cannot be judged without that many bytes."""
    cdef int64_t i = s.position
    cdef const uint8_t* at
    cdef uint32_t magic
    cdef int status
    s.needed = 0
    while i + 36 <= end:
        at = p + (i - begin)
        magic = record_magic(at)
        if (magic == RECORD_MAGIC_CYSTORE or magic == RECORD_MAGIC_ROCKETMQ) and record_physical_offset(at) == i:
            s.position = i
            s.v.topic = NULL    # that of the record before may be of other bytes
            status = _item(at, end - i, s, &s.v)
            if status == SCAN_LIMIT:
                s.needed = 0
                return i
            if status == SCAN_MORE:
                return -1
            s.needed = 0
        i += 1
    s.position = i
    if i < s.file_end and end < s.file_end:
        s.needed = min(<int64_t>RECORD_SIZE_MIN, s.file_end - i)
    return -1


# ------------------------------------------------------------------------------------------------------ for Python

LIMIT = SCAN_LIMIT
MORE = SCAN_MORE
BLANK = SCAN_BLANK
INVALID = SCAN_INVALID
NEW_QUEUE = SCAN_NEW_QUEUE
OUT_OF_SEQUENCE = SCAN_OUT_OF_SEQUENCE
BACK_IN_TIME = SCAN_BACK_IN_TIME
ENTRIES = SCAN_ENTRIES
OTHER_ENTRY = SCAN_OTHER_ENTRY
KEYS = SCAN_KEYS
OTHER_KEY = SCAN_OTHER_KEY


cdef class LogScanner:
    """One walk over the log. Set `position`, `limit` and `file_end`, call `run` with the bytes of that file, judge what it
    stops at, go on. With `compare_tags` tags codes are compared too (a due time must be one that some table of delay levels
    makes), and after `compare_keys` the index."""

    cdef scan_state s
    cdef list held              # the entries that each queue's pointer leads into
    cdef object data            # the bytes that `s.v` points into
    cdef uint32_t room
    cdef bytes keys             # the index entries that `s.keys` points into
    cdef bytes key_files        # and what `s.keys_files` does

    def __cinit__(self, *, bint check_checksum=True, bint follow_queues=True, bint in_time_order=False,
                  int64_t watermark=0, int64_t physic_timestamp=-1, bint compare_tags=False):
        memset(&self.s, 0, sizeof(scan_state))
        self.held = []
        self.s.check_checksum = check_checksum
        self.s.follow_queues = follow_queues
        self.s.in_time_order = in_time_order
        self.s.watermark = watermark
        self.s.physic_timestamp = physic_timestamp
        self.s.accepted = self.s.accepted_entry = self.s.accepted_keys = self.s.last_record = self.s.timed_end = -1
        self.s.compare_tags = compare_tags
        self.s.bucket_mask = 63
        self.s.buckets = <uint32_t*>PyMem_Calloc(64, sizeof(uint32_t))
        if self.s.buckets == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.s.buckets)
        PyMem_Free(self.s.queues)

    def run(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin):
        """Walks the first `length` bytes of `data`, which stand at `begin` in the log; gives the status it stopped with."""
        cdef int status
        self._check(data, length, begin)
        self.data = data
        with nogil:
            status = scan_run(&data[0], begin, begin + length, &self.s)
        return status

    def run_files(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin, int64_t file_bytes):
        """The same over files of `file_bytes` that stand in `data` one behind the other, the first one whole from `begin` on; goes
        from a blank to the next file as long as there is one. The walk must be in one of them."""
        cdef int status
        cdef int64_t end = begin + length
        if file_bytes <= 0 or length % file_bytes or length > data.shape[0] or self.s.file_end > end or (self.s.file_end - begin) % file_bytes \
                or self.s.position < self.s.file_end - file_bytes:
            raise ValueError(f"no file of {file_bytes} bytes ends at {self.s.file_end} in {length} bytes at {begin}")
        self._check(data, self.s.file_end - begin, begin)
        self.data = data
        with nogil:
            while True:
                status = scan_run(&data[0], begin, self.s.file_end, &self.s)
                if status != SCAN_BLANK or self.s.file_end >= end:
                    break
                self.s.position = self.s.file_end
                self.s.file_end += file_bytes
        return status

    def find(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin):
        """The next valid record at or behind `position` (which moves on): its place, -1 when these bytes have none; with
        `needed` > 0 they end too early to tell."""
        cdef int64_t found
        self._check(data, length, begin)
        self.data = data
        with nogil:
            found = scan_find(&data[0], begin, begin + length, &self.s)
        return found

    cdef int _check(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin) except -1:
        if not 0 < length <= data.shape[0] or begin < 0 or not begin <= self.s.position < begin + length \
                or begin + length > self.s.file_end:
            raise ValueError(f"position {self.s.position} is not in {length} bytes at {begin}, file end {self.s.file_end}")
        return 0

    @property
    def position(self):
        """Place in the log that the walk has come to."""
        return self.s.position

    def move(self, int64_t position, int64_t file_end):
        """Goes on at `position`, in the file that ends at `file_end`."""
        self.s.position = position
        self.s.file_end = file_end

    def step_over(self, int64_t position, int64_t file_end):
        """Goes on behind damage: the queues may have lost what it swallowed."""
        self.s.swallowed += position - self.s.position
        self.move(position, file_end)

    @property
    def limit(self):
        """No record that begins here or later."""
        return self.s.limit

    @limit.setter
    def limit(self, int64_t value):
        self.s.limit = value

    @property
    def watermark(self):
        """Below it the order of store timestamps is not looked at."""
        return self.s.watermark

    @watermark.setter
    def watermark(self, int64_t value):
        self.s.watermark = value

    @property
    def needed(self):
        """Bytes from `position` on that the next call must have at least."""
        return self.s.needed

    @property
    def reason(self):
        """RecordStatus of an invalid record."""
        return self.s.reason

    @property
    def wanted(self):
        """Queue offset of the entry that the status is about."""
        return self.s.wanted

    @property
    def slot(self):
        """Queue that the status is about."""
        return self.s.slot

    @property
    def timed_end(self):
        """End of the last record stored by the checkpoint's physic timestamp, -1 when there is none."""
        return self.s.timed_end

    @property
    def last_timestamp(self):
        """Newest store timestamp of the records walked, ms; 0 when there are none."""
        return self.s.last_timestamp

    @property
    def last_record(self):
        """Place of the last record walked, -1 when there is none."""
        return self.s.last_record

    @property
    def last_checksum(self):
        """Checksum field of that record."""
        return self.s.last_checksum

    @property
    def record_count(self):
        """Records walked."""
        return self.s.record_count

    def accept(self):
        """Takes queue offset and time of the record at `position` as they are."""
        self.s.accepted = self.s.position

    def accept_entry(self):
        """Takes the entry of the record at `position` as it is."""
        self.s.accepted_entry = self.s.position

    def compare_keys(self, int64_t at, int64_t limit, files=()):
        """From here on the index must hold each record's keys, as entries number `at` to before `limit` (counted over all
        files). `files` are (number of the first entry, begin timestamp in ms) of each file, for the entries' seconds."""
        cdef object table = array("q", [number for file in files for number in file])
        self.key_files = table.tobytes()
        self.s.keys_files = <const int64_t*><const char*>self.key_files
        self.s.keys_file_count = <int>(len(table) // 2)
        self.s.keys_file = 0
        self.s.compare_keys = True
        self.s.keys_at = at
        self.s.keys_limit = limit
        self.s.keys_begin = self.s.keys_end = 0

    def set_keys(self, bytes entries not None, int64_t begin):
        """Index entries, from number `begin` on."""
        self.keys = entries
        self.s.keys = <const uint8_t*><const char*>entries
        self.s.keys_begin = begin
        self.s.keys_end = begin + len(entries) // <int64_t>INDEX_ENTRY_BYTES

    def skip_keys(self, int64_t at):
        """Takes the keys of the record at `position` as they are; `at` is the next entry that is expected."""
        self.s.accepted_keys = self.s.position
        self.s.keys_at = at

    def stop_comparing_keys(self):
        """Leaves the index alone from here on."""
        self.s.compare_keys = False

    @property
    def keys_at(self):
        """Number of the next index entry that is expected."""
        return self.s.keys_at

    def record(self):
        """(topic, queue id, queue offset, size, store timestamp, magic, sys flag) of the record that the last call stopped at, as the
        bytes given to it have it now."""
        if self.data is None or self.s.v.topic == NULL:
            raise ValueError("no record was looked at")
        return (
            self.s.v.topic[:self.s.v.topic_len], self.s.v.queue_id, self.s.v.queue_offset, self.s.v.total_size,
            self.s.v.store_timestamp, self.s.v.magic, self.s.v.sys_flag,
        )

    def add_queue(self, bytes topic not None, int32_t queue_id, int64_t next, int64_t entries_limit, int64_t removed=0):
        """A queue whose next record must have queue offset `next` (-1: any) and which has entries up to `entries_limit`;
        records with a queue offset below `removed` have none, and none is asked for. Gives its slot."""
        cdef scan_queue* grown
        cdef scan_queue* queue
        if not 0 < len(topic) <= 127:
            raise ValueError(f"topic of {len(topic)} bytes")
        if self.s.queue_count == self.room:
            grown = <scan_queue*>PyMem_Realloc(self.s.queues, (2 * self.room + 64) * sizeof(scan_queue))
            if grown == NULL:
                raise MemoryError
            self.s.queues = grown
            self.room = 2 * self.room + 64
        queue = &self.s.queues[self.s.queue_count]
        memset(queue, 0, sizeof(scan_queue))
        memcpy(&queue.topic[0], <const uint8_t*><const char*>topic, len(topic))
        queue.topic_len = <int>len(topic)
        queue.queue_id = queue_id
        queue.hash = queue_hash(&queue.topic[0], queue.topic_len, queue_id)
        queue.next = next
        queue.first_offset = queue.first_physical = queue.missing = -1
        queue.entries_limit = entries_limit
        queue.removed = removed
        self.held.append(None)
        self.s.queue_count += 1
        if self.s.queue_count > self.s.bucket_mask:
            self._more_buckets()
        else:
            self._link(self.s.queue_count - 1)
        return self.s.queue_count - 1

    cdef void _link(self, uint32_t slot) noexcept:
        cdef scan_queue* queue = &self.s.queues[slot]
        queue.link = self.s.buckets[queue.hash & self.s.bucket_mask]
        self.s.buckets[queue.hash & self.s.bucket_mask] = slot + 1

    cdef _more_buckets(self):
        cdef uint32_t count = 4 * (self.s.bucket_mask + 1)
        cdef uint32_t slot
        cdef uint32_t* buckets = <uint32_t*>PyMem_Calloc(count, sizeof(uint32_t))
        if buckets == NULL:
            raise MemoryError
        PyMem_Free(self.s.buckets)
        self.s.buckets = buckets
        self.s.bucket_mask = count - 1
        for slot in range(self.s.queue_count):
            self._link(slot)

    cdef scan_queue* _queue(self, uint32_t slot) except NULL:
        if slot >= self.s.queue_count:
            raise IndexError(f"there is no queue {slot}")
        return &self.s.queues[slot]

    def set_entries(self, uint32_t slot, bytes entries not None, int64_t begin):
        """Consume queue entries of a queue, from queue offset `begin` on."""
        cdef scan_queue* queue = self._queue(slot)
        self.held[slot] = entries
        queue.entries = <const uint8_t*><const char*>entries
        queue.entries_begin = begin
        queue.entries_end = begin + len(entries) // <int64_t>QUEUE_ENTRY_BYTES

    def limit_entries(self, uint32_t slot, int64_t limit):
        """Entries of a queue from `limit` on are not compared any more."""
        self._queue(slot).entries_limit = limit

    def set_next(self, uint32_t slot, int64_t next):
        """Queue offset that the next record of a queue must have."""
        self._queue(slot).next = next

    def queue_next(self, uint32_t slot):
        return self._queue(slot).next

    def queue_first(self, uint32_t slot):
        """(queue offset, place) of the first record of a queue, -1 for both before there is one."""
        cdef scan_queue* queue = self._queue(slot)
        return queue.first_offset, queue.first_physical

    def queue_missing(self, uint32_t slot):
        """Place of the first record without a matching entry, -1 when there is none."""
        return self._queue(slot).missing

    def queue_entries_limit(self, uint32_t slot):
        return self._queue(slot).entries_limit

    def swallowed_since(self, uint32_t slot):
        """Bytes of damage stepped over since the last record of a queue."""
        return self.s.swallowed - self._queue(slot).swallowed


def leading_zeros(const uint8_t[::1] data):
    """How many bytes at the start of `data` are zero."""
    cdef Py_ssize_t i = 0
    cdef Py_ssize_t length = data.shape[0]
    cdef const uint8_t* p = &data[0] if length else NULL
    with nogil:
        while i + 8 <= length and load_be64(p + i) == 0:
            i += 8
        while i < length and p[i] == 0:
            i += 1
    return i


def trailing_zeros(const uint8_t[::1] data):
    """How many bytes at the end of `data` are zero."""
    cdef Py_ssize_t length = data.shape[0]
    cdef Py_ssize_t i = length
    cdef const uint8_t* p = &data[0] if length else NULL
    with nogil:
        while i >= 8 and load_be64(p + i - 8) == 0:
            i -= 8
        while i > 0 and p[i - 1] == 0:
            i -= 1
    return length - i
