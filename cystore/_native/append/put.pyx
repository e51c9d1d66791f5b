"""`put` as programs call it. Nearly every message takes the fast path, which checks nothing twice. Appender appends all
other messages, and messages that meet an obstacle. A kill leaves the same states on both paths (append.pxd).
"""

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_REFCNT, Py_XDECREF, Py_XINCREF
from cpython.unicode cimport PyUnicode_CheckExact
from libc.stdint cimport int32_t, int64_t, uint8_t, uint16_t, uint64_t
from libc.string cimport memcpy, memmove

from cystore._native.append.append cimport APPEND_OK, append_one, counter_now, expect_turn
from cystore._native.append.arguments cimport (
    KEYWORDS_UNKNOWN, METH_FASTCALL, METH_KEYWORDS, PyCFunction, PyCFunction_NewEx, PyMethodDef, call_python,
    known_callers, place_defaults, place_keywords
)
from cystore._native.layout cimport (
    HOST_V4_BYTES, LOCK_APPEND, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES, PROPERTY_END, PROPERTY_NAME_END,
    PROPERTY_REAL_QID, PROPERTY_REAL_QID_BYTES, PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES, RECORD_SIZE_MIN,
    RECORD_TAIL_FIXED_BYTES, RECORD_TOPIC_LENGTH_BYTES, TIMER_QUEUE_ID, control_block, own_topic, queue_entry,
    store_be16
)
from cystore._native.memory.locks cimport control_enter, control_unlock, control_wake_queue, control_wake_sleepers
from cystore._native.memory.queue_table cimport control_find_queue
from cystore._native.record.argument_checks cimport delay_of, exact_text
from cystore._native.record.message cimport PutResult, put_result
from cystore._native.record.properties cimport FIRST_IN_KEY, FIRST_IN_TEXT, only_key, put_ascii, put_decimal
from cystore._native.record.record_read cimport topic_valid
from cystore._native.record.record_write cimport append_item, failpoint

import sys

from cystore.errors import MessageIllegalError
from cystore.layout import SCHEDULE_TOPIC, refuse_own_topic

cdef extern from "wallclock.h" nogil:
    int CLOCK_BOOTTIME
    int CLOCK_REALTIME
    int64_t clock_read_ms(int which)
    int64_t store_clock_at(control_block* block, int64_t wall, int64_t boot, bint looks)

cdef extern from "Python.h":
    bint PyUnicode_IS_COMPACT_ASCII(object text)
    void* PyUnicode_DATA(object text)
    Py_ssize_t PyUnicode_GET_LENGTH(object text)

cdef enum:
    PUT_POSITIONAL = 2
    PUT_FAST = 1 << PUT_KEYS | 1 << PUT_TAGS  # the keywords that nearly every call has
    PUT_TIMED = PUT_FAST | 1 << PUT_DELIVER_AT_MS | 1 << PUT_DELAY_MS
    TIMED_BYTES = 96  # of the properties of a message that waits, but for its topic: three names, and two numbers
    TIMED_ROOM = 256  # for what delivery may add to the record
    LAST_RESULT_UNUSED = 2  # references: the appender's, and the local reference of result_of
    NOTHING_APPENDED = -1


cdef str _schedule_topic = SCHEDULE_TOPIC


cdef str exact_topic(object topic):
    """The topic as an exact str. The cache never holds an object of a subclass: its destructor may run code. The text
    of such an object is interned, so that the same text is the same object next time."""
    if PyUnicode_CheckExact(topic):
        return exact_text("topic", topic, MessageIllegalError)
    return <str>sys.intern(exact_text("topic", topic, MessageIllegalError))


cdef int refuse_own(const append_item* item) except -1:
    refuse_own_topic(item.topic[:item.topic_len].decode("ascii"))
    return 0


cdef class FastAppender:
    """Appends ordinary messages; Appender overrides these methods for all others."""

    cdef int read_options(self, PyObject** values, put_options* options) except -1:
        raise TypeError("only an Appender appends")

    cdef PutResult put_any(self, object topic, object body, PyObject* keys, PyObject* tags, const put_options* options):
        raise TypeError("only an Appender appends")

    cdef int sync_result(self, PutResult result, int flush) except -1:
        raise TypeError("only an Appender appends")

    cdef int report_slow_put(self) except -1:
        cdef int64_t took_ms = self.target.slow_ms
        self.target.slow_ms = 0
        self.policy.slow_put(took_ms, "was appended")
        return 0


