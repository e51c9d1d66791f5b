"""Light queues of a message that is appended; see light.pxd."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy, memmove

from cystore._native.layout cimport (
    LMQ_PREFIX_BYTES, PROPERTIES_BYTES_MAX, PROPERTY_END, PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_DISPATCH_BYTES, PROPERTY_INNER_MULTI_QUEUE_OFFSET, PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES,
    PROPERTY_NAME_END, control_block, queue_entry, takes_queue_offset
)
from cystore._native.memory.atomics cimport load_i64, load_u32, store_i64
from cystore._native.memory.locks cimport control_wake_queue
from cystore._native.memory.queue_table cimport control_add_queue, control_find_queue, control_slot
from cystore._native.record.properties cimport property_buffer, property_room, put_decimal
from cystore._native.record.property_read cimport LIGHT_SEPARATOR, light_name, property_find, property_view
from cystore._native.record.record_write cimport append_item, failpoint

from cystore.errors import MessageIllegalError, StoreClosedError, StoreFullError

cdef enum:
    NO_FILES = -2       # queue.pyx: all files of the queue were removed


cdef inline bint _next_name(const uint8_t** at, const uint8_t* end, const uint8_t** name, int* length) noexcept nogil:
    """The next of the names in a property's value."""
    cdef const uint8_t* begin = at[0]
    cdef const uint8_t* name_end
    if begin > end:
        return False
    name_end = <const uint8_t*>memchr(begin, LIGHT_SEPARATOR, end - begin)
    if name_end == NULL:
        name_end = end
    name[0] = begin
    length[0] = <int>(name_end - begin)
    at[0] = name_end + 1
    return True


cdef uint32_t _light_known(control_block* block) noexcept nogil:
    """The number of light queues, without queues whose files were removed."""
    cdef uint32_t slot, count = 0
    cdef queue_entry* entry
    for slot in range(min(load_u32(&block.queue_count), block.max_queues)):
        entry = control_slot(block, slot)
        if light_name(<const uint8_t*>&entry.topic[0], entry.topic_bytes) and entry.queue_id == 0 \
                and load_i64(&entry.allocated) != NO_FILES:
            count += 1
    return count


cdef int light_check(control_block* block, append_item* item, property_buffer* buffer, int64_t queues_max) except -1:
    cdef property_view found
    cdef const uint8_t* start = buffer.start + buffer.length - item.properties_len
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* name
    cdef const uint8_t* earlier
    cdef const uint8_t* earlier_name
    cdef int length = 0, earlier_len = 0, new_queues = 0
    found.value, found.value_len = NULL, 0
    if block == NULL:
        raise StoreClosedError("the store was closed meanwhile")
    if item.properties_len <= PROPERTY_INNER_MULTI_DISPATCH_BYTES \
            or not property_find(start, item.properties_len, PROPERTY_INNER_MULTI_DISPATCH,
                                 PROPERTY_INNER_MULTI_DISPATCH_BYTES, &found):
        return 0
    if not takes_queue_offset(item.sys_flag):
        _refuse("a prepared or rolled back message of a transaction is in no queue")
    item.light_at = <int32_t>(found.value - start)
    item.light_len = found.value_len
    at, end = found.value, found.value + found.value_len
    while _next_name(&at, end, &name, &length):
        if not light_name(name, length):
            _refuse(f"{name[:length].decode('utf-8', 'replace')!r} must be %LMQ% and 1 to {127 - LMQ_PREFIX_BYTES} "
                    "letters, digits, %, |, _ and -; commas separate several")
        if item.light_count == LIGHT_QUEUES_MAX:
            _refuse(f"at most {LIGHT_QUEUES_MAX} light queues of a message")
        earlier = found.value
        while _next_name(&earlier, name - 1, &earlier_name, &earlier_len):
            if earlier_len == length and memcmp(earlier_name, name, length) == 0:
                _refuse(f"{name[:length].decode()} is named twice")
        if item.queue_id == 0 and item.topic_len == length and memcmp(item.topic, name, length) == 0:
            _refuse(f"{name[:length].decode()} is the message's own queue")
        new_queues += control_find_queue(block, name, length, 0) == NULL
        item.light_count += 1
    if item.properties_len + light_room(item) > <int>PROPERTIES_BYTES_MAX:
        _refuse(f"the properties have up to {item.properties_len + light_room(item)} bytes with the queue offsets, at "
                f"most {PROPERTIES_BYTES_MAX}")
    # Walks over all slots only if there could be too many light queues.
    if new_queues and new_queues + load_u32(&block.queue_count) > queues_max \
            and new_queues + _light_known(block) > queues_max:
        raise StoreFullError(f"the store has {_light_known(block)} light queues, and the message makes "
                             f"{new_queues} more; at most max_lmq_consume_queue_num = {queues_max}")
    property_room(buffer, light_room(item))
    item.light_base = item.properties_len
    return 0


