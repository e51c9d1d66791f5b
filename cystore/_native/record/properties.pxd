from cpython.object cimport PyObject
from cpython.tuple cimport PyTuple_CheckExact, PyTuple_GET_SIZE
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

from cystore._native.layout cimport PROPERTIES_BYTES_MAX, PROPERTY_END

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    ctypedef struct PyASCIIObject:
        Py_ssize_t length
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    PyObject* PyTuple_GET_ITEM(object of, Py_ssize_t place)

cdef enum:
    FIRST_IN_TEXT = PROPERTY_END + 1  # the characters below separate properties
    FIRST_IN_KEY = 33       # a space separates keys


# A growing buffer for the property strings of one call. It may begin on the caller's stack.
cdef struct property_buffer:
    uint8_t* start
    int32_t length
    int32_t capacity
    bint on_heap            # `start` came from malloc and belongs to the buffer
    bint expires            # a property says when the message expires

cdef int grow_properties(property_buffer* buffer, Py_ssize_t more) except -1


cdef inline int property_room(property_buffer* buffer, Py_ssize_t more) except -1:
    """Makes room for `more` bytes; the buffer may move."""
    return 0 if buffer.length + more <= buffer.capacity else grow_properties(buffer, more)


cdef inline uint64_t has_less(uint64_t word, uint64_t bound) noexcept nogil:
    """Not 0 when one of the word's eight bytes is less than `bound`."""
    return (word - bound * 0x0101010101010101u) & ~word & 0x8080808080808080u


cdef inline uint64_t copy_text(uint8_t* target, const char* data, Py_ssize_t length, uint64_t bound) noexcept nogil:
    """Copies a text. Returns not 0 when one of its bytes is less than `bound`. The words at the end overlap, so no text
    is read beyond its end."""
    cdef uint64_t word, last, found = 0
    cdef uint32_t low, high
    cdef Py_ssize_t i
    if length >= 8:
        if length > 16:
            for i in range(0, length - 16, 8):
                memcpy(&word, data + i, 8)
                memcpy(target + i, &word, 8)
                found |= has_less(word, bound)
            data += i + 8
            target += i + 8
            length -= i + 8
        memcpy(&word, data, 8)
        memcpy(&last, data + length - 8, 8)
        memcpy(target, &word, 8)
        memcpy(target + length - 8, &last, 8)
        found |= has_less(word, bound) | has_less(last, bound)
    elif length >= 4:
        memcpy(&low, data, 4)
        memcpy(&high, data + length - 4, 4)
        memcpy(target, &low, 4)
        memcpy(target + length - 4, &high, 4)
        found = has_less(<uint64_t>high << 32 | low, bound)
    else:
        for i in range(length):
            target[i] = <uint8_t>data[i]
            found |= <uint8_t>data[i] < bound
    return found


cdef inline uint8_t* put_decimal(uint8_t* to, int64_t value) noexcept nogil:
    """Writes a number and returns its end; at most 20 bytes."""
    cdef uint8_t[24] digits
    cdef uint64_t left = <uint64_t>value
    cdef int count = 0
    if value < 0:
        left = 0 - left
        to[0] = c'-'
        to += 1
    while True:
        digits[count] = <uint8_t>(c'0' + left % 10)
        count += 1
        left //= 10
        if left == 0:
            break
    while count:
        count -= 1
        to[0] = digits[count]
        to += 1
    return to


# Appends one message's property string and returns its length. The objects are borrowed. Raises MessageIllegalError.
cdef int put_any_properties(property_buffer* buffer, PyObject* keys, PyObject* tags, PyObject* properties,
                            PyObject* unique_key) except -1


cdef inline uint8_t* put_ascii(uint8_t* at, uint8_t* limit, const char* name, PyObject* text, uint64_t bound) noexcept:
    """Writes one property and returns its end. `name` is four characters, 0x01 and three bytes that the text
    overwrites. NULL when the text is not short ASCII without separators."""
    cdef Py_ssize_t length
    if not PyUnicode_CheckExact(<object>text) or not PyUnicode_IS_COMPACT_ASCII(<object>text):
        return NULL
    length = PyUnicode_GET_LENGTH(<object>text)
    if length == 0 or length > limit - at - 8:
        return NULL
    memcpy(at, name, 8)
    if copy_text(at + 5, <const char*>(<PyASCIIObject*>text + 1), length, bound):
        return NULL
    return at + 5 + length


cdef inline PyObject* only_key(PyObject* keys) noexcept:
    """The key of a tuple with one key, None for an empty tuple; any other object unchanged."""
    if PyTuple_CheckExact(<object>keys):
        if PyTuple_GET_SIZE(<object>keys) == 1:
            return PyTuple_GET_ITEM(<object>keys, 0)
        if PyTuple_GET_SIZE(<object>keys) == 0:
            return <PyObject*>None
    return keys


cdef inline int put_ascii_properties(property_buffer* buffer, PyObject* keys, PyObject* tags) noexcept:
    """Appends at most one key and a tag, both short ASCII, as nearly every message has them. Returns their length, or
    -1 when they are not so."""
    cdef uint8_t* begin = buffer.start + buffer.length
    cdef uint8_t* limit = buffer.start + buffer.capacity
    cdef uint8_t* at = begin
    keys = only_key(keys)
    if keys != <PyObject*>None:
        at = put_ascii(at, limit, b"KEYS\x01\0\0\0", keys, FIRST_IN_KEY)
        if at == NULL:
            return -1
    if tags != <PyObject*>None:
        if at > begin and at < limit:
            at[0] = PROPERTY_END
            at += 1
        at = put_ascii(at, limit, b"TAGS\x01\0\0\0", tags, FIRST_IN_TEXT)
        if at == NULL:
            return -1
    if at - begin > <Py_ssize_t>PROPERTIES_BYTES_MAX:
        return -1
    buffer.length += <int32_t>(at - begin)
    return <int>(at - begin)


cdef inline int put_properties(property_buffer* buffer, PyObject* keys, PyObject* tags, PyObject* properties,
                               PyObject* unique_key) except -1:
    cdef int length = -1
    if properties == <PyObject*>None and unique_key == <PyObject*>None:
        length = put_ascii_properties(buffer, keys, tags)
    return length if length >= 0 else put_any_properties(buffer, keys, tags, properties, unique_key)


# Adds the expiry time to the property string that began at `begin`. Returns the string's length.
cdef int put_expiry(property_buffer* buffer, int32_t begin, int64_t expires_at_ms) except -1

# Adds the delay level, or if that is 0 the due time (ms), to the property string that began at `begin`; and the topic
# and queue of the delivery unless `topic` is NULL. Returns the string's length.
cdef int put_wait(property_buffer* buffer, int32_t begin, int32_t level, int64_t due_ms, const uint8_t* topic,
                  int32_t topic_len, int32_t queue_id) except -1
