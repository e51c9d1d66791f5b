"""Runs of tasks as spans of traces, from their events in the order of the log.

Each run of a task's code is a span, from its STARTED to its end. The trace is that of the publisher, if the message has
its `traceparent` (W3C Trace Context); else all tasks of a workflow are one trace, whose id is made from the root's id.
Ids are made from the log alone, so a span that is exported twice is the same span.
"""

from __future__ import annotations

import hashlib
import re
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any, NamedTuple

from cystore.celery.base import events
from cystore.celery.base.events import Event
from cystore.celery.lifecycle.task_lives import ENDS, number_of, text_of

TASKS_MOST, TRACES_MOST = 100_000, 100_000
TRACEPARENT = re.compile(r"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-[0-9a-f]{2}(?:-.*)?")
OK = (events.SUCCEEDED, events.IGNORED)


class RunSpan(NamedTuple):
    """One run. Times are ms since 1970."""

    trace_id: int
    span_id: int
    parent_span_id: int  # 0: none
    name: str
    begin_ms: int
    end_ms: int
    state: str
    exception: str | None
    traceback: str | None
    attributes: dict[str, str | int | float]


class _Task:
    __slots__ = ("parent_span_id", "queue", "runs", "sent_ms", "span_id", "trace_id")

    def __init__(self) -> None:
        self.trace_id = self.parent_span_id = self.span_id = self.sent_ms = 0
        self.queue: str | None = None
        self.runs: dict[int, tuple[int, int]] = {}  # try: when it began, its span


class RunSpans:
    """The runs of one log."""

    def __init__(self) -> None:
        self._tasks: OrderedDict[str, _Task] = OrderedDict()
        self._traces: OrderedDict[str, int] = OrderedDict()  # root: its trace, where a publisher gave it

    def take(self, event: Event) -> Iterator[RunSpan]:
        """Takes in the next event; gives the run that it ends."""
        task_id, details, kind = event.task_id, event.details, event.event or ""
        if not task_id:
            return
        task = self._known(task_id, event, details)
        task.queue = text_of(details, "queue") or task.queue
        number = int(number_of(details, "retries") or 0)
        if kind == events.SENT:
            task.sent_ms = event.time_ms
        elif kind == events.STARTED:
            task.span_id = _id(8, f"{task_id} {number} {event.physical_offset}")
            task.runs[number] = event.time_ms, task.span_id
        elif kind in ENDS or kind == events.RETRIED:
            yield from self._ended(task_id, task, number, event, details)

    def _known(self, task_id: str, event: Event, details: dict[str, Any]) -> _Task:
        task = self._tasks.get(task_id)
        if task is None:
            task = self._tasks[task_id] = _Task()
            if len(self._tasks) > TASKS_MOST:
                self._tasks.popitem(last=False)
        self._tasks.move_to_end(task_id)
        given = TRACEPARENT.fullmatch(text_of(details, "traceparent") or "")
        root_id = event.root_id or task_id
        if given is not None and int(given[1], 16) and int(given[2], 16):
            task.trace_id, task.parent_span_id = int(given[1], 16), int(given[2], 16)
            self._traces[root_id] = task.trace_id
            if len(self._traces) > TRACES_MOST:
                self._traces.popitem(last=False)
        elif not task.trace_id:
            task.trace_id = self._traces.get(root_id) or _id(16, root_id)
            parent = self._tasks.get(text_of(details, "parent_id") or "")
            task.parent_span_id = 0 if parent is None else parent.span_id
        return task

    def _ended(
        self, task_id: str, task: _Task, number: int, event: Event, details: dict[str, Any]
    ) -> Iterator[RunSpan]:
        if number not in task.runs and event.event in events.ENDS_OF_CODE and task.runs:
            number = max(task.runs)  # earlier versions wrote some ends without their try
        begun = task.runs.pop(number, None)
        kind = event.event or ""
        if kind != events.RETRIED and not details.get("requeue") and not task.runs:
            del self._tasks[task_id]
        if begun is None:
            return  # its code never began, or before this reader
        begin_ms, span_id = begun
        pid = number_of(details, "pid")
        told: dict[str, Any] = {
            "messaging.system": "celery",
            "messaging.operation.type": "process",
            "messaging.destination.name": task.queue,
            "messaging.message.id": task_id,
            "celery.task_name": event.name,
            "celery.state": kind,
            "celery.retries": number,
            "celery.worker": text_of(details, "worker"),
            "celery.root_id": event.root_id if event.root_id != task_id else None,
            "celery.group_id": event.group_id,
            "celery.wait_s": max(0, begin_ms - task.sent_ms) / 1000 if task.sent_ms else None,
            "process.pid": None if pid is None else int(pid),
        }
        yield RunSpan(
            task.trace_id, span_id, task.parent_span_id, f"run {event.name or 'task'}", begin_ms,
            max(begin_ms, event.time_ms), kind, text_of(details, "exception"), text_of(details, "traceback"),
            {name: value for name, value in told.items() if value is not None},
        )  # fmt: skip


def _id(size: int, text: str) -> int:
    """A number of so many bytes that is not 0."""
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return int.from_bytes(digest[:size]) or 1
