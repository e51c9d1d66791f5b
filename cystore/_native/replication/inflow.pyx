"""What a slave does for each piece of its master's log, without the interpreter's lock: receives it, verifies its
records, appends them, and reports the log's end.

It handles frames of log that continue this log, and appends that meet no obstacle. It leaves all else in the socket, or
in the received bytes, for the caller (cystore/ha/slave.py, copied_log.py), who does the same step by step.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_Release, PyObject_GetBuffer
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memmove

from cystore._native.append.append cimport APPEND_OK
from cystore._native.append.group_commit cimport GroupCommit
from cystore._native.append.copied cimport WRITE_FAILED, WRITTEN_AT_LEAST, CopiedRecords
from cystore._native.layout cimport BLANK_SIZE_MIN, LOCK_APPEND, control_block
from cystore._native.memory.atomics cimport load_i64, monotonic_ns, or_u32
from cystore._native.memory.control cimport Control
from cystore._native.memory.locks cimport control_enter, control_unlock
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.record_view cimport RECORD_OK, RECORD_SHORT
from cystore._native.replication.sockets cimport (
    FRAME_HEAD, FRAME_HEAD_MAX, MSG_DONTWAIT, MSG_NOSIGNAL, POLLIN, REPORT_BYTES, SHUT_RDWR, look_at, poll, pollfd,
    read_i32, read_i64, send, shutdown, take, write_i64
)
from libc.errno cimport EAGAIN, EINTR, errno

cdef enum:
    AHEAD_BYTES = 64 << 10      # of pages, made ready while nothing is to be received
    PIECE_BYTES = 256 << 10     # received at once: they are still in the processor's cache when they are appended
    REPORT_AFTER_BYTES = 1 << 20
    TURN_BYTES = 4 << 20
cdef int64_t NS_PER_MS = 1_000_000


cdef enum Step:
    APPENDED
    NEEDS_BYTES
    OBSTACLE                    # the caller appends, or raises the error


@cython.final
@cython.auto_pickle(False)
cdef class Inflow:
    """The received bytes `data[begin:end]` that are not appended yet, and the frame that they are from. One thread uses
    it."""

    cdef Control control
    cdef CopiedRecords records
    cdef readonly int64_t file_bytes, record_bytes_max
    cdef public object data             # a bytearray
    cdef public Py_ssize_t begin, end
    cdef public int64_t skip            # bytes of a blank that are still to come
    cdef public int64_t left            # bytes of the present frame that are still to come; -1: no frame has begun
    cdef public int64_t epoch           # in each header; -1: headers have none
    cdef public bint confirms           # headers have the confirmed position
    cdef public int64_t confirmed       # the highest one; -1: none
    cdef public int64_t masters_end     # the end of the master's log, by its frames; -1: not known
    cdef public int64_t reported        # the last report
    cdef public GroupCommit commits     # syncs the log of a member
    cdef public int prepared            # NEEDS_... of copied.pxd that the store says of itself already
    cdef MappedFile file                # the segment that appends go to
    cdef int64_t ready                  # up to here its pages are in memory
    cdef int fd                         # of this segment; -1: not open

    def __cinit__(self, Control control not None, CopiedRecords records not None, int64_t file_bytes,
                  int64_t record_bytes_max, data):
        self.control, self.records = control, records
        self.file_bytes, self.record_bytes_max = file_bytes, record_bytes_max
        self.data = data
        self.fd = self.left = self.epoch = self.confirmed = self.masters_end = self.reported = -1

    def append_to(self, MappedFile file, int64_t ready, int fd):
        """From now on records go to the segment `file`: up to `ready` through its mapping, long batches through its
        descriptor `fd`. None: the caller appends the next ones."""
        self.file, self.ready, self.fd = file, ready, fd

    def follow(self, int socket, int64_t wait_ms, bint reports):
        """Receives and appends for `wait_ms`, or until some MiB have come. Returns the number of received bytes, and
        whether the caller has to look at what comes next. `reports`: sends a report when there is no more to append,
        of a member when that is durable; otherwise returns for it."""
        cdef control_block* block = self.control.checked()
        cdef Py_buffer buffer
        cdef int64_t received = 0
        cdef bint odd
        keep = self.control.file
        PyObject_GetBuffer(self.data, &buffer, PyBUF_WRITABLE)
        try:
            with nogil:
                odd = self._follow(block, socket, <uint8_t*>buffer.buf, buffer.len, wait_ms, reports, &received)
        finally:
            PyBuffer_Release(&buffer)
        return received, odd

    cdef bint _follow(self, control_block* block, int socket, uint8_t* data, Py_ssize_t room, int64_t wait_ms,
                      bint reports, int64_t* received) noexcept nogil:
        cdef int64_t until_ns = monotonic_ns() + wait_ms * NS_PER_MS, left_ns, unreported = 0
        cdef ssize_t count
        cdef int step
        cdef pollfd waited
        while received[0] < TURN_BYTES:
            if self.left < 0:
                count = self._begin_frame(block, socket)
            else:
                if room - self.end < <Py_ssize_t>PIECE_BYTES and self.begin > 0:  # else the next pieces are short
                    memmove(data, data + self.begin, self.end - self.begin)
                    self.begin, self.end = 0, self.end - self.begin
                if self.end == room:
                    return True
                count = take(socket, data + self.end, <size_t>min(self.left, room - self.end, <int64_t>PIECE_BYTES))
                if count > 0:
                    self.left = self.left - count if count < self.left else -1
                    self.end += count
                    unreported += count
                    step = APPENDED
                    while step == APPENDED:
                        step = self._step(block, data)
                    if self.begin == self.end:
                        self.begin = self.end = 0
                    if step == OBSTACLE:
                        received[0] += count
                        return True
            if count > 0:
                received[0] += count
                if unreported < REPORT_AFTER_BYTES:
                    continue
            elif count == 0 or errno != EAGAIN:
                return True
            unreported = 0
            if load_i64(&block.wrote) - self.skip != self.reported:
                if not reports or not self._make_durable(block, until_ns):
                    return False
                if not self._report(block, socket):
                    return True
            if count > 0:
                continue
            if self.confirms and min(self.confirmed, load_i64(&block.wrote) - self.skip) > load_i64(&block.confirmed):
                return False  # the caller publishes that for readers
            self._make_ready(block)
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0:
                return False
            waited.fd, waited.events, waited.revents = socket, POLLIN, 0
            if poll(&waited, 1, <int>(left_ns // NS_PER_MS + 1)) < 0 and errno != EINTR:
                return True
        return False

    cdef void _make_ready(self, control_block* block) noexcept nogil:
        """Brings the next pages of the segment into memory, if few of them are. Otherwise the caller does that when
        records wait for it, and puts wait for this slave."""
        cdef int64_t wrote = load_i64(&block.wrote), begin, upto
        if self.file is None or wrote < self.file.base or self.ready - wrote >= <int64_t>AHEAD_BYTES:
            return
        begin = max(self.ready, wrote)
        upto = min(begin + <int64_t>AHEAD_BYTES, self.file.base + <int64_t>self.file.length, load_i64(&block.allocated))
        if upto > begin and self.file.populate_pages(begin - self.file.base, upto - self.file.base) == 0:
            self.ready = upto

    cdef ssize_t _begin_frame(self, control_block* block, int socket) noexcept nogil:
        """Receives a header. Returns its length; 0 for one that the caller looks at; -1 with errno."""
        cdef uint8_t[FRAME_HEAD_MAX] head
        cdef Py_ssize_t length = FRAME_HEAD + (0 if self.epoch < 0 else 8) + (8 if self.confirms else 0)
        cdef ssize_t count = look_at(socket, head, length)
        cdef int64_t offset, size
        if count < 0:
            return -1
        if count < length:
            return 0
        offset, size = read_i64(head), read_i32(head + 8)
        if offset != load_i64(&block.wrote) - self.skip + self.end - self.begin or size < 0 or offset == 0 \
                or size > TURN_BYTES or self.epoch >= 0 and read_i64(head + FRAME_HEAD) != self.epoch:
            return 0
        if take(socket, head, length) != length:
            return 0
        if self.confirms:
            self.confirmed = max(self.confirmed, read_i64(head + FRAME_HEAD + 8))
        self.masters_end = max(self.masters_end, offset + size)
        self.left = size if size > 0 else -1
        return length

    cdef int _step(self, control_block* block, uint8_t* data) noexcept nogil:
        """Appends one batch of records."""
        cdef int64_t skipped = min(self.skip, <int64_t>(self.end - self.begin)), position, file_end
        cdef int status, fd
        cdef bint is_ready
        self.begin += skipped
        self.skip -= skipped
        if self.begin == self.end:
            return NEEDS_BYTES
        position = load_i64(&block.wrote)
        file_end = position - position % self.file_bytes + self.file_bytes
        status = self.records.gather(data + self.begin, self.end - self.begin, position, file_end)
        if self.records.count == 0:
            if (status == RECORD_SHORT or status == RECORD_OK) and self.records.short <= self.record_bytes_max:
                return NEEDS_BYTES
            return OBSTACLE
        is_ready = position + self.records.length + <int64_t>BLANK_SIZE_MIN <= self.ready
        fd = -1 if self.records.length < <int64_t>WRITTEN_AT_LEAST and is_ready else self.fd
        if self.file is None or self.records.needs & ~self.prepared \
                or not self.file.base <= position < self.file.base + self.file.length or fd < 0 and not is_ready:
            return OBSTACLE
        if not control_enter(block, LOCK_APPEND, &self.control.me, False):
            return OBSTACLE
        status = APPEND_OK if load_i64(&block.wrote) == position else -1
        if status == APPEND_OK:
            status = self.records.append_to(block, self.file.address + (position - self.file.base), fd,
                                       position - self.file.base)
        if status == WRITE_FAILED:
            or_u32(&block.repair_due, 1u << LOCK_APPEND)
        control_unlock(block, LOCK_APPEND, &self.control.me)
        if status != APPEND_OK:
            return OBSTACLE
        self.records.wake_all(block)
        self.begin += self.records.length
        return APPENDED

    cdef bint _make_durable(self, control_block* block, int64_t until_ns) noexcept nogil:
        """A member reports only what is on its disk. False: the caller syncs it, or raises the error."""
        return self.epoch < 0 or self.commits is not None and self.file is not None and self.commits.make_durable(
            block, self.file, load_i64(&block.wrote) - self.skip, until_ns)

    cdef bint _report(self, control_block* block, int socket) noexcept nogil:
        cdef uint8_t[2 * REPORT_BYTES] report
        cdef int64_t position = load_i64(&block.wrote) - self.skip
        cdef ssize_t length = REPORT_BYTES if self.epoch < 0 else 2 * REPORT_BYTES, sent
        write_i64(report, position)
        write_i64(report + REPORT_BYTES, self.epoch)
        sent = send(socket, report, length, MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent != length:
            if sent > 0:
                shutdown(socket, SHUT_RDWR)  # half a number must not be taken for another one
            return False  # the caller's report fails too, or waits
        self.reported = position
        return True
