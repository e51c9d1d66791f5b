"""The property string of a message that is to be appended (MessageDecoder.messageProperties2String)."""

from cpython.exc cimport PyErr_Clear
from cpython.object cimport PyObject
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdio cimport snprintf
from libc.stdlib cimport free, malloc
from libc.string cimport memcpy

from cystore._native.layout cimport (
    DELAY_PROPERTY_ROOM, PROPERTIES_BYTES_MAX, PROPERTY_DELAY, PROPERTY_DELAY_BYTES, PROPERTY_DELAY_DUE,
    PROPERTY_DELAY_DUE_BYTES, PROPERTY_EXPIRES_AT_MS,
    PROPERTY_EXPIRES_AT_MS_BYTES, PROPERTY_KEYS, PROPERTY_KEYS_BYTES, PROPERTY_NAME_END, PROPERTY_REAL_QID,
    PROPERTY_REAL_QID_BYTES, PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES, PROPERTY_TAGS, PROPERTY_TAGS_BYTES,
    PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES, TOPIC_BYTES_MAX
)
from cystore._native.record.property_read cimport (
    DUE_TIME_DIGITS, light_begin, light_next, light_place, light_queues, property_find, property_view
)
from cystore._native.record.argument_checks cimport exact_bytes, exact_text
from cystore._native.record.message cimport Message, PutArguments, give_body, given_body
from cystore._native.record.record_read cimport topic_valid
from cystore._native.record.record_view cimport record_view

from cystore._native.record.message import RESERVED_PROPERTIES
from cystore.errors import RAW_ERRORS, MessageIllegalError, StoreError

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL: the text has no UTF-8 form
    Py_ssize_t PyUnicode_GET_LENGTH(object text)
    Py_ssize_t PyUnicode_FindChar(object text, Py_UCS4 character, Py_ssize_t start, Py_ssize_t end,
                                  int direction) except -2

cdef enum:
    SHORT = 512             # bytes that need no memory from the heap
    LONG = 256 * 1024       # bytes that are copied without the GIL: some 0.1 ms

cdef PyObject* NONE = <PyObject*>None


cdef int grow_properties(property_buffer* buffer, Py_ssize_t more) except -1:
    cdef Py_ssize_t capacity
    cdef uint8_t* start
    capacity = 2 * (buffer.length + more)
    if capacity > 0x3FFFFFFF:
        raise MessageIllegalError("properties: too many bytes in one call")
    start = <uint8_t*>malloc(capacity)
    if start == NULL:
        raise MemoryError()
    if buffer.length >= <int32_t>LONG:
        with nogil:
            memcpy(start, buffer.start, buffer.length)
    elif buffer.length:  # the first message of a batch has no buffer yet
        memcpy(start, buffer.start, buffer.length)
    if buffer.on_heap:
        free(buffer.start)
    buffer.start = start
    buffer.capacity = <int32_t>capacity
    buffer.on_heap = True
    return 0


cdef inline bint _has(object text, Py_UCS4 character) except -1:
    return PyUnicode_FindChar(text, character, 0, PyUnicode_GET_LENGTH(text), 1) >= 0


cdef const char* _utf8(object text, str field, Py_ssize_t* length) except NULL:
    cdef const char* data
    if not PyUnicode_Check(text):
        exact_text(field, text, MessageIllegalError)
    data = PyUnicode_AsUTF8AndSize(text, length)
    if data == NULL:
        PyErr_Clear()
        exact_text(field, text, MessageIllegalError)
    return data


cdef int _check_text(object text, str field, bint is_key) except -1:
    """Refuses the separators. Called for text with a control character, and for a key with a space."""
    if is_key and _has(text, 32):
        raise MessageIllegalError(f"{field}: {exact_text(field, text, MessageIllegalError)!r} contains a "
                                  "space; give several keys as a tuple")
    if _has(text, PROPERTY_NAME_END) or _has(text, PROPERTY_END):
        raise MessageIllegalError(
            f"{field}: {exact_text(field, text, MessageIllegalError)!r} contains a control character that "
            "separates properties")
    return 0


cdef int _put_text(property_buffer* buffer, object text, str field, bint is_key) except -1:
    """Appends UTF-8 text. Readers skip a pair without a value and an empty key, so neither is stored."""
    cdef Py_ssize_t length = 0
    cdef const char* data = _utf8(text, field, &length)
    if length == 0:
        raise MessageIllegalError(f"{field}: an empty {'key' if is_key else 'value'} would be dropped by readers; "
                                  "leave it out")
    property_room(buffer, length)
    if copy_text(buffer.start + buffer.length, data, length, FIRST_IN_KEY if is_key else FIRST_IN_TEXT):
        _check_text(text, field, is_key)
    buffer.length += <int32_t>length
    return 0


