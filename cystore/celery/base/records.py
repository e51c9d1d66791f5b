"""The form of results in the store: the one place that knows topics, queues, keys, tags and properties.

| topic | a record is | key | tag | body |
|---|---|---|---|---|
| `celery_results` | one transition of one task | task id | the state | the result's meta, as Celery encoded it |
| `celery_groups` | a saved group | group id | `SAVED` | the group as a tuple, encoded likewise |
| both | a tombstone: forgotten from here | the id | `FORGET` | empty |
| `celery_chords` | a step of a chord | group id, run | the step: see `chord_runs` | part's result, body's signature |

Queue 0 of `celery_results` is for transitions without a known task name (a tombstone, a revoked task that had not
begun); queue ``1 + crc32(name) % 1023`` belongs to a name, so all of a name are read in order without reading the rest.
Properties: `task` (the name), `content_type` and `content_encoding` of the body. Nothing is ever overwritten: a reader
folds.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable
from typing import TYPE_CHECKING
from urllib.parse import quote, unquote
from uuid import UUID

from celery import states

from cystore import Message
from cystore.celery.stores import RESULTS_TOPIC, compacts_results

if TYPE_CHECKING:
    from cystore import MessageStore

RESULTS, GROUPS, CHORDS = RESULTS_TOPIC, "celery_groups", "celery_chords"
TOPICS = (RESULTS, GROUPS, CHORDS)
FORGET, SAVED = "FORGET", "SAVED"
# property of a state that came from another host after its successor: only the history shows it
LATE = "late"
# In a store that compacts results, the ends of a task have further keys: its key with a suffix that no id has.
SUCCEEDED, ENDED = "%SUCCESS", "%END"
NAMED_QUEUES = 1023
FIRST_LOOK = 32  # records of one id; nearly all have two

# Blanks separate stored keys, and two control characters separate properties; % begins an escape.
_UNSAFE = frozenset(" %\x01\x02")
_SAFE_ASCII = "".join(c for c in map(chr, range(33, 127)) if c not in _UNSAFE)


def key_of(task_id: str | UUID) -> str:
    """The key of a task's (or group's) records: its id, percent-encoded if necessary."""
    text = str(task_id)
    if not text:
        raise ValueError("a task id must not be empty")
    return text if _UNSAFE.isdisjoint(text) else quote(text, safe=_SAFE_ASCII)


def id_of(key: str) -> str:
    """The id that a key stands for."""
    return unquote(key) if "%" in key else key


def queue_of(name: str | None) -> int:
    """The queue of `celery_results` that holds the transitions of tasks of a name."""
    return 1 + zlib.crc32(name.encode()) % NAMED_QUEUES if name else 0


def is_tombstone(message: Message) -> bool:
    """True for the record of a `forget`: no other result or group has an empty body."""
    return len(message.body) == 0


def fold(records: Iterable[Message]) -> Message | None:
    """The valid record among an id's records, given newest first; None if there is none since the last forget.

    The newest record is valid, except that a SUCCESS stays: if the broker redelivers the task after its worker was
    lost, the duplicate's later states change nothing. Of two successes the first one counts, because a client may have
    read it already.
    """
    newest = success = None
    for record in records:
        if is_tombstone(record):
            break
        if record.properties.get(LATE):
            continue
        newest = newest or record
        if record.tags == states.SUCCESS:
            success = record
    return success or newest


def compaction_keys(key: str, tag: str) -> tuple[str, ...]:
    """The keys of a record in a store that compacts results, so that compaction keeps each record that `fold` may
    choose: the newest one, and also the newest success and the newest other end. Forgetting ends all of them."""
    ends = {states.SUCCESS: key + SUCCEEDED, FORGET: key + SUCCEEDED}
    others = {**dict.fromkeys(states.READY_STATES, key + ENDED), states.SUCCESS: "", FORGET: key + ENDED}
    return tuple(name for name in (key, ends.get(tag, ""), others.get(tag, "")) if name)


def compacted_of(store: MessageStore, topic: str, key: str, known: list[Message]) -> list[Message]:
    """The records of an id that compaction keeps and that are not among the `known` ones of the log, newest first."""
    if topic != RESULTS or not compacts_results(store) or any(
        is_tombstone(record) or record.tags == states.SUCCESS for record in known
    ):  # fmt: skip
        return []
    looked = (store.latest(topic, name) for name in (key, key + ENDED, key + SUCCEEDED))
    found = {record.physical_offset: record for record in looked if record is not None}
    offsets = sorted(set(found) - {record.physical_offset for record in known}, key=int, reverse=True)
    return [found[offset] for offset in offsets]


def records_of(store: MessageStore, topic: str, key: str, *, to_tombstone: bool = True) -> list[Message]:
    """The records of an id, newest first: all, or at least those down to its last tombstone."""
    count = FIRST_LOOK
    while True:
        found = store.query(topic, key, count)
        if len(found) < count or (to_tombstone and any(map(is_tombstone, found))):
            return [*found, *compacted_of(store, topic, key, found)]
        count *= 16


def records_of_many(store: MessageStore, topic: str, keys: Iterable[str]) -> dict[str, list[Message]]:
    """`records_of` for each key, with one look at the store for nearly all of them."""
    looked = store.query_many(topic, keys, FIRST_LOOK)
    return {
        key: [*found, *compacted_of(store, topic, key, found)]
        if len(found) < FIRST_LOOK or any(map(is_tombstone, found))
        else records_of(store, topic, key)
        for key, found in looked.items()
    }
