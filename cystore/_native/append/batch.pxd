"""Batches: the checks before anything is written, and the results of the messages."""

from libc.stdint cimport int64_t
from libc.string cimport memcmp

from cystore._native.layout cimport (BLANK_SIZE_MIN, SCHEDULE_TOPIC_BYTES, SCHEDULE_TOPIC_TEXT, takes_queue_offset)
from cystore._native.append.steps cimport BATCH_STEP, yield_gil
from cystore._native.record.message cimport put_result
from cystore._native.record.record_write cimport append_item

from cystore.errors import MessageIllegalError


cdef inline int64_t batch_bytes(const append_item* items, Py_ssize_t count) noexcept nogil:
    cdef int64_t size = 0
    cdef Py_ssize_t i
    for i in range(count):
        size += items[i].size
    return size


cdef inline int check_batch(const append_item* items, Py_ssize_t count, int64_t bytes_max) except -1:
    """Refuses the batches that CommitLog.asyncPutMessages and its encoder refuse."""
    cdef const append_item* item
    cdef int64_t size = batch_bytes(items, count)
    cdef Py_ssize_t i
    for i in range(count):
        item = &items[i]
        if item.topic_len == SCHEDULE_TOPIC_BYTES and memcmp(item.topic, SCHEDULE_TOPIC_TEXT,
                                                             SCHEDULE_TOPIC_BYTES) == 0:
            raise MessageIllegalError(f"messages[{i}]: delay_level: a batch is not delayed")
        if item.light_count:
            raise MessageIllegalError(f"messages[{i}]: properties['INNER_MULTI_DISPATCH']: a batch has no light queues")
        if not takes_queue_offset(item.sys_flag):
            raise MessageIllegalError(f"messages[{i}]: sys_flag: a batch has no prepared or rolled back "
                                      "message of a transaction")
        if item.topic_len != items[0].topic_len or memcmp(item.topic, items[0].topic, item.topic_len) != 0:
            raise MessageIllegalError(f"messages[{i}]: topic: a batch has one topic, that of its first message")
        if item.queue_id != items[0].queue_id:
            raise MessageIllegalError(f"messages[{i}]: queue_id: a batch has one queue, {items[0].queue_id}, "
                                      f"not {item.queue_id}")
    if size > bytes_max:
        raise MessageIllegalError(f"messages: the records of a batch have {size} bytes, at most "
                                  f"max_message_size_bytes = {bytes_max}")
    return 0


cdef inline int check_together(const append_item* items, Py_ssize_t count, int64_t file_bytes) except -1:
    """Refuses messages that do not fit one segment."""
    cdef int64_t size
    with nogil:
        size = batch_bytes(items, count)
    if size + <int64_t>BLANK_SIZE_MIN > file_bytes:
        raise MessageIllegalError(f"messages: their records have {size} bytes, a whole commit log file {file_bytes}")
    return 0


cdef inline list results_of(const append_item* items, Py_ssize_t count, int64_t* since_ns):
    cdef Py_ssize_t i
    cdef list results = []
    for i in range(count):
        results.append(put_result(items[i].physical_offset, items[i].queue_offset, items[i].size,
                                  items[i].store_timestamp))
        if i & (<Py_ssize_t>BATCH_STEP - 1) == <Py_ssize_t>BATCH_STEP - 1:
            yield_gil(since_ns)
    return results
