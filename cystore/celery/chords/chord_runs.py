"""The runs of a chord, folded from its records. Neither their order nor repeated reading changes the result.

Topic `celery_chords`; keys: the group id, and the run, an id that each application of a chord gets anew (a frozen
chord that is applied again has the same group and task ids). Only a `PART` (the result, as Celery encoded it) and an
`OPEN` (the body's signature and the shape of the header) have a body.

| tag | queue | is | properties |
|---|---|---|---|
| `OPEN` | 0 | a run began, before its header was sent | |
| `SIZE` | 0 | how many parts it has; put before the last header task is sent | `size` |
| `ADDED` | 0 | one part more (`add_to_chord`) | `task_id` |
| `PART` | 1 to 15 | a header task ended; in one append with its result | `task_id`, `index`, `state`, `added` |
| `CLAIM` | 0 | a worker is about to send the body | `claim`, `lives_ms` |
| `DONE` | 0 | the body was sent, or the chord failed | `claim`, `outcome` |

All have the property `run`. A run is complete when there are as many *distinct* parts (task id and index) as `SIZE` and
the `ADDED` records say; of two parts of one task a SUCCESS counts. The first claim in log order holds, until `lives_ms`
after its store timestamp. The log is the truth; a `Table` is one process's memory of it.
"""

from __future__ import annotations

import re
import threading
import zlib
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import field
from typing import TYPE_CHECKING, Any, NamedTuple

from celery import states

from cystore import Message
from cystore.celery.base import records
from cystore.celery.base.records import CHORDS
from cystore.value_class import value_class

if TYPE_CHECKING:
    from cystore import MessageStore

OPEN, SIZE, ADDED, PART, CLAIM, DONE = "OPEN", "SIZE", "ADDED", "PART", "CLAIM", "DONE"
PART_QUEUES = 15
RUNS_KEPT = 1_000  # folded runs in memory
RUN_ID = re.compile(r"[0-9a-f]{32}")
ENCODING = ("content_type", "content_encoding")
# Kind of a step: the properties that it must have, and those that it may have.
STEPS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    OPEN: ((), (*ENCODING, "cipher")),
    SIZE: (("size",), ()),
    ADDED: (("task_id",), ()),
    PART: (("task_id", "state", *ENCODING), ("index", "added")),
    CLAIM: (("claim", "lives_ms"), ()),
    DONE: (("claim", "outcome"), ()),
}
NUMBERS = ("size", "index", "lives_ms")


def queue_of(run_id: str, group_id: str) -> int:
    """The queue with the parts of a run."""
    return 1 + zlib.crc32((run_id or group_id).encode()) % PART_QUEUES


def check_step(one: Mapping[str, Any]) -> None:
    """Raises MessageIllegalError unless a record from the broker is a step of a chord; `records.check_sent` has checked
    what all records have in common."""
    kind, keys, properties = one["tags"], tuple(one["keys"]), one["properties"]
    if kind not in STEPS:
        raise records.illegal("tags", f"must be one of {', '.join(STEPS)}, not {kind!r}")
    run_id = properties.get("run", "")
    if keys != ((keys[0], run_id) if run_id else (keys[0],)) or (run_id and not RUN_ID.fullmatch(run_id)):
        raise records.illegal("keys", "must be those of one group and one run")
    needed, optional = STEPS[kind]
    for name in needed:
        if name not in properties:
            raise records.illegal(f"properties: {name}", f"is missing in {kind}")
    unknown = properties.keys() - {*needed, *optional, "run", records.SENT_MS}
    if unknown:
        raise records.illegal("properties", f"{', '.join(sorted(unknown))!r} is not known in {kind}")
    for name in NUMBERS:
        if not records.is_number(properties.get(name, "0")):
            raise records.illegal(f"properties: {name}", "must be a number")
    if one["body"] and (kind not in (OPEN, PART) or any(name not in properties for name in ENCODING)):
        raise records.illegal("body", f"does not belong to {kind} with these properties")
    queue_id = queue_of(run_id, records.id_of(keys[0])) if kind == PART else 0
    if one["queue_id"] != queue_id:
        raise records.illegal("queue_id", f"must be {queue_id}, not {one['queue_id']}")


class Claim(NamedTuple):
    """The right to send a body, until a time in ms."""

    token: str
    until_ms: int
    physical_offset: int


