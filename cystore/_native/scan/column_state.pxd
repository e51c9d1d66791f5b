"""The state of the columns: checks whether one more record fits, and writes its row.

The check knows only the lengths of the record's parts. For text it assumes the most bytes that the characters may
need."""

from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.string cimport memcmp, memcpy, memset

from cystore._native.scan.row_filter cimport record_filter
from cystore._native.record.property_read cimport (
    key_next, known_begin, known_properties, known_take, property_next, property_view
)
from cystore._native.record.record cimport text_character
from cystore._native.record.record_view cimport record_view

cdef enum ColumnBit:
    COLUMN_KEY = 1
    COLUMN_VALUE = 2
    COLUMN_TOPIC = 4
    COLUMN_PARTITION = 8
    COLUMN_OFFSET = 16
    COLUMN_TIMESTAMP = 32
    COLUMN_PHYSICAL_OFFSET = 64
    COLUMN_TAGS = 128
    COLUMN_KEYS = 256
    COLUMN_PROPERTIES = 512
    COLUMN_BORN_TIMESTAMP = 1024
    COLUMN_SYS_FLAG = 2048

# Arrow's layout of text: item i is data[offsets[i]:offsets[i + 1]].
cdef struct text_column:
    int32_t* offsets
    uint8_t* data
    int64_t count
    int64_t count_max
    int64_t length
    int64_t length_max

cdef struct column_state:
    uint32_t wanted             # ColumnBits
    bint check_checksum
    record_filter filter
    int64_t position
    int64_t limit               # records end here at the latest
    int64_t stop                # a record that begins here or later is not read
    int64_t file_end            # of the file that holds `position`
    int reason
    int64_t rows
    int64_t rows_max
    int64_t row_bytes           # of each row in all columns, without text
    int64_t bytes_max           # of all columns together; a single row may have more
    int64_t looked_at           # records, wanted or not
    text_column key
    text_column value
    text_column topic
    text_column tags
    text_column keys            # of all rows; the keys of row i begin at keys_begin[i]
    text_column names           # of properties
    text_column values
    int32_t* keys_begin
    int32_t* properties_begin
    uint8_t* key_valid          # bit maps
    uint8_t* tags_valid
    int32_t* partition
    int64_t* offset
    int64_t* timestamp
    int64_t* physical_offset
    int64_t* born_timestamp
    int32_t* sys_flag

cdef enum:
    TEXT_GROWTH = 3     # an invalid byte becomes U+FFFD, which has three bytes
    TEXT_PLACES = 5     # a key stands in three columns; the rest is for the begins of texts
    OFFSET_BYTES = 4


cdef inline bint _fits(const text_column* column, int64_t count, int64_t length) noexcept nogil:
    return column.count + count <= column.count_max and column.length + length <= column.length_max


cdef inline int64_t _bytes(const column_state* s) noexcept nogil:
    """Bytes in all columns."""
    return s.rows * s.row_bytes + s.value.length + s.topic.length + s.key.length + s.tags.length \
        + s.keys.length + OFFSET_BYTES * s.keys.count \
        + s.names.length + s.values.length + 2 * OFFSET_BYTES * s.names.count


