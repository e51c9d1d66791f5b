"""Messages and results of puts."""

cimport cython
from cpython.buffer cimport PyObject_CheckBuffer
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdint cimport INT64_MAX, INT64_MIN, int32_t, int64_t, uint8_t

from cystore._native.layout cimport (
    BLANK_SIZE_MIN, HOST_V4_BYTES, HOST_V6_BYTES, RECORD_MAGIC_BLANK, RECORD_MAGIC_CYSTORE, record_magic,
    record_queue_id
)
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.argument_checks cimport delay_of, exact_bytes, exact_text, exact_whole, with_expiry
from cystore._native.record.property_read cimport property_next, property_view
from cystore._native.record.record_read cimport (
    fetch_ahead, parts_of, record_at, record_intact, record_read, walk_begin
)
from cystore._native.record.record_view cimport (
    RECORD_BAD_CHECKSUM, RECORD_BAD_POSITION, RECORD_BLANK, RECORD_OK, record_parts, record_view
)
from cystore._native.record.window cimport LogWindow, segment_view

cdef extern from "body_view.h":
    PyObject* body_view(PyObject* source, const uint8_t* start, Py_ssize_t length) except NULL
    void body_view_free(PyObject* view)

import ipaddress
from functools import lru_cache
from types import MappingProxyType

from cystore._native.record.record import STATUS_NAMES
from cystore.errors import RAW_ERRORS, CorruptRecordError, MessageIllegalError
from cystore.layout import SCHEDULE_TOPIC

cdef enum:
    WALK_RECORDS = 256
    WALK_BYTES = 4194304

RESERVED_PROPERTIES = frozenset({
    "KEYS", "TAGS", "UNIQ_KEY", "DELAY", "REAL_TOPIC", "REAL_QID", "WAIT", "DELAY_SOURCE", "DELAY_DUE",
    "DELAY_EVERY", "INNER_MULTI_QUEUE_OFFSET",
})


cdef inline int64_t _whole(str field, object value, int64_t low, int64_t high) except? -1:
    return exact_whole(field, value, low, high, MessageIllegalError)


@cython.final
@cython.freelist(256)
@cython.no_gc
cdef class PutResult:
    """Where a message was appended: `physical_offset` (bytes, in the commit log), `queue_offset` (messages, in its
    queue; 0 for prepared and rollback), `size_bytes` of the record, `store_timestamp_ms` (RocketMQ's
    AppendMessageResult)."""

    def __repr__(self):
        return (f"PutResult(physical_offset={self.physical_offset}, queue_offset={self.queue_offset}, "
                f"size_bytes={self.size_bytes}, store_timestamp_ms={self.store_timestamp_ms})")

    def __eq__(self, other):
        if not isinstance(other, PutResult):
            return NotImplemented
        return self._tuple() == (<PutResult>other)._tuple()

    def __hash__(self):
        return hash(self._tuple())

    def __reduce__(self):
        return _rebuild_put_result, self._tuple()

    def _tuple(self):
        return self.physical_offset, self.queue_offset, self.size_bytes, self.store_timestamp_ms


cdef PutResult put_result(int64_t physical_offset, int64_t queue_offset, int32_t size_bytes,
                          int64_t store_timestamp_ms):
    cdef PutResult result = PutResult.__new__(PutResult)
    result.physical_offset = physical_offset
    result.queue_offset = queue_offset
    result.size_bytes = size_bytes
    result.store_timestamp_ms = store_timestamp_ms
    return result


def place_of(Message message not None):
    """The place of a message that was read, as its put returned it."""
    return put_result(message.physical_offset, message.queue_offset, message.size_bytes, message.store_timestamp_ms)


def _rebuild_put_result(physical_offset, queue_offset, size_bytes, store_timestamp_ms):
    return put_result(physical_offset, queue_offset, size_bytes, store_timestamp_ms)


@cython.auto_pickle(False)
@cython.final
@cython.no_gc
cdef class PutArguments:
    """What a message to be put was given, beside its topic, queue, body, keys and properties."""


cdef PutArguments _nothing_given = PutArguments.__new__(PutArguments)


cdef inline PutArguments _given(Message message):
    """The arguments of a message to be put, or of a message that was never initialized."""
    return _nothing_given if message.given is None else message.given


