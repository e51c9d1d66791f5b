"""The copy of a delayed message that leaves its queue: for its own topic, or for another queue of its level.

The copy names its source in the property DELAY_SOURCE, so the log says which messages have left
(cystore/services/delay/delivery_progress.py). A carried message has its due time in DELAY_DUE.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize, PyBytes_GET_SIZE
from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

from cystore._native.layout cimport (
    PROPERTIES_BYTES_MAX, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, PROPERTY_DELAY_SOURCE,
    PROPERTY_DELAY_SOURCE_BYTES, PROPERTY_END, PROPERTY_NAME_END, PROPERTY_REAL_QID, PROPERTY_REAL_QID_BYTES,
    PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES, own_topic
)
from cystore._native.record.message cimport Message, message_copy, message_view
from cystore._native.record.properties cimport property_buffer, property_room, put_decimal
from cystore._native.record.property_read cimport property_is, property_next, property_view
from cystore._native.record.record_view cimport record_view, same_text

from cystore._native.record.properties import changed_properties
from cystore.errors import MessageIllegalError

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    const void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    str PyUnicode_DecodeUTF8(const char* text, Py_ssize_t length, const char* errors)

cdef enum:
    SHORT = 1024        # bytes of properties that need no memory from the heap
    SOURCE_BYTES = 96   # of four numbers, and what is between them
    SEPARATOR = 58      # a colon

cdef str SOURCE = PROPERTY_DELAY_SOURCE.decode()


cdef inline bint _queue_id_of(const property_view* queue, int32_t* queue_id) noexcept nogil:
    """Reads a queue id, digits only. False for anything else, and for a number that is none."""
    cdef int64_t value = 0
    cdef int i
    for i in range(queue.value_len):
        if not c'0' <= queue.value[i] <= c'9':
            return False
        value = value * 10 + (queue.value[i] - c'0')
        if value > INT32_MAX:
            return False
    queue_id[0] = <int32_t>value
    return queue.value_len > 0


cdef int transfer_target_of(const record_view* v, transfer_target* target) noexcept nogil:
    """Finds the target in the properties. TARGET_OK, or what is wrong with it."""
    cdef const uint8_t* at = v.properties
    cdef property_view pair
    target.topic.value_len = target.queue.value_len = 0
    while property_next(&at, v.properties + v.properties_len, &pair):
        if property_is(&pair, PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES):
            target.topic = pair
        elif property_is(&pair, PROPERTY_REAL_QID, PROPERTY_REAL_QID_BYTES):
            target.queue = pair
    if target.topic.value_len == 0:
        return TARGET_NO_TOPIC
    if own_topic(target.topic.value, target.topic.value_len):
        return TARGET_RESERVED
    return TARGET_OK if _queue_id_of(&target.queue, &target.queue_id) else TARGET_BAD_QUEUE


cdef inline str _text(const property_view* pair):
    return PyUnicode_DecodeUTF8(<const char*>pair.value, pair.value_len, "replace")


cdef inline uint8_t* _put_source(uint8_t* to, const record_view* v) noexcept nogil:
    to = put_decimal(to, v.queue_id)
    to[0] = SEPARATOR
    to = put_decimal(to + 1, v.queue_offset)
    to[0] = SEPARATOR
    to = put_decimal(to + 1, v.physical_offset)
    to[0] = SEPARATOR
    return put_decimal(to + 1, v.store_timestamp)


cdef inline bint _named(const uint8_t* pair, int64_t length, const char* name, int64_t name_len) noexcept nogil:
    """Whether a stored pair, perhaps without a value, has that name."""
    return length >= name_len and memcmp(pair, name, name_len) == 0 \
        and (length == name_len or pair[name_len] == PROPERTY_NAME_END)


cdef inline uint8_t* _put_name(uint8_t* to, const uint8_t* begin, const char* name, int64_t length) noexcept nogil:
    """Begins one more pair."""
    if to > begin:
        to[0] = PROPERTY_END
        to += 1
    memcpy(to, name, length)
    to[length] = PROPERTY_NAME_END
    return to + length + 1


cdef int64_t _put_properties(uint8_t* begin, const record_view* v, bint keeps_due, int64_t due_ms,
                             bint named) noexcept nogil:
    """Writes the properties of a copy and returns their length: those of the record without the notes of an earlier
    transfer, then the new notes. There is room for SOURCE_BYTES, and for both names, beside the record's own."""
    cdef const uint8_t* at = v.properties
    cdef const uint8_t* end = v.properties + v.properties_len
    cdef const uint8_t* pair_end
    cdef uint8_t* to = begin
    cdef int64_t length
    while at < end:
        pair_end = <const uint8_t*>memchr(at, PROPERTY_END, end - at)
        if pair_end == NULL:
            pair_end = end
        length = pair_end - at
        if length and not _named(at, length, PROPERTY_DELAY_SOURCE, PROPERTY_DELAY_SOURCE_BYTES) \
                and (keeps_due or not _named(at, length, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES)):
            if to > begin:
                to[0] = PROPERTY_END
                to += 1
            memcpy(to, at, length)
            to += length
        at = pair_end + 1
    if due_ms:
        to = put_decimal(_put_name(to, begin, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES), due_ms)
    if named:
        to = _put_source(_put_name(to, begin, PROPERTY_DELAY_SOURCE, PROPERTY_DELAY_SOURCE_BYTES), v)
    return to - begin