cdef inline bint has_room(const column_state* s, const record_view* v) noexcept nogil:
    """Whether the columns have room for the most that the record can need."""
    cdef int64_t text = TEXT_GROWTH * v.properties_len
    cdef int64_t together = s.row_bytes + v.topic_len + TEXT_PLACES * text
    cdef uint32_t wanted = s.wanted
    if s.rows == s.rows_max:
        return False
    if wanted & COLUMN_VALUE:
        together += v.body_len
    if s.rows and _bytes(s) + together > s.bytes_max:
        return False
    return not (
        (wanted & COLUMN_VALUE and not _fits(&s.value, 1, v.body_len))
        or (wanted & COLUMN_TOPIC and not _fits(&s.topic, 1, v.topic_len))
        or (wanted & COLUMN_KEY and not _fits(&s.key, 1, text))
        or (wanted & COLUMN_TAGS and not _fits(&s.tags, 1, text))
        or (wanted & COLUMN_KEYS and not _fits(&s.keys, v.properties_len // 2 + 1, text))
        or (wanted & COLUMN_PROPERTIES and not (
            _fits(&s.names, v.properties_len // 4 + 1, text) and _fits(&s.values, v.properties_len // 4 + 1, text)))
    )


cdef enum:
    MANY_PROPERTIES_BYTES = 512     # longer properties: a hash table finds repeated names


cdef inline void _put_bytes(text_column* column, const uint8_t* data, int64_t length) noexcept nogil:
    memcpy(column.data + column.length, data, length)
    column.length += length
    column.count += 1
    column.offsets[column.count] = <int32_t>column.length


cdef inline int64_t _put_decoded(uint8_t* out, const uint8_t* text, size_t length) noexcept nogil:
    """Writes text and replaces invalid UTF-8 by U+FFFD; returns the number of written bytes."""
    cdef uint8_t* to = out
    cdef size_t i = 0
    cdef size_t begin
    cdef uint32_t point
    while i < length:
        begin = i
        point = text_character(text, length, &i)
        if point == 0xFFFD:
            to[0] = 0xEF
            to[1] = 0xBF
            to[2] = 0xBD
            to += 3
        else:
            memcpy(to, text + begin, i - begin)
            to += i - begin
    return to - out


cdef inline void _put_text(text_column* column, const uint8_t* text, int64_t length) noexcept nogil:
    """Copies ASCII eight bytes at a time. The last two words may overlap."""
    cdef uint8_t* out = column.data + column.length
    cdef uint64_t word, bits = 0
    cdef int64_t i = 0
    if length >= 8:
        while i < length:
            if i > length - 8:
                i = length - 8
            memcpy(&word, text + i, 8)
            memcpy(out + i, &word, 8)
            bits |= word
            i += 8
    else:
        for i in range(length):
            out[i] = text[i]
            bits |= text[i]
    if bits & 0x8080808080808080u:
        length = _put_decoded(out, text, <size_t>length)
    column.length += length
    column.count += 1
    column.offsets[column.count] = <int32_t>column.length


cdef inline void _put_nothing(text_column* column) noexcept nogil:
    column.count += 1
    column.offsets[column.count] = <int32_t>column.length


cdef inline int64_t _repeated(const text_column* names, int64_t first) noexcept nogil:
    """Number of the item from `first` on that equals the last item, -1: none."""
    cdef int64_t last = names.count - 1
    cdef int32_t begin = names.offsets[last]
    cdef int64_t length = names.offsets[last + 1] - begin
    cdef int64_t i
    for i in range(first, last):
        if names.offsets[i + 1] - names.offsets[i] == length \
                and memcmp(names.data + names.offsets[i], names.data + begin, length) == 0:
            return i
    return -1


cdef enum:
    PAIRS_MAX = 8192            # a pair has at least four bytes with its separators
    PLACES = 16384


cdef struct name_table:
    uint32_t[16384] places      # number of the name in its record + 1
    property_view[8193] pairs


cdef inline int64_t _found_in(name_table* table, const text_column* names, int64_t first) noexcept nogil:
    """`_repeated` for a record with many names: enters the last name into the table, or finds its equal there."""
    cdef int64_t last = names.count - 1
    cdef const uint8_t* text = names.data + names.offsets[last]
    cdef int64_t length = names.offsets[last + 1] - names.offsets[last]
    cdef uint32_t place = 2166136261u
    cdef int64_t i, number
    for i in range(length):
        place = (place ^ text[i]) * 16777619u
    place = (place ^ (place >> 16)) & (PLACES - 1)
    while table.places[place]:
        number = first + table.places[place] - 1
        if names.offsets[number + 1] - names.offsets[number] == length \
                and memcmp(names.data + names.offsets[number], text, length) == 0:
            return number
        place = (place + 1) & (PLACES - 1)
    table.places[place] = <uint32_t>(last - first + 1)
    return -1


cdef inline void _put_keys(column_state* s, const uint8_t* at, const uint8_t* end) noexcept nogil:
    cdef const uint8_t* key
    cdef size_t length
    cdef bint first = True
    while key_next(&at, end, &key, &length):
        if first and s.wanted & COLUMN_KEY:
            s.key_valid[s.rows >> 3] |= <uint8_t>(1 << (s.rows & 7))
            _put_text(&s.key, key, <int64_t>length)
        first = False
        if not s.wanted & COLUMN_KEYS:
            return
        _put_text(&s.keys, key, <int64_t>length)
    if first and s.wanted & COLUMN_KEY:
        _put_nothing(&s.key)


cdef inline void _put_properties(column_state* s, const record_view* v, name_table* table) noexcept nogil:
    """Writes all columns of the properties in one pass. For tags and keys the last pair of the name counts. In the list
    of all pairs, a repeated name keeps its first place and takes its last value."""
    cdef const uint8_t* at = v.properties
    cdef const uint8_t* end = at + v.properties_len
    cdef text_column* names = &s.names
    cdef property_view pair
    cdef known_properties known
    cdef int64_t first = names.count
    cdef int64_t same, i
    cdef bint all_pairs = s.wanted & COLUMN_PROPERTIES != 0
    cdef bint many = all_pairs and v.properties_len > MANY_PROPERTIES_BYTES
    known_begin(&known, v)
    if many:
        memset(&table.places[0], 0, sizeof(table.places))
    while property_next(&at, end, &pair):
        known_take(&known, &pair)
        if not all_pairs:
            continue
        _put_text(names, pair.name, pair.name_len)
        same = _found_in(table, names, first) if many else _repeated(names, first)
        if same >= 0:
            names.count -= 1
            names.length = names.offsets[names.count]
            table.pairs[same - first] = pair
        else:
            table.pairs[names.count - 1 - first] = pair
    if all_pairs:
        for i in range(names.count - first):
            _put_text(&s.values, table.pairs[i].value, table.pairs[i].value_len)
        s.properties_begin[s.rows + 1] = <int32_t>names.count
    if s.wanted & COLUMN_TAGS:
        if known.tags.value_len:
            s.tags_valid[s.rows >> 3] |= <uint8_t>(1 << (s.rows & 7))
            _put_text(&s.tags, known.tags.value, known.tags.value_len)
        else:
            _put_nothing(&s.tags)
    if s.wanted & (COLUMN_KEYS | COLUMN_KEY):
        _put_keys(s, known.keys.value, known.keys.value + known.keys.value_len)
        if s.wanted & COLUMN_KEYS:
            s.keys_begin[s.rows + 1] = <int32_t>s.keys.count


cdef inline int64_t _microseconds(int64_t ms) noexcept nogil:
    """Milliseconds as microseconds, limited to 64 bits."""
    if ms > INT64_MAX // 1000:
        return INT64_MAX
    if ms < -INT64_MAX // 1000:
        return INT64_MIN
    return ms * 1000


cdef inline void put_row(column_state* s, const record_view* v, name_table* table) noexcept nogil:
    cdef uint32_t wanted = s.wanted
    cdef int64_t row = s.rows
    if wanted & COLUMN_VALUE:
        _put_bytes(&s.value, v.body, v.body_len)
    if wanted & COLUMN_TOPIC:
        _put_bytes(&s.topic, v.topic, v.topic_len)
    if wanted & COLUMN_PARTITION:
        s.partition[row] = v.queue_id
    if wanted & COLUMN_OFFSET:
        s.offset[row] = v.queue_offset
    if wanted & COLUMN_TIMESTAMP:
        s.timestamp[row] = _microseconds(v.store_timestamp)
    if wanted & COLUMN_PHYSICAL_OFFSET:
        s.physical_offset[row] = v.physical_offset
    if wanted & COLUMN_BORN_TIMESTAMP:
        s.born_timestamp[row] = _microseconds(v.born_timestamp)
    if wanted & COLUMN_SYS_FLAG:
        s.sys_flag[row] = v.sys_flag
    if wanted & (COLUMN_TAGS | COLUMN_KEYS | COLUMN_KEY | COLUMN_PROPERTIES):
        _put_properties(s, v, table)
    s.rows += 1
