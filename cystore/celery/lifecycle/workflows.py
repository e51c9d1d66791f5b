"""A workflow as a tree: which task sent which, with groups and chords, for people who look for waits.

The number of wanted tasks bounds the memory. A task with an unknown parent, or with parents in a circle (crafted
records), is a root of its own.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any

from celery import states
from kombu.exceptions import DecodeError
from kombu.serialization import loads

from cystore import Message
from cystore.celery import history
from cystore.celery.base import events, reading, records
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Source
from cystore.celery.chords import chord_bodies, chord_runs
from cystore.celery.history import Transition
from cystore.celery.lifecycle.task_lives import Life, any_record, life_of, text_of
from cystore.celery.versions import decompress_payload

ANCESTORS_MOST = 1000
CHORD_RECORDS = 10_000  # the most records that are read of one group
CHORDS_MOST = 100
CAUSES_MOST = 100
LifeAt = Callable[[str], Life | None]


@dataclass(slots=True)
class Chord:
    """The log's facts about a chord, summed up over the runs of its group. `parts` are the header tasks that ended."""

    group_id: str
    parts: int = 0
    size: int | None = None
    last_part_ms: int | None = None
    claimed_ms: int | None = None
    done_ms: int | None = None
    outcome: str | None = None
    has_more: bool = False  # the group has more records than were read
    body_id: str | None = None
    body_name: str | None = None


@dataclass(slots=True)
class Workflow:
    """Tasks in the order of the tree, each with its depth; `more` says that there are more tasks than wanted."""

    root_id: str
    tasks: list[tuple[int, Life]] = field(default_factory=list)
    chords: list[Chord] = field(default_factory=list)
    more: bool = False
    causes: list[Life] = field(default_factory=list)  # why the given task did not run, the root cause last


def workflow_of(
    store: Source, life: Life, limit: int, is_valid: Callable[[Message], bool] = any_record
) -> Workflow:
    """The workflow of a task: the task, its ancestors, the newest others, and the other parts of their chords; at most
    `limit` tasks. `is_valid` says whether a result has not expired."""

    def life_at(task_id: str) -> Life | None:
        return life_of(store, task_id, is_valid)

    found = {life.task_id: life}
    causes = causes_of(store, life, is_valid)
    found |= {one.task_id: one for one in causes}
    root_id = life.root_id or life.task_id
    if (
        causes and root_id == life.task_id
    ):  # its result alone is known: the workflow is that of the task that failed
        root_id = causes[-1].root_id or causes[-1].task_id
    _add_ancestors(life_at, life, found, limit)
    more = _add_relatives(store, life_at, root_id, found, limit)
    groups = dict.fromkeys(one.group_id for one in found.values() if one.group_id)
    chords = [chord for group in islice(groups, CHORDS_MOST) if (chord := chord_of(store, group)) is not None]
    _add_bodies(life_at, chords, found)
    return Workflow(root_id, list(_ordered(found, root_id)), chords, more, causes)


def causes_of(store: Source, life: Life, is_valid: Callable[[Message], bool] = any_record) -> list[Life]:
    """The tasks whose failures kept a task from running: each because of the next one, the root cause last."""
    causes: list[Life] = []
    seen, above = {life.task_id}, life.cause
    while above and above not in seen and len(causes) < CAUSES_MOST:
        seen.add(above)
        cause = life_of(store, above, is_valid)
        if cause is None:
            break
        causes.append(cause)
        above = cause.cause
    return causes


@dataclass(slots=True)
class Explained:
    """A task, with the name that its chord knows if the log does not; and why it did not run, the root cause last."""

    life: Life
    causes: list[Life]


def explained(store: Source, life: Life, is_valid: Callable[[Message], bool] = any_record) -> Explained:
    """Why a task did not run. Without causes it ran, or the log does not say."""
    causes = causes_of(store, life, is_valid)
    if life.name is None and causes and causes[0].group_id:
        chord = chord_of(store, causes[0].group_id)
        if chord is not None and chord.body_id == life.task_id:
            life.name = chord.body_name
    return Explained(life, causes)


def failures_of(store: Source, found: Explained, **conditions: Any) -> Iterator[Event | Transition]:
    """The failures of a task, newest first, then those of each of its causes. Of a task without events its results."""
    ends = (*events.FAILURES, events.SKIPPED)
    for life in (found.life, *found.causes):
        entries = history.entries(
            store, task_id=life.task_id, states=(*ends, *states.PROPAGATE_STATES), **conditions
        )
        failed = [one for one in entries if not (isinstance(one, Event) and one.details.get("requeue"))]
        has_events = any(isinstance(one, Event) for one in failed)
        for one in failed:
            if isinstance(one, Event):
                yield one
            elif not has_events and not one.late:
                yield one if one.name else replace(one, name=life.name)


def _add_bodies(life_at: LifeAt, chords: list[Chord], found: dict[str, Life]) -> None:
    """Adds the bodies of chords, which may have a result alone, and names them."""
    for chord in chords:
        if not chord.body_id:
            continue
        body = found.get(chord.body_id) or life_at(chord.body_id)
        if body is not None:
            body.name = body.name or chord.body_name
            found[chord.body_id] = body


