"""Runs of due messages: reads the next messages of a queue that waits, and makes their copies.

It takes only plain messages: intact records of the queue that name a legal target and the due time of their entry, or
carry their own. It stops before any other entry, and the caller looks at that one by itself (waiting.py).
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t

from cystore._native.derived.queue cimport queue_is_hole
from cystore._native.derived.queue_ext cimport ext_is_address
from cystore._native.derived.transfer cimport (
    TARGET_OK, CopyMaker, carried_due, transfer_target, transfer_target_of, waits
)
from cystore._native.layout cimport (
    QUEUE_ENTRY_BYTES, control_block, queue_entry_disk_physical_offset, queue_entry_disk_size,
    queue_entry_disk_tags_code
)
from cystore._native.memory.atomics cimport load_i64
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.property_read cimport due_time_possible, property_find, property_view
from cystore._native.record.record_read cimport parts_of, record_at, topic_valid, view_of, walk_begin
from cystore._native.record.record_view cimport RECORD_OK, record_parts, record_view
from cystore._native.record.window cimport LogWindow, WINDOW_NEED_SEGMENT, log_window, window_bytes

from cystore.errors import CorruptRecordError, OffsetError

cdef enum:
    EVERY_BYTES = 11    # of the name DELAY_EVERY (cystore/services/delay/recurring.py)
    CHOSEN = 64         # messages that are read without the GIL before their copies are made

cdef enum RunStatus:
    RUN_DONE            # no more entries, or no more room
    RUN_FULL            # CHOSEN are chosen
    RUN_LATER           # the next message is plain, but due later
    RUN_ODD             # the next message is not plain
    RUN_NEED_SEGMENT

cdef struct chosen_due:
    int64_t queue_offset
    const uint8_t* start
    record_parts parts
    transfer_target target      # in the record

cdef struct due_run:
    const uint8_t* entries      # of one file
    int64_t first               # queue offset of the first one
    int64_t count
    int64_t at                  # the next one
    int32_t queue_id
    int64_t now_ms
    int64_t jump_ms
    int64_t until_ms            # takes messages that are due by then
    int64_t room                # for messages
    int64_t bytes_room          # for bytes of records; it takes messages while it is above 0
    int64_t due_ms              # RUN_LATER: of the next message
    int64_t wanted              # RUN_NEED_SEGMENT
    int found
    chosen_due[CHOSEN] chosen


cdef inline int64_t _due_time(const due_run* r, const record_view* v, int64_t noted) noexcept nogil:
    """The due time of a record and its queue's entry; 0 if a wrong clock stamped the record, or if the entry is
    damaged."""
    cdef int64_t carried
    if v.store_timestamp > r.now_ms and v.store_timestamp - r.now_ms > r.jump_ms:
        return 0
    carried = carried_due(v)
    if carried:
        return carried
    return noted if noted > 0 and due_time_possible(noted, v.store_timestamp) else 0


cdef int _choose(due_run* r, log_window* window) noexcept nogil:
    cdef const uint8_t* entry
    cdef const uint8_t* at
    cdef record_view v
    cdef chosen_due* chosen
    cdef size_t available
    cdef int64_t physical_offset, noted, due
    cdef int32_t size
    cdef int status
    walk_begin(&v)
    while r.at < r.count and r.room > 0 and r.bytes_room > 0:
        entry = r.entries + r.at * <int64_t>QUEUE_ENTRY_BYTES
        if queue_is_hole(entry):
            r.at += 1
            continue
        if r.found == CHOSEN:
            return RUN_FULL
        physical_offset = queue_entry_disk_physical_offset(entry)
        size = queue_entry_disk_size(entry)
        noted = queue_entry_disk_tags_code(entry)
        if size <= 0 or physical_offset < 0 or ext_is_address(noted):
            return RUN_ODD
        status = window_bytes(window, physical_offset, &at, &available)
        if status == WINDOW_NEED_SEGMENT:
            r.wanted = physical_offset
            return RUN_NEED_SEGMENT
        if status != RECORD_OK or record_at(at, available, physical_offset, window.segments[window.latest].end, True,
                                            &v) != RECORD_OK:
            return RUN_ODD
        if v.total_size != size or v.queue_id != r.queue_id or v.queue_offset != r.first + r.at or not waits(&v):
            return RUN_ODD
        due = _due_time(r, &v, noted)
        chosen = &r.chosen[r.found]
        if due == 0 or transfer_target_of(&v, &chosen.target) != TARGET_OK \
                or not topic_valid(chosen.target.topic.value, chosen.target.topic.value_len):
            return RUN_ODD
        if due > r.until_ms:
            r.due_ms = due
            return RUN_LATER
        chosen.queue_offset = v.queue_offset
        chosen.start = at
        chosen.parts = parts_of(at, &v)
        r.found += 1
        r.at += 1
        r.room -= 1
        r.bytes_room -= size
    return RUN_DONE


@cython.final
@cython.auto_pickle(False)
cdef class DueRuns:
    """Reads the runs of one batch, at one time, in one window."""

    cdef Control control
    cdef LogWindow window
    cdef CopyMaker maker
    cdef int64_t now_ms

    def __cinit__(self, Control control not None, LogWindow window not None, int64_t now_ms):
        self.control, self.window, self.now_ms = control, window, now_ms
        self.maker = CopyMaker()

    def take(self, MappedFile file not None, int64_t first, int64_t end, int32_t queue_id, object slot,
             int64_t until_ms, int64_t room, int64_t bytes_room):
        """Messages of the entries [first, end) of a queue's file that are due by `until_ms`: at most `room`, and while
        their records have less than `bytes_room` bytes.

        Returns ([(slot, queue offset, copy)], bytes of the records, next queue offset, due time of the message there).
        The due time is None if that message is not due now, or if the caller has to look at it.
        """
        cdef control_block* block = self.control.checked()
        cdef due_run r
        cdef list found = []
        cdef int64_t begin = first * <int64_t>QUEUE_ENTRY_BYTES - file.base
        cdef int status = RUN_FULL
        if first < 0 or end < first or begin < 0 or begin + (end - first) * <int64_t>QUEUE_ENTRY_BYTES > file.length:
            raise ValueError(f"the entries [{first}, {end}) are not in {file!r}")
        r.entries = file.address + begin
        r.first, r.count, r.at = first, end - first, 0
        r.queue_id = queue_id
        r.now_ms, r.jump_ms = self.now_ms, block.clock_jump_ms
        r.until_ms = min(until_ms, self.now_ms)
        r.room, r.bytes_room = room, bytes_room
        self.window.move(load_i64(&block.min_physical_offset), load_i64(&block.wrote))
        while status == RUN_FULL or status == RUN_NEED_SEGMENT:
            r.found = 0
            with nogil:
                status = _choose(&r, &self.window.c)
            # Before the window may let go of the records' segment.
            self.make_copies(&r, slot, found)
            if status == RUN_NEED_SEGMENT:
                try:
                    self.window.need(r.wanted)
                except (CorruptRecordError, OffsetError):
                    break  # the caller meets the error by itself
        return (found, bytes_room - r.bytes_room, first + r.at,
                r.due_ms if status == RUN_LATER and r.due_ms <= self.now_ms else None)

    def take_timed(self, file_of not None, list dues not None, int32_t queue_id, object slot, int64_t bytes_room):
        """Messages of the timer, whose places are not one behind the other: `dues` has (due time, queue offset) of
        each, `file_of` gives the mapped file with an entry.

        Returns ([(slot, queue offset, copy)], bytes of the records), while these have less than `bytes_room` bytes. The
        copy is None for a message that the caller has to look at.
        """
        cdef control_block* block = self.control.checked()
        cdef record_view v
        cdef transfer_target target
        cdef MappedFile file = None
        cdef list found = []
        cdef int64_t queue_offset, begin, taken = 0
        self.window.move(load_i64(&block.min_physical_offset), load_i64(&block.wrote))
        walk_begin(&v)
        for _, due in dues:
            if taken >= bytes_room:
                break
            queue_offset = due
            begin = queue_offset * <int64_t>QUEUE_ENTRY_BYTES
            if file is None or not file.base <= begin < file.base + file.length:
                file = file_of(queue_offset)
            if file is not None \
                    and self.plain_at(file.address + begin - file.base, queue_id, queue_offset, &v, &target):
                found.append((slot, queue_offset, self.maker.copy_of(&v, &target)))
                taken += v.total_size
            else:
                found.append((slot, queue_offset, None))
        return found, taken

    cdef bint plain_at(self, const uint8_t* entry, int32_t queue_id, int64_t queue_offset, record_view* v,
                       transfer_target* target) except -1:
        """Whether an entry leads to an intact record of the timer that is due and names a legal target."""
        cdef const uint8_t* at
        cdef size_t available
        cdef int64_t physical_offset = queue_entry_disk_physical_offset(entry)
        cdef int32_t size = queue_entry_disk_size(entry)
        cdef property_view every
        cdef int64_t due
        cdef int status
        if queue_is_hole(entry) or size <= 0 or physical_offset < 0:
            return False
        status = window_bytes(&self.window.c, physical_offset, &at, &available)
        if status == WINDOW_NEED_SEGMENT:
            try:
                self.window.need(physical_offset)
            except (CorruptRecordError, OffsetError):
                return False  # the caller meets the error by itself
            status = window_bytes(&self.window.c, physical_offset, &at, &available)
        if status != RECORD_OK or record_at(at, available, physical_offset,
                                            self.window.c.segments[self.window.c.latest].end, True, v) != RECORD_OK:
            return False
        if v.total_size != size or v.queue_id != queue_id or v.queue_offset != queue_offset or not waits(v):
            return False
        due = carried_due(v)
        if property_find(v.properties, v.properties_len, b"DELAY_EVERY", EVERY_BYTES, &every):
            return False  # a copy of it waits once more
        return 0 < due <= self.now_ms and transfer_target_of(v, target) == TARGET_OK \
            and topic_valid(target.topic.value, target.topic.value_len)

    cdef int make_copies(self, const due_run* r, object slot, list found) except -1:
        cdef const chosen_due* chosen
        cdef record_view v
        cdef int i
        for i in range(r.found):
            chosen = &r.chosen[i]
            v = view_of(chosen.start, &chosen.parts)
            found.append((slot, chosen.queue_offset, self.maker.copy_of(&v, &chosen.target)))
        return 0