@value_class
class Run:
    """The state of one run by its records. Neither their order nor repeated reading changes it."""

    group_id: str
    run_id: str
    opened_at: int | None = None  # physical offset of OPEN
    size: int | None = None
    parts: dict[tuple[str, str], tuple[int, str]] = field(
        default_factory=dict
    )  # (offset, state) by (id, index)
    added: set[str] = field(default_factory=set)
    claim: Claim | None = None
    done_at: int | None = None

    @property
    def done(self) -> bool:
        """True once the body was sent, or the chord failed."""
        return self.done_at is not None

    @property
    def complete(self) -> bool:
        """True when every part is there."""
        return self.size is not None and len(self.parts) >= self.size + len(self.added)

    def is_claimed(self, now_ms: int) -> bool:
        """True while a claim to send the body holds."""
        return self.claim is not None and now_ms < self.claim.until_ms

    def apply(self, message: Message) -> None:
        """Takes in one of the run's records."""
        kind, properties, offset = message.tags, message.properties, message.physical_offset
        if kind == PART:
            self._part(properties, offset)
        elif kind == ADDED:
            self.added.add(properties["task_id"])
        elif kind == OPEN:
            self.opened_at = offset
        elif kind == SIZE:
            if not self.run_id and self.done_at is not None and offset > self.done_at:
                self.parts, self.added, self.claim, self.done_at = {}, set(), None, None
            self.size = int(properties["size"])
        elif kind == DONE:
            self.done_at = max(offset, self.done_at or 0)
        elif kind == CLAIM:
            begins = message.store_timestamp_ms
            if self.claim is None or (offset > self.claim.physical_offset and begins >= self.claim.until_ms):
                self.claim = Claim(properties["claim"], begins + int(properties["lives_ms"]), offset)

    def _part(self, properties: Mapping[str, str], offset: int) -> None:
        if properties.get(records.LATE):
            return
        self.added.update(properties.get("added", "").split())
        which = (properties["task_id"], properties.get("index", ""))
        before, state = self.parts.get(which), properties["state"]
        if before is not None and before[0] != offset:
            # Of duplicates the first success counts, else the first one.
            successes = (before[1] == states.SUCCESS, state == states.SUCCESS)
            if successes == (True, False) or (successes[0] == successes[1] and before[0] < offset):
                return
        self.parts[which] = (offset, state)


def read_run(store: MessageStore, group_id: str, run_id: str) -> Run:
    """Reads a run from the log."""
    run, key = Run(group_id, run_id), records.key_of(group_id)
    found = records.records_of(store, CHORDS, run_id or key, to_tombstone=False)
    for message in reversed(found):
        if key in message.keys and message.properties.get("run", "") == run_id:
            run.apply(message)
    return run


class Table:
    """The runs that this process works on. The table follows their queues to stay up to date."""

    FAR_BEHIND = 2_000  # unread records of a queue; reading runs by key is then cheaper

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._runs: OrderedDict[tuple[str, str], Run] = OrderedDict()
        self._next: dict[int, int] = {}

    def look(self, store: MessageStore, group_id: str, run_id: str) -> Run:
        """A run with all its records that were appended before this call."""
        which = (group_id, run_id)
        with self._lock:
            self._follow(store, 0)
            self._follow(store, queue_of(run_id, group_id))
            if which not in self._runs:
                self._runs[which] = _remembered(read_run(store, group_id, run_id))
                while len(self._runs) > RUNS_KEPT:
                    self._runs.popitem(last=False)
            self._runs.move_to_end(which)
            return self._runs[which]

    def may_be_complete(self, store: MessageStore, group_id: str, run_id: str) -> bool:
        """False if the queues have grown too little since the last look to contain the run's last part. Nearly all
        parts then need no look. The worker that appended the last part finds enough growth, so `look` shows it the
        whole run."""
        with self._lock:
            run = self._runs.get((group_id, run_id))
            if run is None or not run_id or run.done:
                return True
            part_queue = queue_of(run_id, group_id)
            grown = store.next_queue_offset(CHORDS, part_queue) - self._next[part_queue]
            if grown > self.FAR_BEHIND // 2:
                return True  # a look keeps the table near the queue's end
            if run.size is None:
                return store.next_queue_offset(CHORDS, 0) > self._next[0]
            return len(run.parts) + grown >= run.size + len(run.added)

    def _follow(self, store: MessageStore, queue_id: int) -> None:
        place = self._next.get(queue_id)
        if place is None:
            # Runs that are read by key from now on have all that is before this place.
            self._next[queue_id] = store.get(CHORDS, queue_id, 0, 1).max_offset
            return
        for messages, end, behind in batches(store, queue_id, place):
            if behind > self.FAR_BEHIND:
                self._runs.clear()
                self._next[queue_id] = end + behind
                return
            for message in messages:
                which = (records.id_of(message.keys[0]), message.properties.get("run", ""))
                run = self._runs.get(which)
                if run is not None:
                    run.apply(message)
                    self._runs[which] = _remembered(run)
            self._next[queue_id] = end


def _remembered(run: Run) -> Run:
    """The part of a run that a table keeps: a finished run needs no more, and a thousand large ones would take much
    memory. A caller of `look` gets the whole run."""
    return Run(run.group_id, run.run_id, done_at=run.done_at) if run.done else run


def batches(store: MessageStore, queue_id: int, place: int) -> Iterator[tuple[list[Message], int, int]]:
    """Messages of a queue from an offset on, their end, and the number of messages behind it."""
    while True:
        got = store.get(CHORDS, queue_id, place, 32)
        if got.next_offset <= place and not got.messages:
            return
        place = got.next_offset
        yield got.messages, place, max(0, got.max_offset - place)
        if place >= got.max_offset:
            return