def _add_ancestors(life_at: LifeAt, life: Life, found: dict[str, Life], limit: int) -> None:
    above = life.parent_id
    while above and above not in found and len(found) < min(limit, ANCESTORS_MOST):
        parent = life_at(above)
        if parent is None:
            return
        found[above] = parent
        above = parent.parent_id


def _add_relatives(store: Source, life_at: LifeAt, root_id: str, found: dict[str, Life], limit: int) -> bool:
    """Adds the tasks below the root, then the other parts of their chords and the tasks below these: a program that
    sends a chord gives each part a root of its own. Gives whether there are more."""
    links: dict[tuple[str, str], None] = {("root", root_id): None}
    for one in found.values():
        links |= dict.fromkeys(_links(store, one))
    waiting = deque(links)
    while waiting:
        for task_id in _ids(store, *waiting.popleft()):
            if task_id in found:
                continue
            if len(found) >= limit:
                return True
            other = life_at(task_id)
            if other is None:
                continue
            found[task_id] = other
            new = [link for link in _links(store, other) if link not in links]
            links |= dict.fromkeys(new)
            waiting += new
    return False


def _links(store: Source, life: Life) -> list[tuple[str, str]]:
    """The root of a task, and the group if that is the header of a chord: other tasks may have the same."""
    found = [("root", life.root_id or life.task_id)]
    if life.group_id:
        steps = reading.of_key(store, records.CHORDS, records.key_of(life.group_id))
        if next(iter(steps), None) is not None:
            found.append(("group", life.group_id))
    return found


def _ids(store: Source, kind: str, number: str) -> Iterator[str]:
    if kind == "root":
        yield number
        found = history.events(store, root_id=number)
    else:
        found = history.events(store, group_id=number)
    yield from (event.task_id for event in found if event.task_id)


def _ordered(found: dict[str, Life], root_id: str) -> Iterator[tuple[int, Life]]:
    """Tasks with their depth, parents before children, children by the time of their first sign."""
    children: dict[str | None, list[Life]] = {}
    tops: list[Life] = []
    for life in found.values():
        above = life.parent_id or life.cause
        has_parent = above in found and above != life.task_id and life.task_id != root_id
        (children.setdefault(above, []) if has_parent else tops).append(life)
    tops.sort(key=lambda one: (one.task_id != root_id, _order(one)))
    seen: set[str] = set()
    # Tasks in circles come last; each circle is opened somewhere.
    for top in (*tops, *found.values()):
        waiting = [(0, top)]
        while waiting:
            depth, life = waiting.pop()
            if life.task_id in seen:
                continue
            seen.add(life.task_id)
            yield depth, life
            below = sorted(children.get(life.task_id, ()), key=_order, reverse=True)
            waiting += [(depth + 1, child) for child in below]


def _order(life: Life) -> tuple[int, str]:
    return life.first_ms or 0, life.task_id


def chord_of(store: Source, group_id: str) -> Chord | None:
    """The chord of a group; None for a group that is not a header."""
    chord, read = Chord(group_id), 0
    parts: set[tuple[str | None, ...]] = set()
    added: set[str] = set()
    for message in islice(reading.of_key(store, records.CHORDS, records.key_of(group_id)), CHORD_RECORDS):
        read += 1
        details, time_ms, kind = message.properties, message.store_timestamp_ms, message.tags
        if kind == chord_runs.PART:
            parts.add((details.get("run", ""), details.get("task_id"), details.get("index", "")))
            added.update(details.get("added", "").split())
            chord.last_part_ms = max(chord.last_part_ms or 0, time_ms)
        elif kind == chord_runs.ADDED:
            added.add(details.get("task_id", ""))
        elif kind == chord_runs.OPEN and chord.body_id is None:
            chord.body_id, chord.body_name = _body_of(message)
        elif kind == chord_runs.SIZE:
            size = details.get("size", "")
            known = int(size) if size.isascii() and size.isdecimal() and len(size) < 12 else 0
            chord.size = (chord.size or 0) + known
        elif kind == chord_runs.CLAIM:
            chord.claimed_ms = time_ms  # the oldest one in the end: newest come first
        elif kind == chord_runs.DONE:
            chord.done_ms = chord.done_ms or time_ms
            chord.outcome = chord.outcome or details.get("outcome")
    chord.parts, chord.has_more = len(parts), read == CHORD_RECORDS
    if chord.size is not None:
        chord.size += len(added)
    return chord if read else None


def _body_of(message: Message) -> tuple[str | None, str | None]:
    """The id and the name of a chord's body, if its record is JSON that anybody may read."""
    details = message.properties
    if details.get("content_type") != history.JSON or chord_bodies.PROPERTY in details:
        return None, None
    try:
        content = loads(decompress_payload(bytes(message.body)), history.JSON, "utf-8", accept={history.JSON})
        body = content["body"]
        return text_of(body["options"], "task_id"), text_of(body, "task")
    except (DecodeError, LookupError, TypeError, AttributeError):  # a crafted record
        return None, None
