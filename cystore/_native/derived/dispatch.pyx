"""Dispatch: makes consume queue entries and index entries of the log's records (RocketMQ's ReputMessageService). One
process dispatches at a time.

Order for each record: the queue's entry, the queue's `dispatched`, the index entries, the log's `dispatched`
(release). If the process dies in between, the next dispatcher repeats the record. It keeps the queue entry or writes
the same bytes again. It first removes the record's index entries with `index_trim` from the log's `dispatched` on.
"""

cimport cython
from cpython.mem cimport PyMem_Calloc, PyMem_Free, PyMem_Malloc, PyMem_Realloc
from libc.stdint cimport INT64_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memset

from cystore._native.derived.ahead cimport AHEAD_RECORDS, ahead_record, read_ahead, ring_ahead
from cystore._native.derived.derive cimport reader_begin
from cystore._native.derived.queue_ext cimport EXT_END_BYTES, EXT_NO_ROOM, ext_address, ext_put
from cystore._native.derived.gather cimport (
    DISPATCH_DAMAGED, DISPATCH_DONE, DISPATCH_NEED_EXT_FILE, DISPATCH_NEED_EXT_SPACE, DISPATCH_NEED_GAP,
    DISPATCH_NEED_INDEX_FILE, DISPATCH_NEED_INDEX_SPACE, DISPATCH_NEED_QUEUE, DISPATCH_NEED_QUEUE_FILE,
    DISPATCH_NEED_QUEUE_SPACE, DISPATCH_NEED_SEGMENT, PENDING_RECORDS, dispatch_state, gather, pending_key,
    pending_record, queue_files
)
from cystore._native.derived.index cimport INDEX_FULL, index_entry_end, index_next_entry, index_put, index_view_of
from cystore._native.derived.queue cimport queue_put
from cystore._native.filters.bitmap cimport FilterTable
from cystore._native.layout cimport (
    EXT_UNIT_BYTES_MAX, EXT_UNIT_FIXED_BYTES, LOCK_DISPATCH, QUEUE_ENTRY_BYTES, control_block,
    index_header_end_physical_offset, queue_entry
)
from cystore._native.memory.atomics cimport add_u32, load_i64, load_u32, monotonic_ns, store_i64
from cystore._native.memory.control cimport Control
from cystore._native.memory.locks cimport control_enter, control_unlock
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.memory.queue_table cimport control_find_queue, control_slot
from cystore._native.record.property_read cimport light_next, light_place, light_queues
from cystore._native.record.window cimport segment_view

cdef extern from "failpoints.h" nogil:
    void failpoint(const char* name)

cdef enum:
    TURN_BYTES = 1048576    # of log in one turn of a reader; about 3 ms


cdef int _put_ext(dispatch_state* d, queue_files* files, pending_record* r) noexcept nogil:
    """Writes the unit and replaces the record's tags code by the unit's address."""
    cdef int size = 0
    cdef int bitmap_len = 0 if r.bitmap == NULL else d.filters.bitmap_bytes
    cdef int64_t at = files.ext_next
    if files.ext_address == NULL or not files.ext_base <= at < files.ext_end:
        return DISPATCH_NEED_EXT_FILE
    if <int64_t>EXT_UNIT_FIXED_BYTES + bitmap_len > min(<int64_t>EXT_UNIT_BYTES_MAX,
                                                        files.ext_end - files.ext_base - <int64_t>EXT_END_BYTES):
        bitmap_len = 0  # no unit, or no file, has room for it
    # The unit or the file's end mark needs at most 64 bytes beside the bitmap.
    if min(at + 64 + bitmap_len, files.ext_end) > files.ext_allocated:
        return DISPATCH_NEED_EXT_SPACE
    if ext_put(files.ext_address + (at - files.ext_base), <size_t>(files.ext_end - at), r.tags_code,
               r.store_timestamp, r.bitmap, bitmap_len, &size) == EXT_NO_ROOM:
        files.ext_next = files.ext_end
        return DISPATCH_NEED_EXT_FILE
    files.ext_next = at + size
    r.tags_code = ext_address(at)
    return DISPATCH_DONE


