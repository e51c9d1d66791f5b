from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t

cdef enum:
    CACHE_LINE_BYTES = 64

cdef extern from "<errno.h>" nogil:
    const int EAGAIN, EBUSY, EDEADLK, EINTR, EOWNERDEAD, ETIMEDOUT

cdef extern from "<pthread.h>" nogil:
    ctypedef struct pthread_mutex_t:
        pass
    int pthread_mutex_trylock(pthread_mutex_t* mutex)
    int pthread_mutex_lock(pthread_mutex_t* mutex)
    int pthread_mutex_unlock(pthread_mutex_t* mutex)
    int pthread_mutex_consistent(pthread_mutex_t* mutex)

cdef extern from "atomics.h" nogil:
    int64_t load_i64(const int64_t* p)
    void store_i64(int64_t* p, int64_t v)
    bint replace_i64(int64_t* p, int64_t expected, int64_t v)
    void raise_i64(int64_t* p, int64_t v)
    uint32_t load_u32(const uint32_t* p)
    void store_u32(uint32_t* p, uint32_t v)
    uint64_t load_u64(const uint64_t* p)
    void store_u64(uint64_t* p, uint64_t v)
    uint32_t add_u32(uint32_t* p, uint32_t v)
    uint64_t add_u64(uint64_t* p, uint64_t v)
    uint32_t sub_u32(uint32_t* p, uint32_t v)
    uint32_t exchange_u32(uint32_t* p, uint32_t v)
    uint32_t sleepers_after_unlock(const uint32_t* word)
    uint32_t or_u32(uint32_t* p, uint32_t v)
    uint32_t and_u32(uint32_t* p, uint32_t v)
    void full_fence()
    void release_fence()
    void prefetch_for_read(const void* p)
    void prefetch_early(const void* p)
    void prefetch_for_write(const void* p)
    void touch_byte(uint8_t* p)
    void publish_be32(uint8_t* p, uint32_t v)
    uint32_t observe_be32(const uint8_t* p)
    int futex_wait(const uint32_t* word, uint32_t expected, int64_t timeout_ms)
    void futex_wake_all(const uint32_t* word)
    int futex_wait_bits(const uint32_t* word, uint32_t expected, uint32_t bits, int64_t timeout_ms)
    void futex_wake_bits(const uint32_t* word, uint32_t bits)
    int robust_init(pthread_mutex_t* mutex)
    int32_t robust_owner(const pthread_mutex_t* mutex)
    bint robust_owned_by_other_thread(const pthread_mutex_t* mutex)
    int32_t thread_id()
    int64_t monotonic_ns()
    int64_t clock_now_ms()
    int64_t clock_coarse_ms()
    pthread_mutex_t* control_mutex(control_block_opaque* block, int which)
    ctypedef struct control_block_opaque "control_block":
        pass
