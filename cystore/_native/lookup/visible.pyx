"""The one answer to the question whether a reader of a queue may get a message now.

The kernels that read queues and keys ask it for each record that they meet. Who keeps a message for a while before a
program gets it (a consumer that reads ahead) asks again when it gives the message away.
"""

from libc.stdint cimport int64_t

from cystore._native.layout cimport control_block, queue_entry, takes_queue_offset
from cystore._native.memory.atomics cimport load_i64
from cystore._native.memory.control cimport Control
from cystore._native.memory.queue_table cimport checked_slot, control_find_queue
from cystore._native.record.message cimport Message, message_view
from cystore._native.record.record_view cimport record_view
from cystore._native.record.window cimport record_expired_in

from cystore.errors import MessageIllegalError


cdef record_view _stored(Message message) except *:
    if message.source is None:
        raise MessageIllegalError("message: must be read from a store")
    return message_view(message)


def has_expired(Control control not None, Message message not None):
    """Whether the time of a stored message is over, by the store's clock."""
    cdef record_view view = _stored(message)
    return bool(record_expired_in(control.checked(), &view))


def is_visible(Control control not None, Message message not None, int64_t slot=-1, int64_t queue_offset=-1):
    """Whether a reader of a queue may get a message that stands there at `queue_offset`; by default a reader of the
    message's own queue.

    No if the message has expired, if it stands below the minimum of the queue (its topic was deleted, its segment was
    cleaned), and for a part of a transaction that no queue has.
    """
    cdef control_block* block = control.checked()
    cdef record_view view = _stored(message)
    cdef queue_entry* entry
    if slot >= 0:
        entry = checked_slot(block, slot)
    elif not takes_queue_offset(view.sys_flag):
        return False
    else:
        queue_offset = view.queue_offset
        entry = control_find_queue(block, view.topic, view.topic_len, view.queue_id)
        if entry == NULL:
            return False
    if queue_offset < load_i64(&entry.minimum) or view.physical_offset < load_i64(&block.min_physical_offset):
        return False
    return not record_expired_in(block, &view)
