"""The result of a get. It is a C class because a dataclass takes as long to fill as a record takes to read."""

cimport cython
from libc.stdint cimport int64_t


@cython.final
cdef class GetResult:
    """Result of `MessageStore.get` (RocketMQ's GetMessageResult).

    `next_offset` is the offset to continue at: behind the last examined entry; the minimum if the asked offset is too
    small; the asked offset at the maximum. Read on while it is below `max_offset`: a batch may end earlier, for
    example where a read-only handle reaches messages that are not dispatched yet. `behind` is True if dispatch has
    not entered all acknowledged messages of this queue yet (it stands still, or its disk is full). An acknowledged
    offset without an entry gives OFFSET_OVERFLOW_ONE and leaves `next_offset` at the asked offset. Only
    ``get(raw=True)`` fills `raw` and `record_offsets`: all records in one buffer, and the begin of each.

    `suggest_pulling_from_slave` is True when the messages that follow lie further behind the log's end than memory
    holds (access_message_in_memory_max_ratio): reading them costs this host's disk, and a slave has them too.
    """

    def __init__(self, status, messages=None, int64_t next_offset=0, int64_t min_offset=0, int64_t max_offset=0,
                 raw=None, record_offsets=None, bint behind=False, bint suggest_pulling_from_slave=False):
        self.status = status
        self.messages = [] if messages is None else messages
        self.next_offset = next_offset
        self.min_offset = min_offset
        self.max_offset = max_offset
        self.raw = raw
        self.record_offsets = record_offsets
        self.behind = behind
        self.suggest_pulling_from_slave = suggest_pulling_from_slave

    def __repr__(self):
        return (f"GetResult(status={self.status!r}, messages={self.messages!r}, next_offset={self.next_offset}, "
                f"min_offset={self.min_offset}, max_offset={self.max_offset}, raw={self.raw!r}, "
                f"record_offsets={self.record_offsets!r}, behind={self.behind}, "
                f"suggest_pulling_from_slave={self.suggest_pulling_from_slave})")

    def __eq__(self, other):
        if not isinstance(other, GetResult):
            return NotImplemented
        return self._tuple() == (<GetResult>other)._tuple()

    def __reduce__(self):
        return GetResult, self._tuple()

    def _tuple(self):
        return (self.status, self.messages, self.next_offset, self.min_offset, self.max_offset, self.raw,
                self.record_offsets, self.behind, self.suggest_pulling_from_slave)


cdef GetResult get_result(object status, object messages, int64_t next_offset, int64_t min_offset, int64_t max_offset):
    cdef GetResult result = GetResult.__new__(GetResult)
    result.status = status
    result.messages = messages
    result.next_offset = next_offset
    result.min_offset = min_offset
    result.max_offset = max_offset
    return result
