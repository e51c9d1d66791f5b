"""The shared state of delayed messages: the levels of this store, the progress of each level's queue, and the blocks of
the timer (docs/delay.md).

A process writes it under the deliver lock (except the levels). A reader without the lock never sees an offset that is
too high, nor a message that left before it did. Source: ScheduleMessageService.offsetTable, which each RocketMQ broker
has for itself.
"""

cimport cython
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, qsort

from cystore._native.memory.atomics cimport load_i64, load_u32, load_u64, store_i64, store_u32, store_u64
from cystore._native.memory.control cimport Control
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.checksum cimport crc32c_update
from cystore._native.record.property_read cimport due_time_possible
from cystore._native.layout cimport (
    DELAY_LEVELS_MAX, QUEUE_ENTRY_BYTES, TIMER_BLOCK_BYTES, TIMER_BLOCK_MESSAGES, TIMER_DUE_AT, TIMER_LEFT_AT,
    TIMER_PLACE_AT, control_block, load_be16, load_be64, queue_entry_disk_tags_code, store_be16, store_be64,
    timer_block_begin, timer_block_changes, timer_block_checksum, timer_block_magic, timer_block_set_begin,
    timer_block_set_changes, timer_block_set_checksum, timer_block_set_magic, timer_block_set_sorted,
    timer_block_set_synced, timer_block_sorted, timer_block_synced
)

from cystore._native.system.failpoint import failpoint
from cystore.errors import SyncFailedError

cdef extern from *:
    uint64_t bswap64 "__builtin_bswap64"(uint64_t v) nogil

cdef enum:
    CHECK_BITS = 16             # of a note of who left: they check its other bits
cdef uint64_t BLOCK_MAGIC = 0x43595354494D5231  # 'CYSTIMR1'
cdef int64_t POSITION_MAX = <int64_t>1 << 47


def is_due_time(int64_t due_ms, int64_t store_timestamp_ms):
    """Whether some table of delay levels makes `due_ms` of a message's store timestamp."""
    return due_time_possible(due_ms, store_timestamp_ms)


@cython.final
@cython.auto_pickle(False)
cdef class Delivered:
    """The part of a control block that is about delayed messages. Offsets count messages of a level's queue,
    positions are physical offsets in bytes."""

    cdef Control control

    def __cinit__(self, Control control not None):
        self.control = control

    def set_levels(self, delays_ms):
        """Sets the delay of each level, level 1 first. The process that builds the control block calls it."""
        cdef control_block* block = self.control.checked()
        cdef int i
        if not 0 < len(delays_ms) <= <int>DELAY_LEVELS_MAX:
            raise ValueError(f"{len(delays_ms)} delay levels, not 1 to {DELAY_LEVELS_MAX}")
        for i, delay_ms in enumerate(delays_ms):
            block.delay_ms[i] = delay_ms
        block.delay_level_count = len(delays_ms)

    @property
    def levels_ms(self):
        """The delay of each level, level 1 first; the same in all processes."""
        cdef control_block* block = self.control.checked()
        cdef uint32_t i
        return tuple([block.delay_ms[i] for i in range(min(block.delay_level_count, DELAY_LEVELS_MAX))])

    @property
    def position(self):
        """Log position below which all delivered messages are counted in `offset` of their level's queue."""
        return load_i64(&self.control.checked().delivered)

    @position.setter
    def position(self, int64_t value):
        store_i64(&self.control.checked().delivered, value)

    @property
    def unfinished(self):
        """Whether there may be delivered messages behind `position`. They have to be counted before the next
        delivery."""
        return load_u32(&self.control.checked().delivering) != 0

    @unfinished.setter
    def unfinished(self, bint value):
        store_u32(&self.control.checked().delivering, value)

    def offset(self, int64_t slot):
        """Queue offset behind the last delivered message of a queue."""
        return load_i64(&self.control.slot_at(slot).delivered)

    def set_offset(self, int64_t slot, int64_t value):
        store_i64(&self.control.slot_at(slot).delivered, value)

    @property
    def saved(self):
        """(position, monotonic ms) of the last save."""
        cdef control_block* block = self.control.checked()
        return load_i64(&block.delivered_saved), load_i64(&block.delivered_saved_ms)

    @saved.setter
    def saved(self, value):
        cdef control_block* block = self.control.checked()
        store_i64(&block.delivered_saved, value[0])
        store_i64(&block.delivered_saved_ms, value[1])


cdef struct due_place:
    int64_t due_ms
    int32_t place


cdef inline int _earlier(const void* a, const void* b) noexcept nogil:
    cdef const due_place* x = <const due_place*>a
    cdef const due_place* y = <const due_place*>b
    if x.due_ms != y.due_ms:
        return -1 if x.due_ms < y.due_ms else 1
    return x.place - y.place


cdef inline uint64_t _note(int64_t queue_offset, int64_t position) noexcept nogil:
    """A note that the message at `queue_offset` left: the position of the record that took its place, and 16 bits that
    check it. Never 0, because no such record is the log's first."""
    cdef uint64_t mixed = <uint64_t>position * 0x9E3779B97F4A7C15u ^ <uint64_t>queue_offset * 0xC2B2AE3D27D4EB4Fu
    return <uint64_t>position << <int>CHECK_BITS | (mixed ^ mixed >> 32) & 0xFFFF