cdef inline int _put_name(property_buffer* buffer, const char* name, int length, int32_t begin) except -1:
    """Appends a separator when there is a pair already, then the name of the next pair and its 0x01."""
    property_room(buffer, length + 2)
    if buffer.length > begin:
        buffer.start[buffer.length] = PROPERTY_END
        buffer.length += 1
    memcpy(buffer.start + buffer.length, name, length)
    buffer.length += length
    buffer.start[buffer.length] = PROPERTY_NAME_END
    buffer.length += 1
    return 0


cdef int _put_keys(property_buffer* buffer, object keys, int32_t begin) except -1:
    cdef bint first = True
    if PyUnicode_Check(keys):
        keys = (keys,) if PyUnicode_GET_LENGTH(keys) else ()
    if type(keys) is not tuple:
        if isinstance(keys, (bytes, bytearray, memoryview)) or not hasattr(keys, "__iter__"):
            raise MessageIllegalError(f"keys: must be a tuple of text, not {type(keys).__name__}")
        try:
            keys = tuple(keys)
        except StoreError:
            raise
        except RAW_ERRORS as error:
            raise MessageIllegalError(
                f"keys: must be a tuple of text, not {type(keys).__name__} ({type(error).__name__})") from error
    for key in <tuple>keys:
        if first:
            _put_name(buffer, PROPERTY_KEYS, PROPERTY_KEYS_BYTES, begin)
            first = False
        else:
            property_room(buffer, 1)
            buffer.start[buffer.length] = 32
            buffer.length += 1
        _put_text(buffer, key, "keys", True)
    return 0


cdef int put_any_properties(property_buffer* buffer, PyObject* keys, PyObject* tags, PyObject* properties,
                            PyObject* unique_key) except -1:
    cdef int32_t begin = buffer.length
    if keys != NONE:
        _put_keys(buffer, <object>keys, begin)
    if tags != NONE:
        _put_name(buffer, PROPERTY_TAGS, PROPERTY_TAGS_BYTES, begin)
        _put_text(buffer, <object>tags, "tags", False)
    if unique_key != NONE:
        _put_name(buffer, PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES, begin)
        _put_text(buffer, <object>unique_key, "unique_key", True)
    if properties != NONE:
        _put_pairs(buffer, <object>properties, begin)
    if buffer.length - begin > <int32_t>PROPERTIES_BYTES_MAX:
        raise MessageIllegalError(
            f"properties: {buffer.length - begin} bytes, at most {PROPERTIES_BYTES_MAX} (keys and tags included)")
    return buffer.length - begin


cdef int _check_expiry(object value) except -1:
    """Checks the property as text, because reads parse it without checks."""
    value = exact_text("properties['EXPIRES_AT_MS']", value, MessageIllegalError)
    if not (value.isascii() and value.isdecimal() and len(value) <= <Py_ssize_t>DUE_TIME_DIGITS and int(value) > 0):
        raise MessageIllegalError(f"properties['EXPIRES_AT_MS']: must be a time in ms since the epoch, not {value!r}")
    return 0


cdef int _put_pairs(property_buffer* buffer, object properties, int32_t begin) except -1:
    """Appends the user's properties."""
    try:
        pairs = [(name, value) for name, value in properties.items()]
    except StoreError:
        raise
    except RAW_ERRORS as error:  # no method `items`, or it gives no pairs
        raise MessageIllegalError(
            f"properties: must be a mapping, not {type(properties).__name__} ({type(error).__name__})") from error
    for name, value in pairs:
        name = exact_text("properties", name, MessageIllegalError)
        if name in RESERVED_PROPERTIES:
            raise MessageIllegalError(f"properties: {name} is reserved; use the parameter for it")
        if not name:
            raise MessageIllegalError("properties: a name is empty")
        if name == "EXPIRES_AT_MS":
            _check_expiry(value)
            buffer.expires = True
        _put_name(buffer, "", 0, begin)
        buffer.length -= 1
        _put_text(buffer, name, "properties", False)
        property_room(buffer, 1)
        buffer.start[buffer.length] = PROPERTY_NAME_END
        buffer.length += 1
        _put_text(buffer, value, f"properties[{name!r}]", False)
    return 0


cdef int _put_bytes(property_buffer* buffer, const char* name, int length, const uint8_t* value, int32_t value_len,
                    int32_t begin) except -1:
    _put_name(buffer, name, length, begin)
    property_room(buffer, value_len)
    memcpy(buffer.start + buffer.length, value, value_len)
    buffer.length += value_len
    return 0


cdef int _put_number(property_buffer* buffer, const char* name, int length, int64_t value, int32_t begin) except -1:
    cdef char[24] text
    cdef int digits = snprintf(text, 24, "%lld", <long long>value)
    return _put_bytes(buffer, name, length, <const uint8_t*>text, digits, begin)