cdef int _put_queue(dispatch_state* d, pending_record* r, bint with_ext) noexcept nogil:
    cdef queue_entry* queue = r.queue
    cdef queue_files* files
    cdef int64_t dispatched = load_i64(&queue.dispatched)
    cdef int64_t at
    cdef int status
    if r.queue_offset < dispatched:
        return DISPATCH_DONE
    d.slot = r.slot
    if r.queue_offset > dispatched:
        d.wanted = r.queue_offset
        return DISPATCH_NEED_GAP
    at = r.queue_offset * <int64_t>QUEUE_ENTRY_BYTES
    d.wanted = at
    if r.slot >= d.queue_count:
        return DISPATCH_NEED_QUEUE_FILE
    files = &d.queues[r.slot]
    if files.address == NULL or files.removals != queue.removals or not files.base <= at < files.end:
        return DISPATCH_NEED_QUEUE_FILE
    if at + <int64_t>QUEUE_ENTRY_BYTES > queue.allocated:
        return DISPATCH_NEED_QUEUE_SPACE
    if with_ext:
        status = _put_ext(d, files, r)
        if status != DISPATCH_DONE:
            return status
    queue_put(files.address + (at - files.base), r.position, <int32_t>(r.end - r.position), r.tags_code)
    failpoint("dispatch.queue_entry")
    files.used = d.round
    queue.last_physical_end = r.end
    queue.last_store_timestamp = r.store_timestamp
    # release: publishes the entry; acquire in queue.pxd: look_at_queue
    store_i64(&queue.dispatched, r.queue_offset + 1)
    failpoint("dispatch.queue")
    return DISPATCH_DONE


cdef int _put_light(dispatch_state* d, const pending_record* r, int64_t tags_code) noexcept nogil:
    """Writes the entries of the record's light queues, without extended units. Skips an offset below the queue's
    `dispatched`: the record is a copy, or RocketMQ began to count anew. Skips a queue that `leave_out` named."""
    cdef light_queues queues = r.light
    cdef light_place place
    cdef pending_record light = r[0]
    cdef int status
    light.tags_code = tags_code
    while light_next(&queues, &place):
        d.part += 1
        if d.left_out_at == r.position and d.part <= d.left_out_part:
            continue
        light.queue = control_find_queue(d.block, place.name, place.name_len, 0)
        if light.queue == NULL:
            return DISPATCH_NEED_QUEUE
        light.slot = <uint32_t>(light.queue - control_slot(d.block, 0))
        light.queue_offset = place.queue_offset
        status = _put_queue(d, &light, False)
        if status != DISPATCH_DONE:
            return status
    return DISPATCH_DONE


cdef int _put_index(dispatch_state* d, pending_record* r) noexcept nogil:
    cdef const pending_key* key
    cdef int64_t end
    while d.keys_done < r.key_count:
        if d.index.p == NULL:
            return DISPATCH_NEED_INDEX_FILE
        end = index_entry_end(&d.index, index_next_entry(&d.index))
        if <uint32_t>index_next_entry(&d.index) < d.index.capacity and end > d.index_allocated:
            d.wanted = end
            return DISPATCH_NEED_INDEX_SPACE
        key = &d.keys[r.first_key + d.keys_done]
        if index_put(&d.index, key.hash, key.slot, r.position, r.store_timestamp) == INDEX_FULL:
            return DISPATCH_NEED_INDEX_FILE
        d.keys_done += 1
    return DISPATCH_DONE


cdef int _enter(dispatch_state* d, pending_record* r) noexcept nogil:
    """Writes all entries of one record and moves `position` behind it."""
    cdef int status
    cdef int64_t tags_code = r.tags_code
    if r.queue != NULL:
        d.part = 0
        status = DISPATCH_DONE
        if d.left_out_at != r.position:  # otherwise its own queue has it, or goes without it
            status = _put_queue(d, r, d.with_ext)
        if status == DISPATCH_DONE and r.is_light:
            status = _put_light(d, r, tags_code)
        if status != DISPATCH_DONE:
            return status
    status = _put_index(d, r)
    if status != DISPATCH_DONE:
        return status
    if r.store_timestamp:
        d.block.dispatched_timestamp = r.store_timestamp
        d.block.dispatch_count += 1
    failpoint("dispatch.index")
    d.keys_done = 0
    d.position = r.end
    # release: publishes all entries; acquire in Control.dispatched, KeyReader.begin, get_call.pxd: get_look
    store_i64(&d.block.dispatched, r.end)
    failpoint("dispatch.record")
    return DISPATCH_DONE


cdef int dispatch_run(dispatch_state* d) noexcept nogil:
    """Dispatches from `position` to `end`, to a record for which the caller has to supply something first, or until the
    time is over; at least a few records."""
    cdef int i, status, stopped_by
    d.round += 1
    reader_begin(&d.reader, d.block)
    while True:
        stopped_by = gather(d)
        for i in range(d.pending_count):
            status = _enter(d, &d.pending[i])
            if status != DISPATCH_DONE:
                return status
        if d.pending_count == 0 or d.position >= d.end:
            return stopped_by
        if d.until_ns < INT64_MAX and monotonic_ns() >= d.until_ns:
            return DISPATCH_DONE