cdef bytes _properties(const record_view* v, int64_t due_ms, bint named):
    """The properties of a copy; None if they are too long with the name of the source."""
    cdef property_buffer buffer
    cdef uint8_t[SHORT] room
    cdef int64_t length
    buffer.start = room
    buffer.length = 0
    buffer.capacity = SHORT
    buffer.on_heap = buffer.expires = False
    property_room(&buffer, v.properties_len + <Py_ssize_t>(
        PROPERTY_DELAY_DUE_BYTES + PROPERTY_DELAY_SOURCE_BYTES + 2 * SOURCE_BYTES))
    try:
        length = _put_properties(buffer.start, v, due_ms == 0 and carried_due(v) == 0, due_ms, named)
        if named and length > <int64_t>PROPERTIES_BYTES_MAX:
            return None
        return PyBytes_FromStringAndSize(<const char*>buffer.start, length)
    finally:
        if buffer.on_heap:
            free(buffer.start)


cdef inline bytes _again(bytes known, const uint8_t* start, int length):
    """Some bytes as an object: the known one if it is the same."""
    if known is not None and PyBytes_GET_SIZE(known) == length \
            and same_text(<const uint8_t*>PyBytes_AS_STRING(known), start, length):
        return known
    return PyBytes_FromStringAndSize(<const char*>start, length)


@cython.final
@cython.auto_pickle(False)
cdef class CopyMaker:
    """Makes the copies of one batch."""

    cdef Message copy_of(self, const record_view* v, const transfer_target* target):
        """The copy for the message's own topic, with the name of its source if it has room for that."""
        cdef bytes properties = _properties(v, 0, True)
        cdef int length = target.topic.value_len
        if properties is None:
            properties = _properties(v, 0, False)
        if self.topic is None or not PyUnicode_IS_COMPACT_ASCII(self.topic) \
                or PyUnicode_GET_LENGTH(self.topic) != length \
                or not same_text(<const uint8_t*>PyUnicode_DATA(self.topic), target.topic.value, length):
            self.topic = _text(&target.topic)
        self.born_host = _again(self.born_host, v.born_host, v.born_host_len)
        self.store_host = _again(self.store_host, v.store_host, v.store_host_len)
        return message_copy(v, self.topic, target.queue_id, properties, self.born_host, self.store_host)


cdef record_view _stored(Message message) except *:
    if message.source is None:
        raise MessageIllegalError("the source must be a stored message")
    return message_view(message)


def target_of(Message message not None):
    """Topic and queue id that a delayed message goes to. Raises ValueError."""
    cdef record_view v = _stored(message)
    cdef transfer_target target
    cdef int status = transfer_target_of(&v, &target)
    if status == TARGET_NO_TOPIC:
        raise ValueError("it names no REAL_TOPIC")
    if status == TARGET_RESERVED:
        raise ValueError(f"REAL_TOPIC is {_text(&target.topic)}")
    if status == TARGET_BAD_QUEUE:
        raise ValueError(f"REAL_QID is {_text(&target.queue)!r}")
    return _text(&target.topic), target.queue_id


def delivered_copy(Message message not None):
    """The copy of a due message for its own topic, with the name of its source if it has room for that. Raises
    ValueError for a message without a target."""
    cdef record_view v = _stored(message)
    cdef transfer_target target
    if transfer_target_of(&v, &target) != TARGET_OK:
        target_of(message)  # raises
    return CopyMaker().copy_of(&v, &target)


def leave_source_out(Message copy not None):
    """Takes the name of its source out of a copy that is not put yet."""
    if copy.given is None or copy.given.stored_properties is None:
        raise MessageIllegalError("the message must be a copy of a stored one")
    copy.given.stored_properties = changed_properties(copy.given.stored_properties, {}, (SOURCE,))


def carried_properties(Message message not None, int64_t due_ms):
    """The properties of a copy that waits until `due_ms`; None if they are too long."""
    cdef record_view v = _stored(message)
    return _properties(&v, due_ms, True)


def carried_due_ms(Message message not None):
    """The due time of a message that was carried forward; None for any other message. The same rule makes its queue's
    entry (property_read.pxd)."""
    cdef record_view v
    if message.source is None:
        return None
    v = message_view(message)
    return carried_due(&v) or None


def source_text(Message message not None):
    """The value of DELAY_SOURCE for the copy of a waiting message."""
    cdef record_view v = _stored(message)
    cdef uint8_t[SOURCE_BYTES] text
    return (<const char*>text)[:_put_source(text, &v) - text].decode("ascii")
