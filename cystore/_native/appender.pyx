"""`put` and `put_many`: from Python objects to the append kernel and back.

The checks are PutMessageStatus's of RocketMQ (CommitLog, DefaultMessageStore.checkMessage); all come before the lock.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.exc cimport PyErr_CheckSignals, PyErr_Clear
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF, Py_XINCREF
from cpython.unicode cimport PyUnicode_Check
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memcmp, memcpy, memset

from cystore._native.append cimport *
from cystore._native.arguments cimport *
from cystore._native.atomics cimport *
from cystore._native.checksum cimport crc32_body, crc32c_update
from cystore._native.control cimport (
    Control, control_intact, control_lock_at, control_locked, control_repair_due,
)
from cystore._native.layout cimport *
from cystore._native.mapping cimport MappedFile
from cystore._native.message cimport Message, PutResult, put_result
from cystore._native.properties cimport property_buffer, property_room, put_delay, put_properties
from cystore._native.queue_table cimport control_find_queue
from cystore._native.record cimport topic_valid
from cystore._native.record_write cimport append_item

import logging
import sys

from cystore._native.message import encode_host
from cystore.errors import MessageIllegalError, PageCacheBusyError, StoreClosedError, StoreError

log = logging.getLogger("cystore")

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)  # NULL: the text has no UTF-8 form

cdef enum:
    LARGE_BODY_BYTES = 16 * 1024    # from here on the body's checksum is computed before the lock
    WAIT_SLICE_MS = 250
    REPORT_EVERY_MS = 5_000


cdef inline void set_born_host(append_item* item, const uint8_t* packed, int32_t length) noexcept:
    item.born_host = packed
    item.born_host_len = length
    if length != 8:
        item.sys_flag |= <int32_t>SYS_FLAG_BORN_HOST_V6


cdef inline void set_store_host(append_item* item, bytes packed) noexcept:
    item.store_host = <const uint8_t*>PyBytes_AS_STRING(packed)
    item.store_host_len = <int32_t>PyBytes_GET_SIZE(packed)
    if item.store_host_len != 8:
        item.sys_flag |= <int32_t>SYS_FLAG_STORE_HOST_V6


SCHEDULE_TOPIC = "SCHEDULE_TOPIC_XXXX"  # where a message waits until it is due (TopicValidator.RMQ_SYS_SCHEDULE_TOPIC)

cdef object ZERO = 0  # the small integer that defaults are: recognised without a conversion

cdef enum:
    TOPIC_CACHE = 64

cdef struct cached_topic:
    PyObject* topic
    const uint8_t* text
    int32_t length
    int32_t queue_id
    queue_entry* entry


@cython.final
cdef class Appender:
    """`put` and `put_many` of one attached store. Safe for threads; the lock it takes is shared by all processes.

    `policy` makes room: segment_at(position) -> MappedFile, make_room(position), more_queues(), repair(), refused(),
    overwritten(), sync(position). Each either mends what the kernel reported or raises. revive() is asked when this object
    was detached: it gives the Appender of a new attachment (after a fork) or raises StoreClosedError.
    """

    cdef append_target target
    cdef Control control
    cdef MappedFile segment
    cdef readonly object policy
    cdef bytes store_host
    cdef append_item blank          # what items of `put` begin with: our host, nothing else
    cdef int64_t file_bytes
    cdef int32_t max_body_bytes
    cdef int64_t busy_timeout_ms
    cdef bint sync_by_default
    cdef int32_t delay_levels
    cdef Py_ssize_t active
    cdef cached_topic topics[TOPIC_CACHE]

    def __init__(self, Control control not None, policy, *, str record_format, str store_host, int64_t file_bytes,
                 int32_t max_body_bytes, int64_t busy_timeout_ms, bint sync_by_default, int32_t delay_levels):
        self.control = control
        self.target.block = control.checked()
        self.target.magic = RECORD_MAGIC_ROCKETMQ if record_format == "rocketmq" else RECORD_MAGIC_CYSTORE
        self.policy = policy
        self.store_host = encode_host(store_host, "store_host")
        memset(&self.blank, 0, sizeof(append_item))
        set_store_host(&self.blank, self.store_host)
        set_born_host(&self.blank, self.blank.store_host, self.blank.store_host_len)
        self.blank.born_timestamp = -1
        self.file_bytes = file_bytes
        self.max_body_bytes = max_body_bytes
        self.busy_timeout_ms = busy_timeout_ms
        self.sync_by_default = sync_by_default
        self.delay_levels = delay_levels

    def __dealloc__(self):
        self._forget_topics()

    cdef void _forget_topics(self) noexcept:
        cdef int i
        for i in range(TOPIC_CACHE):
            Py_XDECREF(self.topics[i].topic)
            self.topics[i].topic = NULL

    @property
    def active_calls(self):
        """Calls that are inside this object now."""
        return self.active

    def detach(self):
        """Refuses further puts. The caller waits for `active_calls` to become 0 before it lets go of the control block."""
        self.target.block = NULL

    def release(self):
        """Lets go of mappings; after `detach`, with no active call."""
        self._forget_topics()
        self.segment = None
        self.target.address = NULL
        self.target.length = 0
        self.control = None

    cdef int _topic(self, object topic, int32_t queue_id, append_item* item) except -1:
        """Checks the topic and finds its queue; the text stays valid as long as the topic object."""
        cdef cached_topic* cached = &self.topics[((<uintptr_t><PyObject*>topic >> 5) ^ <uint32_t>queue_id) & (TOPIC_CACHE - 1)]
        cdef Py_ssize_t length = 0
        cdef const char* text
        if self.target.block == NULL:
            raise StoreClosedError("the store was closed meanwhile")
        if cached.topic != <PyObject*>topic or cached.queue_id != queue_id:
            if not PyUnicode_Check(topic):
                raise MessageIllegalError(f"topic: must be text, not {type(topic).__name__}")
            text = PyUnicode_AsUTF8AndSize(topic, &length)
            if text == NULL:
                PyErr_Clear()
                raise MessageIllegalError(f"topic: {topic!r} is not valid Unicode text")
            if not topic_valid(<const uint8_t*>text, length):
                raise MessageIllegalError(
                    f"topic: {topic!r} must be 1 to {TOPIC_BYTES_MAX} characters of letters, digits, % | _ and -")
            Py_XINCREF(<PyObject*>topic)
            Py_XDECREF(cached.topic)
            cached.topic = <PyObject*>topic
            cached.text = <const uint8_t*>text
            cached.length = <int32_t>length
            cached.queue_id = queue_id
            cached.entry = control_find_queue(self.target.block, cached.text, cached.length, queue_id)
        elif cached.entry == NULL:
            cached.entry = control_find_queue(self.target.block, cached.text, cached.length, queue_id)
        item.topic = cached.text
        item.topic_len = cached.length
        item.queue_id = queue_id
        item.entry = cached.entry
        return 0

    cdef inline int _body(self, object body, append_item* item, list keep) except -1:
        """Checks the body. One that is not bytes is copied first: nobody may change it under the checksum."""
        cdef Py_ssize_t length
        if not PyBytes_CheckExact(body):
            if isinstance(body, (bytearray, memoryview)) or (not PyUnicode_Check(body) and hasattr(body, "__buffer__")):
                body = bytes(body)
            elif isinstance(body, bytes):
                body = bytes(memoryview(body))
            else:
                try:
                    body = bytes(memoryview(body))
                except TypeError:
                    raise MessageIllegalError(f"body: must be bytes, not {type(body).__name__}") from None
            keep.append(body)
        length = PyBytes_GET_SIZE(body)
        if length > self.max_body_bytes:
            raise MessageIllegalError(
                f"body: {length} bytes, at most max_message_size_bytes = {self.max_body_bytes}")
        item.body = <const uint8_t*>PyBytes_AS_STRING(body)
        item.body_len = <int32_t>length
        return 0

    cdef inline int _finish(self, append_item* item) except -1:
        """The size, once all lengths are known."""
        cdef int64_t size = 75 + item.born_host_len + item.store_host_len
        size += <int64_t>item.body_len + item.topic_len + item.properties_len
        if size + BLANK_SIZE_MIN > self.file_bytes or size > 0x7FFFFFFF:
            raise MessageIllegalError(f"body: the record has {size} bytes, a whole commit log file {self.file_bytes}")
        item.size = <int32_t>size
        return 0

    cdef int _own_topic(self, object topic, int32_t queue_id, append_item* item) except -1:
        """`_topic` for one that is the user's to choose."""
        self._topic(topic, queue_id, item)
        if item.topic_len == 19 and memcmp(item.topic, b"SCHEDULE_TOPIC_XXXX", 19) == 0:
            raise MessageIllegalError(f"topic: {topic} is where delayed messages wait; put to their own topic with delay_level")
        return 0

    cdef int _delay(self, int32_t level, append_item* item, property_buffer* buffer) except -1:
        """Turns a message whose properties are in the buffer into one that waits for its time (CommitLog.asyncPutMessage). Prepared and
        rollback messages do not: their properties say how long the commit is to be delayed."""
        cdef int32_t begin = buffer.length - item.properties_len
        cdef int32_t longer = max(item.topic_len - 19, 0)
        level = min(level, self.delay_levels)
        if not takes_queue_offset(item.sys_flag):
            item.properties_len = put_delay(buffer, begin, level, NULL, 0, 0)
            return 0
        item.properties_len = put_delay(buffer, begin, level, item.topic, item.topic_len, item.queue_id)
        self._topic(SCHEDULE_TOPIC, level - 1, item)
        self._finish(item)
        if item.size + longer + <int64_t>DELAY_PROPERTY_ROOM + BLANK_SIZE_MIN > self.file_bytes:
            raise MessageIllegalError(
                f"body: delivered, the record has up to {item.size + longer + <int64_t>DELAY_PROPERTY_ROOM} bytes, a whole commit "
                f"log file {self.file_bytes}")
        return 0

    cdef int _body_checksums(self, append_item* items, Py_ssize_t count) except -1:
        """Checksums of bodies that are not worth holding the lock for."""
        cdef Py_ssize_t i
        cdef append_item* item
        cdef bint rocketmq = self.target.magic == RECORD_MAGIC_ROCKETMQ
        with nogil:
            for i in range(count):
                item = &items[i]
                if rocketmq:
                    item.body_checksum = crc32_body(item.body, item.body_len)
                elif item.body_len >= LARGE_BODY_BYTES:
                    item.body_checksum = crc32c_update(0, item.body, item.body_len)
                    item.has_body_checksum = True
        return 0

    cdef int _append(self, append_item* items, Py_ssize_t count, Py_ssize_t* done, bint may_hold_gil, int64_t busy_ms,
                     object policy) except -1:
        """Takes the lock and appends; asks the policy for what is missing, outside of the lock, and goes on."""
        cdef control_block* block = self.target.block
        cdef pthread_mutex_t* mutex
        cdef int64_t waits_since_ms = 0
        cdef int status
        if block == NULL:  # checking the message let other threads run
            raise StoreClosedError("the store was closed meanwhile")
        mutex = control_lock_at(block, LOCK_APPEND)
        keep_block = self.control.file
        while True:
            if not control_intact(block):
                self.policy.overwritten()  # its mutexes too, perhaps: the C library ends a process over one
            status = control_locked(block, LOCK_APPEND, pthread_mutex_trylock(mutex))
            if status != 0:
                waits_since_ms = waits_since_ms or clock_coarse_ms()
                self._wait_for_lock(block, mutex, status, busy_ms)
            if self.target.block == NULL:
                pthread_mutex_unlock(mutex)
                raise StoreClosedError("the store was closed meanwhile")
            if control_repair_due(block, LOCK_APPEND) and control_intact(block):
                self._repair(mutex)
            keep_segment = self.segment
            if may_hold_gil:
                status = append_locked(block, &self.target, items, count, done, waits_since_ms)
                pthread_mutex_unlock(mutex)
            else:
                with nogil:
                    status = append_locked(block, &self.target, items, count, done, waits_since_ms)
                    pthread_mutex_unlock(mutex)
            if load_u32(&block.append_waiters) != 0:
                futex_wake_all(&block.append_seq)
            if status == APPEND_OK:
                return 0
            waits_since_ms = waits_since_ms or clock_coarse_ms()
            self._mend(status, busy_ms, policy)

    cdef int _wait_for_lock(self, control_block* block, pthread_mutex_t* mutex, int status, int64_t busy_ms) except -1:
        """Another thread or process holds the append lock: waits for it as long as appends go on, and for one that does not
        at most `busy_ms`."""
        cdef int64_t waited = 0, piece
        cdef uint32_t seen = load_u32(&block.append_seq)
        while status == EBUSY or status == ETIMEDOUT:
            if load_u32(&block.append_seq) != seen:
                seen = load_u32(&block.append_seq)
                waited = 0
            if waited >= busy_ms:
                raise PageCacheBusyError(
                    f"thread {robust_owner(mutex)} has held the append lock for {waited} ms; nothing was appended")
            piece = min(<int64_t>WAIT_SLICE_MS, busy_ms - waited)
            with nogil:
                status = control_locked(block, LOCK_APPEND, robust_lock(mutex, piece))
            waited += piece
            if status == ETIMEDOUT and waited % REPORT_EVERY_MS == 0:
                log.warning("%s: waiting for the append lock for %d s; thread %d holds it", self.control.file.path,
                            waited // 1000, robust_owner(mutex))
            try:
                PyErr_CheckSignals()
                if not control_intact(block):
                    self.policy.overwritten()
            except BaseException:
                if status == 0:
                    pthread_mutex_unlock(mutex)
                raise
        if status != 0:
            if not control_intact(block):
                self.policy.overwritten()
            raise StoreError(f"the append lock is unusable (error {status})")
        return 0

    cdef int _repair(self, pthread_mutex_t* mutex) except -1:
        """With the lock held, which an exception gives back; the repair stays due then."""
        try:
            self.policy.repair()
        except BaseException:
            pthread_mutex_unlock(mutex)
            raise
        return 0

    cdef int _mend(self, int status, int64_t busy_ms, object policy) except -1:
        cdef MappedFile file
        if status == APPEND_NEED_SEGMENT:
            file = policy.segment_at(self.target.needed)
            self._use(file, busy_ms)
        elif status == APPEND_NEED_SPACE:
            policy.make_room(self.target.needed)
        elif status == APPEND_NEED_QUEUES:
            policy.more_queues()
        elif status == APPEND_REFUSED:
            policy.refused()
        else:
            policy.overwritten()
        return 0

    cdef int _use(self, MappedFile file, int64_t busy_ms) except -1:
        """Makes a segment the one to write to. Another thread may be appending: under the lock."""
        cdef control_block* block = self.target.block
        cdef pthread_mutex_t* mutex
        cdef int status
        if not file.writable:
            raise StoreError("the segment is mapped for reading only", path=file.path)
        if block == NULL:
            raise StoreClosedError("the store was closed meanwhile")
        if not control_intact(block):
            self.policy.overwritten()
        mutex = control_lock_at(block, LOCK_APPEND)
        status = control_locked(block, LOCK_APPEND, pthread_mutex_trylock(mutex))
        if status != 0:
            self._wait_for_lock(block, mutex, status, busy_ms)
        self.segment = file
        self.target.address = file.address
        self.target.base = file.base
        self.target.length = file.length
        pthread_mutex_unlock(mutex)
        return 0

    cdef int _wants_sync(self, object flush) except -1:
        if flush is None:
            return self.sync_by_default
        if flush == "sync":
            return True
        if flush == "async":
            return False
        raise MessageIllegalError(f"flush: must be 'sync', 'async' or None, not {flush!r}")

    def put(self, topic, body, *, queue_id=0, keys=(), tags=None, properties=None, flag=0, flush=None, unique_key=None,
            delay_level=0, busy_timeout_ms=None):
        """Appends one message; see MessageStore.put."""
        return self._put(topic, body, queue_id, keys, tags, properties, flag, flush, unique_key, delay_level, busy_timeout_ms)

    cdef PutResult _put(self, object topic, object body, object queue_id, object keys, object tags, object properties, object flag,
                        object flush, object unique_key, object delay_level, object busy_timeout_ms):
        cdef append_item item
        cdef property_buffer buffer
        cdef uint8_t[512] room
        cdef Py_ssize_t done = 0
        cdef PutResult result
        cdef list keep = None
        cdef bint sync = self.sync_by_default if flush is None else self._wants_sync(flush)
        if self.target.block == NULL:
            return self.policy.revive().put(topic, body, queue_id=queue_id, keys=keys, tags=tags, properties=properties,
                                            flag=flag, flush=flush, unique_key=unique_key, delay_level=delay_level,
                                            busy_timeout_ms=busy_timeout_ms)
        cdef int32_t number = 0 if queue_id is ZERO else _int32("queue_id", queue_id, 0)
        cdef int32_t level = 0 if delay_level is ZERO else _int32("delay_level", delay_level, 0)
        cdef int64_t busy_ms = self.busy_timeout_ms if busy_timeout_ms is None else _int32("busy_timeout_ms", busy_timeout_ms, 0)
        memcpy(&item, &self.blank, sizeof(append_item))
        buffer.start = room
        buffer.length = 0
        buffer.capacity = 512
        buffer.on_heap = False
        self.active += 1
        try:
            self._own_topic(topic, number, &item)
            item.flag = 0 if flag is ZERO else _int32("flag", flag, -0x80000000)
            if not PyBytes_CheckExact(body):
                keep = []
            self._body(body, &item, keep)
            item.properties_len = put_properties(&buffer, keys, tags, properties, unique_key)
            if level:
                self._delay(level, &item, &buffer)
            item.properties = buffer.start
            self._finish(&item)
            if item.body_len >= LARGE_BODY_BYTES or self.target.magic == RECORD_MAGIC_ROCKETMQ:
                self._body_checksums(&item, 1)
            self._append(&item, 1, &done, item.body_len < LARGE_BODY_BYTES, busy_ms, self.policy)
            result = put_result(item.physical_offset, item.queue_offset, item.size, item.store_timestamp)
            if sync:
                try:
                    self.policy.sync(item.physical_offset + item.size)
                except StoreError as error:
                    error.results = [result]
                    raise
            return result
        finally:
            self.active -= 1
            if buffer.on_heap:
                free(buffer.start)

    def put_many(self, messages, *, flush=None):
        """Appends messages in order; see MessageStore.put_many."""
        cdef bint sync = self._wants_sync(flush)
        if self.target.block == NULL:
            return self.policy.revive().put_many(messages, flush=flush)
        return self._put_batch(messages, sync, self.policy)

    def put_with(self, policy, messages):
        """`put_many` without a flush, for a caller that holds a lock: what is missing is asked of another policy. What that raises ends
        the call; `results` of a StoreError hold what was appended before."""
        return self._put_batch(messages, False, policy)

    cdef list _put_batch(self, messages, bint sync, object policy):
        cdef tuple batch
        cdef append_item* items = NULL
        cdef append_item* item
        cdef property_buffer buffer
        cdef Py_ssize_t count, i, done = 0
        cdef Message message
        cdef bytes host
        cdef list keep = []
        try:
            batch = tuple(messages)
        except TypeError:
            raise MessageIllegalError(f"messages: must be a list of Message, not {type(messages).__name__}") from None
        count = len(batch)
        if count == 0:
            return []
        memset(&buffer, 0, sizeof(property_buffer))
        self.active += 1
        try:
            items = <append_item*>malloc(count * sizeof(append_item))
            if items == NULL:
                raise MemoryError()
            memset(items, 0, count * sizeof(append_item))
            for i in range(count):
                item = &items[i]
                entry = batch[i]
                if type(entry) is not Message:
                    raise MessageIllegalError(f"messages[{i}]: must be a Message, not {type(entry).__name__}")
                message = <Message>entry
                item.flag = message._flag
                item.sys_flag = <int32_t>(<uint32_t>message._sys_flag
                                          & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6))
                item.reconsume_times = message._reconsume_times
                item.prepared_transaction_offset = message._prepared_transaction_offset
                set_store_host(item, self.store_host if message._store_host is None else <bytes>message._store_host)
                if message.stored_properties is not None:
                    self._topic(message._topic, message._queue_id, item)
                    item.born_timestamp = message._born_timestamp_ms
                    item.body = <const uint8_t*>PyBytes_AS_STRING(message._body)
                    item.body_len = <int32_t>PyBytes_GET_SIZE(message._body)
                    self._copy_properties(&buffer, item, <const uint8_t*>PyBytes_AS_STRING(message.stored_properties),
                                          PyBytes_GET_SIZE(message.stored_properties))
                    host = <bytes>message._born_host
                    set_born_host(item, <const uint8_t*>PyBytes_AS_STRING(host), <int32_t>PyBytes_GET_SIZE(host))
                elif message.source is None:
                    self._own_topic(message._topic, message._queue_id, item)
                    item.born_timestamp = message._born_timestamp_ms
                    self._body(message._body, item, keep)
                    item.properties_len = put_properties(&buffer, message._keys, message._tags, message._properties,
                                                          message._unique_key)
                    host = self.store_host if message._born_host is None else <bytes>message._born_host
                    set_born_host(item, <const uint8_t*>PyBytes_AS_STRING(host), <int32_t>PyBytes_GET_SIZE(host))
                    if message._delay_level:
                        self._delay(message._delay_level, item, &buffer)
                else:
                    self._topic(message.topic, message._queue_id, item)
                    item.born_timestamp = message.view.born_timestamp
                    item.body = message.view.body
                    item.body_len = message.view.body_len
                    self._copy_properties(&buffer, item, message.view.properties, message.view.properties_len)
                    set_born_host(item, message.view.born_host, message.view.born_host_len)
                self._finish(item)
            # The buffer moves while it grows: the pointers into it are set when it is complete.
            room = 0
            for i in range(count):
                items[i].properties = buffer.start + <Py_ssize_t>room
                room += items[i].properties_len
            self._body_checksums(items, count)
            try:
                self._append(items, count, &done, False, self.busy_timeout_ms, policy)
                if sync:
                    self.policy.sync(items[count - 1].physical_offset + items[count - 1].size)
            except StoreError as error:
                if done:
                    error.results = self._results(items, done)
                raise
            return self._results(items, count)
        finally:
            self.active -= 1
            free(items)
            if buffer.on_heap:
                free(buffer.start)

    cdef int _copy_properties(self, property_buffer* buffer, append_item* item, const uint8_t* start,
                              Py_ssize_t length) except -1:
        if length > <Py_ssize_t>PROPERTIES_BYTES_MAX:
            raise MessageIllegalError(f"properties: {length} bytes, at most {PROPERTIES_BYTES_MAX}")
        property_room(buffer, length)
        if length:
            memcpy(buffer.start + buffer.length, start, length)
        buffer.length += <int32_t>length
        item.properties_len = <int32_t>length
        return 0

    cdef list _results(self, append_item* items, Py_ssize_t count):
        cdef Py_ssize_t i
        return [put_result(items[i].physical_offset, items[i].queue_offset, items[i].size, items[i].store_timestamp)
                for i in range(count)]


