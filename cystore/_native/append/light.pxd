"""Light queues (property_read.pxd) of a message that is appended. They are checked and counted before the lock. Under
the lock their next queue offsets become one more property of the record.
"""

from libc.stdint cimport int64_t, uint8_t

from cystore._native.layout cimport PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES, control_block, queue_entry
from cystore._native.record.property_read cimport LIGHT_OFFSET_DIGITS
from cystore._native.record.properties cimport property_buffer
from cystore._native.record.record_write cimport append_item

cdef enum:
    LIGHT_QUEUES_MAX = 256                                      # of one message; RocketMQ has no limit
    OFFSET_ROOM = LIGHT_OFFSET_DIGITS + 1                       # an offset and its comma
    PROPERTY_ROOM = PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES + 2  # the name, with the bytes before and behind it

# The queues of one message, under the lock.
cdef struct light_claims:
    int count
    queue_entry* entries[LIGHT_QUEUES_MAX]


cdef inline int light_room(const append_item* item) noexcept nogil:
    """Bytes behind a message's properties that are reserved for its offsets."""
    return PROPERTY_ROOM + item.light_count * OFFSET_ROOM if item.light_count else 0


# Reads the light queues of a message whose properties are the last in the buffer, and makes room behind them.
# `queues_max`: how many light queues the store may have. Raises MessageIllegalError, StoreFullError.
cdef int light_check(control_block* block, append_item* item, property_buffer* buffer, int64_t queues_max) except -1
# Checks the limit for the messages of a list together, after `light_check` of each and when `properties` is set.
cdef int light_check_list(control_block* block, const append_item* items, Py_ssize_t count,
                          int64_t queues_max) except -1
# Removes the queue offsets from properties that were copied from a record: the copy is in no light queue yet. Returns
# the new length.
cdef int light_without_offsets(uint8_t* properties, int length) noexcept nogil
# Under the lock: finds the queues, or adds them, and writes their next offsets behind the properties. False when no
# queue slot is left.
cdef bint light_prepare(control_block* block, append_item* item, light_claims* claims) noexcept nogil
cdef void light_claim(light_claims* claims) noexcept nogil
cdef void light_publish(light_claims* claims) noexcept nogil
# Wakes the threads that wait for one of the message's light queues. Called after the unlock.
cdef void light_wake(control_block* block, const append_item* item) noexcept nogil
