"""Resources of the operating system that end with their objects: descriptors, a lock on a byte of a file, the name of
a temporary file.

A signal handler may raise between any two instructions of Python. Each of these objects therefore takes its
resource in one C call and releases it in C: in `close`, at the end of its with block, or when the interpreter drops the
object before that.

A look at names and at open files keeps the GIL: it takes a microsecond, and a thread that gives the GIL away waits up
to 5 ms until it has it again, and makes a put wait for some 0.1 ms.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EACCES, EAGAIN, EINTR, errno
from libc.stdint cimport int64_t, uint64_t

import os

cdef extern from *:
    """
    #include <errno.h>
    #include <fcntl.h>
    #include <sys/syscall.h>
    #include <unistd.h>

    #ifndef SYS_openat2
    #define SYS_openat2 437  /* on every architecture */
    #endif

    struct cystore_open_how { unsigned long long flags, mode, resolve; };

    static int cystore_openat2(int folder, const char *path, int flags, unsigned long long resolve) {
        struct cystore_open_how how = {(unsigned int)flags, 0, resolve};
        return (int)syscall(SYS_openat2, folder, path, &how, sizeof how);
    }

    /* Takes or gives back an open-file-description lock on one byte. Returns 0, or -1 with errno. */
    static int cystore_lock_byte(int fd, int kind, long long at, int wait) {
        struct flock lock = {.l_type = (short)kind, .l_whence = SEEK_SET, .l_start = at, .l_len = 1};
        return fcntl(fd, wait ? 38 : 37, &lock);  /* F_OFD_SETLKW, F_OFD_SETLK */
    }
    """
    int cystore_openat2(int folder, const char* path, int flags, uint64_t resolve) nogil
    int cystore_lock_byte(int fd, int kind, int64_t at, int wait) nogil
    int openat(int folder, const char* path, int flags, int mode) nogil
    int unlinkat(int folder, const char* path, int flags) nogil
    int close(int fd) nogil
    int F_RDLCK, F_WRLCK, F_UNLCK, O_CLOEXEC, O_PATH

cdef extern from "<sys/stat.h>" nogil:
    cdef struct file_status "stat":
        uint64_t st_dev, st_ino
        unsigned int st_mode, st_uid
    int fstat(int fd, file_status* found)
    int look_up "stat" (const char* path, file_status* found)


@cython.final
@cython.auto_pickle(False)
cdef class Descriptor:
    """Owns the descriptor `fd`; -1 once it is closed. A with block gives the number, and closes it at its end."""

    cdef readonly int fd
    cdef bint names_only  # O_PATH

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        if self.fd >= 0:
            close(self.fd)

    def __enter__(self):
        return self.fd

    def __exit__(self, kind, error, trace):
        self.close()

    def close(self):
        """Safe to call twice."""
        cdef int fd = self.fd
        self.fd = -1
        if fd < 0:
            return
        if self.names_only:
            close(fd)
            return
        with nogil:
            close(fd)

    def kind(self):
        """(mode, owner) of the open file, as in `os.stat_result`. Raises OSError."""
        cdef file_status found
        if fstat(self.fd, &found):
            raise OSError(errno, os.strerror(errno))
        return found.st_mode, found.st_uid


def open_in(int folder, name, int flags, int mode=0o600):
    """Opens `name` beneath the open folder `folder` (AT_FDCWD: the working directory) by openat(2), closed on exec.
    Raises OSError."""
    return _opened(folder, name, flags, mode, False, 0)


def open_beneath(int folder, name, int flags, uint64_t resolve):
    """Opens `name` by openat2(2), closed on exec; `resolve` are its RESOLVE_ flags. Raises OSError; ENOSYS before
    Linux 5.6."""
    return _opened(folder, name, flags, 0, True, resolve)


def identity_of(path):
    """(device, inode) of a path, which may be a link. Raises OSError."""
    cdef file_status found
    cdef bytes encoded = _path(path)
    if look_up(<const char*>encoded, &found):
        raise OSError(errno, os.strerror(errno), path)
    return found.st_dev, found.st_ino


cdef inline int _open(int folder, const char* path, int flags, int mode, bint resolved, uint64_t resolve,
                      int* fd) noexcept nogil:
    """0, or the error."""
    if resolved:
        fd[0] = cystore_openat2(folder, path, flags | O_CLOEXEC, resolve)
    else:
        fd[0] = openat(folder, path, flags | O_CLOEXEC, mode)
    return 0 if fd[0] >= 0 else errno


cdef Descriptor _opened(int folder, name, int flags, int mode, bint resolved, uint64_t resolve):
    cdef Descriptor opened = Descriptor.__new__(Descriptor)
    cdef bytes encoded = _path(name)
    cdef const char* path = encoded
    cdef int code = EINTR
    opened.names_only = flags & O_PATH != 0
    while code == EINTR:
        if opened.names_only:
            code = _open(folder, path, flags, mode, resolved, resolve, &opened.fd)
        else:
            with nogil:
                code = _open(folder, path, flags, mode, resolved, resolve, &opened.fd)
        if code == EINTR:
            PyErr_CheckSignals()
    if code:
        raise OSError(code, os.strerror(code), name)
    return opened


cdef int CALLS = 10


cdef bytes _path(name):
    cdef bytes encoded = os.fsencode(name)
    if b"\0" in encoded:
        raise ValueError("embedded null byte")
    return encoded


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class InFolder:
    """A name in an open folder, for calls that take both: a with block gives (descriptor, name). With `owned` its end
    closes the folder."""

    cdef Descriptor folder
    cdef str name
    cdef bint owned

    def __cinit__(self, Descriptor folder not None, str name not None, *, bint owned):
        self.folder, self.name, self.owned = folder, name, owned

    def __enter__(self):
        return self.folder.fd, self.name

    def __exit__(self, kind, error, trace):
        if self.owned:
            self.folder.close()


@cython.final
@cython.no_gc
@cython.auto_pickle(False)
cdef class Temporary:
    """The name of a file that is not finished yet: it is unlinked at the end of the with block, or when this object
    is dropped. A file that was renamed meanwhile does not have this name any more, and stays. Owns `folder`; a
    with block gives `path`."""

    cdef Descriptor folder
    cdef bytes name
    cdef object path

    def __cinit__(self, Descriptor folder not None, str name not None, path):
        self.folder, self.name, self.path = folder, _path(name), path

    def __dealloc__(self):
        self.remove()

    def __enter__(self):
        return self.path

    def __exit__(self, kind, error, trace):
        self.remove()

    cdef void remove(self) noexcept:
        cdef int fd
        if self.folder is None or self.folder.fd < 0:
            return
        fd, self.folder.fd = self.folder.fd, -1
        # ENOENT: the file was renamed. After another error the next load removes the file.
        unlinkat(fd, <const char*>self.name, 0)
        close(fd)


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class ByteLock:
    """A with block under a lock of one byte of an open file (F_OFD_SETLKW): other processes, and other openings of
    the file, wait.

    Ctrl-C ends a wait. `waiting()` is called before a wait, and `set` of its result after it. With `owned` the
    block's end closes the file too. Raises OSError.
    """

    cdef Descriptor file
    cdef int64_t at
    cdef int kind
    cdef bint owned, held
    cdef object waiting

    def __cinit__(self, Descriptor file not None, int64_t at, *, bint shared=False, bint owned=False, waiting=None):
        self.file, self.at, self.owned, self.waiting = file, at, owned, waiting
        self.kind = F_RDLCK if shared else F_WRLCK

    def __dealloc__(self):
        self.give()

    def __enter__(self):
        if not self._take(False):
            wait_ended = None if self.waiting is None else self.waiting()
            try:
                self._take(True)
            finally:
                if wait_ended is not None:
                    wait_ended.set()

    def __exit__(self, kind, error, trace):
        self.give()

    cdef bint _take(self, bint wait) except -1:
        cdef int code = EINTR, fd
        while code == EINTR:
            fd = self.file.fd
            with nogil:
                code = 0 if cystore_lock_byte(fd, self.kind, self.at, wait) == 0 else errno
                self.held = code == 0
            if code == EINTR:
                PyErr_CheckSignals()
        if code == EAGAIN or code == EACCES:
            return False
        if code:
            raise OSError(code, os.strerror(code))
        return True

    cdef void give(self) noexcept:
        if self.held and self.file is not None and self.file.fd >= 0:
            cystore_lock_byte(self.file.fd, F_UNLCK, self.at, False)
        self.held = False
        if self.owned and self.file is not None:
            self.file.close()


@cython.final
@cython.no_gc_clear
@cython.auto_pickle(False)
cdef class AtDrop:
    """Calls `call()` when it is dropped, also at the end of the process, unless `cancel` was called before. The
    exception of a signal handler can end the call: then `call()` is repeated, up to CALLS times. An exception of the
    last call is written to sys.stderr, as for any finalizer.

    weakref.finalize would run Python code of its own before the call: an exception there loses the call.
    """

    cdef object call

    def __cinit__(self, call):
        self.call = call

    def cancel(self):
        """From now on a drop calls nothing."""
        self.call = None

    def __del__(self):
        cdef int left = CALLS
        call, self.call = self.call, None
        while call is not None:
            left -= 1
            try:
                call()
                return
            except BaseException:
                if left == 0:
                    raise