cdef enum:
    PUT_POSITIONAL = 2
    PUT_KEYWORDS = 9

cdef tuple _keywords = tuple([sys.intern(name) for name in (
    "queue_id", "keys", "tags", "properties", "flag", "flush", "unique_key", "delay_level",
    "busy_timeout_ms")])
cdef tuple _defaults = (ZERO, (), None, None, ZERO, None, None, ZERO, None)


cdef object _called(object appender, PyObject** given, Py_ssize_t positional, PyObject* names):
    cdef PyObject* values[PUT_KEYWORDS]
    if positional != PUT_POSITIONAL or not place_keywords(given + positional, names, _keywords, _defaults, values):
        return call_as_usual(appender.put, given, positional, names)
    return (<Appender>appender)._put(
        <object>given[0], <object>given[1], <object>values[0], <object>values[1], <object>values[2], <object>values[3],
        <object>values[4], <object>values[5], <object>values[6], <object>values[7], <object>values[8])


cdef PyMethodDef _definition
_definition.ml_name = "put"
_definition.ml_meth = <PyCFunction><void*>_called
_definition.ml_flags = METH_FASTCALL | METH_KEYWORDS
_definition.ml_doc = (
    "put($self, topic, body, *, queue_id=0, keys=(), tags=None, properties=None, flag=0, flush=None, unique_key=None, "
    "delay_level=0, busy_timeout_ms=None)\n--\n\nAppends one message; see MessageStore.put.")


def put_function(Appender appender not None):
    """What `appender.put` does, as a function for programs to call: it is faster."""
    return PyCFunction_New(&_definition, appender)


cdef int32_t _int32(str field, object value, int64_t low) except? -1:
    cdef int64_t number
    if isinstance(value, bool) or not isinstance(value, int):
        raise MessageIllegalError(f"{field}: must be a whole number, not {type(value).__name__}")
    try:
        number = value
    except OverflowError:
        number = low - 1
    if number < low or number > 0x7FFFFFFF:
        raise MessageIllegalError(f"{field}: must be {low} to {0x7FFFFFFF}, not {value}")
    return <int32_t>number