# The garbage collector does not look for cycles through messages: no text, bytes or view in one leads back to it.
@cython.final
@cython.freelist(64)
@cython.no_gc
cdef class Message:
    """A message: made by you for `put_many`, or read from a store.

    `topic`, `queue_id`, `body`, `keys` (tuple of str), `tags` (str or None), `properties` (mapping of str to str),
    `flag`, `delay_level` (0: none), `deliver_at_ms` or `delay_ms`, and `expires_at_ms` are arguments of a put. Others
    are for programs that write messages as RocketMQ clients do: `sys_flag`, `born_timestamp_ms` (default: now),
    `born_host`, `store_host` ("address:port"), `reconsume_times`, `prepared_transaction_offset`, `unique_key`.

    `data` is the body as bytes, and `text()` as text. `body` of a stored message is a read-only memoryview of the
    stored bytes that keeps its file mapped (sys flag 1: still compressed), without a copy. `properties` holds all
    properties of the record. `queue_offset`, `physical_offset`, `size_bytes`, `store_timestamp_ms` and `body_crc` (the
    record's checksum field) are set; on a message of yours they are None. Source: MessageExt, MessageDecoder.
    """

    def __dealloc__(self):
        if self._body != NULL:
            if self.source is not None:
                body_view_free(self._body)
            else:
                Py_DECREF(<object>self._body)

    def __init__(self, *, topic, body, queue_id=0, keys=(), tags=None, properties=None, flag=0, sys_flag=0,
                 born_timestamp_ms=None, born_host=None, store_host=None, reconsume_times=0, unique_key=None,
                 prepared_transaction_offset=0, delay_level=0, expires_at_ms=None, deliver_at_ms=None, delay_ms=None):
        cdef PutArguments given
        # A put may be reading from its objects.
        if self._topic is not None or self._body != NULL or self.source is not None:
            raise MessageIllegalError("a message is made once: make another one")
        given = self.given = PutArguments.__new__(PutArguments)
        topic = exact_text("topic", topic, MessageIllegalError)
        give_body(self, body)
        self._keys = keys
        self._properties = properties if expires_at_ms is None else with_expiry(properties, expires_at_ms)
        self._queue_id = <int32_t>_whole("queue_id", queue_id, 0, 0x7FFFFFFF)
        given.tags = tags
        given.unique_key = unique_key
        given.delay_level = <int32_t>_whole("delay_level", delay_level, 0, 0x7FFFFFFF)
        given.delay = delay_of(deliver_at_ms, delay_ms, given.delay_level)
        given.flag = <int32_t>_whole("flag", flag, -0x80000000, 0x7FFFFFFF)
        given.sys_flag = <int32_t>_whole("sys_flag", sys_flag, -0x80000000, 0x7FFFFFFF)
        given.reconsume_times = <int32_t>_whole("reconsume_times", reconsume_times, -0x80000000, 0x7FFFFFFF)
        given.prepared_transaction_offset = _whole(
            "prepared_transaction_offset", prepared_transaction_offset, INT64_MIN, INT64_MAX)
        given.born_timestamp_ms = _whole(
            "born_timestamp_ms", -1 if born_timestamp_ms is None else born_timestamp_ms, INT64_MIN, INT64_MAX)
        given.born_host = None if born_host is None else encode_host(
            exact_text("born_host", born_host, MessageIllegalError), "born_host")
        given.store_host = None if store_host is None else encode_host(
            exact_text("store_host", store_host, MessageIllegalError), "store_host")
        self._topic = topic  # last: a put refuses a message without one

    @property
    def topic(self):
        cdef record_view view
        if self._topic is None and self.source is not None:
            view = message_view(self)
            # The bytes were verified, but may have been overwritten since.
            self._topic = view.topic[:view.topic_len].decode("ascii", "replace")
        return self._topic

    @property
    def queue_id(self):
        return self._queue_id

    @property
    def queue_offset(self):
        return None if self.source is None else message_view(self).queue_offset

    @property
    def physical_offset(self):
        return None if self.source is None else message_view(self).physical_offset

    @property
    def size_bytes(self):
        return None if self.source is None else self.parts.total_size

    @property
    def body(self):
        cdef PyObject* view
        if self._body == NULL and self.source is not None:
            view = body_view(<PyObject*>self.source, self.start + self.parts.body_at, self.parts.body_len)
            if self._body == NULL:
                self._body = view
            else:  # the garbage collector ran code that asked for the body, too
                Py_DECREF(<object>view)
        return given_body(self)

    @property
    def data(self):
        """The body as bytes, a copy that keeps no file mapped. Sys flag 1: still compressed."""
        if self.source is not None:
            return (<const char*>self.start + self.parts.body_at)[:self.parts.body_len]
        return exact_bytes(given_body(self))

    def text(self, encoding="utf-8", errors="strict"):
        """The body as text. Raises MessageIllegalError for bytes that are no such text; `errors` is that of
        `bytes.decode`."""
        data = self.data
        try:
            return data.decode(encoding, errors)
        except RAW_ERRORS as error:  # UnicodeDecodeError is a ValueError
            raise MessageIllegalError(f"{self!r}: the body is no text: {error}; read `data`, or give another encoding "
                                      "or errors=\"replace\"", offset=self.physical_offset) from None

    @property
    def properties(self):
        if self.source is not None and self._properties is None:
            self._properties = MappingProxyType(parse_properties(self.properties_bytes))
        elif self._properties is None:
            self._properties = MappingProxyType(parse_properties(_given(self).stored_properties or b""))
        return self._properties

    @property
    def keys(self):
        if self.source is not None and self._keys is None:
            self._keys = tuple([key for key in self.properties.get("KEYS", "").split(" ") if key])
        return self._keys

    @property
    def tags(self):
        return _given(self).tags if self.source is None else self.properties.get("TAGS")

    @property
    def unique_key(self):
        return _given(self).unique_key if self.source is None else self.properties.get("UNIQ_KEY")

    @property
    def delay_level(self):
        """The delay level that the put asked for; 0: none. A delivered message keeps it."""
        return _given(self).delay_level if self.source is None else delay_level_of(self.properties)

    @property
    def deliver_at_ms(self):
        """The due time of a message that is to be put or that waits, ms since the epoch; None: it has none."""
        if self.source is None:
            return max(_given(self).delay, 0) or None
        text = self.properties.get("DELAY_DUE", "") if self.topic == SCHEDULE_TOPIC else ""
        return int(text) if text.isascii() and text.isdecimal() else None

    @property
    def expires_at_ms(self):
        """The time from which reads leave the message out, ms since the epoch; None: never."""
        text = (self.properties or {}).get("EXPIRES_AT_MS", "")
        return int(text) if text.isascii() and text.isdecimal() else None

    @property
    def properties_bytes(self):
        """The stored property string as it is, for programs that compare bytes; None on a message to be put."""
        cdef record_view view
        if self.source is None:
            return None
        view = message_view(self)
        return view.properties[:view.properties_len]

    @property
    def flag(self):
        return _given(self).flag if self.source is None else message_view(self).flag

    @property
    def sys_flag(self):
        return _given(self).sys_flag if self.source is None else self.parts.sys_flag

    @property
    def born_timestamp_ms(self):
        if self.source is not None:
            return message_view(self).born_timestamp
        return None if _given(self).born_timestamp_ms == -1 else _given(self).born_timestamp_ms

    @property
    def store_timestamp_ms(self):
        return None if self.source is None else message_view(self).store_timestamp

    @property
    def born_host(self):
        cdef record_view view
        if self.source is not None:
            view = message_view(self)
            return decode_host(view.born_host[:view.born_host_len])
        return None if _given(self).born_host is None else decode_host(_given(self).born_host)

    @property
    def store_host(self):
        cdef record_view view
        if self.source is not None:
            view = message_view(self)
            return decode_host(view.store_host[:view.store_host_len])
        return None if _given(self).store_host is None else decode_host(_given(self).store_host)

    @property
    def reconsume_times(self):
        return _given(self).reconsume_times if self.source is None else message_view(self).reconsume_times

    @property
    def prepared_transaction_offset(self):
        if self.source is None:
            return _given(self).prepared_transaction_offset
        return message_view(self).prepared_transaction_offset

    @property
    def body_crc(self):
        return None if self.source is None else message_view(self).checksum

    @property
    def record_format(self):
        """"cystore" or "rocketmq" for a stored message, else None."""
        if self.source is None:
            return None
        return "cystore" if message_view(self).magic == RECORD_MAGIC_CYSTORE else "rocketmq"

    def __reduce__(self):
        """A copy owns its bytes: the whole record of a stored message, or the arguments of a message to be put."""
        cdef PutArguments given
        if self.source is not None:
            return _rebuild_stored, (self.start[:self.parts.total_size],)
        if self._topic is None:
            raise MessageIllegalError("a message without a topic cannot be copied")
        given = self.given
        body = given_body(self)
        if PyObject_CheckBuffer(body):
            body = bytes(memoryview(body))
        properties = dict(self._properties) if isinstance(self._properties, MappingProxyType) else self._properties
        return _rebuild_given, (
            self._topic, body, self._keys, given.tags, properties, given.unique_key, given.born_host, given.store_host,
            given.stored_properties,
            self._queue_id, given.flag, given.sys_flag, given.reconsume_times, given.delay_level,
            given.born_timestamp_ms, given.prepared_transaction_offset, given.delay)

    def __repr__(self):
        if self.source is None:
            return f"<Message to {self._topic!r}/{self._queue_id}>"
        return (f"<Message {self.topic}/{self._queue_id} at {self.queue_offset}, "
                f"{self.parts.total_size} bytes at {self.physical_offset}>")


