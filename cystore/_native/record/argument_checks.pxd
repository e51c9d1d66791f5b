from libc.stdint cimport int32_t, int64_t

# The value of an int or of a subclass's object, within both bounds. Calls no method of a subclass.
cdef int64_t exact_whole(str field, object value, int64_t low, int64_t high, object error) except? -1
# The text as an exact str that has a UTF-8 form.
cdef str exact_text(str field, object value, object error)
# Whether the value says yes: True, False, None, 0 or 1.
cdef bint exact_flag(str field, object value, object error) except -1
# The bytes of a body. A body of another type is copied, so that it cannot change under the checksum.
cdef bytes exact_bytes(object body)
# The field `delay` of PutArguments for these arguments. Raises MessageIllegalError.
cdef int64_t delay_of(object deliver_at_ms, object delay_ms, int32_t delay_level) except? -1
# The properties with this time in them. Raises MessageIllegalError.
cdef dict with_expiry(object properties, object expires_at_ms)
