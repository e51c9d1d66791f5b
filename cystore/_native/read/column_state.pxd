"""The columns that are being filled, and whether one more record fits: all that is known before is how long its parts
are; for text, the most that may come of it."""

from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.read.row_filter cimport record_filter
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
    int64_t limit               # no record reaches past it
    int64_t stop                # none that begins here is read
    int64_t file_end            # of the file that holds `position`
    int reason
    int64_t rows
    int64_t rows_max
    int64_t row_bytes           # of each row in all columns, without text
    int64_t bytes_max           # of all columns together; one row may have more
    int64_t looked_at           # records, wanted or not
    text_column key
    text_column value
    text_column topic
    text_column tags
    text_column keys            # of all rows; row i has those from keys_begin[i] on
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
    TEXT_GROWTH = 3     # bytes that are no text become U+FFFD, which has three
    TEXT_PLACES = 5     # a key stands in three columns; the rest is for where each text begins
    OFFSET_BYTES = 4


cdef inline bint _fits(const text_column* column, int64_t count, int64_t length) noexcept nogil:
    return column.count + count <= column.count_max and column.length + length <= column.length_max


cdef inline int64_t _bytes(const column_state* s) noexcept nogil:
    """What is in the columns, all together."""
    return s.rows * s.row_bytes + s.value.length + s.topic.length + s.key.length + s.tags.length \
        + s.keys.length + OFFSET_BYTES * s.keys.count \
        + s.names.length + s.values.length + 2 * OFFSET_BYTES * s.names.count


cdef inline bint has_room(const column_state* s, const record_view* v) noexcept nogil:
    """For the most that the record can need."""
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