cdef Message _refuse(int status, int64_t where, str path):
    raise CorruptRecordError(f"the record is damaged: {STATUS_NAMES[status]}", path=path, offset=where)


cdef Message message_in(object view, const uint8_t* start, const record_parts* parts):
    return _message(view, start, parts)


cdef inline Message _message(object source, const uint8_t* start, const record_parts* parts):
    """The message of a verified record at `start`, in memory that `source` keeps."""
    cdef Message message = Message.__new__(Message)
    message.source = source
    message.start = start
    message.parts = parts[0]
    message._queue_id = record_queue_id(start)
    return message


cdef Message _fill(object source, const uint8_t* start, size_t limit, int64_t where, str path, bint verified):
    """The message at `start`. Its bytes are faulted in and verified without the GIL, unless that was done before."""
    cdef record_view view
    cdef record_parts parts
    cdef int status
    view.topic = NULL
    if verified:
        status = record_read(start, limit, &view)
    else:
        with nogil:
            status = record_read(start, limit, &view)
            if status == RECORD_OK and not record_intact(start, &view):
                status = RECORD_BAD_CHECKSUM
    if status != RECORD_OK:
        return _refuse(status, where, path)
    parts = parts_of(start, &view)
    return _message(source, start, &parts)


def _rebuild_stored(bytes record not None):
    return _fill(record, <const uint8_t*><const char*>record, len(record), 0, None, True)


