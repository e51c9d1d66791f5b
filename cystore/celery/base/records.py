"""The form of results in the store: the one place that knows topics, queues, keys, tags and properties.

| topic | a record is | key | tag | body |
|---|---|---|---|---|
| `celery_results` | one transition of one task | task id | the state | the result's meta, as Celery encoded it |
| `celery_groups` | a saved group | group id | `SAVED` | the group as a tuple, encoded likewise |
| both | a tombstone: forgotten from here | the id | `FORGET` | empty |
| `celery_chords` | a step of a chord | group id, run | the step: see `chord_runs` | part's result, body's signature |

Queue 0 of `celery_results` is for transitions without a known task name (a tombstone, a revoked task that had not
begun); queue ``1 + crc32(name) % 1023`` belongs to a name, so all of a name are read in order without reading the rest.
Properties: `task` (the name: see `kept_name`), `content_type` and `content_encoding` of the body. Nothing is ever
overwritten: a reader folds.
"""

from __future__ import annotations

import base64
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote
from uuid import UUID

from celery import states

from cystore import Message, MessageIllegalError
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
CLAIM = "cystore_claim"  # property of a message that a worker got from the broker in a store: who has it, and where
SENT_MS = "sent_ms"  # property of a record from the broker: its time by the sender's clock
# A record in a message: each field, its type, and the properties that it may have. A new property needs workers that
# know it at home first.
SENT_FIELDS: dict[str, Any] = {
    "topic": str,
    "body": str,
    "queue_id": int,
    "keys": (list, tuple),
    "tags": str,
    "properties": dict,
    "unique_key": str,
}
SENT_PROPERTIES = frozenset(("task", "content_type", "content_encoding", "EXPIRES_AT_MS", SENT_MS))
NUMBER_CHARS_MOST = 15  # of a time in ms, or a count

# Blanks separate stored keys, and two control characters separate properties; % begins an escape.
_UNSAFE = frozenset(" %\x01\x02")
_UNSAFE_IN_NAMES = re.compile("[\x01\x02\ud800-\udfff]")
_DEPENDENCY = re.compile(r"Dependency (\S+) raised ")  # the text of Celery's ChordError
NAME_CHARS_MOST = 2048  # of a name in a record: all properties together have 32 KiB
NAMES_KEPT = 10_000
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


@lru_cache(maxsize=NAMES_KEPT)
def kept_name(name: str) -> str:
    """A task's name as records have it: what no property can hold is escaped as Python escapes it (``\\x01``), and a
    very long name is cut. A task of any name so has its states stored."""
    return _UNSAFE_IN_NAMES.sub(lambda found: ascii(found[0])[1:-1], name)[:NAME_CHARS_MOST]


@lru_cache(maxsize=NAMES_KEPT)
def queue_of(name: str | None) -> int:
    """The queue of `celery_results` that holds the transitions of tasks of a name."""
    return 1 + zlib.crc32(kept_name(name).encode()) % NAMED_QUEUES if name else 0


def cause_in(error: object) -> str | None:
    """The id of the failed part in the text of a ChordError; None in any other text."""
    found = _DEPENDENCY.match(str(error))
    return found[1] if found else None


def illegal(field: str, why: str) -> MessageIllegalError:
    """The error for a record from the broker that is none."""
    return MessageIllegalError(f"a record from the broker: {field}: {why}; nothing of its message is stored")


