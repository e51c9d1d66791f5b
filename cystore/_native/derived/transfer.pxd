from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.layout cimport (
    DELAY_RUN_QUEUES, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT,
    TIMER_QUEUE_ID
)
from cystore._native.record.message cimport Message
from cystore._native.record.property_read cimport derive_due_time, property_find, property_view
from cystore._native.record.record_view cimport record_view, same_text

cdef enum TargetStatus:
    TARGET_OK = 0
    TARGET_NO_TOPIC = 1
    TARGET_RESERVED = 2     # a topic that the store writes for itself
    TARGET_BAD_QUEUE = 3

# Where a delayed message goes to. The pointers lead into its properties; length 0: it names none.
cdef struct transfer_target:
    property_view topic
    property_view queue
    int32_t queue_id

cdef int transfer_target_of(const record_view* v, transfer_target* target) noexcept nogil


cdef inline bint waits(const record_view* v) noexcept nogil:
    """Whether the record is in the topic of waiting messages."""
    return v.topic_len == SCHEDULE_TOPIC_BYTES \
        and same_text(v.topic, <const uint8_t*>SCHEDULE_TOPIC_TEXT, SCHEDULE_TOPIC_BYTES)


cdef inline int64_t carried_due(const record_view* v) noexcept nogil:
    """The due time of a record that was put with one or carried forward; 0 for any other one."""
    cdef property_view due
    if (v.queue_id < <int>DELAY_RUN_QUEUES and v.queue_id != <int>TIMER_QUEUE_ID) or not waits(v) or not property_find(
            v.properties, v.properties_len, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, &due):
        return 0
    return derive_due_time(due.value, due.value_len)


# The objects of the last copy: the next copy often has the same topic and hosts.
cdef class CopyMaker:
    cdef str topic
    cdef bytes born_host
    cdef bytes store_host
    cdef Message copy_of(self, const record_view* v, const transfer_target* target)
