"""`put` and `put_many`: from Python objects to the append kernel and back.

The checks are those of RocketMQ's PutMessageStatus (CommitLog, DefaultMessageStore.checkMessage), all before the lock.
"""

cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_CheckExact, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_XDECREF
from cpython.pythread cimport PyThread_get_thread_ident
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t
from libc.stdlib cimport calloc, free
from libc.string cimport memcpy, memset

from cystore._native.append.append cimport FORBID_WRITING, counter_now
from cystore._native.append.append_loop cimport AppendLoop
from cystore._native.append.group_commit cimport GroupCommit, put_waits
from cystore._native.append.light cimport light_check, light_check_list, light_room, light_without_offsets
from cystore._native.append.batch cimport check_batch, check_together, results_of
from cystore._native.record.checksum cimport crc32_body, crc32c_update
from cystore._native.memory.atomics cimport monotonic_ns
from cystore._native.memory.control cimport Control, log_end
from cystore._native.memory.mapping cimport MappedFile
from cystore._native.record.argument_checks cimport delay_of, exact_bytes, exact_flag, exact_text, exact_whole
from cystore._native.layout cimport (
    BLANK_SIZE_MIN, DELAY_PROPERTY_ROOM, FLAG_DISK_FULL, HOST_V4_BYTES, PROPERTIES_BYTES_MAX,
    RECORD_FIXED_BYTES, RECORD_MAGIC_CYSTORE, RECORD_MAGIC_ROCKETMQ, RECORD_SIZE_MIN, SCHEDULE_TOPIC_BYTES,
    SYS_FLAG_BORN_HOST_V6, SYS_FLAG_EXPIRES, SYS_FLAG_STORE_HOST_V6, TIMER_QUEUE_ID, TOPIC_BYTES_MAX, control_block,
    own_topic, takes_queue_offset
)
from cystore._native.record.message cimport (
    Message, PutArguments, PutResult, given_body, message_view, put_result
)
from cystore._native.record.properties cimport (
    property_buffer, property_room, put_expiry, put_properties, put_wait
)
from cystore._native.append.put cimport (
    FLUSH_REPLICATED, FLUSH_SYNC, LARGE_BODY_BYTES, PUT_BUSY_TIMEOUT_MS, PUT_DELAY_LEVEL, PUT_DELAY_MS,
    PUT_DELIVER_AT_MS, PUT_EXPIRES_AT_MS, PUT_FLAG, PUT_FLUSH, PUT_KEYS, PUT_PROPERTIES, PUT_QUEUE_ID, PUT_TAGS,
    PUT_UNIQUE_KEY, SPECIAL_OTHER, SPECIAL_TIMED, TAIL_BYTES,
    TOPIC_CACHE, at_its_place, cached_topic, exact_topic, forbidden, int32_of, place_topic, put_options, refuse_own,
    set_born_host, set_store_host, topic_place
)
from cystore._native.memory.queue_table cimport control_find_queue
from cystore._native.record.record_read cimport topic_valid
from cystore._native.record.record_view cimport record_view
from cystore._native.record.record_write cimport append_item
from cystore._native.append.steps cimport BATCH_STEP, in_steps, let_go, yield_gil

from cystore._native.record.message import encode_host
from cystore.errors import RAW_ERRORS, MessageIllegalError, StoreError, shown
from cystore.layout import SCHEDULE_TOPIC

cdef extern from "wallclock.h" nogil:
    int CLOCK_BOOTTIME
    int CLOCK_REALTIME
    int64_t clock_read_ms(int which)
    int64_t store_clock_at(control_block* block, int64_t wall, int64_t boot, bint looks)

cdef extern from "Python.h":
    const char* PyUnicode_AsUTF8AndSize(object text, Py_ssize_t* size)

cdef enum:
    SHORT_PROPERTIES = 512          # a longer property string is written on the heap
cdef int64_t EXPIRES_AT_MAX_MS = 99_999_999_999_999_999  # DUE_TIME_DIGITS
cdef int64_t LOOK_MS = 60_000

cdef PyObject* NONE = <PyObject*>None
cdef dict _FLUSHES = {"async": 0, "sync": FLUSH_SYNC, "replicated": FLUSH_REPLICATED}


