"""Groups: the offsets of consumer groups, their lag, their resets, and reads from a group's offset on
(ConsumerOffsetManager)."""

from __future__ import annotations

import os
from functools import partial
from typing import NamedTuple

from cystore import clock
from cystore._native.lookup.get_result import GetResult
from cystore._native.record.argument_checks import choice, instance, whole, yes_or_no
from cystore.attachment.attachment import Attachment, StoreHandle
from cystore.clock import monotonic_s, wait_s
from cystore.consumers.names import checked_group, users_group
from cystore.consumers.offset_file import Key
from cystore.consumers.table import NO_OFFSET, Behind, OffsetTable, Reads
from cystore.derived.reading.by_time import LOWER
from cystore.engine.manifest.topic_names import checked_topic
from cystore.errors import OffsetError, StoreConfigError, StoreFullError
from cystore.filters.given_filter import Filter
from cystore.layout import CONSTANTS, OWN_GROUPS, TOTAL_SIZE, field_of, record_store_timestamp
from cystore.results import GetStatus
from cystore.system.threads import os_threads
from cystore.system.threads.reentry import undisturbed

QUEUE_ID_MAX = (1 << 31) - 1
OFFSET_MAX = (1 << 62) - 1
FIRST, LAST = "first", "last"
RECORD_HEAD_BYTES = CONSTANTS["RECORD_SIZE_MIN"][0]
PHYSICAL_OFFSET = field_of("record", "physical_offset")
NOTHING_YET = (
    GetStatus.OFFSET_OVERFLOW_ONE, GetStatus.NO_MESSAGE_IN_QUEUE, GetStatus.NO_MATCHED_LOGIC_QUEUE,
)  # fmt: skip


Change = tuple[int, int, int]  # row, offset before, offset now


class QueueLag(NamedTuple):
    """The position of a group in one queue. `lag` counts messages, without those that cleaning removed."""

    topic: str
    queue_id: int
    offset: int
    min_offset: int
    end_offset: int
    lag: int


class GroupTable:
    """The table of offsets with the queues of its rows. One for each attachment."""

    def __init__(self, parts: Attachment) -> None:
        self.parts, self.table = parts, OffsetTable(parts)
        self._slots: list[int] = []  # of the rows; -1: the queue has no message yet
        self._topics: dict[str, list[tuple[int, int]]] = {}
        self._queues_seen, self._lock = 0, os_threads.RLock()
        if self.table.writable:
            parts.at_leave.append(partial(_saved_and_closed, self.table))

    def slots(self) -> list[int]:
        """The slot of each row's queue."""
        keys, slots, find = self.table.keys, self._slots, self.parts.control.find_queue
        with self._lock:
            if -1 in slots:
                for row, slot in enumerate(slots):
                    if slot < 0 <= keys[row][2]:
                        slots[row] = find(keys[row][0], keys[row][2])
            for topic, _, queue_id in keys[len(slots) :]:
                slots.append(find(topic, queue_id) if queue_id >= 0 else -1)
            return slots

    def queues(self, topic: str) -> list[tuple[int, int]]:
        """(queue id, slot) of the queues of a topic, by queue id."""
        control = self.parts.control
        with self._lock:
            count = control.queue_count
            for slot in range(self._queues_seen, count):
                name, queue_id, *_ = control.queue(slot)
                self._topics[name] = sorted([*self._topics.get(name, []), (queue_id, slot)])
            self._queues_seen = count
            return self._topics.get(topic, [])


def _saved_and_closed(table: OffsetTable) -> None:
    try:
        table.save()
    finally:
        table.close()


