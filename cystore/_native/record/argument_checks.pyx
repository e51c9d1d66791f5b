"""Arguments of every public call: converted to exact types first, then checked in C.

A subclass of int or str may override comparison, hash and text. So this module reads the value from the object, as the
kernels do, and all code behind this module sees an exact int or str.
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_Clear
from cpython.unicode cimport PyUnicode_Check, PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.string cimport memcpy

import os

from cystore.errors import RAW_ERRORS, MessageIllegalError, StoreError, shown

cdef extern from "Python.h":
    bint PyBool_Check(object value)
    bint PyLong_Check(object value)
    long long PyLong_AsLongLongAndOverflow(object value, int* overflow) except? -1
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL: the text has no UTF-8 form
    object PyUnicode_FromObject(object text)  # copies a subclass's object to an exact str

WHOLE_MAX = 0x7FFFFFFFFFFFFFFF

cdef enum:
    COPY_BYTES = 128 * 1024  # a copy of at least this many bytes runs without the GIL


cdef int64_t exact_whole(str field, object value, int64_t low, int64_t high, object error) except? -1:
    cdef int overflow = 0
    cdef int64_t number
    if PyBool_Check(value) or not PyLong_Check(value):
        raise error(f"{field}: must be a whole number from {low} to {high}, not {type(value).__name__}")
    number = PyLong_AsLongLongAndOverflow(value, &overflow)
    if overflow:
        raise error(f"{field}: must be a whole number from {low} to {high}, not a number of more than 64 bits")
    if number < low or number > high:
        raise error(f"{field}: must be a whole number from {low} to {high}, not {number}")
    return number


cdef bytes exact_bytes(object body):
    """The body as bytes. A body of another type is copied, so that it cannot change under the checksum."""
    if PyBytes_CheckExact(body):
        return <bytes>body
    try:
        view = memoryview(body)
        if view.nbytes >= COPY_BYTES and view.c_contiguous:
            return _copy(view.cast("B"))
        return bytes(view)
    except RAW_ERRORS as error:  # no buffer, a released memoryview, or one of several dimensions
        raise MessageIllegalError(f"body: must be bytes, not {type(body).__name__} ({error})") from None


cdef bytes _copy(const uint8_t[::1] data):
    """The bytes, copied while other threads run; the buffer cannot be resized meanwhile."""
    cdef Py_ssize_t length = data.shape[0]
    cdef bytes copied = PyBytes_FromStringAndSize(NULL, length)
    cdef char* to = PyBytes_AS_STRING(copied)
    with nogil:
        memcpy(to, &data[0], length)
    return copied


cdef str exact_text(str field, object value, object error):
    cdef Py_ssize_t length
    value = any_text(field, value, error)
    if PyUnicode_AsUTF8AndSize(value, &length) == NULL:
        PyErr_Clear()
        raise error(f"{field}: {value!a} is not valid Unicode text")
    return <str>value


cdef bint exact_flag(str field, object value, object error) except -1:
    if value is True or value is False or value is None:
        return value is True
    return exact_whole(field, value, 0, 1, error)


def whole(str field not None, value, int64_t low=0, int64_t high=WHOLE_MAX, error=MessageIllegalError):
    """The value as an int. Raises `error` if it is not a whole number from `low` to `high`."""
    return exact_whole(field, value, low, high, error)


def any_text(str field not None, value, error=MessageIllegalError):
    """The text as a str, even with lone surrogates: for names that are only looked up. Such a name is never found."""
    if not PyUnicode_Check(value):
        raise error(f"{field}: must be text, not {type(value).__name__}")
    return value if PyUnicode_CheckExact(value) else PyUnicode_FromObject(value)


def text(str field not None, value, error=MessageIllegalError):
    """The text as a str. Raises `error` if the value is not text, or has a lone surrogate."""
    return exact_text(field, value, error)


def yes_or_no(str field not None, value, error=MessageIllegalError):
    """The value as a bool; None is False. Raises `error` for anything but a bool, 0 and 1."""
    return exact_flag(field, value, error)


def choice(str field not None, value, tuple choices not None, error=MessageIllegalError):
    """The value, which is one of `choices`: texts, and perhaps None. Raises `error`."""
    if value is None and None in choices:
        return None
    if PyUnicode_Check(value):
        name = any_text(field, value, error)
        if name in choices:
            return name
        value = name
    raise error(f"{field}: must be {' or '.join(map(repr, choices))}, not {shown(value)}")


def function(str field not None, value, error=MessageIllegalError):
    """The value, which can be called. Raises `error`."""
    if not callable(value):
        raise error(f"{field}: must be a function, not {type(value).__name__}")
    return value


def instance(str field not None, value, cls not None, error=MessageIllegalError):
    """The value, which is a `cls`. Raises `error`."""
    if not isinstance(value, cls):
        raise error(f"{field}: must be a {cls.__name__}, not {type(value).__name__}")
    return value


def listed(str field not None, value, error=MessageIllegalError):
    """The items of an iterable that is no text and no buffer, as a list. Raises `error`, and the errors of the store
    that the iterable raises."""
    if isinstance(value, (str, bytes, bytearray, memoryview)):
        raise error(f"{field}: must be a list, not {type(value).__name__}")
    try:
        return list(value)
    except StoreError:
        raise
    except RAW_ERRORS as reason:  # no iterable, or one that fails
        raise error(f"{field}: must be a list, not {type(value).__name__} ({type(reason).__name__})") from reason


def path(str field not None, value, str must not None, error=MessageIllegalError):
    """The value, which is the text of a path that is not empty, or an os.PathLike. Raises `error`."""
    if isinstance(value, str):
        value = any_text(field, value, error)
        if value:
            return value
    try:
        if isinstance(value, os.PathLike) and os.fspath(value):
            return value
    except RAW_ERRORS as reason:
        raise error(f"{field} must {must}: {type(reason).__name__}") from reason
    raise error(f"{field} must {must}, not {shown(value)}")


cdef int64_t TIME_MAX_MS = 99_999_999_999_999_999  # DUE_TIME_DIGITS


cdef int64_t delay_of(object deliver_at_ms, object delay_ms, int32_t delay_level) except? -1:
    if deliver_at_ms is None and delay_ms is None:
        return 0
    if delay_level:
        raise MessageIllegalError("delay_level: give a delay level, or deliver_at_ms or delay_ms, not both")
    if delay_ms is None:
        return exact_whole("deliver_at_ms", deliver_at_ms, 1, TIME_MAX_MS, MessageIllegalError)
    if deliver_at_ms is not None:
        raise MessageIllegalError("delay_ms: give deliver_at_ms or delay_ms, not both")
    return -exact_whole("delay_ms", delay_ms, 0, TIME_MAX_MS, MessageIllegalError)


cdef dict with_expiry(object properties, object expires_at_ms):
    try:
        found = {} if properties is None else dict(properties)
    except RAW_ERRORS as error:
        raise MessageIllegalError(f"properties: must be a mapping, not {type(properties).__name__}") from error
    found["EXPIRES_AT_MS"] = str(
        exact_whole("expires_at_ms", expires_at_ms, 1, TIME_MAX_MS, MessageIllegalError))
    return found
