"""Reads the arguments of a call from the caller's array.

A Cython method with many optional arguments takes and gives back a reference to each default at every call; for `put`
that is a tenth of the time of an append.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdint cimport int64_t, uint8_t, uintptr_t

cdef extern from "Python.h":
    bint PyLong_CheckExact(object value)
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1
    PyObject* PyTuple_GET_ITEM(tuple of, Py_ssize_t place)
    Py_ssize_t PyTuple_GET_SIZE(tuple of)
    ctypedef PyObject* (*PyCFunction)(PyObject* self, PyObject* arguments)
    int METH_FASTCALL
    int METH_KEYWORDS
    ctypedef struct PyMethodDef:
        const char* ml_name
        PyCFunction ml_meth
        int ml_flags
        const char* ml_doc
    object PyCFunction_NewEx(PyMethodDef* definition, object self, object module)


cdef enum:
    KEYWORDS_MAX = 16
    KEYWORDS_UNKNOWN = -1
    CALLERS = 16

# The keywords of one call in a program: the tuple of names that belongs to its code, and the places of their values.
cdef struct caller_keywords:
    PyObject* names
    int count
    int keyword_bits        # bit n: the call has the keyword of place n
    uint8_t[KEYWORDS_MAX] places

# The keywords of the last callers.
cdef struct known_callers:
    caller_keywords[CALLERS] callers


cdef inline bint learn_caller(caller_keywords* caller, PyObject* names, PyObject* keywords) noexcept:
    """Finds the place of each name in `keywords` by its pointer, because names in source text are interned. False when
    a name is not there. Holds a reference to the tuple, or another tuple could get its address."""
    cdef Py_ssize_t i, place, keyword_count = PyTuple_GET_SIZE(<tuple>keywords), count = PyTuple_GET_SIZE(<tuple>names)
    cdef PyObject* name
    if count > KEYWORDS_MAX:
        return False
    Py_XDECREF(caller.names)
    caller.names = NULL
    caller.keyword_bits = 0
    for i in range(count):
        name = PyTuple_GET_ITEM(<tuple>names, i)
        place = 0
        while PyTuple_GET_ITEM(<tuple>keywords, place) != name:
            place += 1
            if place == keyword_count:
                return False
        caller.places[i] = <uint8_t>place
        caller.keyword_bits |= 1 << place
    caller.count = <int>count
    Py_XINCREF(names)
    caller.names = names
    return True


cdef inline int place_keywords(PyObject** given, PyObject* names, PyObject* keywords, known_callers* known,
                               PyObject** values) noexcept:
    """Puts the values of the given keywords in the places of their names in the tuple `keywords`. Returns the
    keyword_bits, or KEYWORDS_UNKNOWN."""
    cdef caller_keywords* caller
    cdef int i
    if names == NULL:
        return 0
    caller = &known.callers[<uintptr_t>names >> 4 & (CALLERS - 1)]
    if caller.names != names and not learn_caller(caller, names, keywords):
        return KEYWORDS_UNKNOWN
    for i in range(caller.count):
        values[caller.places[i]] = given[i]
    return caller.keyword_bits


cdef inline void place_defaults(tuple defaults, int keyword_bits, PyObject** values) noexcept:
    """Fills the places of the keywords that were not given."""
    cdef Py_ssize_t place
    for place in range(PyTuple_GET_SIZE(defaults)):
        if not keyword_bits & 1 << place:
            values[place] = PyTuple_GET_ITEM(defaults, place)


cdef inline bint whole_argument(PyObject* value, int64_t low, int64_t high, int64_t* number) noexcept:
    """Reads an int from `low`, which is not negative, to `high`; False for any other object."""
    cdef int overflow = 0
    if not PyLong_CheckExact(<object>value):
        return False
    number[0] = PyLong_AsLongLongAndOverflow(<object>value, &overflow)
    return overflow == 0 and low <= number[0] <= high


cdef inline object call_python(object function, PyObject** given, Py_ssize_t positional, PyObject* names):
    """Makes the same call to a Python function, which raises Python's own TypeError for wrong arguments."""
    cdef Py_ssize_t i, count = 0 if names == NULL else PyTuple_GET_SIZE(<tuple>names)
    arguments = [<object>given[i] for i in range(positional)]
    keywords = {<object>PyTuple_GET_ITEM(<tuple>names, i): <object>given[positional + i] for i in range(count)}
    return function(*arguments, **keywords)
