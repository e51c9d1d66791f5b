"""Pages of tasks, newest first, read backwards from the log; a page never loads more than itself.

A task stands where its newest matching entry stands. A cursor names, for each store, the end of the log when the first
page was made and the place up to which the pages before have read. So no page repeats a task or leaves one out, while
new events come. Reading ends with the page, or when its time is over; then the cursor continues, and the page may be
short.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from uuid import UUID

from cystore import Contains, FilterError
from cystore.celery import history
from cystore.celery.base import records
from cystore.celery.base.events import Event
from cystore.celery.base.reading import Passed, Source, Stores
from cystore.celery.history import Transition
from cystore.celery.lifecycle import task_lives, workflows
from cystore.celery.lifecycle.searches import Wanted, part_of
from cystore.clock import monotonic_s
from cystore.web.answers import actions
from cystore.web.answers.open_stores import stores_of
from cystore.web.answers.pages import numbers_of, word_of
from cystore.web.answers.task_rows import KNOWN_STATES, Texts, entry_row, life_row, row_of, tags_of

TIME_S = 2.0  # a page that finds little ends after it
EMPTY_S = 8.0  # and one that finds nothing after this
WORKFLOW_MOST = 500  # tasks of a workflow
LOOK_EVERY = 64  # entries between two looks at the clock

Entry = Event | Transition


@dataclass(frozen=True)
class Asked:
    """The conditions of a list; None stands for any."""

    name: str | None = None
    state: str | None = None
    worker: str | None = None
    begin_ms: int = 0
    end_ms: int | None = None
    text: str | None = None

    def entries(self, source: Source, end_ms: int | None) -> Iterator[Entry | Passed]:
        """The entries among which the tasks are, newest first."""
        conditions: dict[str, Any] = {
            "name": self.name,
            "worker": self.worker,
            "states": () if self.state is None else tags_of(self.state),
            "begin_ms": self.begin_ms,
            "end_ms": end_ms,
        }
        contains = None if self.text is None else part_of(self.text)
        if contains is None:
            return history.entries(source, **conditions)
        return history.search(source, contains, in_events=self._in_events, **conditions)

    def matches(self, entry: Entry) -> bool:
        """Whether a task may stand in the list at this entry."""
        if entry.time_ms < self.begin_ms or (self.end_ms is not None and entry.time_ms > self.end_ms):
            return False
        if self.name is not None and entry.name != self.name:
            return False
        if self.state is not None and entry.state not in tags_of(self.state):
            return False
        if self.worker is not None and not (
            isinstance(entry, Event) and entry.details.get("worker") == self.worker
        ):
            return False
        return self.text is None or self._has_text(entry, self.text)

    @cached_property
    def _as_stored(self) -> bytes:
        """The text as an event's body has it: most bodies need not be decoded."""
        return json.dumps(self.text)[1:-1].encode()

    @cached_property
    def _in_events(self) -> Contains | None:
        """All forms in which an event has the text: in its body, in its name, at the beginning of its id. `contains` of
        results is only the longest word of the text: most tasks may have that."""
        text = self.text or ""
        try:  # an id may be encoded because of what follows in it
            encoded = records.key_of(text + " ").removesuffix("%20")
            return Contains((self._as_stored, text, records.key_of(text), encoded))
        except FilterError:  # a text that UTF-8 cannot encode
            return None

    def _has_text(self, entry: Entry, text: str) -> bool:
        if (entry.task_id or "").startswith(text) or text in (entry.name or ""):
            return True
        if isinstance(entry, Event) and self._as_stored not in bytes(entry._message.body):
            return False
        return Wanted(text, None).has_args(entry) or Wanted(None, text).has_error(entry)

    def accepts(self, row: dict[str, Any]) -> bool:
        """Whether the task, as it is now, meets the conditions."""
        return (
            (self.state is None or self.state in (row["state"], row["event"]))
            and (self.worker is None or row["worker"] == self.worker)
            and (self.name is None or row["name"] == self.name)
        )


@dataclass(frozen=True)
class Cursor:
    """Where a list continues: a time, and for each store the log's end at the first page, and the place of the last
    entry that was read."""

    end_ms: int | None
    marks: tuple[tuple[int, int], ...]

    @classmethod
    def first(cls, source: Source, asked: Asked) -> Cursor:
        """Where a list begins."""
        ends = (store.wrote_position for store in stores_of(source))
        return cls(asked.end_ms, tuple((end, end) for end in ends))

    @classmethod
    def of(cls, text: str, source: Source) -> Cursor:
        """The cursor that `text` made. Raises ValueError."""
        end, *marks = numbers_of(text, 1 + 2 * len(stores_of(source)))
        return cls(end - 1 if end else None, tuple(zip(marks[::2], marks[1::2], strict=True)))

    def text(self) -> str:
        """The cursor as a word of an address."""
        end = 0 if self.end_ms is None else self.end_ms + 1
        return word_of([end, *(number for mark in self.marks for number in mark)])