def _rebuild_given(topic, body, keys, tags, properties, unique_key, bytes born_host, bytes store_host,
                   bytes stored_properties, int32_t queue_id, int32_t flag, int32_t sys_flag, int32_t reconsume_times,
                   int32_t delay_level, int64_t born_timestamp_ms, int64_t prepared_transaction_offset,
                   int64_t delay=0):
    """Checks what a put relies on: a pickle may hold anything."""
    cdef Message message = Message.__new__(Message)
    cdef PutArguments given = PutArguments.__new__(PutArguments)
    if stored_properties is not None and (type(body) is not bytes or born_host is None):
        raise MessageIllegalError("a message with stored properties must have a body of bytes and a born_host")
    message.given = given
    give_body(message, body)
    message._keys, message._properties = keys, properties
    message._queue_id = <int32_t>_whole("queue_id", queue_id, 0, 0x7FFFFFFF)
    given.tags, given.unique_key, given.stored_properties = tags, unique_key, stored_properties
    given.born_host = _packed_host("born_host", born_host)
    given.store_host = _packed_host("store_host", store_host)
    given.delay_level = <int32_t>_whole("delay_level", delay_level, 0, 0x7FFFFFFF)
    given.flag, given.sys_flag, given.reconsume_times, given.delay = flag, sys_flag, reconsume_times, delay
    given.born_timestamp_ms, given.prepared_transaction_offset = born_timestamp_ms, prepared_transaction_offset
    message._topic = exact_text("topic", topic, MessageIllegalError)
    return message


