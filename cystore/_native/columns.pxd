from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t

from cystore._native.checksum cimport head_checksum
from cystore._native.row_filter cimport record_filter

cdef enum ColumnsStatus:
    COLUMNS_LIMIT = 0       # `stop` is reached
    COLUMNS_FULL = 1        # the record at `position` does not fit into the columns any more
    COLUMNS_BLANK = 2       # a blank fills the file from `position` on
    COLUMNS_INVALID = 3     # no valid record at `position`: `reason` is its RecordStatus

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
    head_checksum head
    record_filter filter
    int64_t position
    int64_t limit               # no record reaches past it
    int64_t stop                # none that begins here is read
    int64_t file_end            # of the file that holds `position`
    int reason
    int64_t rows
    int64_t rows_max
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