cdef inline void _set_numbers(append_item* item, int32_t flag, int32_t sys_flag, int32_t reconsume_times,
                              int64_t born_timestamp_ms, int64_t prepared_transaction_offset) noexcept:
    item.flag = flag
    item.sys_flag = <int32_t>(<uint32_t>sys_flag & ~(SYS_FLAG_BORN_HOST_V6 | SYS_FLAG_STORE_HOST_V6))
    item.reconsume_times = reconsume_times
    item.born_timestamp = born_timestamp_ms
    item.prepared_transaction_offset = prepared_transaction_offset


@cython.final
cdef class Appender(AppendLoop):
    """`put` and `put_many` of one attached store. Safe for threads. All processes share the lock that it takes.

    `policy` (AppendPolicy) removes the obstacles that the kernel reports, or raises. When this object was detached, or
    has to look at the store's place, the policy's revive() gives the Appender of the present attachment (after a fork,
    a new one), or raises StoreClosedError, StoreMovedError.
    """

    cdef GroupCommit commits        # None: the policy does all waits

    def __init__(self, Control control not None, policy, *, str record_format, str store_host, int64_t file_bytes,
                 int32_t max_body_bytes, int64_t busy_timeout_ms, bint sync_by_default, int32_t delay_levels,
                 bint replicated_by_default=False, int64_t light_queues_max=0, GroupCommit commits=None,
                 int64_t delay_max_ms=366 * 86_400_000):
        self.control, self.commits = control, commits
        self.target.block = control.checked()
        self.target.end = log_end(self.target.block)
        self.target.last_record = &self.target.block.appended_record if self.target.block.pooled \
            else &self.target.block.last_record
        self.target.magic = RECORD_MAGIC_ROCKETMQ if record_format == "rocketmq" else RECORD_MAGIC_CYSTORE
        self.policy = policy
        self.store_host = encode_host(store_host, "store_host")
        memset(&self.blank, 0, sizeof(append_item))
        set_store_host(&self.blank, self.store_host)
        set_born_host(&self.blank, self.blank.store_host, self.blank.store_host_len)
        self.blank.born_timestamp = -1
        self.file_bytes = file_bytes
        self.max_body_bytes = max_body_bytes
        if self.target.magic != RECORD_MAGIC_CYSTORE or self.blank.store_host_len != <int32_t>HOST_V4_BYTES:
            self.fast_body_bytes = -1
        else:
            self.fast_body_bytes = min(<int64_t>max_body_bytes, LARGE_BODY_BYTES - 1,
                                        file_bytes - <int64_t>RECORD_SIZE_MIN - TAIL_BYTES - <int64_t>BLANK_SIZE_MIN)
        self.defaults.properties = self.defaults.unique_key = NONE
        self.defaults.busy_ms = busy_timeout_ms
        self.defaults.queue_id = self.defaults.flag = self.defaults.delay_level = 0
        self.defaults.flush = FLUSH_SYNC if sync_by_default else 0
        if replicated_by_default:
            self.defaults.flush |= FLUSH_REPLICATED
        self.defaults.special = 0
        self.defaults.expires_at_ms = self.defaults.delay = 0
        self.delay_max_ms = delay_max_ms
        self.delay_levels = delay_levels
        self.light_queues_max = light_queues_max
        self.callers = []

    def __dealloc__(self):
        self._forget_topics()

    cdef void _forget_topics(self) noexcept:
        cdef int i
        for i in range(TOPIC_CACHE):
            Py_XDECREF(self.topics[i].topic)
            Py_XDECREF(self.topics[i].tag)
            self.topics[i].topic = self.topics[i].fast = self.topics[i].tag = NULL

    @property
    def active_calls(self):
        """Calls that are inside this object now."""
        return self.active

    @property
    def called_by_this_thread(self):
        """Whether this thread has a call inside this object: then a signal handler or a finalizer asks."""
        return PyThread_get_thread_ident() in self.callers

    cdef int _enter(self) except -1:
        self.callers.append(PyThread_get_thread_ident())
        self.active += 1
        return 0

    cdef int _leave(self) except -1:
        self.active -= 1
        self.callers.remove(PyThread_get_thread_ident())
        return 0

    def detach(self):
        """Refuses further puts. The caller waits for `active_calls` to become 0 before it lets go of the control
        block."""
        self.target.block = NULL

    def release(self):
        """Drops the mappings. Called after `detach`, with no active call."""
        self._forget_topics()
        self.segment = self.commits = None
        self.target.address = NULL
        self.target.length = self.target.ready = 0
        self.control = None

    cdef Appender present(self):
        """The Appender that makes this call: this one, unless it was detached, or unless the store follows its path to
        another directory. Raises StoreClosedError, StoreMovedError."""
        if self.target.block != NULL and at_its_place(self, counter_now()):
            return self
        return <Appender?>self.policy.revive()

    cdef inline int _topic(self, object topic, int32_t queue_id, append_item* item) except -1:
        """Checks the topic and finds its queue; the text stays valid as long as the topic object."""
        cdef cached_topic* cached = topic_place(self, <PyObject*>topic, queue_id)
        if self.target.block == NULL or cached.topic != <PyObject*>topic or cached.queue_id != queue_id \
                or cached.entry == NULL:
            self._find_topic(topic, queue_id, cached)
        item.topic = cached.text
        item.topic_len = cached.length
        item.queue_id = queue_id
        item.entry = cached.entry
        return 0

    cdef int _find_topic(self, object topic, int32_t queue_id, cached_topic* cached) except -1:
        """Puts a topic into the cache, with its queue when there is one."""
        cdef Py_ssize_t length = 0
        cdef const char* text
        if self.target.block == NULL:
            return self.policy.closed()  # raises
        if cached.topic != <PyObject*>topic or cached.queue_id != queue_id:
            text = PyUnicode_AsUTF8AndSize(topic, &length)  # known to be valid: `exact_topic`
            if not topic_valid(<const uint8_t*>text, length):
                raise MessageIllegalError(
                    f"topic: {topic!r} must be 1 to {TOPIC_BYTES_MAX} characters of letters, digits, % | _ and -")
            place_topic(cached, <PyObject*>topic, <const uint8_t*>text, <int32_t>length, queue_id)
        cached.entry = control_find_queue(self.target.block, cached.text, cached.length, queue_id)
        cached.fast = NULL if cached.entry == NULL or own_topic(cached.text, cached.length) else <PyObject*>topic
        return 0

    cdef inline int _body(self, object body, append_item* item) except -1:
        """Checks the size of a body. The caller keeps its bytes."""
        if PyBytes_GET_SIZE(body) > self.max_body_bytes:
            self._refuse_body(body)
        item.body = <const uint8_t*>PyBytes_AS_STRING(body)
        item.body_len = <int32_t>PyBytes_GET_SIZE(body)
        return 0

    cdef int _refuse_body(self, object body) except -1:
        raise MessageIllegalError(
            f"body: {PyBytes_GET_SIZE(body)} bytes, at most max_message_size_bytes = {self.max_body_bytes}")

    cdef inline int _finish(self, append_item* item) except -1:
        """Sets the size, once all lengths are known."""
        cdef int64_t size = RECORD_FIXED_BYTES + item.born_host_len + item.store_host_len
        size += <int64_t>item.body_len + item.topic_len + item.properties_len
        if size + light_room(item) + BLANK_SIZE_MIN > self.file_bytes or size > 0x7FFFFFFF:
            self._refuse_size(size)
        item.size = <int32_t>size
        return 0

    cdef int _refuse_size(self, int64_t size) except -1:
        raise MessageIllegalError(f"body: the record has {size} bytes, a whole commit log file {self.file_bytes}")

    cdef inline int _take_given(self, PutArguments given, append_item* item) except -1:
        """Takes over the arguments that need no check."""
        _set_numbers(item, given.flag, given.sys_flag, given.reconsume_times, given.born_timestamp_ms,
                     given.prepared_transaction_offset)
        set_store_host(item, self.store_host if given.store_host is None else <bytes>given.store_host)
        return 0

    cdef inline int _users_topic(self, object topic, int32_t queue_id, append_item* item) except -1:
        """Like `_topic`, for a topic that a program chose: refuses those that the store writes for itself."""
        self._topic(topic, queue_id, item)
        return refuse_own(item) if own_topic(item.topic, item.topic_len) else 0

    cdef int _delay(self, int32_t level, append_item* item, property_buffer* buffer) except -1:
        """Makes a message, whose properties are in the buffer, wait for its time (CommitLog.asyncPutMessage). Prepared
        and rollback messages do not wait: their properties hold the delay for the commit."""
        cdef int32_t begin = buffer.length - item.properties_len, longer = max(item.topic_len - SCHEDULE_TOPIC_BYTES, 0)
        if item.light_count:
            raise MessageIllegalError("properties['INNER_MULTI_DISPATCH']: cannot be combined with delay_level")
        if level > self.delay_levels:
            raise MessageIllegalError(f"delay_level: {level}, this store has levels 1 to {self.delay_levels} "
                                      "(message_delay_level)")
        if not takes_queue_offset(item.sys_flag):
            item.properties_len = put_wait(buffer, begin, level, 0, NULL, 0, 0)
            return 0
        item.properties_len = put_wait(buffer, begin, level, 0, item.topic, item.topic_len, item.queue_id)
        self._topic(SCHEDULE_TOPIC, level - 1, item)
        self._finish(item)
        if item.size + longer + <int64_t>DELAY_PROPERTY_ROOM + BLANK_SIZE_MIN > self.file_bytes:
            raise MessageIllegalError(
                f"body: delivered, the record has up to {item.size + longer + <int64_t>DELAY_PROPERTY_ROOM} "
                "bytes, a whole commit "
                f"log file {self.file_bytes}")
        return 0

    cdef int _begin_timer(self) except -1:
        """Keeps earlier versions out of the store, before its first message with a time of its own."""
        if not self.timed:
            self.policy.begin_timer()
            self.timed = True
        return 0

    cdef int _wait_until(self, int64_t delay, append_item* item, property_buffer* buffer) except -1:
        """Makes a message, whose properties are in the buffer, wait in the timer's queue. One that is due by now goes
        to its topic at once. `delay` is that of PutArguments."""
        cdef int32_t begin = buffer.length - item.properties_len, longer = max(item.topic_len - SCHEDULE_TOPIC_BYTES, 0)
        cdef int64_t now, due
        if self.target.block == NULL:
            return self.policy.closed()  # raises
        now = store_clock_at(self.target.block, clock_read_ms(CLOCK_REALTIME), clock_read_ms(CLOCK_BOOTTIME), True)
        due = delay if delay > 0 else now - delay
        if due - now > self.delay_max_ms:
            raise MessageIllegalError(
                f"{'deliver_at_ms' if delay > 0 else 'delay_ms'}: the message would wait {due - now} ms, at most "
                f"{self.delay_max_ms} (timer_max_delay_s)")
        if item.light_count:
            raise MessageIllegalError("properties['INNER_MULTI_DISPATCH']: cannot be combined with a due time")
        if delay < 0:
            due += 1  # `now` is up to a millisecond before this moment
        if due <= now:
            return 0
        if not takes_queue_offset(item.sys_flag):
            item.properties_len = put_wait(buffer, begin, 0, due, NULL, 0, 0)
            return 0
        item.properties_len = put_wait(buffer, begin, 0, due, item.topic, item.topic_len, item.queue_id)
        self._topic(SCHEDULE_TOPIC, TIMER_QUEUE_ID, item)
        self._begin_timer()
        if now >= self.look_ms:
            self.look_ms = now + LOOK_MS
            self.policy.look_at_delivery()
        self._finish(item)
        if item.size + longer + <int64_t>DELAY_PROPERTY_ROOM + BLANK_SIZE_MIN > self.file_bytes:
            raise MessageIllegalError(
                f"body: delivered, the record has up to {item.size + longer + <int64_t>DELAY_PROPERTY_ROOM} "
                f"bytes, a whole commit log file {self.file_bytes}")
        return 0

    cdef int _body_checksums(self, append_item* items, Py_ssize_t count) except -1:
        """Computes checksums before the lock: of large bodies, and of all bodies in RocketMQ's format."""
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

    cdef int _wanted_flush(self, object flush) except -1:
        cdef object wanted
        if flush is None:
            return self.defaults.flush
        if (wanted := _FLUSHES.get(exact_text("flush", flush, MessageIllegalError))) is None:
            raise MessageIllegalError(f"flush: must be 'sync', 'async', 'replicated' or None, not {shown(flush)}")
        return wanted | (self.defaults.flush & FLUSH_SYNC if wanted == FLUSH_REPLICATED else 0)

    def put(self, topic, body, *, queue_id=0, keys=(), tags=None, properties=None, flag=0, flush=None, unique_key=None,
            delay_level=0, busy_timeout_ms=None, expires_at_ms=None, deliver_at_ms=None, delay_ms=None):
        """Appends one message; see MessageStore.put."""
        cdef PyObject** values = [
            <PyObject*>queue_id, <PyObject*>keys, <PyObject*>tags, <PyObject*>properties, <PyObject*>flag,
            <PyObject*>flush,
            <PyObject*>unique_key, <PyObject*>delay_level, <PyObject*>busy_timeout_ms,
            <PyObject*>expires_at_ms, <PyObject*>deliver_at_ms, <PyObject*>delay_ms]
        cdef put_options options
        self.read_options(values, &options)
        return self.put_any(topic, body, values[PUT_KEYS], values[PUT_TAGS], &options)

    cdef int read_options(self, PyObject** values, put_options* options) except -1:
        """`values` holds all keyword arguments, in the order of PUT_QUEUE_ID and so on."""
        options[0] = self.defaults
        options.properties = values[PUT_PROPERTIES]
        options.unique_key = values[PUT_UNIQUE_KEY]
        options.flush = self._wanted_flush(<object>values[PUT_FLUSH])
        options.queue_id = int32_of("queue_id", <object>values[PUT_QUEUE_ID], 0)
        options.delay_level = int32_of("delay_level", <object>values[PUT_DELAY_LEVEL], 0)
        options.flag = int32_of("flag", <object>values[PUT_FLAG], -0x80000000)
        if values[PUT_BUSY_TIMEOUT_MS] != NONE:
            options.busy_ms = int32_of("busy_timeout_ms", <object>values[PUT_BUSY_TIMEOUT_MS], 0)
        if values[PUT_EXPIRES_AT_MS] != NONE:
            options.expires_at_ms = exact_whole(
                "expires_at_ms", <object>values[PUT_EXPIRES_AT_MS], 1, EXPIRES_AT_MAX_MS, MessageIllegalError)
        if options.properties != NONE or options.unique_key != NONE or options.delay_level != 0 \
                or options.expires_at_ms != 0:
            options.special |= SPECIAL_OTHER
        if values[PUT_DELIVER_AT_MS] != NONE or values[PUT_DELAY_MS] != NONE:
            options.delay = delay_of(<object>values[PUT_DELIVER_AT_MS], <object>values[PUT_DELAY_MS],
                                     options.delay_level)
            options.special |= SPECIAL_TIMED
        return 0

    cdef PutResult put_any(self, object topic, object body, PyObject* keys, PyObject* tags, const put_options* options):
        cdef append_item item
        cdef property_buffer buffer
        cdef uint8_t[SHORT_PROPERTIES] room
        cdef Py_ssize_t done = 0
        cdef PutResult result
        cdef Appender present = self.present()
        if present is not self:
            return present.put_any(topic, body, keys, tags, options)
        memcpy(&item, &self.blank, sizeof(append_item))
        buffer.start = room
        buffer.length = 0
        buffer.capacity = SHORT_PROPERTIES
        buffer.on_heap = buffer.expires = False
        self._enter()
        try:
            topic = exact_topic(topic)  # a reference until the end: other calls may replace the topic in the cache
            self._users_topic(topic, options.queue_id, &item)
            item.flag = options.flag
            body = exact_bytes(body)
            self._body(body, &item)
            item.properties_len = put_properties(&buffer, keys, tags, options.properties, options.unique_key)
            if options.expires_at_ms:
                item.properties_len = put_expiry(&buffer, 0, options.expires_at_ms)
            if buffer.expires:
                item.sys_flag |= <int32_t>SYS_FLAG_EXPIRES
            if self.light_queues_max:
                light_check(self.target.block, &item, &buffer, self.light_queues_max)
            if options.delay_level:
                self._delay(options.delay_level, &item, &buffer)
            elif options.delay:
                self._wait_until(options.delay, &item, &buffer)
            item.properties = buffer.start
            self._finish(&item)
            if item.body_len >= LARGE_BODY_BYTES or self.target.magic == RECORD_MAGIC_ROCKETMQ:
                self._body_checksums(&item, 1)
            self.append(&item, 1, &done, item.body_len < LARGE_BODY_BYTES, options.busy_ms, self.policy,
                         forbidden(options.flush), False)
            result = put_result(item.physical_offset, item.queue_offset, item.size, item.store_timestamp)
            if options.flush:
                self.sync_result(result, options.flush)
            return result
        finally:
            self._leave()
            if buffer.on_heap:
                free(buffer.start)

    cdef int sync_result(self, PutResult result, int flush) except -1:
        self._enter()
        try:
            self._reach(result.physical_offset + result.size_bytes, flush)
        except StoreError as error:
            error.results = [result]
            raise
        finally:
            self._leave()
        return 0

    cdef int _reach(self, int64_t end, int flush) except -1:
        """Returns when the log up to `end` is durable, or replicated. The policy does what the kernel cannot."""
        cdef GroupCommit commits = self.commits
        cdef MappedFile segment = self.segment
        cdef put_waits waits
        if commits is None:
            self.policy.reach(end, flush)
        elif not commits.reach(segment, end, flush, &waits):
            self.policy.reach(end, flush, waits.disk_ms, waits.slaves_ms)
        return 0

    def put_many(self, messages, *, flush=None, batch=False):
        """Appends messages in order; see MessageStore.put_many."""
        present = self.present()
        if present is not self:
            return present.put_many(messages, flush=flush, batch=batch)
        wanted = self._wanted_flush(flush)
        cdef bint is_batch = exact_flag("batch", batch, MessageIllegalError)
        return self._put_batch(messages, wanted, self.policy, forbidden(wanted), is_batch, is_batch, False)

    def put_with(self, policy, messages, *, bint makes_space=False, bint together=False):
        """`put_many` without a flush, for a caller that holds a lock: another policy removes the obstacles. Its errors
        end the call; `results` of a StoreError hold the messages that were appended before. With `makes_space` the call
        also works on a disk that is fuller than the settings allow. `together`: one segment holds all messages, so a
        kill leaves all of them or none. The messages are the store's: topics of its own are not refused."""
        cdef uint32_t forbidding = FORBID_WRITING
        if makes_space:
            forbidding &= ~<uint32_t>FLAG_DISK_FULL
        return self._put_batch(messages, 0, policy, forbidding, together, False, True)

    cdef list _put_batch(self, messages, int flush, object policy, uint32_t forbidding, bint together, bint is_batch,
                         bint is_own):
        cdef list batch
        cdef append_item* items = NULL
        cdef append_item* item
        cdef property_buffer buffer
        cdef Py_ssize_t count, i, room, done = 0, work = 0
        cdef Message message
        cdef PutArguments given
        cdef record_view view
        cdef bytes host
        cdef list references = []
        cdef object last_topic = None
        cdef int64_t since_ns = monotonic_ns()
        try:
            batch = in_steps(messages, &since_ns)
        except StoreError:
            raise
        except RAW_ERRORS as error:  # no iterable, a released buffer, or an iterable that fails
            raise MessageIllegalError(
                f"messages: must be a list of Message, not {type(messages).__name__} ({type(error).__name__})"
            ) from error
        count = len(batch)
        if count == 0:
            return []
        memset(&buffer, 0, sizeof(property_buffer))
        self._enter()
        try:
            items = <append_item*>calloc(count, sizeof(append_item))
            if items == NULL:
                raise MemoryError()
            for i in range(count):
                item = &items[i]
                entry = batch[i]
                if type(entry) is not Message:
                    raise MessageIllegalError(f"messages[{i}]: must be a Message, not {type(entry).__name__}")
                message = <Message>entry
                given = message.given
                if given is None:  # a stored message, or one without a topic, which is refused
                    self._topic(exact_topic(message.topic), message._queue_id, item)
                    if not is_own and own_topic(item.topic, item.topic_len):
                        refuse_own(item)
                    view = message_view(message)
                    _set_numbers(item, view.flag, view.sys_flag, view.reconsume_times, view.born_timestamp,
                                 view.prepared_transaction_offset)
                    set_store_host(item, self.store_host)
                    item.body = view.body
                    item.body_len = view.body_len
                    self._copy_properties(&buffer, item, view.properties, view.properties_len)
                    if self.light_queues_max:
                        light_check(self.target.block, item, &buffer, self.light_queues_max)
                    set_born_host(item, view.born_host, view.born_host_len)
                elif given.stored_properties is not None:  # a copy, which only the store makes
                    self._take_given(given, item)
                    self._topic(message._topic, message._queue_id, item)
                    if message._queue_id == <int>TIMER_QUEUE_ID and message._topic == SCHEDULE_TOPIC:
                        self._begin_timer()
                    item.body = <const uint8_t*>PyBytes_AS_STRING(<object>message._body)
                    item.body_len = <int32_t>PyBytes_GET_SIZE(<object>message._body)
                    self._copy_properties(&buffer, item, <const uint8_t*>PyBytes_AS_STRING(given.stored_properties),
                                          PyBytes_GET_SIZE(given.stored_properties))
                    host = <bytes>given.born_host
                    set_born_host(item, <const uint8_t*>PyBytes_AS_STRING(host), <int32_t>PyBytes_GET_SIZE(host))
                else:
                    self._take_given(given, item)
                    if last_topic is None or message._topic is not last_topic:  # else it is a str that `references` has
                        last_topic = exact_topic(message._topic)
                        references.append(last_topic)
                    self._topic(last_topic, message._queue_id, item)
                    if not is_own and own_topic(item.topic, item.topic_len):
                        refuse_own(item)
                    body = given_body(message)
                    if not PyBytes_CheckExact(body):
                        body = exact_bytes(body)
                        references.append(body)
                        work += PyBytes_GET_SIZE(body) >> 10
                    self._body(body, item)
                    item.properties_len = put_properties(&buffer, <PyObject*>message._keys, <PyObject*>given.tags,
                                                          <PyObject*>message._properties,
                                                          <PyObject*>given.unique_key)
                    if buffer.expires:
                        item.sys_flag |= <int32_t>SYS_FLAG_EXPIRES
                        buffer.expires = False
                    host = self.store_host if given.born_host is None else <bytes>given.born_host
                    set_born_host(item, <const uint8_t*>PyBytes_AS_STRING(host), <int32_t>PyBytes_GET_SIZE(host))
                    if self.light_queues_max:
                        light_check(self.target.block, item, &buffer, self.light_queues_max)
                    if given.delay_level:
                        self._delay(given.delay_level, item, &buffer)
                    elif given.delay:
                        self._wait_until(given.delay, item, &buffer)
                self._finish(item)
                buffer.length += light_room(item)
                work += 1 + (item.properties_len >> 10)
                if work >= BATCH_STEP:
                    work = 0
                    yield_gil(&since_ns)
            # The buffer moves while it grows: the pointers into it are set when it is complete.
            with nogil:
                room = 0
                for i in range(count):
                    items[i].properties = buffer.start + room
                    room += items[i].properties_len + light_room(&items[i])
            if self.light_queues_max:
                light_check_list(self.target.block, items, count, self.light_queues_max)
            if is_batch:
                check_batch(items, count, self.max_body_bytes)
            if together:
                check_together(items, count, self.file_bytes)
            self._body_checksums(items, count)
            try:
                self.append(items, count, &done, False, self.defaults.busy_ms, policy, forbidding, together)
                if flush:
                    self._reach(items[count - 1].physical_offset + items[count - 1].size, flush)
            except StoreError as error:
                if done:
                    error.results = results_of(items, done, &since_ns)
                raise
            return results_of(items, count, &since_ns)
        finally:
            self._leave()
            with nogil:
                free(items)
                if buffer.on_heap:
                    free(buffer.start)
            let_go(batch, &since_ns)
            let_go(references, &since_ns)

    cdef int _copy_properties(self, property_buffer* buffer, append_item* item, const uint8_t* start,
                              Py_ssize_t length) except -1:
        if length > <Py_ssize_t>PROPERTIES_BYTES_MAX:
            raise MessageIllegalError(f"properties: {length} bytes, at most {PROPERTIES_BYTES_MAX}")
        property_room(buffer, length)
        if length:
            memcpy(buffer.start + buffer.length, start, length)
            length = light_without_offsets(buffer.start + buffer.length, <int>length)
        buffer.length += <int32_t>length
        item.properties_len = <int32_t>length
        return 0
