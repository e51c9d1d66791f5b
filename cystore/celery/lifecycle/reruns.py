"""Sending tasks again, from the messages that the lifecycle log kept (`payload`).

The message is unchanged: serializer, arguments, callbacks, priority. An ETA or an expiry in the past is removed, and
tries are counted anew. Under a new id the task is not part of its old group and chord: these have counted, or still
count, the first one. Nothing is unpickled: if a body that is not JSON contains the chord, only the same id can be used.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any

from celery import Celery
from celery.utils import uuid

from cystore.celery import history
from cystore.celery.base import events
from cystore.celery.base.reading import Source
from cystore.celery.history import JSON
from cystore.celery.homes import HOME
from cystore.celery.lifecycle import payload, recorder
from cystore.celery.lifecycle.payload import LoggedMessage
from cystore.celery.lifecycle.task_lives import Life, moment_ms
from cystore.clock import now_ms

OVER = ("eta", "expires")


class RerunError(Exception):
    """A task that cannot be sent again; the text has the reason, and what to do."""


@dataclass(frozen=True)
class Rerun:
    """A message that is ready to be sent. `notes` list the differences to the kept one."""

    life: Life
    task_id: str
    message: LoggedMessage
    notes: list[str] = field(default_factory=list)


def prepare(store: Source, life: Life, *, same_id: bool) -> Rerun:
    """The newest message that the log has of a task, made ready. Raises RerunError."""
    message = logged_message(store, life.task_id)
    headers, notes = dict(message.headers), []
    if headers.get("id") != life.task_id or not isinstance(headers.get("task"), str):
        raise RerunError(
            f"{life.task_id}: the kept content is not a message of this task (messages of protocol 1 cannot be "
            "sent again)"
        )
    for name in OVER:
        due_ms = moment_ms(headers[name]) if isinstance(headers.get(name), str) else None
        if due_ms is not None and due_ms <= now_ms():
            headers[name] = None
            notes.append(f"its {name} is over and was removed")
    headers["retries"] = 0
    if same_id:
        return Rerun(life, life.task_id, message._replace(headers=headers), notes)
    task_id = uuid()
    headers["id"] = task_id
    if headers.get("root_id") == life.task_id:
        headers["root_id"] = task_id
    properties = dict(message.properties)
    if "correlation_id" in properties:
        properties["correlation_id"] = task_id
    message = message._replace(headers=headers, properties=properties)
    if headers.get("group"):
        headers["group"] = headers["group_index"] = None
        message = _without_chord(message, life.task_id)
        notes.append("it is not part of its old group or chord")
    return Rerun(life, task_id, message, notes)


def logged_message(store: Source, task_id: str) -> LoggedMessage:
    """The newest message of a task. Raises RerunError where none is kept."""
    reason = (
        f'it was sent without {payload.SETTING} = "{payload.MESSAGE}", or its SENT event is not in this store'
    )
    for event in history.events(store, task_id=task_id, states=(events.SENT,)):
        details = event.details
        if isinstance(details.get(payload.FIELD), dict):
            try:
                return LoggedMessage.of(details[payload.FIELD])
            except ValueError as error:
                raise RerunError(f"{task_id}: the message in the log is damaged: {error}") from error
        if isinstance(details.get(payload.LEFT_OUT), str):
            reason = details[payload.LEFT_OUT]
            break
    raise RerunError(f"{task_id}: its message is not kept: {reason}")


def _without_chord(message: LoggedMessage, task_id: str) -> LoggedMessage:
    """The message without its chord: its task does not count for it."""
    if message.content_type != JSON:
        raise RerunError(
            f"{task_id}: it is part of a group, and its message is {message.content_type}, which rerun does not "
            "decode; --same-id sends it "
            "unchanged"
        )
    try:
        args, kwargs, embedded = json.loads(message.body)
        if embedded.get("chord") is None:
            return message
        body = json.dumps([args, kwargs, {**embedded, "chord": None}]).encode()
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise RerunError(f"{task_id}: the body of its message cannot be read: {error}") from error
    return message._replace(body=body)


def send(app: Celery, rerun: Rerun) -> None:
    """Sends the message, and enters it into the lifecycle log. Raises the broker's errors."""
    message, queues = rerun.message, app.amqp.queues
    queue_names = [message.routing_key] if not message.exchange else list(queues)
    declare = [
        queues[name]
        for name in queue_names
        if name in queues and message.exchange in ("", queues[name].exchange.name)
    ]
    payload.publish(app, message, declare)
    _log(app, rerun)


def _log(app: Celery, rerun: Rerun) -> None:
    log = recorder.log_of(app)
    if log is None:
        return
    headers, life = rerun.message.headers, rerun.life
    details: dict[str, Any] = {name: headers.get(name) for name in ("origin", "parent_id", "eta", "expires")}
    try:
        log.append(
            events.SENT, rerun.task_id, headers["task"], headers.get("root_id"), headers.get("group"), **details,
            queue=rerun.message.routing_key, exchange=rerun.message.exchange, args=life.args, kwargs=life.kwargs,
            home=headers.get(HOME), rerun_of=life.task_id,
            message=rerun.message.as_json() if log.keeps_messages else None,
        )  # fmt: skip
    except Exception as error:  # noqa: BLE001 - the message is out, and the log is a witness only
        log.trouble(error)
