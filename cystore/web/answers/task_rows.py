"""One task as the JSON object of the API. Nothing is unpickled: a result that is not JSON shows its type and size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from celery import states

from cystore import Message
from cystore.celery.base import events, records
from cystore.celery.base.events import Event
from cystore.celery.history import JSON, Transition, error_text
from cystore.celery.lifecycle import task_lives
from cystore.celery.lifecycle.redaction import Redaction, shortened
from cystore.celery.lifecycle.task_lives import Life, any_record, text_of
from cystore.operate.output import time_text

PENDING, RECEIVED, IGNORED, REJECTED = states.PENDING, states.RECEIVED, states.IGNORED, states.REJECTED
# Celery's word for a task whose newest event is this one.
STATE_OF: dict[str, str] = {
    events.SENT: PENDING,
    events.SCHEDULED: PENDING,
    events.FIRED: PENDING,
    events.RECEIVED: RECEIVED,
    events.REDELIVERED: RECEIVED,
    events.STARTED: states.STARTED,
    events.RETRIED: states.RETRY,
    events.SUCCEEDED: states.SUCCESS,
    events.FAILED: states.FAILURE,
    events.TIMED_OUT: states.FAILURE,
    events.CHILD_LOST: states.FAILURE,
    events.UNKNOWN: states.FAILURE,
    events.SKIPPED: states.FAILURE,
    events.REJECTED: REJECTED,
    events.IGNORED: IGNORED,
    events.REVOKED: states.REVOKED,
    events.CANCELLED: states.REVOKED,
}
_WAITS = (events.SENT, events.SCHEDULED, events.FIRED, events.RECEIVED, events.REDELIVERED)
# Entries of a task in this state; one of them is the newest that says so.
_OTHER_TAGS: dict[str, tuple[str, ...]] = {
    PENDING: (events.REJECTED, events.CHILD_LOST),
    states.RETRY: _WAITS,
}
KNOWN_STATES = frozenset((*states.ALL_STATES, IGNORED, REJECTED, *STATE_OF))

RESULT_BYTES_MOST = 4096  # of a result in a list
ALONE_BYTES_MOST = 1 << 20  # of the result of a task that is shown alone
TRACEBACK_CHARS_MOST = 8192
NOT_SHOWN = ("v", "message")  # of an event: its layout, and the whole message


@dataclass(frozen=True)
class Texts:
    """The texts that may be shown. The log was redacted when it was written; an app's settings redact it once more.
    `is_valid` says whether a result has not expired."""

    redaction: Redaction | None = None
    is_valid: Callable[[Message], bool] = any_record

    def shown(self, value: Any) -> Any:
        """A text, or a value with texts in it, without the values of hidden names."""
        if self.redaction is None or self.redaction.names is None:
            return value
        return self.redaction.text(value) if isinstance(value, str) else self.redaction.names.value(value)


def tags_of(state: str) -> tuple[str, ...]:
    """Kinds of entries among which the one is that put a task into a state: Celery's word, or an event's."""
    if state in STATE_OF and state not in STATE_OF.values():
        return (state,)
    kinds = [event for event, word in STATE_OF.items() if word == state]
    return tuple(dict.fromkeys((*kinds, state, *_OTHER_TAGS.get(state, ()))))


def state_of(life: Life) -> str:
    """The state of a task in Celery's words, as `AsyncResult.state` says it, and RECEIVED where the log knows that."""
    if life.has_succeeded:
        return states.SUCCESS
    if life.outcome is not None:
        return STATE_OF.get(life.outcome, life.outcome)
    stage, result = life.stage, life.result_state
    if result is not None and result not in states.ALL_STATES and stage in (events.STARTED, None):
        return result  # the app's own, like PROGRESS
    if stage is None:
        return result or PENDING
    if stage in (events.REJECTED, events.CHILD_LOST):
        return PENDING  # its message went back
    return states.RETRY if life.retries and stage in _WAITS else STATE_OF.get(stage, stage)


def _time(time_ms: int | None) -> str | None:
    return time_text(time_ms) if time_ms is not None and time_ms > 0 else None


