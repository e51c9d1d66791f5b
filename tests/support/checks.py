"""Checks that must hold for every store, whatever was done to it: on an open store, and on the files of a closed
one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cystore
from cystore.verify.verifier import verify

Queues = dict[tuple[str, int], list[cystore.Message]]


def committed(store: cystore.MessageStore) -> None:
    """What was put is there for readers, also where appends go to a pool of buffers first."""
    store._attached().control.commit()


def everything(store: cystore.MessageStore) -> Queues:
    """All messages by queue, read with `get` from the minimum to the end."""
    found: Queues = {}
    for topic, queues in store.topics().items():
        for queue_id, (minimum, maximum) in queues.items():
            messages: list[cystore.Message] = []
            at = minimum
            while at < maximum:
                got = store.get(topic, queue_id, at, 32)
                assert got.messages, (topic, queue_id, at, got.status)
                messages += got.messages
                at = got.next_offset
            found[topic, queue_id] = messages
    return found


def check_chain(store: cystore.MessageStore) -> int:
    """I1: from the minimum to the wrote position stands record behind record; only a blank leads to the next file.
    Gives how many records there are."""
    stats = store.stats()
    at, records = stats["min_physical_offset"], 0
    end, file_bytes = stats["wrote"], store._attached().commit_log.file_bytes
    for message in store.scan(end=end):
        if message.physical_offset != at:
            assert message.physical_offset == at - at % file_bytes + file_bytes, (at, message.physical_offset)
        at = message.physical_offset + message.size_bytes
        records += 1
    assert at == end or (at < end and end % file_bytes == 0 and end - at < file_bytes), (at, end)
    return records


def check(store: cystore.MessageStore, acknowledged: Sequence[Sequence[Any]]) -> int:
    """I1; I2: queues count without gap or repeat; and each acknowledged (topic, queue id, queue offset, key) is
    there, by offset and by key. Gives how many were acknowledged."""
    committed(store)
    queues = everything(store)
    assert check_chain(store) == sum(map(len, queues.values()))
    for queue, messages in queues.items():
        assert [m.queue_offset for m in messages] == list(range(len(messages))), queue
    places = set()
    for topic, queue_id, queue_offset, key in acknowledged:
        assert queues[topic, int(queue_id)][int(queue_offset)].keys == (key,), (topic, queue_id, queue_offset)
        found = store.query(topic, key)
        assert (int(queue_id), int(queue_offset)) in {(m.queue_id, m.queue_offset) for m in found}, key
        places.add((topic, int(queue_id), int(queue_offset)))
    assert len(places) == len(acknowledged), "one place was acknowledged twice"
    return len(places)


def check_closed(path: Path, settings: dict[str, Any]) -> None:
    """The files of a store that was closed: marked clean, every checksum right, queues and index what the log says, and
    nothing behind the log's end."""
    assert not (path / "abort").exists()
    damages = list(verify(path, cystore.StoreConfig(**settings)))
    assert damages == []
