"""The cursor over the properties of a record, and the cursor over its keys. Also the values that consume queue and
index take from them: the tags code, and the keys in the order they are entered.

A property is a name, a byte of 1, a value; a byte of 2 separates two of them. Where a name repeats, its last pair
counts. A blank separates two keys. Source: MessageDecoder.string2messageProperties of RocketMQ 4.9.3.

Also the light queues of a record (RocketMQ's LMQ): queues that hold it beside its own queue. Each is queue 0 of a
topic that begins with %LMQ%.

The property INNER_MULTI_DISPATCH names them, and INNER_MULTI_QUEUE_OFFSET has a queue offset for each, in the same
order. A writer enters the offsets under the append lock. So a record with both is in these queues, whatever the
settings are now. Source: MultiDispatch and ConsumeQueue.multiDispatchLmqQueue of RocketMQ 4.9.3.
"""

from libc.stdint cimport INT32_MAX, int32_t, int64_t, uint8_t, uint32_t
from libc.string cimport memchr, memcmp, memcpy

from cystore._native.layout cimport (
    DELAY_RUN_QUEUES, DELAY_SECONDS_MAX, LMQ_PREFIX, LMQ_PREFIX_BYTES, PROPERTY_DELAY, PROPERTY_DELAY_BYTES,
    PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, PROPERTY_END, PROPERTY_INNER_MULTI_DISPATCH,
    PROPERTY_INNER_MULTI_DISPATCH_BYTES, PROPERTY_INNER_MULTI_QUEUE_OFFSET, PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES,
    PROPERTY_KEYS, PROPERTY_KEYS_BYTES, PROPERTY_NAME_END, PROPERTY_TAGS, PROPERTY_TAGS_BYTES, PROPERTY_UNIQ_KEY,
    PROPERTY_UNIQ_KEY_BYTES, RECORD_SIZE_MIN, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT, TIMER_QUEUE_ID
)
from cystore._native.record.record cimport java_hash, java_hash_four
from cystore._native.record.record_read cimport topic_valid
from cystore._native.record.record_view cimport record_view

cdef enum:
    DUE_TIME_DIGITS = 17        # DELAY_PROPERTY_ROOM has room for them
    KEY_END = 32                # a blank
    LIGHT_SEPARATOR = 44        # a comma
    LIGHT_OFFSET_DIGITS = 17
    # A record cannot name more: its properties have at most 32,767 bytes, a name has at least six and an offset two.
    LIGHT_QUEUES_READ = 4096
    # The bytes of both names, and of the shortest values.
    LIGHT_PROPERTIES_BYTES = PROPERTY_INNER_MULTI_DISPATCH_BYTES + PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES + 10

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
    property_view light         # names of light queues, and the queue offsets there
    property_view light_offsets

cdef struct derived:
    int64_t tags_code
    bint delayed                # waits for its due time, which takes the place of the tags code
    int64_t due_ms              # due time that the record itself names: it was put with one, or carried; else 0
    property_view unique
    property_view light
    property_view light_offsets
    const uint8_t* keys         # the keys that are left
    const uint8_t* keys_end

# The light queues of a record that are left.
cdef struct light_queues:
    const uint8_t* names
    const uint8_t* names_end
    const uint8_t* offsets
    const uint8_t* offsets_end
    int64_t physical_offset

cdef struct light_place:
    const uint8_t* name
    int name_len
    int64_t queue_offset


