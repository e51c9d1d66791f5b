"""What a master does again and again for its slaves, without the interpreter's lock: ships what was appended, and takes
the reports.

It handles slaves that follow, get nothing but log, and report positions that they were sent. It leaves all else in the
sockets for the caller (cystore/ha/master.py, connection.py), who does the same step by step.
"""

cimport cython
from cpython.object cimport PyObject
from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint8_t, uint32_t

from cystore._native.layout cimport KEY_WORDS, control_block
from cystore._native.memory.atomics cimport load_i64, load_u32, monotonic_ns, raise_i64
from cystore._native.memory.control cimport Control
from cystore._native.memory.locks cimport control_wait_key, control_wake_key
from cystore._native.replication.sockets cimport (
    FRAME_HEAD, FRAME_HEAD_MAX, MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, POLLIN, POLLOUT, REPORT_BYTES, look_at, poll,
    pollfd, read_i64, send, sendfile, take, write_i32, write_i64
)

cdef enum:
    SLAVES_MAX = 64
    REPORTS_BYTES = 4096        # received at once
    TURN_BYTES = 4 << 20        # shipped to one slave before the others get their turn
    WANTED_BYTES = 1 << 20      # of appends between two looks: a turn costs both sides a wake-up
    MOST_LOOKS = 4
cdef int64_t NS_PER_MS = 1_000_000


cdef enum State:
    HAS_ALL                     # the slave was sent the whole log
    HAS_MORE                    # the other slaves get their turn first
    IS_FULL                     # the connection takes no more now
    IS_ODD                      # the caller looks at this slave


@cython.final
@cython.auto_pickle(False)
cdef class Outflow:
    """The stream of log to one slave. Positions are of the log. One thread uses it."""

    cdef public int64_t next            # of the next frame; -1 before the slave's first report
    cdef public int64_t at, left        # of the frame that is being sent: position and number of bytes still to send
    cdef public int64_t acknowledged    # the end of the slave's log by its last report; -1 before the first
    cdef public int64_t file_base       # of the file that is open for sending
    cdef public int64_t frame_bytes     # the most bytes of log in one frame
    cdef public int64_t epoch           # in each header and report; -1: they have none
    cdef public bint confirms           # headers have the confirmed position
    cdef public int64_t confirmed       # as the last header had it
    cdef public double heard_s, sent_s  # on the monotonic clock
    cdef public int socket, file        # descriptors; -1: none
    cdef uint8_t[FRAME_HEAD_MAX] head
    cdef Py_ssize_t head_sent, head_bytes   # of a header that the connection took only a part of

    def __cinit__(self, int socket, int64_t frame_bytes, double now_s):
        self.socket, self.frame_bytes = socket, frame_bytes
        self.heard_s = self.sent_s = now_s
        self.next = self.acknowledged = self.file_base = self.epoch = self.file = -1

    def rest(self):
        """The rest of a header of which a part was sent, once: the caller sends it."""
        cdef bytes rest = <bytes>self.head[self.head_sent:self.head_bytes]
        self.head_sent = self.head_bytes = 0
        return rest

    cdef State ship(self, control_block* block, int64_t file_bytes) noexcept nogil:
        """Sends what the slave lacks and the connection takes."""
        cdef int64_t begun = self.at, place, wrote
        cdef ssize_t sent
        cdef State state
        while True:
            while self.left > 0:
                place = self.at - self.file_base
                sent = sendfile(self.socket, self.file, &place, <size_t>self.left)
                if sent <= 0:
                    if sent < 0 and errno == EINTR:
                        continue
                    return IS_FULL if sent < 0 and errno == EAGAIN else IS_ODD
                self.sent_s = monotonic_ns() * 1e-9
                self.at += sent
                self.left -= sent
            wrote = load_i64(&block.wrote)
            if self.next >= wrote:
                return HAS_ALL
            if self.at - begun > TURN_BYTES:
                return HAS_MORE
            state = self._begin_frame(block, wrote, file_bytes)
            if state != HAS_MORE:
                return state

    cdef State _begin_frame(self, control_block* block, int64_t wrote, int64_t file_bytes) noexcept nogil:
        cdef int64_t base = self.next - self.next % file_bytes, end, confirmed = 0
        cdef Py_ssize_t length = FRAME_HEAD
        cdef ssize_t sent
        end = min(wrote, base + file_bytes, self.next + self.frame_bytes)
        if self.file < 0 or self.file_base != base or self.next < load_i64(&block.min_physical_offset):
            return IS_ODD
        write_i64(self.head, self.next)
        write_i32(self.head + 8, <int>(end - self.next))
        if self.epoch >= 0:
            write_i64(self.head + length, self.epoch)
            length += 8
            if self.confirms:
                confirmed = load_i64(&block.confirmed)
                write_i64(self.head + length, confirmed)
                length += 8
        sent = send(self.socket, self.head, length, MSG_MORE | MSG_DONTWAIT | MSG_NOSIGNAL)
        if sent <= 0:
            return IS_FULL if sent < 0 and (errno == EAGAIN or errno == EINTR) else IS_ODD
        self.sent_s = monotonic_ns() * 1e-9
        if self.confirms:
            self.confirmed = confirmed
        self.at, self.left, self.next = self.next, end - self.next, end
        if sent == length:
            return HAS_MORE
        self.head_sent, self.head_bytes = sent, length
        return IS_ODD

    cdef bint hear(self, control_block* block) noexcept nogil:
        """Takes the reports that have arrived. False if something else has arrived: the caller reads it."""
        cdef uint8_t[REPORTS_BYTES] reports
        cdef int64_t length = REPORT_BYTES if self.epoch < 0 else 2 * REPORT_BYTES, position, acknowledged
        cdef Py_ssize_t used = 0
        cdef ssize_t count = look_at(self.socket, reports, REPORTS_BYTES)
        if count <= 0:
            return count < 0 and errno == EAGAIN
        acknowledged = self.acknowledged
        while used + length <= count:
            position = read_i64(reports + used)
            if position < acknowledged or position > self.next - self.left or position < 0 \
                    or self.epoch >= 0 and read_i64(reports + used + REPORT_BYTES) != self.epoch:
                break
            acknowledged = position
            used += length
        if used and take(self.socket, reports, used) != used:
            return False
        if used:
            self.heard_s = monotonic_ns() * 1e-9
            self.acknowledged = acknowledged
        return used == count