cdef inline bytes _packed_host(str field, bytes host):
    if host is not None and len(host) not in (<int>HOST_V4_BYTES, <int>HOST_V6_BYTES):
        raise MessageIllegalError(f"{field}: must be {HOST_V4_BYTES} or {HOST_V6_BYTES} bytes, not {len(host)}")
    return host


cdef Message stored_message(MappedFile file, Py_ssize_t at, Py_ssize_t limit, bint verified):
    if at < 0 or limit < 0 or at > file.length or limit > file.length - at:
        raise CorruptRecordError(f"{limit} bytes run past the file's end", path=file.path, offset=file.base + at)
    return _fill(file, file.address + at, limit, file.base + at, file.path, verified)


cdef Message found_message(LogWindow window, int64_t offset):
    cdef int place = window.place_of(offset)
    cdef const segment_view* segment
    cdef const uint8_t* start
    cdef record_view view
    cdef record_parts parts
    cdef int status
    if place < 0:
        raise CorruptRecordError("the segment of this record is not mapped", offset=offset)
    segment = &window.c.segments[place]
    start = segment.address + (offset - segment.base)
    view.topic = NULL
    status = record_read(start, <size_t>(min(segment.end, window.c.wrote) - offset), &view)
    if status != RECORD_OK:
        return _refuse(status, offset, (<MappedFile>window.files[place]).path)
    parts = parts_of(start, &view)
    return _message(window.views[place], start, &parts)


cdef Message seen_message(LogWindow window, int64_t offset, const uint8_t* start, const record_parts* parts):
    cdef int place = window.place_of(offset)
    # The window may have mapped the segment elsewhere.
    if place < 0 or window.c.segments[place].address + (offset - window.c.segments[place].base) != start:
        return None
    return _message(window.views[place], start, parts)


def delay_level_of(properties):
    """The level that stored properties name, as Java's Integer.parseInt reads it; 0 for text that it refuses."""
    text = properties.get("DELAY", "")
    digits = text[1:] if text[:1] in ("+", "-") else text
    if not (digits.isascii() and digits.isdecimal()):
        return 0
    digits = digits.lstrip("0") or "0"
    level = int(digits) * (-1 if text[0] == "-" else 1) if len(digits) <= 10 else 0
    return level if -0x80000000 <= level <= 0x7FFFFFFF else 0


cdef Message message_copy(const record_view* v, str topic, int32_t queue_id, bytes properties, bytes born_host,
                          bytes store_host):
    cdef Message message = Message.__new__(Message)
    cdef PutArguments given = PutArguments.__new__(PutArguments)
    message.given = given
    message._topic = topic
    message._queue_id = queue_id
    give_body(message, v.body[:v.body_len])
    given.stored_properties = properties
    given.flag = v.flag
    given.sys_flag = v.sys_flag
    given.reconsume_times = v.reconsume_times
    given.born_timestamp_ms = v.born_timestamp
    given.born_host = born_host
    given.store_host = store_host
    return message


def due_message(Message source not None, str topic not None, int32_t queue_id, bytes properties not None,
                int32_t reconsume_times=-1, int32_t sys_flag=-1, int64_t prepared_transaction_offset=0,
                bint empty=False):
    """A message to be put that moves a stored message to another topic, with this property string. Times, hosts, flag
    and body come from the source (ScheduleMessageService.messageTimeup). So do `reconsume_times` and `sys_flag`, unless
    the caller gives them. `empty`: it has no body."""
    cdef Message message
    cdef record_view view
    if source.source is None:
        raise MessageIllegalError("the source must be a stored message")
    view = message_view(source)
    view.body_len = 0 if empty else view.body_len
    message = message_copy(&view, topic, queue_id, properties, view.born_host[:view.born_host_len],
                           view.store_host[:view.store_host_len])
    if sys_flag >= 0:
        message.given.sys_flag = sys_flag
    if reconsume_times >= 0:
        message.given.reconsume_times = reconsume_times
    message.given.prepared_transaction_offset = prepared_transaction_offset
    return message


def message_at(MappedFile file not None, Py_ssize_t at, Py_ssize_t limit):
    """The message whose record begins at `at` in a mapped file; at most `limit` bytes belong to it."""
    return stored_message(file, at, limit, False)


