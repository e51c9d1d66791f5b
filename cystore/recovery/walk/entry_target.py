"""The record that a consume queue entry leads to. The entry was made from the record. So if a record of RocketMQ's
format says another queue offset today, the record has changed: its checksum does not cover that number."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from cystore.layout import LMQ_PREFIX, takes_queue_offset
from cystore.recovery.walk.log_reader import LogReader, queue_places
from cystore.recovery.walk.queue_reader import QueueReader


class EntryTarget(NamedTuple):
    """A record [begin, end) with the right checksum and the size of its entry. `agrees`: it has the entry's queue
    offset."""

    begin: int
    end: int
    agrees: bool


def entry_target(log: LogReader, queue: QueueReader | None, number: int) -> EntryTarget | None:
    """The record of a queue offset by the queue's entry; None if entry or record is missing or damaged."""
    if queue is None or not queue.first <= number < queue.limit:
        return None
    entry = queue.entry(number)
    if entry.hole or not entry.written:
        return None
    record = log.record(entry.physical_offset)
    if record is None or record["total_size"] != entry.size:
        return None
    agrees = ((queue.topic, queue.queue_id), number) in queue_places(record)
    agrees = agrees and takes_queue_offset(record["sys_flag"])
    return EntryTarget(entry.physical_offset, entry.physical_offset + entry.size, agrees)


def proven_wrong(
    log: LogReader, queues: Mapping[tuple[str, int], QueueReader], key: tuple[str, int], number: int
) -> EntryTarget | None:
    """A record that claims queue offset `number` of the queue `key`, while the entry of another queue with that offset
    leads to it: its topic or its queue id changed. None if no entry says so."""
    for other, queue in queues.items():
        if other == key or other[0].startswith(LMQ_PREFIX):
            continue
        target = entry_target(log, queue, number)
        if target is None or target.agrees:
            continue
        record = log.record(target.begin)
        if record is not None and queue_places(record)[0] == (key, number):
            return target
    return None