class Groups:
    """The consumer groups of a store; `store.groups`. Safe for threads and processes.

    An offset is the queue offset of the message that a group gets next in a queue. All processes share the offsets at
    once; they are written to config/consumerOffset.json every five seconds while a consumer runs, by `save`, and when
    a store is closed. A group begins to
    exist with its first offset. Names of groups are 1 to 120 of letters, digits, % | _ and -; others raise
    StoreConfigError.
    """

    def __init__(self, store: StoreHandle) -> None:
        self._store = store

    def _table(self) -> GroupTable:
        return table_of(self._store._attached())

    def _writable(self) -> GroupTable:
        self._store._writable()
        return self._table()

    # ------------------------------------------------------------------------------------------- offsets and lag

    def names(self, *, internal: bool = False) -> list[str]:
        """All groups that have an offset, sorted. With `internal` instead the groups whose offsets are notes of the
        store itself."""
        internal = yes_or_no("internal", internal, StoreConfigError)
        return sorted({group for (_, group, _), _ in self._offsets() if (group in OWN_GROUPS) is internal})

    def offsets(self, group: str) -> dict[tuple[str, int], int]:
        """The offsets of a group by (topic, queue id); empty for an unknown group."""
        group = checked_group(group)
        found = {
            (topic, queue_id): offset for (topic, of, queue_id), offset in self._offsets() if of == group
        }
        return dict(sorted(found.items()))

    def offset(self, group: str, topic: str, queue_id: int) -> int | None:
        """The offset of a group in one queue; None if it has none (queryOffset, which gives -1)."""
        table = self._table().table
        row = table.find(_key(topic, group, queue_id))
        offset = NO_OFFSET if row is None else table.offset(row)
        return None if offset == NO_OFFSET else offset

    def _offsets(self) -> list[tuple[Key, int]]:
        table = self._table().table
        return [
            (key, offset)
            for key, offset in zip(table.keys, table.offsets(), strict=False)
            if offset != NO_OFFSET and key[2] >= 0
        ]

    def lag(self, group: str) -> list[QueueLag]:
        """The position of a group in each queue in which it has an offset, by topic and queue id. Its retry topic is
        among the topics; messages that wait for a delay level are not counted."""
        group = checked_group(group)
        found = self._table()
        control, table, shown_end = found.parts.control, found.table, found.parts.reader.shown_ends()
        offsets = table.offsets()
        rows = []
        for (topic, of, queue_id), offset, slot in zip(table.keys, offsets, found.slots(), strict=False):
            if of != group or offset == NO_OFFSET or queue_id < 0:
                continue
            end = shown_end(slot) if slot >= 0 else 0
            minimum = control.queue_minimum(slot) if slot >= 0 else 0
            rows.append(QueueLag(topic, queue_id, offset, minimum, end, max(end - max(offset, minimum), 0)))
        return sorted(rows)

    def lags(self, *, internal: bool = False) -> dict[str, int]:
        """The number of messages that each group has still to get, over all its queues, by group. One pass over the
        table: 8,000 queues take a few milliseconds. With `internal` instead the groups whose offsets are notes of the
        store itself: that of transactions."""
        found, internal = self._table(), yes_or_no("internal", internal, StoreConfigError)
        following, minimum = found.parts.reader.shown_ends(), found.parts.control.queue_minimum
        totals: dict[str, int] = {}
        offsets = found.table.offsets()
        for (_, group, queue_id), offset, slot in zip(found.table.keys, offsets, found.slots(), strict=False):
            if offset == NO_OFFSET or queue_id < 0 or (group in OWN_GROUPS) is not internal:
                continue
            if slot < 0:
                totals.setdefault(group, 0)
                continue
            low = minimum(slot)
            left = following(slot) - (offset if offset > low else low)
            totals[group] = totals.get(group, 0) + (left if left > 0 else 0)
        return dict(sorted(totals.items()))

    def reads(self, group: str) -> dict[tuple[str, int], Reads]:
        """The gets with ``group=`` since this boot, by (topic, queue id): their number, messages and bytes, and the
        distance of the last one from the queue's end (without the setting disk_fall_recorded: 0)."""
        return self.all_reads().get(checked_group(group), {})

    def all_reads(self) -> dict[str, dict[tuple[str, int], Reads]]:
        """`reads` of each group that has any, in one pass over the table."""
        found: dict[str, dict[tuple[str, int], Reads]] = {}
        for (topic, group, queue_id), reads in sorted(self._table().table.all_reads()):
            if reads.gets and queue_id >= 0:
                found.setdefault(group, {})[topic, queue_id] = reads
        return found

    # ------------------------------------------------------------------------------------------ changing

    def commit(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Moves a group to an offset of a queue, forward or back (commitOffset). Raises OffsetError beyond the
        queue's end, StoreNotWritableError, StoreConfigError."""
        self.move(users_group(group), topic, queue_id, offset)

    def move(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """`commit`, also for the groups of the store itself."""
        key, offset = _key(topic, group, queue_id), whole("offset", offset, 0, OFFSET_MAX, StoreConfigError)
        found = self._writable()
        slot = found.parts.control.find_queue(key[0], key[2])
        end = found.parts.control.queue_end(slot) if slot >= 0 else 0
        if offset > end:
            raise OffsetError(
                f"group {group} cannot stand at {offset} in {topic}/{queue_id}: the queue ends at {end}",
                path=found.parts.root,
            )
        found.table.set_offset(found.table.row(key), offset)

    def reset(
        self, group: str, topic: str, to: int | str, *, queue_id: int | None = None, force: bool = True
    ) -> dict[int, int]:
        """Moves a group in all queues of a topic, or in one: to the first message that was stored at the time `to` in
        ms or later (the end if there is none), to "first" or to "last". Without `force` it only moves the group back,
        never over messages that the group has not got (resetOffsetByTimestamp). Returns the offsets by queue id, and
        saves them.

        Running consumers of the group follow within a second. Messages that they gave out before and that are not
        acknowledged then no longer count as given. Raises StoreConfigError for a topic without queues. After a
        StoreFullError the group is where it was.
        """
        group, topic = users_group(group), checked_topic(topic)
        to, force = place("to", to), yes_or_no("force", force, StoreConfigError)
        if queue_id is not None:
            queue_id = whole("queue_id", queue_id, 0, QUEUE_ID_MAX, StoreConfigError)
        found = self._writable()
        queues = [one for one in found.queues(topic) if queue_id in (None, one[0])]
        if not queues:
            where = topic if queue_id is None else f"{topic}/{queue_id}"
            raise StoreConfigError(f"there is no queue of {where} to reset", path=found.parts.root)
        moved: dict[int, int] = {}
        changes: list[Change] = []
        for number, slot in queues:
            row = found.table.row((topic, group, number))
            wanted = self._position(found, topic, number, slot, to)
            while True:
                old = found.table.offset(row)
                new = wanted if force or old == NO_OFFSET else min(wanted, old)
                if found.table.set_offset(row, new, expected=old):
                    changes.append((row, old, new))
                    break
            moved[number] = new
        _save_or_undo(found.table, changes)
        return moved

    def _position(self, found: GroupTable, topic: str, queue_id: int, slot: int, to: int | str) -> int:
        control = found.parts.control
        if to == FIRST:
            return control.queue_minimum(slot)
        if to == LAST:
            return found.parts.reader.shown_end(slot)
        assert isinstance(to, int)
        return found.parts.reader.offset_by_time(topic, queue_id, to, boundary=LOWER)

    def remove(self, group: str) -> int:
        """Forgets the offsets of a group, and saves that; returns their number (removeOffset). Its retry topic and
        dead letters stay until they expire. After a StoreFullError the group has its offsets."""
        group = users_group(group)
        found, removed = self._writable(), 0
        changes: list[Change] = []
        for row, offset in enumerate(found.table.offsets()):
            if found.table.keys[row][1] == group and offset != NO_OFFSET:
                removed += found.table.keys[row][2] >= 0
                found.table.set_offset(row, NO_OFFSET)
                changes.append((row, offset, NO_OFFSET))
        _save_or_undo(found.table, changes)
        return removed

    def save(self) -> bool:
        """Makes the offsets durable; False if they were durable already. Raises StoreFullError, FlushFailedError."""
        return self._writable().table.save()

    # ------------------------------------------------------------------------------------------- reading

    def pull(
        self,
        group: str,
        topic: str,
        queue_id: int,
        max_count: int = 32,
        *,
        timeout_s: float | None = 0.0,
        tags: str | None = None,
        filter: Filter | None = None,
    ) -> GetResult:
        """`get` from the group's offset on (the queue's minimum if it has none). The group's offset does not move:
        `commit` the result's `next_offset` when the messages are processed. Waits up to `timeout_s` for a message
        (PullRequestHoldService; None: for ever).

        An offset below the queue's minimum or beyond its end gives OFFSET_TOO_SMALL or OFFSET_OVERFLOW_BADLY, and
        `next_offset` is the offset at which RocketMQ would continue.
        """
        key = _key(topic, group, queue_id)
        until_s = monotonic_s() + wait_s(timeout_s)
        store = self._store
        at = self.offset(group, topic, queue_id)
        while True:
            if at is None:
                found = self._table()
                slot = found.parts.control.find_queue(key[0], key[2])
                first = found.parts.control.queue_minimum(slot) if slot >= 0 else 0
            else:
                first = at
            result = store.get(key[0], key[2], first, max_count, tags=tags, filter=filter, group=key[1])
            if result.status is GetStatus.NO_MATCHED_MESSAGE and result.next_offset > first:
                at = result.next_offset
                continue
            left_s = until_s - monotonic_s()
            if result.status not in NOTHING_YET or left_s <= 0:
                return result
            store.wait(key[0], key[2], first, left_s)

    def count_get(self, group: str, topic: str, queue_id: int, result: GetResult) -> None:
        """Counts a get that named its group. A read-only handle counts nothing."""
        instance("result", result, GetResult, StoreConfigError)
        topic, _, queue_id = key = _key(topic, group, queue_id)  # of the exact types
        found = self._table()
        if not found.table.writable or result.status is GetStatus.NO_MATCHED_LOGIC_QUEUE:
            return
        size = len(result.raw) if result.raw else sum(one.size_bytes for one in result.messages)
        count = len(result.record_offsets) if result.raw else len(result.messages)
        found.table.count_get(key, count, size, _behind(found, topic, queue_id, result))


def _behind(found: GroupTable, topic: str, queue_id: int, result: GetResult) -> Behind | None:
    """The distance of a get's last message from the queue's end. None if the get found no message before the queue's
    end, or if the setting disk_fall_recorded is off."""
    parts = found.parts
    if not parts.config.disk_fall_recorded:
        return None
    if result.raw:
        begin = result.record_offsets[-1]
        head = result.raw[begin : begin + RECORD_HEAD_BYTES]
        end = PHYSICAL_OFFSET.read(head) + TOTAL_SIZE.read(head)
        stored_ms = record_store_timestamp(head)
    elif result.messages:
        last = result.messages[-1]
        end, stored_ms = last.physical_offset + last.size_bytes, last.store_timestamp_ms
    else:
        return Behind() if result.status is GetStatus.OFFSET_OVERFLOW_ONE else None
    slot = parts.control.find_queue(topic, queue_id)
    if slot < 0:  # the result is of another queue
        return None
    messages = max(parts.control.queue_end(slot) - result.next_offset, 0)
    if messages == 0:
        return Behind()
    age_ms = clock.now_ms(parts.control) - stored_ms
    return Behind(max(parts.control.wrote - end, 0), messages, max(age_ms, 0))


def place(field: str, value: object) -> int | str:
    """A place in a queue: "first", "last" or a store timestamp. Raises StoreConfigError."""
    if isinstance(value, str):
        found: str = choice(field, value, (FIRST, LAST), StoreConfigError)
        return found
    return whole(field, value, 0, OFFSET_MAX, StoreConfigError)


def _key(topic: str, group: str, queue_id: int) -> Key:
    return (
        checked_topic(topic), checked_group(group), whole("queue_id", queue_id, 0, QUEUE_ID_MAX, StoreConfigError),
    )  # fmt: skip


def _save_or_undo(table: OffsetTable, changes: list[Change]) -> None:
    """Saves; on a full disk it takes the changes back that nobody has changed again, and raises StoreFullError."""
    try:
        table.save()
    except StoreFullError:
        for row, before, now in changes:
            table.set_offset(row, before, expected=now)
        raise


_making = os_threads.RLock()  # a signal handler of the same thread makes it, too


def table_of(parts: Attachment) -> GroupTable:
    """The table of an attachment, made at its first use."""
    found = parts.groups
    if found is None:
        found = undisturbed(partial(_make_table, parts))
    assert isinstance(found, GroupTable)
    return found


def own_offset(parts: Attachment, topic: str) -> int | None:
    """The offset, in queue 0 of a topic, of the group that has the topic's name; None without one."""
    table = table_of(parts).table
    row = table.find((topic, topic, 0))
    offset = NO_OFFSET if row is None else table.offset(row)
    return None if offset == NO_OFFSET else offset


def _make_table(parts: Attachment) -> object:
    with _making:
        if parts.groups is None:
            parts.groups = GroupTable(parts)
        return parts.groups


def _forked() -> None:
    global _making
    _making = os_threads.RLock()  # a thread of the parent may hold it


os.register_at_fork(after_in_child=_forked)
