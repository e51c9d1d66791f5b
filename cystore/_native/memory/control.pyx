"""The control block: the memory that all processes attached to one store share.

All of it can be recomputed from the store's files: the first process that attaches builds it and trusts no byte of an
earlier block.
The scheme (layout fingerprint, reader-friendly slots, one writer per cache line) follows LMDB's lock file.
"""

cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy, memset

import os

from cystore._native.memory.atomics cimport (
    add_u32, add_u64, and_u32, clock_coarse_ms, exchange_u32, full_fence, futex_wait, futex_wake_all, load_i64,
    load_u32, load_u64, or_u32, pthread_mutex_t, raise_i64, robust_init, store_i64, store_u32, store_u64
)
from cystore._native.layout cimport (
    CONTROL_BUCKETS, CONTROL_MAGIC, CONTROL_QUEUES_AT, DUTIES_MAX, INCARNATION_BITS, KEY_WORDS, LATENCY_BUCKETS,
    LAYOUT_FINGERPRINT, PROCESS_SLOT_BITS, PROCESS_SLOTS, TOPIC_BYTES_MAX, WORDS_OF_DUTY, control_block, process_slot,
    queue_entry
)
from cystore._native.memory.control_fields cimport ControlFields
from cystore._native.memory.locks cimport (
    control_block_opaque, control_intact, control_lock_at, process_slots_of, slot_take
)
from cystore._native.memory.locks import locks_inline
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport (control_add_queue, control_find_queue, control_relink_newest,
                                                 control_slot)
from cystore.errors import StoreClosedError, StoreFormatError, StoreFullError, StoreResourceError
from cystore.layout import LAYOUT_VERSION, MUTEX_NAMES, RELEASE

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef extern from "wallclock.h" nogil:
    void store_clock_first(control_block* block)
    int CLOCK_BOOTTIME
    int64_t clock_read_ms(int which)

cdef extern from *:
    """
    #include "lock_owner.h"
    /* Whether another handle has the byte of a slot, or the kernel does not say. */
    static int slot_is_taken(int fd, uint32_t slot) {
        struct flock found;
        return slot_byte(fd, CYSTORE_F_OFD_GETLK, F_WRLCK, slot, &found) != 0 || found.l_type != F_UNLCK;
    }
    """
    bint slot_is_taken(int fd, uint32_t slot) nogil

cdef uint32_t SLOTS_PER_STEP = 256

# Values of the word `handover`; any other is the second of CLOCK_BOOTTIME at which the request ends.
cdef uint32_t EVERYBODY = 1             # without an end, and also for processes that attach later
cdef uint32_t UNTIL_CANCELLED = 0x8000_0000  # this bit: without an end

ASKED_EVERYBODY, ASKED_UNTIL_CANCELLED = EVERYBODY, UNTIL_CANCELLED

# Properties that only writers must have in common, and the advice when they differ.
cdef dict HINTS = {
    "C library": ". Writers must share one, because each has its own format of locks: use the same image. Reading "
                 "(read_only=True) works from here",
    "PID namespace": ". With this C library writers must share one, because it knows the owner of a lock by its thread "
                     "id alone: start this process with "
                     "`--pid=host` or `--pid=container:NAME` (in a pod: shareProcessNamespace). Reading "
                     "(read_only=True) works from here",
}

# Where a reader ends; see `read_end`.
WROTE, CONFIRMED = READ_WROTE, READ_CONFIRMED

# The fingerprint of the shared layout. `attach` refuses a block with another fingerprint.
FINGERPRINT = LAYOUT_FINGERPRINT


cdef str _text(const char* constant):
    """A text constant of the block; bytes that are not ASCII are escaped."""
    return constant[:40].split(b"\0")[0].decode("ascii", "backslashreplace")