def row_of(
    task_id: str, entries: Sequence[Event | Transition], texts: Texts, *, alone: bool = False
) -> dict[str, Any]:
    """A task from its entries, oldest first."""
    life = task_lives.folded(task_id, entries, texts.is_valid)
    shown = texts.shown
    row = life_row(life)
    row |= {"args": shown(life.args), "kwargs": shown(life.kwargs), "error": shown(life.exception)}
    if row["state"] == states.RETRY:  # of the try before
        row["error"] = row["error"] or shown(_newest(entries, "exception"))
    row["worker"] = row["worker"] or _newest(entries, "worker")
    row["traceback"] = shown(_newest(entries, "traceback")) if row["error"] else None
    row["result"] = None
    result = _result(entries, texts)
    row["store_s"] = None if result is None else _store_s(life, result)
    if result is not None:
        _add_result(row, result, shown, ALONE_BYTES_MOST if alone else RESULT_BYTES_MOST)
    if row["traceback"] is not None and not alone:
        row["traceback"] = shortened(row["traceback"], TRACEBACK_CHARS_MOST)
    return row


def life_row(life: Life) -> dict[str, Any]:
    """The fields of a task that its life has."""
    run_s = life.runtime_s
    if run_s is None and life.ended_ms is not None and life.started_ms is not None:
        run_s = max(0, life.ended_ms - life.started_ms) / 1000
    return {
        "id": life.task_id,
        "name": life.name,
        "state": state_of(life),
        "event": life.outcome or life.stage,
        "worker": life.worker,
        "queue": life.queue,
        "sent": _time(life.sent_ms),
        "due": _time(life.due_ms),
        "received": _time(life.received_ms),
        "started": _time(life.started_ms),
        "ended": _time(life.ended_ms),
        "wait_s": None if life.wait_ms is None else life.wait_ms / 1000,
        "run_s": run_s,
        "retries": life.retries,
        "parent_id": life.parent_id,
        "root_id": life.root_id,
        "group_id": life.group_id,
        "rerun_of": life.rerun_of,
        "result_type": life.result_type,
        "result_bytes": life.result_bytes,
    }


def _result(entries: Iterable[Event | Transition], texts: Texts) -> Transition | None:
    """The result that the backend shows, by its own rule."""
    results: list[Transition] = []
    for entry in entries:
        if isinstance(entry, Transition):
            results.append(entry)
    found = records.fold((one._message for one in reversed(results)), texts.is_valid)
    return None if found is None else next(one for one in results if one._message is found)


def _add_result(
    row: dict[str, Any], result: Transition, shown: Callable[[Any], Any], bytes_most: int
) -> None:
    if result.content_type != JSON or result.size_bytes > bytes_most:
        return
    meta = result.meta
    for field in ("args", "kwargs"):  # kept with the result (`result_extended`), where the log has none
        if row[field] is None and meta.get(field):
            row[field] = shown(repr(meta[field]))
    for field in ("worker", "queue"):
        row[field] = row[field] or text_of(meta, field)
    value = meta.get("result")
    if result.state in states.EXCEPTION_STATES:
        row["error"] = row["error"] or shown(error_text(value))
        row["traceback"] = row["traceback"] or shown(text_of(meta, "traceback"))
    row["result"] = shown(value)


def _store_s(life: Life, result: Transition) -> float | None:
    """How long the run waited until its result was safe: from the record of the result to the run's end."""
    started_ms, ended_ms = life.started_ms, life.ended_ms
    if started_ms is None or ended_ms is None or not started_ms <= result.time_ms <= ended_ms:
        return None
    return (ended_ms - result.time_ms) / 1000


def _newest(entries: Sequence[Event | Transition], field: str) -> str | None:
    """A text of the newest event that has it."""
    found = (text_of(entry.details, field) for entry in reversed(entries) if isinstance(entry, Event))
    return next(filter(None, found), None)


def entry_row(entry: Event | Transition, texts: Texts) -> dict[str, Any]:
    """One event or result of a task, for its timeline."""
    row: dict[str, Any] = {
        "time": _time(entry.time_ms),
        "kind": "event" if isinstance(entry, Event) else "result",
        "event": entry.state,
    }
    if entry.store:
        row["store"] = entry.store
    if isinstance(entry, Event):
        row |= {name: texts.shown(value) for name, value in entry.details.items() if name not in NOT_SHOWN}
    else:
        row |= {"result_type": entry.content_type, "result_bytes": entry.size_bytes}
    return row