def relay(Control control not None, uint32_t key, uint32_t seen, int64_t wait_ms):
    """Rings the bell of the thread that serves slaves each time that another process wakes `key`, for `wait_ms`, or
    until there is no bell. `seen`: the word of the key before; returns the last one."""
    cdef control_block* block = control.checked()
    cdef int64_t until_ns = monotonic_ns() + wait_ms * NS_PER_MS, left_ns
    cdef uint32_t now
    keep = control.file
    with nogil:
        while True:
            left_ns = until_ns - monotonic_ns()
            if left_ns <= 0 or control_wait_key(block, key, seen, left_ns // NS_PER_MS + 1) == EINTR:
                break
            now = load_u32(&block.key_seq[key % <uint32_t>KEY_WORDS])
            if now != seen:
                seen = now
                if not control.ring_bell():
                    break
    return seen


def serve(Control control not None, list slaves not None, int bell, int listener, int64_t file_bytes, int64_t wait_ms,
          int64_t turn_ms, key, flushed=None):
    """Ships to the slaves, and takes their reports, for `turn_ms`; returns before that if the caller has to do
    something. It looks for appends every `wait_ms`, and at once when `bell` has a byte. `listener`: the caller accepts
    what arrives there. `key` is woken after a report, whose position is published as `replicated`; then the looks are
    up to MOST_LOOKS times as far apart while few bytes come. None: the caller publishes, after a report, and when the
    flushed position is not `flushed` any more, unless that is None."""
    cdef control_block* block = control.checked()
    cdef PyObject* flows[SLAVES_MAX]
    cdef Py_ssize_t count = len(slaves), i
    cdef uint32_t woken = 0 if key is None else key
    cdef bint publishes = key is not None
    cdef int64_t known = -1 if flushed is None else flushed
    keep, kept = control.file, list(slaves)
    if count > SLAVES_MAX:
        raise ValueError(f"{count} slaves, at most {SLAVES_MAX}")
    for i in range(count):
        flows[i] = <PyObject*><Outflow?>kept[i]
    with nogil:
        _serve(block, flows, count, bell, listener, file_bytes, wait_ms, turn_ms, publishes, woken, known)


cdef void _serve(control_block* block, PyObject** flows, Py_ssize_t count, int bell, int listener, int64_t file_bytes,
                 int64_t wait_ms, int64_t turn_ms, bint publishes, uint32_t key, int64_t flushed) noexcept nogil:
    cdef pollfd[SLAVES_MAX + 2] waited
    cdef uint8_t[64] rings
    cdef int64_t now_ns = monotonic_ns(), until_ns = now_ns + turn_ms * NS_PER_MS, looked_ns = 0, due_ns = now_ns
    cdef int64_t least_ns = wait_ms * NS_PER_MS, look_ns, shipped, best, before, sleep_ms
    cdef Py_ssize_t i
    cdef State state
    cdef bint more = False, moved
    waited[count].fd, waited[count].events = bell, POLLIN
    waited[count + 1].fd, waited[count + 1].events = listener, POLLIN
    while True:
        if now_ns >= due_ns:
            more, shipped = False, 0
            for i in range(count):
                before = (<Outflow>flows[i]).at
                state = (<Outflow>flows[i]).ship(block, file_bytes)
                if state == IS_ODD:
                    return
                shipped = max(shipped, (<Outflow>flows[i]).at - before)
                more |= state == HAS_MORE
                waited[i].fd = (<Outflow>flows[i]).socket
                waited[i].events = POLLIN | POLLOUT if state == IS_FULL else POLLIN
            look_ns = least_ns
            if looked_ns and publishes:  # else the caller looks at the flushed position, too
                look_ns = (now_ns - looked_ns) * <int64_t>WANTED_BYTES // max(shipped, 1)
                look_ns = min(max(look_ns, least_ns), MOST_LOOKS * least_ns)
            looked_ns, due_ns = now_ns, now_ns if more else now_ns + look_ns
        now_ns = monotonic_ns()
        sleep_ms = (until_ns - now_ns) // NS_PER_MS + 1
        if sleep_ms <= 0 or (not publishes and 0 <= flushed != load_i64(&block.flushed)):
            return
        if poll(waited, count + 2, <int>min(sleep_ms, max(due_ns - now_ns + NS_PER_MS - 1, 0) // NS_PER_MS)) < 0:
            return  # a signal
        now_ns = monotonic_ns()
        if waited[count].revents:
            take(bell, rings, 64)
            due_ns = now_ns
        best, moved = 0, False
        for i in range(count):
            before = (<Outflow>flows[i]).acknowledged
            if waited[i].revents & ~POLLOUT and not (<Outflow>flows[i]).hear(block):
                return
            if waited[i].revents & POLLOUT:
                due_ns = now_ns
            moved |= (<Outflow>flows[i]).acknowledged != before
            best = max(best, (<Outflow>flows[i]).acknowledged)
        if waited[count + 1].revents:
            return
        if publishes:
            if best > load_i64(&block.replicated):
                raise_i64(&block.replicated, best)
                control_wake_key(block, key)
        elif moved:
            return
