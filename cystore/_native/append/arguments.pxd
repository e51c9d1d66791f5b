"""Arguments of a call, read where the caller left them.

A method with many optional arguments takes and gives back a reference to each default at every call; for `put` that
is a tenth of what an append takes.
"""

from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from libc.stdint cimport uint8_t, uintptr_t

cdef extern from "Python.h":
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

# The keywords of one place in a program that calls: a tuple of names that belongs to its code, and where their values
# go.
cdef struct caller_keywords:
    PyObject* names
    int count
    int named               # bit n: the keyword of place n is among them
    uint8_t[KEYWORDS_MAX] places

# What is known of the last callers.
cdef struct known_callers:
    caller_keywords[CALLERS] callers


cdef inline bint learn_caller(caller_keywords* caller, PyObject* names, PyObject* known) noexcept:
    """Finds the places of the names, which are interned, as names in source text are: a pointer tells which one it
    is. False when it does not. Keeps the tuple, or another one could come to stand where it stood."""
    cdef Py_ssize_t i, place, known_count = PyTuple_GET_SIZE(<tuple>known), count = PyTuple_GET_SIZE(<tuple>names)
    cdef PyObject* name
    if count > KEYWORDS_MAX:
        return False
    Py_XDECREF(caller.names)
    caller.names = NULL
    caller.named = 0
    for i in range(count):
        name = PyTuple_GET_ITEM(<tuple>names, i)
        place = 0
        while PyTuple_GET_ITEM(<tuple>known, place) != name:
            place += 1
            if place == known_count:
                return False
        caller.places[i] = <uint8_t>place
        caller.named |= 1 << place
    caller.count = <int>count
    Py_XINCREF(names)
    caller.names = names
    return True


cdef inline int place_keywords(PyObject** given, PyObject* names, PyObject* known, known_callers* seen,
                               PyObject** values) noexcept:
    """Puts the values of keywords in the places of the names in the tuple `known`, and says which there are, or
    KEYWORDS_UNKNOWN."""
    cdef caller_keywords* caller
    cdef int i
    if names == NULL:
        return 0
    caller = &seen.callers[<uintptr_t>names >> 4 & (CALLERS - 1)]
    if caller.names != names and not learn_caller(caller, names, known):
        return KEYWORDS_UNKNOWN
    for i in range(caller.count):
        values[caller.places[i]] = given[i]
    return caller.named


cdef inline void place_defaults(tuple defaults, int named, PyObject** values) noexcept:
    """Fills the places of the keywords that were not given."""
    cdef Py_ssize_t place
    for place in range(PyTuple_GET_SIZE(defaults)):
        if not named & 1 << place:
            values[place] = PyTuple_GET_ITEM(defaults, place)


cdef inline object call_python(object function, PyObject** given, Py_ssize_t positional, PyObject* names):
    """The same call of a Python function, which raises Python's own TypeError for wrong arguments."""
    cdef Py_ssize_t i, count = 0 if names == NULL else PyTuple_GET_SIZE(<tuple>names)
    arguments = [<object>given[i] for i in range(positional)]
    keywords = {<object>PyTuple_GET_ITEM(<tuple>names, i): <object>given[positional + i] for i in range(count)}
    return function(*arguments, **keywords)
