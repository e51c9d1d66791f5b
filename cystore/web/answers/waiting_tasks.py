"""Tasks that wait in the stores for their ETA, the next one first."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from typing import Any

from cystore import MessageStore
from cystore.celery.base.reading import Source
from cystore.celery.eta import waiting
from cystore.celery.eta.waiting import NotATaskError, WaitingTask
from cystore.celery.lifecycle import task_lives
from cystore.clock import monotonic_s
from cystore.operate.output import time_text
from cystore.web.answers.open_stores import stores_of
from cystore.web.answers.pages import numbers_of, word_of
from cystore.web.answers.task_rows import Texts

TIME_S = 2.0
Place = tuple[int, int, int]  # due time, number of the store, physical offset


def waiting_page(
    source: Source, name: str | None, limit: int, after: str | None, texts: Texts
) -> tuple[list[dict[str, Any]], str | None]:
    """At most `limit` waiting tasks, and the cursor of the next page; None at the end. The list of a page that takes
    too long is short. Raises ValueError for a cursor of something else."""
    begin = (0, 0, 0) if after is None else _place_of(after)
    rows: list[dict[str, Any]] = []
    until_s = monotonic_s() + TIME_S
    last = begin
    for place, store, task in _tasks(source, begin):
        if len(rows) == limit or monotonic_s() > until_s:
            return rows, word_of(last)
        last = place
        if task is not None and name in (None, task.name):
            rows.append(_row(source, store, task, texts))
    return rows, None


def _place_of(after: str) -> Place:
    due_ms, number, offset = numbers_of(after, 3)
    return due_ms, number, offset


def _tasks(source: Source, begin: Place) -> Iterator[tuple[Place, MessageStore, WaitingTask | None]]:
    """The records that wait after a place; None for a record that is not the message of a task."""

    def of(number: int, store: MessageStore) -> Iterator[tuple[Place, MessageStore, WaitingTask | None]]:
        for one in store.pending(waiting.TOPIC, begin[0]):
            place = (one.deliver_at_ms, number, one.physical_offset)
            if place > begin:
                try:
                    task = waiting.parse(one.body, one.deliver_at_ms, one.physical_offset)
                except NotATaskError:
                    task = None
                yield place, store, task

    streams = [of(number, store) for number, store in enumerate(stores_of(source))]
    return heapq.merge(*streams, key=lambda found: found[0])


def _row(source: Source, store: MessageStore, task: WaitingTask, texts: Texts) -> dict[str, Any]:
    """One task. Its arguments are those of the lifecycle log, which was redacted; the message was not."""
    life = task_lives.life_of(source, task.task_id)
    headers = task.headers
    return {
        "id": task.task_id,
        "name": task.name,
        "due": time_text(task.due_ms),
        "queue": task.message.routing_key,
        "args": None if life is None else texts.shown(life.args),
        "kwargs": None if life is None else texts.shown(life.kwargs),
        "retries": headers.get("retries") if isinstance(headers.get("retries"), int) else 0,
        "root_id": headers.get("root_id"),
        "parent_id": headers.get("parent_id"),
        "store": str(store.path),
    }
