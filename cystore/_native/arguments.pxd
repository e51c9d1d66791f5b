"""Arguments of a call, read where the caller left them.

A method with many optional arguments takes and gives back a reference to each default at every call; for `put` that is a tenth of what
an append takes.
"""

from cpython.object cimport PyObject

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
    object PyCFunction_New(PyMethodDef* definition, object self)


cdef inline bint place_keywords(PyObject** given, PyObject* names, tuple known, tuple defaults, PyObject** values) noexcept:
    """Puts the values of keywords, or their defaults, in the places of `known` names, which are interned, as names in source text are:
    a pointer tells which one it is. False when it does not."""
    cdef PyObject* name
    cdef Py_ssize_t i, place, known_count = PyTuple_GET_SIZE(known)
    for place in range(known_count):
        values[place] = PyTuple_GET_ITEM(defaults, place)
    for i in range(0 if names == NULL else PyTuple_GET_SIZE(<tuple>names)):
        name = PyTuple_GET_ITEM(<tuple>names, i)
        place = 0
        while PyTuple_GET_ITEM(known, place) != name:
            place += 1
            if place == known_count:
                return False
        values[place] = given[i]
    return True


cdef inline object call_as_usual(object function, PyObject** given, Py_ssize_t positional, PyObject* names):
    """The same call of a function that takes its arguments the usual way, and raises the usual TypeError when they are wrong."""
    cdef Py_ssize_t i, count = 0 if names == NULL else PyTuple_GET_SIZE(<tuple>names)
    arguments = [<object>given[i] for i in range(positional)]
    keywords = {<object>PyTuple_GET_ITEM(<tuple>names, i): <object>given[positional + i] for i in range(count)}
    return function(*arguments, **keywords)
