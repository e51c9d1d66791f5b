from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t, uintptr_t
from libc.string cimport memcpy

from cystore._native.append.append cimport FORBID_WRITING, NEEDS_LEASE, append_target
from cystore._native.memory.atomics cimport clock_coarse_ms, load_i64
from cystore._native.memory.control cimport Control, PLACE_LOOK_MS
from cystore._native.layout cimport (
    HOST_V4_BYTES, SYS_FLAG_BORN_HOST_V6, SYS_FLAG_STORE_HOST_V6, queue_entry
)
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.argument_checks cimport exact_whole
from cystore._native.record.message cimport PutResult
from cystore._native.record.record_write cimport append_item

from cystore.errors import MessageIllegalError

# The keyword arguments of `put`, in their order.
cdef enum:
    PUT_QUEUE_ID
    PUT_KEYS
    PUT_TAGS
    PUT_PROPERTIES
    PUT_FLAG
    PUT_FLUSH
    PUT_UNIQUE_KEY
    PUT_DELAY_LEVEL
    PUT_BUSY_TIMEOUT_MS
    PUT_EXPIRES_AT_MS
    PUT_DELIVER_AT_MS
    PUT_DELAY_MS
    PUT_KEYWORDS

cdef enum:
    FLUSH_SYNC = 1              # waits until the message is on the disk
    FLUSH_REPLICATED = 2        # waits until a slave has the message
    SPECIAL_TIMED = 1           # it waits until a time of its own
    SPECIAL_OTHER = 2           # not for the fast paths

# The other keyword arguments of a put. The caller owns the objects.
cdef struct put_options:
    PyObject* properties
    PyObject* unique_key
    int64_t busy_ms
    int64_t expires_at_ms   # 0: never
    int64_t delay           # of PutArguments
    int32_t queue_id
    int32_t flag
    int32_t delay_level
    int flush               # FLUSH_SYNC, FLUSH_REPLICATED; 0: does not wait
    int special             # SPECIAL_TIMED, SPECIAL_OTHER; 0: for the fast path

cdef enum:
    LARGE_BODY_BYTES = 16 * 1024    # the checksum of a body this long is computed before the lock
    TOPIC_CACHE = 64
    TAIL_BYTES = 384                # then a cached_topic has 512 bytes, and a shift finds its place
    TAG_BYTES = 64                  # room for a tag's property; a longer tag does not take the fast path

# A topic that was used lately, found by the identity of its text. A reference to the text keeps its bytes.
cdef struct cached_topic:
    PyObject* topic
    const uint8_t* text
    int32_t length
    int32_t queue_id
    queue_entry* entry              # NULL: not known yet
    PyObject* fast                  # the topic, when the fast path may take it; else NULL
    uint64_t before_tail            # 0
    uint8_t[TAIL_BYTES] tail        # the end of the topic's records, behind the body, with room for short properties
    PyObject* tag                   # the tag that was used last, a reference
    int32_t tag_length
    uint8_t[TAG_BYTES] tag_property  # its property, as it follows a key


# The fields of an Appender that the fast path needs, too.
cdef class FastAppender:
    cdef append_target target
    cdef Control control
    cdef MappedFile segment
    cdef readonly object policy
    cdef bytes store_host
    cdef append_item blank          # the first state of an item of `put`: our host, nothing else
    cdef int64_t fast_body_bytes   # the longest body of the fast path; less than 0: none
    cdef int64_t file_bytes
    cdef int32_t max_body_bytes
    cdef readonly PutResult last_result  # of the fast path; used again if the caller dropped it
    cdef put_options defaults       # the options of a put without these arguments
    cdef int32_t delay_levels
    cdef int64_t delay_max_ms       # of deliver_at_ms and delay_ms
    cdef bint timed                 # the manifest says that messages may wait until a time of their own
    cdef int64_t look_ms            # from then on, a put with a time looks whether anybody delivers
    cdef int64_t light_queues_max   # 0: messages have no light queues
    cdef object store_put        # the store's `put`, for keywords that only it knows
    cdef uint64_t place_ticks       # the counter when an append last saw that the store is at its place
    cdef uint64_t place_for         # no append looks again for so many ticks; 0 until the counter is calibrated
    cdef Py_ssize_t active
    cdef list callers            # thread ids of the active calls
    cdef cached_topic topics[TOPIC_CACHE]
    # Checks the keyword arguments; `values` holds all of them, in the order of PUT_QUEUE_ID and so on.
    cdef int read_options(self, PyObject** values, put_options* options) except -1
    # Appends one message of any kind, past all obstacles.
    cdef PutResult put_any(self, object topic, object body, PyObject* keys, PyObject* tags, const put_options* options)
    # Reports a slow put to the policy.
    cdef int report_slow_put(self) except -1
    # Returns when the message is durable, or replicated.
    cdef int sync_result(self, PutResult result, int flush) except -1


cdef inline bint at_its_place(FastAppender self, uint64_t ticks) noexcept:
    """Whether the store's path led to its directory a moment ago, by the stamp of the Control, which all calls share. A
    look at the coarse clock for each put would cost 5 % of it, so an appender notes how long the stamp is good, in
    ticks of the counter that the put has read anyway."""
    cdef int64_t left_ms
    if ticks - self.place_ticks < self.place_for:
        return True
    left_ms = PLACE_LOOK_MS - (clock_coarse_ms() - load_i64(&self.control.place_ms))
    self.place_ticks = ticks
    self.place_for = <uint64_t>left_ms * self.target.clock.ticks_per_ms if left_ms > 0 else 0
    return left_ms > 0


cdef inline uint32_t forbidden(int flush) noexcept:
    """The flags that forbid a put with this flush, and whether it needs a lease."""
    return FORBID_WRITING | (NEEDS_LEASE if flush & FLUSH_REPLICATED else 0)


cdef str exact_topic(object topic)
# Refuses a topic that the store writes for itself (`own_topic`).
cdef int refuse_own(const append_item* item) except -1


cdef inline cached_topic* topic_place(FastAppender self, PyObject* topic, int32_t queue_id) noexcept:
    """The cache entry of a topic, if the topic was used lately."""
    return &self.topics[(<uintptr_t>topic >> 5 ^ <uint32_t>queue_id) & (TOPIC_CACHE - 1)]


cdef inline void place_topic(cached_topic* cached, PyObject* topic, const uint8_t* text, int32_t length,
                             int32_t queue_id) noexcept:
    """Puts a valid topic into its cache entry. The caller sets the queue."""
    Py_XINCREF(topic)
    Py_XDECREF(cached.topic)
    cached.topic = topic
    cached.text = text
    cached.length = length
    cached.queue_id = queue_id
    cached.tail[0] = <uint8_t>length
    memcpy(&cached.tail[1], text, length)


cdef inline void set_born_host(append_item* item, const uint8_t* packed, int32_t length) noexcept:
    item.born_host = packed
    item.born_host_len = length
    if length != <int32_t>HOST_V4_BYTES:
        item.sys_flag |= <int32_t>SYS_FLAG_BORN_HOST_V6


cdef inline void set_store_host(append_item* item, bytes packed) noexcept:
    item.store_host = <const uint8_t*>PyBytes_AS_STRING(packed)
    item.store_host_len = <int32_t>PyBytes_GET_SIZE(packed)
    if item.store_host_len != <int32_t>HOST_V4_BYTES:
        item.sys_flag |= <int32_t>SYS_FLAG_STORE_HOST_V6


cdef inline int32_t int32_of(str field, object value, int64_t low) except? -1:
    return <int32_t>exact_whole(field, value, low, 0x7FFFFFFF, MessageIllegalError)
