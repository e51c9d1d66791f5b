from libc.stdint cimport int64_t

# The value of an int, or of a subclass's object, between the two bounds. Nothing that a subclass defines is called.
cdef int64_t exact_whole(str field, object value, int64_t low, int64_t high, object error) except? -1
# The text itself: an object that is a str and no subclass's, with a UTF-8 form.
cdef str exact_text(str field, object value, object error)
# The bytes of a body. What is not `bytes` is copied: nobody may change it under the checksum.
cdef bytes exact_bytes(object body)
