"""Messages of a DLedger's queues, in the order of topic, queue id and queue offset."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator

from cystore._native.record.message import Message, message_of
from cystore.dledger.entries import Bad
from cystore.dledger.source import Source, Stored
from cystore.layout import TOTAL_SIZE, takes_queue_offset

HEAD_READ_BYTES = 4096
Queue = tuple[str, int]


def messages(
    source: Source, chosen: Callable[[Queue], bool], begin: int, damaged: Callable[[Bad], None]
) -> Iterator[Message]:
    """Messages of the chosen queues from queue offset `begin` on. Walks the log once, keeps eight bytes for each
    message, and calls `damaged` for each damaged range before the first message."""
    queues: dict[Queue, array[int]] = {}
    for found in source.records(uncommitted=False):
        if isinstance(found, Bad):
            damaged(found)
            continue
        queue = _queue_of(found)
        if queue is not None and chosen(queue) and int(found.fields["queue_offset"]) >= begin:
            queues.setdefault(queue, array("q")).append(found.physical_offset)
    for key in sorted(queues):
        for physical_offset in queues[key]:
            yield _read(source, physical_offset)


def _queue_of(stored: Stored) -> Queue | None:
    """The queue of a record; None for prepared and rolled back records."""
    fields = stored.fields
    topic, queue_id, sys_flag = fields["topic"], fields["queue_id"], fields["sys_flag"]
    assert isinstance(topic, bytes)
    return (topic.decode(), int(queue_id)) if takes_queue_offset(int(sys_flag)) else None


def _read(source: Source, physical_offset: int) -> Message:
    is_old = source.old is not None and physical_offset < source.begin
    reader = source.old if is_old else source.reader
    assert reader is not None
    head = reader.read(physical_offset, HEAD_READ_BYTES)
    size = TOTAL_SIZE.read(head)
    data = head[:size] if size <= len(head) else reader.read(physical_offset, size)
    return message_of(data, physical_offset, str(reader.path(reader.base_of(physical_offset))))