cdef void dispatch_turn(dispatch_state* d) noexcept nogil:
    """Uses only the mapped files and ends where it needs another file. The next turn goes through `run`, which begins
    the record again."""
    cdef control_block* block = d.block
    dispatch_run(d)
    d.stopped_at = d.position
    add_u32(&block.dispatch_seq, 1)
    control_unlock(block, LOCK_DISPATCH, d.me)


# ------------------------------------------------------------------------------------------------------ for Python

DONE = DISPATCH_DONE
NEED_SEGMENT = DISPATCH_NEED_SEGMENT
NEED_QUEUE = DISPATCH_NEED_QUEUE
NEED_GAP = DISPATCH_NEED_GAP
NEED_QUEUE_FILE = DISPATCH_NEED_QUEUE_FILE
NEED_QUEUE_SPACE = DISPATCH_NEED_QUEUE_SPACE
NEED_EXT_FILE = DISPATCH_NEED_EXT_FILE
NEED_EXT_SPACE = DISPATCH_NEED_EXT_SPACE
NEED_INDEX_FILE = DISPATCH_NEED_INDEX_FILE
NEED_INDEX_SPACE = DISPATCH_NEED_INDEX_SPACE
DAMAGED = DISPATCH_DAMAGED


cdef inline bint _may_begin(dispatch_state* d, control_block* block, int64_t position) noexcept:
    """Whether the mapped files suffice to begin a turn at a position. If another process has dispatched since this
    process's last turn, this process does not know the extended units, and it may have to remove index entries of an
    unfinished record."""
    if d.keys_done != 0 or not load_i64(&block.min_physical_offset) <= position < d.sound_until \
            or d.sound_seq != load_i64(&block.manifest_seq):
        return False
    if d.with_ext and d.stopped_at != position:
        return False
    if d.reader.with_index and (d.index.p == NULL or d.mapped_index_seq != load_u32(&block.index_seq)
                         or index_header_end_physical_offset(d.index.p) >= position):
        return False
    return True


