from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.record.record_view cimport record_view

cdef extern from "find_bytes.h" nogil:
    # The first place of a text; NULL if it is not there.
    const uint8_t* find_bytes(const uint8_t* within, size_t length, const uint8_t* text, size_t text_length)

# One step of a program. Steps push values, or take values from the stack and push the result.
cdef struct filter_step:
    int32_t kind
    int32_t first           # property, or the step to continue at, or the first text of a list
    int32_t count           # texts of a list
    int64_t whole
    double real
    const uint8_t* text
    int text_len

cdef struct filter_text:
    const uint8_t* text
    int length

# An expression over the properties of a record, as steps for a small stack machine; and texts of which the record must
# contain one, if there are any.
cdef struct filter_program:
    int32_t contained_count
    const filter_text* contained
    int32_t steps_count
    int32_t names_count
    const filter_step* steps
    const filter_text* names    # of the properties that the steps use
    const filter_text* texts    # of lists; each list is sorted by length, then by bytes

# Whether the expression is TRUE for a property string. It does not match if a text cannot be converted. -1 with an
# exception: a lack of memory, or an interrupt.
cdef bint filter_matches(const filter_program* program, const uint8_t* properties, int length) except -1 nogil

# The same for a record, which must also contain one of the texts, in its body or in its properties. A compressed body
# is not searched: it may contain one.
cdef bint filter_takes(const filter_program* program, const record_view* v) except -1 nogil

cdef class FilterProgram:
    cdef filter_program c
    cdef filter_step* steps
    cdef filter_text* names
    cdef filter_text* texts
    cdef filter_text* contained
    cdef list held              # the bytes that the program points into

    cdef int _operand(self, filter_step* step, number, text, int lists) except -1
    cdef int _hold(self, bytes text, filter_text* to) except -1
