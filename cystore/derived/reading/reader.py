"""Reading messages: by queue offset, by key, by time (DefaultMessageStore.getMessage, queryMessage,
getOffsetInQueueByTime).

A reader that finds queues or index behind the log dispatches first, so it sees everything that was written before its
call. It waits for another dispatcher a bounded time. If that dispatcher stands still, `get` answers with dispatched
messages, and `query` continues in the log.
"""

from __future__ import annotations

import contextlib
import logging
from array import array
from collections.abc import Callable, Iterable
from typing import Any

from cystore._native.derived import queue as queue_kernel
from cystore._native.derived.queue import BatchLimits, UnitReader
from cystore._native.lookup.counts import ReadCounts, now_ms
from cystore._native.lookup.get_result import GetResult
from cystore._native.lookup.key_reader import KeyReader, QueryResult
from cystore._native.lookup.many_keys import query_many
from cystore._native.lookup.queue_reader import QueueReader
from cystore._native.lookup.time_search import BOUNDARIES
from cystore._native.lookup.visible import is_visible
from cystore._native.memory.control import WROTE, Control
from cystore._native.memory.mapping import MappedFile
from cystore._native.record.argument_checks import any_text, text, whole
from cystore._native.record.message import Message
from cystore.config import StoreConfig
from cystore.derived.dispatch.dispatcher import Dispatcher
from cystore.derived.dispatch.heal import QueueHealer, is_queue_damage
from cystore.derived.dispatch.known_filters import KnownFilters
from cystore.derived.files.consume_queue import ENTRY_BYTES, ConsumeQueues
from cystore.derived.files.index import IndexFiles
from cystore.derived.reading.by_key import DEFAULT_COUNT, KeyObstacles, several
from cystore.derived.reading.by_time import TimeSearch
from cystore.derived.reading.dispatch_help import DispatchHelp
from cystore.derived.reading.request import (
    CallableError,
    Wanted,
    encoded,
    outside,
    stored_topic,
    wanted,
    wanted_by,
)
from cystore.derived.reading.tail import TailReader
from cystore.derived.reading.windows import SpareWindows
from cystore.engine.files.cold_pages import memory_bytes
from cystore.engine.log.commit_log import CommitLog
from cystore.errors import (
    CorruptRecordError,
    MessageIllegalError,
    OffsetError,
)
from cystore.filters.given_filter import Filter
from cystore.filters.sql import SqlFilter
from cystore.results import GetStatus

log = logging.getLogger("cystore")

FOREVER_MS = (1 << 63) - 1
FILTERED_ENTRIES = 800  # the least number of entries that one batch examines (16,000 bytes in RocketMQ)
HEALED_TRIES = 5
CLEANED_TRIES = 100  # a get tries again this often if a cleaner removes the entries that it is about to read
INT32_MAX = (1 << 31) - 1


