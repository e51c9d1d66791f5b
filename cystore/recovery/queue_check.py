"""The result of a walk over the log for each consume queue: its right entries, and the position from which to dispatch
again."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from cystore.derived.files.consume_queue import ENTRY_BYTES
from cystore.derived.files.known_queues import KnownQueues
from cystore.derived.files.offsets import QueueOffsets
from cystore.engine.manifest.given_up_offsets import BELIEVED_GAP, OFFSET_LIMIT, GivenUp, GivenUpRange
from cystore.engine.manifest.removed_queues import Removed
from cystore.recovery.walk.findings import QueueScan
from cystore.recovery.walk.log_pass import Key, LogPass, WalkInput
from cystore.recovery.walk.queue_reader import QueueReader


class QueueFindings(NamedTuple):
    """`dispatch_from`: every record below it has its entry. `earlier`: walk again from there first. `given_up`: queue
    offsets that were handed out and have no record."""

    queues: tuple[QueueScan, ...]
    dispatch_from: int
    earlier: int | None
    given_up: GivenUp


def known_scans(known: KnownQueues) -> tuple[QueueScan, ...]:
    """The queues in the state in which an orderly close left them."""
    file_bytes = known.queue_file_bytes
    limit, only_first, none = file_bytes // ENTRY_BYTES, (0,), ()

    def bases(following: int, minimum: int) -> tuple[int, ...]:
        if following == minimum:
            return none
        if following <= limit:
            return only_first
        return tuple(range(minimum // limit * file_bytes, following * ENTRY_BYTES, file_bytes))

    return tuple(
        QueueScan(topic, queue_id, following, minimum, following, file_bytes, bases(following, minimum))
        for topic, queue_id, following, minimum in known.rows
    )


def take_removed(queues: dict[Key, QueueReader], removed: Removed) -> dict[Key, tuple[Path, ...]]:
    """Drops the queues that have no entry behind their removal from `queues`, and returns their files: a kill came
    before these were unlinked."""
    leftovers = {}
    for key in [key for key in queues if key in removed]:
        reader, end = queues[key], removed.end(key)
        if not (reader.bases and reader.first <= end < reader.limit and reader.entry(end).written):
            leftovers[key] = (*(reader.path(base) for base in reader.bases), *reader.strays)
            del queues[key]
    return leftovers


class QueueCheck:
    """Compares the queues on disk with the records of one walk. `leftovers` are files of removed queues."""

    def __init__(
        self,
        walk_input: WalkInput,
        walked: LogPass,
        saved: QueueOffsets,
        leftovers: Mapping[Key, tuple[Path, ...]],
    ) -> None:
        self._leftovers = leftovers
        self._about, self._walked, self._saved = walk_input, walked, saved
        self._result, self._scanner = walked.result, walked.scanner
        self._begin, self._start = walk_input.reader.begin, walked.result.start
        self._dispatch_from = walked.result.end
        self._earlier: int | None = None
        self._entered_up_to = self._begin  # end of the newest record that has an entry
        lost = [(self._result.end, self._result.lost_end)] if self._result.lost_end > self._result.end else []
        self._given_up: list[GivenUpRange] = []
        self._gone = walk_input.known_damage.ranges() + [(h.begin, h.end) for h in self._result.damage] + lost

    def run(self) -> QueueFindings:
        removed = self._about.removed
        keys = sorted({*self._about.queues, *self._result.slots, *self._saved.next, *removed.keys()})
        found = (
            self._check_walked(key) if key in self._result.slots else self._check_unwalked(key)
            for key in keys
        )
        queues = tuple(
            self._without_removed(queue) if (queue.topic, queue.queue_id) in removed else queue
            for queue in found
            if queue.bases or queue.next or queue.strays
        )
        if self._begin == 0 and any(r.first > removed.end(key) for key, r in self._about.queues.items()):
            # Nothing has expired yet, so each queue begins with 0: the first files of one are missing.
            self._walk_again_from(0)
        if self._entered_up_to < self._start:
            # No record from the start on has an entry: dispatch stopped before the start.
            self._walk_again_from(self._entered_up_to)
        return QueueFindings(queues, self._dispatch_from, self._earlier, self._all_given_up())

    def _without_removed(self, queue: QueueScan) -> QueueScan:
        """A removed queue begins behind its removal. Dispatch had reached the removal's physical end."""
        key = queue.topic, queue.queue_id
        end = self._about.removed.end(key)
        self._entered_up_to = max(self._entered_up_to, self._about.removed.physical_end(key))
        return queue._replace(
            dispatched=max(queue.dispatched, end),
            minimum=max(queue.minimum, end),
            next=max(queue.next, end),
            strays=(*queue.strays, *self._leftovers.get(key, ())),
        )

    def _all_given_up(self) -> GivenUp:
        """The listed offsets, the gaps that the walk accepted, and the offsets that the log lacks but another file
        knows."""
        swallowed = (
            GivenUpRange(*key, max(begin, 0), end)
            for key, ranges in self._result.swallowed.items()
            for begin, end in ranges
            if max(begin, 0) < end
        )
        merged = self._about.given_up.merged([*swallowed, *self._given_up])
        if self._start > self._begin:
            return merged
        firsts = {
            key: first
            for key, slot in self._result.slots.items()
            for first, physical_offset in [self._scanner.queue_first(slot)]
            if physical_offset >= 0 and key not in self._about.removed
        }
        return merged.without_expired(firsts)

    def _next(self, key: Key, known: int, *, messages: bool = True) -> int:
        """The offset of a queue's next message: the highest that any file gives. `known` follows from records and
        entries. `messages`: the log still has messages of the queue, so the gap needs hole entries."""
        told = max(self._saved.next.get(key, 0), self._about.given_up.end(key), self._about.removed.end(key))
        if not known < told < OFFSET_LIMIT or (messages and told - known > BELIEVED_GAP):
            return known
        if (messages or self._begin == 0) and key not in self._about.removed:
            self._given_up.append(GivenUpRange(*key, known, told))
        return told

    def without_log(self) -> QueueFindings:
        """Every queue begins anew, with empty files, at the offset that was saved for it."""
        keys = sorted({*self._about.queues, *self._saved.next, *self._about.removed.keys()})
        queues = tuple(
            QueueScan(*key, offset, offset, offset, 0, strays=self._strays(key))
            for key in keys
            for offset in [self._next(key, 0, messages=False)]
        )
        return QueueFindings(queues, 0, None, self._about.given_up.merged(self._given_up))

    def _strays(self, key: Key) -> tuple[Path, ...]:
        return (*self._all_files(self._about.queues.get(key)), *self._leftovers.get(key, ()))

    def _walk_again_from(self, physical_offset: int) -> None:
        if self._start > self._begin:
            reader = self._about.reader
            base = min(reader.base_of(max(physical_offset, self._begin)), self._start - reader.file_bytes)
            base = max(base, self._begin)
            self._earlier = base if self._earlier is None else min(base, self._earlier)

    # ------------------------------------------------------------------ queues with records in the walk

    def _check_walked(self, key: Key) -> QueueScan:
        slot, scanner = self._result.slots[key], self._scanner
        first_offset, first_physical = scanner.queue_first(slot)
        if first_physical < 0:
            return self._check_unwalked(key)  # its first record ended the walk
        following, missing = scanner.queue_next(slot), scanner.queue_missing(slot)
        sound = self._sound(key, following, missing)
        if sound is not None:
            self._entered_up_to = max(self._entered_up_to, first_physical + 1)
            return sound
        dispatched = following if missing < 0 else min(scanner.queue_entries_limit(slot), following)
        if missing != first_physical:
            self._entered_up_to = max(self._entered_up_to, first_physical + 1)
        reader = self._about.queues.get(key)
        if reader is None or not self._reaches(reader, dispatched):
            self._dispatch_from = min(self._dispatch_from, first_physical)
            strays = self._all_files(reader)
            following = self._next(key, following)
            return QueueScan(
                *key, first_offset, first_offset, following, reader.file_bytes if reader else 0, strays=strays
            )
        if missing >= 0:
            self._dispatch_from = min(self._dispatch_from, missing)
        return self._scan_of(reader, dispatched, following, whole=missing < 0)

    def _sound(self, key: Key, following: int, missing: int) -> QueueScan | None:
        """Fast path for most queues: every record of the walk has its entry, the queue has no other entries, and the
        first one is readable."""
        reader = self._about.queues.get(key)
        if (
            reader is None
            or reader.head is None
            or reader.strays
            or missing >= 0
            or key in self._result.swallowed
        ):
            return None
        if -(-len(reader.head) // ENTRY_BYTES) != following - reader.first:
            return None
        entry = reader.entry(reader.first)
        if entry.hole or entry.physical_offset < self._begin:
            return None
        next_ = self._next(key, following)
        return QueueScan(*key, following, reader.first, next_, reader.file_bytes, bases=reader.bases)

    @staticmethod
    def _reaches(reader: QueueReader, dispatched: int) -> bool:
        """Whether the files hold entries right up to `dispatched`, or begin with it."""
        if not reader.bases or not reader.first <= dispatched <= reader.limit:
            return False
        if dispatched == reader.first:
            return True
        return reader.entry(reader.first).written and reader.entry(dispatched - 1).written

    @staticmethod
    def _all_files(reader: QueueReader | None) -> tuple[Path, ...]:
        return () if reader is None else (*(reader.path(base) for base in reader.bases), *reader.strays)

    def _scan_of(self, reader: QueueReader, dispatched: int, following: int, *, whole: bool) -> QueueScan:
        key = reader.topic, reader.queue_id
        holes = [
            (begin, min(end, dispatched))
            for begin, end in self._result.swallowed.get(key, ())
            if max(begin, reader.first) < min(end, dispatched)
        ]
        if whole and self._about.keep:
            given_up = self._given_up_behind(reader, dispatched)
            if given_up > dispatched:
                holes.append((dispatched, given_up))
                self._given_up.append(GivenUpRange(*key, dispatched, given_up))
                dispatched = given_up
        minimum = reader.first_message(self._begin, dispatched)
        for begin, end in sorted(holes):
            if begin <= minimum < end:
                minimum = reader.next_message(end, dispatched)
        return QueueScan(
            *key,
            dispatched=dispatched,
            minimum=minimum,
            next=self._next(key, max(following, dispatched)),
            file_bytes=reader.file_bytes,
            bases=tuple(reader.bases),
            holes=tuple(h for h in holes if not reader.all_holes(max(h[0], reader.first), h[1])),
            dirty=reader.nonzero_from(dispatched),
            strays=tuple(reader.strays),
        )

    def _given_up_behind(self, reader: QueueReader, number: int) -> int:
        """The queue offset behind the entries from `number` on whose records are lost in damage: their offsets are not
        used again."""
        while number < reader.limit:
            entry = reader.entry(number)
            in_damage = entry.written and any(b <= entry.physical_offset < e for b, e in self._gone)
            if not entry.hole and not in_damage:
                break
            number += 1
        return number

    # --------------------------------------------------------------- queues without records in the walk

    def _check_unwalked(self, key: Key) -> QueueScan:
        reader, saved = self._about.queues.get(key), self._saved.next.get(key, 0)
        told = max(saved, self._about.given_up.end(key))
        if reader is None or not reader.bases:
            minimum = max(self._saved.minimum.get(key, saved), self._about.removed.end(key))
            if minimum < saved and self._saved_counts():
                self._walk_again_from(self._begin)  # the queue had messages, and now it has no entries
            at = self._next(key, 0, messages=False)
            return QueueScan(*key, at, at, at, 0, strays=self._all_files(reader))
        end = reader.below(self._start)
        last = reader.message_before(end)
        self._check_last(key, reader, end, last, saved)
        never_used = end == 0 and self._given_up_behind(reader, end) == end
        if last < 0 and (told > end or never_used):
            # No message is left, or none ever existed: only the count continues.
            at = self._next(key, 0, messages=False)
            return QueueScan(*key, at, at, at, reader.file_bytes, strays=self._all_files(reader))
        return self._scan_of(reader, end, end, whole=True)

    def _saved_counts(self) -> bool:
        """Whether the log still has all records that the saved offsets count."""
        return self._saved.physical_offset <= self._result.end

    def _check_last(self, key: Key, reader: QueueReader, end: int, last: int, saved: int) -> None:
        if last >= 0:
            entry = reader.entry(last)
            if self._walked.entry_is_true(key, last):
                self._entered_up_to = max(self._entered_up_to, entry.physical_offset + entry.size)
            else:
                self._walk_again_from(self._begin)
                return
        at = self._begin if last < 0 else reader.entry(last).physical_offset
        confirmed = self._saved.physical_offset >= self._start and self._saved_counts() and saved == end
        more = end < reader.limit and reader.entry(end).written and self._given_up_behind(reader, end) == end
        if (more and not confirmed) or (saved > end and self._saved_counts()):
            self._walk_again_from(at)