@cython.final
cdef class DispatchKernel:
    """One process's dispatcher. The caller holds the dispatch lock, except in the constructor.

    `run` returns the file or space that it needs; the caller supplies it (`use_...`) and calls `run` again. The kernel
    keeps a mapping until another one replaces it.
    """

    def __cinit__(self, Control control not None, *, delay_levels_ms=(), bint with_index=True, bint with_ext=False):
        cdef int i
        self.control = control
        self.queue_mappings = {}
        self.ext_mappings = {}
        self.d = <dispatch_state*>PyMem_Calloc(1, sizeof(dispatch_state))
        self.delay_ms = <int64_t*>PyMem_Malloc(max(len(delay_levels_ms), 1) * sizeof(int64_t))
        if self.d == NULL or self.delay_ms == NULL:
            raise MemoryError
        for i, delay in enumerate(delay_levels_ms):
            self.delay_ms[i] = delay
        self.d.reader.delay_ms = self.delay_ms
        self.d.reader.delay_levels = <int>len(delay_levels_ms)
        self.d.reader.with_index = with_index
        self.d.with_ext = with_ext
        self.d.stopped_at = self.d.mapped_index_seq = self.d.left_out_at = -1

    def __dealloc__(self):
        if self.d != NULL:
            PyMem_Free(self.d.queues)
            PyMem_Free(self.d.bitmaps)
            PyMem_Free(self.d.ahead.records)
        PyMem_Free(self.d)
        PyMem_Free(self.delay_ms)

    def begin(self, int64_t position):
        """Starts at a record that has no entries yet."""
        self.d.position = position
        self.d.keys_done = 0

    @property
    def in_light_queue(self):
        """Whether the status is about a light queue of the record at `position`."""
        return self.d.part > 0

    def leave_out(self):
        """The queue that the status is about gets no entry for the record at `position`."""
        self.d.left_out_at = self.d.position
        self.d.left_out_part = self.d.part

    def run(self, int64_t end, int64_t wrote, double until_s):
        """Dispatches records that begin below `end`, until the monotonic time `until_s`: one call, because a thread may
        wait 5 ms for the interpreter after each. Returns DONE, a NEED_... status or DAMAGED."""
        cdef int status
        self.d.block = self.control.checked()
        keep = self.control.file
        self.d.end = end
        self.d.wrote = wrote
        self.d.until_ns = <int64_t>(until_s * 1e9)
        with nogil:
            status = dispatch_run(self.d)
        add_u32(&self.d.block.dispatch_seq, 1)
        return status

    cdef bint take_turn(self) noexcept:
        """Takes the dispatch lock for `dispatch_turn`. It holds the GIL, so no other thread closes the store meanwhile.
        False if another thread or process has the lock, or if `run` has to come first: after an owner's death, in the
        middle of a record, or after a change of files."""
        cdef control_block* block = self.control.block
        cdef dispatch_state* d = self.d
        cdef int64_t position
        if block == NULL or self.control.read_only or not control_enter(block, LOCK_DISPATCH, &self.control.me, False):
            return False
        position = load_i64(&block.dispatched)
        if not _may_begin(d, block, position):
            control_unlock(block, LOCK_DISPATCH, &self.control.me)
            return False
        d.block = block
        d.me = &self.control.me
        d.position = position
        d.wrote = min(load_i64(&block.wrote), d.sound_until)
        d.end = min(d.wrote, position + TURN_BYTES)
        d.until_ns = INT64_MAX
        return True

    def turn(self):
        """A reader's turn. True if all records that were appended before it are dispatched; False asks for `run`."""
        return self.make_turn()

    cdef bint make_turn(self) except -1:
        cdef control_block* block = self.control.checked()
        cdef int64_t wrote = load_i64(&block.wrote)
        cdef dispatch_state* d = self.d
        keep = self.control.file
        if load_i64(&block.dispatched) >= wrote:
            return True
        if not self.take_turn():
            return False
        with nogil:
            dispatch_turn(d)
        return load_i64(&block.dispatched) >= wrote

    @property
    def stopped_at(self):
        """Log position at which this process's last turn ended, -1 before the first turn."""
        return self.d.stopped_at

    @stopped_at.setter
    def stopped_at(self, int64_t position):
        self.d.stopped_at = position

    @property
    def mapped_index_seq(self):
        """index_seq at the last `use_index`; -1: `use_index` has to come first."""
        return self.d.mapped_index_seq

    @mapped_index_seq.setter
    def mapped_index_seq(self, int64_t seq):
        self.d.mapped_index_seq = seq

    def use_filters(self, FilterTable table):
        """The filters that give units their bitmaps, by the manifest whose number `set_sound` gets; None: no unit gets
        one."""
        cdef uint8_t* bitmaps = NULL
        if table is not None:
            bitmaps = <uint8_t*>PyMem_Malloc(PENDING_RECORDS * table.c.bitmap_bytes)
            if bitmaps == NULL:
                raise MemoryError
        PyMem_Free(self.d.bitmaps)
        self.d.bitmaps = bitmaps
        self.d.filters = NULL if table is None else &table.c
        self.filters = table

    def begin_ahead(self, int64_t position):
        """Lets one thread call `read_ahead` from a record on, until `end_ahead`. False if another thread does, or
        without memory for the entries."""
        cdef ring_ahead* ring = &self.d.ahead
        if ring.is_taken:
            return False
        if ring.records == NULL:
            ring.records = <ahead_record*>PyMem_Calloc(AHEAD_RECORDS, sizeof(ahead_record))
            if ring.records == NULL:
                return False
        ring.is_taken = True
        ring.reader.delay_ms, ring.reader.delay_levels = self.d.reader.delay_ms, self.d.reader.delay_levels
        ring.reader.with_index = self.d.reader.with_index
        ring.ends = 0
        add_u32(&ring.run, 1)
        store_i64(&ring.missed, -1)
        store_i64(&ring.until, position)
        return True

    def read_ahead(self, MappedFile segment not None, int64_t position, int64_t end):
        """Reads a segment's records from `position` on and compares their checksums, beside `run` in another thread,
        which then only enters them. Returns where it stopped: at `end` or the segment's end, at damage, or after
        `stop_ahead`."""
        cdef control_block* block = self.control.checked()
        cdef segment_view view
        keep = self.control.file
        view.base, view.end, view.address = segment.base, segment.base + segment.length, segment.address
        if not view.base <= position <= view.end:
            raise ValueError(f"position {position} is not in {segment!r}")
        with nogil:
            position = read_ahead(&self.d.ahead, block, &view, position, end)
        return position

    def stop_ahead(self):
        """Ends `read_ahead` soon."""
        store_i64(&self.d.ahead.ends, 1)

    def end_ahead(self):
        """The thread that read has ended. Records that are not dispatched yet may change before they are: they are read
        again."""
        add_u32(&self.d.ahead.run, 1)
        self.d.ahead.is_taken = False

    @property
    def read_until(self):
        """Log position up to which `read_ahead` has read."""
        return load_i64(&self.d.ahead.until)

    def set_sound(self, int64_t until, int64_t manifest_seq):
        """Sets the begin of the next damaged range, from the manifest with that sequence number or a later one."""
        self.d.sound_until = until
        self.d.sound_seq = manifest_seq

    @property
    def position(self):
        """Log position of the next record."""
        return self.d.position

    @property
    def slot(self):
        """Slot of the queue that the status is about."""
        return self.d.slot

    @property
    def wanted(self):
        """Queue offset (NEED_GAP), or the needed position in the queue or index file."""
        return self.d.wanted

    @property
    def detail(self):
        """RecordStatus of a damaged record."""
        return self.d.detail

    def use_segment(self, MappedFile file not None):
        self.segment = file
        self.d.segment.base = file.base
        self.d.segment.end = file.base + file.length
        self.d.segment.address = file.address

    def forget_segment(self):
        """Forgets the segment; the next `run` asks for it."""
        self.segment = None
        self.d.segment.base = self.d.segment.end = 0
        self.d.segment.address = NULL

    @property
    def segment_end(self):
        """Log position behind the mapped segment, 0 if there is none."""
        return self.d.segment.end

    def use_index(self, MappedFile file, uint32_t slots, uint32_t capacity, int64_t allocated):
        """Sets the index file for new keys; None: the newest file is full."""
        if file is not None and not file.writable:
            raise ValueError(f"{file!r} is mapped for reading only")
        self.index_file = file
        if file is None:
            self.d.index.p = NULL
        else:
            self.d.index = index_view_of(file, slots, capacity)
        self.d.index_allocated = min(allocated, file.length) if file is not None else 0

    cdef queue_files* _files(self, uint32_t slot) except NULL:
        cdef queue_files* grown
        cdef uint32_t count
        if slot >= self.d.queue_count:
            count = max(slot + 1, 2 * self.d.queue_count, 64)
            grown = <queue_files*>PyMem_Realloc(self.d.queues, count * sizeof(queue_files))
            if grown == NULL:
                raise MemoryError
            memset(grown + self.d.queue_count, 0, (count - self.d.queue_count) * sizeof(queue_files))
            self.d.queues = grown
            self.d.queue_count = count
        return &self.d.queues[slot]

    def use_queue(self, uint32_t slot, MappedFile file not None):
        """Sets the consume queue file for the next entries of a queue. The kernel uses it until the queue's files are
        removed."""
        cdef queue_files* files = self._files(slot)
        cdef uint32_t removals = self.control.slot_at(slot).removals
        if not file.writable:
            raise ValueError(f"{file!r} is mapped for reading only")
        if files.removals != removals:  # the extended files were removed too
            files.ext_address = NULL
            self.ext_mappings.pop(slot, None)
        files.removals = removals
        self.queue_mappings[slot] = file
        files.address = file.address
        files.base = file.base
        files.end = file.base + file.length
        files.used = self.d.round

    def use_ext(self, uint32_t slot, MappedFile file not None, int64_t next_position, int64_t allocated):
        """Sets the extended file for the next unit of a queue, at `next_position`. Space is allocated up to
        `allocated`."""
        cdef queue_files* files = self._files(slot)
        if not file.writable:
            raise ValueError(f"{file!r} is mapped for reading only")
        self.ext_mappings[slot] = file
        files.ext_address = file.address
        files.ext_base = file.base
        files.ext_end = file.base + file.length
        files.ext_next = next_position
        files.ext_allocated = min(allocated, files.ext_end)

    def ext_next(self, uint32_t slot):
        """Position of the next unit of a queue; -1 without a mapped extended file."""
        cdef queue_files* files = self._files(slot)
        return files.ext_next if files.ext_address != NULL else -1

    def forget_ext(self):
        """Forgets all extended files: another process may have written units since."""
        for slot in self.ext_mappings:
            self._files(slot).ext_address = NULL
        self.ext_mappings.clear()

    def forget_queue(self, uint32_t slot):
        """Forgets the files of a queue."""
        cdef queue_files* files = self._files(slot)
        files.address = files.ext_address = NULL
        self.queue_mappings.pop(slot, None)
        self.ext_mappings.pop(slot, None)

    @property
    def queue_count(self):
        """Number of queues with a mapped file."""
        return len(self.queue_mappings)

    def least_used(self, int count):
        """Slots of the `count` mapped queues that were written least recently."""
        return sorted(self.queue_mappings, key=self._used)[:count]

    def _used(self, uint32_t slot):
        return self._files(slot).used
