from libc.stdint cimport int32_t, uint8_t


# A growing buffer for the property strings of one call: the first bytes may be the caller's stack.
cdef struct property_buffer:
    uint8_t* start
    int32_t length
    int32_t capacity
    bint on_heap            # `start` came from malloc and belongs to the buffer

cdef int property_room(property_buffer* buffer, Py_ssize_t more) except -1
# Appends one message's property string and returns its length. Raises MessageIllegalError.
cdef int put_properties(property_buffer* buffer, object keys, object tags, object properties, object unique_key) except -1
# Adds to the property string that began at `begin` how long the message is to be delayed, and where it goes then (no topic:
# that is said elsewhere). Returns its length.
cdef int put_delay(property_buffer* buffer, int32_t begin, int32_t level, const uint8_t* topic, int32_t topic_len,
                   int32_t queue_id) except -1