cdef int light_check_list(control_block* block, const append_item* items, Py_ssize_t count,
                          int64_t queues_max) except -1:
    cdef const uint8_t* at
    cdef const uint8_t* end
    cdef const uint8_t* name
    cdef int length = 0
    cdef int64_t total = 0
    cdef Py_ssize_t i
    cdef set new
    if block == NULL:  # other threads ran after the checks of the messages
        raise StoreClosedError("the store was closed meanwhile")
    with nogil:
        for i in range(count):
            total += items[i].light_count
    if total == 0 or total + load_u32(&block.queue_count) <= queues_max:
        return 0
    new = set()
    for i in range(count):
        at, end = items[i].properties + items[i].light_at, items[i].properties + items[i].light_at + items[i].light_len
        while items[i].light_count and _next_name(&at, end, &name, &length):
            if control_find_queue(block, name, length, 0) == NULL:
                new.add(name[:length])
    if new and len(new) + <int64_t>_light_known(block) > queues_max:
        raise StoreFullError(f"the store has {_light_known(block)} light queues, and the messages make {len(new)} "
                             f"more; at most max_lmq_consume_queue_num = {queues_max}")
    return 0


cdef int light_without_offsets(uint8_t* properties, int length) noexcept nogil:
    cdef property_view found
    cdef const uint8_t* begin
    cdef const uint8_t* end
    while length > PROPERTY_ROOM and property_find(properties, length, PROPERTY_INNER_MULTI_QUEUE_OFFSET,
                                                   PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES, &found):
        begin, end = found.name, found.value + found.value_len
        if end < properties + length:
            end += 1
        elif begin > properties:
            begin -= 1
        memmove(<uint8_t*>begin, end, properties + length - end)
        length -= <int>(end - begin)
    return length


cdef int _refuse(str reason) except -1:
    raise MessageIllegalError(f"properties['INNER_MULTI_DISPATCH']: {reason}")


cdef bint light_prepare(control_block* block, append_item* item, light_claims* claims) noexcept nogil:
    cdef uint8_t* to = <uint8_t*>item.properties + item.light_base
    cdef const uint8_t* at = item.properties + item.light_at
    cdef const uint8_t* end = at + item.light_len
    cdef const uint8_t* name
    cdef queue_entry* entry
    cdef int length = 0
    to[0] = PROPERTY_END
    memcpy(to + 1, PROPERTY_INNER_MULTI_QUEUE_OFFSET, PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES)
    to += 1 + PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES
    to[0] = PROPERTY_NAME_END
    to += 1
    claims.count = 0
    while _next_name(&at, end, &name, &length):
        entry = control_find_queue(block, name, length, 0)
        if entry == NULL:
            entry = control_add_queue(block, name, length, 0)
            if entry == NULL:
                return False
            failpoint("append.light_added")
        if claims.count:
            to[0] = LIGHT_SEPARATOR
            to += 1
        to = put_decimal(to, entry.claimed)
        claims.entries[claims.count] = entry
        claims.count += 1
    item.size += <int32_t>(to - item.properties) - item.properties_len
    item.properties_len = <int32_t>(to - item.properties)
    return True


cdef void light_claim(light_claims* claims) noexcept nogil:
    cdef int i
    for i in range(claims.count):
        store_i64(&claims.entries[i].claimed, claims.entries[i].claimed + 1)  # release; read under the append lock
    failpoint("append.light_claimed")


cdef void light_publish(light_claims* claims) noexcept nogil:
    cdef int i
    for i in range(claims.count):
        store_i64(&claims.entries[i].next, claims.entries[i].claimed)  # release; acquire in queue.pxd, queue_reader.pyx
        failpoint("append.light_next")


cdef void light_wake(control_block* block, const append_item* item) noexcept nogil:
    cdef const uint8_t* at = item.properties + item.light_at
    cdef const uint8_t* end = at + item.light_len
    cdef const uint8_t* name
    cdef queue_entry* entry
    cdef int length = 0
    while _next_name(&at, end, &name, &length):
        entry = control_find_queue(block, name, length, 0)
        if entry != NULL:
            control_wake_queue(entry)
