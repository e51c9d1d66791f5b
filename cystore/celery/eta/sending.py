"""Due messages go from the store to the broker: a part of the duty `deliver_delayed`.

The store delivers a due message into the queue 0 of `celery_eta`. Whoever has the duty's lease sends from there, in the
order of due times, and then moves the group `celery_eta` on: at least once. A process that is killed between the two
sends one message twice, and a power cut sends again what was sent since the groups' offsets were saved, a second at
most (`flush_consumer_offset_interval_ms`). While the broker is away nothing is given up: a hold keeps the messages, and
the next turn tries again. A message that the broker refuses again and again, although it answers, ends as a failure, so
that it stops no other.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from typing import Any

from celery import Celery
from celery.worker import state
from kombu import Exchange, Queue
from kombu.exceptions import OperationalError

from cystore import Message, MessageIllegalError, MessageStore, StoreError
from cystore.celery.base import events
from cystore.celery.eta import (
    delivered,
    remote,  # noqa: F401 - every worker of a store knows its tasks
    waiting,
)
from cystore.celery.eta.waiting import TOPIC, NotATaskError, WaitingTask
from cystore.celery.lifecycle import payload
from cystore.celery.lifecycle.task_lives import moment_ms
from cystore.clock import now_ms

log = logging.getLogger("cystore.celery")

STEP_MESSAGES = 200  # sent in one step
TRIES = 3  # of a message that the broker refuses while it answers
# A broker that is away costs a turn a few seconds at most, so that the duty's lease is not lost meanwhile.
RETRY = {"max_retries": 1, "interval_start": 0, "interval_step": 0}
# Answers of a Redis that takes no message for the moment, whatever is in it: it is full, a replica, without its disk.
# Its client gives some a class of their own, leaves the word of the others in the text, and says in which command of a
# pipeline it was.
FOR_THE_MOMENT = frozenset((
    "OutOfMemoryError", "ReadOnlyError", "MasterDownError", "ClusterDownError", "TryAgainError", "NoPermissionError",
    "OOM", "READONLY", "MASTERDOWN", "CLUSTERDOWN", "TRYAGAIN", "NOPERM", "MISCONF", "NOREPLICAS", "NOAUTH", "BUSY",
))  # fmt: skip

_waits: weakref.WeakSet[Celery] = weakref.WeakSet()  # the log says that their broker is away
_refused: weakref.WeakKeyDictionary[Celery, tuple[int, int]] = (
    weakref.WeakKeyDictionary()
)  # queue offset, tries


def is_due(store: MessageStore) -> bool:
    """Whether a delivered message was not sent yet."""
    return delivered.is_there(store, TOPIC)


def send_due(app: Celery, store: MessageStore) -> tuple[int, bool]:
    """Sends delivered messages; returns their number, and whether more are there. Raises the store's errors."""
    done, stays, more = delivered.take(store, TOPIC, STEP_MESSAGES, partial(_sent, app, store))
    if stays is not None:
        store.hold(TOPIC, stays.physical_offset or 0)
    elif done and TOPIC in store.holds():
        store.release(TOPIC)
    return done, more


def _sent(app: Celery, store: MessageStore, message: Message) -> bool:
    """Sends one message, or ends it as a failure. False: the broker is away."""
    try:
        task = waiting.fired(message)
    except NotATaskError as error:
        log.error(
            "%s: the record at %s is no message of a task, and is left out: %s", store.path, message.physical_offset,
            error,
        )  # fmt: skip
        return True
    if task.task_id in state.revoked:
        return _ended(app, task, partial(waiting.tell_cancelled, app, task))
    try:
        expiration_s = _expiration_s(task)
        left = {name: value for name, value in task.message.properties.items() if name != "expiration"}
        if expiration_s is not None:
            left["expiration"] = expiration_s
        declare = [_queue_of(fields) for fields in task.declare]
        headers = dict(task.headers)
        if (
            moment_ms(headers.get("eta")) or 0
        ) > now_ms():  # it was fired, or moved: a worker would wait once more
            headers["eta"] = None
        payload.publish(app, task.message._replace(headers=headers, properties=left), declare, RETRY)
    except Exception as error:  # noqa: BLE001 - a broker's client raises anything
        if _is_away(app, error) or _tries(app, message) < TRIES:
            if app not in _waits:
                _waits.add(app)
                log.warning("tasks whose ETA came wait for the broker: %s: %s", type(error).__name__, error)
            return False
        log.error("task %s cannot be sent, and fails: %s: %s", task.task_id, type(error).__name__, error)
        return _ended(app, task, partial(waiting.fail, app, task, error))
    if app in _waits:
        _waits.discard(app)
        log.warning("the broker takes the tasks whose ETA came")
    waiting.note(app, events.FIRED, task)
    return True


def _ended(app: Celery, task: WaitingTask, end: Callable[[], None]) -> bool:
    """Enters the end of a task that is not sent. False: the broker, which what follows the task needs, is away."""
    try:
        end()
    except Exception as error:  # its callbacks and its chord are a sender's words: they stop no other task
        if isinstance(error, StoreError) and not isinstance(error, MessageIllegalError):
            raise
        if _is_away(app, error):
            return False
        log.error("task %s: what follows its end fails: %s: %s", task.task_id, type(error).__name__, error)
    return True


def _queue_of(fields: Mapping[str, Any]) -> Queue:
    known = {name for name, _ in Queue.attrs}
    options = {name: value for name, value in fields.items() if name in known and name != "bindings"}
    exchange = {name: value for name, value in (fields.get("exchange") or {}).items() if value is not None}
    return Queue(**{**options, "exchange": Exchange(**exchange)})


def _expiration_s(task: WaitingTask) -> float | None:
    """The time that a message may spend in the broker: until the task expires, or as long as its sender said. A task
    that has expired goes to a worker, which says so."""
    expires = task.headers.get("expires")
    given = task.message.properties.get("expiration")
    if given is None or not expires:
        return None if given is None else float(given)
    try:
        moment = datetime.fromisoformat(str(expires))
    except ValueError:
        return float(given)
    left_s = (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() - now_ms() / 1000
    return left_s if left_s > 0 else None


def _is_away(app: Celery, error: Exception) -> bool:
    """Whether the broker did not answer, or takes nothing for the moment. If not, it refused this message."""
    cause = error.__cause__ or error
    word = str(cause).rpartition("caused error: ")[2].partition(" ")[0]
    if not FOR_THE_MOMENT.isdisjoint((type(cause).__name__, word)):
        return True
    with app.connection_for_write() as connection:  # does not connect
        away, refuses = connection.connection_errors, connection.channel_errors
    if isinstance(error.__cause__, refuses) or isinstance(error, refuses):
        return False
    return isinstance(error, (OperationalError, OSError, *away))


def _tries(app: Celery, message: Message) -> int:
    at, tries = _refused.get(app, (-1, 0))
    tries = tries + 1 if at == message.queue_offset else 1
    _refused[app] = (message.queue_offset or 0, tries)
    return tries