class _Reader:
    """Reads one page; `before` is the place in each store up to which it has read."""

    def __init__(self, source: Source, asked: Asked, cursor: Cursor, texts: Texts) -> None:
        self._source, self._asked, self._texts = source, asked, texts
        paths = [str(store.path) for store in stores_of(source)] if isinstance(source, Stores) else [""]
        self._ends = {path: mark[0] for path, mark in zip(paths, cursor.marks, strict=True)}
        self._before = {path: mark[1] for path, mark in zip(paths, cursor.marks, strict=True)}
        self._end_ms = cursor.end_ms
        self._met: task_lives.Remembered[None] = task_lives.Remembered()

    def cursor(self) -> Cursor:
        """Where the next page continues."""
        return Cursor(self._end_ms, tuple((self._ends[path], self._before[path]) for path in self._ends))

    def rows(self) -> Iterator[dict[str, Any] | None]:
        """The tasks; None in between, so that the caller may end."""
        read = 0
        for entry in self._asked.entries(self._source, self._end_ms):
            if entry.physical_offset >= self._before[entry.store]:
                continue  # of the same millisecond as the last one that was read
            row = None if isinstance(entry, Passed) else self._row_at(entry)
            self._before[entry.store], self._end_ms = entry.physical_offset, entry.time_ms
            if row is not None:
                yield row
            read += 1  # each page gets further
            if isinstance(entry, Passed) or read % LOOK_EVERY == 0:
                yield None

    def _row_at(self, entry: Entry) -> dict[str, Any] | None:
        task_id = entry.task_id
        if not task_id or task_id in self._met or not self._asked.matches(entry):
            return None
        self._met.add(task_id, None)
        found = task_lives.entries_of(self._source, task_id)
        newest = next((one for one in reversed(found) if self._is_before(one)), None)
        is_whole = len(found) < task_lives.ENTRIES_KEPT
        if is_whole and (newest is None or task_lives.place_of(newest) != task_lives.place_of(entry)):
            return None  # an earlier page has it
        row = row_of(task_id, found, self._texts)
        return row if self._asked.accepts(row) else None

    def _is_before(self, entry: Entry) -> bool:
        """Whether an entry was there when the list began, and the list may have the task at it."""
        return entry.physical_offset < self._ends[entry.store] and self._asked.matches(entry)


def page_of(
    source: Source,
    asked: Asked,
    limit: int,
    after: str | None,
    texts: Texts,
    time_s: float = TIME_S,
    empty_s: float = EMPTY_S,
) -> tuple[list[dict[str, Any]], str | None]:
    """Tasks that meet the conditions, at most `limit`, and the cursor of the next page; None at the end. Raises
    ValueError for a cursor of something else, and for a state that no task ever had."""
    if asked.state is not None and asked.state not in KNOWN_STATES:
        ever = history.entries(source, states=(asked.state,))
        if next(iter(ever), None) is None:  # apps make states of their own
            raise ValueError(f"state: no task had the state {asked.state!r}, and Celery has no such state")
    if after is None and asked.text is not None and _is_uuid(asked.text):
        found = task_lives.entries_of(source, asked.text)
        if found:
            known = row_of(asked.text, found, texts)
            fits = asked.accepts(known) and any(map(asked.matches, found))
            return [known] if fits else [], None
    begin = Cursor.first(source, asked) if after is None else Cursor.of(after, source)
    reader = _Reader(source, asked, begin, texts)
    rows: list[dict[str, Any]] = []
    begin_s, following = monotonic_s(), reader.cursor()
    for row in reader.rows():
        is_full = len(rows) == limit
        if row is None:
            if monotonic_s() - begin_s >= (time_s if rows else empty_s):
                return rows, (following if is_full else reader.cursor()).text()
        elif is_full:
            return rows, following.text()
        else:
            rows.append(row)
            following = reader.cursor()
    return rows, None


def _is_uuid(text: str) -> bool:
    try:
        return str(UUID(text)) == text
    except ValueError:
        return False


def task_of(source: Source, task_id: str, texts: Texts) -> dict[str, Any] | None:
    """One task with its events and results, newest last; None if no store knows it."""
    found = task_lives.entries_of(source, task_id)
    if not found:
        return None
    return {
        **row_of(task_id, found, texts, alone=True),
        "events": [entry_row(one, texts) for one in found],
        "actions": actions.possible(task_lives.folded(task_id, found, texts.is_valid)),
    }


def workflow_of(source: Source, task_id: str, texts: Texts) -> dict[str, Any] | None:
    """The workflow of a task, as the command `timeline` finds it; None if no store knows the task."""
    life = task_lives.life_of(source, task_id, texts.is_valid)
    if life is None:
        return None
    found = workflows.workflow_of(source, life, WORKFLOW_MOST, texts.is_valid)
    return {
        "root_id": found.root_id,
        "tasks": [
            {"depth": depth, **life_row(one), "error": texts.shown(one.exception)}
            for depth, one in found.tasks
        ],
        "chords": [dataclasses.asdict(chord) for chord in found.chords],
        "more": found.more,
    }
