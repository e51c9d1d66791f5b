"""Records as columns: a walk over log bytes fills the buffers of Arrow arrays, without a Python object per row.

`columns_fill` adds the wanted records until the columns are full, the limit is reached, or the bytes are no valid
record. The caller takes the columns (`ColumnReader.take`) and calls again. The buffers have the layout of Arrow's
columnar format, so the build needs nothing of Arrow.
"""

cimport cython
from cpython.buffer cimport PyBUF_WRITABLE, PyBuffer_FillInfo
from cpython.ref cimport Py_REFCNT
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, malloc, realloc
from libc.string cimport memset

from cystore._native.layout cimport (
    PROPERTIES_BYTES_MAX, TOPIC_BYTES_MAX, record_total_size
)
from cystore._native.memory.queue_table cimport queue_hash
from cystore._native.scan.column_state cimport (
    COLUMN_BORN_TIMESTAMP, COLUMN_KEY, COLUMN_KEYS, COLUMN_OFFSET, COLUMN_PARTITION, COLUMN_PHYSICAL_OFFSET,
    COLUMN_PROPERTIES, COLUMN_SYS_FLAG, COLUMN_TAGS, COLUMN_TIMESTAMP, COLUMN_TOPIC, COLUMN_VALUE, TEXT_GROWTH,
    column_state, has_room, name_table, put_row, text_column
)
from cystore._native.scan.row_filter cimport RULE_BUCKETS, is_wanted, queue_rule, record_filter, word
from cystore._native.record.record_read cimport fetch_ahead, record_at, walk_begin
from cystore._native.record.record_view cimport RECORD_BLANK, RECORD_OK, record_view

# The most unused bytes in a small buffer.
cdef Py_ssize_t SPARE_BYTES = 64 * 1024
# Buffers of a column that the reader remembers: a batch may use the first while the reader fills the second.
cdef Py_ssize_t LENT_MAX = 2


cdef int columns_fill(const uint8_t* p, int64_t begin, column_state* s, name_table* table) noexcept nogil:
    """Continues from `position` to the first record that begins at or behind `stop`; `p` holds the log's bytes from
    `begin` to `limit`."""
    cdef record_view v
    cdef const uint8_t* at
    cdef int status
    cdef int64_t fetched = 0
    walk_begin(&v)
    while s.position < s.stop:
        at = p + (s.position - begin)
        if s.check_checksum:
            fetched = fetch_ahead(p, s.position - begin, fetched, s.limit - begin)
        status = record_at(at, <size_t>(s.limit - s.position), s.position, s.file_end, s.check_checksum, &v)
        if status == RECORD_BLANK:
            return COLUMNS_BLANK
        if status != RECORD_OK:
            s.reason = status
            return COLUMNS_INVALID
        if is_wanted(&s.filter, &v):
            if not has_room(s, &v):
                return COLUMNS_FULL
            put_row(s, &v, table)
        s.looked_at += 1
        s.position += v.total_size
    return COLUMNS_LIMIT


# ------------------------------------------------------------------------------------------------------ for Python

LIMIT = COLUMNS_LIMIT
FULL = COLUMNS_FULL
BLANK = COLUMNS_BLANK
INVALID = COLUMNS_INVALID

COLUMN_BITS = {
    "key": COLUMN_KEY, "value": COLUMN_VALUE, "topic": COLUMN_TOPIC, "partition": COLUMN_PARTITION,
    "offset": COLUMN_OFFSET,
    "timestamp": COLUMN_TIMESTAMP, "physical_offset": COLUMN_PHYSICAL_OFFSET, "tags": COLUMN_TAGS, "keys": COLUMN_KEYS,
    "properties": COLUMN_PROPERTIES, "born_timestamp": COLUMN_BORN_TIMESTAMP, "sys_flag": COLUMN_SYS_FLAG,
}

# Bytes of each row without its texts: numbers, and the begins of its texts.
cdef dict ROW_BYTES = {
    "key": 5, "value": 4, "topic": 4, "partition": 4, "offset": 8, "timestamp": 8, "physical_offset": 8, "tags": 5,
    "keys": 4,
    "properties": 4, "born_timestamp": 8, "sys_flag": 4,
}


