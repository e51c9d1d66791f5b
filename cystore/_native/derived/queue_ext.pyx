"""Units of extended consume queues: tags code, store time and filter bitmap of a queue entry that holds their address.

Source of the format: ConsumeQueueExt of RocketMQ 4.9.3.
"""

from libc.stdint cimport INT64_MIN, int16_t, int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

from cystore._native.layout cimport (
    EXT_UNIT_BYTES_MAX, EXT_UNIT_FIXED_BYTES, ext_unit_bitmap_bytes, ext_unit_set_bitmap_bytes, ext_unit_set_size,
    ext_unit_set_store_timestamp, ext_unit_set_tags_code, ext_unit_size, ext_unit_store_timestamp, ext_unit_tags_code
)

cdef int16_t END_SIZE = -1
cdef int64_t ADDRESS_MAX = -2147483649  # no tags code is below -2^31


cdef bint ext_is_address(int64_t tags_code) noexcept nogil:
    return tags_code <= ADDRESS_MAX


cdef int64_t ext_address(int64_t position) noexcept nogil:
    return <int64_t>(<uint64_t>position + <uint64_t>INT64_MIN)


cdef int64_t ext_position(int64_t address) noexcept nogil:
    return <int64_t>(<uint64_t>address - <uint64_t>INT64_MIN)


cdef int ext_read(const uint8_t* p, size_t available, ext_view* v) noexcept nogil:
    """Reads the unit at `p`. A unit holds its length twice, and both must agree."""
    cdef int size
    if available < 2:
        return EXT_END
    size = ext_unit_size(p)
    if size == 0 or size == END_SIZE:
        return EXT_END
    if size < <int>EXT_UNIT_FIXED_BYTES or <size_t>size > available:
        return EXT_BAD
    v.size = size
    v.tags_code = ext_unit_tags_code(p)
    v.store_timestamp = ext_unit_store_timestamp(p)
    v.bitmap_len = ext_unit_bitmap_bytes(p)
    v.bitmap = p + EXT_UNIT_FIXED_BYTES
    return EXT_OK if v.bitmap_len == size - <int>EXT_UNIT_FIXED_BYTES else EXT_BAD


cdef int ext_put(uint8_t* p, size_t room, int64_t tags_code, int64_t store_timestamp, const uint8_t* bitmap,
                 int bitmap_len, int* size) noexcept nogil:
    """Writes a unit at `p`, where the file has `room` more bytes. If the unit does not fit, writes the end mark."""
    size[0] = <int>EXT_UNIT_FIXED_BYTES + bitmap_len
    if bitmap_len < 0 or size[0] > <int>EXT_UNIT_BYTES_MAX:
        return EXT_BAD
    if <size_t>size[0] + <size_t>EXT_END_BYTES > room:
        if room >= 2:
            ext_unit_set_size(p, END_SIZE)
        return EXT_NO_ROOM
    ext_unit_set_size(p, <int16_t>size[0])
    ext_unit_set_tags_code(p, tags_code)
    ext_unit_set_store_timestamp(p, store_timestamp)
    ext_unit_set_bitmap_bytes(p, <int16_t>bitmap_len)
    if bitmap_len:
        memcpy(p + EXT_UNIT_FIXED_BYTES, bitmap, bitmap_len)
    return EXT_OK


# ------------------------------------------------------------------------------------------------------ for Python

STATUS_NAMES: tuple[str, ...] = ("ok", "end", "bad", "no room")


def is_address(int64_t tags_code):
    """Whether the tags code of a queue entry is the address of a unit."""
    return ext_is_address(tags_code)


def address_of(int64_t position):
    """The address of the unit at `position`, for its queue entry (ConsumeQueueExt.decorate)."""
    return ext_address(position)


def position_of(int64_t address):
    """Position of an address's unit in the extended queue (ConsumeQueueExt.unDecorate)."""
    return ext_position(address)


def read(const uint8_t[::1] data, Py_ssize_t position=0):
    """(status name, size, tags code, store timestamp in ms, bitmap) of the unit at `position` in a file's bytes."""
    cdef ext_view v
    cdef int status
    if not 0 <= position <= data.shape[0]:
        raise ValueError(f"position {position} is outside {data.shape[0]} bytes")
    if position == data.shape[0]:
        return "end", 0, 0, 0, b""
    status = ext_read(&data[position], data.shape[0] - position, &v)
    if status != EXT_OK:
        return STATUS_NAMES[status], 0, 0, 0, b""
    return "ok", v.size, v.tags_code, v.store_timestamp, (<const char*>v.bitmap)[:v.bitmap_len]


def put(uint8_t[::1] data, Py_ssize_t position, int64_t tags_code, int64_t store_timestamp, bytes bitmap=b""):
    """Writes a unit, or the end mark, at `position` of a file's bytes; returns (status name, size of the unit)."""
    cdef int size = 0
    cdef int status
    if not 0 <= position < data.shape[0]:
        raise ValueError(f"position {position} is outside {data.shape[0]} bytes")
    if len(bitmap) > <Py_ssize_t>EXT_UNIT_BYTES_MAX:
        raise ValueError(f"a bitmap of {len(bitmap)} bytes is longer than a unit can be")
    status = ext_put(&data[position], data.shape[0] - position, tags_code, store_timestamp,
                     <const uint8_t*><const char*>bitmap, <int>len(bitmap), &size)
    return STATUS_NAMES[status], size