cdef inline int append_at_once(FastAppender self, append_item* item, uint64_t ticks) noexcept:
    """Appends one message if the lock is free and there is room. The GIL keeps the segment mapped."""
    cdef control_block* block = self.target.block
    cdef int status
    expect_turn(block, item)
    failpoint("append.looked")
    if not control_enter(block, LOCK_APPEND, &self.control.me, True):
        return NOTHING_APPENDED
    status = append_one(block, &self.target, item, ticks)
    control_unlock(block, LOCK_APPEND, &self.control.me)
    control_wake_sleepers(block)
    if status == APPEND_OK:
        control_wake_queue(item.entry)
    return status


cdef bint learn_queue(control_block* block, cached_topic* cached, PyObject* topic, int32_t queue_id) noexcept:
    """Caches a topic and its queue. A store with many queues needs this for most of its puts. False when Appender has
    to look at the topic: it is unusual, or the queue is new."""
    cdef const uint8_t* text
    cdef Py_ssize_t length
    cdef queue_entry* entry
    if not (PyUnicode_CheckExact(<object>topic) and PyUnicode_IS_COMPACT_ASCII(<object>topic)):
        return False
    text, length = <const uint8_t*>PyUnicode_DATA(<object>topic), PyUnicode_GET_LENGTH(<object>topic)
    if not topic_valid(text, length) or own_topic(text, length):
        return False
    entry = control_find_queue(block, text, <int>length, queue_id)
    if entry == NULL:
        return False
    place_topic(cached, topic, text, <int32_t>length, queue_id)
    cached.entry = entry
    cached.fast = topic
    return True


cdef bint learn_tag(cached_topic* cached, PyObject* tag) noexcept:
    """Caches the property of a tag. False when the tag is not a short ASCII text, or is an object of a subclass."""
    cdef uint8_t* end
    if not PyUnicode_CheckExact(<object>tag):
        return False
    Py_XDECREF(cached.tag)
    cached.tag = NULL
    cached.tag_property[0] = PROPERTY_END
    end = put_ascii(&cached.tag_property[1], &cached.tag_property[TAG_BYTES], b"TAGS\x01\0\0\0", tag, FIRST_IN_TEXT)
    if end == NULL:
        return False
    cached.tag_length = <int32_t>(end - cached.tag_property)
    Py_XINCREF(tag)
    cached.tag = tag
    return True


cdef inline int32_t fast_properties(cached_topic* cached, PyObject* keys, PyObject* tag) noexcept:
    """Writes keys and tag into the topic's tail and returns their length; -1 when they are not short ASCII texts:
    then Appender writes them."""
    cdef uint8_t* begin = cached.tail + cached.length + <int32_t>RECORD_TAIL_FIXED_BYTES
    cdef uint8_t* at = begin
    cdef const uint8_t* source
    cdef int32_t length
    keys = only_key(keys)
    if keys != <PyObject*>None:
        at = put_ascii(at, &cached.tail[TAIL_BYTES - TAG_BYTES], b"KEYS\x01\0\0", keys, FIRST_IN_KEY)
        if at == NULL:
            return -1
    if tag != <PyObject*>None:
        if cached.tag != tag and not learn_tag(cached, tag):
            return -1
        source, length = cached.tag_property, cached.tag_length
        if at == begin:  # no key, so no separator
            source, length = source + 1, length - 1
        memcpy(at, source, TAG_BYTES - 1)  # a constant length: compiled to moves
        at += length
    return <int32_t>(at - begin)


cdef inline void ordinary_item(FastAppender self, append_item* item, cached_topic* cached, PyObject* body,
                               int32_t properties_len) noexcept:
    """Fills the item of an ordinary message, whose topic and properties are in the tail of `cached`. The compiler knows
    many of these values wherever the item is used."""
    store_be16(cached.tail + cached.length + RECORD_TOPIC_LENGTH_BYTES, <uint16_t>properties_len)
    item.body = <const uint8_t*>PyBytes_AS_STRING(<object>body)
    item.body_len = <int32_t>PyBytes_GET_SIZE(<object>body)
    item.topic_len = cached.length
    item.properties_len = properties_len
    item.tail = cached.tail
    item.born_host = item.store_host = self.blank.store_host
    item.born_host_len = item.store_host_len = <int32_t>HOST_V4_BYTES
    item.size = <int32_t>RECORD_SIZE_MIN + item.body_len + item.topic_len + item.properties_len
    item.entry = cached.entry
    item.topic = item.properties = NULL
    item.sys_flag = item.reconsume_times = 0
    item.born_timestamp = -1
    item.prepared_transaction_offset = 0
    item.physical_offset = item.queue_offset = item.store_timestamp = 0  # until it is appended
    item.body_checksum = 0
    item.has_body_checksum = False