class Reader:
    """Reads one store, from any thread. `is_whole`: reads always go to the end of the log."""

    is_whole = True
    read_end = WROTE

    def __init__(
        self,
        control: Control,
        commit_log: CommitLog,
        queues: ConsumeQueues,
        index: IndexFiles,
        dispatcher: Dispatcher,
        config: StoreConfig,
        filters: KnownFilters | None = None,
    ) -> None:
        self._control, self._commit_log, self._queues, self._index = control, commit_log, queues, index
        self._dispatcher, self._filters = dispatcher, filters
        self._memory_bytes = memory_bytes(config)
        self._limits = BatchLimits(
            memory_bytes=self._memory_bytes,
            bytes_in_memory=config.max_transfer_bytes_on_message_in_memory,
            count_in_memory=config.max_transfer_count_on_message_in_memory,
            bytes_in_disk=config.max_transfer_bytes_on_message_in_disk,
            count_in_disk=config.max_transfer_count_on_message_in_disk,
        )
        self._windows, self._key_windows = SpareWindows(commit_log), SpareWindows(commit_log)
        self._tail = TailReader(control)
        self._healer = QueueHealer(control, commit_log, queues)
        self._by_time = TimeSearch(control, commit_log, queues, self._tail, self._healer, self._windows)
        self.counts = ReadCounts(control, commit_log.resident.look)
        self._help = DispatchHelp(
            control, dispatcher, commit_log.files.directory, "reading only dispatched messages"
        )
        self.keys = KeyReader(
            control,
            KeyObstacles(commit_log, index, self._help),
            self._key_windows.free,
            self.counts,
            self._tail.keys,
            dispatcher.kernel,
            self.read_end,
        )
        self._queue_reader: QueueReader | None = None
        self._forgotten_below = 0
        self._read_only = control.read_only

    def help_dispatch(self) -> None:
        """Dispatches the records that are appended by now, or waits a while for another dispatcher."""
        self._help.run()

    def end_of(self, slot: int) -> int:
        """The queue offset behind the last message of a queue that `get` finds; a read-only handle also finds
        undispatched ones."""
        control = self._control
        dispatched = control.queue_dispatched(slot)
        if not control.read_only or control.pooled:  # a pool's next offset counts what is not committed
            return dispatched
        return max(dispatched, control.queue_next(slot))

    def shown_end(self, slot: int) -> int:
        """The queue offset behind the last message of a queue that readers get without another append."""
        return self.shown_ends()(slot)

    def shown_ends(self) -> Callable[[int], int]:
        """`shown_end` of many queues. It dispatches once at most."""
        return self._control.queue_end

    @property
    def whole(self) -> Any:
        """`get` and `query` up to the end of the log: for decisions about what this store itself appended."""
        return self

    @property
    def log_end(self) -> int:
        """The log position where reads end."""
        return self._control.wrote

    @property
    def covered(self) -> int:
        """The log position below which `get` and `query` see everything. A read-only handle also sees undispatched
        records, except records that their queue does not count yet."""
        control = self._control
        if not control.read_only:
            return control.dispatched
        wrote, intent = control.wrote, control.intent
        return wrote if intent is None else max(min(wrote, intent[0]), control.dispatched)

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
        """Ends the mappings of segments that were cleaned since the last look: their disk space is free when no process
        maps them."""
        minimum = self._control.min_physical_offset
        if minimum != self._forgotten_below:
            self._forgotten_below = minimum
            self.forget_windows()
            self._commit_log.forget_cleaned()
            if self._queue_reader is not None:
                self._queue_reader.cleaned_below = minimum

    def forget_windows(self) -> None:
        """Drops the segments that are kept for the next call."""
        self._windows.clear()
        self._key_windows.clear()
        if self._queue_reader is not None:
            self._queue_reader.forget_files()

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
    ) -> GetResult:
        """Messages of a queue from an offset on, at most `max_count` and within RocketMQ's limits of a batch.

        `tags`: "A", or "A || B"; None, "" and "*" are all. `filter`: an expression or a callable. `group`: the group
        that reads; bitmaps tell which messages do not match its registered filter. A batch ends before a message whose
        bytes are damaged; if that message comes first, the call raises CorruptRecordError. Source:
        DefaultMessageStore.getMessage.
        """
        since_ms = now_ms()
        name = encoded(topic) if type(topic) is str else stored_topic(topic)
        if not (
            type(queue_id) is type(queue_offset) is type(max_count) is int
            and 0 <= queue_id <= INT32_MAX >= max_count > 0
        ):
            queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
            queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
            max_count = whole("max_count", max_count, 1, INT32_MAX)
        choice = wanted(tags, filter) if group is None else wanted_by(group, topic, tags, filter)
        try:
            result = self._get(name, queue_id, queue_offset, max_count, choice, raw)
        except CallableError as failed:
            raise failed.error from failed.error.__cause__
        if raw and result.raw is None:
            result.raw, result.record_offsets = b"", array("q")
        self.counts.count_get(since_ms, len(result.record_offsets) if raw else len(result.messages))
        return result

    def _state(self, topic: bytes, queue_id: int) -> tuple[int, int, int, int, int, int] | None:
        """(slot, minimum, dispatched, next, log minimum, wrote) of a queue, whose messages are dispatched first."""
        state = queue_kernel.queue_state(self._control, topic, queue_id)
        if state is not None and state[2] < state[3]:
            self.help_dispatch()
            state = queue_kernel.queue_state(self._control, topic, queue_id)
        return state

    def _get(
        self,
        name: bytes,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        choice: Wanted,
        raw: bool,
    ) -> GetResult:
        healing = 0
        for _ in range(CLEANED_TRIES):
            state = self._state(name, queue_id)
            if state is None:
                return GetResult(GetStatus.NO_MATCHED_LOGIC_QUEUE)
            slot, minimum, maximum, following, log_minimum, _ = state
            asked = (name, queue_id, queue_offset, max_count, choice, raw)
            result = None
            if not minimum <= queue_offset < maximum:
                result = outside(queue_offset, minimum, maximum, following)
            if result is None:
                try:
                    result = self._batch(*asked, state)
                except CorruptRecordError as error:
                    if not is_queue_damage(error):
                        raise
                    if self._heal(slot, queue_offset, healing):
                        healing += 1
                        continue
                    result = self._read_from_log(asked, state)
                    if result is None:
                        raise
            elif maximum <= queue_offset < following and self._read_only:
                found = self._batch(*asked, state, in_tail=True)
                if found is None and self._control.queue_dispatched(slot) > queue_offset:
                    continue  # the entry is in the queue's file by now
                result = found or result
            if result is not None:
                return self._with_queue_end(result, queue_offset, maximum, following)
            control = self._control
            if (control.queue_minimum(slot), control.min_physical_offset) == (minimum, log_minimum):
                if not self._heal(slot, queue_offset, healing):
                    result = self._read_from_log(asked, state)
                    if result is None:
                        break
                    return self._with_queue_end(result, queue_offset, maximum, following)
                healing += 1
            # Else a cleaner has published a new minimum and removed the file: look again.
        next_offset = self._queues.get(slot).next_file_offset(queue_offset)
        return GetResult(GetStatus.OFFSET_FOUND_NULL, [], next_offset, minimum, maximum)

    def _with_queue_end(
        self, result: GetResult, queue_offset: int, dispatched: int, following: int
    ) -> GetResult:
        """The answer with `behind` and the queue's end. A read-only handle reads undispatched messages by itself, so
        for it the queue ends behind them."""
        if dispatched < following:
            unseen = result.status is GetStatus.OFFSET_OVERFLOW_ONE and queue_offset < following
            result.behind = unseen or not self._read_only or bool(self._control.pooled)
            if not result.behind:
                result.max_offset = following
        return result

    def _heal(self, slot: int, queue_offset: int, tries: int) -> bool:
        """Heals a queue file that is gone or wrong; True if the caller should look again.

        First this process opens the file by its name again, because another process may have made it anew. Then the
        entries are rewritten from the log.
        """
        if tries == 0:
            self._queues.get(slot).forget(queue_offset)
            return True
        return tries < HEALED_TRIES and self._healer.heal(slot, queue_offset)

    def _read_from_log(
        self,
        asked: tuple[bytes, int, int, int, Wanted, bool],
        state: tuple[int, int, int, int, int, int],
    ) -> GetResult | None:
        """A read-only handle cannot heal a queue: it makes the entries from the log, for itself. Its usual walk ends
        before damage; then it searches for the end of the damage."""
        if not self._control.read_only:
            return None
        with contextlib.suppress(CorruptRecordError):  # a segment is missing
            result = self._batch(*asked, state, state[4])
            if result is not None:
                return result
        made = self._healer.entries(state[0], asked[2])
        return None if made is None else self._batch(*asked, state, made=made)

    def _batch(
        self,
        name: bytes,
        queue_id: int,
        queue_offset: int,
        max_count: int,
        choice: Wanted,
        raw: bool,
        state: tuple[int, int, int, int, int, int],
        dispatched: int | None = None,
        made: tuple[MappedFile, int] | None = None,
        in_tail: bool = False,
    ) -> GetResult | None:
        """The batch at an offset that has an entry; None if a file of the queue or of the log is gone.

        A read-only handle makes other entries for itself: `in_tail`, of an offset that is not dispatched; with
        `dispatched`, from the log behind that position. `made` are entries from that offset on, and their number.
        """
        slot, minimum, maximum, _, log_minimum, wrote = state
        if log_minimum != self._forgotten_below:
            self.forget_cleaned()
        reached = 0
        window, room = self._windows.take(), max(FILTERED_ENTRIES, max_count)
        try:
            if made is not None:
                file, count = made
            elif in_tail:
                file, count = self._tail.undispatched(window, state, queue_offset, room)
            elif dispatched is None:
                found_file = self._queues.get(slot).file_of(queue_offset)
                if found_file is None:
                    return None
                file = found_file
                count = min(maximum, file.end // ENTRY_BYTES) - queue_offset
            else:
                file, count, reached = self._tail.entries(
                    window, log_minimum, wrote, dispatched, (name, queue_id), queue_offset, room
                )
            if in_tail or dispatched is not None:
                maximum = queue_offset + count
            if count == 0:
                return None
            found, done, gone, is_far = queue_kernel.read_batch(
                window, log_minimum, wrote, file, queue_offset, min(count, room),
                name, queue_id, self._limits, max_count, choice.tags, raw, choice.program, choice.predicate,
                None if choice.registered is None else self._units(slot, choice.registered),
            )  # fmt: skip
        except OffsetError:
            return None
        if dispatched is not None:
            self._tail.go_on((name, queue_id), file, count, reached, done)
        self._windows.give_back(window)
        records = found[0] if raw else found
        status = GetStatus.FOUND
        if not records:
            status = GetStatus.MESSAGE_WAS_REMOVING if gone == done else GetStatus.NO_MATCHED_MESSAGE
        result = GetResult(status, [], queue_offset + done, minimum, maximum)
        result.suggest_pulling_from_slave = is_far
        if raw:
            result.raw, result.record_offsets = found
        else:
            result.messages = found
        return result

    def _units(self, slot: int, registered: tuple[str, str, str]) -> UnitReader | None:
        """The extended units of a queue for a group whose filter is registered. Called when the batch's entries are
        known."""
        found = None if self._filters is None else self._filters.bits_of(*registered)
        ext = None if found is None else self._queues.get(slot).ext
        return None if found is None or ext is None else UnitReader(*found, ext.file_of)

    def is_in_disk(self, topic: str, queue_id: int, queue_offset: int) -> bool:
        """Whether the message at an offset lies further behind the log's end than the part that the settings count as
        held in memory."""
        name = stored_topic(topic)
        queue_id = whole("queue_id", queue_id, 0, INT32_MAX)
        queue_offset = whole("queue_offset", queue_offset, -FOREVER_MS, FOREVER_MS)
        state = self._state(name, queue_id)
        if state is None or not state[1] <= queue_offset < state[2]:
            return False
        file = self._queues.get(state[0]).file_of(queue_offset)
        entry = None if file is None else queue_kernel.entry_at(file, queue_offset * ENTRY_BYTES - file.base)
        return entry is not None and state[5] - entry[0] > self._memory_bytes

    def sees(self, message: Message, slot: int = -1, queue_offset: int = -1) -> bool:
        """Whether a reader of a queue may get a message that was read before: ask when a program gets it. The message
        stands in the queue of `slot` at `queue_offset`; by default in its own queue. See `is_visible`. No for a message
        in a damaged range, too."""
        holes = self._commit_log.damaged_ranges
        if holes and holes.covering(message.physical_offset or 0) is not None:
            return False
        return is_visible(self._control, message, slot, queue_offset)

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
        return self.keys.query(name, key, max_count, begin_ms, end_ms, with_expired, end)

    def query_many(
        self, topic: str, keys: Iterable[str], max_count: int = DEFAULT_COUNT
    ) -> dict[str, QueryResult]:
        """`query` for many keys: one dispatch, one walk over the undispatched log, and one call of the kernel."""
        name = stored_topic(topic)
        max_count = whole("max_count", max_count, 1, INT32_MAX)
        return query_many(self.keys, name, several(keys), max_count, self.read_end)

    def queue_reader(
        self, general: Callable[..., GetResult], general_read: Callable[..., Message]
    ) -> QueueReader:
        """Answers usual gets and reads in one call of the kernel; for the others it calls `general` and
        `general_read`."""
        self._queue_reader = QueueReader(
            self._control,
            self._dispatcher.kernel,
            self._limits,
            self._windows.free,
            self.counts,
            self._queues.file_of,
            self._commit_log.window,
            general,
            general_read,
            SqlFilter,
            self._tail.table,
            bounded=not self.is_whole,
        )
        self._queue_reader.cleaned_below = self._forgotten_below
        return self._queue_reader

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
        return self._by_time.offset(name, self._shown(state), dispatched, timestamp_ms, boundary)

    def _shown(self, state: tuple[int, int, int, int, int, int]) -> tuple[int, int, int, int, int, int]:
        """The part of a queue's state that readers see."""
        return state

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
