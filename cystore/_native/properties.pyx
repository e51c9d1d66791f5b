"""The property string of a message that is to be appended (MessageDecoder.messageProperties2String)."""

from cpython.exc cimport PyErr_Clear
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, uint8_t, uint64_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cystore._native.layout cimport PROPERTIES_BYTES_MAX

from cystore._native.message import RESERVED_PROPERTIES
from cystore.errors import MessageIllegalError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL: `_refuse_text` says why


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


cdef inline uint64_t has_byte(uint64_t word, uint64_t byte) noexcept nogil:
    """Not 0 when one of the word's eight bytes is `byte`."""
    word ^= byte * 0x0101010101010101u
    return (word - 0x0101010101010101u) & ~word & 0x8080808080808080u


cdef inline int _put_text(property_buffer* buffer, object text, str field, bint is_key) except -1:
    """Appends UTF-8 text; refuses the separators of the property string, and spaces in keys."""
    cdef Py_ssize_t length = 0, i = 0
    cdef const char* data
    cdef uint8_t* target
    cdef uint64_t word, refused = 0
    cdef uint8_t c, space = 32 if is_key else 1
    if not PyUnicode_Check(text):
        raise MessageIllegalError(f"{field}: must be text, not {type(text).__name__}")
    data = PyUnicode_AsUTF8AndSize(text, &length)
    if data == NULL:
        _refuse_text(text, field)
    if buffer.length + length + 1 > buffer.capacity:
        property_room(buffer, length + 1)
    target = buffer.start + buffer.length
    memcpy(target, data, length)
    while i + 8 <= length:
        memcpy(&word, data + i, 8)  # not from `target`: that would wait for the copy to arrive
        refused |= has_byte(word, 1) | has_byte(word, 2) | has_byte(word, space)
        i += 8
    while i < length:
        c = <uint8_t>data[i]
        refused |= (c == 1) | (c == 2) | (c == space)
        i += 1
    if refused:
        if is_key and " " in text:
            raise MessageIllegalError(f"{field}: {text!r} contains a space; give several keys as a tuple")
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
            if keys:
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
    if tags is not None and (not PyUnicode_Check(tags) or tags):
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
