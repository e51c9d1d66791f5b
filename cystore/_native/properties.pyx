"""The property string of a message that is to be appended (MessageDecoder.messageProperties2String)."""

from cpython.exc cimport PyErr_Clear
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cystore._native.layout cimport DELAY_PROPERTY_ROOM, PROPERTIES_BYTES_MAX

from cystore._native.message import RESERVED_PROPERTIES
from cystore.errors import MessageIllegalError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL: `_refuse_text` says why
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_ssize_t PyUnicode_FindChar(object text, Py_UCS4 character, Py_ssize_t start, Py_ssize_t end, int direction) except -2


cdef int property_room(property_buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity
    cdef uint8_t* start
    if buffer.length + more <= buffer.capacity:
        return 0
    capacity = 2 * (buffer.length + more)
    if capacity > 0x3FFFFFFF:
        raise MessageIllegalError("properties: too much in one call")
    start = <uint8_t*>malloc(capacity)
    if start == NULL:
        raise MemoryError()
    if buffer.length:  # the first of a batch has no buffer to copy from
        memcpy(start, buffer.start, buffer.length)
    if buffer.on_heap:
        free(buffer.start)
    buffer.start = start
    buffer.capacity = <int32_t>capacity
    buffer.on_heap = True
    return 0


cdef int _refuse_text(object text, str field) except -1:
    """For text that has no UTF-8 form."""
    PyErr_Clear()
    raise MessageIllegalError(f"{field}: {text!r} is not valid Unicode text")


cdef inline uint64_t _has_less(uint64_t word, uint64_t bound) noexcept nogil:
    """Not 0 when one of the word's eight bytes is less than `bound`."""
    return (word - bound * 0x0101010101010101u) & ~word & 0x8080808080808080u


cdef inline uint64_t _copy_text(uint8_t* target, const char* data, Py_ssize_t length, uint64_t bound) noexcept nogil:
    """Copies; not 0 when one of the bytes is less than `bound`. The words at the end overlap: no text is read beyond its end."""
    cdef uint64_t word, found = 0
    cdef uint32_t low, high
    cdef Py_ssize_t i = 0
    if length >= 8:
        while i < length:
            if i > length - 8:
                i = length - 8
            memcpy(&word, data + i, 8)
            memcpy(target + i, &word, 8)
            found |= _has_less(word, bound)
            i += 8
    elif length >= 4:
        memcpy(&low, data, 4)
        memcpy(&high, data + length - 4, 4)
        memcpy(target, &low, 4)
        memcpy(target + length - 4, &high, 4)
        found = _has_less(<uint64_t>high << 32 | low, bound)
    else:
        for i in range(length):
            target[i] = <uint8_t>data[i]
            found |= <uint8_t>data[i] < bound
    return found


cdef inline bint _has(object text, Py_UCS4 character) except -1:
    return PyUnicode_FindChar(text, character, 0, PyUnicode_GET_LENGTH(text), 1) >= 0


cdef inline int _put_text(property_buffer* buffer, object text, str field, bint is_key) except -1:
    """Appends UTF-8 text; refuses the separators of the property string, and spaces in keys."""
    cdef Py_ssize_t length = 0
    cdef const char* data
    if not PyUnicode_Check(text):
        raise MessageIllegalError(f"{field}: must be text, not {type(text).__name__}")
    if PyUnicode_IS_COMPACT_ASCII(text):
        data = <const char*>PyUnicode_DATA(text)
        length = PyUnicode_GET_LENGTH(text)
    else:
        data = PyUnicode_AsUTF8AndSize(text, &length)
        if data == NULL:
            _refuse_text(text, field)
    if buffer.length + length + 1 > buffer.capacity:
        property_room(buffer, length + 1)
    if _copy_text(buffer.start + buffer.length, data, length, 33 if is_key else 3):
        if is_key and _has(text, 32):
            raise MessageIllegalError(f"{field}: {text!r} contains a space; give several keys as a tuple")
        if _has(text, 1) or _has(text, 2):
            raise MessageIllegalError(f"{field}: {text!r} contains a control character that separates properties")
    buffer.length += <int32_t>length
    return 0


cdef inline int _put_name(property_buffer* buffer, const char* name, int length, int32_t begin) except -1:
    """Appends a separator when there is a pair already, then the name of the next pair and its 0x01."""
    if buffer.length + length + 2 > buffer.capacity:
        property_room(buffer, length + 2)
    if buffer.length > begin:
        buffer.start[buffer.length] = 2
        buffer.length += 1
    memcpy(buffer.start + buffer.length, name, length)
    buffer.length += length
    buffer.start[buffer.length] = 1
    buffer.length += 1
    return 0


cdef int put_properties(property_buffer* buffer, object keys, object tags, object properties, object unique_key) except -1:
    """Appends one message's property string: KEYS, TAGS, UNIQ_KEY, then the user's. Returns its length."""
    cdef int32_t begin = buffer.length
    cdef bint first = True
    if keys is not None:
        if PyUnicode_Check(keys):
            if PyUnicode_GET_LENGTH(keys):
                _put_name(buffer, "KEYS", 4, begin)
                _put_text(buffer, keys, "keys", True)
        else:
            if type(keys) is not tuple:
                if isinstance(keys, (bytes, bytearray, memoryview)) or not hasattr(keys, "__iter__"):
                    raise MessageIllegalError(f"keys: must be a tuple of text, not {type(keys).__name__}")
                keys = tuple(keys)
            for key in <tuple>keys:
                if first:
                    _put_name(buffer, "KEYS", 4, begin)
                    first = False
                else:
                    property_room(buffer, 1)
                    buffer.start[buffer.length] = 32
                    buffer.length += 1
                _put_text(buffer, key, "keys", True)
    if tags is not None and (not PyUnicode_Check(tags) or PyUnicode_GET_LENGTH(tags)):
        _put_name(buffer, "TAGS", 4, begin)
        _put_text(buffer, tags, "tags", False)
    if unique_key is not None:
        _put_name(buffer, "UNIQ_KEY", 8, begin)
        _put_text(buffer, unique_key, "unique_key", True)
    if properties is not None:
        try:
            pairs = properties.items()
        except AttributeError:
            raise MessageIllegalError(f"properties: must be a mapping, not {type(properties).__name__}") from None
        for name, value in pairs:
            if name in RESERVED_PROPERTIES:
                raise MessageIllegalError(f"properties: {name} is reserved; use the parameter for it")
            if not name:
                raise MessageIllegalError("properties: a name is empty")
            _put_name(buffer, "", 0, begin)
            buffer.length -= 1
            _put_text(buffer, name, "properties", False)
            property_room(buffer, 1)
            buffer.start[buffer.length] = 1
            buffer.length += 1
            _put_text(buffer, value, f"properties[{name!r}]", False)
    if buffer.length - begin > <int32_t>PROPERTIES_BYTES_MAX:
        raise MessageIllegalError(
            f"properties: {buffer.length - begin} bytes, at most {PROPERTIES_BYTES_MAX} (keys and tags included)")
    return buffer.length - begin


cdef int _put_bytes(property_buffer* buffer, const char* name, int length, const uint8_t* value, int32_t value_len,
                    int32_t begin) except -1:
    _put_name(buffer, name, length, begin)
    property_room(buffer, value_len)
    memcpy(buffer.start + buffer.length, value, value_len)
    buffer.length += value_len
    return 0


cdef int _put_number(property_buffer* buffer, const char* name, int length, int32_t value, int32_t begin) except -1:
    cdef char[16] text
    cdef int digits = snprintf(text, 16, "%d", value)
    return _put_bytes(buffer, name, length, <const uint8_t*>text, digits, begin)


cdef int put_delay(property_buffer* buffer, int32_t begin, int32_t level, const uint8_t* topic, int32_t topic_len,
                   int32_t queue_id) except -1:
    cdef int32_t limit = <int32_t>(PROPERTIES_BYTES_MAX - DELAY_PROPERTY_ROOM)
    _put_number(buffer, "DELAY", 5, level, begin)
    if topic != NULL:
        _put_bytes(buffer, "REAL_TOPIC", 10, topic, topic_len, begin)
        _put_number(buffer, "REAL_QID", 8, queue_id, begin)
    if buffer.length - begin > limit:
        raise MessageIllegalError(
            f"properties: {buffer.length - begin} bytes, at most {limit} for a delayed message (keys and tags included)")
    return buffer.length - begin
