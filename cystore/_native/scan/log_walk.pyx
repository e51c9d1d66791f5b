"""Walks the log from record to record, over bytes that were read, not mapped. Recovery, verify and scrub use it.

`walk_run` checks every record and compares it with its queues and the index. It stops at a difference with a status;
the caller decides (`LogWalker.accept`) and calls again. `walk_find` searches for the next record behind damage.
"""

from array import array

from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Realloc
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from cystore._native.layout cimport (
    INDEX_ENTRY_BYTES, QUEUE_ENTRY_BYTES, RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ, RECORD_SIZE_MIN,
    RECORD_SYS_FLAG_AT, load_be64, record_magic, record_physical_offset, takes_index_entry, takes_queue_offset
)
from cystore._native.memory.local_queues cimport fill_local_queue, link_local_queue
from cystore._native.scan.log_walk_record cimport (
    WALK_BACK_IN_TIME, WALK_BLANK, WALK_ENTRIES, WALK_INVALID, WALK_KEYS, WALK_LIMIT, WALK_MORE, WALK_NEW_QUEUE,
    WALK_OTHER_ENTRY, WALK_OTHER_KEY, WALK_OUT_OF_SEQUENCE, walk_follow, walk_follow_keys, walk_item, walk_queue,
    walk_state
)
from cystore._native.record.property_read cimport derive_begin, derived, light_place
from cystore._native.record.record_read cimport fetch_ahead, walk_begin
from cystore._native.record.record_view cimport record_view


