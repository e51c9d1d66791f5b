"""Walking the log from record to record over bytes that were read, not mapped: recovery, verify and scrub.

`walk_run` checks every record and compares it with what its queue expects; whatever is not as expected stops it with
a status, and the caller judges (`LogWalker.accept`) and calls again. `walk_find` looks for the next record behind
damage.
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
from cystore._native.record.record_read cimport walk_begin
from cystore._native.record.record_view cimport record_view


cdef int walk_run(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil:
    """Goes on from `position`; `p` holds the log's bytes [begin, end), of the file that ends at `file_end`."""
    cdef int status
    cdef const uint8_t* at
    cdef record_view v      # of its own: fields that are not asked for are not even read
    walk_begin(&v)
    while s.position < s.limit:
        at = p + (s.position - begin)
        status = walk_item(at, end - s.position, s, &v)
        if status == WALK_LIMIT and s.in_time_order and s.position >= s.watermark \
                and v.store_timestamp < s.last_timestamp \
                and s.accepted != s.position:
            status = WALK_BACK_IN_TIME
        if status != WALK_LIMIT or s.follow_queues or s.compare_keys:
            s.v = v
        if status != WALK_LIMIT:
            return status
        if s.follow_queues and takes_queue_offset(v.sys_flag):
            status = walk_follow(s)
            if status != WALK_LIMIT:
                return status
        if s.compare_keys and takes_index_entry(v.sys_flag) and s.accepted_keys != s.position:
            status = walk_follow_keys(s)
            if status != WALK_LIMIT:
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
    return WALK_LIMIT


cdef int64_t walk_find(const uint8_t* p, int64_t begin, int64_t end, walk_state* s) noexcept nogil:
    """The lowest place at or behind `position` where a valid record stands at its own offset, -1 when there is none in
    these bytes. `needed` > 0: `position` is a place that cannot be judged without that many bytes."""
    cdef int64_t i = s.position
    cdef const uint8_t* at
    cdef uint32_t magic
    cdef int status
    s.needed = 0
    while i + <int64_t>RECORD_SYS_FLAG_AT <= end:  # magic and physical offset are at hand
        at = p + (i - begin)
        magic = record_magic(at)
        if (magic == RECORD_MAGIC_CYSTORE or magic == RECORD_MAGIC_ROCKETMQ) and record_physical_offset(at) == i:
            s.position = i
            s.v.topic = NULL    # that of the record before may be of other bytes
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
    """One walk over the log. Set `position`, `limit` and `file_end`, call `run` with the bytes of that file, judge
    what it stops at, go on. With `compare_tags` tags codes are compared too (a due time must be one that some table
    of delay levels makes), and after `compare_keys` the index. With `stop_at_units` each entry with an extended unit is
    OTHER_ENTRY: the caller reads the unit."""

    cdef walk_state s
    cdef list held              # the entries that each queue's pointer leads into
    cdef object data            # the bytes that `s.v` points into
    cdef uint32_t room
    cdef bytes keys             # the index entries that `s.keys` points into
    cdef bytes key_files        # and what `s.keys_files` does

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
        self.s.last_record = self.s.timed_end = -1
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
        """Walks the first `length` bytes of `data`, which stand at `begin` in the log; gives the status it stopped
        with."""
        cdef int status
        self._check(data, length, begin)
        self.data = data
        with nogil:
            status = walk_run(&data[0], begin, begin + length, &self.s)
        return status

    def run_files(self, const uint8_t[::1] data, Py_ssize_t length, int64_t begin, int64_t file_bytes):
        """The same over files of `file_bytes` that stand in `data` one behind the other, the first one whole from
        `begin` on; goes from a blank to the next file as long as there is one. The walk must be in one of them."""
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
        """The next valid record at or behind `position` (which moves on): its place, -1 when these bytes have none;
        with `needed` > 0 they end too early to tell."""
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
        self.s.accepted_part = self._part()

    cdef int _part(self) noexcept:
        return self.s.part if self.s.part_at == self.s.position else 0

    @property
    def in_light_queue(self):
        """Whether the queue that the status is about is a light one of the record."""
        return self._part() > 0

    def accept_entry(self):
        """Takes the entry of the record at `position` as it is."""
        self.s.accepted_entry = self.s.position
        self.s.accepted_entry_part = self._part()

    def compare_keys(self, int64_t at, int64_t limit, files=()):
        """From here on the index must hold each record's keys, as entries number `at` to before `limit` (counted over
        all files). `files` are (number of the first entry, begin timestamp in ms) of each file, for the entries'
        seconds."""
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
        """(topic, queue id, queue offset, size, store timestamp, magic, sys flag) of the record that the last call
        stopped at, as the bytes given to it have it now. The first three are those of the light queue that the status
        is about."""
        cdef light_place named
        cdef int32_t queue_id = self.s.v.queue_id
        if self.data is None or self.s.v.topic == NULL:
            raise ValueError("no record was looked at")
        named.name, named.name_len, named.queue_offset = self.s.v.topic, self.s.v.topic_len, self.s.v.queue_offset
        if self._part():
            named, queue_id = self.s.named, 0
        return (
            named.name[:named.name_len], queue_id, named.queue_offset, self.s.v.total_size,
            self.s.v.store_timestamp, self.s.v.magic, self.s.v.sys_flag,
        )

    @property
    def tags_code(self):
        """The tags code of that record; None for a delayed one, whose entry holds a due time."""
        cdef derived found
        if self.data is None or self.s.v.topic == NULL:
            raise ValueError("no record was looked at")
        derive_begin(&self.s.v, NULL, 0, &found)
        return None if found.delayed else found.tags_code

    def add_queue(self, bytes topic not None, int32_t queue_id, int64_t next, int64_t entries_limit, int64_t removed=0):
        """A queue whose next record must have queue offset `next` (-1: any) and which has entries up to
        `entries_limit`; records with a queue offset below `removed` have none, and none is asked for. Gives its
        slot."""
        cdef walk_queue* grown
        cdef walk_queue* queue
        if not 0 < len(topic) <= 127:
            raise ValueError(f"topic of {len(topic)} bytes")
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
        """Consume queue entries of a queue, from queue offset `begin` on."""
        cdef walk_queue* queue = self._queue(slot)
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
        cdef walk_queue* queue = self._queue(slot)
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