@cython.final
@cython.auto_pickle(False)
cdef class TimerBlock:
    """A block of the timer: a run of TIMER_BLOCK_MESSAGES queue offsets of the timer's queue. A place is a message's
    number in the block.

    For each message there is a note of the record that took its place in the log: its delivery, its cancellation, or
    its copy with another place or due time. Notes are written under the deliver lock, one word each, so a reader sees
    the whole note or none. After a power cut any of them may be missing, or be ahead of the log: `notes_from` and
    `forget` are for the process that compares them with the log. A note whose bits do not check is damaged.

    When all messages of the block are dispatched, `sort` writes the order of their due times. Each process would write
    the same bytes.
    """

    cdef readonly MappedFile file
    cdef readonly int64_t begin
    cdef uint8_t* at

    def __cinit__(self, MappedFile file not None, int64_t begin):
        if file.length != <Py_ssize_t>TIMER_BLOCK_BYTES:
            raise ValueError(f"{file!r} is not a block of the timer")
        self.file, self.begin, self.at = file, begin, file.address

    cdef int _check(self, int64_t place) except -1:
        if not 0 <= place < TIMER_BLOCK_MESSAGES:
            raise IndexError(f"{place} is not a place of a block")
        return 0

    cdef inline uint64_t* _word(self, int64_t place) noexcept nogil:
        return <uint64_t*>(self.at + TIMER_LEFT_AT) + place

    cdef inline int64_t _position(self, int64_t place) noexcept nogil:
        """0: it waits; -1: the note is damaged."""
        cdef uint64_t note = bswap64(load_u64(self._word(place)))
        cdef int64_t position = <int64_t>(note >> <int>CHECK_BITS)
        if note == 0:
            return 0
        return position if _note(self.begin + place, position) == note else -1

    @property
    def valid(self):
        """Whether the header is this block's."""
        return timer_block_magic(self.at) == BLOCK_MAGIC and timer_block_begin(self.at) == self.begin

    @property
    def sync_failed(self):
        """Whether a sync failed: what the disk has of the notes is unknown."""
        return timer_block_synced(self.at) < 0

    def make(self):
        """Writes the header of a new block."""
        if not self.file.writable:
            raise ValueError("the block is mapped for reading")
        timer_block_set_begin(self.at, self.begin)
        timer_block_set_magic(self.at, BLOCK_MAGIC)

    def leave(self, int64_t place, int64_t position):
        """Notes that the record at `position` took the place of a message."""
        self.leave_all([(self.begin + place, position)])

    def leave_all(self, list left not None):
        """The same for many messages of the block: (queue offset, position) of each."""
        cdef int64_t place, position
        for one, at in left:
            place, position = one - self.begin, at
            self._check(place)
            if not self.file.writable or not 0 < position < POSITION_MAX:
                raise ValueError(f"position {position} cannot be noted")
            timer_block_set_changes(self.at, timer_block_changes(self.at) + 1)
            store_u64(self._word(place), bswap64(_note(self.begin + place, position)))

    def left(self, int64_t place):
        """The position of the record that took a message's place; 0: the message waits, -1: the note is damaged."""
        self._check(place)
        return self._position(place)

    def next_waiting(self, int64_t place, int64_t end):
        """The first place in [place, end) whose message waits; `end` if there is none. A damaged note counts as one of
        a message that waits: whoever delivers it looks at the log first."""
        cdef int64_t at = place
        self._check(place)
        end = min(end, <int64_t>TIMER_BLOCK_MESSAGES)
        with nogil:
            while at < end and self._position(at) > 0:
                at += 1
        return at

    def waiting(self, int64_t begin, int64_t end):
        """The number of messages in the places [begin, end) that wait."""
        cdef int64_t at, count = 0
        self._check(begin)
        end = min(end, <int64_t>TIMER_BLOCK_MESSAGES)
        with nogil:
            for at in range(begin, end):
                count += self._position(at) <= 0
        return count

    def notes_from(self, int64_t position):
        """(place, position) of the notes with a position from there on, and of damaged ones, whose position is -1."""
        cdef int64_t at = 0, noted = 0
        cdef list found = []
        while True:
            with nogil:
                while at < TIMER_BLOCK_MESSAGES:
                    noted = self._position(at)
                    if noted < 0 or (noted > 0 and noted >= position):
                        break
                    at += 1
            if at == TIMER_BLOCK_MESSAGES:
                return found
            found.append((at, noted))
            at += 1

    def forget(self, int64_t place):
        """Takes a note back: the log does not have its record."""
        self._check(place)
        if not self.file.writable:
            raise ValueError("the block is mapped for reading")
        timer_block_set_changes(self.at, timer_block_changes(self.at) + 1)
        store_u64(self._word(place), 0)

    def sync(self):
        """Makes the notes durable, whichever process wrote them; nothing to do if they are. The caller has the deliver
        lock. Raises SyncFailedError, and from then on at every call: the next sync would not write what this one has
        lost."""
        cdef int64_t changes = timer_block_changes(self.at)
        if timer_block_synced(self.at) < 0:
            raise SyncFailedError("a sync of this file has failed before", path=self.file.path)
        if timer_block_synced(self.at) != changes:
            try:
                self.file.sync_range(0, TIMER_DUE_AT)
            except SyncFailedError:
                timer_block_set_synced(self.at, -1)
                raise
            timer_block_set_synced(self.at, changes)

    # ------------------------------------------------------------------------------------------ order of due times

    @property
    def is_sorted(self):
        """Whether the order is there, and intact. It reads 640 KiB."""
        cdef uint32_t sum
        if timer_block_sorted(self.at) != 1:
            return False
        with nogil:
            sum = crc32c_update(0, self.at + TIMER_DUE_AT, TIMER_BLOCK_BYTES - TIMER_DUE_AT)
        return sum == timer_block_checksum(self.at)

    def sort(self, const uint8_t[::1] entries not None):
        """Writes the order, from all the entries of the block's messages in the consume queue."""
        cdef due_place* rows
        cdef const uint8_t* first
        cdef int64_t i
        if not self.file.writable or entries.shape[0] != TIMER_BLOCK_MESSAGES * <int64_t>QUEUE_ENTRY_BYTES:
            raise ValueError(f"{entries.shape[0]} bytes are not the entries of a block")
        first = &entries[0]
        rows = <due_place*>malloc(TIMER_BLOCK_MESSAGES * sizeof(due_place))
        if rows == NULL:
            raise MemoryError()
        with nogil:
            for i in range(TIMER_BLOCK_MESSAGES):
                rows[i].due_ms = queue_entry_disk_tags_code(first + i * <int64_t>QUEUE_ENTRY_BYTES)
                rows[i].place = <int>i
            qsort(rows, TIMER_BLOCK_MESSAGES, sizeof(due_place), _earlier)
            for i in range(TIMER_BLOCK_MESSAGES):
                store_be64(self.at + TIMER_DUE_AT + 8 * i, <uint64_t>rows[i].due_ms)
                store_be16(self.at + TIMER_PLACE_AT + 2 * i, <uint16_t>rows[i].place)
            free(rows)
            timer_block_set_checksum(
                self.at, crc32c_update(0, self.at + TIMER_DUE_AT, TIMER_BLOCK_BYTES - TIMER_DUE_AT))
            timer_block_set_sorted(self.at, 1)

    cdef inline int64_t _due(self, int64_t number) noexcept nogil:
        return <int64_t>load_be64(self.at + TIMER_DUE_AT + 8 * number)

    def due_from(self, int64_t due_ms):
        """The number in the order of the first message that is due then or later."""
        cdef int64_t low = 0, high = TIMER_BLOCK_MESSAGES, middle
        while low < high:
            middle = (low + high) // 2
            if self._due(middle) < due_ms:
                low = middle + 1
            else:
                high = middle
        return low

    def take(self, int64_t number, int64_t until_ms, int64_t room):
        """From `number` in the order on: [(due time, queue offset)] of at most `room` waiting messages that are due by
        `until_ms`; the number behind them, and the due time of the waiting message there, None at the end."""
        cdef list found = []
        cdef int64_t place, due
        if number < 0:
            raise IndexError(f"{number} is not a number in the order of a block")
        while number < TIMER_BLOCK_MESSAGES:
            place = load_be16(self.at + TIMER_PLACE_AT + 2 * number)
            if self._position(place) > 0:
                number += 1
                continue
            due = self._due(number)
            if due > until_ms or room <= 0:
                return found, number, due
            found.append((due, self.begin + place))
            number += 1
            room -= 1
        return found, number, None