cdef int _walk(const uint8_t* p, int64_t base, int64_t* at, int64_t end, int64_t length, int64_t* begins, int room,
               int* status) noexcept nogil:
    """Verifies and counts records one after the other from `at`, and moves `at` on. Ends after about WALK_BYTES, after
    a blank, or with a `status` that is not RECORD_OK."""
    cdef record_view v
    cdef int count = 0
    cdef int64_t begin = at[0], fetched = 0
    status[0] = RECORD_OK
    walk_begin(&v)
    while at[0] < end and count < room and at[0] - begin < WALK_BYTES:
        fetched = fetch_ahead(p, at[0], fetched, end)
        status[0] = record_at(p + at[0], <size_t>(end - at[0]), base + at[0], base + length, True, &v)
        if status[0] == RECORD_BLANK \
                or (end - at[0] >= <int64_t>BLANK_SIZE_MIN and record_magic(p + at[0]) == RECORD_MAGIC_BLANK):
            status[0] = RECORD_OK
            at[0] = length
            break
        if status[0] != RECORD_OK:
            break
        begins[count] = at[0]
        count += 1
        at[0] += v.total_size
    return count


def messages_in(MappedFile file not None, Py_ssize_t at, Py_ssize_t end, Py_ssize_t max_count):
    """Up to `max_count` messages from consecutive records in [at, end) of a mapped file, and the place of the next
    record (after a blank: the end of the file). A call reads at most 256 records and about 4 MiB, or one longer record.

    The records are verified without the GIL. Raises CorruptRecordError when the first of them is damaged.
    """
    cdef list found = []
    cdef int64_t[WALK_RECORDS] begins
    cdef int64_t base = file.base
    cdef int64_t next = at
    cdef int64_t length = file.length
    cdef const uint8_t* address = file.address
    cdef int room = <int>min(max_count, WALK_RECORDS)
    cdef int i, count, status
    if at < 0 or end > file.length:
        raise CorruptRecordError("outside the file", path=file.path, offset=file.base + at)
    with nogil:
        count = _walk(address, base, &next, end, length, &begins[0], room, &status)
    if count == 0 and status != RECORD_OK:
        reason = "the record's physical offset differs from its place" if status == RECORD_BAD_POSITION \
            else f"the record is damaged: {STATUS_NAMES[status]}"
        raise CorruptRecordError(reason, path=file.path, offset=file.base + at)
    for i in range(count):
        found.append(stored_message(file, begins[i], end - begins[i], True))
    return found, next


def message_of(bytes record not None, int64_t physical_offset=-1, str path=None):
    """The message in a copy of its record's bytes."""
    return _fill(record, <const uint8_t*><const char*>record, len(record), physical_offset, path, False)


def parse_properties(bytes data):
    """Stored properties as a dict, in their order. Skips pairs with an empty name or value. A repeated name keeps its
    first place and its last value (MessageDecoder.string2messageProperties)."""
    cdef const uint8_t* at = <const uint8_t*><const char*>data
    cdef const uint8_t* end = at + len(data)
    cdef property_view pair
    cdef dict pairs = {}
    while property_next(&at, end, &pair):
        name = (<const char*>pair.name)[:pair.name_len].decode("utf-8", "replace")
        pairs[name] = (<const char*>pair.value)[:pair.value_len].decode("utf-8", "replace")
    return pairs


@lru_cache(4096)
def encode_host(str text, str field="host"):
    """"address:port" or "[address]:port" as stored: address and 4 bytes of port."""
    address, colon, port = text.rpartition(":")
    try:
        packed = ipaddress.ip_address(address.strip("[]")).packed
        number = int(port)
    except ValueError as error:
        raise MessageIllegalError(f"{field}: {text!r} is not address:port ({error})") from None
    if not colon or not 0 <= number <= 0x7FFFFFFF:
        raise MessageIllegalError(f"{field}: {text!r} is not address:port")
    return packed + number.to_bytes(4, "big")


@lru_cache(4096)
def decode_host(bytes packed):
    """A stored host as "address:port", IPv6 as "[address]:port" with all eight groups, as Java writes it."""
    cdef Py_ssize_t end = len(packed) - 4
    port = int.from_bytes(packed[end:], "big", signed=True)
    if end == 16:
        groups = ":".join([f"{packed[at] << 8 | packed[at + 1]:x}" for at in range(0, 16, 2)])
        return f"[{groups}]:{port}"
    return f"{ipaddress.ip_address(packed[:end])}:{port}"