@cython.final
cdef class ColumnBuffer:
    """Memory of one column. A view keeps it alive."""

    cdef uint8_t* data
    cdef Py_ssize_t length
    cdef Py_ssize_t capacity

    def __dealloc__(self):
        free(self.data)

    cdef uint8_t* make(self, Py_ssize_t length) except NULL:
        """Resizes the memory to `length` bytes and keeps its content."""
        cdef uint8_t* grown = <uint8_t*>realloc(self.data, max(length, 1))
        if grown == NULL:
            raise MemoryError
        self.data = grown
        self.length = self.capacity = length
        return grown

    cdef int shrink(self, Py_ssize_t length) except -1:
        """Keeps the first `length` bytes and frees the rest if it is large."""
        if self.capacity - length > max(length, SPARE_BYTES):
            self.make(length)
        self.length = length
        return 0

    def __len__(self):
        return self.length

    def __getbuffer__(self, Py_buffer* buffer, int flags):
        if flags & PyBUF_WRITABLE == PyBUF_WRITABLE:
            raise BufferError("columns are exported for reading only")
        PyBuffer_FillInfo(buffer, self, self.data, self.length, True, flags)


cdef class _Text:
    """The two buffers of a text column."""

    cdef ColumnBuffer offsets, data
    cdef text_column* column

    cdef int make(self, text_column* column, ColumnBuffer offsets, ColumnBuffer data) except -1:
        """Sets the two buffers, which have room for `count_max` items and `length_max` bytes."""
        self.offsets, self.data, self.column = offsets, data, column
        column.offsets = <int32_t*>offsets.data
        column.data = data.data
        column.offsets[0] = 0
        column.count = column.length = 0
        return 0

    cdef tuple take(self):
        """Shrinks the buffers to their content and returns them."""
        self.offsets.shrink((self.column.count + 1) * sizeof(int32_t))
        self.data.shrink(self.column.length)
        return self.offsets, self.data


cdef tuple _words(list texts, word** to):
    """Makes the words of a filter. The words point into the returned tuple."""
    cdef ColumnBuffer memory = ColumnBuffer()
    cdef word* words = <word*>memory.make(len(texts) * sizeof(word))
    cdef bytes text
    cdef int i
    for i, text in enumerate(texts):
        words[i].text = <const uint8_t*><const char*>text
        words[i].length = <int>len(text)
    to[0] = words
    return memory, texts


