"""The one cursor over the properties of a record, and the one over its keys; and what consume queue and index hold of
them: the tags code, and the keys in the order they are entered.

A property is a name, a byte of 1, a value; a byte of 2 separates two of them. Where a name repeats, its last pair
counts. A blank separates two keys. Source: MessageDecoder.string2messageProperties of RocketMQ 4.9.3.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t
from libc.string cimport memchr, memcmp

from cystore._native.layout cimport (
    DELAY_RUN_QUEUES, DELAY_SECONDS_MAX, PROPERTY_DELAY, PROPERTY_DELAY_BYTES, PROPERTY_DELAY_DUE,
    PROPERTY_DELAY_DUE_BYTES, PROPERTY_END, PROPERTY_KEYS, PROPERTY_KEYS_BYTES, PROPERTY_NAME_END, PROPERTY_TAGS,
    PROPERTY_TAGS_BYTES, PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT
)
from cystore._native.record.record cimport java_hash
from cystore._native.record.record_view cimport record_view

cdef enum:
    DUE_TIME_DIGITS = 17        # DELAY_PROPERTY_ROOM has room for so many
    KEY_END = 32                # a blank

# One name and value inside a record's properties.
cdef struct property_view:
    const uint8_t* name
    int name_len
    const uint8_t* value
    int value_len

# The properties that the store itself reads of every record; `value_len` 0: the record has none of that name.
cdef struct known_properties:
    property_view tags
    property_view keys
    property_view unique
    property_view delay
    property_view due

cdef struct derived:
    int64_t tags_code
    bint delayed                # waits for its time, which stands in the place of a tags code
    int64_t due_ms              # of a message that was carried forward: the record itself says when it is due; else 0
    property_view unique
    const uint8_t* keys         # what is left of them
    const uint8_t* keys_end


cdef inline bint property_next(const uint8_t** at, const uint8_t* end, property_view* found) noexcept nogil:
    """The pair that starts at or behind `at`, which moves on; False at the end. A pair with an empty name or value is
    skipped."""
    cdef const uint8_t* begin
    cdef const uint8_t* pair_end
    cdef const uint8_t* split
    while at[0] < end:
        begin = at[0]
        pair_end = <const uint8_t*>memchr(begin, PROPERTY_END, end - begin)
        if pair_end == NULL:
            pair_end = end
        at[0] = pair_end + 1
        split = <const uint8_t*>memchr(begin, PROPERTY_NAME_END, pair_end - begin)
        if split != NULL and split > begin and pair_end - split > 1:
            found.name = begin
            found.name_len = <int>(split - begin)
            found.value = split + 1
            found.value_len = <int>(pair_end - split - 1)
            return True
    return False


cdef inline bint property_is(const property_view* pair, const char* name, int name_len) noexcept nogil:
    return pair.name_len == name_len and memcmp(pair.name, name, name_len) == 0


cdef inline bint property_find(const uint8_t* properties, int length, const char* name, int name_len,
                               property_view* found) noexcept nogil:
    """The last pair of that name; False when there is none."""
    cdef const uint8_t* at = properties
    cdef property_view pair
    cdef bint any_found = False
    while property_next(&at, properties + length, &pair):
        if property_is(&pair, name, name_len):
            found[0] = pair
            any_found = True
    return any_found


cdef inline void known_begin(known_properties* known, const record_view* v) noexcept nogil:
    cdef property_view nothing
    nothing.name = nothing.value = v.properties
    nothing.name_len = nothing.value_len = 0
    known.tags = known.keys = known.unique = known.delay = known.due = nothing


cdef inline void known_take(known_properties* known, const property_view* pair) noexcept nogil:
    if property_is(pair, PROPERTY_KEYS, PROPERTY_KEYS_BYTES):
        known.keys = pair[0]
    elif property_is(pair, PROPERTY_TAGS, PROPERTY_TAGS_BYTES):
        known.tags = pair[0]
    elif property_is(pair, PROPERTY_UNIQ_KEY, PROPERTY_UNIQ_KEY_BYTES):
        known.unique = pair[0]
    elif property_is(pair, PROPERTY_DELAY, PROPERTY_DELAY_BYTES):
        known.delay = pair[0]
    elif property_is(pair, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES):
        known.due = pair[0]


cdef inline void read_known(const record_view* v, known_properties* known) noexcept nogil:
    """In one pass over the properties."""
    cdef const uint8_t* at = v.properties
    cdef property_view pair
    known_begin(known, v)
    while property_next(&at, v.properties + v.properties_len, &pair):
        known_take(known, &pair)


cdef inline bint key_next(const uint8_t** at, const uint8_t* end, const uint8_t** key, size_t* length) noexcept nogil:
    """The key that starts at or behind `at`, which moves on; False when there are no more. Empty ones are skipped."""
    cdef const uint8_t* key_end
    while at[0] < end:
        key[0] = at[0]
        key_end = <const uint8_t*>memchr(at[0], KEY_END, end - at[0])
        if key_end == NULL:
            key_end = end
        length[0] = <size_t>(key_end - at[0])
        at[0] = key_end + 1
        if length[0]:
            return True
    return False


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
    """`delay_ms`: level 1 first."""
    cdef known_properties known
    cdef int64_t level
    read_known(v, &known)
    d.unique = known.unique
    d.keys = known.keys.value
    d.keys_end = known.keys.value + known.keys.value_len
    d.tags_code = java_hash(0, known.tags.value, known.tags.value_len) if known.tags.value_len else 0
    d.delayed = False
    d.due_ms = 0
    if known.delay.value_len and v.topic_len == SCHEDULE_TOPIC_BYTES \
            and memcmp(v.topic, SCHEDULE_TOPIC_TEXT, SCHEDULE_TOPIC_BYTES) == 0:
        level = derive_integer(known.delay.value, known.delay.value_len)
        d.delayed = level > 0
        if d.delayed and v.queue_id >= <int>DELAY_RUN_QUEUES:
            d.due_ms = derive_due_time(known.due.value, known.due.value_len)
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
    """The unique key first, then each of the keys; False when there are no more."""
    if d.unique.value_len:
        key[0] = d.unique.value
        length[0] = <size_t>d.unique.value_len
        d.unique.value_len = 0
        return True
    return key_next(&d.keys, d.keys_end, key, length)
