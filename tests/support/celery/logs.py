"""Lifecycle logs of tasks that never ran: written as the handlers write them."""

from __future__ import annotations

from typing import Any

from cystore import Message, MessageStore
from cystore.celery.base import events, records


def event_message(
    event: str, task_id: str, name: str | None = None, root_id: str | None = None, group_id: str | None = None,
    **details: Any
) -> Message:  # fmt: skip
    """One event as a message that can be put."""
    return Message(
        topic=events.EVENTS,
        body=events.body_of(details),
        queue_id=records.queue_of(name),
        keys=events.keys_of(task_id, root_id, group_id),
        tags=event,
        properties={"task": name} if name else {},
    )


def runs(count: int, *, names: int = 4, first: int = 0) -> list[Message]:
    """The events of so many runs, four each: every tenth fails, runtimes are 1 ms, 2 ms, and so on."""
    found = []
    for number in range(first, first + count):
        task_id, name = f"t{number}", f"app.task{number % names}"
        failed = number % 10 == 9
        end = events.FAILED if failed else events.SUCCEEDED
        found += [
            event_message(events.SENT, task_id, name, args=f"({number},)", queue="celery"),
            event_message(events.RECEIVED, task_id, name, worker="w@h", queue="celery"),
            event_message(events.STARTED, task_id, name, worker="w@h", pid=7),
            event_message(
                end, task_id, name, worker="w@h", pid=7, runtime=(number + 1) / 1000,
                exception=f"ValueError({number})" if failed else None,
                traceback=f"Traceback of {number}\n  line" if failed else None,
            ),
        ]  # fmt: skip
    return found


def write(store: MessageStore, messages: list[Message], step: int = 1000) -> None:
    """Puts messages, a batch at a time."""
    for start in range(0, len(messages), step):
        store.put_many(messages[start : start + step])
