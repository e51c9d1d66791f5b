"""Reading messages: by queue offset, by key, by time (DefaultMessageStore.getMessage, queryMessage,
getOffsetInQueueByTime).

A reader that finds queues or index behind the log dispatches first, so it sees everything that was written before its
call. It waits for another dispatcher a bounded time. If that dispatcher stands still, `get` answers with dispatched
messages, and `query` continues in the log.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from cystore._native.derived import queue as queue_kernel
from cystore._native.derived.queue import BatchLimits
from cystore._native.lookup.counts import ReadCounts
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.key_reader import KeyReader, QueryResult
from cystore._native.lookup.many_keys import query_many
from cystore._native.lookup.queue_reader import QueueReader
from cystore._native.lookup.time_search import BOUNDARIES
from cystore._native.lookup.visible import is_visible
from cystore._native.memory.control import CONFIRMED, WROTE, Control
from cystore._native.record.argument_checks import any_text, text, whole
from cystore._native.record.message import Message
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.heal import QueueHealer
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.by_key import DEFAULT_COUNT, KeyObstacles, several
from cystore.derived.reading.by_offset import QueueObstacles
from cystore.derived.reading.by_time import TimeSearch
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.request import QueueState, encoded, stored_topic, wanted, wanted_by
from cystore.derived.reading.tail import TailReader
from cystore.derived.reading.windows import SpareWindows
from cystore.engine.files.cold_pages import memory_bytes
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import MessageIllegalError
from cystore.filters.given_filter import Filter
from cystore.filters.sql import SqlFilter

FOREVER_MS = (1 << 63) - 1
INT32_MAX = (1 << 31) - 1


class Reader:
    """Reads one store, from any thread.

    `read_end` says where reads end, except for calls that name another end: WROTE is the end of the log, with a pool of
    buffers that of its committed part. CONFIRMED is the position below which no failover takes a record back, if the
    store's master is elected (DefaultMessageStore.getConfirmOffset). RocketMQ's dispatch stops there. Here dispatch
    goes on, because the store's own decisions need the whole log, and the readers stop.
    """

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        dispatcher: Dispatcher,
        config: StoreConfig,
        filters: KnownFilters | None = None,
        read_end: int = WROTE,
    ) -> None:
        self._control, self._commit_log, self._queues = control, commit_log, queues
        self.read_end = read_end
        self._memory_bytes = memory_bytes(config)
        limits = BatchLimits(
            memory_bytes=self._memory_bytes,
            bytes_in_memory=config.max_transfer_bytes_on_message_in_memory,
            count_in_memory=config.max_transfer_count_on_message_in_memory,
            bytes_in_disk=config.max_transfer_bytes_on_message_in_disk,
            count_in_disk=config.max_transfer_count_on_message_in_disk,
        )
        windows, key_windows = SpareWindows(commit_log), SpareWindows(commit_log)
        self._tail = TailReader(control)
        self._healer = QueueHealer(control, commit_log, queues)
        self._by_time = TimeSearch(control, commit_log, queues, self._tail, self._healer, windows)
        self.counts = ReadCounts(control, commit_log.resident.look)
        self._help = DispatchHelp(
            control, dispatcher, commit_log.files.directory, "reading only dispatched messages"
        )
        self.by_key = KeyReader(
            control,
            KeyObstacles(commit_log, index, self._help),
            key_windows.free,
            self.counts,
            self._tail.keys,
            dispatcher.kernel,
            read_end,
        )
        self._obstacles = QueueObstacles(
            control, commit_log, queues, filters, self._help, self._tail, self._healer, (windows, key_windows)
        )
        self.by_offset = QueueReader(
            control,
            self._obstacles,
            dispatcher.kernel,
            limits,
            windows.free,
            self.counts,
            SqlFilter,
            self._tail.table,
            read_end,
        )

    def help_dispatch(self) -> None:
        """Dispatches the records that are appended by now, or waits a while for another dispatcher."""
        self._help.run()

    def end_of(self, slot: int) -> int:
        """The queue offset behind the last message of a queue that `get` finds; a read-only handle also finds
        undispatched ones."""
        control = self._control
        end = control.queue_dispatched(slot)
        if control.read_only and not control.pooled:  # a pool's next offset counts what is not committed
            end = max(end, control.queue_next(slot))
        return self._shown_end(slot, end)

    def shown_end(self, slot: int) -> int:
        """The queue offset behind the last message of a queue that readers get without another append."""
        return self.shown_ends()(slot)

    def shown_ends(self) -> Callable[[int], int]:
        """`shown_end` of many queues. It dispatches once at most."""
        control, has_helped = self._control, False

        def shown_end(slot: int) -> int:
            nonlocal has_helped
            end = control.queue_end(slot)
            if self.log_end < control.wrote and not has_helped:  # it may wait for another dispatcher
                has_helped = True
                self.help_dispatch()
            return self._shown_end(slot, end)

        return control.queue_end if self.read_end == WROTE else shown_end

    def _shown_end(self, slot: int, end: int) -> int:
        """The queue offset where readers end, of a queue that ends at `end`."""
        log_end = self.log_end
        return end if log_end >= self._control.wrote else min(end, self._obstacles.end_below(slot, log_end))

    @property
    def log_end(self) -> int:
        """The log position where reads end."""
        return self._control.readable if self.read_end == CONFIRMED else self._control.wrote

    @property
    def covered(self) -> int:
        """The log position below which `get` and `query` see everything. A read-only handle also sees undispatched
        records, except records that their queue does not count yet."""
        control = self._control
        covered = control.dispatched
        if control.read_only:
            wrote, intent = control.wrote, control.intent
            covered = wrote if intent is None else max(min(wrote, intent[0]), covered)
        return min(covered, self.log_end)

    def counters(self) -> dict[str, Any]:
        """Reads of this process: gets that found something or nothing, messages they gave, queries
        (StoreStatsService). Adds them to those of all processes."""
        counts = self.counts
        counts.merge()
        return {
            "get_found": counts.found,
            "get_missed": counts.missed,
            "get_messages": counts.messages,
            "healed_entries": self._healer.healed,
            "queries": counts.queries,
        }

    def forget_cleaned(self) -> None:
        """Ends the mappings of segments that were cleaned since the last look."""
        self.by_offset.forget_cleaned()

    def forget_windows(self) -> None:
        """Drops the segments and the queue files that are kept for the next call."""
        self._obstacles.forget_windows()
        self.by_offset.forget_files()

    # ------------------------------------------------------------------------------- by queue offset

    def get(
        self,
        topic: str,
        queue_id: int,
        queue_offset: int,
        max_count: int = 32,
        *,
        tags: str | None = None,
        filter: Filter | None = None,
        group: str | None = None,
        raw: bool = False,
        read_end: int | None = None,
    ) -> GetResult:
        """Messages of a queue from an offset on, at most `max_count` and within RocketMQ's limits of a batch.

        `tags`: "A", or "A || B"; None, "" and "*" are all. `filter`: an expression or a callable. `group`: the group
        that reads; bitmaps tell which messages do not match its registered filter. A batch ends before a message whose
        bytes are damaged; if that message comes first, the call raises CorruptRecordError. `read_end`: where to end, if
        not where this reader ends. Source: DefaultMessageStore.getMessage.
        """
        name = encoded(topic) if type(topic) is str else stored_topic(topic)
        if not (
            type(queue_id) is type(queue_offset) is type(max_count) is int
            and 0 <= queue_id <= INT32_MAX >= max_count > 0
        ):
            queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
            queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
            max_count = whole("max_count", max_count, 1, INT32_MAX)
        choice = wanted(tags, filter) if group is None else wanted_by(group, topic, tags, filter)
        queue_offset = max(-FOREVER_MS, min(queue_offset, FOREVER_MS))  # no queue has one beyond
        end = self.read_end if read_end is None else read_end
        return self.by_offset.batch(name, queue_id, queue_offset, max_count, bool(raw), *choice, end)

    def _state(self, topic: bytes, queue_id: int) -> QueueState | None:
        """The state of a queue, whose messages are dispatched first."""
        found = queue_kernel.queue_state(self._control, topic, queue_id)
        state = None if found is None else QueueState(*found)
        if state is not None and state.dispatched < state.following:
            self.help_dispatch()
            found = queue_kernel.queue_state(self._control, topic, queue_id)
            state = None if found is None else QueueState(*found)
        return state

    def is_in_disk(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the message at an offset lies further behind the log's end than the part that the settings count as
        held in memory."""
        name = stored_topic(topic)
        queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
        state = self._state(name, queue_id)
        if state is None or not state.minimum <= queue_offset < state.dispatched:
            return False
        file = self._queues.get(state.slot).file_of(queue_offset)
        entry = None if file is None else queue_kernel.entry_at(file, queue_offset * ENTRY_BYTES - file.base)
        return entry is not None and state.wrote - entry[0] > self._memory_bytes

    def sees(
        self, message: Message, slot: int = -1, queue_offset: int = -1, *, read_end: int | None = None
    ) -> bool:
        """Whether a reader of a queue may get a message that was read before: ask when a program gets it. The message
        stands in the queue of `slot` at `queue_offset`; by default in its own queue. See `is_visible`. No for a message
        in a damaged range, too, and for one that ends behind this reader's end or `read_end`."""
        place, control = message.physical_offset or 0, self._control
        holes = self._commit_log.damaged_ranges
        if holes and holes.covering(place) is not None:
            return False
        end = self.read_end if read_end is None else read_end
        if end == CONFIRMED and place + (message.size_bytes or 0) > control.readable:
            return False
        return is_visible(control, message, slot, queue_offset)

    # ---------------------------------------------------------------------------------------- by key

    def query(
        self,
        topic: str,
        key: str,
        max_count: int = DEFAULT_COUNT,
        *,
        begin_ms: int = 0,
        end_ms: int | None = None,
        with_expired: bool = False,
        read_end: int | None = None,
    ) -> QueryResult:
        """The newest `max_count` messages of a topic that hold a key (one of `keys`, or the unique key), newest first.

        A damaged record does not hide the intact ones; the result's `damaged` names it.

        Only messages with a store timestamp from `begin_ms` to `end_ms` (default: any later one). The key of each
        message is compared, so another key with the same hash is no match, and no message comes twice. Expired messages
        come only with `with_expired`. `read_end`: as for `get`. Source: DefaultMessageStore.queryMessage.
        """
        name = stored_topic(topic)
        key = text("key", key)
        if end_ms is None:
            end_ms = FOREVER_MS
        if not (
            type(max_count) is type(begin_ms) is type(end_ms) is int
            and 0 < max_count <= INT32_MAX
            and -FOREVER_MS <= begin_ms <= end_ms <= FOREVER_MS
        ):
            max_count = whole("max_count", max_count, 1, INT32_MAX)
            begin_ms = whole("begin_ms", begin_ms, -FOREVER_MS, FOREVER_MS)
            end_ms = whole("end_ms", end_ms, -FOREVER_MS, FOREVER_MS)
        end = self.read_end if read_end is None else read_end
        return self.by_key.query(name, key, max_count, begin_ms, end_ms, with_expired, end)

    def query_many(
        self, topic: str, keys: Iterable[str], max_count: int = DEFAULT_COUNT
    ) -> dict[str, QueryResult]:
        """`query` for many keys: one dispatch, one walk over the undispatched log, and one call of the kernel."""
        name = stored_topic(topic)
        max_count = whole("max_count", max_count, 1, INT32_MAX)
        return query_many(self.by_key, name, several(keys), max_count, self.read_end)

    # --------------------------------------------------------------------------------------- by time

    def offset_by_time(
        self, topic: str, queue_id: int, timestamp_ms: int, *, boundary: str = "nearest"
    ) -> int:
        """See `MessageStore.offset_by_time`. An empty queue gives its minimum, an unknown queue 0.

        The whole queue is searched; RocketMQ searches one file, chosen by its modification time. Source:
        ConsumeQueue.getOffsetInQueueByTime.
        """
        name = stored_topic(topic)
        queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        timestamp_ms = whole("timestamp_ms", timestamp_ms, -FOREVER_MS, FOREVER_MS)
        boundary = any_text("boundary", boundary)
        if boundary not in BOUNDARIES:
            raise MessageIllegalError(f"boundary: must be one of {', '.join(BOUNDARIES)}, not {boundary!a}")
        dispatched = self._control.dispatched
        state = self._state(name, queue_id)
        if state is None:
            return 0
        if self.log_end < state.wrote:
            end = self._shown_end(state.slot, state.following)
            state = state._replace(
                dispatched=min(state.dispatched, end), following=min(state.following, end), wrote=self.log_end
            )
        return self._by_time.offset(name, state, dispatched, timestamp_ms, boundary)

    def earliest_time_ms(self, topic: str, queue_id: int) -> int | None:
        """The store timestamp of the first message of a queue that can be read, None without one."""
        begin = 0
        while True:
            found = self.get(topic, queue_id, begin, 1)
            if found.messages:
                return int(found.messages[0].store_timestamp_ms)
            if found.next_offset <= begin:
                return None
            begin = found.next_offset
