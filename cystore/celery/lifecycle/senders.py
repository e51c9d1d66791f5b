"""Functions that stand around an app's sending of tasks. Whatever publishes a task calls `app.amqp.send_task_message`:
`apply_async`, `send_task`, canvas, `retry`, beat.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery import Celery

Send = Callable[..., Any]
Around = Callable[..., Any]  # (send, producer, name, message, *positional, **options)

_MARKS = "cystore_around"


def is_used(app: Celery) -> bool:
    """Whether the app has sent a task already, before anything of ours stood around it."""
    sender = app.amqp.__dict__.get("send_task_message")
    return sender is not None and not hasattr(sender, _MARKS)


def stand_around(app: Celery, mark: str, around: Around) -> None:
    """Lets `around` send the app's tasks from now on; its first argument is the function that would have sent them. One
    that has this mark already stays the only one."""
    amqp = app.amqp
    sender = amqp.__dict__.get("send_task_message")
    marks: tuple[str, ...] = getattr(sender, _MARKS, ())
    if mark in marks:
        return
    inner: list[Send] = [sender] if marks and sender is not None else []

    def send_task_message(producer: Any, name: str, message: Any, *positional: Any, **options: Any) -> Any:
        if not inner:  # made at the first call: it reads the app's settings at that moment
            inner.append(amqp._create_task_sender())
        return around(inner[0], producer, name, message, *positional, **options)

    setattr(send_task_message, _MARKS, (*marks, mark))
    amqp.send_task_message = send_task_message