cdef inline uint8_t* put_name(uint8_t* at, const char* name, int64_t length) noexcept:
    """Writes the begin of one more property."""
    at[0] = PROPERTY_END
    memcpy(at + 1, name, length)
    at[length + 1] = PROPERTY_NAME_END
    return at + length + 2


cdef bint append_timed(FastAppender self, PyObject* topic, PyObject* body, PyObject* keys, PyObject* tags,
                       const put_options* options, append_item* item, uint64_t ticks) noexcept:
    """`append_fast` for a message that waits until a time of its own. Appender appends the first one, one that is due
    by now or would wait too long, and now and then one, to look whether anybody delivers."""
    cdef cached_topic* cached = topic_place(self, topic, options.queue_id)
    cdef cached_topic* timer = topic_place(self, <PyObject*>_schedule_topic, TIMER_QUEUE_ID)
    cdef uint8_t* begin
    cdef uint8_t* at
    cdef int64_t now, due
    cdef int32_t properties_len
    if self.target.block == NULL or not self.timed or options.flush & FLUSH_REPLICATED \
            or not PyBytes_CheckExact(<object>body) \
            or PyBytes_GET_SIZE(<object>body) + TIMED_ROOM > self.fast_body_bytes \
            or cached.topic != topic or cached.queue_id != options.queue_id or own_topic(cached.text, cached.length) \
            or timer.topic != <PyObject*>_schedule_topic or timer.queue_id != <int32_t>TIMER_QUEUE_ID \
            or timer.entry == NULL or not at_its_place(self, ticks):
        return False
    now = store_clock_at(self.target.block, clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), True)
    due = options.delay if options.delay > 0 else now - options.delay + 1
    if due <= now or due - now > self.delay_max_ms or now >= self.look_ms:
        return False
    properties_len = fast_properties(timer, keys, tags)
    begin = timer.tail + timer.length + <int32_t>RECORD_TAIL_FIXED_BYTES
    at = begin + properties_len
    if properties_len < 0 or at + TIMED_BYTES + cached.length > &timer.tail[TAIL_BYTES]:
        return False
    at = put_decimal(put_name(at, PROPERTY_DELAY_DUE, PROPERTY_DELAY_DUE_BYTES), due)
    at = put_name(at, PROPERTY_REAL_TOPIC, PROPERTY_REAL_TOPIC_BYTES)
    memcpy(at, cached.text, cached.length)
    at = put_decimal(put_name(at + cached.length, PROPERTY_REAL_QID, PROPERTY_REAL_QID_BYTES), options.queue_id)
    if properties_len == 0:  # no property before, so no separator
        memmove(begin, begin + 1, at - begin - 1)
        at -= 1
    ordinary_item(self, item, timer, body, <int32_t>(at - begin))
    item.queue_id = TIMER_QUEUE_ID
    item.flag = options.flag
    return append_at_once(self, item, ticks) == APPEND_OK


cdef inline bint append_fast(FastAppender self, PyObject* topic, PyObject* body, PyObject* keys, PyObject* tags,
                             const put_options* options, append_item* item, uint64_t ticks) noexcept:
    """Appends the message and fills `item`, if the message is ordinary and there is no obstacle. No Python code runs
    meanwhile, so no other thread uses `self`."""
    cdef cached_topic* cached = topic_place(self, topic, options.queue_id)
    cdef int32_t properties_len
    if options.special == SPECIAL_TIMED:
        return append_timed(self, topic, body, keys, tags, options, item, ticks)
    if self.target.block == NULL or options.special or options.flush & FLUSH_REPLICATED \
            or not PyBytes_CheckExact(<object>body) or PyBytes_GET_SIZE(<object>body) > self.fast_body_bytes \
            or not at_its_place(self, ticks):
        return False
    if (cached.fast != topic or cached.queue_id != options.queue_id) \
            and not learn_queue(self.target.block, cached, topic, options.queue_id):
        return False
    properties_len = fast_properties(cached, keys, tags)
    if properties_len < 0:
        return False
    ordinary_item(self, item, cached, body, properties_len)
    item.queue_id = options.queue_id
    item.flag = options.flag
    return append_at_once(self, item, ticks) == APPEND_OK