@cython.final
cdef class ColumnReader:
    """Reads log bytes into columns. `wanted`: bits of COLUMN_BITS. The filter, all optional: `in_queue` (only records
    in consume queues), `physical_begin` and `physical_end`, `offsets` and `times_ms` as (begin, end), `queue_ids`,
    `tags` and `keys` (bytes; any of them fits), `rules` (any of them fits) of (topic, queue id or -1, offsets begin,
    end, times begin, end)."""

    cdef column_state s
    cdef name_table* table
    cdef dict columns           # name: ColumnBuffer or _Text of each column of the current batch
    cdef dict lent              # name: ColumnBuffers of earlier batches, which may be free again
    cdef dict expected          # name: expected (items, bytes) of a full text column, by the last batch
    cdef list held              # the memory that the filter points into
    cdef bint made              # `columns` is ready to be filled

    def __cinit__(self, uint32_t wanted, int64_t rows_max, int64_t bytes_max, *, bint check_checksum=True,
                  bint in_queue=False,
                  int64_t physical_begin=INT64_MIN, int64_t physical_end=INT64_MAX, offsets=None, times_ms=None,
                  queue_ids=(), tags=(), keys=(), rules=()):
        cdef record_filter* f = &self.s.filter
        if rows_max < 1 or bytes_max < 1 or bytes_max > 0x3FFFFFFF:
            raise ValueError(f"rows_max {rows_max} or bytes_max {bytes_max} is below 1, or bytes_max is too high")
        self.held, self.lent, self.expected = [], {}, {}
        self.s.rows_max, self.s.bytes_max = rows_max, bytes_max
        self.s.wanted, self.s.check_checksum = wanted, check_checksum
        self.s.row_bytes = sum(size for name, size in ROW_BYTES.items() if COLUMN_BITS[name] & wanted)
        f.in_queue = in_queue
        f.physical_begin, f.physical_end = physical_begin, physical_end
        f.offset_begin, f.offset_end = offsets or (INT64_MIN, INT64_MAX)
        f.time_begin, f.time_end = times_ms or (INT64_MIN, INT64_MAX)
        self._set_queue_ids(list(queue_ids))
        self.held.append(_words(list(tags), <word**>&f.tags))
        f.tag_count = <int>len(tags)
        self.held.append(_words(list(keys), <word**>&f.keys))
        f.key_count = <int>len(keys)
        self._set_rules(list(rules))
        if wanted & COLUMN_PROPERTIES:
            self.table = <name_table*>malloc(sizeof(name_table))
            if self.table == NULL:
                raise MemoryError

    def __dealloc__(self):
        free(self.table)

    cdef int _set_queue_ids(self, list queue_ids) except -1:
        cdef ColumnBuffer memory = ColumnBuffer()
        cdef int32_t* numbers = <int32_t*>memory.make(len(queue_ids) * sizeof(int32_t))
        cdef int i
        for i in range(<int>len(queue_ids)):
            numbers[i] = queue_ids[i]
        self.s.filter.queue_ids = numbers
        self.s.filter.queue_id_count = <int>len(queue_ids)
        self.held.append(memory)
        return 0

    cdef int _set_rules(self, list rules) except -1:
        cdef ColumnBuffer memory = ColumnBuffer()
        cdef record_filter* f = &self.s.filter
        cdef queue_rule* rule
        cdef bytes topic
        cdef uint32_t bucket, i
        f.rules = <queue_rule*>memory.make(len(rules) * sizeof(queue_rule))
        f.rule_count = <uint32_t>len(rules)
        memset(&f.buckets[0], 0, sizeof(f.buckets))
        for i in range(f.rule_count):
            rule = &f.rules[i]
            topic, rule.queue_id, rule.offset_begin, rule.offset_end, rule.time_begin, rule.time_end = rules[i]
            rule.topic = <const uint8_t*><const char*>topic
            rule.topic_len = <int>len(topic)
            bucket = queue_hash(rule.topic, rule.topic_len, 0) % RULE_BUCKETS
            rule.link = f.buckets[bucket]
            f.buckets[bucket] = i + 1
        self.held.append((memory, rules))
        return 0

    cdef ColumnBuffer _memory(self, str name, Py_ssize_t length):
        """Memory for a column: that of an earlier, deleted batch, because new memory costs more than filling it; else
        new memory. The large memory of one large record is not used for small records."""
        cdef list lent = self.lent.get(name, [])
        cdef ColumnBuffer memory
        cdef Py_ssize_t i
        for i in range(len(lent)):
            memory = lent[i]
            # Two references: the list's, and this function's.
            if Py_REFCNT(memory) == 2 and length <= memory.capacity <= 4 * length + SPARE_BYTES:
                del lent[i]
                return memory
        memory = ColumnBuffer()
        memory.make(length)
        return memory

    cdef int _lend(self, str name, ColumnBuffer memory) except -1:
        cdef list lent = self.lent.setdefault(name, [])
        lent.append(memory)
        if len(lent) > LENT_MAX:
            del lent[0]
        return 0

    cdef uint8_t* _fixed_width(self, str name, Py_ssize_t length) except NULL:
        cdef ColumnBuffer memory = self._memory(name, length)
        memory.length = length
        self.columns[name] = memory
        return memory.data

    cdef int _text(self, str name, text_column* column, int64_t count_max, int64_t count_least,
                   int64_t length_least) except -1:
        """Makes a text column of the expected size, with room for one record of `count_least` items and `length_least`
        bytes at least."""
        cdef _Text text = _Text()
        column.count_max, column.length_max = self.expected.get(name, (count_max, self.s.bytes_max))
        column.count_max = max(min(column.count_max, count_max), count_least)
        column.length_max = max(min(column.length_max, self.s.bytes_max), length_least)
        self.columns[name] = text
        return text.make(column, self._memory(name, (column.count_max + 1) * sizeof(int32_t)),
                         self._memory(name + "_text", column.length_max))

    cdef int _expect(self, str name, text_column* column) except -1:
        """Expects for `rows_max` rows the average size of the current rows, and a quarter more."""
        cdef double times = 1.25 * self.s.rows_max / self.s.rows
        self.expected[name] = <int64_t>min(times * column.count, 1e15), <int64_t>min(times * column.length, 1e15)
        return 0

    cdef int _make(self, int64_t body_bytes) except -1:
        """Makes columns with room for at least one record with a body of `body_bytes`."""
        cdef int64_t rows = self.s.rows_max
        cdef int64_t text = TEXT_GROWTH * <int64_t>PROPERTIES_BYTES_MAX
        cdef int64_t least = <int64_t>PROPERTIES_BYTES_MAX
        cdef int64_t many = rows + least
        cdef uint32_t wanted = self.s.wanted
        cdef column_state* s = &self.s
        self.columns = {}
        s.rows = 0
        if wanted & COLUMN_KEY:
            self._text("key", &s.key, rows, 1, text)
            s.key_valid = self._fixed_width("key_valid", (rows + 7) // 8)
            memset(s.key_valid, 0, (rows + 7) // 8)
        if wanted & COLUMN_VALUE:
            self._text("value", &s.value, rows, 1, body_bytes)
        if wanted & COLUMN_TOPIC:
            self._text("topic", &s.topic, rows, 1, TOPIC_BYTES_MAX)
        if wanted & COLUMN_TAGS:
            self._text("tags", &s.tags, rows, 1, text)
            s.tags_valid = self._fixed_width("tags_valid", (rows + 7) // 8)
            memset(s.tags_valid, 0, (rows + 7) // 8)
        if wanted & COLUMN_KEYS:
            self._text("keys", &s.keys, 4 * many, least, text)
            s.keys_begin = <int32_t*>self._fixed_width("keys_begin", (rows + 1) * sizeof(int32_t))
            s.keys_begin[0] = 0
        if wanted & COLUMN_PROPERTIES:
            self._text("names", &s.names, 8 * many, least, text)
            self._text("values", &s.values, 8 * many, least, text)
            s.properties_begin = <int32_t*>self._fixed_width("properties_begin", (rows + 1) * sizeof(int32_t))
            s.properties_begin[0] = 0
        if wanted & COLUMN_PARTITION:
            s.partition = <int32_t*>self._fixed_width("partition", rows * sizeof(int32_t))
        if wanted & COLUMN_OFFSET:
            s.offset = <int64_t*>self._fixed_width("offset", rows * sizeof(int64_t))
        if wanted & COLUMN_TIMESTAMP:
            s.timestamp = <int64_t*>self._fixed_width("timestamp", rows * sizeof(int64_t))
        if wanted & COLUMN_PHYSICAL_OFFSET:
            s.physical_offset = <int64_t*>self._fixed_width("physical_offset", rows * sizeof(int64_t))
        if wanted & COLUMN_BORN_TIMESTAMP:
            s.born_timestamp = <int64_t*>self._fixed_width("born_timestamp", rows * sizeof(int64_t))
        if wanted & COLUMN_SYS_FLAG:
            s.sys_flag = <int32_t*>self._fixed_width("sys_flag", rows * sizeof(int32_t))
        self.made = True
        return 0

    def run(self, const uint8_t[::1] data, int64_t begin, int64_t position, int64_t limit, int64_t file_end,
            int64_t stop=INT64_MAX):
        """Continues at `position`; `data` are the log's bytes from `begin` on, in the file that ends at `file_end`.
        Records end at `limit` at the latest; records from `stop` on are not read. Returns the status and moves
        `position`."""
        cdef int status
        cdef const uint8_t* p
        if not begin <= position <= limit <= begin + data.shape[0]:
            raise ValueError(f"[{position}, {limit}) is not in the bytes [{begin}, {begin + data.shape[0]})")
        if position == limit:
            self.s.position = position
            return COLUMNS_LIMIT
        p = &data[0]
        if not self.made:
            self._make(0)
        self.s.position = position
        self.s.limit = limit
        self.s.stop = min(stop, limit)
        self.s.file_end = file_end
        with nogil:
            status = columns_fill(p, begin, &self.s, self.table)
        if status == COLUMNS_FULL and self.s.rows == 0:
            # One record is larger than the columns: it gets columns of its own.
            self._make(record_total_size(p + (self.s.position - begin)))
            with nogil:
                status = columns_fill(p, begin, &self.s, self.table)
        return status

    def take(self):
        """(rows, {name: buffers}) filled since the last call. Buffers: (offsets, data) for text, else the values."""
        cdef int64_t rows = self.s.rows if self.made else 0
        cdef dict taken = {}
        cdef _Text text
        if rows == 0:
            return 0, taken
        for name, column in self.columns.items():
            if type(column) is _Text:
                text = <_Text>column
                self._expect(name, text.column)
                taken[name] = text.take()
                self._lend(name, text.offsets)
                self._lend(name + "_text", text.data)
            else:
                taken[name] = column
                self._lend(name, column)
        self.columns = None
        self.made = False
        self.s.rows = 0
        return rows, taken

    @property
    def rows(self):
        """Number of rows in the columns."""
        return self.s.rows if self.made else 0

    @property
    def position(self):
        """The physical offset of the next record."""
        return self.s.position

    @property
    def reason(self):
        """The RecordStatus of the invalid record at `position`."""
        return self.s.reason

    @property
    def looked_at(self):
        """Number of records read, wanted or not."""
        return self.s.looked_at
