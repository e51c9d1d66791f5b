# What consume queue and index hold of a record: its tags code, and its keys in the order they are entered.

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from cystore._native.layout cimport (
    DELAY_RUN_QUEUES, DELAY_SECONDS_MAX, PROPERTY_DELAY, PROPERTY_DELAY_BYTES, PROPERTY_DELAY_DUE,
    PROPERTY_DELAY_DUE_BYTES, PROPERTY_KEYS, PROPERTY_KEYS_BYTES, PROPERTY_TAGS, PROPERTY_TAGS_BYTES,
    PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT
)
from cystore._native.record.record cimport java_hash, property_next, property_view
from cystore._native.record.record_view cimport record_view

cdef enum:
    DUE_TIME_DIGITS = 17        # DELAY_PROPERTY_ROOM has room for so many

cdef struct derived:
    int64_t tags_code
    bint delayed                # waits for its time, which stands in the place of a tags code
    int64_t due_ms              # of a message that was carried forward: the record itself says when it is due; else 0
    property_view unique
    const uint8_t* keys         # what is left of them
    const uint8_t* keys_end


cdef inline int64_t derive_integer(const uint8_t* text, int length) noexcept nogil:
    """Integer.parseInt: an optional sign and digits, within 32 bits; 0 for anything else."""
    cdef int i = 0
    cdef bint minus = False
    cdef int64_t value = 0
    if length and (text[0] == 43 or text[0] == 45):
        minus = text[0] == 45
        i = 1
    if i == length:
        return 0
    while i < length:
        if not c'0' <= text[i] <= c'9':
            return 0
        value = value * 10 + (text[i] - c'0')
        if value > <int64_t>INT32_MAX + minus:
            return 0
        i += 1
    return -value if minus else value


cdef inline int64_t derive_due_time(const uint8_t* text, int length) noexcept nogil:
    """A time in ms, digits only; 0 for anything else."""
    cdef int i
    cdef int64_t value = 0
    if not 0 < length <= DUE_TIME_DIGITS:
        return 0
    for i in range(length):
        if not c'0' <= text[i] <= c'9':
            return 0
        value = value * 10 + (text[i] - c'0')
    return value


cdef inline void derive_begin(const record_view* v, const int64_t* delay_ms, int delay_levels,
                              derived* d) noexcept nogil:
    """In one pass over the properties; of a repeated name the last pair counts. `delay_ms`: level 1 first."""
    cdef const uint8_t* at = v.properties
    cdef const uint8_t* end = at + v.properties_len
    cdef property_view pair, tags, keys, delay, due
    cdef int64_t level
    tags.value_len = keys.value_len = d.unique.value_len = delay.value_len = due.value_len = 0
    tags.value = keys.value = d.unique.value = delay.value = due.value = at
    while property_next(&at, end, &pair):
        if pair.name_len == <int32_t>PROPERTY_KEYS_BYTES and memcmp(pair.name, PROPERTY_KEYS, PROPERTY_KEYS_BYTES) == 0:
            keys = pair
        elif pair.name_len == <int32_t>PROPERTY_TAGS_BYTES \
                and memcmp(pair.name, PROPERTY_TAGS, PROPERTY_TAGS_BYTES) == 0:
            tags = pair
        elif pair.name_len == <int32_t>PROPERTY_UNIQ_KEY_BYTES \
                and memcmp(pair.name, PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES) == 0:
            d.unique = pair
        elif pair.name_len == <int32_t>PROPERTY_DELAY_BYTES \
                and memcmp(pair.name, PROPERTY_DELAY, PROPERTY_DELAY_BYTES) == 0:
            delay = pair
        elif pair.name_len == <int32_t>PROPERTY_DELAY_DUE_BYTES \
                and memcmp(pair.name, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES) == 0:
            due = pair
    d.keys = keys.value
    d.keys_end = keys.value + keys.value_len
    d.tags_code = java_hash(0, tags.value, tags.value_len) if tags.value_len else 0
    d.delayed = False
    d.due_ms = 0
    if delay.value_len and v.topic_len == SCHEDULE_TOPIC_BYTES \
            and memcmp(v.topic, SCHEDULE_TOPIC_TEXT, SCHEDULE_TOPIC_BYTES) == 0:
        level = derive_integer(delay.value, delay.value_len)
        d.delayed = level > 0
        if d.delayed and v.queue_id >= <int>DELAY_RUN_QUEUES:
            d.due_ms = derive_due_time(due.value, due.value_len)
        if d.due_ms:
            d.tags_code = d.due_ms
        elif d.delayed and delay_levels:
            d.tags_code = v.store_timestamp + delay_ms[min(level, <int64_t>delay_levels) - 1]


cdef inline bint due_time_possible(int64_t due, int64_t store_timestamp) noexcept nogil:
    """Whether some table of delay levels gives this due time. The level used is not recorded, but all levels are
    whole seconds. A damaged due time is almost never a whole number of seconds away; after one flipped bit it never
    is."""
    return store_timestamp <= due <= store_timestamp + 1000 * <int64_t>DELAY_SECONDS_MAX \
        and (due - store_timestamp) % 1000 == 0


cdef inline bint derive_next_key(derived* d, const uint8_t** key, size_t* length) noexcept nogil:
    """The unique key first, then each of the keys; empty ones are skipped. 0 when there are no more."""
    cdef const uint8_t* blank
    if d.unique.value_len:
        key[0] = d.unique.value
        length[0] = <size_t>d.unique.value_len
        d.unique.value_len = 0
        return True
    while d.keys < d.keys_end:
        key[0] = d.keys
        blank = <const uint8_t*>memchr(d.keys, 32, d.keys_end - d.keys)
        if blank == NULL:
            blank = d.keys_end
        length[0] = <size_t>(blank - d.keys)
        d.keys = blank + 1
        if length[0]:
            return True
    return False