class NeedsRoom(Exception):
    """`replace_one` met an obstacle, and nothing was appended."""


def refuse_room(*_):
    """In the place of a policy's ways to make room: raises NeedsRoom."""
    raise NeedsRoom


def replace_one(Delivered delivered not None, TimerBlock block not None, int64_t slot, int64_t queue_offset,
                int64_t queue_end, append, list record not None):
    """Appends the record that takes the place of a waiting message of the timer, and notes that it left, under the
    deliver lock. Returns the results of `append(record)`. None if the message has left, the queue has not that end any
    more, deliveries are uncounted, another process has the lock, or `append` raised NeedsRoom: then nothing was done.

    No bytecode runs meanwhile, so no signal handler that could wait for this thread.
    """
    cdef Control control = delivered.control
    with control.held_if_free("deliver") as turn:
        if not turn.held or delivered.unfinished or control.queue_end(slot) != queue_end \
                or block.left(queue_offset - block.begin) != 0:
            return None
        delivered.position = control.wrote
        delivered.unfinished = True
        failpoint("deliver.begun")
        try:
            put = append(record)
        except NeedsRoom:
            delivered.unfinished = False
            return None
        failpoint("withdraw.appended")
        block.leave(queue_offset - block.begin, put[0].physical_offset)
        failpoint("withdraw.counted")
        delivered.unfinished = False
        return put