cdef inline PutResult result_of(FastAppender self, const append_item* item):
    """The place of the message. The last result object is used again if the caller did not keep it."""
    cdef PutResult result = self.last_result
    if Py_REFCNT(result) == LAST_RESULT_UNUSED:
        result.physical_offset = item.physical_offset
        result.queue_offset = item.queue_offset
        result.size_bytes = item.size
        result.store_timestamp_ms = item.store_timestamp
    else:
        result = self.last_result = put_result(item.physical_offset, item.queue_offset, item.size, item.store_timestamp)
    return result


cdef tuple _keywords = tuple([sys.intern(name) for name in (
    "queue_id", "keys", "tags", "properties", "flag", "flush", "unique_key", "delay_level",
    "busy_timeout_ms", "expires_at_ms", "deliver_at_ms", "delay_ms")])
cdef PyObject* _keyword_names = <PyObject*>_keywords  # a call takes no reference
cdef tuple _defaults = (0, (), None, None, 0, None, None, 0, None, None, None, None)


cdef known_callers _callers


cdef object _put(object appender, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef PyObject* values[PUT_KEYWORDS]
    cdef put_options call_options
    cdef append_item item
    cdef put_options* options = &(<FastAppender>appender).defaults
    cdef PutResult result
    cdef int keyword_bits = KEYWORDS_UNKNOWN
    cdef uint64_t ticks = counter_now()  # early: it takes 21 ns in a virtual machine, and other work runs beside it
    values[PUT_KEYS] = values[PUT_TAGS] = <PyObject*>None
    if positional == PUT_POSITIONAL:
        keyword_bits = place_keywords(given + positional, names, _keyword_names, &_callers, values)
    if keyword_bits & ~PUT_FAST:
        if keyword_bits == KEYWORDS_UNKNOWN:
            return call_python((<FastAppender>appender).store_put, given, positional, names)
        place_defaults(_defaults, keyword_bits, values)
        options = &call_options
        if keyword_bits & ~PUT_TIMED:
            (<FastAppender>appender).read_options(values, options)
        else:
            options[0] = (<FastAppender>appender).defaults
            options.delay = delay_of(<object>values[PUT_DELIVER_AT_MS], <object>values[PUT_DELAY_MS], 0)
            options.special = SPECIAL_TIMED if values[PUT_DELIVER_AT_MS] != <PyObject*>None \
                or values[PUT_DELAY_MS] != <PyObject*>None else 0
    if not append_fast(<FastAppender>appender, given[0], given[1], values[PUT_KEYS], values[PUT_TAGS], options,
                        &item, ticks):
        return (<FastAppender>appender).put_any(<object>given[0], <object>given[1], values[PUT_KEYS],
                                                 values[PUT_TAGS], options)
    result = result_of(<FastAppender>appender, &item)
    if (<FastAppender>appender).target.slow_ms:
        (<FastAppender>appender).report_slow_put()
    if options.flush:
        (<FastAppender>appender).sync_result(result, options.flush)
    return result


cdef PyMethodDef _definition
_definition.ml_name = "put"
_definition.ml_meth = <PyCFunction><void*>_put
_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_definition.ml_doc = (
    "put($self, topic, body, *, queue_id=0, keys=(), tags=None, properties=None, flag=0, flush=None, unique_key=None, "
    "delay_level=0, busy_timeout_ms=None, expires_at_ms=None, deliver_at_ms=None, delay_ms=None, dedup_key=None, "
    "every_ms=None, missed='once', until_ms=None)"
    "\n--\n\n"
    "Appends one message; see MessageStore.put.")


def put_function(FastAppender appender not None, owner, store_put):
    """`appender.put` as a function for programs to call: it is faster. It holds a reference to `owner`. Calls with
    other keywords go to `store_put`."""
    appender.store_put = store_put
    return PyCFunction_NewEx(&_definition, appender, owner)