cdef int walk_run(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil:
    """Continues from `position`; `p` holds the log's bytes [begin, end), of the file that ends at `file_end`."""
    cdef int status
    cdef const uint8_t* at
    cdef record_view v      # a local: the compiler can omit reads of unused fields
    cdef int64_t fetched = 0
    walk_begin(&v)
    while s.position < s.limit:
        at = p + (s.position - begin)
        if s.check_checksum:
            fetched = fetch_ahead(p, s.position - begin, fetched, end - begin)
        status = walk_item(at, end - s.position, s, &v)
        if status == WALK_LIMIT and s.in_time_order and s.position >= s.watermark \
                and v.store_timestamp < s.last_timestamp \
                and s.accepted != s.position:
            status = WALK_BACK_IN_TIME
        if status != WALK_LIMIT or s.follow_queues or s.compare_keys:
            s.v = v
            s.has_derived = False
        if status != WALK_LIMIT:
            return status
        if s.follow_queues and takes_queue_offset(v.sys_flag):
            status = walk_follow(s)
            if status != WALK_LIMIT:
                return status
        if s.compare_keys and takes_index_entry(v.sys_flag) and s.accepted_keys != s.position:
            status = walk_follow_keys(s)
            if status != WALK_LIMIT:
                # Queue offset, time and entry were checked already; the next call does not check them again.
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
    return WALK_LIMIT


cdef int64_t walk_find(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil:
    """The lowest log position from `position` on with a valid record of that physical offset, -1 if these bytes have
    none. `needed` > 0: the check at `position` needs that many bytes."""
    cdef int64_t i = s.position
    cdef const uint8_t* at
    cdef uint32_t magic
    cdef int status
    s.needed = 0
    while i + <int64_t>RECORD_SYS_FLAG_AT <= end:  # the bytes hold magic and physical offset
        at = p + (i - begin)
        magic = record_magic(at)
        if (magic == RECORD_MAGIC_CYSTORE or magic == RECORD_MAGIC_ROCKETMQ) and record_physical_offset(at) == i:
            s.position = i
            s.v.topic = NULL    # the previous record's topic may point into other bytes
            status = walk_item(at, end - i, s, &s.v)
            if status == WALK_LIMIT:
                s.needed = 0
                return i
            if status == WALK_MORE:
                return -1
            s.needed = 0
        i += 1
    s.position = i
    if i < s.file_end and end < s.file_end:
        s.needed = min(<int64_t>RECORD_SIZE_MIN, s.file_end - i)
    return -1


# ------------------------------------------------------------------------------------------------------ for Python

LIMIT = WALK_LIMIT
MORE = WALK_MORE
BLANK = WALK_BLANK
INVALID = WALK_INVALID
NEW_QUEUE = WALK_NEW_QUEUE
OUT_OF_SEQUENCE = WALK_OUT_OF_SEQUENCE
BACK_IN_TIME = WALK_BACK_IN_TIME
ENTRIES = WALK_ENTRIES
OTHER_ENTRY = WALK_OTHER_ENTRY
KEYS = WALK_KEYS
OTHER_KEY = WALK_OTHER_KEY


cdef class LogWalker:
    """One walk over the log. The caller sets `position`, `limit` and `file_end`, calls `run` with that file's bytes,
    handles the status and calls `run` again. With `compare_tags` the walk compares tags codes too (some table of delay
    levels must make the due time), and after `compare_keys` the index. With `stop_at_units` each entry with an extended
    unit is OTHER_ENTRY: the caller reads the unit."""

    cdef walk_state s
    cdef list held              # for each queue, the bytes of `entries`
    cdef object data            # the bytes that `s.v` points into
    cdef uint32_t room
    cdef bytes keys             # the bytes of `s.keys`
    cdef bytes key_files        # the bytes of `s.keys_files`

    def __cinit__(self, *, bint check_checksum=True, bint follow_queues=True, bint in_time_order=False,
                  int64_t watermark=0, int64_t physic_timestamp=-1, bint compare_tags=False,
                  bint stop_at_units=False):
        memset(&self.s, 0, sizeof(walk_state))
        self.held = []
        self.s.check_checksum = check_checksum
        self.s.follow_queues = follow_queues
        self.s.in_time_order = in_time_order
        self.s.watermark = watermark
        self.s.physic_timestamp = physic_timestamp
        self.s.part_at = self.s.accepted = self.s.accepted_entry = self.s.accepted_keys = -1
        self.s.last_record = self.s.timed_end = self.s.left_out = -1
        self.s.compare_tags = compare_tags
        self.s.stop_at_units = stop_at_units
        self.s.bucket_mask = 63
        self.s.buckets = <uint32_t*>PyMem_Calloc(64, sizeof(uint32_t))
        if self.s.buckets == NULL:
            raise MemoryError

    def __dealloc__(self):
        PyMem_Free(self.s.buckets)
        PyMem_Free(self.s.queues)

    def run(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin):
        """Walks the first `length` bytes of `data`, which stand at `begin` in the log; returns the status that stopped
        it."""
        cdef int status
        self._check(data, length, begin)
        self.data = data
        with nogil:
            status = walk_run(&data[0], begin, begin + length, &self.s)
        return status

    def run_files(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin, int64_t file_bytes):
        """The same over consecutive files of `file_bytes` in `data`, from `begin` on. At a blank the walk continues
        with the next file. `position` must be in these files."""
        cdef int status
        cdef int64_t end = begin + length
        if file_bytes <= 0 or length % file_bytes or length > data.shape[0] or self.s.file_end > end \
                or (self.s.file_end - begin) % file_bytes \
                or self.s.position < self.s.file_end - file_bytes:
            raise ValueError(f"no file of {file_bytes} bytes ends at {self.s.file_end} in {length} bytes at {begin}")
        self._check(data, self.s.file_end - begin, begin)
        self.data = data
        with nogil:
            while True:
                status = walk_run(&data[0], begin, self.s.file_end, &self.s)
                if status != WALK_BLANK or self.s.file_end >= end:
                    break
                self.s.position = self.s.file_end
                self.s.file_end += file_bytes
        return status

    def find(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin):
        """Log position of the next valid record from `position` on (which moves), -1 if these bytes have none. With
        `needed` > 0 the bytes end too early to decide."""
        cdef int64_t found
        self._check(data, length, begin)
        self.data = data
        with nogil:
            found = walk_find(&data[0], begin, begin + length, &self.s)
        return found

    cdef int _check(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin) except -1:
        if not 0 < length <= data.shape[0] or begin < 0 or not begin <= self.s.position < begin + length \
                or begin + length > self.s.file_end:
            raise ValueError(f"position {self.s.position} is not in {length} bytes at {begin}, file end "
                             f"{self.s.file_end}")
        return 0

    @property
    def position(self):
        """Log position that the walk has reached."""
        return self.s.position

    def move(self, int64_t position, int64_t file_end):
        """Continues at `position`, in the file that ends at `file_end`."""
        self.s.position = position
        self.s.file_end = file_end

    def step_over(self, int64_t position, int64_t file_end):
        """Continues behind damage. The queues may have lost records in it."""
        self.s.swallowed += position - self.s.position
        self.move(position, file_end)

    @property
    def limit(self):
        """The walk ends before a record that begins here or later."""
        return self.s.limit

    @limit.setter
    def limit(self, int64_t value):
        self.s.limit = value

    @property
    def watermark(self):
        """Below this log position the order of store timestamps is not checked."""
        return self.s.watermark

    @watermark.setter
    def watermark(self, int64_t value):
        self.s.watermark = value

    @property
    def needed(self):
        """How many bytes from `position` on the next call needs at least."""
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
        """Slot of the queue that the status is about."""
        return self.s.slot

    @property
    def timed_end(self):
        """End of the last record that was stored by the checkpoint's physic timestamp, -1 if there is none."""
        return self.s.timed_end

    @property
    def last_timestamp(self):
        """Highest store timestamp of the walked records, ms; 0 without records."""
        return self.s.last_timestamp

    @property
    def last_record(self):
        """Log position of the last walked record, -1 if there is none."""
        return self.s.last_record

    @property
    def last_checksum(self):
        """Checksum field of that record."""
        return self.s.last_checksum

    @property
    def record_count(self):
        """Number of walked records."""
        return self.s.record_count

    def accept(self):
        """Accepts queue offset and time of the record at `position`."""
        self.s.accepted = self.s.position
        self.s.accepted_part = self._part()

    cdef int _part(self) noexcept:
        return self.s.part if self.s.part_at == self.s.position else 0

    @property
    def in_light_queue(self):
        """Whether the status is about a light queue of the record."""
        return self._part() > 0

    def accept_entry(self):
        """Accepts the entry of the record at `position`."""
        self.s.accepted_entry = self.s.position
        self.s.accepted_entry_part = self._part()

    def leave_out(self, bint lost=False):
        """Leaves the record at `position` out of the queue that the status is about: its queue offset there is
        wrong. `lost`: the queue that it belongs to will lack it."""
        self.s.left_out = self.s.position
        self.s.left_out_part = self._part()
        if lost:
            self.s.swallowed += self.s.v.total_size

    def compare_keys(self, int64_t at, int64_t limit, files=()):
        """From now on the index must hold each record's keys, in entries [at, limit), counted over all files. `files`:
        (number of the first entry, begin timestamp in ms) of each file, for the entries' seconds."""
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
        """Sets index entries, from number `begin` on."""
        self.keys = entries
        self.s.keys = <const uint8_t*><const char*>entries
        self.s.keys_begin = begin
        self.s.keys_end = begin + len(entries) // <int64_t>INDEX_ENTRY_BYTES

    def skip_keys(self, int64_t at):
        """Accepts the keys of the record at `position`; `at` is the number of the next expected entry."""
        self.s.accepted_keys = self.s.position
        self.s.keys_at = at

    def stop_comparing_keys(self):
        """From now on the index is not compared."""
        self.s.compare_keys = False

    @property
    def keys_at(self):
        """Number of the next expected index entry."""
        return self.s.keys_at

    def record(self):
        """(topic, queue id, queue offset, size, store timestamp, magic, sys flag) of the record at which the last call
        stopped. If the status is about a light queue, the first three are of that queue. The topic comes from the
        call's bytes as they are now."""
        cdef light_place place
        cdef int32_t queue_id = self.s.v.queue_id
        if self.data is None or self.s.v.topic == NULL:
            raise ValueError("the walk has read no record")
        place.name, place.name_len, place.queue_offset = self.s.v.topic, self.s.v.topic_len, self.s.v.queue_offset
        if self._part():
            place, queue_id = self.s.place, 0
        return (
            place.name[:place.name_len], queue_id, place.queue_offset, self.s.v.total_size,
            self.s.v.store_timestamp, self.s.v.magic, self.s.v.sys_flag,
        )

    @property
    def tags_code(self):
        """The tags code of that record; None for a delayed record: its entry holds a due time."""
        cdef derived found
        if self.data is None or self.s.v.topic == NULL:
            raise ValueError("the walk has read no record")
        derive_begin(&self.s.v, NULL, 0, &found)
        return None if found.delayed else found.tags_code

    def add_queue(self, bytes topic not None, int32_t queue_id, int64_t next, int64_t entries_limit, int64_t removed=0):
        """Adds a queue and returns its slot. Its next record must have queue offset `next` (-1: any). It has entries up
        to `entries_limit`; the entries below `removed` were removed."""
        cdef walk_queue* grown
        cdef walk_queue* queue
        if not 0 < len(topic) <= 127:
            raise ValueError(f"topic: {len(topic)} bytes, not 1 to 127")
        if self.s.queue_count == self.room:
            grown = <walk_queue*>PyMem_Realloc(self.s.queues, (2 * self.room + 64) * sizeof(walk_queue))
            if grown == NULL:
                raise MemoryError
            self.s.queues = grown
            self.room = 2 * self.room + 64
        queue = &self.s.queues[self.s.queue_count]
        memset(queue, 0, sizeof(walk_queue))
        fill_local_queue(&queue.key, <const uint8_t*><const char*>topic, <int>len(topic), queue_id)
        queue.next = next
        queue.first_offset = queue.first_physical = queue.missing = -1
        queue.entries_limit = entries_limit
        queue.removed = removed
        self.held.append(None)
        self.s.queue_count += 1
        if self.s.queue_count > self.s.bucket_mask:
            self._more_buckets()
        else:
            link_local_queue(self.s.queues, sizeof(walk_queue), self.s.buckets, self.s.bucket_mask,
                             self.s.queue_count - 1)
        return self.s.queue_count - 1

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
            link_local_queue(self.s.queues, sizeof(walk_queue), buckets, count - 1, slot)

    cdef walk_queue* _queue(self, uint32_t slot) except NULL:
        if slot >= self.s.queue_count:
            raise IndexError(f"there is no queue {slot}")
        return &self.s.queues[slot]

    def set_entries(self, uint32_t slot, bytes entries not None, int64_t begin):
        """Sets consume queue entries of a queue, from queue offset `begin` on."""
        cdef walk_queue* queue = self._queue(slot)
        self.held[slot] = entries
        queue.entries = <const uint8_t*><const char*>entries
        queue.entries_begin = begin
        queue.entries_end = begin + len(entries) // <int64_t>QUEUE_ENTRY_BYTES

    def limit_entries(self, uint32_t slot, int64_t limit):
        """Entries of a queue from `limit` on are no longer compared."""
        self._queue(slot).entries_limit = limit

    def set_next(self, uint32_t slot, int64_t next):
        """Sets the queue offset that the next record of a queue must have."""
        self._queue(slot).next = next

    def queue_next(self, uint32_t slot):
        return self._queue(slot).next

    def queue_first(self, uint32_t slot):
        """(queue offset, log position) of the first record of a queue, -1 for both if there is none."""
        cdef walk_queue* queue = self._queue(slot)
        return queue.first_offset, queue.first_physical

    def queue_missing(self, uint32_t slot):
        """Log position of a queue's first record without a matching entry, -1 if there is none."""
        return self._queue(slot).missing

    def queue_entries_limit(self, uint32_t slot):
        return self._queue(slot).entries_limit

    def swallowed_since(self, uint32_t slot):
        """Bytes of damage that the walk stepped over since the last record of a queue."""
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