@cython.no_gc_clear  # like its base class SharedLocks
cdef class Control(ControlFields):
    """A handle on the control block of one store. Positions are physical offsets in bytes, times are ms."""

    @staticmethod
    def size_bytes(uint32_t max_queues):
        """Length of the address range for `max_queues` queues."""
        return CONTROL_QUEUES_AT + sizeof(queue_entry) * max_queues

    @staticmethod
    def first_bytes(uint32_t max_queues):
        """Length of its first part, which must be allocated before `create`."""
        return CONTROL_QUEUES_AT + sizeof(queue_entry) * min(SLOTS_PER_STEP, max_queues)

    @staticmethod
    def create(MappedFile file not None, *, int64_t commit_log_file_bytes, int64_t consume_queue_file_bytes,
               uint32_t max_hash_slot_num, uint32_t max_index_num, uint32_t max_queues, uint64_t pid_namespace,
               str boot_id, str c_library):
        """Builds a new block in zeroed memory whose `first_bytes` are allocated. Only a process that is alone in the
        store may call it."""
        cdef Control self = Control.__new__(Control)
        cdef control_block* block = <control_block*>file.address
        cdef int which
        cdef bytes text
        if file.length < <Py_ssize_t>Control.size_bytes(max_queues):
            raise StoreFormatError("the control block is too short", path=file.path)
        self.file, self.block = file, block
        self._know_slots(pid_namespace)
        block.fingerprint = LAYOUT_FINGERPRINT
        block.page_bytes = os.sysconf("SC_PAGESIZE")
        block.mutex_bytes = sizeof(pthread_mutex_t)
        block.pid_namespace = pid_namespace
        block.commit_log_file_bytes = commit_log_file_bytes
        block.consume_queue_file_bytes = consume_queue_file_bytes
        block.max_hash_slot_num = max_hash_slot_num
        block.max_index_num = max_index_num
        block.max_queues = max_queues
        block.bucket_count = CONTROL_BUCKETS
        block.queue_capacity = min(SLOTS_PER_STEP, max_queues)
        text = boot_id.encode()[:39]
        memcpy(&block.boot_id[0], <const char*>text, len(text))
        text = c_library.encode()[:39]
        memcpy(&block.c_library[0], <const char*>text, len(text))
        block.generation = int.from_bytes(os.urandom(8), "big")
        block.layout_version = LAYOUT_VERSION
        text = RELEASE.encode()[:31]
        memcpy(&block.release[0], <const char*>text, len(text))
        for which in range(len(MUTEX_NAMES)):
            status = robust_init(control_lock_at(block, which))
            if status:
                raise OSError(status, os.strerror(status), file.path)
        store_clock_first(block)
        block.guard = ~CONTROL_MAGIC
        full_fence()
        block.magic = CONTROL_MAGIC
        return self

    @staticmethod
    def attach(MappedFile file not None, *, uint64_t pid_namespace, str boot_id, str c_library, bint sole_writer=False):
        """A handle on a block that another live process built. Raises StoreFormatError for a block of another kind.

        Only owners of locks need the same C library; and the same PID namespace, if that library takes the locks. A
        read-only handle accepts any. A `sole_writer` replaces them by its own: its caller knows that no other writer
        is attached or can attach meanwhile.
        """
        cdef Control self = Control.__new__(Control)
        cdef control_block* block = <control_block*>file.address
        if file.length < <Py_ssize_t>CONTROL_QUEUES_AT or not control_intact(block):
            raise StoreFormatError("the control block has another layout: another version of cystore is attached",
                                   path=file.path)
        for name, mine, theirs in (
            ("page size", os.sysconf("SC_PAGESIZE"), block.page_bytes),
            ("size of a mutex", sizeof(pthread_mutex_t), block.mutex_bytes),
            ("boot id", boot_id[:39], _text(&block.boot_id[0])),
            ("C library", c_library[:39], _text(&block.c_library[0])),
            ("PID namespace", pid_namespace, pid_namespace if locks_inline else block.pid_namespace),
        ):
            if mine != theirs and ((file.writable and not sole_writer) or name not in HINTS):
                raise StoreFormatError(f"attached processes differ in {name}: theirs {theirs}, ours "
                                       f"{mine}{HINTS.get(name, '')}",
                                       path=file.path)
        if file.length < <Py_ssize_t>Control.size_bytes(block.max_queues):
            raise StoreFormatError("the control block is shorter than it says", path=file.path)
        self.file, self.block = file, block
        self.request_before = load_u32(&block.handover)
        self.read_only = not file.writable
        self._know_slots(pid_namespace)
        if sole_writer and (block.pid_namespace != pid_namespace or _text(&block.c_library[0]) != c_library[:39]):
            self._take_over(pid_namespace, c_library)
        return self

    cdef int _take_over(self, uint64_t pid_namespace, str c_library) except -1:
        """Gives the block this process's namespace and C library. All earlier writers are gone, and this process cannot
        read their mutexes: it makes each lock anew, and the next holder repairs first. The block's namespace is 0
        meanwhile, so after a kill the next writer repeats everything."""
        cdef control_block* block = self.block
        cdef bytes library = c_library.encode()[:39]
        cdef int which
        store_u64(&block.pid_namespace, 0)
        or_u32(&block.repair_due, (1u << len(MUTEX_NAMES)) - 1)
        full_fence()
        for which in range(len(MUTEX_NAMES)):
            status = robust_init(control_lock_at(block, which))
            if status:
                raise OSError(status, os.strerror(status), self.file.path)
        memset(&block.c_library[0], 0, sizeof(block.c_library))
        memcpy(&block.c_library[0], <const char*>library, len(library))
        full_fence()
        store_u64(&block.pid_namespace, pid_namespace)
        return 0

    cdef void _know_slots(self, uint64_t pid_namespace) noexcept:
        self.me.pid_namespace = pid_namespace
        self.me.slots = process_slots_of(<control_block_opaque*>self.block)
        self.me.namespaces = &self.block.namespaces

    def enter(self, int fd):
        """Takes a slot of an attached process, by the lock on its byte of `lock`, whose descriptor is `fd`. Before this
        writer's first turn under a lock; under the gate. The slot is free again when `fd` is closed, after `detach`.
        Raises StoreResourceError when all slots are taken."""
        cdef control_block* block = self._writable()
        cdef uint32_t first = load_u32(&block.next_process), step, slot, incarnation
        cdef process_slot* entry
        cdef int status, sweep
        if load_u64(&block.pid_namespace) != self.me.pid_namespace:
            store_u32(&block.namespaces, 1)
            full_fence()  # before this process can take a lock, or die while it tries to
        for sweep in range(2):  # first those whose user has left, then those of killed processes
            for step in range(PROCESS_SLOTS):
                slot = (first + step) % PROCESS_SLOTS
                entry = &self.me.slots[slot]
                if sweep == 0 and load_u32(&entry.pid) != 0:
                    continue
                status = slot_take(fd, slot)
                if status == EAGAIN:
                    continue
                if status:
                    raise OSError(status, os.strerror(status), self.file.path)
                incarnation = (load_u32(&entry.incarnation) + 1) & ((1u << INCARNATION_BITS) - 1) or 1
                store_u32(&entry.incarnation, incarnation)
                store_u64(&entry.pid_namespace, self.me.pid_namespace)
                store_u32(&entry.pid, <uint32_t>self.me.pid)
                store_u32(&block.next_process, (slot + 1) % PROCESS_SLOTS)
                self.me.process = incarnation << PROCESS_SLOT_BITS | slot
                full_fence()
                self.me.fd = fd
                return
        raise StoreResourceError(f"{PROCESS_SLOTS} handles of processes have the store open for writing, which is the "
                                 "most: close some, or use one handle for a process", path=self.file.path)

    cdef void _leave(self) noexcept:
        """Marks the slot as one whose user has left. A turn of another thread may still run: the slot's byte stays
        locked until the caller closes the descriptor. In a forked child the slot is its parent's."""
        if self.me.fd < 0 or self.block == NULL:
            return
        self.me.fd = -1
        full_fence()  # from now on no thread believes what it finds out through the descriptor
        if self.me.pid == os.getpid():
            store_u32(&self.me.slots[self.me.process % PROCESS_SLOTS].pid, 0)

    @property
    def process(self):
        """The number by which locks name this handle: its slot and the slot's incarnation. 0: it has no slot."""
        self.checked()
        return self.me.process

    def processes(self):
        """(process, pid, PID namespace) of each slot in use; see `process`. Of a process that was killed, too, until
        another one takes its slot."""
        cdef process_slot* entry
        cdef uint32_t slot
        self.checked()
        found = []
        for slot in range(PROCESS_SLOTS):
            entry = &self.me.slots[slot]
            if load_u32(&entry.pid) != 0:
                found.append((load_u32(&entry.incarnation) << PROCESS_SLOT_BITS | slot, load_u32(&entry.pid),
                              load_u64(&entry.pid_namespace)))
        return found

    def namespace_of(self, uint32_t process):
        """The PID namespace of a process (see `process`), also of one that has ended; 0 if another one has its slot."""
        self.checked()
        cdef process_slot* entry = &self.me.slots[process % PROCESS_SLOTS]
        return load_u64(&entry.pid_namespace) if load_u32(&entry.incarnation) == process >> PROCESS_SLOT_BITS else 0

    def lives(self, uint32_t process):
        """Whether a process (see `process`) still has the store open: the kernel knows who has its slot's byte. True
        if this handle cannot ask: it has no slot itself."""
        self.checked()
        cdef process_slot* entry = &self.me.slots[process % PROCESS_SLOTS]
        cdef int fd = self.me.fd
        cdef bint taken
        if fd < 0 or process == 0 or process == self.me.process:
            return True
        if load_u32(&entry.incarnation) != process >> PROCESS_SLOT_BITS or load_u32(&entry.pid) == 0:
            return False
        taken = slot_is_taken(fd, process % PROCESS_SLOTS)
        return taken or self.me.fd != fd  # another thread may have closed the store meanwhile

    def follow(self):
        """From now on this block mirrors a block of another layout, to which this process cannot attach: no append or
        dispatch goes through it."""
        self.checked()
        self.read_only = True

    def index_files_changed(self):
        """Called after index files were added or removed: every process lists them anew."""
        add_u32(&self.checked().index_seq, 1)

    def key_changed(self, uint32_t key):
        """Wakes the waiters for a key after a record with it was found. Only for a block that no other process has."""
        cdef uint32_t* word = &self.checked().key_seq[key % KEY_WORDS]
        add_u32(word, 1)
        futex_wake_all(word)

    def detach(self):
        """Forgets the memory; every later call raises StoreClosedError."""
        self._leave()
        self.block = NULL
        self.committer = None
        self.repairs.clear()

    def release(self):
        """Drops the mapping, after `detach`. Only in a forked child, whose threads hold no locks."""
        self.file = None

    # ------------------------------------------------------------------------------------ the store's place

    @property
    def place_due(self):
        """Whether a call of the store has to look whether the path still leads to this store's directory. The kernels
        of `put`, `get` and `query` ask the same, of the same stamp."""
        if self.block == NULL:
            raise StoreClosedError("the store is closed")
        return clock_coarse_ms() - load_i64(&self.place_ms) >= PLACE_LOOK_MS

    @property
    def place_age_ms(self):
        """The age of the last look at the path. The clock is coarse: it moves each few milliseconds."""
        self.checked()
        return clock_coarse_ms() - load_i64(&self.place_ms)

    def place_seen(self):
        """The path leads to this store's directory now: no call looks again for PLACE_LOOK_MS."""
        self.checked()
        store_i64(&self.place_ms, clock_coarse_ms())

    # ------------------------------------------------------------------------------------ state of the store

    @property
    def closed(self): return self.block == NULL

    def advance_flushed(self, int64_t value):
        """Moves the flushed position forward, never back. Under the flush lock."""
        cdef control_block* block = self.checked()
        if value > load_i64(&block.flushed):
            store_i64(&block.flushed, value)

    @property
    def log_end(self):
        """The end of the log for appends: the wrote position, or with a pool the position that the next commit brings
        that to."""
        return load_i64(log_end(self.checked()))

    @property
    def readable(self):
        """The end of the log for readers of a store whose master is elected."""
        cdef control_block* block = self.checked()
        return read_end(block, load_i64(&block.wrote), READ_CONFIRMED)

    def pool_begins(self, uint32_t buffers):
        """From now on appends go to a pool of buffers. Only for a process that is alone in the store, before its first
        append."""
        cdef control_block* block = self._writable()
        block.appended_record = load_i64(&block.last_record)
        store_i64(&block.appended, load_i64(&block.wrote))
        block.pool_buffers = buffers
        store_u32(&block.pooled, 1)

    def commit(self):
        """Brings the wrote position to the end of the log, if there is a pool: copies the records of its buffers to
        their segments. For a caller that reads what is appended by now. Raises StoreIOError."""
        cdef control_block* block = self.checked()
        if block.pooled and load_i64(&block.wrote) < load_i64(&block.appended) and self.committer is not None:
            self.committer(load_i64(&block.appended))

    def set_flag(self, uint32_t flag):
        """Sets a FLAG_*; seen by the next put of every process."""
        or_u32(&self.checked().flags, flag)

    def clear_flag(self, uint32_t flag):
        and_u32(&self.checked().flags, ~flag)

    @property
    def handover(self):
        """Whether this process is asked to leave, so that another version can attach. A request that stood already when
        this process attached is for the processes before it (control_head.py has the values of the word)."""
        cdef uint32_t word = load_u32(&self.checked().handover)
        if word <= EVERYBODY:
            return word == EVERYBODY
        return word != self.request_before and (word & UNTIL_CANCELLED != 0
                                                or clock_read_ms(CLOCK_BOOTTIME) < 1000 * <int64_t>word)

    @property
    def intact(self):
        """False when a foreign program overwrote the block."""
        if self.block != NULL:
            return control_intact(self.block)
        raise StoreClosedError("the store is closed")

    @property
    def intent(self):
        """(from, to) of the append that is being written, or None."""
        cdef control_block* block = self.checked()
        if load_u32(&block.intent_active) == 0:
            return None
        return block.intent_from, block.intent_to

    def clear_intent(self):
        store_u32(&self.checked().intent_active, 0)

    def duty_word(self, uint32_t duty, uint32_t word):
        """A number about a duty. `duty` is a place in layout.DUTIES, `word` is a place in DUTY_WORDS."""
        return load_i64(&self.checked().duties[duty % DUTIES_MAX * WORDS_OF_DUTY + word % WORDS_OF_DUTY])

    def set_duty_word(self, uint32_t duty, uint32_t word, int64_t value):
        store_i64(&self._writable().duties[duty % DUTIES_MAX * WORDS_OF_DUTY + word % WORDS_OF_DUTY], value)

    def counters(self):
        """Put and dispatch counters since the first attach, and puts by latency (StoreStatsService's buckets)."""
        cdef control_block* block = self.checked()
        cdef uint64_t puts = load_u64(&block.put_count), slow = 0
        cdef uint32_t i
        for i in range(1, LATENCY_BUCKETS):
            slow += block.put_latency[i]
        return {
            "put_count": puts,
            "put_bytes": block.put_bytes,
            "clock_clamps": block.clock_clamps,
            "dispatch_count": block.dispatch_count,
            "put_time_max_ms": block.put_time_max_ms,
            # An append counts itself only if it took a millisecond or more. It may do so while these words are read.
            "put_latency": [puts - min(slow, puts), *(block.put_latency[i] for i in range(1, LATENCY_BUCKETS))],
            "put_failed": load_u64(&block.put_failed),
            "put_slow": load_u64(&block.put_slow),
            "room_requests": load_u64(&block.room_requests),
            "room_wait_ms": load_u64(&block.room_wait_ms),
            "room_wait_max_ms": load_i64(&block.room_wait_max_ms),
            "files_made": load_u64(&block.files_made),
            "get_latency": [load_u64(&block.get_latency[i]) for i in range(LATENCY_BUCKETS)],
            "get_time_max_ms": load_i64(&block.get_time_max_ms),
            "get_found": load_u64(&block.get_found),
            "get_messages": load_u64(&block.get_messages),
            "query_count": load_u64(&block.query_count),
        }

    def count_room_wait(self, int64_t took_ms):
        """Counts a put that had to wait for room in the log."""
        cdef control_block* block = self._writable()
        add_u64(&block.room_requests, 1)
        add_u64(&block.room_wait_ms, <uint64_t>max(took_ms, 0))
        raise_i64(&block.room_wait_max_ms, took_ms)

    def count_slow_put(self):
        """Counts a put that took longer than SLOW_PUT_MS."""
        add_u64(&self._writable().put_slow, 1)

    def count_file_made(self):
        """Counts a new file of the log."""
        add_u64(&self._writable().files_made, 1)

    # ------------------------------------------------------------------------------------------- queues

    def find_queue(self, str topic not None, int32_t queue_id):
        """Slot of a queue, -1 when there is none."""
        cdef bytes name = topic.encode("utf-8", "surrogatepass")
        cdef queue_entry* entry
        if len(name) > <Py_ssize_t>TOPIC_BYTES_MAX:
            return -1
        entry = control_find_queue(self.checked(), <const uint8_t*><const char*>name, <int>len(name), queue_id)
        return -1 if entry == NULL else entry - control_slot(self.block, 0)

    def queue(self, int64_t slot):
        """(topic, queue id, next, dispatched, minimum) of a slot."""
        cdef queue_entry* entry = self.slot_at(slot)
        topic = (<const char*>&entry.topic[0])[:min(entry.topic_bytes, TOPIC_BYTES_MAX)].decode("utf-8", "replace")
        return (topic, entry.queue_id, load_i64(&entry.next), load_i64(&entry.dispatched), load_i64(&entry.minimum))

    def queue_end(self, int64_t slot):
        """The queue offset behind the last message: `next`, but at least the dispatched offset. An append publishes its
        messages first and sets `next` afterwards; after a kill in between, the next append sets it."""
        cdef queue_entry* entry = self.slot_at(slot)
        cdef int64_t dispatched = load_i64(&entry.dispatched)
        return max(load_i64(&entry.next), dispatched)

    def wait_queue(self, int64_t slot, int64_t queue_offset, int64_t timeout_ms):
        """Sleeps until a queue's next offset is beyond `queue_offset`, at most `timeout_ms`; it may return early.
        Signals are handled. A read-only handle cannot wait here."""
        cdef queue_entry* entry = self.slot_at(slot)
        keep = self.file  # a close meanwhile must not unmap the word that we sleep on
        self._writable()
        with nogil:
            exchange_u32(&entry.sleepers, 1)
            full_fence()  # pairs with control_wake_queue
            if load_i64(&entry.next) <= queue_offset:
                futex_wait(&entry.sleepers, 1, timeout_ms)
        PyErr_CheckSignals()

    def count_queue_removal(self, int64_t slot):
        """Called under the dispatch lock, before the files of a queue are removed."""
        add_u32(&self.slot_at(slot).removals, 1)

    def set_queue_next(self, int64_t slot, int64_t value):
        """Sets the next and the claimed offset. The caller holds the append lock or is alone."""
        cdef queue_entry* entry = self.slot_at(slot)
        store_i64(&entry.claimed, value)
        store_i64(&entry.next, value)

    def settle_claims(self):
        """Undoes the claims of a killed append: sets each claimed offset to `next` and links the newest slot. Under the
        append lock."""
        cdef control_block* block = self.checked()
        cdef uint32_t slot
        cdef queue_entry* entry
        with nogil:
            control_relink_newest(block)
            for slot in range(block.queue_count):
                entry = control_slot(block, slot)
                store_i64(&entry.claimed, load_i64(&entry.next))

    def add_queue(self, str topic not None, int32_t queue_id, *, int64_t next=0, int64_t dispatched=0,
                  int64_t minimum=0):
        """Adds a queue at the first attach, or under the append lock. Raises StoreFullError when the table is full."""
        cdef bytes name = topic.encode()
        cdef control_block* block = self.checked()
        cdef queue_entry* entry
        entry = control_add_queue(block, <const uint8_t*><const char*>name, <int>len(name), queue_id)
        if entry == NULL:
            raise StoreFullError(f"no room for queue {topic}/{queue_id}: max_queues is {block.max_queues}",
                                 path=self.file.path)
        store_i64(&entry.claimed, next)
        store_i64(&entry.next, next)
        store_i64(&entry.dispatched, dispatched)
        store_i64(&entry.flushed, dispatched)
        store_i64(&entry.minimum, minimum)
        return entry - control_slot(block, 0)

    def more_queue_bytes(self):
        """(begin, end) in the control file of the next slots to allocate; None when all are allocated."""
        cdef control_block* block = self.checked()
        cdef uint32_t capacity = load_u32(&block.queue_capacity)
        if capacity >= block.max_queues:
            return None
        return (CONTROL_QUEUES_AT + sizeof(queue_entry) * capacity,
                CONTROL_QUEUES_AT + sizeof(queue_entry) * min(capacity * 2, block.max_queues))

    def publish_queue_capacity(self, int64_t end):
        """Called after [begin, end) of `more_queue_bytes` is allocated."""
        store_u32(&self.checked().queue_capacity, <uint32_t>((end - CONTROL_QUEUES_AT) // sizeof(queue_entry)))
