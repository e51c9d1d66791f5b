from libc.errno cimport EAGAIN, EINTR, errno
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

cdef extern from "<endian.h>" nogil:
    uint32_t be32toh(uint32_t value)
    uint64_t be64toh(uint64_t value)
    uint32_t htobe32(uint32_t value)
    uint64_t htobe64(uint64_t value)

cdef extern from "<poll.h>" nogil:
    cdef struct pollfd:
        int fd
        short events
        short revents
    int poll(pollfd* fds, unsigned long count, int timeout_ms)
    short POLLIN, POLLOUT

cdef extern from "<sys/socket.h>" nogil:
    ssize_t send(int fd, const void* data, size_t count, int flags)
    ssize_t recv(int fd, void* data, size_t count, int flags)
    int shutdown(int fd, int how)
    int SHUT_RDWR
    int MSG_DONTWAIT, MSG_MORE, MSG_NOSIGNAL, MSG_PEEK

cdef extern from "<sys/sendfile.h>" nogil:
    ssize_t sendfile(int to, int from_, int64_t* offset, size_t count)

cdef enum:
    REPORT_BYTES = 8            # a report of a position; with the epoch twice as much
    FRAME_HEAD = 12             # of a frame; 8 more with the epoch, and 8 more with the confirmed position
    FRAME_HEAD_MAX = 28


cdef inline int64_t read_i64(const uint8_t* p) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, p, 8)
    return <int64_t>be64toh(value)


cdef inline int32_t read_i32(const uint8_t* p) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, p, 4)
    return <int32_t>be32toh(value)


cdef inline void write_i64(uint8_t* p, int64_t value) noexcept nogil:
    cdef uint64_t turned = htobe64(<uint64_t>value)
    memcpy(p, &turned, 8)


cdef inline void write_i32(uint8_t* p, int32_t value) noexcept nogil:
    cdef uint32_t turned = htobe32(<uint32_t>value)
    memcpy(p, &turned, 4)


cdef inline ssize_t look_at(int fd, uint8_t* data, size_t count) noexcept nogil:
    """The first bytes that have arrived. They stay in the socket. -1 with EAGAIN if there are none."""
    cdef ssize_t found = recv(fd, data, count, MSG_PEEK | MSG_DONTWAIT)
    while found < 0 and errno == EINTR:
        found = recv(fd, data, count, MSG_PEEK | MSG_DONTWAIT)
    return found


cdef inline ssize_t take(int fd, uint8_t* data, size_t count) noexcept nogil:
    """Receives what has arrived. -1 with EAGAIN if there is nothing."""
    cdef ssize_t found = recv(fd, data, count, MSG_DONTWAIT)
    while found < 0 and errno == EINTR:
        found = recv(fd, data, count, MSG_DONTWAIT)
    return found