cdef inline bint property_next(const uint8_t** at, const uint8_t* end, property_view* found) noexcept nogil:
    """Finds the next pair from `at` on, and moves `at` behind it; False at the end. Skips a pair with an empty name or
    value."""
    cdef const uint8_t* begin
    cdef const uint8_t* pair_end
    cdef const uint8_t* name_end
    while at[0] < end:
        begin = name_end = at[0]
        # A loop, because most names are short.
        while name_end < end and name_end[0] != PROPERTY_NAME_END and name_end[0] != PROPERTY_END:
            name_end += 1
        pair_end = <const uint8_t*>memchr(name_end, PROPERTY_END, end - name_end)
        if pair_end == NULL:
            pair_end = end
        at[0] = pair_end + 1
        if name_end > begin and pair_end - name_end > 1:
            found.name = begin
            found.name_len = <int>(name_end - begin)
            found.value = name_end + 1
            found.value_len = <int>(pair_end - name_end - 1)
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
    cdef property_view empty
    empty.name = empty.value = v.properties
    empty.name_len = empty.value_len = 0
    known.tags = known.keys = known.unique = known.delay = known.due = known.light = known.light_offsets = empty


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
    elif property_is(pair, PROPERTY_INNER_MULTI_DISPATCH, PROPERTY_INNER_MULTI_DISPATCH_BYTES):
        known.light = pair[0]
    elif property_is(pair, PROPERTY_INNER_MULTI_QUEUE_OFFSET, PROPERTY_INNER_MULTI_QUEUE_OFFSET_BYTES):
        known.light_offsets = pair[0]


cdef inline void read_known(const record_view* v, known_properties* known) noexcept nogil:
    """Fills `known` in one pass over the properties."""
    cdef const uint8_t* at = v.properties
    cdef property_view pair
    known_begin(known, v)
    while property_next(&at, v.properties + v.properties_len, &pair):
        known_take(known, &pair)


cdef inline const uint8_t* _key_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* found = <const uint8_t*>memchr(at, KEY_END, end - at)
    return end if found == NULL else found


cdef inline bint key_next(const uint8_t** at, const uint8_t* end, const uint8_t** key, size_t* length) noexcept nogil:
    """Finds the next key from `at` on, and moves `at` behind it; False when there are no more. Skips empty keys."""
    cdef const uint8_t* key_end
    while at[0] < end:
        key[0] = at[0]
        key_end = _key_end(at[0], end)
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
    """Fills `d` from a record. `delay_ms` are the delays of all levels, level 1 first."""
    cdef known_properties known
    cdef int64_t level
    read_known(v, &known)
    d.unique = known.unique
    d.light, d.light_offsets = known.light, known.light_offsets
    d.keys = known.keys.value
    d.keys_end = known.keys.value + known.keys.value_len
    d.tags_code = java_hash(0, known.tags.value, known.tags.value_len) if known.tags.value_len else 0
    d.delayed = False
    d.due_ms = 0
    if not (known.delay.value_len or known.due.value_len) or v.topic_len != SCHEDULE_TOPIC_BYTES \
            or memcmp(v.topic, SCHEDULE_TOPIC_TEXT, SCHEDULE_TOPIC_BYTES) != 0:
        return
    if v.queue_id == <int>TIMER_QUEUE_ID:
        d.due_ms = derive_due_time(known.due.value, known.due.value_len)
        d.delayed = d.due_ms > 0
        if d.delayed:
            d.tags_code = d.due_ms
    elif known.delay.value_len:
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


cdef inline bint _ends_or_is_foreign(uint32_t four) noexcept nogil:
    """Whether one of four characters is a blank, or no ASCII."""
    cdef uint32_t blanks = four ^ 0x20202020u  # 0 where there is one
    return (((blanks - 0x01010101u) & ~blanks) | four) & 0x80808080u != 0


cdef inline bint derive_next_hash(derived* d, int32_t seed, int32_t* hash) noexcept nogil:
    """The next key's hash, continued from `seed`; finds the key's end meanwhile. False when there are no more."""
    cdef const uint8_t* begin
    cdef const uint8_t* at
    cdef uint32_t four
    cdef uint32_t h
    if d.unique.value_len:
        hash[0] = java_hash(seed, d.unique.value, d.unique.value_len)
        d.unique.value_len = 0
        return True
    while d.keys < d.keys_end:
        h = <uint32_t>seed
        begin = at = d.keys
        while d.keys_end - at >= 4:
            memcpy(&four, at, 4)
            if _ends_or_is_foreign(four):
                break
            h = java_hash_four(h, at)
            at += 4
        while at < d.keys_end and at[0] != KEY_END:
            if at[0] & 0x80:
                at = _key_end(begin, d.keys_end)
                h = <uint32_t>java_hash(seed, begin, at - begin)
                break
            h = 31 * h + at[0]
            at += 1
        d.keys = at + 1
        if at > begin:
            hash[0] = <int32_t>h
            return True
    return False


