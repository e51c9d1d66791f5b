from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_read cimport view_of
from cystore._native.record.record_view cimport record_parts, record_view
from cystore._native.record.window cimport LogWindow


cdef class PutResult:
    cdef readonly int64_t physical_offset
    cdef readonly int64_t queue_offset
    cdef readonly int64_t store_timestamp_ms
    cdef readonly int32_t size_bytes


# Arguments of a put that a stored message has in its record.
cdef class PutArguments:
    cdef object tags, unique_key, born_host, store_host
    cdef int32_t flag, sys_flag, reconsume_times, delay_level
    cdef int64_t delay              # above 0: due at that time, ms since the epoch; below: after so many ms; 0: no
    cdef bytes stored_properties    # the whole property string, in the place of keys, tags and properties
    cdef int64_t born_timestamp_ms, prepared_transaction_offset


cdef class Message:
    # A stored message points into `source` (a MappedFile, a memoryview of it, or bytes) and keeps it alive. A message
    # to be put has no source; with a topic it has `given`. It has few fields: each is cleared when a message is made
    # and when it is freed.
    cdef object source
    cdef const uint8_t* start
    cdef record_parts parts
    cdef int32_t _queue_id
    cdef PyObject* _body            # a reference, or NULL. Of a stored message: its view, which may be used again
    cdef object _topic, _keys, _properties
    cdef PutArguments given


cdef inline object given_body(Message message):
    """The body that a message to be put was given."""
    return None if message._body == NULL else <object>message._body


cdef inline void give_body(Message message, object body):
    """Sets the body of a new message to be put."""
    Py_INCREF(body)
    message._body = <PyObject*>body


cdef PutResult put_result(int64_t physical_offset, int64_t queue_offset, int32_t size_bytes, int64_t store_timestamp_ms)
# The message whose record begins at `at` in a mapped file; at most `limit` bytes belong to it. `verified`: its
# checksum was compared already, without the GIL. Raises CorruptRecordError.
cdef Message stored_message(MappedFile file, Py_ssize_t at, Py_ssize_t limit, bint verified)
# The message of a record that a kernel found with the window and verified. Raises CorruptRecordError.
cdef Message found_message(LogWindow window, int64_t offset)
# The same for a record that the kernel has read at `start`. None: the window has dropped that mapping since.
cdef Message seen_message(LogWindow window, int64_t offset, const uint8_t* start, const record_parts* parts)
# The same for a record that lies in the memory of `view`.
cdef Message message_in(object view, const uint8_t* start, const record_parts* parts)

# A message to be put with this property string and these hosts, and with the rest of a record.
cdef Message message_copy(const record_view* v, str topic, int32_t queue_id, bytes properties, bytes born_host,
                          bytes store_host)


cdef inline record_view message_view(Message message) noexcept:
    """The record of a stored message."""
    return view_of(message.start, &message.parts)
