"""The facts of the log about the end of a transaction, beside the notes of ends.

A note (op message) is one record, and it may be damaged, or its topic may have been deleted by an earlier version. The
log has more facts: a committed message names its half message in `prepared_transaction_offset`, a half message that was
put back has one more check, and a discarded one stands in its topic. The index finds each by the transaction's id. Only
a rollback leaves nothing but its note.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from cystore._native.lookup.key_reader import QueryResult
from cystore._native.memory.control import WROTE
from cystore._native.record.message import Message
from cystore.attachment.attachment import Attachment
from cystore.errors import CorruptRecordError, OffsetError
from cystore.layout import DISCARDED_TOPIC, HALF_TOPIC, OP_TOPIC, SCHEDULE_TOPIC
from cystore.transactions.half import HalfMessage, checks_of, ended_offset

COUNT_MAX = (1 << 31) - 1
FOREVER = (1 << 62) - 1
DAMAGED_NOTE = "the note of its end cannot be read, and no committed message of it is in the log"
LOST_NOTE = "notes of ends from its time are lost, so nobody knows whether it was rolled back"


class MissingNotes(NamedTuple):
    """Notes [begin, end) of the queue of notes that cannot be read. `place`: the physical offset of a damaged one,
    None for a hole or a removed part. `until`: that of the next note that can be read."""

    begin: int
    end: int
    place: int | None = None
    until: int = FOREVER


class Verdict(NamedTuple):
    """`is_ended`: the log says that the transaction is ended. `doubt`: why nobody knows that, or "". `places`: physical
    offsets of the unreadable notes that the index names for the transaction."""

    is_ended: bool
    doubt: str = ""
    places: frozenset[int] = frozenset()


class LogFacts:
    """Judges half messages without a note that can be read."""

    def __init__(self, parts: Attachment) -> None:
        self._parts = parts

    def judge(self, half: HalfMessage, stored_checks: int) -> Verdict:
        """The verdict of the index and the log on a half message that has had so many checks."""
        notes = self._query(OP_TOPIC, half)
        places = frozenset(error.offset for error in notes.damaged if error.offset is not None)
        if any(ended_offset(note) == half.queue_offset for note in notes):
            return Verdict(True, places=places)
        messages = self._query(half.topic, half)
        waiting = self._query(SCHEDULE_TOPIC, half)  # committed, and delivered at its time
        if any(one.prepared_transaction_offset == half.physical_offset for one in [*messages, *waiting]):
            return Verdict(True, places=places)
        if self._query(DISCARDED_TOPIC, half):
            return Verdict(True, places=places)
        for copy in self._query(HALF_TOPIC, half):
            if copy.queue_offset > half.queue_offset and checks_of(copy) > stored_checks:
                return Verdict(True, places=places)
        return Verdict(
            False, DAMAGED_NOTE if notes.damaged or messages.damaged or waiting.damaged else "", places
        )

    def _query(self, topic: str, half: HalfMessage) -> QueryResult:
        if half.id.startswith("half-"):  # no unique key, so the index has nothing of it
            return QueryResult()
        found = self._parts.reader.query(topic, half.id, COUNT_MAX, with_expired=True, read_end=WROTE)
        own = [message for message in found if half.id in (message.unique_key, *message.keys)]
        return QueryResult(own, found.damaged)

    def unknown_until(self, missing: Iterable[MissingNotes], attributed: frozenset[int]) -> int:
        """The physical offset below which a note may be among the missing ones that belong to no known transaction; 0:
        there is none."""
        ends, holes, hole_ends = [0], 0, [0]
        for part in missing:
            if part.place is not None:
                ends.append(0 if part.place in attributed else part.place)
                continue
            lost = self.lost(part)
            holes += lost
            if lost:
                hole_ends.append(part.until)
        places = {part.place for part in missing}
        return max(ends + hole_ends if holes > len(attributed - places) else ends)

    def lost(self, part: MissingNotes) -> int:
        """The number of notes of a part that damage took. Those below the queue's minimum were cleaned with their half
        messages, or removed, unless recovery gave their queue offsets up."""
        minimum = self._queue_minimum()
        count = max(part.end - max(part.begin, minimum), 0)
        for row in self._parts.manifest.snapshot().given_up:
            if (row.topic, row.queue_id) == (OP_TOPIC, 0):
                count += max(min(row.end, part.end, minimum) - max(row.begin, part.begin), 0)
        return count

    def removed_until(self, missing: Iterable[MissingNotes]) -> int:
        """The physical offset below which notes were removed with their topic; 0: none was."""
        minimum = self._queue_minimum()
        if not any(part.place is None and part.begin < minimum for part in missing):
            return 0
        return self._parts.manifest.snapshot().removed.physical_end((OP_TOPIC, 0))

    def _queue_minimum(self) -> int:
        slot = self._parts.control.find_queue(OP_TOPIC, 0)
        return self._parts.control.queue_minimum(slot) if slot >= 0 else 0

    def index_has_all_notes(self, half: HalfMessage) -> bool:
        """Whether the index names every later note of this half message. RocketMQ's notes have no key, but RocketMQ
        cannot open a log with records in cystore's format."""
        stored = self.read(half)
        return (
            self._parts.config.message_index_enable
            and stored is not None
            and stored.record_format == "cystore"
            and stored.unique_key is not None
        )

    def read(self, half: HalfMessage) -> Message | None:
        """The stored half message; None if it cannot be read."""
        try:
            return self._parts.commit_log.read(half.physical_offset)
        except (OffsetError, CorruptRecordError):
            return None
