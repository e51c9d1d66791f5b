"""Walks the log to the next record that contains a text. It searches all bytes at once, some records at a time, and
reads of the records no more than their heads: it is several times as fast as a look into each record."""

from libc.stdint cimport int64_t, uint8_t

from cystore._native.filters.program cimport FilterProgram, filter_program, filter_takes, find_bytes
from cystore._native.layout cimport SYS_FLAG_COMPRESSED
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_read cimport record_at, walk_begin
from cystore._native.record.record_view cimport RECORD_OK, record_view

cdef enum:
    PIECE_BYTES = 65536     # searched at once: they stay in the second-level cache for the look at the heads


cdef int64_t _hit(const filter_program* program, const uint8_t* p, int64_t at, int64_t end) noexcept nogil:
    """The place of the first text in p[at:end); `end` if there is none."""
    cdef const uint8_t* found
    cdef int64_t hit = end
    cdef int i
    for i in range(program.contained_count):
        found = find_bytes(p + at, <size_t>(hit - at), program.contained[i].text, <size_t>program.contained[i].length)
        if found != NULL:
            hit = found - p
    return hit


cdef int _longest(const filter_program* program) noexcept nogil:
    cdef int i, longest = 0
    for i in range(program.contained_count):
        longest = max(longest, program.contained[i].length)
    return longest


cdef int64_t _next(const filter_program* program, const uint8_t* p, int64_t base, int64_t at, int64_t end,
                   int64_t limit, int64_t length) except -1 nogil:
    cdef record_view v
    cdef int64_t following, piece_end
    cdef int64_t clear = at         # no text begins in p[at:clear)
    cdef int64_t overlap = _longest(program) - 1
    cdef bint is_hit = False        # a text begins at `clear`
    walk_begin(&v)
    while at < end:
        if record_at(p + at, <size_t>(limit - at), base + at, base + length, False, &v) != RECORD_OK \
                or v.sys_flag & SYS_FLAG_COMPRESSED:
            return at
        following = at + v.total_size
        if clear < at:
            clear, is_hit = at, False
        while not is_hit and clear < following:
            piece_end = min(clear + <int64_t>PIECE_BYTES + overlap, limit)
            clear = _hit(program, p, clear, piece_end)
            is_hit = clear < piece_end
            if not is_hit and piece_end < limit:
                clear -= overlap
        if clear < following and filter_takes(program, &v):
            return at
        at = following
    return at


def next_containing(MappedFile file not None, Py_ssize_t at, Py_ssize_t end, Py_ssize_t limit,
                    FilterProgram program not None):
    """The place in a mapped file of the first record in [at, end) that the program takes, which has texts; or of the
    first place there without a record that can be walked over. If there is none, the place where the first record at or
    behind `end` would begin. No record ends behind `limit`. Checksums are not compared."""
    cdef int64_t found
    cdef const uint8_t* address = file.address
    cdef int64_t base = file.base, length = file.length
    if not 0 <= at <= end <= limit <= file.length or program.c.contained_count == 0:
        raise ValueError(f"[{at}, {end}), {limit}: not in a file of {file.length} bytes, or no text is searched")
    with nogil:
        found = _next(&program.c, address, base, at, end, limit, length)
    return found
