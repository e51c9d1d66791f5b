"""Reads the events of one store's log once, in its order, over many looks."""

from __future__ import annotations

from collections.abc import Iterator

from cystore import CorruptRecordError, MessageStore, OffsetError, clock
from cystore.celery.base import events
from cystore.celery.base.events import Event

LOOK_EVERY = 256  # messages between two looks at the clock
BACK_BYTES = 64 << 20
BACK_MS = tuple(minutes * 60_000 for minutes in (1440, 720, 360, 180, 60, 30, 10, 1))


class EventReader:
    """Begins at the end of the log, after a look back over the last day, or over the last `BACK_BYTES`; or with
    `from_oldest` at its oldest message. If another store appears at
    the path, it begins again there."""

    def __init__(self, *, from_oldest: bool) -> None:
        self.at = self.begins_at = 0  # events before `begins_at` are of the look back
        self.skipped, self.is_damaged = 0, False
        self.caught_up = False
        self._from_oldest = from_oldest
        self._followed = -1  # of the store, when its log was begun

    def begin(self, store: MessageStore, end: int) -> bool:
        """Looks which log is there; True if it is another one than at the last look."""
        is_other = self._followed != store.followed
        if is_other:
            self.caught_up = False
            if self._from_oldest:
                self.at, self.begins_at = first_offset(store), 0
            else:
                self.at, self.begins_at = _back(store, end), end
            self._followed = store.followed
        self.at = min(self.at, end)  # the log of a replica may be cut
        return is_other

    def read(self, store: MessageStore, end: int, look_s: float) -> Iterator[Event]:
        """The events from here to `end`, for `look_s` at most. Call `begin` before. Raises StoreError."""
        first, until_s = first_offset(store), clock.monotonic_s() + look_s
        if self.at < first:  # cleaned before it was read
            self.skipped += first - max(self.at, min(self.begins_at, first))
            self.at = first
        self.is_damaged = False
        try:
            for number, message in enumerate(store.scan(self.at, end), 1):
                self.at = message.physical_offset
                following = message.physical_offset + message.size_bytes
                if message.topic == events.EVENTS:
                    yield Event.of(message)
                self.at = following
                if number % LOOK_EVERY == 0 and clock.monotonic_s() >= until_s:
                    return
        except CorruptRecordError:
            self.is_damaged = True  # a writer finds it, too, and notes its end: then the scan steps over it
        except OffsetError:
            if self.at >= first_offset(store):
                raise
            # cleaned meanwhile: the next look continues behind
        else:
            self.at, self.caught_up = end, True


def first_offset(store: MessageStore) -> int:
    """Where the log begins."""
    return int(store.stats()["min_physical_offset"])


def _back(store: MessageStore, end: int) -> int:
    """Where the log of the last day begins, at an event; of a busy store less of it."""
    queues = store.topics().get(events.EVENTS, {})
    found = end
    for age_ms in BACK_MS:
        time_ms, begins = clock.now_ms() - age_ms, [end]
        for queue_id, bounds in queues.items():
            at = store.offset_by_time(events.EVENTS, queue_id, time_ms, boundary="lower")
            if at < bounds.max_offset:
                messages = store.get(events.EVENTS, queue_id, at, 1).messages
                begins += [message.physical_offset for message in messages]
        found = min(begins)
        if end - found <= BACK_BYTES:
            break
    return found
