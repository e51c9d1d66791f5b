"""The record that a consume queue entry leads to. The entry was made from the record. So if a record of RocketMQ's
format says another queue offset today, the record has changed: its checksum does not cover that number."""

from __future__ import annotations

from typing import NamedTuple

from cystore.layout import takes_queue_offset
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