cdef inline bint light_name(const uint8_t* topic, int64_t length) noexcept nogil:
    """Whether a topic is a light queue's."""
    return length > LMQ_PREFIX_BYTES and memcmp(topic, LMQ_PREFIX, LMQ_PREFIX_BYTES) == 0 and topic_valid(topic, length)


cdef inline int64_t _parts(const uint8_t* at, const uint8_t** end) noexcept nogil:
    """The number of parts that String.split gives. Moves `end` to cut off empty parts there."""
    cdef int64_t count = 1
    while end[0] > at and (end[0] - 1)[0] == LIGHT_SEPARATOR:
        end[0] -= 1
    if end[0] == at:
        return 0
    while (at := <const uint8_t*>memchr(at, LIGHT_SEPARATOR, end[0] - at)) != NULL:
        count += 1
        at += 1
    return count


cdef inline bint light_of(const record_view* v, const property_view* names, const property_view* offsets,
                          light_queues* q) noexcept nogil:
    """Finds a record's light queues by its two properties. False when it is in none."""
    if names.value_len == 0 or offsets.value_len == 0:
        return False
    q.names, q.names_end = names.value, names.value + names.value_len
    q.offsets, q.offsets_end = offsets.value, offsets.value + offsets.value_len
    q.physical_offset = v.physical_offset
    return _parts(q.names, &q.names_end) == _parts(q.offsets, &q.offsets_end) > 0


cdef inline bint light_possible(const record_view* v) noexcept nogil:
    """False if the record's properties are too short for light queues."""
    return v.properties_len >= LIGHT_PROPERTIES_BYTES


cdef inline bint light_begin(const record_view* v, light_queues* q) noexcept nogil:
    """Finds a record's light queues. False when it is in none."""
    cdef known_properties known
    if not light_possible(v):
        return False
    read_known(v, &known)
    return light_of(v, &known.light, &known.light_offsets, q)


cdef inline int64_t _number(const uint8_t* text, int64_t length) noexcept nogil:
    """The number; -1 for any text but digits."""
    cdef int64_t i, value = 0
    if not 0 < length <= LIGHT_OFFSET_DIGITS:
        return -1
    for i in range(length):
        if not c'0' <= text[i] <= c'9':
            return -1
        value = value * 10 + (text[i] - c'0')
    return value


cdef inline const uint8_t* _part_end(const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* found = <const uint8_t*>memchr(at, LIGHT_SEPARATOR, end - at)
    return end if found == NULL else found


cdef inline bint light_next(light_queues* q, light_place* place) noexcept nogil:
    """The next light queue; False when there are no more. Skips names of other topics, and offsets that are impossible:
    each earlier message of the queue took room of the log."""
    cdef const uint8_t* name_end
    cdef const uint8_t* offset_end
    while q.names < q.names_end and q.offsets < q.offsets_end:
        name_end = _part_end(q.names, q.names_end)
        offset_end = _part_end(q.offsets, q.offsets_end)
        place.name, place.name_len = q.names, <int>(name_end - q.names)
        place.queue_offset = _number(q.offsets, offset_end - q.offsets)
        q.names, q.offsets = name_end + 1, offset_end + 1
        if light_name(place.name, place.name_len) \
                and 0 <= place.queue_offset <= q.physical_offset // <int64_t>RECORD_SIZE_MIN:
            return True
    return False


cdef inline int64_t light_offset(const record_view* v, const uint8_t* topic, int topic_len) noexcept nogil:
    """The record's queue offset in a light queue; -1 when it is not in that queue."""
    cdef light_queues remaining
    cdef light_place place
    if not light_name(topic, topic_len) or not light_begin(v, &remaining):
        return -1
    while light_next(&remaining, &place):
        if place.name_len == topic_len and memcmp(place.name, topic, topic_len) == 0:
            return place.queue_offset
    return -1
