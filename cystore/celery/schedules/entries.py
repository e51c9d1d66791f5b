"""Schedules in the store: their records, a list of them, and what changes one.

A schedule is a message that waits in the topic `celery_beat` until it is due, as one that was put with `deliver_at_ms`:
so the store carries it forward, and it never expires. Its key is the schedule's name, its body a JSON object
(`Entry`). Each change puts a record with a higher `serial` and then withdraws the older one; where a kill comes
between the two, the older one counts for nothing. A schedule that is paused waits far ahead. One that is deleted
leaves a record that says so.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any

from celery import Celery

from cystore import MessageIllegalError, OffsetError
from cystore.celery import homes
from cystore.celery.base import records
from cystore.celery.eta import delivered
from cystore.celery.schedules import due_times
from cystore.celery.schedules.due_times import ScheduleError
from cystore.clock import now_ms
from cystore.layout import SCHEDULE_TOPIC

if TYPE_CHECKING:
    from cystore import Message, MessageStore

TOPIC = "celery_beat"
RUNS = "celery_beat_runs"
SKIP, ONCE, ALL = "skip", "once", "all"  # what becomes of due times that were missed
MISSED = (SKIP, ONCE, ALL)
STORE, CODE = "store", "code"  # who made it: an API call or a command; the app's `beat_schedule`
AGAIN_MS = (
    300 * 86_400_000
)  # a schedule that is paused, or due later than a message may wait, is looked at then


@dataclass(frozen=True)
class Entry:
    """A schedule. `when`: see `due_times`; `due_ms`: its next due time, ms since 1970; `runs`: how often it ran."""

    name: str
    task: str
    when: Mapping[str, Any]
    due_ms: int
    args: list[Any] = field(default_factory=list)
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    missed: str = ONCE
    enabled: bool = True
    source: str = STORE
    serial: int = 1
    runs: int = 0
    deleted: bool = False

    def body(self) -> bytes:
        """The record's body. Raises ScheduleError for arguments that JSON cannot hold."""
        try:
            return json.dumps({"v": 1, **asdict(self)}, separators=(",", ":")).encode()
        except (TypeError, ValueError) as error:
            raise ScheduleError(f"schedule {self.name!r}: JSON cannot hold its arguments: {error}") from error

    @property
    def call(self) -> tuple[Any, ...]:
        """The definition, without its progress."""
        return self.task, self.when, self.args, self.kwargs, self.options, self.missed


FIELDS = {one.name for one in fields(Entry)}


def parse(message: Message) -> Entry:
    """The schedule in a record. Raises ScheduleError."""
    try:
        known = json.loads(bytes(message.body))
        entry = Entry(**{name: known[name] for name in FIELDS & known.keys()})
        if not isinstance(entry.name, str) or type(entry.serial) is not int or type(entry.due_ms) is not int:
            raise TypeError("wrong types")
        if not entry.deleted:
            due_times.shaped(entry.when)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ScheduleError(f"the record at {message.physical_offset} is no schedule: {error}") from error
    return entry


def newest(store: MessageStore, name: str) -> Entry | None:
    """The newest record of a schedule, also one that says it is deleted; None without one."""
    found: list[Entry] = []
    key = records.key_of(name)
    for topic in (SCHEDULE_TOPIC, TOPIC):
        for message in store.query(topic, key):
            if topic == TOPIC or message.properties.get("REAL_TOPIC") == TOPIC:
                with suppress(ScheduleError):
                    found.append(parse(message))
    return max(found, key=lambda entry: entry.serial, default=None)


def get(store: MessageStore, name: str) -> Entry | None:
    """A schedule of that name; None without one."""
    found = newest(store, name)
    return None if found is None or found.deleted else found


def listed(store: MessageStore) -> Iterator[Entry]:
    """The schedules of a store, the next one first."""
    seen: set[str] = set()
    for message in _records(store):
        with suppress(ScheduleError):
            entry = parse(message)
            known = None if entry.name in seen else newest(store, entry.name)
            if known is not None and known.serial == entry.serial and not known.deleted:
                seen.add(entry.name)
                yield entry


def _records(store: MessageStore) -> Iterator[Message]:
    """Schedules that are due and were not run yet, and those that wait."""
    at: int | None = store.groups.offset(TOPIC, TOPIC, delivered.QUEUE_ID) or 0
    while at is not None:
        found = store.get(TOPIC, delivered.QUEUE_ID, at)
        yield from found.messages
        at = found.next_offset if found.next_offset > at else None
    for waiting in store.pending(TOPIC):
        yield waiting.message