cdef int put_wait(property_buffer* buffer, int32_t begin, int32_t level, int64_t due_ms, const uint8_t* topic,
                  int32_t topic_len, int32_t queue_id) except -1:
    cdef int32_t limit = <int32_t>(PROPERTIES_BYTES_MAX - DELAY_PROPERTY_ROOM)
    if level:
        _put_number(buffer, PROPERTY_DELAY, PROPERTY_DELAY_BYTES, level, begin)
    else:
        _put_number(buffer, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, due_ms, begin)
    if topic != NULL:
        _put_bytes(buffer, PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES, topic, topic_len, begin)
        _put_number(buffer, PROPERTY_REAL_QID, PROPERTY_REAL_QID_BYTES, queue_id, begin)
    if buffer.length - begin > limit:
        raise MessageIllegalError(
            f"properties: {buffer.length - begin} bytes, at most {limit} for a delayed message (keys and tags "
            "included)")
    return buffer.length - begin


cdef int put_expiry(property_buffer* buffer, int32_t begin, int64_t expires_at_ms) except -1:
    _put_number(buffer, PROPERTY_EXPIRES_AT_MS, PROPERTY_EXPIRES_AT_MS_BYTES, expires_at_ms, begin)
    buffer.expires = True
    if buffer.length - begin > <int32_t>PROPERTIES_BYTES_MAX:
        raise MessageIllegalError(
            f"properties: {buffer.length - begin} bytes, at most {PROPERTIES_BYTES_MAX} (expires_at_ms included)")
    return buffer.length - begin


def find_property(const uint8_t[::1] properties, bytes name):
    """Value of a property in its stored bytes, or None."""
    cdef property_view found
    cdef const uint8_t* p = &properties[0] if properties.shape[0] else NULL
    if property_find(p, <int>properties.shape[0], name, <int>len(name), &found):
        return found.value[:found.value_len]
    return None


def light_places(bytes properties not None, int64_t physical_offset):
    """(topic, queue offset) of each light queue of a record at `physical_offset` with these stored properties."""
    cdef record_view v
    cdef light_queues remaining
    cdef light_place place
    cdef list found = []
    v.properties = <const uint8_t*><const char*>properties
    v.properties_len = <int>len(properties)
    v.physical_offset = physical_offset
    if light_begin(&v, &remaining):
        while light_next(&remaining, &place):
            found.append((place.name[:place.name_len].decode("ascii"), place.queue_offset))
    return found


def queues_of(Message message not None):
    """The queues in which a stored message has a queue offset: (topic, queue id, queue offset) of its own queue, then
    of its light queues."""
    own = message.topic, message.queue_id, message.queue_offset
    light = light_places(message.properties_bytes or b"", message.physical_offset)
    return [own, *[(topic, 0, queue_offset) for topic, queue_offset in light]]


def changed_properties(bytes stored, new not None, without=()):
    """A stored property string without the pairs with a name in `new` or `without`, and with the pairs of `new` at its
    end. All other pairs stay unchanged."""
    dropped = {name.encode() for name in (*new, *without)}
    remaining = [pair for pair in (stored or b"").split(b"\x02") if pair and pair.partition(b"\x01")[0] not in dropped]
    return b"\x02".join([*remaining, *[f"{name}\x01{value}".encode() for name, value in new.items()]])


def message_for_topic(Message message not None, str topic not None, int32_t queue_id, bytes notes not None,
                 bytes host not None):
    """A message to be put to `topic`, which holds it for its own topic. It passes the checks of a put to its own topic,
    except for its length. `notes` are more properties, as stored. Raises MessageIllegalError."""
    cdef property_buffer buffer
    cdef uint8_t[SHORT] room
    cdef Py_ssize_t length = 0
    cdef Message copy = Message.__new__(Message)
    cdef PutArguments put = PutArguments.__new__(PutArguments)
    cdef PutArguments given = message.given
    cdef str name = exact_text("topic", message._topic, MessageIllegalError)
    cdef const char* own = PyUnicode_AsUTF8AndSize(name, &length)
    if message.source is not None:
        raise MessageIllegalError("the message must not be a stored message")
    if own == NULL or not topic_valid(<const uint8_t*>own, length):
        PyErr_Clear()
        raise MessageIllegalError(f"topic: {name!r} must be 1 to {TOPIC_BYTES_MAX} characters of letters, "
                                  "digits, % | _ and -")
    buffer.start = room
    buffer.length = 0
    buffer.capacity = SHORT
    buffer.on_heap = buffer.expires = False
    try:
        put_properties(&buffer, <PyObject*>message._keys, <PyObject*>given.tags, <PyObject*>message._properties,
                       <PyObject*>given.unique_key)
        own_properties = (<const char*>buffer.start)[:buffer.length]
    finally:
        if buffer.on_heap:
            free(buffer.start)
    copy.given = put
    copy._topic, copy._queue_id = topic, queue_id
    give_body(copy, exact_bytes(given_body(message)))
    put.stored_properties = b"\x02".join([each for each in (own_properties, notes) if each])
    put.flag, put.sys_flag = given.flag, given.sys_flag
    put.reconsume_times = given.reconsume_times
    put.born_timestamp_ms = given.born_timestamp_ms
    put.born_host = host if given.born_host is None else given.born_host
    put.store_host = given.store_host
    return copy