def check_sent(one: Any, unique_key: str) -> None:
    """Raises MessageIllegalError unless a record from the broker has the form that a worker sends; that of a chord's
    step is checked by `chord_runs.check_step` as well."""
    if not isinstance(one, dict) or one.keys() != SENT_FIELDS.keys():
        raise illegal("fields", f"must be {', '.join(SENT_FIELDS)}")
    for name, kind in SENT_FIELDS.items():
        if not isinstance(one[name], kind) or isinstance(one[name], bool):
            raise illegal(name, f"must not be of the type {type(one[name]).__name__}")
    for name in ("keys", "properties"):
        values = [*one[name], *one[name].values()] if name == "properties" else one[name]
        if not all(isinstance(value, str) and _is_text(value) for value in values):
            raise illegal(name, "must be texts")
    if one["topic"] not in TOPICS:
        raise illegal("topic", f"must be one of {', '.join(TOPICS)}, not {one['topic']!r}")
    if one["unique_key"] != unique_key:
        raise illegal("unique_key", f"must be {unique_key}")
    if not is_number(one["properties"].get(SENT_MS)):
        raise illegal(f"properties: {SENT_MS}", "must be a time in ms")
    if not one["keys"] or not _is_key(one["keys"][0]):
        raise illegal("keys", "the first one must be that of an id")
    try:
        base64.b64decode(one["body"], validate=True)
    except ValueError as error:
        raise illegal("body", f"must be base64: {error}") from None
    if one["topic"] != CHORDS:
        _check_state(one)


def _check_state(one: Mapping[str, Any]) -> None:
    """The form of a task's state, of a saved group, and of a tombstone."""
    key, tag, properties = one["keys"][0], one["tags"], one["properties"]
    if not tag.isprintable() or bool(one["body"]) == (tag in ("", FORGET)):
        raise illegal("tags", f"{tag!r} does not belong to a body of {len(one['body'])} characters")
    if one["topic"] == GROUPS and tag not in (SAVED, FORGET):
        raise illegal("tags", f"must be {SAVED} or {FORGET}, not {tag!r}")
    keys = [(key,)] if one["topic"] == GROUPS else [(key,), compaction_keys(key, tag)]
    if tuple(one["keys"]) not in keys:
        raise illegal("keys", "must be those of one id")
    unknown = properties.keys() - SENT_PROPERTIES
    if unknown:
        raise illegal("properties", f"{', '.join(sorted(unknown))!r} is not known here")
    if not is_number(properties.get("EXPIRES_AT_MS", "0")):
        raise illegal("properties: EXPIRES_AT_MS", "must be a time in ms")
    if one["queue_id"] != queue_of(properties.get("task")):
        raise illegal("queue_id", f"must be {queue_of(properties.get('task'))}, not {one['queue_id']}")


def is_number(text: str | None) -> bool:
    """Whether a property is a count, or a time in ms."""
    return text is not None and text.isascii() and text.isdigit() and len(text) <= NUMBER_CHARS_MOST


def _is_text(text: str) -> bool:
    """Whether a text can be stored: half of a surrogate pair cannot."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_key(key: str) -> bool:
    return bool(key) and key_of(id_of(key)) == key


def is_tombstone(message: Message) -> bool:
    """True for the record of a `forget`: no other result or group has an empty body."""
    return len(message.body) == 0


def fold(
    records: Iterable[Message], is_valid: Callable[[Message], bool] = lambda record: True
) -> Message | None:
    """The record that is the state of an id now, among the id's records, given newest first; None if there is none
    since the last forget. `is_valid` says whether a record has not expired: an expired one is no state, and hides none.

    The newest record is the state, except that a SUCCESS stays: if the broker redelivers the task after its worker was
    lost, the duplicate's later states change nothing. Of two successes the first one counts, because a client may have
    read it already. An expired record still ends the ones before it, a SUCCESS apart: a task whose failure has expired
    is not STARTED again.
    """
    newest = success = None
    for record in records:
        if len(record.body) == 0:  # a tombstone
            break
        if record.properties.get(LATE):
            continue
        newest = newest or record
        if record.tags == states.SUCCESS and is_valid(record):
            success = record
    if success is not None or newest is None:
        return success
    return newest if is_valid(newest) else None


def visible(records: Iterable[Message], is_valid: Callable[[Message], bool]) -> Iterator[Message]:
    """The records of an id that readers see, newest first, given newest first: unexpired ones since the last forget."""
    for record in records:
        if is_tombstone(record):
            return
        if not record.properties.get(LATE) and is_valid(record):
            yield record


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
            if found and found[0].tags == states.SUCCESS:  # nearly always; compaction adds nothing then
                return found
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