def message_of(store: MessageStore, entry: Entry) -> Message:
    """The record of a schedule that waits for its due time, or of one that is deleted."""
    from cystore import Message

    now, most_ms = now_ms(), min(AGAIN_MS, store.settings.timer_max_delay_s * 1000)
    wait_ms = most_ms if not entry.enabled else min(max(entry.due_ms - now, 0), most_ms)
    return Message(
        topic=TOPIC, body=entry.body(), queue_id=delivered.QUEUE_ID, keys=(records.key_of(entry.name),),
        properties={"task": records.kept_name(entry.task)},
        deliver_at_ms=None if entry.deleted or not wait_ms else now + wait_ms,
    )  # fmt: skip


def change(store: MessageStore, entry: Entry) -> Entry:
    """Puts a schedule in the place of what has its name; returns it as it was put. Raises ScheduleError and the errors
    of the store."""
    known = newest(store, entry.name)
    older = [one.physical_offset for one in _waiting(store, entry.name)]
    entry = replace(entry, serial=1 if known is None else known.serial + 1)
    store.put_many([message_of(store, entry)], flush=homes.safe_flush(store, "sync"))
    for at in older:
        with suppress(OffsetError, MessageIllegalError):  # it became due meanwhile, and its serial is older
            store.cancel(physical_offset=at)
    return entry


def _waiting(store: MessageStore, name: str) -> list[Message]:
    found = store.query(SCHEDULE_TOPIC, records.key_of(name))
    return [one for one in found if one.properties.get("REAL_TOPIC") == TOPIC]


def add(
    store: MessageStore, name: str, task: str, when: Mapping[str, Any], *, args: Any = (), kwargs: Any = None,
    options: Any = None, missed: str = ONCE, source: str = STORE,
) -> Entry:  # fmt: skip
    """Makes a schedule, or replaces the one of its name. `when`: see `due_times`. `missed`: what becomes of due times
    at which nobody ran it: "skip", "once" or "all". Raises ScheduleError and the errors of the store."""
    if not isinstance(name, str) or not name or not isinstance(task, str) or not task:
        raise ScheduleError("a schedule has a name and the name of a task, both texts")
    if missed not in MISSED:
        raise ScheduleError(f"missed must be one of {', '.join(MISSED)}, not {missed!r}")
    when = due_times.checked(when)
    now = now_ms()
    due_ms = when["at_ms"] if "at_ms" in when else due_times.next_after(when, now)
    known = get(store, name)
    entry = Entry(
        name, task, when, due_ms or now, list(args), dict(kwargs or {}), dict(options or {}), missed, source=source,
        runs=0 if known is None else known.runs,
    )  # fmt: skip
    return change(store, entry)


def pause(store: MessageStore, name: str) -> bool:
    """Stops a schedule until `resume`; False if there is none."""
    known = get(store, name)
    if known is not None:
        change(store, replace(known, enabled=False))
    return known is not None


def resume(store: MessageStore, name: str) -> bool:
    """Lets a paused schedule run again, from now on: what it missed is over. False if there is none."""
    known = get(store, name)
    if known is None:
        return False
    due_ms = known.due_ms if "at_ms" in known.when else due_times.next_after(known.when, now_ms())
    change(store, replace(known, enabled=True, due_ms=due_ms or known.due_ms))
    return True


def run_now(store: MessageStore, name: str) -> bool:
    """Makes a schedule due now, also a paused one, which runs from then on. False if there is none."""
    known = get(store, name)
    if known is not None:
        change(store, replace(known, due_ms=now_ms(), enabled=True))
    return known is not None


def delete(store: MessageStore, name: str) -> bool:
    """Ends a schedule; False if there is none. Its history stays."""
    known = get(store, name)
    if known is not None:
        change(store, replace(known, deleted=True))
    return known is not None


def merge(app: Celery, store: MessageStore) -> None:
    """Takes over the app's `beat_schedule`: new and changed schedules are put, those that are gone from the code are
    deleted. Schedules that others made stay. Raises ScheduleError."""
    wanted: dict[str, Entry] = {}
    for name, given in (app.conf.beat_schedule or {}).items():
        when = due_times.of_celery(app, given["schedule"])
        wanted[name] = Entry(
            name, given["task"], when, 0, list(given.get("args") or ()), dict(given.get("kwargs") or {}),
            dict(given.get("options") or {}), source=CODE,
        )  # fmt: skip
    for entry in list(listed(store)):
        if entry.source == CODE and entry.name not in wanted:
            delete(store, entry.name)
    for name, entry in wanted.items():
        asked, known = json.loads(entry.body()), get(store, name)
        if known is None or known.source != CODE or known.call != replace(known, **_call(asked)).call:
            add(
                store, name, entry.task, entry.when, args=entry.args, kwargs=entry.kwargs, options=entry.options,
                source=CODE,
            )  # fmt: skip


def _call(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The definition, as JSON keeps it."""
    return {name: fields[name] for name in ("task", "when", "args", "kwargs", "options", "missed")}
